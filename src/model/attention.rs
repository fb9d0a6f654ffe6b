//! Causal self-attention with grouped queries, full or windowed, with or without a key/value cache.
//!
//! Rows are padded on the right only, so causality already hides padding from every real token and no mask is needed:
//! the kernel stays the fast one. On a GPU the kernels are called directly, forward and backward: cuDNN's for long rows
//! on cards that it is made for (H200, 2048 tokens: 82 and 275 us where flash attention takes 162 and 446), flash
//! attention for others. Elsewhere libtorch's attention runs under a graph of its own over q, k and v alone. Capped scores,
//! which none of these has, go through tiles of our own.

use super::kernels::{Kernels, Scoring};
use super::tiled;
use crate::device::attention::cut;
use crate::device::shim::{self, AttentionSaved};
use crate::device::{Attention, AttentionKernel};
use crate::error::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tch::{Kind, Tensor};

/// Keys and values of one block for positions seen so far, `[1, kv_heads, T, D]` each.
#[derive(Debug, Default)]
pub struct KvCache(Option<(Tensor, Tensor)>);

impl KvCache {
    /// Appends and returns all keys and values.
    fn append(&mut self, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        let (k, v) = match self.0.take() {
            Some((old_k, old_v)) => (Tensor::cat(&[&old_k, k], 2), Tensor::cat(&[&old_v, v], 2)),
            // Not a slice of the projections' buffer, which would live as long as the cache.
            None => (k.contiguous(), v.contiguous()),
        };
        let out = (k.shallow_clone(), v.shallow_clone());
        self.0 = Some((k, v));
        out
    }
}

/// q `[B, S, heads, D]`, k and v `[B, S, kv_heads, D]`; the last dimension is dense.
#[derive(Debug)]
pub struct Qkv {
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
}

/// What attention gives, and what its backward pass needs.
#[derive(Debug)]
pub struct Attended {
    /// `[B, S, heads, D]`, dense.
    pub out: Tensor,
    saved: Saved,
}

#[derive(Debug)]
enum Saved {
    Nothing,
    Flash(AttentionSaved),
    Cudnn(AttentionSaved),
    /// Leaves and output of a graph over attention alone.
    Graph(Qkv, Tensor),
    /// Tiles compute their weights anew.
    Tiled,
}

/// Attention over the tokens of `qkv`, scores as `of` says.
///
/// With a cache (one row, forward only), the S queries are the last S positions of what it holds after appending.
/// With `keep`, the result can go through [`backward`].
///
/// # Errors
/// A kernel refuses its inputs, or the device is out of memory.
pub fn forward(kernels: &Kernels, qkv: &Qkv, of: Scoring, cache: Option<&mut KvCache>, keep: bool) -> Result<Attended> {
    let Qkv { q, k, v } = qkv;
    let s = q.size()[1];
    let of_width = |t: i64| Scoring { window: cut(t as usize, of.window), ..of };
    let cached = cache.map(|c| c.append(&k.transpose(1, 2), &v.transpose(1, 2)));
    let whole = cached.as_ref().is_none_or(|(k, _)| k.size()[2] == s);
    let rule = Attention { capped: of.cap.is_some(), ..kernels.attention(q.kind(), q.size()[3]) };
    let kernel = rule.kernel(s as usize, of.window);
    if kernel == AttentionKernel::Tiled {
        let kept = cached.as_ref().map(|(k, v)| (k.transpose(1, 2), v.transpose(1, 2)));
        let (k, v) = kept.as_ref().map_or((k, v), |(k, v)| (k, v));
        let saved = if keep { Saved::Tiled } else { Saved::Nothing };
        return Ok(Attended { out: tiled::forward(kernels, [q, k, v], of, None)?, saved });
    }
    if whole
        && kernel == AttentionKernel::Cudnn
        && let Some(saved) = cudnn(|| shim::cudnn_forward(q, k, v, of.scale, keep))?
    {
        let out = saved[0].shallow_clone();
        return Ok(Attended { out, saved: if keep { Saved::Cudnn(saved) } else { Saved::Nothing } });
    }
    // cuDNN may have refused.
    if whole && kernel != AttentionKernel::Sdpa {
        let saved = shim::flash_forward(q, k, v, of.scale, of_width(s).window)?;
        let out = saved[0].shallow_clone();
        return Ok(Attended { out, saved: if keep { Saved::Flash(saved) } else { Saved::Nothing } });
    }
    if let Some((k, v)) = cached {
        let t = k.size()[2];
        return Ok(Attended { out: sdpa(&q.transpose(1, 2), &k, &v, of_width(t))?, saved: Saved::Nothing });
    }
    if !keep {
        let out = sdpa(&q.transpose(1, 2), &k.transpose(1, 2), &v.transpose(1, 2), of_width(s))?;
        return Ok(Attended { out, saved: Saved::Nothing });
    }
    let leaf = |t: &Tensor| t.detach().set_requires_grad(true);
    let leaves = Qkv { q: leaf(q), k: leaf(k), v: leaf(v) };
    let graph = tch::with_grad(|| {
        let heads_first = |t: &Tensor| t.transpose(1, 2);
        sdpa(&heads_first(&leaves.q), &heads_first(&leaves.k), &heads_first(&leaves.v), of_width(s))
    })?;
    Ok(Attended { out: graph.detach(), saved: Saved::Graph(leaves, graph) })
}

/// Gradients of q, k and v, dense and shaped as they are, from `dout` `[B, S, heads, D]`.
///
/// # Errors
/// `attended` was not kept for it, or the device is out of memory.
pub fn backward(kernels: &Kernels, dout: &Tensor, qkv: &Qkv, attended: &Attended, of: Scoring) -> Result<Qkv> {
    match &attended.saved {
        Saved::Nothing => Err(Error::run("attention was not kept for a backward pass")),
        Saved::Flash(saved) => {
            let window = cut(qkv.q.size()[1] as usize, of.window);
            let qkv = [&qkv.q, &qkv.k, &qkv.v];
            let [q, k, v] = shim::flash_backward(dout, qkv, saved, of.scale, window)?;
            Ok(Qkv { q, k, v })
        }
        Saved::Cudnn(saved) => {
            let qkv = [&qkv.q, &qkv.k, &qkv.v];
            let [q, k, v] = match cudnn(|| shim::cudnn_backward(dout, qkv, saved, of.scale))? {
                Some(grads) => grads,
                None => {
                    let saved = shim::flash_forward(qkv[0], qkv[1], qkv[2], of.scale, None)?;
                    shim::flash_backward(dout, qkv, &saved, of.scale, None)?
                }
            };
            Ok(Qkv { q, k, v })
        }
        Saved::Tiled => tiled::backward(kernels, dout, [&qkv.q, &qkv.k, &qkv.v], of, None),
        Saved::Graph(leaves, out) => {
            let got = shim::grad(&[out], &[dout], &[&leaves.q, &leaves.k, &leaves.v])?;
            let mut got = got.into_iter().map(|g| g.map(|g| g.contiguous()));
            let mut next = || got.next().flatten().ok_or_else(|| Error::run("attention got no gradient"));
            Ok(Qkv { q: next()?, k: next()?, v: next()? })
        }
    }
}

/// Why cuDNN's attention isn't used any more in this process.
static REFUSAL: OnceLock<String> = OnceLock::new();

/// What `run` gives; `None` where cuDNN isn't there or refuses, now or earlier in this process.
fn cudnn<T>(run: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    if REFUSAL.get().is_some() {
        return Ok(None);
    }
    match run() {
        Ok(given) => Ok(Some(given)),
        Err(e) if e.is_out_of_memory() => Err(e),
        Err(e) => {
            let _ = REFUSAL.set(e.to_string());
            Ok(None)
        }
    }
}

/// Why long rows go through flash attention although the run's start named cuDNN's; told once.
pub fn refusal() -> Option<&'static str> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let why = REFUSAL.get()?;
    (!TOLD.swap(true, Ordering::Relaxed)).then_some(why)
}

/// libtorch's attention of q `[B, heads, S, D]` over k, v `[B, kv_heads, T, D]` → `[B, S, heads, D]`, dense.
fn sdpa(q: &Tensor, k: &Tensor, v: &Tensor, of: Scoring) -> Result<Tensor> {
    let (_, heads, s, _) = q.size4()?;
    let (_, kv_heads, t, _) = k.size4()?;
    let cuda = q.device().is_cuda();
    // CPU kernels know no grouped queries; repeating is exact.
    let (k, v) = if cuda || heads == kv_heads {
        (k.shallow_clone(), v.shallow_clone())
    } else {
        let group = heads / kv_heads;
        (k.repeat_interleave_self_int(group, 1, None), v.repeat_interleave_self_int(group, 1, None))
    };
    let mask = (of.window.is_some() || (s > 1 && s != t)).then(|| visible(s, t, of.window, q));
    let causal = mask.is_none() && s > 1;
    let grouped = cuda && heads != kv_heads;
    let out = Tensor::f_scaled_dot_product_attention(q, &k, &v, mask.as_ref(), 0.0, causal, of.scale, grouped)?;
    Ok(out.transpose(1, 2).contiguous())
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
