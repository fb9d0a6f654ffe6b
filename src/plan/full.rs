//! The plan of full finetuning: weights and Adam state in host memory, or streamed both ways on disk.
//!
//! Per parameter: a split fp32 master whose upper half is the bf16 weight (4 bytes), and two moments of 4 bytes, or of 1
//! with fp32 scales per 256. A step reads the weight forward, weight and state backward, and writes the state back inside
//! the same visit, so that a block's gradient never leaves the device. On disk the new state goes to an alternate extent
//! and a flip at the step's end makes it valid: a crash loses a step, not the model. It doubles space, not traffic.

use super::memory::{self, Terms, Thrift};
use super::room::usable;
use super::shape::Job;
use super::types::{Candidate, ModePlan, PerStep, SecondsRange, StreamPlan, Verdict, VramPlan};
use super::verdict::{Inputs, blockers, placement, tier_bytes};
use super::wear::{self, Writes};
use super::{fixes, time, words};
use crate::config::{Offload, TARGETS, TierChoice};
use crate::event::TierName;
use crate::units::{Bytes, count};

/// How Adam's state is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Moments in fp32: 12 bytes a parameter with the master.
    Fp32,
    /// Moments in 8 bits with an fp32 scale each per 256: 6.03 bytes.
    EightBit,
}

/// Parameters that share a scale of an 8-bit moment.
const SCALED: u64 = 256;
/// Bytes per parameter of a gradient, fp32.
const GRADIENT: u64 = 4;
/// Extents that state on disk has.
const EXTENTS: u64 = 2;

impl State {
    /// Bytes of weight and state of `params` parameters: what a step writes.
    pub fn bytes(self, params: u64) -> Bytes {
        Bytes(match self {
            State::Fp32 => params.saturating_mul(12),
            State::EightBit => params.saturating_mul(6).saturating_add(params.div_ceil(SCALED) * 8),
        })
    }
}

/// All that is decided about one way to hold the state.
struct Draft {
    state: State,
    in_host: bool,
    slots: usize,
    split: bool,
    device: VramPlan,
    host: VramPlan,
    space: VramPlan,
    export: Bytes,
    writes: Writes,
    wear: super::types::Wear,
    problems: Vec<String>,
    job: Job,
}

/// The verdict alone, for searches.
pub fn verdict(x: &Inputs<'_>, state: State) -> Verdict {
    draft(x, state).verdict()
}

/// Plans full finetuning; `lora` is the other mode's verdict.
pub fn full(x: &Inputs<'_>, lora: Verdict) -> ModePlan {
    let m = x.model;
    let n = m.blocks.len();
    let d = draft(x, State::Fp32);
    let verdict = d.verdict();
    let eight_bit = eight_bit(x);
    let (nearest_fix, fix_command) = match verdict {
        Verdict::Infeasible => fixes::full(x, lora, eight_bit.verdict),
        _ => (None, None),
    };
    let tier = d.tier();
    let tiers = vec![tier; n];
    ModePlan {
        verdict,
        trainable: false,
        reasons: d.reasons(x),
        nearest_fix,
        fix_command,
        tiers: tier_bytes(m, &tiers, Some(tier)),
        per_step: d.per_step(x),
        sweeps: Default::default(),
        seconds_per_step: d.seconds(x),
        vram: d.device,
        host: d.host,
        space: d.space,
        wear: d.wear,
        placement: placement(m, &tiers),
        ring_slots: d.slots,
        residency: d.slots,
        stream: StreamPlan { split: d.split, ..StreamPlan::default() },
        lowest_trainable: 0,
        candidates: vec![eight_bit],
        command: String::new(),
    }
}

/// The same with 8-bit moments.
fn eight_bit(x: &Inputs<'_>) -> Candidate {
    let d = draft(x, State::EightBit);
    let (verdict, range, reasons) = (d.verdict(), d.seconds(x), d.reasons(x));
    let tier = d.tier();
    let tiers = vec![tier; x.model.blocks.len()];
    let later = "not in this version yet";
    Candidate {
        format: "8-bit moments".into(),
        verdict,
        bytes: State::EightBit.bytes(x.model.params),
        seconds_per_step: range.low,
        note: match d.problems.first() {
            Some(p) => format!("{p}; {later}"),
            None if d.in_host => later.into(),
            None => format!("each step writes {}; {later}", d.writes.step),
        },
        reasons,
        nearest_fix: None,
        tiers: tier_bytes(x.model, &tiers, Some(tier)),
        range,
        vram: d.device.total,
        wear: d.wear,
        packing: Bytes::ZERO,
        command: String::new(),
    }
}

/// The step's numbers with every block and every matrix trained, and no adapter.
pub fn job(x: &Inputs<'_>) -> Job {
    Job { lowest: 0, targets: TARGETS.map(String::from).to_vec(), r: 0, dropout: false, ..x.job.clone() }
}

/// Bytes of a weight as the forward pass reads it.
fn weight(x: &Inputs<'_>) -> u64 {
    x.model.weight
}

/// Parameters of a block: its matrices, and norms and biases as stored.
fn elements(x: &Inputs<'_>, b: &super::shape::BlockShape) -> u64 {
    b.weights + b.stored.saturating_sub(b.weight_bytes).0 / weight(x)
}

/// Parameters of the largest block and of the largest part of one (its share of the bytes).
#[derive(Clone, Copy)]
pub struct Largest {
    block: u64,
    part: u64,
}

impl Largest {
    /// Of the blocks of `x`.
    pub fn of(x: &Inputs<'_>) -> Largest {
        let part = |b: &super::shape::BlockShape| {
            let share = b.parts.iter().map(|p| p.0).max().unwrap_or(0) as f64 / b.stored.0.max(1) as f64;
            (elements(x, b) as f64 * share).ceil() as u64
        };
        let most = |of: &dyn Fn(&super::shape::BlockShape) -> u64| x.model.blocks.iter().map(of).max().unwrap_or(0);
        Largest { block: most(&|b| elements(x, b)), part: most(&part) }
    }
}

/// Slots on the device: so many whole blocks, or single parts.
#[derive(Clone, Copy)]
pub enum Ring {
    /// Whole blocks.
    Blocks(usize),
    /// A part in work and the next.
    Parts,
}

/// Device terms.
pub fn device(x: &Inputs<'_>, job: &Job, state: State, largest: Largest, ring: Ring, thrift: Thrift) -> Terms {
    let m = x.model;
    let mut terms = memory::device_terms(m, job, x.machine.gpu.is_none(), thrift);
    terms.remove("adapters");
    let (slots, gradient) = match ring {
        Ring::Blocks(n) => (state.bytes(largest.block) * n as u64, largest.block),
        Ring::Parts => (state.bytes(largest.part) * 2, largest.part),
    };
    terms.insert("slots", slots);
    terms.insert("block_gradients", Bytes(gradient.saturating_mul(GRADIENT)));
    // Head and embedding train too: by pieces of rows with their state and gradient, and by the rows of the batch.
    let piece = m.head_rows().min(m.vocab).saturating_mul(m.hidden);
    terms.insert("head", Bytes(state.bytes(piece).0.saturating_add(piece.saturating_mul(GRADIENT))));
    let rows = job.tokens().min(m.vocab).saturating_mul(m.hidden);
    terms.insert("embedding_gradients", Bytes(rows.saturating_mul(GRADIENT)));
    terms
}

fn draft(x: &Inputs<'_>, state: State) -> Draft {
    let (m, c) = (x.model, x.config);
    let job = job(x);
    let gpu = x.machine.gpu.as_ref();
    let all = state.bytes(m.params);
    let usable = usable(x.machine.ram.available);
    let mut budget = gpu.map_or(Bytes::ZERO, |g| g.vram_free.saturating_sub(g.overhead));
    if c.stream.vram_budget.0 > 0 {
        budget = budget.min(Bytes(c.stream.vram_budget.0));
    }
    // Device: as many slots as wished; else fewer; else inputs wait in host memory; else single parts.
    let wished = c.stream.ring_slots().clamp(1, m.blocks.len().max(1));
    let offloads: &[bool] = match c.stream.activation_offload {
        Offload::On => &[true],
        Offload::Off => &[false],
        Offload::Auto if gpu.is_none() => &[false],
        Offload::Auto => &[false, true],
    };
    // Part by part the feed-forward goes in one: its chunks would use three parts at once.
    let thrift = |ring, offload| {
        let mlp_chunk = if matches!(ring, Ring::Parts) { 0 } else { c.stream.mlp_chunk as u64 };
        Thrift { stream_head: true, offload, mlp_chunk }
    };
    let largest = Largest::of(x);
    let terms = |ring, offload| device(x, &job, state, largest, ring, thrift(ring, offload));
    let rings = || (1..=wished).rev().map(Ring::Blocks).chain([Ring::Parts]);
    let mut ways = offloads.iter().flat_map(|o| rings().map(move |r| (r, *o)));
    let fits = |(ring, o): &(Ring, bool)| gpu.is_none() || memory::total(&terms(*ring, *o)) <= budget;
    let (ring, offload) = ways.find(fits).unwrap_or((Ring::Parts, offloads.last().copied().unwrap_or(false)));
    let (slots, split) = if let Ring::Blocks(n) = ring { (n, false) } else { (1, true) };
    let on_device = terms(ring, offload);

    // Host: weights and state if they fit, else a ring for what is read and what is written back.
    let shared = if gpu.is_some_and(|g| g.integrated) { memory::total(&on_device) } else { Bytes::ZERO };
    let room = usable.saturating_sub(shared);
    let unit = state.bytes(if split { largest.part } else { largest.block });
    let host_of = |in_host: bool, buffers: u64| {
        let mut terms = memory::host_terms(m, &job, thrift(ring, offload));
        if in_host {
            terms.remove("embedding");
            terms.insert("weights_and_state", all);
        } else {
            terms.insert("ring", Bytes(unit.0.saturating_mul(buffers)));
        }
        if gpu.is_none() {
            terms.extend(on_device.clone());
        }
        terms
    };
    let pinned = gpu.is_none() || all <= x.machine.ram.pinnable;
    let in_host = c.stream.tier != TierChoice::Disk && pinned && memory::total(&host_of(true, 0)) <= room;
    // Blocks ahead, the one in work and the one on its way back; two at least.
    let wished = (c.stream.prefetch_ahead as u64 + 2).min(m.blocks.len() as u64 + 1).max(2);
    let buffers = (2..=wished).rev().find(|b| memory::total(&host_of(false, *b)) <= room).unwrap_or(2);
    let host = host_of(in_host, buffers);

    let export = Bytes(m.params.saturating_mul(2));
    let free = x.machine.disk.free;
    let mut space = Terms::new();
    if x.checkpoint.not_here {
        space.insert("download", x.checkpoint.total_bytes());
    }
    // In memory the result must find room; on disk it may take the state's place.
    let (name, needed) = if in_host { ("result_16_bit", export) } else { ("state_in_two_extents", all * EXTENTS) };
    space.insert(name, needed);
    let total = memory::total(&space);
    // A checkpoint with state; without room for two of them only the result is written.
    let saved = in_host && total + all * 2 <= free;
    let writes = Writes {
        step: if in_host { Bytes::ZERO } else { all },
        // On disk the state is its own checkpoint.
        save: if saved { all } else { Bytes::ZERO },
        once: if in_host { export } else { all + export },
    };
    let mut wear = wear::wear(writes, &x.machine.disk, c);

    // What no setting cures comes first.
    let mut problems = blockers(x);
    let least = c.wear.min_steps;
    if let Some(steps) = wear.steps_to_tbw.filter(|s| *s < least) {
        wear.overridden = c.wear.overridden;
        if !wear.overridden {
            problems.push(format!(
                "SSD wear: each step would write {all}; the drive is rated for {steps} such steps, fewer than \
                 wear.min_steps = {least}"
            ));
        }
    }
    if total > free {
        let items: Vec<String> = space.iter().map(|(n, b)| format!("{b} {}", words::term(n))).collect();
        problems.push(format!("needs {total} of disk ({}), {free} is free", items.join(", ")));
    }
    if !in_host {
        problems.extend(x.machine.disk.refuses_streaming(c.stream.allow_hdd));
    }
    let need = memory::total(&on_device);
    if gpu.is_some() && need > budget {
        problems.push(memory::lacks("VRAM", &on_device, need, budget, "free"));
    }
    if memory::total(&host) > room {
        problems.push(memory::lacks("RAM", &host, memory::total(&host), room, "free"));
    }
    if c.stream.tier == TierChoice::Ram && !in_host {
        problems.push(format!("stream.tier = ram, but weights and optimizer state ({all}) don't fit into RAM"));
    }
    if saved {
        space.insert("checkpoints", all * 2);
    }
    // A 16-bit copy of the result beside the rest, where there is room for one.
    if !in_host && total + export <= free {
        space.insert("export_16_bit", export);
    }
    Draft {
        state,
        in_host,
        slots,
        split,
        device: VramPlan::of(&if gpu.is_some() { on_device } else { Terms::new() }, budget),
        host: VramPlan::of(&host, usable),
        space: VramPlan::of(&space, free),
        export,
        writes,
        wear,
        problems,
        job,
    }
}

impl Draft {
    /// Where weights and state are.
    fn tier(&self) -> TierName {
        if self.in_host { TierName::Ram } else { TierName::Disk }
    }

    fn verdict(&self) -> Verdict {
        match (self.problems.is_empty(), self.in_host) {
            (false, _) => Verdict::Infeasible,
            (true, true) => Verdict::Ram,
            (true, false) => Verdict::FullFtDisk,
        }
    }

    /// The weight forward, weight and state backward; state and gradient's result back.
    fn per_step(&self, x: &Inputs<'_>) -> PerStep {
        let written = self.state.bytes(x.model.params);
        let read = written + Bytes(x.model.params.saturating_mul(weight(x)));
        let none = |b| if self.in_host { Bytes::ZERO } else { b };
        PerStep { disk_read: none(read), h2d: read, d2h: written, written: none(written) }
    }

    /// The low end with the fast cache empty before each step, the high end with it always full.
    fn seconds(&self, x: &Inputs<'_>) -> SecondsRange {
        let step = self.per_step(x);
        let at = |write: f64| {
            let mut machine = x.machine.clone();
            machine.disk.write = write;
            time::forecast_full(x.model, &self.job.timed(), &machine, step.disk_read.0 as f64, step.written.0 as f64)
        };
        let disk = &x.machine.disk;
        let low = at(wear::write_rate(disk, step.written));
        let high = at(wear::write_rate_at_worst(disk, step.written)).high;
        SecondsRange { high: high.max(low.low), ..low }
    }

    fn reasons(&self, x: &Inputs<'_>) -> Vec<String> {
        let mut reasons = self.problems.clone();
        let written = self.writes.step;
        if reasons.is_empty() && self.in_host {
            reasons.push(format!("weights and optimizer state of {} parameters fit into RAM", count(x.model.params)));
        } else if reasons.is_empty() {
            reasons.push(match self.wear.steps_to_tbw {
                Some(steps) => format!("each step writes {written}; the drive is rated for {steps} such steps"),
                None => format!("each step writes {written}; the drive's rating is unknown"),
            });
        }
        if self.wear.overridden {
            reasons
                .push(format!("wear.override is set: fewer steps than wear.min_steps = {}", x.config.wear.min_steps));
        }
        if !self.in_host {
            reasons.extend(wear::cliff(&x.machine.disk, written));
        }
        let left = self.space.budget.saturating_sub(self.space.total);
        if self.in_host && self.writes.save == Bytes::ZERO {
            let two = self.state.bytes(x.model.params) * 2;
            reasons.push(format!("no checkpoints that can be resumed: two need {two} of disk, {left} would be free"));
        }
        if !self.in_host && self.space.total <= self.space.budget && !self.space.terms.contains_key("export_16_bit") {
            reasons.push(format!(
                "in-place export only: a 16-bit copy needs {} of disk, {left} would be free",
                self.export
            ));
        }
        if self.split {
            reasons.push("a layer with its optimizer state is larger than VRAM: it is loaded part by part".into());
        }
        reasons.push("this is a forecast: full finetuning is not in this version yet".into());
        reasons
    }
}
