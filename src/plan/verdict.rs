//! The verdict on LoRA: tiers, bytes, seconds, reasons, wear.

use super::cost::loads;
use super::fit::{Fit, fit, settled};
use super::memory::Terms;
use super::schedule::PARTS;
use super::shape::{Job, Model};
use super::types::{BlockPlace, ModePlan, TierBytes, Verdict, VramPlan};
use super::wear::{Writes, wear};
use super::{batch, candidates, command, fixes, time, words};
use crate::checkpoint::Checkpoint;
use crate::config::{DeviceChoice, Mode, RunConfig, TierChoice};
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
    // A fit for another device than the one asked for has nothing to say.
    if no_gpu(x).is_none() {
        problems.extend(fit.problems.iter().cloned());
    }
    problems.extend(no_space(x));
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
    let seconds = time::forecast(x.model, &x.job.timed(), x.machine, &fit);
    let infeasible = verdict == Verdict::Infeasible;
    let mut reasons = if infeasible { problems } else { lora_reasons(x, &fit) };
    reasons.extend(fit.notes.iter().cloned());
    reasons.extend(clipped(x, &fit));
    reasons.extend(x.checkpoint.plan_only.iter().map(|why| format!("this is a plan only: {why}")));
    let (fix, fix_command) = fixes::lora(x, verdict);
    let fix_command = fix_command.filter(|_| x.checkpoint.plan_only.is_none());
    let resident = fit.tiers.iter().filter(|t| **t == TierName::Vram).count();
    let candidates = candidates::lora(x, &fit);
    reasons.extend(batch::batch(x, &fit));
    ModePlan {
        verdict,
        trainable: x.checkpoint.plan_only.is_none(),
        reasons,
        nearest_fix: fix,
        fix_command,
        tiers: tier_bytes(x.model, &fit.tiers, fit.stream.head),
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
            command::command(x.config, &x.checkpoint.name, Mode::Lora)
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

/// What the results folder has to hold: the checkpoints kept, and the adapter.
fn result_terms(x: &Inputs<'_>) -> Terms {
    let w = writes(x);
    let t = &x.config.train;
    // A new checkpoint is whole before an old one goes; without a limit all stay.
    let most = (t.max_steps > 0 && t.save_steps > 0).then(|| t.max_steps / t.save_steps + 1);
    let kept = match (t.save_steps, t.save_total_limit as u64) {
        (0, _) => 1,
        (_, 0) => most.unwrap_or(1),
        (_, limit) => most.map_or(limit.saturating_add(1), |m| m.min(limit.saturating_add(1))),
    };
    Terms::from([("checkpoints", Bytes(w.save.0.saturating_mul(kept).min(1 << 56))), ("adapter", w.once)])
}

/// The same in bytes.
pub fn results_need(x: &Inputs<'_>) -> Bytes {
    super::memory::total(&result_terms(x))
}

/// Space on the results' drive, and for the download where it is the same.
fn space(x: &Inputs<'_>) -> VramPlan {
    let mut terms = result_terms(x);
    if x.checkpoint.not_here && x.machine.results_free.is_none() {
        terms.insert("download", x.checkpoint.total_bytes());
    }
    VramPlan::of(&terms, x.machine.results_free.unwrap_or(x.machine.disk.free))
}

/// Why what a run leaves finds no room, where it doesn't.
pub fn no_space(x: &Inputs<'_>) -> Option<String> {
    let space = space(x);
    let items: Vec<String> = space.terms.iter().map(|(n, b)| format!("{b} {}", words::term(n))).collect();
    let place = if x.machine.results_free.is_some() { " where results go" } else { "" };
    (no_room(x).is_none() && space.total > space.budget)
        .then(|| format!("needs {} of disk{place} ({}), {} is free", space.total, items.join(", "), space.budget))
}

/// Budgets that are not what the config says, and why.
fn clipped(x: &Inputs<'_>, fit: &Fit) -> Vec<String> {
    let s = &x.config.stream;
    let mut notes = Vec::new();
    let asked = Bytes(s.vram_budget.0);
    match &x.machine.gpu {
        _ if asked == Bytes::ZERO => {}
        None => notes.push(format!("stream.vram_budget = {asked} is not used: there is no GPU")),
        Some(_) if fit.vram.budget < asked => notes.push(format!(
            "stream.vram_budget = {asked} is more than there is: the plan uses at most {}",
            fit.vram.budget
        )),
        Some(_) => {}
    }
    let asked = Bytes(s.host_budget.0);
    if asked > fit.host_limit.bytes {
        notes.push(format!(
            "stream.host_budget = {asked} is more than there is: RAM may hold {} of weights ({})",
            fit.host_limit.bytes, fit.host_limit.source
        ));
    }
    notes
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
            "{} tensors are stored in a type that this version can't train; the first is '{}' ({})",
            odd.len(),
            crate::text::clean(&t.name),
            crate::text::clean(t.dtype.name())
        ));
    }
    problems.extend(no_room(x));
    problems.extend(no_gpu(x));
    problems
}

/// A GPU that is asked for and isn't there.
fn no_gpu(x: &Inputs<'_>) -> Option<String> {
    (x.config.train.device == DeviceChoice::Cuda && x.machine.gpu.is_none())
        .then(|| "train.device = cuda, but this machine has no usable GPU; doctor says why".into())
}

/// A download that the drive has no room for.
pub fn no_room(x: &Inputs<'_>) -> Option<String> {
    let (need, free) = (x.checkpoint.total_bytes(), x.machine.disk.free);
    (x.checkpoint.not_here && need > free)
        .then(|| format!("the download needs {need} of free space, the drive has {free}"))
}

fn lora_reasons(x: &Inputs<'_>, fit: &Fit) -> Vec<String> {
    let n = x.model.blocks.len();
    let count = |t: TierName| fit.tiers.iter().filter(|x| **x == t).count();
    let (v, r, d) = (count(TierName::Vram), count(TierName::Ram), count(TierName::Disk));
    let gpu = x.machine.gpu.is_some();
    let mut reasons = Vec::new();
    if d > 0 {
        let bytes = fit.tiers.iter().zip(&x.model.blocks).filter(|(t, _)| **t == TierName::Disk);
        let bytes: Bytes = bytes.map(|(_, b)| b.stored).sum();
        reasons.push(format!(
            "{d} of {n} layers ({bytes}) stay on disk and are read in each step; nothing is written back"
        ));
        if x.config.stream.tier == TierChoice::Disk {
            reasons.push("stream.tier = disk keeps layers out of RAM".into());
        } else {
            let why = match fit.host_limit.source.as_str() {
                "free" => "what is free, less a reserve",
                source => source,
            };
            reasons.push(format!("RAM may hold {} of weights: {why}", fit.host_limit.bytes));
        }
        if x.machine.disk.kind == "hdd" {
            reasons.push("the drive is a hard disk: every step waits for it".into());
        }
    } else {
        reasons.push("the whole model stays in memory: a step reads nothing from the disk".into());
    }
    let held = if gpu { "stay in VRAM" } else { "stay loaded" };
    match (v, r) {
        (0, 0) => {}
        (0, r) => reasons.push(format!("{r} of {n} layers stream from RAM each step")),
        (v, 0) => reasons.push(format!("{v} of {n} layers {held}")),
        (v, r) => reasons.push(format!("{v} of {n} layers {held}; {r} stream from RAM each step")),
    }
    let s = &fit.stream;
    if s.head.is_some() {
        reasons.push(format!("the output layer ({}) streams to the GPU each step", x.model.head_stored()));
    }
    if s.offload {
        reasons.push("layer inputs wait in RAM for the backward pass".into());
    }
    if s.split {
        reasons.push("a layer is larger than the memory left for it: it is loaded part by part".into());
    }
    if !gpu {
        reasons.push("no GPU: everything is computed on the CPU, in f32".into());
    }
    match x.job.lowest {
        0 => {}
        1 => reasons.push("layer 0 has no adapter: it only runs forward".into()),
        k => reasons.push(format!("layers 0 to {} have no adapter: they only run forward", k - 1)),
    }
    reasons
}

/// Bytes as stored per tier; head and norms count as device memory unless the head streams from elsewhere, an untied
/// embedding as host memory.
pub fn tier_bytes(m: &Model, tiers: &[TierName], head: Option<TierName>) -> TierBytes {
    let sum = |tier: TierName| -> Bytes {
        tiers.iter().zip(&m.blocks).filter(|(t, _)| **t == tier).map(|(_, b)| b.stored).sum()
    };
    let mut bytes =
        TierBytes { vram: sum(TierName::Vram) + m.final_norm, ram: sum(TierName::Ram), disk: sum(TierName::Disk) };
    let (head_bytes, embed) = if m.tied { (m.embed, Bytes::ZERO) } else { (m.head, m.embed) };
    match head.unwrap_or(TierName::Vram) {
        TierName::Vram => bytes.vram += head_bytes,
        // A tied head is the embedding, whose rows are gathered in host memory.
        TierName::Disk if !m.tied => bytes.disk += head_bytes,
        _ => bytes.ram += head_bytes,
    }
    bytes.ram += embed;
    bytes
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
