//! Attention as an operation on the residual stream: projections, norms of heads, rotation, grouped queries, and back.

use super::attention::{self, Attended, KvCache, Qkv};
use super::block::BlockContext;
use super::delta::Tuned;
use super::kernels::{NormUse, Scoring};
use super::linear::{Linear, Sum};
use super::lora::Group;
use super::weights::BlockWeights;
use crate::checkpoint::Role;
use crate::error::Result;
use tch::Tensor;

/// What the backward pass needs.
#[derive(Debug)]
pub(super) struct Kept<'a> {
    /// Normed input, `[T, H]`.
    h: Tensor,
    /// Tuned part of q, k and v.
    tuned: Tuned<'a>,
    /// q and k before their norms, `[T, heads, D]`, where the family has these.
    raw: Option<(Tensor, Tensor)>,
    qkv: Qkv,
    attended: Attended,
    /// Tuned part of o.
    tuned_o: Tuned<'a>,
}

impl Kept<'_> {
    /// Whether something of it is trained.
    pub(super) fn is_tuned(&self) -> bool {
        self.tuned.is_any() || self.tuned_o.is_any()
    }
}

/// What attention of this block does to scores.
fn scoring(context: &BlockContext<'_>) -> Scoring {
    Scoring::usual(context.arch.head_dim, context.arch.windows[context.block])
}

/// x + attention(h): x and h `[T, H]` → `[T, H]`, a new tensor.
pub(super) fn forward<'a>(
    x: &Tensor,
    h: Tensor,
    (rows, s): (i64, i64),
    w: &BlockWeights,
    context: &'a BlockContext<'_>,
    cache: Option<&mut KvCache>,
    keep: bool,
) -> Result<(Tensor, Kept<'a>)> {
    let (arch, kernels) = (context.arch, context.kernels);
    let (heads, kv_heads, d) = (arch.n_heads as i64, arch.n_kv_heads as i64, arch.head_dim as i64);
    let tokens = rows * s;
    // One buffer for all three, so that a token's heads lie side by side.
    let buffer = Tensor::f_empty([tokens, (heads + 2 * kv_heads) * d], (h.kind(), h.device()))?;
    let mut tuned = context.tuned(Group::Qkv, 0);
    tuned.enter(&h)?;
    let project = |role, at: i64, n: i64| -> Result<Tensor> {
        let out = buffer.narrow(1, at * d, n * d);
        drop(Linear::of(w, role).forward(&h, Sum::Over(&out), &tuned)?);
        Ok(out.view([tokens, n, d]))
    };
    let mut q = project(Role::Q, 0, heads)?;
    let mut k = project(Role::K, heads, kv_heads)?;
    let v = project(Role::V, heads + kv_heads, kv_heads)?;
    let mut raw = None;
    if let (Some(q_norm), Some(k_norm)) = (w.get(Role::QNorm), w.get(Role::KNorm)) {
        let normed = kernels.rms_norm(&q, q_norm, NormUse::rms(arch.norm_eps))?;
        let q_raw = std::mem::replace(&mut q, normed);
        let normed = kernels.rms_norm(&k, k_norm, NormUse::rms(arch.norm_eps))?;
        let k_raw = std::mem::replace(&mut k, normed);
        raw = keep.then_some((q_raw, k_raw));
    }
    kernels.rope(&q, &k, context.rope, false)?;
    let by_row = |t: Tensor, n: i64| t.view([rows, s, n, d]);
    let qkv = Qkv { q: by_row(q, heads), k: by_row(k, kv_heads), v: by_row(v, kv_heads) };
    let attended = attention::forward(kernels, &qkv, scoring(context), cache, keep)?;
    let out = attended.out.view([tokens, heads * d]);
    let mut tuned_o = context.tuned(Group::O, 0);
    tuned_o.enter(&out)?;
    let y = Linear::of(w, Role::O).forward(&out, Sum::Onto(x), &tuned_o)?;
    Ok((y, Kept { h, tuned, raw, qkv, attended, tuned_o }))
}

/// Goes back through [`forward`] from `dy` `[T, H]`, the gradient of what it added to x: adds the adapter's gradients to
/// `grads`, and returns the gradient of h if the context needs the input's.
pub(super) fn backward(
    dy: &Tensor,
    kept: Kept<'_>,
    w: &BlockWeights,
    context: &BlockContext<'_>,
    grads: &Tensor,
) -> Result<Option<Tensor>> {
    let (arch, kernels) = (context.arch, context.kernels);
    let Kept { h, mut tuned, raw, qkv, attended, mut tuned_o } = kept;
    let (tokens, d) = (h.size()[0], arch.head_dim as i64);

    let deeper = context.needs_input || tuned.is_any();
    let d_out = [(Role::O, dy)];
    tuned_o.pull(&d_out)?;
    let dout = deeper.then(|| Linear::of(w, Role::O).back(dy, Sum::New)).transpose()?;
    if let Some(dout) = &dout {
        tuned_o.input_grad(dout)?;
    }
    tuned_o.grads(&d_out, &attended.out.view([tokens, -1]), grads)?;
    drop(tuned_o);
    let Some(dout) = dout else { return Ok(None) };

    let back = attention::backward(kernels, &dout.view_as(&attended.out), &qkv, &attended, scoring(context))?;
    drop((dout, attended, qkv));
    let by_head = |t: &Tensor| t.view([tokens, -1, d]);
    let (dq, dk) = (by_head(&back.q), by_head(&back.k));
    kernels.rope(&dq, &dk, context.rope, true)?;
    if let (Some((q, k)), Some(q_norm), Some(k_norm)) = (&raw, w.get(Role::QNorm), w.get(Role::KNorm)) {
        kernels.rms_norm_backward(q, q_norm, NormUse::rms(arch.norm_eps), &dq, None)?;
        kernels.rms_norm_backward(k, k_norm, NormUse::rms(arch.norm_eps), &dk, None)?;
    }
    let [dq, dk, dv] = [&back.q, &back.k, &back.v].map(|t| t.view([tokens, -1]));
    let d_outs = [(Role::Q, &dq), (Role::K, &dk), (Role::V, &dv)];
    tuned.pull(&d_outs)?;
    tuned.grads(&d_outs, &h, grads)?;
    if !context.needs_input {
        return Ok(None);
    }
    // The normed input has served; its gradient takes its place.
    let dh = h;
    for (i, (role, d_out)) in d_outs.into_iter().enumerate() {
        let sum = if i == 0 { Sum::Over(&dh) } else { Sum::Into(&dh) };
        drop(Linear::of(w, role).back(d_out, sum)?);
    }
    tuned.input_grad(&dh)?;
    Ok(Some(dh))
}
