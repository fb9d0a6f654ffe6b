//! Seconds per step: a bound per sweep, and a range around it with stated margins.
//!
//! `max(disk_F, link_F, compute_F) + max(disk_B, link_B, compute_B + head)`: disk, link and compute are three queues
//! that overlap inside a sweep. The low end is that bound at the machine's rates; the high end lets each queue run
//! slower by its margin and adds a launch cost per visit.

use super::cost::Loads;
use super::shape::{Job, Model};
use super::types::{PerStep, SecondsRange};
use crate::device::Machine;
use crate::units::Bytes;

/// A drive's sustained rate against its rated one.
const DISK_MARGIN: f64 = 1.3;
/// Copies of a block's tensors one by one against one large copy.
const LINK_MARGIN: f64 = 1.15;
/// Eager kernels against GEMM rate: the best resident trainer measured stood at 1.5 to 2.5 times the floor.
const COMPUTE_MARGIN: f64 = 2.5;
/// Launching one visit's kernels.
const VISIT_SECONDS: f64 = 0.5e-3;
/// Bytes as stored that a CPU's copy thread turns into f32 per second.
const CPU_UPCAST: f64 = 4.0e9;

/// The margins in words, for the notes of a plan.
pub fn margins() -> String {
    format!(
        "seconds: low = bound at the machine's rates; high = disk x{DISK_MARGIN}, link x{LINK_MARGIN}, \
         compute x{COMPUTE_MARGIN}, {} ms a visit",
        VISIT_SECONDS * 1e3
    )
}

/// The forecast of one LoRA step.
pub fn forecast(m: &Model, job: &Job, machine: &Machine, loads: &Loads) -> SecondsRange {
    let (link, flops) = match &machine.gpu {
        Some(g) => (g.h2d, g.flops),
        None => (CPU_UPCAST, machine.cpu_flops),
    };
    let rate = |amount: f64, per_second: f64| {
        if amount == 0.0 { 0.0 } else { amount / per_second.max(1.0) }
    };
    let compute = work(m, job);
    let sweep = |moved: &PerStep, work: f64| Sweep {
        disk: rate(moved.disk_read.0 as f64, machine.disk.read),
        link: rate(moved.h2d.0 as f64, link),
        compute: rate(work, flops),
    };
    let mut sweeps = vec![sweep(&loads.forward, compute.forward)];
    let mut turn = 0.0;
    if loads.head.h2d > Bytes::ZERO {
        // The pieces of a streamed head pass through few slots: hardly a copy hides behind the product before it.
        let head = sweep(&loads.head, compute.head);
        turn = head.compute;
        sweeps.push(sweep(&loads.head, 0.0));
        sweeps.push(sweep(&loads.backward, compute.backward));
    } else {
        sweeps.push(sweep(&loads.backward, compute.backward + compute.head));
    }
    let low = sweeps.iter().map(|s| s.bound(1.0, 1.0, 1.0)).sum::<f64>() + turn;
    let visits = (2 * m.blocks.len() - job.lowest) as f64;
    let high = sweeps.iter().map(|s| s.bound(DISK_MARGIN, LINK_MARGIN, COMPUTE_MARGIN)).sum::<f64>()
        + turn * COMPUTE_MARGIN
        + visits * VISIT_SECONDS * job.micro as f64;
    SecondsRange { low, high, resource: resource(&sweeps, machine.gpu.is_none()).into() }
}

/// Seconds each queue is busy in one sweep.
struct Sweep {
    disk: f64,
    link: f64,
    compute: f64,
}

impl Sweep {
    fn bound(&self, disk: f64, link: f64, compute: f64) -> f64 {
        (self.disk * disk).max(self.link * link).max(self.compute * compute)
    }
}

/// The queue that sets the pace for the larger part of the step.
fn resource(sweeps: &[Sweep], on_cpu: bool) -> &'static str {
    let names = if on_cpu { ["disk", "cpu", "cpu"] } else { ["disk", "link", "compute"] };
    let mut paced: [(f64, &str); 3] = names.map(|n| (0.0, n));
    for s in sweeps {
        let busy = [s.disk, s.link, s.compute];
        let (i, t) = (0..3).map(|i| (i, busy[i])).fold((2, s.compute), |a, b| if b.1 > a.1 { b } else { a });
        paced[i].0 += t;
    }
    paced.iter().fold((-1.0, names[2]), |a, b| if b.0 > a.0 { *b } else { a }).1
}

/// FLOP of one step.
struct Work {
    forward: f64,
    backward: f64,
    head: f64,
}

/// 2 FLOP per weight and token forward; recompute and input gradient again in trained blocks (no weight gradient of a
/// frozen base); causal attention at half of the full square; adapters forward, recompute and two gradients.
fn work(m: &Model, job: &Job) -> Work {
    let tokens = job.tokens() as f64;
    let attention = 2.0 * job.length as f64 * m.q as f64 * tokens;
    let adapters = 2.0 * job.adapter_params(m) as f64 * tokens;
    let mut w = Work { forward: 0.0, backward: 0.0, head: 4.0 * m.vocab as f64 * m.hidden as f64 * tokens };
    for (index, b) in m.blocks.iter().enumerate() {
        let gemm = 2.0 * b.gemm as f64 * tokens;
        let trained = index >= job.lowest;
        w.forward += gemm + attention + if trained { adapters } else { 0.0 };
        if trained {
            w.backward += (gemm + attention + adapters) + gemm + 2.5 * attention + 2.0 * adapters;
        }
    }
    w
}

/// The forecast of one full-finetuning step: one drive shares reads and writes, compute overlaps (8 FLOP per weight
/// and token with recompute and weight gradients).
pub fn forecast_full(m: &Model, job: &Job, machine: &Machine, read: f64, written: f64) -> SecondsRange {
    let flops = machine.gpu.as_ref().map_or(machine.cpu_flops, |g| g.flops).max(1.0);
    let compute = 8.0 * m.params as f64 * job.tokens() as f64 / flops;
    let disk = read / machine.disk.read.max(1.0) + written / machine.disk.write.max(1.0);
    // Weights cross twice, state once each way; on disk the link is never the slower of the two.
    let link = machine.gpu.as_ref().map_or(0.0, |g| 28.0 * m.params as f64 / g.h2d.max(1.0));
    let s = [Sweep { disk, link, compute }];
    let resource = resource(&s, machine.gpu.is_none()).to_string();
    let high = s[0].bound(DISK_MARGIN, LINK_MARGIN, COMPUTE_MARGIN);
    SecondsRange { low: s[0].bound(1.0, 1.0, 1.0), high, resource }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;
    use crate::config::RunConfig;
    use crate::event::TierName;
    use crate::plan::cost::loads;
    use crate::plan::fit::Fit;
    use crate::plan::testing::{LLAMA3_8B, checkpoint};
    use crate::plan::types::StreamPlan;

    fn h200(length: usize, tier: TierName) -> SecondsRange {
        let machine = crate::device::profile::parse(include_str!("../../profiles/h200.toml"), "h200.toml").unwrap();
        let mut config = RunConfig::default();
        config.data.max_length = length;
        let c = checkpoint(LLAMA3_8B, Dtype::BF16);
        let (m, job) = (Model::of(&c, false), Job::of(&config, &c).unwrap());
        let ring = if tier == TierName::Vram { [0, 0] } else { [2, 6] };
        let stream = StreamPlan { ring, ..StreamPlan::default() };
        let fit = Fit { tiers: vec![tier; 32], stream, ..Fit::default() };
        forecast(&m, &job, &machine, &loads(&m, &job, &fit))
    }

    #[test]
    fn the_bound_agrees_with_the_measured_floors() {
        // 60 loads over a 55.4 GB/s link: 0.472 s.
        let link = h200(2048, TierName::Ram);
        assert!((link.low - 0.472).abs() < 0.003 && link.resource == "link", "{link:?}");
        // GEMM and attention floor of 32 layers at 2048 tokens: 0.129 s measured.
        let compute = h200(2048, TierName::Vram);
        assert!((0.11..0.16).contains(&compute.low) && compute.resource == "compute", "{compute:?}");
        // HF's resident step of 0.324 s lies inside the range.
        assert!(compute.high > 0.324, "{compute:?}");
        let disk = h200(2048, TierName::Disk);
        assert!((disk.low - 26.17 / 2.0).abs() < 0.1 && disk.resource == "disk", "{disk:?}");
    }
}
