//! Norms, by what is computed and in which type.

use super::tensor::{Need, NormAt, Role, Specs};

/// How a norm is computed. x̂ is x over its root mean square, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// x̂ is rounded to the type of x, then multiplied by w (llama).
    Rms,
    /// x̂·w in f32, then rounded (olmo2, gpt_oss).
    RmsF32,
    /// x̂·(1 + w) in f32, then rounded (gemma).
    RmsPlusOne,
    /// Mean subtracted, divided by the deviation, times w, in f32 (phi, cohere).
    Layer,
}

/// One norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Module name below `layers.N.` (the final norm's: below the decoder).
    pub name: &'static str,
    /// Added to the mean square.
    pub eps: f64,
    /// How it is computed.
    pub kind: NormKind,
    /// It has a bias.
    pub bias: bool,
}

impl Norm {
    /// One of `kind` without a bias.
    #[must_use]
    pub fn new(name: &'static str, eps: f64, kind: NormKind) -> Norm {
        Norm { name, eps, kind, bias: false }
    }

    /// Adds its tensors, over `shape`, in the place `at`.
    pub(super) fn tensors(&self, at: NormAt, shape: &[u64], specs: &mut Specs) {
        self.weight(at.role(), shape, specs);
        if self.bias {
            specs.vector(Role::NormBias(at), format!("{}.bias", self.name), shape, Need::Must);
        }
    }

    /// Adds its weight as `role`.
    pub(super) fn weight(&self, role: Role, shape: &[u64], specs: &mut Specs) {
        specs.vector(role, format!("{}.weight", self.name), shape, Need::Must);
    }
}

impl NormAt {
    /// The role of the norm's weight.
    #[must_use]
    pub fn role(self) -> Role {
        match self {
            NormAt::AttnBefore => Role::AttnBefore,
            NormAt::AttnAfter => Role::AttnAfter,
            NormAt::MlpBefore => Role::MlpBefore,
            NormAt::MlpAfter => Role::MlpAfter,
            NormAt::Q => Role::QNorm,
            NormAt::K => Role::KNorm,
        }
    }
}
