//! The tensors of a layer: what each means, what it is called, how it is shaped, and which part it streams with.

use super::Matrix;

/// What a tensor does inside a layer. How it is spelled is its family's business: [`Spec::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Norm before the attention half.
    AttnBefore,
    /// Query projection.
    Q,
    /// Key projection.
    K,
    /// Value projection.
    V,
    /// Output projection of attention.
    O,
    /// Bias of [`Role::Q`].
    QBias,
    /// Bias of [`Role::K`].
    KBias,
    /// Bias of [`Role::V`].
    VBias,
    /// Bias of [`Role::O`].
    OBias,
    /// Norm of queries.
    QNorm,
    /// Norm of keys.
    KNorm,
    /// Norm before the feed-forward half.
    MlpBefore,
    /// Gate projection.
    Gate,
    /// Up projection; of a feed-forward without a gate its first matrix.
    Up,
    /// Down projection.
    Down,
    /// Bias of [`Role::Gate`].
    GateBias,
    /// Bias of [`Role::Up`].
    UpBias,
    /// Bias of [`Role::Down`].
    DownBias,
    /// Norm of what attention gives, before it is added.
    AttnAfter,
    /// Norm of what the feed-forward gives, before it is added.
    MlpAfter,
    /// Queries, keys and values in one matrix, rows in this order.
    Qkv,
    /// Bias of [`Role::Qkv`].
    QkvBias,
    /// Gate and up in one matrix, gate first.
    GateUp,
    /// Bias of [`Role::GateUp`].
    GateUpBias,
    /// Bias of a LayerNorm, by the norm it belongs to.
    NormBias(NormAt),
    /// One logit a head that takes part in the softmax and has no value.
    Sinks,
    /// Scores of the routed experts.
    Router,
    /// Bias of the scores.
    RouterBias,
    /// Bias of the scores for choosing alone.
    RouterChoice,
    /// Scale of the router's input.
    RouterScale,
    /// Factor on each expert's output.
    ExpertScale,
    /// A matrix of one routed expert.
    Expert(u16, Matrix),
    /// A matrix of all routed experts, one below the other.
    Experts(Matrix),
    /// Biases of [`Role::Experts`].
    ExpertsBias(Matrix),
    /// A matrix of the feed-forward that every token passes beside the routed experts.
    Shared(Matrix),
    /// Gate of the shared expert's output, one logit a token.
    SharedGate,
    /// Norm before the routed experts, where it isn't the half's own.
    ExpertsBefore,
    /// Norm of what the routed experts give together.
    ExpertsAfter,
    /// Norm of what the feed-forward beside them gives.
    SharedAfter,
    /// A tensor of multi-head latent attention.
    Latent(LatentTensor),
    /// A tensor of a gated delta rule.
    Delta(DeltaTensor),
    /// Gate of the per-layer embedding.
    PerLayerGate,
    /// Projection of the per-layer embedding.
    PerLayerUp,
    /// Norm of what the per-layer embedding gives.
    PerLayerAfter,
    /// Factor on the layer's output.
    Scalar,
}

/// The places of norms that may have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NormAt {
    /// [`Role::AttnBefore`]
    AttnBefore,
    /// [`Role::AttnAfter`]
    AttnAfter,
    /// [`Role::MlpBefore`]
    MlpBefore,
    /// [`Role::MlpAfter`]
    MlpAfter,
    /// [`Role::QNorm`]
    Q,
    /// [`Role::KNorm`]
    K,
}

/// The tensors of multi-head latent attention beside the output projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LatentTensor {
    /// Down to the query's rank.
    QDown,
    /// Its bias.
    QDownBias,
    /// Norm at the query's rank.
    QNorm,
    /// Up to the query heads.
    QUp,
    /// Down to the rank of keys and values, with the shared rotary key.
    KvDown,
    /// Its bias.
    KvDownBias,
    /// Norm at that rank.
    KvNorm,
    /// Up to the heads of keys and values.
    KvUp,
}

/// The tensors of a gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeltaTensor {
    /// Queries, keys and values (and the output's gate, where all four are one matrix).
    Qkv,
    /// The output's gate.
    Z,
    /// The write strength (and the decay, where both are one matrix).
    B,
    /// The decay.
    A,
    /// Depthwise causal convolution.
    Conv,
    /// Logarithm of the decay's rate.
    ALog,
    /// Bias of the decay's step.
    DtBias,
    /// Norm of the output.
    Norm,
    /// Output projection.
    Out,
}

impl Role {
    /// The number that tells the dropout masks of a layer's adapted projections apart. A run goes on with the masks it
    /// began with, so no number ever changes.
    #[must_use]
    pub fn number(self) -> usize {
        let matrix = |m: Matrix| m as usize;
        match self {
            Role::Q => 1,
            Role::K => 2,
            Role::V => 3,
            Role::O => 4,
            Role::Gate => 12,
            Role::Up => 13,
            Role::Down => 14,
            Role::Qkv => 18,
            Role::GateUp => 19,
            Role::Latent(l) => 32 + l as usize,
            Role::Delta(d) => 48 + d as usize,
            Role::Shared(m) => 64 + matrix(m),
            Role::PerLayerGate => 76,
            Role::PerLayerUp => 77,
            Role::Experts(m) => 72 + matrix(m),
            Role::Expert(e, m) => 128 + 4 * usize::from(e) + matrix(m),
            _ => 0,
        }
    }

    /// Whether it belongs to the routed experts of a layer.
    #[must_use]
    pub fn is_routed(self) -> bool {
        matches!(self, Role::Expert(..) | Role::Experts(_))
    }
}

/// Tensors of a layer that are used together: what streaming moves, and what a step takes and gives back. A number from
/// 0 to [`super::Layer::parts`], in the order of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part(pub u16);

impl Part {
    /// The part that each layer begins with: its attention (or another mixer) and the norms around it.
    pub const FIRST: Part = Part(0);

    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Whether a layer has a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Always.
    Must,
    /// If the file has it; layers of one kind agree.
    May,
    /// If the file has it, and then with all others of this name.
    Together(&'static str),
}

/// What a projection is multiplied with. Projections of one input share a product with their stacked adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Input {
    /// The normed input of the attention half.
    Attention,
    /// The low rank of latent queries.
    LatentQ,
    /// The low rank of latent keys and values.
    LatentKv,
    /// What attention gives.
    Attended,
    /// The normed input of the feed-forward half.
    Mlp,
    /// The activation of the feed-forward.
    Activation,
    /// The activation of the shared expert.
    Shared,
    /// The activation of a routed expert.
    Expert,
    /// The per-layer embedding.
    PerLayer,
}

/// One tensor of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// What it does.
    pub role: Role,
    /// Its name below `layers.N.`, with `.weight` or `.bias` where it has one.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// The part it belongs to.
    pub part: Part,
    /// Whether it must be there.
    pub need: Need,
    /// What it is called as a target of an adapter: the last word of its module. `None`: it takes none.
    pub lora: Option<&'static str>,
    /// What a weight matrix is multiplied with; `None` for norms, biases and the like.
    pub input: Option<Input>,
}

/// Gathers the tensors of a layer, in order.
#[derive(Debug, Default)]
pub(super) struct Specs {
    /// What was gathered.
    pub list: Vec<Spec>,
    /// The part that the next ones belong to.
    pub part: Part,
}

impl Default for Part {
    fn default() -> Part {
        Part::FIRST
    }
}

impl Specs {
    /// A tensor that is no matrix of a product.
    pub fn vector(&mut self, role: Role, name: String, shape: &[u64], need: Need) {
        let (shape, part) = (shape.to_vec(), self.part);
        self.list.push(Spec { role, name, shape, part, need, lora: None, input: None });
    }

    /// A matrix `[out, in]` called `module`, which an adapter may take.
    pub fn matrix(&mut self, role: Role, module: &'static str, shape: [u64; 2], input: Input) {
        let lora = module.rsplit('.').next();
        self.push(role, format!("{module}.weight"), &shape, lora, input);
    }

    /// Weights of a product that no adapter takes.
    pub fn plain(&mut self, role: Role, name: String, shape: &[u64], input: Input) {
        self.push(role, name, shape, None, input);
    }

    fn push(&mut self, role: Role, name: String, shape: &[u64], lora: Option<&'static str>, input: Input) {
        let (shape, part) = (shape.to_vec(), self.part);
        self.list.push(Spec { role, name, shape, part, need: Need::Must, lora, input: Some(input) });
    }
}
