//! The block's elementwise and row-wise operations, each one pass over its tensors: fused kernels on a GPU, libtorch's
//! operators elsewhere.
//!
//! Both compute in f32 and round to the compute type where transformers does. Operations write over their inputs where
//! the caller has no more use for them. Nothing here is recorded by autograd.

#[cfg(feature = "cuda")]
mod cuda;
mod torch;
#[cfg(test)]
mod torch_tests;

pub use torch::Torch;

use super::dropout::MaskKey;
use super::rope::RopeTable;
use crate::checkpoint::arch::{Act, Norm, NormKind};
use crate::device::{Attention, AttentionKernel, shim};
use crate::error::{Error, Result};
use std::fmt::Debug;
use std::sync::OnceLock;
use tch::{Device, Kind, Tensor};

/// Scalars of one AdamW update, in f64; kernels round them to f32.
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// 1 − rate · weight decay: what the parameters shrink by first.
    pub decay: f64,
    /// 1 − β₁
    pub lerp: f64,
    /// β₂
    pub beta2: f64,
    /// √(1 − β₂ᵗ)
    pub correction2: f64,
    /// ε
    pub eps: f64,
    /// rate / (1 − β₁ᵗ)
    pub step: f64,
}

/// How rows are normed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormUse {
    /// Added to the mean square.
    pub eps: f64,
    /// How the weight is applied.
    pub kind: NormKind,
}

impl From<&Norm> for NormUse {
    fn from(norm: &Norm) -> NormUse {
        NormUse { eps: norm.eps, kind: norm.kind }
    }
}

impl NormUse {
    /// The norm of llama, with `eps`.
    #[must_use]
    pub fn rms(eps: f64) -> NormUse {
        NormUse { eps, kind: NormKind::Rms }
    }

    /// What is added to the weight, and whether the normed value is rounded before the weight multiplies it.
    fn weighting(self) -> Result<(f64, bool)> {
        match self.kind {
            NormKind::Rms => Ok((0.0, true)),
            NormKind::RmsF32 => Ok((0.0, false)),
            NormKind::RmsPlusOne => Ok((1.0, false)),
            NormKind::Layer => Err(Error::run("LayerNorm has no kernel here")),
        }
    }
}

/// What attention does to the products of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring {
    /// Factor on them.
    pub scale: f64,
    /// They go through cap·tanh(score / cap).
    pub cap: Option<f64>,
    /// A key is visible if query − key is less.
    pub window: Option<usize>,
}

impl Scoring {
    /// That of most families: one over the root of a head's width, no cap.
    #[must_use]
    pub fn usual(head_dim: usize, window: Option<usize>) -> Scoring {
        Scoring { scale: 1.0 / (head_dim as f64).sqrt(), cap: None, window }
    }
}

/// Which products a tile `[n, queries · group, keys]` holds: the heads of a group stand behind each other at each query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Position of its first query.
    pub query: i64,
    /// Position of its first key.
    pub key: i64,
    /// Heads that share a key.
    pub group: i64,
}

/// State of an online softmax over vocabulary chunks, one f32 per row: `[N]` each.
#[derive(Debug)]
pub struct OnlineRows {
    /// Greatest logit so far.
    pub max: Tensor,
    /// Sum of exp(logit − max).
    pub sum: Tensor,
    /// Logit of the label; NaN until its chunk has come.
    pub picked: Tensor,
    /// What the last chunk shrank earlier sums by.
    pub scale: Tensor,
}

impl OnlineRows {
    /// The state before the first chunk.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(rows: i64, device: Device) -> Result<OnlineRows> {
        let full = |x: f64| Tensor::f_full([rows], x, (Kind::Float, device));
        Ok(OnlineRows { max: full(f64::NEG_INFINITY)?, sum: full(0.0)?, picked: full(f64::NAN)?, scale: full(0.0)? })
    }

    /// Rows `at .. at + len`, sharing memory.
    #[must_use]
    pub fn narrow(&self, at: i64, len: i64) -> OnlineRows {
        let cut = |t: &Tensor| t.narrow(0, at, len);
        OnlineRows { max: cut(&self.max), sum: cut(&self.sum), picked: cut(&self.picked), scale: cut(&self.scale) }
    }
}

/// The operations. Tensors of one call share device and type, but for labels (Int64) and f32 results.
///
/// "Rows" are `[T, n]`, or heads `[T, heads, n]` whose tokens may lie apart (a slice of a wider matrix).
/// Every operation fails only when the device is out of memory or refuses a launch.
pub trait Ops: Debug + Send + Sync {
    /// `weight · (x / rms(x))` over the last dimension of rows, as `of` applies the weight; dense, shaped as `x`.
    ///
    /// # Errors
    /// As all operations here.
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, of: NormUse) -> Result<Tensor>;

    /// Turns `dy`, the gradient of [`Ops::rms_norm`]'s output, into that of `x`, plus the dense `residual` if given.
    ///
    /// # Errors
    /// As all operations here.
    fn rms_norm_backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        of: NormUse,
        dy: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<()>;

    /// Rotates heads q and k `[T, heads, D]` in place, token t to position t mod the table's length; `inverse` rotates
    /// back, which is the gradient. With a table in f32, products are not rounded before their sum.
    ///
    /// # Errors
    /// As all operations here.
    fn rope(&self, q: &Tensor, k: &Tensor, table: &RopeTable, inverse: bool) -> Result<()>;

    /// `gate` becomes act(gate) · up; both dense.
    ///
    /// # Errors
    /// As all operations here.
    fn glu(&self, act: Act, gate: &Tensor, up: &Tensor) -> Result<()>;

    /// `gate` and `up` become their gradients for the gradient `da` of act(gate) · up; with `keep`, `da` becomes
    /// act(gate) · up. All dense.
    ///
    /// # Errors
    /// As all operations here.
    fn glu_backward(&self, act: Act, gate: &Tensor, up: &Tensor, da: &Tensor, keep: bool) -> Result<()>;

    /// Products of queries and keys, dense, become the weights of attention in place: those of a query's visible keys
    /// add up to 1, others are 0. Every query sees a key of the tile. With `d`, the dense gradient of the weights, that
    /// becomes the gradient of the products.
    ///
    /// # Errors
    /// As all operations here.
    fn attend(&self, products: &Tensor, d: Option<&Tensor>, of: Scoring, tile: Tile) -> Result<()>;

    /// Dense `x` under the dropout mask of `key`, whose element `first` is `x`'s first.
    ///
    /// # Errors
    /// As all operations here.
    fn dropout(&self, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<Tensor>;

    /// `out += x` under that mask; both dense.
    ///
    /// # Errors
    /// As all operations here.
    fn dropout_add(&self, out: &Tensor, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<()>;

    /// Losses `[c]` (f32) of dense products `[c, V]`, the logits before their `cap`, at `labels` `[c]`; with `grad`, they
    /// become their gradient: softmax − onehot, times the cap's slope. See [`capped`].
    ///
    /// # Errors
    /// As all operations here.
    fn cross_entropy(&self, logits: &Tensor, labels: &Tensor, cap: Option<f64>, grad: bool) -> Result<Tensor>;

    /// Takes dense products `[c, n]` of words `first .. first + n` into `rows`, which are of capped logits; with `grad`,
    /// they become exp(logit − the new maximum), times the cap's slope.
    ///
    /// # Errors
    /// As all operations here.
    fn online_softmax(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        rows: &OnlineRows,
        first: i64,
        cap: Option<f64>,
        grad: bool,
    ) -> Result<()>;

    /// Copies `w[label − first]` to `out`'s row of each label that lies in `w` `[rows, H]`.
    ///
    /// # Errors
    /// As all operations here.
    fn gather_rows(&self, out: &Tensor, w: &Tensor, labels: &Tensor, first: i64) -> Result<()>;

    /// One AdamW update of `p` with moments `m`, `v` and gradient `g`, all dense f32, in place.
    ///
    /// # Errors
    /// As all operations here.
    fn adamw(&self, p: &Tensor, m: &Tensor, v: &Tensor, g: &Tensor, step: AdamStep) -> Result<()>;
}

/// cap·tanh(x / cap), in f32; `x` itself without a cap.
pub fn capped(x: &Tensor, cap: Option<f64>) -> Tensor {
    let x = x.to_kind(Kind::Float);
    cap.map_or(x.shallow_clone(), |cap| (x / cap).tanh() * cap)
}

/// The slope of [`capped`] where it gave `y`.
pub fn cap_slope(y: &Tensor, cap: f64) -> Tensor {
    1.0 - (y / cap).square()
}

/// The refusal of an activation that no operation here computes.
fn no_act() -> Error {
    Error::run("a clamped activation has no kernel here")
}

/// The operations for a device, and which they are.
#[derive(Debug)]
pub struct Kernels {
    ops: Box<dyn Ops>,
    /// Compute capability of the GPU, where flash attention may be called.
    capability: Option<(i32, i32)>,
    described: String,
    fused: bool,
}

impl Kernels {
    /// The best operations for `device`; compiled once per process.
    #[must_use]
    pub fn of(device: Device) -> &'static Kernels {
        static CPU: OnceLock<Kernels> = OnceLock::new();
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(index) => cuda::kernels(index),
            _ => CPU.get_or_init(|| Kernels::torch(None, "no GPU")),
        }
    }

    /// libtorch's operators, because of `why`; flash attention where `capability` allows it.
    #[must_use]
    pub fn torch(capability: Option<(i32, i32)>, why: &str) -> Kernels {
        Kernels { ops: Box::new(Torch), capability, described: format!("torch operators ({why})"), fused: false }
    }

    /// Whether they are the fused ones.
    #[must_use]
    pub fn is_fused(&self) -> bool {
        self.fused
    }

    /// For screen and report: `fused (NVRTC, sm_90)` or `torch operators (why)`.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.described
    }

    /// What decides which kernel attention with heads of width `head_dim` in `kind` goes through here, now.
    #[must_use]
    pub fn attention(&self, kind: Kind, head_dim: i64) -> Attention {
        Attention {
            capability: self.capability,
            half: matches!(kind, Kind::BFloat16 | Kind::Half),
            head_dim: head_dim as usize,
            deterministic: shim::deterministic(),
            capped: false,
        }
    }
}

/// Lengths that longer rows are padded to: cuDNN takes 90 ms to plan a length it hasn't seen.
const LENGTHS: usize = 64;

impl Kernels {
    /// The length to which rows of `length` are padded, `most` at most.
    #[must_use]
    pub fn row_length(&self, kind: Kind, head_dim: i64, length: usize, most: usize) -> usize {
        if self.attention(kind, head_dim).kernel(length, None) != AttentionKernel::Cudnn {
            return length;
        }
        length.next_multiple_of(LENGTHS).min(most.max(length))
    }
}

impl std::ops::Deref for Kernels {
    type Target = dyn Ops;

    fn deref(&self) -> &Self::Target {
        &*self.ops
    }
}
