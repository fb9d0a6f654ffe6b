//! One decoder block: pre-norm attention and SwiGLU feed-forward, each added to the residual stream.
//!
//! Source: `LlamaDecoderLayer`, `Qwen2DecoderLayer`, `Qwen3DecoderLayer`, `MistralDecoderLayer` of transformers. The
//! backward pass is written out: it recomputes the block from its input and keeps no graph. Inside, tokens are rows:
//! T = B·S, x is `[T, H]`, D the head width. Residual sums and adapters are added by the products themselves.

use super::attention::{self, Attended, KvCache, Qkv};
use super::delta::{BlockAdapter, Delta};
use super::feed_forward;
use super::kernels::Kernels;
use super::lora::Group;
use super::rope::RopeTable;
use super::weights::{BlockWeights, Weights};
use crate::checkpoint::{Arch, Part, Role};
use crate::device::shim::gemm;
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
    /// The adapted projections of `group`, if it has any.
    pub(super) fn delta(&self, group: Group) -> Option<Delta<'_>> {
        self.adapter.as_ref()?.group(group, self.kernels)
    }
}

/// x·Wᵀ + bias: x `[T, in]` → `[T, out]`.
pub(super) fn linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    Ok(match bias {
        Some(b) => b.f_addmm(x, &w.tr())?,
        None => x.f_mm(&w.tr())?,
    })
}

/// What the backward pass needs of the attention half.
struct Half {
    /// Normed input, `[T, H]`.
    h: Tensor,
    /// Low activations of q, k and v.
    low: Option<Tensor>,
    /// q and k before their norms, `[T, heads, D]`, where the family has these.
    raw: Option<(Tensor, Tensor)>,
    qkv: Qkv,
    attended: Attended,
    /// Low activations of o.
    low_o: Option<Tensor>,
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
    let w = weights.take(Part::Attention)?;
    let (y, _) = attention_half(&x.reshape([rows * s, width]), (rows, s), &w, context, cache, false)?;
    let h = context.kernels.rms_norm(&y, w.must(Role::PostNorm), context.arch.norm_eps)?;
    drop(w);
    weights.done(Part::Attention)?;
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
    let (kernels, eps) = (context.kernels, context.arch.norm_eps);
    let (x, gy) = (x.reshape([rows * s, width]), gy.reshape([rows * s, width]));

    let w = weights.take(Part::Attention)?;
    let (middle, half) = attention_half(&x, (rows, s), &w, context, None, true)?;
    let h = kernels.rms_norm(&middle, w.must(Role::PostNorm), eps)?;
    drop(w);
    weights.done(Part::Attention)?;

    let below = context.needs_input || context.delta(Group::Qkv).is_some() || context.delta(Group::O).is_some();
    let dh = feed_forward::backward(&gy, &h, weights, context, grads, below)?;
    drop(h);

    let w = weights.take(Part::Attention)?;
    let gx = match dh {
        Some(dh) => {
            kernels.rms_norm_backward(&middle, w.must(Role::PostNorm), eps, &dh, Some(&gy))?;
            drop(middle);
            half_backward(&x, &dh, half, &w, context, grads)?
        }
        None => None,
    };
    drop(w);
    weights.done(Part::Attention)?;
    Ok(gx.map(|g| g.view([rows, s, width])))
}

/// x + attention(norm(x)): x `[T, H]` → `[T, H]`, a new tensor.
fn attention_half(
    x: &Tensor,
    (rows, s): (i64, i64),
    w: &BlockWeights,
    context: &BlockContext<'_>,
    cache: Option<&mut KvCache>,
    keep: bool,
) -> Result<(Tensor, Half)> {
    let (arch, kernels) = (context.arch, context.kernels);
    let (heads, kv_heads, d) = (arch.n_heads as i64, arch.n_kv_heads as i64, arch.head_dim as i64);
    let tokens = rows * s;
    let h = kernels.rms_norm(x, w.must(Role::InputNorm), arch.norm_eps)?;

    // One buffer for all three, so that a token's heads lie side by side.
    let buffer = Tensor::f_empty([tokens, (heads + 2 * kv_heads) * d], (x.kind(), x.device()))?;
    let delta = context.delta(Group::Qkv);
    let low = delta.map(|p| p.squeeze(&h, 0)).transpose()?;
    let project = |role, bias, at: i64, n: i64| -> Result<Tensor> {
        let out = buffer.narrow(1, at * d, n * d);
        match w.get(bias) {
            Some(b) => drop(b.f_addmm_out(&out, &h, &w.must(role).tr())?),
            None => gemm(&out, &h, &w.must(role).tr(), 0.0, 1.0)?,
        }
        if let (Some(p), Some(low)) = (delta, &low) {
            p.expand(role, low, &out)?;
        }
        Ok(out.view([tokens, n, d]))
    };
    let mut q = project(Role::Q, Role::QBias, 0, heads)?;
    let mut k = project(Role::K, Role::KBias, heads, kv_heads)?;
    let v = project(Role::V, Role::VBias, heads + kv_heads, kv_heads)?;
    let mut raw = None;
    if let (Some(q_norm), Some(k_norm)) = (w.get(Role::QNorm), w.get(Role::KNorm)) {
        let normed = kernels.rms_norm(&q, q_norm, arch.norm_eps)?;
        let q_raw = std::mem::replace(&mut q, normed);
        let normed = kernels.rms_norm(&k, k_norm, arch.norm_eps)?;
        let k_raw = std::mem::replace(&mut k, normed);
        raw = keep.then_some((q_raw, k_raw));
    }
    kernels.rope(&q, &k, context.rope, false)?;
    let by_row = |t: Tensor, n: i64| t.view([rows, s, n, d]);
    let qkv = Qkv { q: by_row(q, heads), k: by_row(k, kv_heads), v: by_row(v, kv_heads) };
    let attended = attention::forward(kernels, &qkv, arch.windows[context.block], cache, keep)?;
    let out = attended.out.view([tokens, heads * d]);

    let y = x.f_addmm(&out, &w.must(Role::O).tr())?;
    if let Some(bias) = w.get(Role::OBias) {
        let _ = y.shallow_clone().f_add_(bias)?;
    }
    let mut low_o = None;
    if let Some(p) = context.delta(Group::O) {
        let low = p.squeeze(&out, 0)?;
        p.expand(Role::O, &low, &y)?;
        low_o = Some(low);
    }
    Ok((y, Half { h, low, raw, qkv, attended, low_o }))
}

/// Goes back through [`attention_half`] from `gy` `[T, H]`, the gradient of its output.
fn half_backward(
    x: &Tensor,
    gy: &Tensor,
    half: Half,
    w: &BlockWeights,
    context: &BlockContext<'_>,
    grads: &Tensor,
) -> Result<Option<Tensor>> {
    let (arch, kernels) = (context.arch, context.kernels);
    let Half { h, low, raw, qkv, attended, low_o } = half;
    let (tokens, d) = (x.size()[0], arch.head_dim as i64);
    let delta = context.delta(Group::Qkv);
    let deeper = context.needs_input || delta.is_some();

    let mut dout = None;
    if deeper {
        dout = Some(gy.f_mm(w.must(Role::O))?);
    }
    if let (Some(p), Some(low)) = (context.delta(Group::O), &low_o) {
        let dlow = p.room(tokens)?;
        p.low_grad(Role::O, gy, &dlow)?;
        p.b_grad(Role::O, gy, low, grads)?;
        if let Some(dout) = &dout {
            p.input_grad(&dlow, dout, 0)?;
        }
        p.a_grad(&dlow, &attended.out.view([tokens, -1]), 0, grads)?;
    }
    let Some(dout) = dout else { return Ok(None) };

    let back = attention::backward(&dout.view_as(&attended.out), &qkv, &attended, arch.windows[context.block])?;
    drop((dout, attended, qkv));
    let by_head = |t: &Tensor| t.view([tokens, -1, d]);
    let (dq, dk) = (by_head(&back.q), by_head(&back.k));
    kernels.rope(&dq, &dk, context.rope, true)?;
    if let Some((q, k)) = &raw {
        kernels.rms_norm_backward(q, w.must(Role::QNorm), arch.norm_eps, &dq, None)?;
        kernels.rms_norm_backward(k, w.must(Role::KNorm), arch.norm_eps, &dk, None)?;
    }
    let flat = |t: &Tensor| t.view([tokens, -1]);
    let d_outs = [(Role::Q, flat(&back.q)), (Role::K, flat(&back.k)), (Role::V, flat(&back.v))];
    let dlow = delta.map(|p| p.room(tokens)).transpose()?;
    if let (Some(p), Some(low), Some(dlow)) = (delta, &low, &dlow) {
        for (role, d_out) in &d_outs {
            p.low_grad(*role, d_out, dlow)?;
            p.b_grad(*role, d_out, low, grads)?;
        }
        p.a_grad(dlow, &h, 0, grads)?;
    }
    if !context.needs_input {
        return Ok(None);
    }
    // The normed input has served; its gradient takes its place.
    let dh = h;
    for (i, (role, d_out)) in d_outs.iter().enumerate() {
        gemm(&dh, d_out, w.must(*role), if i == 0 { 0.0 } else { 1.0 }, 1.0)?;
    }
    if let (Some(p), Some(dlow)) = (delta, &dlow) {
        p.input_grad(dlow, &dh, 0)?;
    }
    kernels.rms_norm_backward(x, w.must(Role::InputNorm), arch.norm_eps, &dh, Some(gy))?;
    Ok(Some(dh))
}
