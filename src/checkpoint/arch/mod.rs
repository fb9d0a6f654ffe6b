//! What a decoder is, as data: no file, no tensor, no torch.
//!
//! A family's file (`checkpoint/families/`) makes an [`Arch`] of a `config.json`; inventory, layout, adapters, planner
//! and made-up checkpoints read [`Layer::tensors`], the passes read the halves. The data can say more than the passes
//! compute: [`Arch::unsupported`] names the first thing that they don't.

mod attention;
mod layer;
mod mlp;
mod norm;
mod rope;
mod support;
mod tensor;

pub use attention::{Delta, Grouped, Kv, Latent, Mixer, Over, Proj, QkNorm, Qkv, QueryGrowth, Reach};
pub use layer::{Layer, Pass, PerLayer, Sub};
pub use mlp::{Act, ExpertLayout, Experts, GateUp, Gated, Matrix, Mlp, Plain, Router, Score, Shared};
pub use norm::{Norm, NormKind};
pub use rope::{Pairs, Rope, RopeScaling, RopeUse};
pub use tensor::{DeltaTensor, Input, LatentTensor, Need, NormAt, Part, Role, Spec};

use serde::{Deserialize, Serialize};

/// Special token ids of the model config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialIds {
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End tokens; generation stops at any of them.
    pub eos: Vec<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

/// What becomes of the head's products before the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Logits {
    /// Factor (cohere; granite's is one over its divisor).
    pub scale: Option<f64>,
    /// They go through cap·tanh(logit / cap) (gemma2).
    pub cap: Option<f64>,
    /// The head has a bias (phi).
    pub bias: bool,
}

/// A decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Arch {
    /// Name of the family.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Factor on the embedding, rounded to its type (gemma, granite).
    pub embed_scale: Option<f64>,
    /// Width of each layer's own embedding, of which a second table holds one a layer (gemma4).
    pub layer_embedding: Option<usize>,
    /// Its layers, in order.
    pub layers: Vec<Layer>,
    /// Rotary tables that the layers use.
    pub ropes: Vec<Rope>,
    /// Norm before the head.
    pub final_norm: Norm,
    /// What becomes of the head's products.
    pub logits: Logits,
    /// Head shares the embedding.
    pub tied: bool,
    /// Longest position the config names.
    pub max_positions: usize,
    /// Special ids.
    pub special: SpecialIds,
}

impl Arch {
    /// The tensors that layer `n` may have.
    #[must_use]
    pub fn tensors(&self, n: usize) -> Vec<Spec> {
        self.layers[n].tensors(self.hidden)
    }

    /// The window of every layer's attention; `None`: it sees all places before it.
    #[must_use]
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.layers.iter().map(|l| l.grouped().and_then(Grouped::window)).collect()
    }

    /// The widest mixture of experts among the layers.
    #[must_use]
    pub fn experts(&self) -> Option<&Experts> {
        self.layers.iter().rev().find_map(|l| l.mlp.op.experts())
    }
}

impl Layer {
    /// Its attention, where that is grouped.
    #[must_use]
    pub fn grouped(&self) -> Option<&Grouped> {
        match &self.attention.op {
            Mixer::Grouped(g) => Some(g),
            _ => None,
        }
    }

    /// Its feed-forward, where that is gated and no mixture.
    #[must_use]
    pub fn gated(&self) -> Option<&Gated> {
        match &self.mlp.op {
            Mlp::Gated(g) => Some(g),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
