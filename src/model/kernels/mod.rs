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
use crate::device::{Attention, AttentionKernel, shim};
use crate::error::Result;
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
    /// `weight · (x / rms(x))` over the last dimension of rows; dense, shaped as `x`.
    ///
    /// # Errors
    /// As all operations here.
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor>;

    /// Turns `dy`, the gradient of [`Ops::rms_norm`]'s output, into that of `x`, plus the dense `residual` if given.
    ///
    /// # Errors
    /// As all operations here.
    fn rms_norm_backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        eps: f64,
        dy: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<()>;

    /// Rotates heads q and k `[T, heads, D]` in place, token t to position t mod the table's length; `inverse` rotates
    /// back, which is the gradient.
    ///
    /// # Errors
    /// As all operations here.
    fn rope(&self, q: &Tensor, k: &Tensor, table: &RopeTable, inverse: bool) -> Result<()>;

    /// `gate` becomes silu(gate) · up; both dense.
    ///
    /// # Errors
    /// As all operations here.
    fn swiglu(&self, gate: &Tensor, up: &Tensor) -> Result<()>;

    /// `gate` and `up` become their gradients for the gradient `da` of silu(gate) · up; with `keep`, `da` becomes
    /// silu(gate) · up. All dense.
    ///
    /// # Errors
    /// As all operations here.
    fn swiglu_backward(&self, gate: &Tensor, up: &Tensor, da: &Tensor, keep: bool) -> Result<()>;

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

    /// Losses `[c]` (f32) of dense logits `[c, V]` at `labels` `[c]`; with `grad`, logits become softmax − onehot.
    ///
    /// # Errors
    /// As all operations here.
    fn cross_entropy(&self, logits: &Tensor, labels: &Tensor, grad: bool) -> Result<Tensor>;

    /// Takes dense logits `[c, n]` of words `first .. first + n` into `rows`; with `grad`, logits become
    /// exp(logit − the new maximum).
    ///
    /// # Errors
    /// As all operations here.
    fn online_softmax(&self, logits: &Tensor, labels: &Tensor, rows: &OnlineRows, first: i64, grad: bool)
    -> Result<()>;

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
