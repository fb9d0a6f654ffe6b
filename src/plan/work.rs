//! What visits cost in compute: FLOP of products and attention, bytes of elementwise kernels, kernels launched.
//!
//! Follows the passes of `model/`: forward is seven products and attention; backward recomputes all but the down
//! projection and takes the gradient of every input (the base is frozen: no weight has one). Sources: the usual 2 FLOP
//! per weight and token; causal attention over the keys that are seen, half of the square without a window, its backward
//! 2.5 times the forward (Dao 2023).

use super::schedule::PARTS;
use super::shape::{BlockShape, Job, Model};
use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::device::attention::LONG_ROW;
use crate::device::{Attention, AttentionKernel, Kernels};
use crate::error::Result;

/// How fast a device computes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Large products, FLOP/s.
    pub products: f64,
    /// The other kernels.
    pub kernels: Kernels,
    /// The card's compute capability, where known: its attention kernel.
    pub capability: Option<(i32, i32)>,
}

/// What flash attention takes over cuDNN's, forward and backward, on cards whose calibration measured that one (H200,
/// 2048 tokens: 162 us over 82, 446 over 275).
const FLASH_OVER_CUDNN: [f64; 2] = [1.98, 1.62];

impl Pace {
    /// The pace of a device whose products reach `flops`, its kernels calibrated or not.
    pub fn of(flops: f64, kernels: Option<Kernels>) -> Pace {
        Pace { products: flops.max(1.0), kernels: kernels.unwrap_or_else(|| assumed(flops)), capability: None }
    }

    /// A CPU: memory as fast as products of four FLOP a byte, nothing to launch.
    pub fn cpu(flops: f64) -> Pace {
        let flops = flops.max(1.0);
        let rate = [flops, 0.0];
        let kernels = Kernels { memory: flops / 4.0, attention: rate, attention_backward: rate, ..Kernels::NONE };
        Pace { products: flops, kernels, capability: None }
    }

    /// What attention takes over the rates of `kernels` in rows of `length` under `window`, forward and backward: those
    /// are of rows that go through cuDNN's kernel where there is one.
    fn attention_over(&self, m: &Model, job: &Job, window: Option<u64>) -> [f64; 2] {
        let fast = Attention {
            capability: self.capability,
            half: m.elem == 2,
            head_dim: m.q.checked_div(m.heads).unwrap_or(0) as usize,
            deterministic: false,
            capped: false,
        };
        let length = (job.length as usize).max(LONG_ROW);
        let taken = Attention { deterministic: job.deterministic, ..fast }.kernel(length, window.map(|w| w as usize));
        if fast.kernel(length, None) == AttentionKernel::Cudnn && taken != AttentionKernel::Cudnn {
            FLASH_OVER_CUDNN
        } else {
            [1.0, 1.0]
        }
    }

    /// Device seconds of `w` in rows of `length`; products of few tokens wait for their weights.
    fn seconds(&self, w: &Work, length: f64) -> f64 {
        let k = &self.kernels;
        let attention = |flop: f64, [rate, half]: [f64; 2]| flop / rate.max(1.0) * (1.0 + half / length.max(1.0));
        (w.products / self.products).max(w.weights / k.memory.max(1.0))
            + attention(w.attention, k.attention)
            + attention(w.attention_backward, k.attention_backward)
            + w.bytes / k.memory.max(1.0)
            + w.launches * k.each
    }
}

/// Kernel rates of a GPU that nobody measured, from its products' rate: data-centre and consumer cards alike read a byte
/// in the time of 100 to 200 tensor FLOP, and flash attention reaches a half and a third of that rate.
fn assumed(flops: f64) -> Kernels {
    Kernels {
        memory: flops / 150.0,
        attention: [flops * 0.5, 512.0],
        attention_backward: [flops * 0.4, 512.0],
        each: 5e-6,
        launch: 8e-6,
        forward: 1.15,
        backward: 1.15,
    }
}

/// Work of a few kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// FLOP of products.
    pub products: f64,
    /// Bytes of the weights that they read.
    pub weights: f64,
    /// FLOP of attention.
    pub attention: f64,
    /// FLOP of attention's backward.
    pub attention_backward: f64,
    /// Bytes that elementwise kernels and thin products read and write.
    pub bytes: f64,
    /// Kernels launched.
    pub launches: f64,
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, o: Work) {
        self.products += o.products;
        self.weights += o.weights;
        self.attention += o.attention;
        self.attention_backward += o.attention_backward;
        self.bytes += o.bytes;
        self.launches += o.launches;
    }
}

/// Seconds of compute, and of the host that launches it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The device's.
    pub device: f64,
    /// The host's.
    pub host: f64,
}

/// One micro-batch's visits, part by part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitCost {
    /// Forward, after each part's take.
    pub forward: [Cost; PARTS],
    /// Recompute and what follows up to down's gradient, after each part's take.
    pub recompute: [Cost; PARTS],
    /// The rest of the way back, before each part's done.
    pub back: [Cost; PARTS],
}

const ATTENTION: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];

/// The work of one block's visits.
struct Block<'a> {
    m: &'a Model,
    job: &'a Job,
    b: &'a BlockShape,
    tokens: f64,
    trained: bool,
    /// What attention takes over the calibrated kernel, forward and backward.
    attention_over: [f64; 2],
}

impl<'a> Block<'a> {
    fn of(m: &'a Model, job: &'a Job, index: usize, pace: &Pace) -> Block<'a> {
        let (b, tokens) = (&m.blocks[index], job.micro_tokens() as f64);
        let attention_over = pace.attention_over(m, job, b.window);
        Block { m, job, b, tokens, trained: index >= job.lowest, attention_over }
    }
}

impl Block<'_> {
    fn bytes(&self, width: u64) -> f64 {
        self.tokens * (width * self.m.elem) as f64
    }

    /// A product with `weights` elements; reading them is what few tokens wait for.
    fn product(&self, weights: f64) -> Work {
        let read = weights * self.m.elem as f64;
        Work { products: 2.0 * weights * self.tokens, weights: read, launches: 1.0, ..Work::default() }
    }

    fn elementwise(&self, width: u64, passes: f64) -> Work {
        Work { bytes: self.bytes(width) * passes, launches: 1.0, ..Work::default() }
    }

    /// `low = x·Aᵀ`, `y += low·Bᵀ` of the adapted projections among `names`.
    fn adapter(&self, names: &[&str]) -> Work {
        let mut w = Work::default();
        if !self.trained {
            return w;
        }
        for t in self.job.targets.iter().filter(|t| names.contains(&t.as_str())) {
            let (out, inp) = self.m.projection(t);
            let drops = if self.job.dropout { 2.0 } else { 0.0 };
            w += Work { bytes: self.bytes(out) * 2.0 + self.bytes(inp) * drops, launches: 2.0, ..Work::default() };
        }
        if w.launches > 0.0 {
            // Projections that share an input read it once.
            let inp = names.first().map_or(self.m.hidden, |n| self.m.projection(n).1);
            w += self.elementwise(inp, 1.0);
        }
        w
    }

    /// Gradients of the same: of B and low from dy, of A and x from low's.
    fn adapter_back(&self, names: &[&str]) -> Work {
        let mut w = Work::default();
        for t in self.job.targets.iter().filter(|t| names.contains(&t.as_str())) {
            let (out, inp) = self.m.projection(t);
            let drops = if self.job.dropout { 4.0 } else { 0.0 };
            w += Work { bytes: self.bytes(out) * 2.0 + self.bytes(inp) * drops, launches: 2.0, ..Work::default() };
        }
        if w.launches > 0.0 {
            let inp = names.first().map_or(self.m.hidden, |n| self.m.projection(n).1);
            w += Work { launches: 1.0, ..self.elementwise(inp, 3.0) };
        }
        w
    }

    /// Weights of each part that a token meets.
    fn weights(&self, part: usize) -> f64 {
        self.b.gemm_parts[part] as f64
    }

    /// Keys that a query sees in the mean of a row of L: L / 2, and under a window of w fewer, w − w² / 2L.
    fn keys(&self) -> f64 {
        let length = self.job.length as f64;
        let w = self.b.window.map_or(length, |w| (w as f64).min(length));
        w - w * w / (2.0 * length.max(1.0))
    }

    fn attention_forward(&self) -> Work {
        let m = self.m;
        let mut w = self.product(self.weights(0));
        w.launches += 3.0;
        w += self.elementwise(m.hidden, 4.0);
        w += self.elementwise(m.q + m.kv, if m.qk_norm { 4.0 } else { 2.0 });
        let attention = 4.0 * self.keys() * m.q as f64 * self.tokens * self.attention_over[0];
        w += Work { attention, launches: 2.0, ..Work::default() };
        w += self.adapter(&["q_proj", "k_proj", "v_proj"]);
        w += self.adapter(&["o_proj"]);
        w
    }

    fn forward(&self) -> [Work; PARTS] {
        let wide = self.m.intermediate;
        let mut gate = self.product(self.weights(1));
        gate += self.adapter(&["gate_proj"]);
        let mut up = self.product(self.weights(2));
        up += self.adapter(&["up_proj"]);
        up += self.elementwise(wide, 3.0);
        let mut down = self.product(self.weights(3));
        down += self.adapter(&["down_proj"]);
        [self.attention_forward(), gate, up, down]
    }

    fn recompute(&self) -> [Work; PARTS] {
        let [attention, gate, _, _] = self.forward();
        let mut up = self.product(self.weights(2));
        up += self.adapter(&["up_proj"]);
        let mut down = self.product(self.weights(3));
        down += self.elementwise(self.m.intermediate, 5.0);
        down += self.adapter(&["down_proj"]);
        down += self.adapter_back(&["down_proj"]);
        [attention, gate, up, down]
    }

    fn back(&self) -> [Work; PARTS] {
        let m = self.m;
        let mut gate = self.product(self.weights(1));
        gate += self.adapter_back(&["gate_proj"]);
        let mut up = self.product(self.weights(2));
        up += self.adapter_back(&["up_proj"]);
        let mut attention = self.product(self.weights(0));
        attention.launches += 3.0;
        attention += self.elementwise(m.hidden, 8.0);
        attention += self.elementwise(m.q + m.kv, if m.qk_norm { 5.0 } else { 2.0 });
        let of = 10.0 * self.keys() * m.q as f64 * self.tokens * self.attention_over[1];
        attention += Work { attention_backward: of, launches: 4.0, ..Work::default() };
        attention += self.adapter_back(&ATTENTION[..3]);
        attention += self.adapter_back(&ATTENTION[3..]);
        [attention, gate, up, Work::default()]
    }
}

/// The cost of block `index`'s visits for one micro-batch.
pub(super) fn block(m: &Model, job: &Job, index: usize, pace: &Pace) -> VisitCost {
    let of = Block::of(m, job, index, pace);
    let k = &pace.kernels;
    let cost = |w: Work, factor: f64| Cost {
        device: pace.seconds(&w, job.length as f64) * factor,
        host: w.launches * k.launch,
    };
    VisitCost {
        forward: of.forward().map(|w| cost(w, k.forward)),
        recompute: of.recompute().map(|w| cost(w, k.backward)),
        back: of.back().map(|w| cost(w, k.backward)),
    }
}

/// The cost of every block's visits. Most blocks are like the one before.
pub(super) fn blocks(m: &Model, job: &Job, pace: &Pace) -> Vec<VisitCost> {
    let mut all: Vec<VisitCost> = Vec::with_capacity(m.blocks.len());
    for (i, b) in m.blocks.iter().enumerate() {
        let like = |o: &BlockShape| (o.gemm_parts, o.window) == (b.gemm_parts, b.window);
        let alike = i > 0 && i != job.lowest && like(&m.blocks[i - 1]);
        all.push(if alike { all[i - 1] } else { block(m, job, i, pace) });
    }
    all
}

/// What one micro-batch's forward and backward visits of a trained block of `checkpoint` cost, one block like the other.
///
/// # Errors
/// `config` names something the checkpoint doesn't have.
pub fn visits(checkpoint: &Checkpoint, config: &RunConfig, pace: &Pace) -> Result<[Cost; 2]> {
    let (m, job) = (Model::of(checkpoint, false), Job::of(config, checkpoint)?);
    let of = block(&m, &job, m.blocks.len() - 1, pace);
    let sum = |costs: &[Cost]| Cost {
        device: costs.iter().map(|c| c.device).sum(),
        host: costs.iter().map(|c| c.host).sum(),
    };
    let down: Vec<Cost> = of.recompute.into_iter().chain(of.back).collect();
    Ok([sum(&of.forward), sum(&down)])
}

/// The cost of head and loss for the whole step: logits, their softmax in place, the gradient of the states.
pub(super) fn head(m: &Model, job: &Job, pace: &Pace) -> Cost {
    let (tokens, elem) = (job.tokens() as f64, m.elem as f64);
    let chunks = (job.micro_tokens().div_ceil(job.chunk.max(1)) * job.micro) as f64;
    let w = Work {
        products: 4.0 * m.vocab as f64 * m.hidden as f64 * tokens,
        weights: chunks * 2.0 * (m.vocab * m.hidden) as f64 * elem,
        bytes: tokens * elem * (4.0 * m.vocab as f64 + 8.0 * m.hidden as f64),
        launches: 4.0 * chunks + 8.0 * job.micro as f64,
        ..Work::default()
    };
    Cost { device: pace.seconds(&w, 1.0), host: w.launches * pace.kernels.launch }
}

/// The cost of norm, clipping and AdamW over `adapter` f32 parameters, and of copying them to the compute type.
pub(super) fn update(adapter: f64, pace: &Pace) -> Cost {
    let w = Work { bytes: adapter * 44.0, launches: 8.0, ..Work::default() };
    Cost { device: pace.seconds(&w, 1.0), host: w.launches * pace.kernels.launch }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;
    use crate::plan::made::{LLAMA3_8B, checkpoint};

    #[test]
    fn case_fo_16a_a_window_bounds_what_attention_costs_block_by_block() {
        let mut c = checkpoint(LLAMA3_8B, Dtype::BF16);
        let mut config = RunConfig::default();
        config.data.max_length = 32_768;
        let pace = Pace::of(1e14, None);
        let attention = |c: &Checkpoint, block: usize| {
            let (m, job) = (Model::of(c, false), Job::of(&config, c).unwrap());
            let of = Block::of(&m, &job, block, &pace);
            (of.attention_forward().attention, of.back()[0].attention_backward)
        };
        let full = attention(&c, 0);
        for (window, share) in [(64, 64.0 / 16_384.0), (4096, 0.234_375), (32_768, 1.0), (1 << 40, 1.0)] {
            c.arch.windows = vec![Some(window); c.blocks.len()];
            let got = attention(&c, 0);
            assert!((got.0 / full.0 / share - 1.0).abs() < 2e-3, "{window}: {}", got.0 / full.0);
            assert!((got.1 / full.1 / share - 1.0).abs() < 2e-3, "{window}: {}", got.1 / full.1);
        }
        // Every other block has one.
        c.arch.windows = (0..c.blocks.len()).map(|b| (b % 2 == 0).then_some(64)).collect();
        let (m, job) = (Model::of(&c, false), Job::of(&config, &c).unwrap());
        let costs = blocks(&m, &job, &pace);
        assert!(costs[1].forward[0].device > 2.0 * costs[2].forward[0].device);
        assert_eq!(costs[2].forward[0].device, costs[4].forward[0].device);
    }

    #[test]
    fn case_fo_17c_attention_is_planned_by_the_kernel_that_the_rows_go_through() {
        let mut c = checkpoint(LLAMA3_8B, Dtype::BF16);
        let attention = |c: &Checkpoint, length: usize, deterministic: bool, capability| {
            let mut config = RunConfig::default();
            config.data.max_length = length;
            config.train.deterministic = deterministic;
            let pace = Pace { capability: Some(capability), ..Pace::of(1e14, None) };
            let (m, job) = (Model::of(c, false), Job::of(&config, c).unwrap());
            let of = Block::of(&m, &job, 0, &pace);
            of.attention_forward().attention / of.keys()
        };
        let [hopper, ada] = [(9, 0), (8, 9)];
        let over = |c: &Checkpoint, length, deterministic, card| {
            let (slow, fast) = (attention(c, length, deterministic, card), attention(c, length, false, (8, 9)));
            (slow / fast * 100.0).round() / 100.0
        };
        assert_eq!([over(&c, 8192, false, hopper), over(&c, 8192, true, hopper)], [1.0, 1.98]);
        c.arch.windows = vec![Some(4096); c.blocks.len()];
        // A window that cuts no row leaves it with the faster kernel.
        assert_eq!([over(&c, 4096, false, hopper), over(&c, 8192, false, hopper)], [1.0, 1.98]);
        assert_eq!([over(&c, 8192, false, ada), over(&c, 8192, true, ada)], [1.0, 1.0]);
    }
}
