//! What mixes the tokens of a row: grouped attention, latent attention, a gated delta rule.

use super::norm::Norm;
use super::rope::RopeUse;
use super::tensor::{Input, Need, NormAt, Role, Specs};

/// A projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proj {
    /// Module name below `layers.N.`.
    pub name: &'static str,
    /// Whether it has a bias; `None`: never.
    pub bias: Option<Need>,
}

impl Proj {
    /// One that has no bias.
    #[must_use]
    pub const fn new(name: &'static str) -> Proj {
        Proj { name, bias: None }
    }
    /// One whose bias is there if the file has it.
    #[must_use]
    pub const fn maybe(name: &'static str) -> Proj {
        Proj { name, bias: Some(Need::May) }
    }
    /// One whose bias is there if the file has it, and with those of its `group`.
    #[must_use]
    pub const fn together(name: &'static str, group: &'static str) -> Proj {
        Proj { name, bias: Some(Need::Together(group)) }
    }
    /// Adds its bias.
    pub(super) fn bias(&self, role: Role, out: u64, specs: &mut Specs) {
        if let Some(need) = self.bias {
            specs.vector(role, format!("{}.bias", self.name), &[out], need);
        }
    }
}

/// A layer mixes its tokens by one of these.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention with grouped queries.
    Grouped(Box<Grouped>),
    /// Multi-head latent attention (deepseek_v3).
    Latent(Latent),
    /// A gated delta rule (qwen3_next).
    Delta(Delta),
}

impl From<Grouped> for Mixer {
    fn from(grouped: Grouped) -> Mixer {
        Mixer::Grouped(Box::new(grouped))
    }
}

/// How queries, keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// Each alone.
    Split([Proj; 3]),
    /// In one matrix (phi3).
    Fused(Proj),
}

/// Where keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {
    /// From the layer's own projections.
    Own,
    /// Values are the keys before norm and rotation: no value projection (gemma4).
    KeysAreValues,
    /// From this earlier layer: no projections of its own (gemma4).
    Of(usize),
}

/// The keys that a query sees, among those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All.
    Full,
    /// Those nearer than so many places: visible if q − k < window.
    Window(usize),
    /// Those of the same chunk of so many places (llama4).
    Chunk(usize),
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// This one norms queries.
    pub q: Norm,
    /// This one norms keys.
    pub k: Norm,
    /// Both take their mean square over this.
    pub over: Over,
    /// They follow the rotation (hunyuan).
    pub after_rope: bool,
}

/// A norm of queries or keys takes its mean square over one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Each head, one weight for all: `[head_dim]`.
    Head,
    /// Each head, a weight for each: `[heads, head_dim]` (cohere).
    EachHead,
    /// All heads at once: `[heads · head_dim]` (olmo2).
    Whole,
    /// Each head, and no weight at all (llama4).
    Weightless,
}

/// A factor on queries that grows with their place: 1 + by·ln(1 + ⌊(pos + shift) / span⌋).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Factor of the logarithm.
    pub by: f64,
    /// Places per step.
    pub span: f64,
    /// Added to the place.
    pub shift: f64,
}

/// Attention with grouped queries.
#[derive(Clone, Debug, PartialEq)]
pub struct Grouped {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Projections of queries, keys and values.
    pub qkv: Qkv,
    /// Output projection.
    pub out: Proj,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Values are normed per head, without a weight (gemma4).
    pub v_norm: bool,
    /// Rotation; `None`: none in this layer.
    pub rope: Option<RopeUse>,
    /// Factor on the scores.
    pub scale: f64,
    /// Scores go through cap·tanh(score / cap).
    pub cap: Option<f64>,
    /// The keys that a query sees.
    pub reach: Reach,
    /// Name of the sinks, one logit a head (gpt_oss).
    pub sinks: Option<&'static str>,
    /// The query projection also gives a gate of the output, per head after its query (qwen3_next).
    pub gated: bool,
    /// Factor on queries by place.
    pub growth: Option<QueryGrowth>,
    /// Where keys and values come from.
    pub kv: Kv,
}

impl Grouped {
    /// Width of all query heads.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }
    /// Width of all key heads, which is that of all value heads.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
    /// Places that a query sees at most; `None`: all before it.
    #[must_use]
    pub fn window(&self) -> Option<usize> {
        match self.reach {
            Reach::Full => None,
            Reach::Window(n) | Reach::Chunk(n) => Some(n),
        }
    }

    pub(super) fn tensors(&self, hidden: u64, specs: &mut Specs) {
        let (q, kv) = (self.q_width() as u64, self.kv_width() as u64);
        let rows = if self.gated { 2 * q } else { q };
        let own = !matches!(self.kv, Kv::Of(_));
        let values = self.kv == Kv::Own;
        match &self.qkv {
            Qkv::Split(of) => {
                let each = [(Role::Q, rows, true), (Role::K, kv, own), (Role::V, kv, values)];
                for (proj, (role, rows, _)) in of.iter().zip(each).filter(|(_, (.., here))| *here) {
                    specs.matrix(role, proj.name, [rows, hidden], Input::Attention);
                }
            }
            Qkv::Fused(proj) => specs.matrix(Role::Qkv, proj.name, [rows + 2 * kv, hidden], Input::Attention),
        }
        specs.matrix(Role::O, self.out.name, [hidden, q], Input::Attended);
        match &self.qkv {
            Qkv::Split([of_q, of_k, of_v]) => {
                of_q.bias(Role::QBias, rows, specs);
                if own {
                    of_k.bias(Role::KBias, kv, specs);
                }
                if values {
                    of_v.bias(Role::VBias, kv, specs);
                }
            }
            Qkv::Fused(proj) => proj.bias(Role::QkvBias, rows + 2 * kv, specs),
        }
        self.out.bias(Role::OBias, hidden, specs);
        if let Some(norm) = &self.qk_norm {
            let shape = |heads: usize| match norm.over {
                Over::Head => vec![self.head_dim as u64],
                Over::EachHead => vec![heads as u64, self.head_dim as u64],
                Over::Whole => vec![(heads * self.head_dim) as u64],
                Over::Weightless => Vec::new(),
            };
            if norm.over != Over::Weightless {
                norm.q.tensors(NormAt::Q, &shape(self.heads), specs);
                if own {
                    norm.k.tensors(NormAt::K, &shape(self.kv_heads), specs);
                }
            }
        }
        if let Some(name) = self.sinks {
            specs.vector(Role::Sinks, name.into(), &[self.heads as u64], Need::Must);
        }
    }
}

/// Multi-head latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    /// Heads.
    pub heads: usize,
    /// Rank of queries; `None`: one matrix.
    pub q_rank: Option<usize>,
    /// Rank of keys and values.
    pub kv_rank: usize,
    /// Width of a head's unrotated part.
    pub nope: usize,
    /// Width of its rotated part, which keys share.
    pub rotated: usize,
    /// Width of a head's value.
    pub value: usize,
    /// Norm of both ranks: its epsilon is the class's own.
    pub norm: Norm,
    /// Rotation.
    pub rope: RopeUse,
    /// Factor on the scores.
    pub scale: f64,
    /// Whether the projections down and out have biases.
    pub bias: Option<Need>,
}

impl Latent {
    pub(super) fn tensors(&self, hidden: u64, specs: &mut Specs) {
        use super::tensor::LatentTensor as L;
        let (h, kv_rank) = (self.heads as u64, self.kv_rank as u64);
        let (query, down) = (h * (self.nope + self.rotated) as u64, (self.kv_rank + self.rotated) as u64);
        let (up, out) = (h * (self.nope + self.value) as u64, h * self.value as u64);
        let bias = |name: &'static str, role, rows, specs: &mut Specs| {
            Proj { name, bias: self.bias }.bias(role, rows, specs);
        };
        let norm = |name: &str, role, rank, specs: &mut Specs| {
            specs.vector(Role::Latent(role), format!("self_attn.{name}.weight"), &[rank], Need::Must);
        };
        match self.q_rank.map(|r| r as u64) {
            Some(rank) => {
                specs.matrix(Role::Latent(L::QDown), "self_attn.q_a_proj", [rank, hidden], Input::Attention);
                bias("self_attn.q_a_proj", Role::Latent(L::QDownBias), rank, specs);
                norm("q_a_layernorm", L::QNorm, rank, specs);
                specs.matrix(Role::Latent(L::QUp), "self_attn.q_b_proj", [query, rank], Input::LatentQ);
            }
            None => specs.matrix(Role::Q, "self_attn.q_proj", [query, hidden], Input::Attention),
        }
        specs.matrix(Role::Latent(L::KvDown), "self_attn.kv_a_proj_with_mqa", [down, hidden], Input::Attention);
        bias("self_attn.kv_a_proj_with_mqa", Role::Latent(L::KvDownBias), down, specs);
        norm("kv_a_layernorm", L::KvNorm, kv_rank, specs);
        specs.matrix(Role::Latent(L::KvUp), "self_attn.kv_b_proj", [up, kv_rank], Input::LatentKv);
        specs.matrix(Role::O, "self_attn.o_proj", [hidden, out], Input::Attended);
        bias("self_attn.o_proj", Role::OBias, hidden, specs);
    }
}

/// A gated delta rule (qwen3_next, qwen3_5).
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// Key heads, which are the query heads.
    pub key_heads: usize,
    /// Value heads, a multiple of them.
    pub value_heads: usize,
    /// Width of a key.
    pub key: usize,
    /// Width of a value.
    pub value: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Epsilon of the output's norm.
    pub eps: f64,
    /// q, k, v and z are one matrix and b and a another, grouped by key head (qwen3_next).
    pub fused: bool,
}

impl Delta {
    pub(super) fn tensors(&self, hidden: u64, specs: &mut Specs) {
        use super::tensor::DeltaTensor as D;
        let (nk, nv) = (self.key_heads as u64, self.value_heads as u64);
        let (keys, values) = (nk * self.key as u64, nv * self.value as u64);
        let qkv = 2 * keys + values;
        let mut project = |role, name, rows| {
            specs.matrix(Role::Delta(role), name, [rows, hidden], Input::Attention);
        };
        if self.fused {
            project(D::Qkv, "linear_attn.in_proj_qkvz", qkv + values);
            project(D::B, "linear_attn.in_proj_ba", 2 * nv);
        } else {
            project(D::Qkv, "linear_attn.in_proj_qkv", qkv);
            project(D::Z, "linear_attn.in_proj_z", values);
            project(D::B, "linear_attn.in_proj_b", nv);
            project(D::A, "linear_attn.in_proj_a", nv);
        }
        let mut vector = |role, name: &str, shape: &[u64]| {
            specs.vector(Role::Delta(role), format!("linear_attn.{name}"), shape, Need::Must);
        };
        vector(D::Conv, "conv1d.weight", &[qkv, 1, self.taps as u64]);
        vector(D::ALog, "A_log", &[nv]);
        vector(D::DtBias, "dt_bias", &[nv]);
        vector(D::Norm, "norm.weight", &[self.value as u64]);
        specs.matrix(Role::Delta(D::Out), "linear_attn.out_proj", [hidden, values], Input::Attended);
    }
}
