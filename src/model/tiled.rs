//! Causal attention with capped scores: products of a tile of queries with all keys that it sees, made anew on the way
//! back. Gemma 2 (arXiv 2408.00118) caps scores, which neither flash attention nor cuDNN's kernel computes.
//!
//! Shapes: B rows, S queries, T keys of which the last S are the queries' own, D the head width. Inside, the heads that
//! share a key stand behind each other: a tile of n queries is `[B·kv_heads, n·group, D]`.

use super::attention::Qkv;
use super::kernels::{Kernels, Scoring, Tile};
use crate::device::attention::tile_queries;
use crate::error::Result;
use tch::{Kind, Tensor};

/// Sizes of one call.
struct Shape {
    rows: i64,
    queries: i64,
    keys: i64,
    kv_heads: i64,
    group: i64,
    width: i64,
    /// Queries of a tile.
    step: i64,
}

/// One tile of queries, and the keys that it sees.
struct Span {
    at: i64,
    queries: i64,
    first_key: i64,
    keys: i64,
    tile: Tile,
}

impl Shape {
    fn of(q: &Tensor, k: &Tensor, step: Option<i64>) -> Result<Shape> {
        let (rows, queries, heads, width) = q.size4()?;
        let (_, keys, kv_heads, _) = k.size4()?;
        let room = || tile_queries(rows as usize, heads as usize, keys as usize) as i64;
        let step = step.unwrap_or_else(room).min(queries.max(1));
        Ok(Shape { rows, queries, keys, kv_heads, group: heads / kv_heads, width, step })
    }

    /// The tiles, in order.
    fn spans(&self, window: Option<usize>) -> impl Iterator<Item = Span> {
        let (all, group, before, step) = (self.queries, self.group, self.keys - self.queries, self.step);
        (0..all).step_by(step as usize).map(move |at| {
            let (queries, query) = (step.min(all - at), before + at);
            let first_key = window.map_or(0, |w| (query + 1 - w as i64).max(0));
            let keys = query + queries - first_key;
            Span { at, queries, first_key, keys, tile: Tile { query, key: first_key, group } }
        })
    }

    /// `[B, T, kv_heads, D]` → `[B·kv_heads, T, D]`.
    fn by_head(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.transpose(1, 2).f_reshape([self.rows * self.kv_heads, self.keys, self.width])?)
    }

    /// The inverse of [`Shape::by_head`], dense and in `kind`.
    fn by_token(&self, x: &Tensor, kind: Kind) -> Result<Tensor> {
        let x = x.view([self.rows, self.kv_heads, self.keys, self.width]).transpose(1, 2);
        Ok(x.to_kind(kind).f_contiguous()?)
    }

    /// The tile `span` of `x` `[B, S, heads, D]` → `[B·kv_heads, n·group, D]`.
    fn tile(&self, x: &Tensor, span: &Span) -> Result<Tensor> {
        let split = [self.rows, span.queries, self.kv_heads, self.group, self.width];
        let x = x.narrow(1, span.at, span.queries).f_reshape(split)?.permute([0, 2, 1, 3, 4]);
        Ok(x.f_reshape([self.rows * self.kv_heads, span.queries * self.group, self.width])?)
    }

    /// Writes what [`Shape::tile`] would cut from `out`.
    fn put(&self, out: &Tensor, tile: &Tensor, span: &Span) -> Result<()> {
        let split = [self.rows, self.kv_heads, span.queries, self.group, self.width];
        let heads = [self.rows, span.queries, self.kv_heads * self.group, self.width];
        let tile = tile.view(split).permute([0, 2, 1, 3, 4]).f_reshape(heads)?;
        out.narrow(1, span.at, span.queries).f_copy_(&tile)?;
        Ok(())
    }
}

/// Attention of q `[B, S, heads, D]` over k and v `[B, T, kv_heads, D]` → `[B, S, heads, D]`, dense; `step` queries at a
/// time (`None`: as many as have room).
///
/// # Errors
/// The device is out of memory.
pub(super) fn forward(kernels: &Kernels, [q, k, v]: [&Tensor; 3], of: Scoring, step: Option<i64>) -> Result<Tensor> {
    let shape = Shape::of(q, k, step)?;
    let (k, v) = (shape.by_head(k)?, shape.by_head(v)?);
    let out = Tensor::f_empty(q.size(), (q.kind(), q.device()))?;
    for span in shape.spans(of.window) {
        let seen = |x: &Tensor| x.narrow(1, span.first_key, span.keys);
        let weights = shape.tile(q, &span)?.f_bmm(&seen(&k).transpose(1, 2))?;
        kernels.attend(&weights, None, of, span.tile)?;
        shape.put(&out, &weights.f_bmm(&seen(&v))?, &span)?;
    }
    Ok(out)
}

/// Gradients of q, k and v, dense and shaped as they are, from `dout` `[B, S, heads, D]`; those of keys and values add up
/// in f32, tile after tile.
///
/// # Errors
/// The device is out of memory.
pub(super) fn backward(
    kernels: &Kernels,
    dout: &Tensor,
    [q, k, v]: [&Tensor; 3],
    of: Scoring,
    step: Option<i64>,
) -> Result<Qkv> {
    let shape = Shape::of(q, k, step)?;
    let (kind, device) = (q.kind(), q.device());
    let (k, v) = (shape.by_head(k)?, shape.by_head(v)?);
    let (dk, dv) =
        (Tensor::f_zeros(k.size(), (Kind::Float, device))?, Tensor::f_zeros(k.size(), (Kind::Float, device))?);
    let dq = Tensor::f_empty(q.size(), (kind, device))?;
    for span in shape.spans(of.window) {
        let seen = |x: &Tensor| x.narrow(1, span.first_key, span.keys);
        let (q, dout) = (shape.tile(q, &span)?, shape.tile(dout, &span)?);
        let weights = q.f_bmm(&seen(&k).transpose(1, 2))?;
        let d = dout.f_bmm(&seen(&v).transpose(1, 2))?;
        kernels.attend(&weights, Some(&d), of, span.tile)?;
        let _ = seen(&dv).f_add_(&weights.transpose(1, 2).f_bmm(&dout)?)?;
        drop((weights, dout));
        let _ = seen(&dk).f_add_(&d.transpose(1, 2).f_bmm(&q)?)?;
        shape.put(&dq, &d.f_bmm(&seen(&k))?, &span)?;
    }
    Ok(Qkv { q: dq, k: shape.by_token(&dk, kind)?, v: shape.by_token(&dv, kind)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::shim;
    use tch::Device;

    const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

    /// Attention by plain operators over a whole matrix of scores.
    fn plain([q, k, v]: [&Tensor; 3], of: Scoring) -> Tensor {
        let (_, s, heads, _) = q.size4().unwrap();
        let (_, t, kv_heads, _) = k.size4().unwrap();
        let spread = |x: &Tensor| x.transpose(1, 2).repeat_interleave_self_int(heads / kv_heads, 1, None);
        let products = q.transpose(1, 2).matmul(&spread(k).transpose(2, 3)) * of.scale;
        let scores = of.cap.map_or(products.shallow_clone(), |cap| (products / cap).tanh() * cap);
        let place = |from: i64, to: i64| Tensor::arange_start(from, to, (Kind::Int64, Device::Cpu));
        let distance = place(t - s, t).unsqueeze(1) - place(0, t);
        let mut hidden = distance.lt(0);
        if let Some(window) = of.window {
            hidden = hidden.logical_or(&distance.ge(window as i64));
        }
        let weights = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        weights.matmul(&spread(v)).transpose(1, 2)
    }

    fn close(what: &str, got: &Tensor, want: &Tensor) {
        assert_eq!(got.size(), want.size(), "{what}");
        let worst = (got - want).abs().max().double_value(&[]) / want.abs().max().double_value(&[]);
        assert!(worst < 3e-6, "{what}: off by {worst:e}");
    }

    fn kernels() -> &'static Kernels {
        let _ = shim::init();
        tch::manual_seed(3);
        Kernels::of(Device::Cpu)
    }

    #[test]
    fn tiles_are_plain_attention_forward_and_back() {
        let kernels = kernels();
        let leaf = |heads: i64| Tensor::randn([2, 11, heads, 6], F32).set_requires_grad(true);
        for (heads, kv_heads) in [(4, 2), (3, 3), (4, 1)] {
            let (q, k, v) = (leaf(heads), leaf(kv_heads), leaf(kv_heads));
            let dout = Tensor::randn(q.size(), F32);
            for (cap, window) in [(None, None), (Some(1.5), None), (Some(0.7), Some(4)), (Some(2.0), Some(1))] {
                let of = Scoring { scale: 0.9, cap, window };
                let want = plain([&q, &k, &v], of);
                let grads = shim::grad(&[&want], &[&dout], &[&q, &k, &v]).unwrap();
                let [a, b, c] = [&q, &k, &v].map(Tensor::detach);
                for step in [Some(1), Some(3), Some(11), None] {
                    let what = format!("{heads} heads over {kv_heads}, {of:?}, tiles of {step:?}");
                    close(&what, &forward(kernels, [&a, &b, &c], of, step).unwrap(), &want.detach());
                    let got = backward(kernels, &dout, [&a, &b, &c], of, step).unwrap();
                    for (name, got, want) in [("dq", &got.q, 0), ("dk", &got.k, 1), ("dv", &got.v, 2)] {
                        assert!(got.is_contiguous(), "{name}");
                        let want = grads[want].as_ref().unwrap();
                        // Under a window of one token, queries and keys have no gradient but rounding.
                        if window != Some(1) || name == "dv" {
                            close(&format!("{what}: {name}"), got, want);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn queries_after_a_cache_see_what_the_whole_row_shows_them() {
        let kernels = kernels();
        let [q, k, v] = [4, 2, 2].map(|heads| Tensor::randn([1, 9, heads, 6], F32));
        for window in [None, Some(3)] {
            let of = Scoring { scale: 0.4, cap: Some(1.0), window };
            let whole = forward(kernels, [&q, &k, &v], of, None).unwrap();
            for s in [1, 4] {
                let last = q.narrow(1, 9 - s, s);
                let got = forward(kernels, [&last, &k, &v], of, Some(2)).unwrap();
                close("the last queries", &got, &whole.narrow(1, 9 - s, s));
            }
        }
    }
}
