//! The verdict on full finetuning: weights and Adam state in host memory, or streamed both ways on disk.
//!
//! State per parameter: fp32 moments (8 bytes) and a split fp32 master whose upper half is the bf16 weight (4 bytes).
//! A step reads the weight forward, weight and state backward, and writes the state back inside the same visit.

use super::memory::{self, Terms, Thrift};
use super::shape::Job;
use super::time;
use super::types::{ModePlan, PerStep, StreamPlan, Verdict, VramPlan};
use super::verdict::{Inputs, blockers, placement, tier_bytes};
use super::wear::{FULL_READ, FULL_WRITTEN, wear};
use crate::event::TierName;
use crate::units::{Bytes, GIB, count};

/// Bytes per parameter in host memory: the bf16 weight and 12 of state.
const IN_HOST: u64 = 14;
/// Bytes per parameter of a block in work on the device beside its slot: an fp32 gradient.
const GRADIENT: u64 = 4;

/// Plans full finetuning.
pub fn full(x: &Inputs<'_>) -> ModePlan {
    let m = x.model;
    let n = m.blocks.len();
    let job = Job { lowest: 0, targets: Vec::new(), ..x.job.clone() };
    let slots = x.config.stream.ring_slots().clamp(1, n.max(1));
    let tbw = if x.config.wear.tbw > 0.0 { Some(Bytes((x.config.wear.tbw * 1e12) as u64)) } else { x.machine.disk.tbw };
    let on_device = device(x, &job, slots);
    let gpu = x.machine.gpu.as_ref();
    let device_budget = gpu.map_or(Bytes::ZERO, |g| g.vram_free.saturating_sub(g.overhead));
    let available = x.machine.ram.available;
    let usable = available.saturating_sub(Bytes((available.0 / 8).min(GIB)));
    // On a CPU the device is host memory; an integrated GPU takes its part out of the same pool.
    let shared = if gpu.is_some_and(|g| g.integrated) { memory::total(&on_device) } else { Bytes::ZERO };
    let host_room = usable.saturating_sub(shared);
    let host_of = |in_host: bool| {
        let mut terms =
            Terms::from([("process".to_string(), memory::host_terms(m, &job, Thrift::default())["process"])]);
        if in_host {
            terms.insert("weights_and_state".into(), Bytes(m.params * IN_HOST));
        } else {
            let largest = m.blocks.iter().map(|b| b.gemm).max().unwrap_or(0);
            let buffers = (x.config.stream.prefetch_ahead + 1).min(n) as u64;
            terms.insert("ring".into(), Bytes(largest * FULL_READ * buffers));
        }
        if gpu.is_none() {
            terms.extend(on_device.clone());
        }
        terms
    };
    let fits_host = x.config.stream.tier != "disk" && memory::total(&host_of(true)) <= host_room;
    let host = host_of(fits_host);
    let written = if fits_host { Bytes::ZERO } else { Bytes(m.params * FULL_WRITTEN) };
    let wear = wear(written, tbw);

    let mut problems = blockers(x);
    let need = memory::total(&on_device);
    if gpu.is_some() && need > device_budget {
        problems.push(format!("the device needs {need} for slots with state and gradients, {device_budget} are free"));
    }
    if memory::total(&host) > host_room {
        problems.push(format!("host memory needs {} with state on disk, {host_room} are there", memory::total(&host)));
    }
    if !fits_host {
        problems.extend(disk_problems(x, wear.steps_to_tbw));
    }
    let verdict = match (problems.is_empty(), fits_host) {
        (false, _) => Verdict::Infeasible,
        (true, true) => Verdict::Ram,
        (true, false) => Verdict::FullFtDisk,
    };
    let mut reasons = problems;
    if reasons.is_empty() {
        reasons.extend(why(x, fits_host, written, wear.steps_to_tbw));
    }
    reasons.push("full finetuning is not in this version yet: this is its forecast".into());
    let tiers = vec![if fits_host { TierName::Ram } else { TierName::Disk }; n];
    let read = if fits_host { Bytes::ZERO } else { Bytes(m.params * FULL_READ) };
    let vram = if gpu.is_some() { on_device.clone() } else { Terms::new() };
    ModePlan {
        verdict,
        reasons,
        nearest_fix: (verdict == Verdict::Infeasible)
            .then(|| "use train.mode = lora: its base is never written".into()),
        tiers: tier_bytes(m, &tiers),
        per_step: PerStep {
            disk_read: read,
            h2d: Bytes(m.params * FULL_READ),
            d2h: Bytes(m.params * FULL_WRITTEN),
            written,
        },
        sweeps: Default::default(),
        seconds_per_step: time::forecast_full(m, &job, x.machine, read.0 as f64, written.0 as f64),
        vram: VramPlan { total: memory::total(&vram), budget: device_budget, terms: vram },
        host: VramPlan { total: memory::total(&host), budget: usable, terms: host },
        wear,
        placement: placement(m, &tiers),
        ring_slots: slots,
        residency: slots,
        stream: StreamPlan::default(),
        lowest_trainable: 0,
        candidates: Vec::new(),
        command: String::new(),
    }
}

/// Device terms: slots carry weight and state, the block in work its gradient; the head trains too.
fn device(x: &Inputs<'_>, job: &Job, slots: usize) -> Terms {
    let m = x.model;
    let largest = m.blocks.iter().map(|b| b.gemm).max().unwrap_or(0);
    let mut terms = memory::device_terms(m, job, x.machine.gpu.is_none(), Thrift::default());
    terms.remove("adapters");
    terms.insert("slots".into(), Bytes(largest * FULL_WRITTEN * slots as u64));
    terms.insert("gradients".into(), Bytes((largest + m.vocab * m.hidden) * GRADIENT));
    terms
}

/// Space and wear of state on disk.
fn disk_problems(x: &Inputs<'_>, steps: Option<u64>) -> Vec<String> {
    let mut problems = Vec::new();
    let (state, free) = (Bytes(x.model.params * FULL_WRITTEN), x.machine.disk.free);
    let download = if x.checkpoint.not_here { x.checkpoint.total_bytes() } else { Bytes::ZERO };
    if state + download > free {
        problems.push(format!("state on disk needs {} of free space, the drive has {free}", state + download));
    }
    let least = x.config.wear.min_steps;
    if let Some(steps) = steps
        && steps < least
    {
        problems.push(format!("the drive's rated endurance lasts {steps} steps, fewer than wear.min_steps = {least}"));
    }
    problems
}

fn why(x: &Inputs<'_>, fits_host: bool, written: Bytes, steps: Option<u64>) -> Vec<String> {
    let m = x.model;
    if fits_host {
        return vec![format!("weights and state of {} parameters fit host memory", count(m.params))];
    }
    let mut reasons = vec![match steps {
        Some(steps) => format!("{written} written a step: the drive's rated endurance lasts {steps} steps"),
        None => format!("{written} written a step; the drive's endurance is not known"),
    }];
    // The finished weights are a 16-bit copy beside state and base.
    let copy = Bytes(m.params * 2);
    let after = x.machine.disk.free.saturating_sub(Bytes(m.params * FULL_WRITTEN));
    if copy > after {
        reasons.push(format!("in-place export only: a 16-bit copy needs {copy}, {after} would be left"));
    }
    reasons
}
