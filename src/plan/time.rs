//! Seconds per step as a range: the step played through at the machine's fastest and at its slowest rates.
//!
//! Calibrated rates bring their own spread; for assumed ones the margins here stand in. Earlier runs on the machine
//! shift the range by what they took over their forecasts.

use super::cost::{Layout, offloaded};
use super::fit::Fit;
use super::schedule::PARTS;
use super::shape::{Job, Model};
use super::simulate::{self, Rates, Scene, Step};
use super::types::SecondsRange;
use super::work::{self, Cost, Pace};
use crate::device::Machine;
use crate::event::TierName;

/// A drive's sustained rate against its rated one.
const DISK_MARGIN: f64 = 1.3;
/// Copies of a block's tensors one by one against the rated link.
const LINK_MARGIN: f64 = 1.15;
/// Kernels against rates derived from an assumed GEMM rate.
const COMPUTE_MARGIN: f64 = 2.0;
/// Compute against calibrated rates: a calibration's bursts run at clocks that whole steps don't keep, the less the longer
/// they are, and shapes differ from the calibrated one (H200, five shapes, 17 jobs bound by compute: 1.04 to 1.22).
const COMPUTE_SPREAD: [f64; 2] = [1.02, 1.24];
/// Copies tensor by tensor against the calibrated link's fastest and slowest large copies.
const LINK_SPREAD: [f64; 2] = [1.0, 1.07];
/// A run's reads against the calibration's, whose queue never waits for a copy (H200, three calls: 0.87 to 1.02).
const DISK_SHARE: f64 = 0.92;
/// Host seconds between two steps with the device idle: the loss is read, the norm checked, rows are chosen (H200: 0.8
/// to 1.1 ms of a step are no visit's).
const BORDER: [f64; 2] = [0.4e-3, 1.1e-3];
/// Bytes as stored that a CPU's copy thread turns into f32 per second.
const CPU_UPCAST: f64 = 4.0e9;
/// Earlier runs needed before they shift a forecast, and how far they may.
const PAST: (usize, [f64; 2]) = (2, [0.5, 2.0]);

/// The margins in words, for the notes of a plan.
pub fn margins(machine: &Machine) -> String {
    let gpu = machine.gpu.as_ref();
    let mut wide = Vec::new();
    if machine.disk.read_spread.is_none() {
        wide.push(format!("the disk may be up to {:.0} % slower", (DISK_MARGIN - 1.0) * 100.0));
    }
    if gpu.is_some_and(|g| g.h2d_spread.is_none()) {
        wide.push(format!("RAM→GPU copies up to {:.0} %", (LINK_MARGIN - 1.0) * 100.0));
    }
    if gpu.is_none_or(|g| g.kernels.is_none()) {
        wide.push(format!("computing up to {COMPUTE_MARGIN}×"));
    }
    if wide.is_empty() {
        return "the range of seconds is what this machine's speeds varied by when they were measured".into();
    }
    format!(
        "the seconds are a range, since speeds were guessed: {}; run `bench calibrate` to narrow it",
        wide.join(", ")
    )
}

/// Fastest and slowest rates of `machine`.
fn rates(machine: &Machine) -> [Rates; 2] {
    let disk = machine
        .disk
        .read_spread
        .map_or([machine.disk.read, machine.disk.read / DISK_MARGIN], |[lo, hi]| [hi * DISK_SHARE, lo * DISK_SHARE]);
    let (link, known) = match &machine.gpu {
        Some(g) => (
            g.h2d_spread.map_or([g.h2d, g.h2d / LINK_MARGIN], |[lo, hi]| [hi / LINK_SPREAD[0], lo / LINK_SPREAD[1]]),
            g.kernels.is_some(),
        ),
        None => ([CPU_UPCAST, CPU_UPCAST / LINK_MARGIN], false),
    };
    let compute = if known { COMPUTE_SPREAD } else { [1.0, COMPUTE_MARGIN] };
    [0, 1].map(|i| Rates { disk: disk[i].max(1.0), link: link[i].max(1.0), compute: compute[i], border: BORDER[i] })
}

fn pace(machine: &Machine) -> Pace {
    machine.gpu.as_ref().map_or_else(
        || Pace::cpu(machine.cpu_flops),
        |g| Pace { capability: g.capability, ..Pace::of(g.flops, g.kernels) },
    )
}

/// Seconds of one LoRA step of `fit` at `machine`'s fastest rates: for comparing fits.
pub fn least(m: &Model, job: &Job, machine: &Machine, fit: &Fit) -> f64 {
    finite(play(m, job, machine, fit, [rates(machine)[0]])[0].seconds)
}

/// Absurd machines and jobs are slow, not incomparable.
fn finite(seconds: f64) -> f64 {
    if seconds.is_finite() { seconds } else { f64::MAX }
}

/// No LoRA step of `fit` takes less at `machine`'s fastest rates.
///
/// What a sweep takes has to be computed in it, and loaded in it but for what the ring holds at its start; reads may be
/// ahead by the host ring, but over a whole step that evens out.
pub fn bound(m: &Model, job: &Job, machine: &Machine, fit: &Fit) -> f64 {
    let (rates, pace) = (rates(machine)[0], pace(machine));
    let most = |part: usize| m.blocks.iter().map(|b| b.parts[part].0).max().unwrap_or(0);
    let piece = m.head_stored().0.div_ceil(m.vocab.div_ceil(m.head_rows().max(1)).max(1));
    let widest = (1..PARTS).map(most).fold(if fit.stream.head.is_some() { piece } else { 0 }, u64::max);
    let large = m.slot_sizes.large_slots(fit.stream.ring);
    let slots = [0, 1].map(|class| (fit.stream.ring[class] + large[class]) as f64);
    let held = slots[0] * most(0) as f64 + slots[1] * widest as f64;
    let ahead = fit.stream.host_ring.0 as f64 / rates.disk;
    let micro = job.micro.max(1) as f64;
    // Seconds of compute, reads and copies on the way up and down.
    let mut sweeps = [[0.0; 3]; 2];
    for (i, visit) in work::blocks(m, job, &pace).iter().enumerate() {
        let device = |costs: &[Cost]| costs.iter().map(|c| c.device).sum::<f64>() * micro * rates.compute;
        let bytes = m.blocks[i].stored.0 as f64;
        let read = if fit.tiers[i] == TierName::Disk { bytes / rates.disk } else { 0.0 };
        let copied = if fit.tiers[i] == TierName::Vram { 0.0 } else { bytes / rates.link };
        let mut add = |sweep: usize, compute: f64| {
            [compute, read, copied].iter().zip(&mut sweeps[sweep]).for_each(|(s, sum)| *sum += s);
        };
        add(0, device(&visit.forward));
        if i >= job.lowest {
            add(1, device(&visit.recompute) + device(&visit.back));
        }
    }
    let head = work::head(m, job, &pace).device * rates.compute;
    let sweeps = sweeps.map(|[compute, read, copied]| [compute, read - held / rates.disk, copied - held / rates.link]);
    let alone: f64 = sweeps.iter().map(|[compute, read, copied]| compute.max(read - ahead).max(*copied)).sum();
    let [read, copied] = [1, 2].map(|queue| sweeps[0][queue].max(0.0) + sweeps[1][queue].max(0.0));
    finite((alone + head).max(read).max(copied))
}

/// Plays one LoRA step of `fit` at each of `rates`.
fn play<const N: usize>(m: &Model, job: &Job, machine: &Machine, fit: &Fit, rates: [Rates; N]) -> [Step; N] {
    let layout = Layout::of(m, job, fit);
    let pace = pace(machine);
    let bytes: Vec<f64> = layout.bytes.iter().map(|b| b.0 as f64).collect();
    let blocks = work::blocks(m, job, &pace);
    let trained = (m.blocks.len() - job.lowest) as f64;
    let scene = Scene {
        n_blocks: m.blocks.len(),
        lowest: job.lowest,
        slots: &layout.slots,
        habit: layout.habit,
        pieces: layout.pieces,
        bytes: &bytes,
        copies: &layout.copies,
        tiers: &layout.tiers,
        ring: fit.stream.host_ring.0 as f64,
        blocks: &blocks,
        head: work::head(m, job, &pace),
        update: work::update(job.adapter_params(m) as f64 * trained, &pace),
        offload: offloaded(m, job, fit).0 as f64,
    };
    rates.map(|r| simulate::step(&scene, r))
}

/// The forecast of one LoRA step.
pub fn forecast(m: &Model, job: &Job, machine: &Machine, fit: &Fit) -> SecondsRange {
    let [fast, slow] = play(m, job, machine, fit, rates(machine));
    let resource = resource(&slow, machine.gpu.is_none());
    let past = machine.past.get(resource).filter(|p| p.runs >= PAST.0);
    let correction = past.map_or(1.0, |p| p.ratio.clamp(PAST.1[0], PAST.1[1]));
    SecondsRange {
        low: fast.seconds * correction,
        high: slow.seconds * correction,
        resource: resource.into(),
        correction,
    }
}

/// The queue that is busy for longest.
fn resource(step: &Step, on_cpu: bool) -> &'static str {
    let names = if on_cpu { ["disk", "cpu", "cpu"] } else { ["disk", "link", "compute"] };
    let busy = [step.disk, step.link, step.compute.max(step.host)];
    names[(0..3).fold(2, |best, i| if busy[i] > busy[best] { i } else { best })]
}

/// The forecast of one full-finetuning step: one drive shares reads and writes, compute overlaps (8 FLOP per weight
/// and token with recompute and weight gradients).
pub fn forecast_full(m: &Model, job: &Job, machine: &Machine, read: f64, written: f64) -> SecondsRange {
    let flops = machine.gpu.as_ref().map_or(machine.cpu_flops, |g| g.flops).max(1.0);
    let compute = 8.0 * m.params as f64 * job.tokens() as f64 / flops;
    let disk = read / machine.disk.read.max(1.0) + written / machine.disk.write.max(1.0);
    // Weights cross twice, state once each way; on disk the link is never the slower of the two.
    let link = machine.gpu.as_ref().map_or(0.0, |g| 28.0 * m.params as f64 / g.h2d.max(1.0));
    let bound = |disk: f64, link: f64, compute: f64| disk.max(link).max(compute);
    let step = Step { disk, link, compute, ..Step::default() };
    SecondsRange {
        low: bound(disk, link, compute),
        high: bound(disk * DISK_MARGIN, link * LINK_MARGIN, compute * COMPUTE_MARGIN),
        resource: resource(&step, machine.gpu.is_none()).into(),
        correction: 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;
    use crate::config::RunConfig;
    use crate::device::Kernels;
    use crate::plan::made::{LLAMA3_8B, Shape, checkpoint};
    use crate::plan::types::StreamPlan;

    fn h200(length: usize, tier: TierName) -> SecondsRange {
        let mut machine = crate::device::profile::parse(include_str!("../../profiles/h200.toml"), "h200.toml").unwrap();
        // Only products and attention take time: what the floors below were measured for.
        let gpu = machine.gpu.as_mut().unwrap();
        gpu.kernels = Some(Kernels {
            attention: [gpu.flops / 2.0, 0.0],
            attention_backward: [gpu.flops / 2.0, 0.0],
            ..Kernels::NONE
        });
        let mut config = RunConfig::default();
        config.data.max_length = length;
        let c = checkpoint(LLAMA3_8B, Dtype::BF16);
        let (m, job) = (Model::of(&c, false), Job::of(&config, &c).unwrap());
        let ring = if tier == TierName::Vram { [0, 0] } else { [2, 6] };
        let stream = StreamPlan { ring, ..StreamPlan::default() };
        let fit = Fit { tiers: vec![tier; 32], stream, ..Fit::default() };
        forecast(&m, &job, &machine, &fit)
    }

    #[test]
    fn the_bound_agrees_with_the_measured_floors() {
        // 60 loads over a 55.4 GB/s link: 0.472 s, and both turns; 0.486 s measured.
        let link = h200(2048, TierName::Ram);
        assert!((0.472..0.490).contains(&link.low) && link.resource == "link", "{link:?}");
        // GEMM and attention floor of 32 layers at 2048 tokens: 0.129 s measured.
        let compute = h200(2048, TierName::Vram);
        assert!((0.11..0.16).contains(&compute.low) && compute.resource == "compute", "{compute:?}");
        let disk = h200(2048, TierName::Disk);
        assert!((disk.low - 26.17 / 2.0).abs() < 0.2 && disk.resource == "disk", "{disk:?}");
    }

    #[test]
    fn case_fo_16c_long_steps_of_calibrated_cards_end_inside_their_range() {
        let mut machine = crate::device::profile::parse(include_str!("../../profiles/h200.toml"), "h200.toml").unwrap();
        let rate = [400e12, 300.0];
        let kernels = Kernels { attention: rate, attention_backward: rate, memory: 4e12, ..Kernels::NONE };
        machine.gpu.as_mut().unwrap().kernels = Some(kernels);
        // Qwen3-1.7B's shape, 16 micro-batches of 512.
        let shape = Shape { hidden: 2048, intermediate: 6144, heads: 16, layers: 28, vocab: 151_936, ..LLAMA3_8B };
        let mut config = RunConfig::default();
        config.data.max_length = 512;
        config.train.gradient_accumulation_steps = 16;
        let c = checkpoint(shape, Dtype::BF16);
        let (m, job) = (Model::of(&c, false), Job::of(&config, &c).unwrap());
        let fit = Fit { tiers: vec![TierName::Vram; 28], ..Fit::default() };
        let said = forecast(&m, &job, &machine, &fit);
        let rates = Rates { disk: 1e9, link: 1e9, compute: 1.0, border: 0.0 };
        let [least] = play(&m, &job, &machine, &fit, [rates]);
        // Seconds measured on an H200 over those at its rates; the last one is this job, 356 ms where they say 294.
        for ratio in [1.044, 1.061, 1.084, 1.104, 1.120, 1.148, 1.158, 1.184, 1.211] {
            let measured = least.seconds * ratio;
            assert!((said.low..said.high).contains(&measured), "{ratio}: {measured} of {said:?}");
        }
        assert!(said.high / said.low < 1.24, "{said:?}");
    }
}
