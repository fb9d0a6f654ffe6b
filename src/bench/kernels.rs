//! Rates of the kernels beside large products, and what a block's visits take over them: the planner's time model is
//! made of these (`plan/work.rs`).
//!
//! The block has Llama-3-8B's shape with adapters on q, k, v and o, 2048 tokens: 0.9 GB of device memory at most.

use crate::checkpoint::{Checkpoint, Dtype, Role};
use crate::config::RunConfig;
use crate::device::{Kernels, shim};
use crate::error::{Error, Result};
use crate::model::attention::{self, Qkv};
use crate::model::kernels::Scoring;
use crate::model::rope::RopeTable;
use crate::model::{Adapter, AdapterLayout, BlockContext, BlockWeights, Kernels as Ops, block_backward, block_forward};
use crate::plan::made::{LLAMA3_8B, Shape, checkpoint};
use crate::plan::work::{self, Pace};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// Tokens of the block.
const TOKENS: usize = 2048;
/// Tokens of the block whose kernels are over before the next one is launched.
const FEW: usize = 16;
/// Elements of the tensor that elementwise kernels pass over: larger than any card's cache.
const ELEMENTS: i64 = 128 << 20;
/// Lengths of rows at which attention is timed.
const LENGTHS: [usize; 2] = [1024, 8192];
/// A product that fills a card a few times only: rows, columns, depth.
const MIDDLING: [i64; 3] = [1024, 4864, 896];
/// Timed rounds, after half as many that are not timed.
const ROUNDS: usize = 20;

/// Measures `device`, whose large products reach `flops`.
///
/// # Errors
/// It isn't a GPU that trains in bf16, or it fails.
pub fn run(device: Device, flops: f64) -> Result<Kernels> {
    let Device::Cuda(index) = device else {
        return Err(Error::device("kernels are calibrated on a GPU only"));
    };
    let _no_grad = tch::no_grad_guard();
    let bf16 = (Kind::BFloat16, device);
    let timed = |f: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        for _ in 0..ROUNDS / 2 {
            f()?;
        }
        shim::synchronize(index)?;
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            f()?;
        }
        shim::synchronize(index)?;
        Ok(begun.elapsed().as_secs_f64() / ROUNDS as f64)
    };

    let (mut large, other) = (Tensor::f_zeros([ELEMENTS], bf16)?, Tensor::f_zeros([ELEMENTS], bf16)?);
    // Two reads and a write.
    let seconds = timed(&mut || {
        drop(large.f_add_(&other)?);
        Ok(())
    })?;
    let memory = 6.0 * ELEMENTS as f64 / seconds;
    drop((large, other));

    let rates: Vec<[f64; 2]> = LENGTHS.iter().map(|&s| attention_rates(s, bf16, &timed)).collect::<Result<_>>()?;
    let curve = |way: usize| half_rate(LENGTHS, [rates[0][way], rates[1][way]]);
    // A product of a few waves: what it takes beyond its FLOP, every kernel takes.
    let [m, n, k] = MIDDLING;
    let (x, w) = (Tensor::f_randn([m, k], bf16)?, Tensor::f_randn([n, k], bf16)?.f_tr()?);
    let seconds = timed(&mut || {
        drop(x.f_mm(&w)?);
        Ok(())
    })?;
    let each = (seconds - 2.0 * (m * n * k) as f64 / flops).clamp(1e-6, 50e-6);
    drop((x, w));

    let mut kernels = Kernels { memory, attention: curve(0), attention_backward: curve(1), each, ..Kernels::NONE };
    // The host's part, on a block so small that the device waits for it.
    let small = Shape { hidden: 512, intermediate: 1024, heads: 4, kv_heads: 2, vocab: 64, layers: 2, ..LLAMA3_8B };
    let [up, down] = visits(small, FEW, device, &timed)?;
    kernels.launch = 1.0;
    let launched = expected(small, FEW, flops, kernels)?;
    kernels.launch = (up + down) / (launched[0].host + launched[1].host);

    let reference = Shape { layers: 2, vocab: 64, ..LLAMA3_8B };
    let [up, down] = visits(reference, TOKENS, device, &timed)?;
    let cost = expected(reference, TOKENS, flops, kernels)?;
    (kernels.forward, kernels.backward) = (up / cost[0].device, down / cost[1].device);
    Ok(kernels)
}

/// FLOP/s of causal attention over 32 query and 8 key heads of 128, forward and backward, in a row of `length`.
fn attention_rates(length: usize, options: (Kind, Device), timed: &Timed<'_>) -> Result<[f64; 2]> {
    let heads = |n: i64| Tensor::f_randn([1, length as i64, n, 128], options);
    let (q, k, v) = (heads(32)?, heads(8)?, heads(8)?);
    let (qkv, ops) = (Qkv { q, k, v }, Ops::of(options.1));
    let of = Scoring::usual(128, None);
    let flop = 2.0 * (length * length * 4096) as f64;
    let up = timed(&mut || attention::forward(ops, &qkv, of, None, false).map(drop))?;
    let attended = attention::forward(ops, &qkv, of, None, true)?;
    let down = timed(&mut || attention::backward(ops, &qkv.q, &qkv, &attended, of).map(drop))?;
    Ok([flop / up, 2.5 * flop / down])
}

/// The rate in long rows, and the length of half of it, of a curve `rate·s / (s + half)` through two points.
fn half_rate([s, t]: [usize; 2], [a, b]: [f64; 2]) -> [f64; 2] {
    let (s, t) = (s as f64, t as f64);
    let half = (s * t * (b - a) / (a * t - b * s)).clamp(0.0, 8.0 * s);
    [b * (t + half) / t, if half.is_finite() { half } else { 0.0 }]
}

/// What the planner says of the visits.
fn expected(shape: Shape, tokens: usize, flops: f64, kernels: Kernels) -> Result<[work::Cost; 2]> {
    work::visits(&checkpoint(shape, Dtype::BF16), &config(tokens), &Pace::of(flops, Some(kernels)))
}

fn config(tokens: usize) -> RunConfig {
    let mut config = RunConfig::default();
    config.data.max_length = tokens;
    config.lora.r = 16;
    config
}

/// A function that times another.
type Timed<'a> = dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<f64> + 'a;

/// Seconds of one forward and one backward visit of a block of `shape`.
fn visits(shape: Shape, tokens: usize, device: Device, timed: &Timed<'_>) -> Result<[f64; 2]> {
    let bf16 = (Kind::BFloat16, device);
    let model: Checkpoint = checkpoint(shape, Dtype::BF16);
    let layout = AdapterLayout::new(&model, &config(tokens).lora)?;
    let adapter = Adapter::new(layout.clone(), &layout.init(0), Kind::BFloat16, device);
    let mut weights = Vec::new();
    for role in Role::ALL {
        if let Some(t) = model.block_tensor(1, role) {
            let shape: Vec<i64> = t.shape.iter().map(|d| *d as i64).collect();
            weights.push((role, Tensor::f_randn(shape.as_slice(), bf16)? * 0.02));
        }
    }
    let weights = BlockWeights::from_tensors(weights);
    let rope = RopeTable::new(&model.arch, 0, tokens, Kind::BFloat16, device);
    let state = [1, tokens as i64, shape.hidden as i64];
    let (x, gy) = (Tensor::f_randn(state, bf16)?, Tensor::f_randn(state, bf16)?);
    let grads = Tensor::f_zeros([layout.len as i64], (Kind::Float, device))?;
    let context = BlockContext {
        arch: &model.arch,
        kernels: Ops::of(device),
        rope: &rope,
        block: 1,
        adapter: Some(adapter.block(1, None)),
        tile: 0,
        needs_input: true,
    };
    let up = timed(&mut || block_forward(&x, &mut &weights, &context, None).map(drop))?;
    let down = timed(&mut || block_backward(&x, &gy, &mut &weights, &context, &grads).map(drop))?;
    Ok([up, down])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_through_two_rates_gives_them_back() {
        let [rate, half] = half_rate(LENGTHS, [150e12, 300e12]);
        let at = |s: f64| rate * s / (s + half);
        assert!((at(1024.0) / 150e12 - 1.0).abs() < 1e-9 && (at(8192.0) / 300e12 - 1.0).abs() < 1e-9);
        assert_eq!(half_rate(LENGTHS, [2e14, 2e14]), [2e14, 0.0]);
    }
}
