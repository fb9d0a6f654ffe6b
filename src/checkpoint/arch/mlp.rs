//! Feed-forward halves: gated, plain, and mixtures of experts.

use super::attention::Proj;
use super::norm::Norm;
use super::tensor::{Input, Need, Part, Role, Specs};

/// A feed-forward.
#[derive(Clone, Debug, PartialEq)]
pub enum Mlp {
    /// down(act(gate(x)) · up(x))
    Gated(Gated),
    /// down(act(up(x))) (phi)
    Plain(Plain),
    /// A router and its experts.
    Experts(Box<Experts>),
}

/// Activation of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// x·σ(x)
    Silu,
    /// GeLU by its tanh form.
    GeluTanh,
    /// gate·σ(alpha·gate)·(up + 1), gate at most `limit`, up within ±`limit` (gpt_oss).
    SiluClamped {
        /// Factor inside the sigmoid.
        alpha: f64,
        /// Where both are cut.
        limit: f64,
    },
}

/// The matrices of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matrix {
    /// Gate.
    Gate,
    /// Up.
    Up,
    /// Both in one.
    GateUp,
    /// Down.
    Down,
}

/// How gate and up are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// Each alone: gate, up.
    Split([Proj; 2]),
    /// In one matrix, gate first (phi3, glm4).
    Fused(Proj),
}

/// A gated feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gated {
    /// Its width.
    pub width: usize,
    /// Activation.
    pub act: Act,
    /// Gate and up.
    pub gate_up: GateUp,
    /// Down.
    pub down: Proj,
}

impl Gated {
    /// Adds its tensors, a part for each matrix.
    fn tensors(&self, hidden: u64, specs: &mut Specs) {
        let (width, first) = (self.width as u64, specs.part.0 + 1);
        let parts = match &self.gate_up {
            GateUp::Split([gate, up]) => {
                for (i, (role, proj)) in [(Role::Gate, gate), (Role::Up, up)].into_iter().enumerate() {
                    specs.part = Part(first + i as u16);
                    specs.matrix(role, proj.name, [width, hidden], Input::Mlp);
                }
                2
            }
            GateUp::Fused(proj) => {
                specs.part = Part(first);
                specs.matrix(Role::GateUp, proj.name, [2 * width, hidden], Input::Mlp);
                1
            }
        };
        specs.part = Part(first + parts);
        specs.matrix(Role::Down, self.down.name, [hidden, width], Input::Activation);
        match &self.gate_up {
            GateUp::Split([gate, up]) => {
                for (i, (role, proj)) in [(Role::GateBias, gate), (Role::UpBias, up)].into_iter().enumerate() {
                    specs.part = Part(first + i as u16);
                    proj.bias(role, width, specs);
                }
            }
            GateUp::Fused(proj) => {
                specs.part = Part(first);
                proj.bias(Role::GateUpBias, 2 * width, specs);
            }
        }
        specs.part = Part(first + parts);
        self.down.bias(Role::DownBias, hidden, specs);
    }

    /// Adds its matrices as those of a shared expert.
    fn shared(&self, hidden: u64, specs: &mut Specs) {
        let width = self.width as u64;
        match &self.gate_up {
            GateUp::Split([gate, up]) => {
                specs.matrix(Role::Shared(Matrix::Gate), gate.name, [width, hidden], Input::Mlp);
                specs.matrix(Role::Shared(Matrix::Up), up.name, [width, hidden], Input::Mlp);
            }
            GateUp::Fused(proj) => {
                specs.matrix(Role::Shared(Matrix::GateUp), proj.name, [2 * width, hidden], Input::Mlp);
            }
        }
        specs.matrix(Role::Shared(Matrix::Down), self.down.name, [hidden, width], Input::Shared);
    }
}

/// A feed-forward of two matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plain {
    /// Its width.
    pub width: usize,
    /// Activation.
    pub act: Act,
    /// First matrix.
    pub up: Proj,
    /// Second matrix.
    pub down: Proj,
}

/// Where the weights of routed experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// Each expert's matrices alone: `at.E.name.weight`, names of gate, up and down.
    Each {
        /// Module of the experts.
        at: &'static str,
        /// Names below an expert's number.
        names: [&'static str; 3],
    },
    /// All in one tensor: `at.gate_up_proj`, `at.down_proj`.
    Stacked {
        /// Module of the experts.
        at: &'static str,
        /// A matrix is stored `[in, out]` (gpt_oss, llama4).
        transposed: bool,
        /// Gate and up alternate by column (gpt_oss); else gate is the first half.
        interleaved: bool,
        /// There are biases, `at.…_bias`.
        bias: bool,
    },
}

/// How a router turns logits to weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all, then the highest.
    Softmax,
    /// The highest, then softmax over them (gpt_oss).
    SoftmaxOfChosen,
    /// Sigmoid of each.
    Sigmoid,
}

/// What chooses the experts of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// Module name.
    pub name: &'static str,
    /// It has a bias.
    pub bias: bool,
    /// How logits become weights.
    pub score: Score,
    /// The weights of the chosen are divided by their sum.
    pub normalise: bool,
    /// Experts are chosen in so many groups, of which so many take part.
    pub groups: Option<(usize, usize)>,
    /// Name of a bias for choosing alone.
    pub choice: Option<&'static str>,
    /// Factor on the weights.
    pub scale: f64,
    /// Its product is in f32.
    pub f32: bool,
    /// Weights multiply an expert's input, not its output (llama4).
    pub on_input: bool,
    /// Its input is normed and scaled, its output scaled by expert: names of both scales (gemma4).
    pub scales: Option<[&'static str; 2]>,
}

/// What every token passes beside the routed experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shared {
    /// Added.
    Added(Gated),
    /// Times the sigmoid of one logit, then added; the logit's module.
    Gated(Gated, &'static str),
    /// The half's own feed-forward; experts read the residual by a norm of their own, and both outputs are normed before
    /// they are added (gemma4).
    Beside {
        /// The feed-forward.
        dense: Gated,
        /// Norm of its output.
        dense_after: Norm,
        /// Norm before the experts.
        before: Norm,
        /// Norm of their output.
        after: Norm,
    },
}

impl Shared {
    /// The feed-forward.
    #[must_use]
    pub fn dense(&self) -> &Gated {
        match self {
            Shared::Added(dense) | Shared::Gated(dense, _) | Shared::Beside { dense, .. } => dense,
        }
    }
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Routed experts.
    pub count: usize,
    /// Of these, the ones a token passes.
    pub active: usize,
    /// Width of one.
    pub width: usize,
    /// Activation of one.
    pub act: Act,
    /// Where their weights are.
    pub layout: ExpertLayout,
    /// What chooses them.
    pub router: Router,
    /// What every token passes beside them.
    pub shared: Option<Shared>,
}

impl Experts {
    /// Adds its tensors: what every token reads in one part, the routed experts in the next.
    fn tensors(&self, hidden: u64, specs: &mut Specs) {
        let (first, count) = (specs.part.0 + 1, self.count as u64);
        specs.part = Part(first);
        let r = &self.router;
        specs.plain(Role::Router, format!("{}.weight", r.name), &[count, hidden], Input::Mlp);
        if r.bias {
            specs.vector(Role::RouterBias, format!("{}.bias", r.name), &[count], Need::Must);
        }
        if let Some(name) = r.choice {
            specs.vector(Role::RouterChoice, name.into(), &[count], Need::Must);
        }
        if let Some([scale, each]) = r.scales {
            specs.vector(Role::RouterScale, scale.into(), &[hidden], Need::Must);
            specs.vector(Role::ExpertScale, each.into(), &[count], Need::Must);
        }
        match &self.shared {
            Some(Shared::Beside { dense, dense_after, before, after }) => {
                dense.shared(hidden, specs);
                dense_after.weight(Role::SharedAfter, &[hidden], specs);
                before.weight(Role::ExpertsBefore, &[hidden], specs);
                after.weight(Role::ExpertsAfter, &[hidden], specs);
            }
            Some(Shared::Gated(dense, gate)) => {
                dense.shared(hidden, specs);
                specs.plain(Role::SharedGate, format!("{gate}.weight"), &[1, hidden], Input::Mlp);
            }
            Some(Shared::Added(dense)) => dense.shared(hidden, specs),
            None => {}
        }
        specs.part = Part(first + 1);
        self.routed(hidden, specs);
    }

    fn routed(&self, hidden: u64, specs: &mut Specs) {
        let (count, width) = (self.count as u64, self.width as u64);
        match self.layout {
            ExpertLayout::Each { at, names: [gate, up, down] } => {
                for e in 0..self.count {
                    let name = |matrix: &str| format!("{at}.{e}.{matrix}.weight");
                    let role = |matrix| Role::Expert(e as u16, matrix);
                    specs.plain(role(Matrix::Gate), name(gate), &[width, hidden], Input::Mlp);
                    specs.plain(role(Matrix::Up), name(up), &[width, hidden], Input::Mlp);
                    specs.plain(role(Matrix::Down), name(down), &[hidden, width], Input::Expert);
                }
            }
            ExpertLayout::Stacked { at, transposed, bias, .. } => {
                let both = [
                    (Matrix::GateUp, "gate_up_proj", 2 * width, hidden, Input::Mlp),
                    (Matrix::Down, "down_proj", hidden, width, Input::Expert),
                ];
                for (matrix, name, out, inp, input) in both {
                    let shape = if transposed { [count, inp, out] } else { [count, out, inp] };
                    specs.plain(Role::Experts(matrix), format!("{at}.{name}"), &shape, input);
                    if bias {
                        let name = format!("{at}.{name}_bias");
                        specs.vector(Role::ExpertsBias(matrix), name, &[count, out], Need::Must);
                    }
                }
            }
        }
    }
}

impl Mlp {
    /// Adds its tensors, in parts of their own after the one that `specs` is at; `specs` is at the last of them then.
    pub(super) fn tensors(&self, hidden: u64, specs: &mut Specs) {
        match self {
            Mlp::Gated(gated) => gated.tensors(hidden, specs),
            Mlp::Plain(plain) => {
                let (width, first) = (plain.width as u64, specs.part.0 + 1);
                specs.part = Part(first);
                specs.matrix(Role::Up, plain.up.name, [width, hidden], Input::Mlp);
                plain.up.bias(Role::UpBias, width, specs);
                specs.part = Part(first + 1);
                specs.matrix(Role::Down, plain.down.name, [hidden, width], Input::Activation);
                plain.down.bias(Role::DownBias, hidden, specs);
            }
            Mlp::Experts(experts) => experts.tensors(hidden, specs),
        }
    }

    /// Width of what a token passes: of a mixture of experts, the active ones' and the shared one's together.
    #[must_use]
    pub fn width(&self) -> usize {
        match self {
            Mlp::Gated(g) => g.width,
            Mlp::Plain(p) => p.width,
            Mlp::Experts(e) => e.active * e.width + e.shared.as_ref().map_or(0, |s| s.dense().width),
        }
    }

    /// Its mixture of experts.
    #[must_use]
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Mlp::Experts(experts) => Some(experts),
            _ => None,
        }
    }
}
