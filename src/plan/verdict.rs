//! The verdict on LoRA: tiers, bytes, seconds, reasons, the nearest change that helps, and other formats.

use super::cost::{Loads, loads};
use super::fit::{Fit, fit, fit_like};
use super::schedule::PARTS;
use super::shape::{Job, Model};
use super::types::{BlockPlace, Candidate, ModePlan, TierBytes, Verdict, Wear};
use super::{command, time};
use crate::checkpoint::Checkpoint;
use crate::config::{ByteSize, RunConfig};
use crate::device::Machine;
use crate::event::TierName;
use crate::units::Bytes;

/// NF4 bytes a weight with double quantisation: 4 bits, an 8-bit scale per 64, an f32 per 256 scales.
pub const NF4: f64 = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0);
/// FP8 bytes a weight.
pub const FP8: f64 = 1.0;

/// Everything both modes plan from.
pub struct Inputs<'a> {
    /// The checkpoint.
    pub checkpoint: &'a Checkpoint,
    /// The machine, without its GPU where the config leaves it out.
    pub machine: &'a Machine,
    /// The config.
    pub config: &'a RunConfig,
    /// The checkpoint's numbers.
    pub model: &'a Model,
    /// The step's numbers.
    pub job: &'a Job,
}

/// Plans LoRA.
pub fn lora(x: &Inputs<'_>) -> ModePlan {
    let fit = fit(x.model, x.job, x.machine, x.config);
    let mut problems = blockers(x);
    problems.extend(fit.problems.iter().cloned());
    let verdict = verdict_of(&fit, &problems);
    let walk = loads(x.model, x.job, &fit);
    let seconds = time::forecast(x.model, x.job, x.machine, &fit);
    let infeasible = verdict == Verdict::Infeasible;
    let mut reasons = if infeasible { problems } else { lora_reasons(x, &fit, &walk) };
    reasons.extend(fit.notes.iter().cloned());
    let resident = fit.tiers.iter().filter(|t| **t == TierName::Vram).count();
    let candidates = [("fp8", FP8), ("nf4", NF4)].map(|(name, per)| candidate(x, &fit, name, per)).to_vec();
    ModePlan {
        verdict,
        reasons,
        nearest_fix: if infeasible { nearest_fix(x) } else { improvement(x, &fit) },
        tiers: tier_bytes(x.model, &fit.tiers),
        per_step: walk.per_step(),
        sweeps: walk.sweeps(),
        seconds_per_step: seconds,
        placement: placement(x.model, &fit.tiers),
        ring_slots: fit.slots,
        residency: resident + fit.stream.ring.iter().sum::<usize>().div_ceil(PARTS),
        stream: fit.stream,
        lowest_trainable: x.job.lowest,
        vram: fit.vram,
        host: fit.host,
        wear: Wear::default(),
        candidates,
        command: if infeasible { String::new() } else { command::command(x.config, &x.checkpoint.name, "lora") },
    }
}

fn verdict_of(fit: &Fit, problems: &[String]) -> Verdict {
    if !problems.is_empty() {
        Verdict::Infeasible
    } else if fit.tiers.contains(&TierName::Disk) {
        Verdict::LoraDisk
    } else {
        Verdict::Ram
    }
}

/// Reasons that no placement can cure.
pub fn blockers(x: &Inputs<'_>) -> Vec<String> {
    let c = x.checkpoint;
    let mut problems = Vec::new();
    let used =
        c.blocks.iter().flat_map(|b| b.tensors.iter().map(|t| t.tensor)).chain([c.embed, c.final_norm]).chain(c.head);
    let odd: Vec<usize> = used.filter(|t| !c.tensors[*t].dtype.is_trainable()).collect();
    if let Some(first) = odd.first() {
        let t = &c.tensors[*first];
        problems.push(format!(
            "{} tensors are stored in a type this version can't train on; the first is '{}' ({})",
            odd.len(),
            super::shape::clean(&t.name),
            super::shape::clean(t.dtype.name())
        ));
    }
    if c.not_here && c.total_bytes() > x.machine.disk.free {
        problems.push(format!(
            "the download needs {} of free space, the drive has {}",
            c.total_bytes(),
            x.machine.disk.free
        ));
    }
    if x.config.train.device == "cuda" && x.machine.gpu.is_none() {
        problems.push("train.device = cuda, but this machine has no usable GPU".into());
    }
    problems
}

fn lora_reasons(x: &Inputs<'_>, fit: &Fit, walk: &Loads) -> Vec<String> {
    let n = x.model.blocks.len();
    let count = |t: TierName| fit.tiers.iter().filter(|x| **x == t).count();
    let (v, r, d) = (count(TierName::Vram), count(TierName::Ram), count(TierName::Disk));
    let mut reasons = Vec::new();
    if d > 0 {
        let bytes = tier_bytes(x.model, &fit.tiers).disk;
        reasons.push(format!("{d} of {n} blocks ({bytes}) stay on disk and are read in place; nothing is written"));
        if x.config.stream.tier == "disk" {
            reasons.push("stream.tier = disk keeps blocks out of host memory".into());
        } else {
            reasons.push(format!("{} allows {} for weights", fit.host_limit.source, fit.host_limit.bytes));
        }
        if x.machine.disk.kind == "hdd" {
            reasons.push("the drive is a hard disk: every step waits for it".into());
        }
    } else {
        reasons.push("every block stays in memory: no byte of the base crosses the disk during a step".into());
    }
    let place = if x.machine.gpu.is_some() { "on the device" } else { "as f32 copies" };
    reasons.push(format!(
        "{v} blocks stay {place}, {r} wait in host memory, {d} on disk; {} ring slots, {} parts loaded a step",
        fit.slots, walk.count
    ));
    let s = &fit.stream;
    if s.head.is_some() {
        reasons.push("the head crosses the link once a step, in pieces: it has no place on the device".into());
    }
    if s.offload {
        reasons.push("block inputs wait for the backward pass in host memory".into());
    }
    if s.split {
        reasons.push("a block is larger than its slots: its parts are loaded for each use".into());
    }
    if x.machine.gpu.is_none() {
        reasons.push("no GPU: blocks are computed in f32 on the processor".into());
    }
    if x.job.lowest > 0 {
        reasons.push(format!("blocks 0 to {} run forward only: one visit a step", x.job.lowest - 1));
    }
    reasons
}

/// Bytes as stored per tier; head and norms count as device memory, an untied embedding as host memory.
pub fn tier_bytes(m: &Model, tiers: &[TierName]) -> TierBytes {
    let sum = |tier: TierName| -> Bytes {
        tiers.iter().zip(&m.blocks).filter(|(t, _)| **t == tier).map(|(_, b)| b.stored).sum()
    };
    let (head, embed) = if m.tied { (m.embed, Bytes::ZERO) } else { (m.head, m.embed) };
    TierBytes {
        vram: sum(TierName::Vram) + head + m.final_norm,
        ram: sum(TierName::Ram) + embed,
        disk: sum(TierName::Disk),
    }
}

/// Tier of each block, for the report.
pub fn placement(m: &Model, tiers: &[TierName]) -> Vec<BlockPlace> {
    let one = |(block, (tier, shape)): (usize, (&TierName, &super::shape::BlockShape))| BlockPlace {
        block,
        tier: *tier,
        bytes: shape.stored,
    };
    tiers.iter().zip(&m.blocks).enumerate().map(one).collect()
}

/// The first single change, then the first combination, that makes the plan feasible.
fn nearest_fix(x: &Inputs<'_>) -> Option<String> {
    if !blockers(x).is_empty() {
        let c = x.checkpoint;
        let short = c.total_bytes().saturating_sub(x.machine.disk.free);
        return (c.not_here && short > Bytes::ZERO).then(|| format!("free {short} on the drive"));
    }
    for changes in edits(x.config) {
        let mut config = x.config.clone();
        changes.iter().for_each(|c| (c.apply)(&mut config));
        let Ok(job) = Job::of(&config, x.checkpoint) else {
            continue;
        };
        if fit(x.model, &job, x.machine, &config).problems.is_empty() {
            let words: Vec<&str> = changes.iter().map(|c| c.text.as_str()).collect();
            return Some(format!("set {}", words.join(" and ")));
        }
    }
    // Nothing in the config helps: say how much memory would.
    let bigger = |scale: u64| {
        let mut machine = x.machine.clone();
        machine.ram.available = machine.ram.available * scale;
        machine.ram.total = machine.ram.total * scale;
        machine.ram.pinnable = machine.ram.pinnable * scale;
        if let Some(g) = &mut machine.gpu {
            g.vram_free = g.vram_free * scale;
            g.vram_total = g.vram_total * scale;
        }
        fit(x.model, x.job, &machine, x.config).problems.is_empty()
    };
    [2, 4, 8, 16].into_iter().find(|s| bigger(*s)).map(|s| format!("a machine with {s} times the memory would do"))
}

/// One change to a config.
struct Edit {
    text: String,
    apply: Box<dyn Fn(&mut RunConfig)>,
}

/// Changes to try, mildest first, alone and then together.
fn edits(config: &RunConfig) -> Vec<Vec<Edit>> {
    let edit =
        |key: &str, to: String, apply: Box<dyn Fn(&mut RunConfig)>| Edit { text: format!("{key} = {to}"), apply };
    let (batch, length) = (config.train.per_device_train_batch_size, config.data.max_length);
    let chunk = |to: usize| edit("stream.loss_chunk", to.to_string(), Box::new(move |c| c.stream.loss_chunk = to));
    let rows =
        || edit("train.per_device_train_batch_size", "1".into(), Box::new(|c| c.train.per_device_train_batch_size = 1));
    let shorter = |to: usize| edit("data.max_length", to.to_string(), Box::new(move |c| c.data.max_length = to));
    let ring =
        || edit("stream.prefetch_ahead", "0".into(), Box::new(|c| (c.stream.prefetch_ahead, c.stream.slots) = (0, 0)));
    let micro =
        || edit("train.gradient_accumulation_steps", "1".into(), Box::new(|c| c.train.gradient_accumulation_steps = 1));
    let mut tries = Vec::new();
    if config.stream.tier == "ram" {
        tries.push(vec![edit("stream.tier", "auto".into(), Box::new(|c| c.stream.tier = "auto".into()))]);
    }
    if config.stream.host_budget.0 > 0 {
        tries.push(vec![edit(
            "stream.host_budget",
            "0 (what is free)".into(),
            Box::new(|c| c.stream.host_budget = ByteSize(0)),
        )]);
    }
    if config.stream.vram_budget.0 > 0 {
        tries.push(vec![edit(
            "stream.vram_budget",
            "0 (what is free)".into(),
            Box::new(|c| c.stream.vram_budget = ByteSize(0)),
        )]);
    }
    if config.stream.loss_chunk > 128 {
        tries.push(vec![chunk(128)]);
    }
    if batch > 1 {
        tries.push(vec![rows()]);
    }
    let lengths: Vec<usize> = [2, 4, 8, 16].into_iter().map(|d| length / d).filter(|l| *l >= 64).collect();
    tries.extend(lengths.iter().map(|l| vec![shorter(*l)]));
    if config.train.gradient_accumulation_steps > 1 {
        tries.push(vec![micro()]);
    }
    if config.stream.prefetch_ahead > 0 || config.stream.slots > 1 {
        tries.push(vec![ring()]);
    }
    for l in lengths.iter().copied().chain([length]) {
        tries.push(vec![rows(), shorter(l), chunk(128.min(config.stream.loss_chunk)), ring()]);
    }
    tries
}

/// What would keep every block in memory, where some stay on disk.
fn improvement(x: &Inputs<'_>, fit: &Fit) -> Option<String> {
    let missing: Bytes =
        fit.tiers.iter().zip(&x.model.blocks).filter(|(t, _)| **t == TierName::Disk).map(|(_, b)| b.host).sum();
    if missing == Bytes::ZERO {
        return None;
    }
    if x.config.stream.tier == "disk" {
        return Some("set stream.tier = auto to keep blocks in host memory".into());
    }
    let ring = fit.host.terms.get("ring").copied().unwrap_or(Bytes::ZERO);
    let used = fit.host.terms.get("ram_tier").copied().unwrap_or(Bytes::ZERO);
    let slack = fit.host_limit.bytes.saturating_sub(ring + used);
    let more = missing.saturating_sub(ring + slack);
    Some(format!("{more} more host memory for weights ({}) would keep every block in memory", fit.host_limit.source))
}

/// The same plan with the blocks packed in another format.
fn candidate(x: &Inputs<'_>, like: &Fit, format: &str, per_weight: f64) -> Candidate {
    let m = x.model.packed(per_weight);
    let bytes = m.block_bytes() + m.embed + m.head + m.final_norm;
    let fit = fit_like(like, &m, x.job, x.machine, x.config);
    let mut problems = fit.problems.clone();
    if m.block_bytes() > x.machine.disk.free {
        problems.push(format!(
            "packing needs {} of free space, the drive has {}",
            m.block_bytes(),
            x.machine.disk.free
        ));
    }
    let later = "not trainable in this version yet";
    Candidate {
        format: format.into(),
        verdict: verdict_of(&fit, &problems),
        bytes,
        seconds_per_step: time::forecast(&m, x.job, x.machine, &fit).low,
        note: match problems.first() {
            Some(p) => format!("{p}; {later}"),
            None => format!("{later}; packing would write {} once", m.block_bytes()),
        },
    }
}
