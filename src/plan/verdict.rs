//! The verdict on LoRA: tiers, bytes, seconds, reasons, wear.

use super::cost::{Loads, loads};
use super::fit::{Fit, fit, settled};
use super::memory::Terms;
use super::schedule::PARTS;
use super::shape::{Job, Model};
use super::types::{BlockPlace, ModePlan, TierBytes, Verdict, VramPlan};
use super::wear::{Writes, wear};
use super::{batch, candidates, command, fixes, time};
use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::device::Machine;
use crate::event::TierName;
use crate::units::Bytes;

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

/// A fit, what speaks against it, and the verdict that follows.
pub struct Judged {
    /// What fits where.
    pub fit: Fit,
    /// Why it can't be done, most important first; empty when it can.
    pub problems: Vec<String>,
    /// The verdict.
    pub verdict: Verdict,
}

/// Judges LoRA by the best fit.
pub fn judge(x: &Inputs<'_>) -> Judged {
    judge_fit(x, fit(x.model, x.job, x.machine, x.config))
}

/// Judges LoRA by a fit that nothing was refined of: the same verdict, sooner.
pub fn judge_soon(x: &Inputs<'_>) -> Judged {
    judge_fit(x, settled(x.model, x.job, x.machine, x.config))
}

/// Judges LoRA by `fit`.
pub fn judge_fit(x: &Inputs<'_>, fit: Fit) -> Judged {
    let mut problems = blockers(x);
    problems.extend(fit.problems.iter().cloned());
    let on_disk = fit.tiers.contains(&TierName::Disk);
    if problems.is_empty() && on_disk {
        problems.extend(x.machine.disk.refuses_streaming(x.config.stream.allow_hdd));
    }
    let verdict = match (problems.is_empty(), on_disk) {
        (false, _) => Verdict::Infeasible,
        (true, true) => Verdict::LoraDisk,
        (true, false) => Verdict::Ram,
    };
    Judged { fit, problems, verdict }
}

/// Plans LoRA.
pub fn lora(x: &Inputs<'_>) -> ModePlan {
    let Judged { fit, problems, verdict } = judge(x);
    let walk = loads(x.model, x.job, &fit);
    let seconds = time::forecast(x.model, x.job, x.machine, &fit);
    let infeasible = verdict == Verdict::Infeasible;
    let mut reasons = if infeasible { problems } else { lora_reasons(x, &fit, &walk) };
    reasons.extend(fit.notes.iter().cloned());
    reasons.extend(x.checkpoint.plan_only.iter().map(|why| format!("a plan only: {why}")));
    let (fix, fix_command) = fixes::lora(x, verdict);
    let fix_command = fix_command.filter(|_| x.checkpoint.plan_only.is_none());
    let resident = fit.tiers.iter().filter(|t| **t == TierName::Vram).count();
    let candidates = candidates::lora(x, &fit);
    reasons.extend(batch::batch(x, &fit));
    ModePlan {
        verdict,
        reasons,
        nearest_fix: fix,
        fix_command,
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
        space: space(x),
        wear: wear(writes(x), &x.machine.disk, x.config),
        candidates,
        command: if infeasible || x.checkpoint.plan_only.is_some() {
            String::new()
        } else {
            command::command(x.config, &x.checkpoint.name, "lora")
        },
    }
}

/// What a LoRA run writes: no byte in a step; adapter and moments in a checkpoint; the adapter at the end.
pub fn writes(x: &Inputs<'_>) -> Writes {
    let trained = (x.model.blocks.len() - x.job.lowest) as u64;
    let params = x.job.adapter_params(x.model).saturating_mul(trained);
    // f32 each: the adapter, and two moments beside it.
    let of = |n: u64| Bytes(params.saturating_mul(4 * n).min(1 << 56));
    Writes { step: Bytes::ZERO, save: of(3), once: of(1) }
}

/// Space on the drive: the download, the checkpoints kept, the adapter.
fn space(x: &Inputs<'_>) -> VramPlan {
    let w = writes(x);
    let t = &x.config.train;
    // A new checkpoint is whole before an old one goes; without a limit all stay.
    let most = (t.max_steps > 0 && t.save_steps > 0).then(|| t.max_steps / t.save_steps + 1);
    let kept = match (t.save_steps, t.save_total_limit as u64) {
        (0, _) => 1,
        (_, 0) => most.unwrap_or(1),
        (_, limit) => most.map_or(limit.saturating_add(1), |m| m.min(limit.saturating_add(1))),
    };
    let mut terms = Terms::new();
    if x.checkpoint.not_here {
        terms.insert("download", x.checkpoint.total_bytes());
    }
    terms.insert("checkpoints", Bytes(w.save.0.saturating_mul(kept).min(1 << 56)));
    terms.insert("adapter", w.once);
    VramPlan::of(&terms, x.machine.disk.free)
}

/// Reasons that no placement can cure.
pub fn blockers(x: &Inputs<'_>) -> Vec<String> {
    let c = x.checkpoint;
    let mut problems = Vec::new();
    let used =
        c.blocks.iter().flat_map(|b| b.tensors.iter().map(|t| t.tensor)).chain([c.embed, c.final_norm]).chain(c.head);
    let odd: Vec<usize> = used.filter(|t| !c.tensors[*t].dtype.is_trainable()).collect();
    // A family that can only be planned is judged by its sizes, packed or not.
    if let Some(first) = odd.first().filter(|_| c.plan_only.is_none()) {
        let t = &c.tensors[*first];
        problems.push(format!(
            "{} tensors are stored in a type this version can't train on; the first is '{}' ({})",
            odd.len(),
            super::shape::clean(&t.name),
            super::shape::clean(t.dtype.name())
        ));
    }
    problems.extend(no_room(x));
    if x.config.train.device == "cuda" && x.machine.gpu.is_none() {
        problems.push("train.device = cuda, but this machine has no usable GPU".into());
    }
    problems
}

/// A download that the drive has no room for.
pub fn no_room(x: &Inputs<'_>) -> Option<String> {
    let (need, free) = (x.checkpoint.total_bytes(), x.machine.disk.free);
    (x.checkpoint.not_here && need > free)
        .then(|| format!("the download needs {need} of free space, the drive has {free}"))
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
