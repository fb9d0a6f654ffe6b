//! One decoder block: two halves, attention and a gated feed-forward, each added to the residual stream.
//!
//! Source: `LlamaDecoderLayer`, `Qwen2DecoderLayer`, `Qwen3DecoderLayer`, `MistralDecoderLayer` of transformers. The
//! backward pass is written out: it recomputes the block from its input and keeps no graph. Inside, tokens are rows:
//! T = B·S, x is `[T, H]`, D the head width.

use super::attention::KvCache;
use super::delta::{BlockAdapter, Tuned};
use super::kernels::{Kernels, NormUse};
use super::lora::Group;
use super::rope::RopeTable;
use super::sub::Sub;
use super::weights::Weights;
use super::{feed_forward, grouped};
use crate::checkpoint::{Arch, Part, Role};
use crate::error::Result;
use tch::Tensor;

/// What a block needs besides its weights and input.
#[derive(Debug)]
pub struct BlockContext<'a> {
    /// Architecture.
    pub arch: &'a Arch,
    /// The operations.
    pub kernels: &'a Kernels,
    /// Rotary table of the positions in the input.
    pub rope: &'a RopeTable,
    /// Block number.
    pub block: usize,
    /// Adapted projections, if the model has any.
    pub adapter: Option<BlockAdapter<'a>>,
    /// Tokens of the feed-forward at a time, fewer than the input has; 0 = all. See [`crate::plan::schedule::tile`].
    pub tile: usize,
    /// Whether backward returns the gradient of the input: not at the lowest trainable block.
    pub needs_input: bool,
}

impl BlockContext<'_> {
    /// The tuned part of `group` for an input that begins with token `first`.
    pub(super) fn tuned(&self, group: Group, first: i64) -> Tuned<'_> {
        Tuned::new(self.adapter.as_ref(), group, self.kernels, first)
    }

    /// The two halves.
    fn subs(&self) -> [Sub<'_>; 2] {
        let norm = NormUse::rms(self.arch.norm_eps);
        [Role::InputNorm, Role::PostNorm].map(|before| Sub { before, norm, kernels: self.kernels })
    }
}

/// x `[B, S, H]` → `[B, S, H]`.
///
/// # Errors
/// A kernel refuses its inputs, or the device is out of memory.
pub fn forward(
    x: &Tensor,
    weights: &mut dyn Weights,
    context: &BlockContext<'_>,
    cache: Option<&mut KvCache>,
) -> Result<Tensor> {
    let _no_grad = tch::no_grad_guard();
    let (rows, s, width) = x.size3()?;
    let [attention, mlp] = context.subs();
    let x = x.reshape([rows * s, width]);
    let (y, h) = weights.using(Part::Attention, |w| {
        let h = attention.enter(&x, w)?;
        let (y, _) = grouped::forward(&x, h, (rows, s), w, context, cache, false)?;
        let h = mlp.enter(&y, w)?;
        Ok((y, h))
    })?;
    feed_forward::forward(&y, &h, weights, context)?;
    Ok(y.view([rows, s, width]))
}

/// Recomputes the block from its input `x` `[B, S, H]` and goes back from `gy`, the gradient of its output: adds the
/// adapter's gradients to `grads` (flat, f32), and returns the gradient of `x` if the context needs it.
///
/// # Errors
/// As [`forward`].
pub fn backward(
    x: &Tensor,
    gy: &Tensor,
    weights: &mut dyn Weights,
    context: &BlockContext<'_>,
    grads: &Tensor,
) -> Result<Option<Tensor>> {
    let _no_grad = tch::no_grad_guard();
    let (rows, s, width) = x.size3()?;
    let [attention, mlp] = context.subs();
    let (x, gy) = (x.reshape([rows * s, width]), gy.reshape([rows * s, width]));
    let (middle, kept, h) = weights.using(Part::Attention, |w| {
        let h = attention.enter(&x, w)?;
        let (middle, kept) = grouped::forward(&x, h, (rows, s), w, context, None, true)?;
        let h = mlp.enter(&middle, w)?;
        Ok((middle, kept, h))
    })?;

    let below = context.needs_input || kept.is_tuned();
    let dh = feed_forward::backward(&gy, &h, weights, context, grads, below)?;
    drop(h);

    let gx = weights.using(Part::Attention, |w| {
        let Some(dh) = dh else { return Ok(None) };
        mlp.enter_back(&middle, &dh, &gy, w)?;
        drop(middle);
        let gx = grouped::backward(&dh, kept, w, context, grads)?;
        gx.map(|gx| attention.enter_back(&x, &gx, &dh, w).map(|()| gx)).transpose()
    })?;
    Ok(gx.map(|g| g.view([rows, s, width])))
}
