//! Causal self-attention with grouped queries, full or windowed, with or without a key/value cache.
//!
//! Rows are padded on the right only, so causality already hides padding from every real token and no mask is needed:
//! the kernel stays the fast one.

use crate::device::shim;
use crate::error::Result;
use tch::{Kind, Tensor};

/// Keys and values of one block for positions seen so far, `[1, kv_heads, T, D]` each.
#[derive(Debug, Default)]
pub struct KvCache(Option<(Tensor, Tensor)>);

impl KvCache {
    /// Appends and returns all keys and values.
    fn append(&mut self, k: Tensor, v: Tensor) -> (Tensor, Tensor) {
        let (k, v) = match self.0.take() {
            Some((old_k, old_v)) => (Tensor::cat(&[&old_k, &k], 2), Tensor::cat(&[&old_v, &v], 2)),
            None => (k, v),
        };
        let out = (k.shallow_clone(), v.shallow_clone());
        self.0 = Some((k, v));
        out
    }
}

/// Attention of q `[B, heads, S, D]` over k, v `[B, kv_heads, S, D]` → `[B, S, heads * D]`.
///
/// With a cache, the S queries are the last S positions of what it holds after appending. A key is visible if
/// query − key < `window`.
///
/// # Errors
/// The windowed GPU kernel refuses its inputs.
pub fn attention(
    q: &Tensor,
    k: Tensor,
    v: Tensor,
    window: Option<usize>,
    cache: Option<&mut KvCache>,
) -> Result<Tensor> {
    let (k, v) = match cache {
        Some(c) => c.append(k, v),
        None => (k, v),
    };
    let (rows, heads, s, d) = q.size4()?;
    let (_, kv_heads, t, _) = k.size4()?;
    let scale = 1.0 / (d as f64).sqrt();
    let windowed = window.filter(|&w| (w as i64) < t);
    let cuda = q.device().is_cuda();
    if let (Some(w), true, true) = (windowed, cuda, s == t) {
        let bshd = |x: &Tensor| x.transpose(1, 2).contiguous();
        let out = shim::flash_window(&bshd(q), &bshd(&k), &bshd(&v), scale, w)?;
        return Ok(out.reshape([rows, s, heads * d]));
    }
    // CPU kernels know no grouped queries; repeating is exact.
    let (k, v) = if cuda || heads == kv_heads {
        (k, v)
    } else {
        let group = heads / kv_heads;
        (k.repeat_interleave_self_int(group, 1, None), v.repeat_interleave_self_int(group, 1, None))
    };
    let mask = (windowed.is_some() || (s > 1 && s != t)).then(|| visible(s, t, windowed, q));
    let causal = mask.is_none() && s > 1;
    let out = Tensor::f_scaled_dot_product_attention(
        q,
        &k,
        &v,
        mask.as_ref(),
        0.0,
        causal,
        scale,
        cuda && heads != kv_heads,
    )?;
    Ok(out.transpose(1, 2).reshape([rows, s, heads * d]))
}

/// Additive mask `[S, T]`: 0 where the key is visible, −∞ where not. Query i stands at position t − s + i.
fn visible(s: i64, t: i64, window: Option<usize>, like: &Tensor) -> Tensor {
    let opts = (Kind::Int64, like.device());
    let q = Tensor::arange_start(t - s, t, opts).unsqueeze(1);
    let k = Tensor::arange(t, opts).unsqueeze(0);
    let distance = q - k;
    let mut hidden = distance.lt(0);
    if let Some(w) = window {
        hidden = hidden.logical_or(&distance.ge(w as i64));
    }
    Tensor::zeros([s, t], (like.kind(), like.device())).masked_fill(&hidden, f64::NEG_INFINITY)
}

/// The kernel's name for screen and report.
#[must_use]
pub fn kernel_name(cuda: bool, windowed: bool) -> &'static str {
    match (cuda, windowed) {
        (true, false) => "flash (sdpa, causal)",
        (true, true) => "flash, sliding window",
        (false, false) => "sdpa, cpu, causal",
        (false, true) => "sdpa, cpu, masked window",
    }
}
