//! The planner. Pure: (checkpoint inventory, machine, config) → plan. It asks no hardware and no clock.

mod batch;
mod candidates;
pub mod ceilings;
mod command;
mod cost;
mod explain;
mod fit;
mod fixes;
mod full;
pub mod ledger;
pub mod lengths;
pub mod made;
mod memory;
mod moments;
mod peer;
mod placement;
mod room;
pub mod schedule;
mod shape;
mod simulate;
pub mod slots;
mod time;
pub mod types;
mod verdict;
mod wear;
pub mod whatif;
pub mod words;
pub mod work;

pub use command::{quote, read as read_command};
pub use explain::{explain, percent, wear_text};
pub use lengths::Lengths;
pub use peer::soup_vram;
pub use shape::lowest_trainable;
pub use types::*;
pub use whatif::Edit;

use crate::checkpoint::Checkpoint;
use crate::config::{DeviceChoice, RunConfig};
use crate::device::Machine;
use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::{Bytes, plural};
use shape::{Job, Model};
use std::collections::BTreeMap;

/// A block this much larger than the next is worth a note.
const UNEQUAL: f64 = 1.25;

/// Plans both modes of `config` for `checkpoint` on `machine`.
///
/// # Errors
/// The config names something the checkpoint doesn't have (a target, a fraction out of range).
pub fn plan(checkpoint: &Checkpoint, machine: &Machine, config: &RunConfig) -> Result<PlanReport> {
    plan_for(checkpoint, machine, config, &[], None)
}

/// The same for `machine` with `edits` made (what if it were another?) and, where `data` is known, with the seconds of
/// its rows.
///
/// # Errors
/// As [`plan`], or an edit is for a card that isn't there.
pub fn plan_for(
    checkpoint: &Checkpoint,
    machine: &Machine,
    config: &RunConfig,
    edits: &[Edit],
    data: Option<&Lengths>,
) -> Result<PlanReport> {
    if checkpoint.blocks.is_empty() {
        return Err(Error::checkpoint(format!("'{}' has no decoder blocks", clean(&checkpoint.name))));
    }
    let mut machine = whatif::edited(machine, edits)?;
    if config.train.device == DeviceChoice::Cpu {
        machine.gpu = None;
    }
    let mut job = Job::of(config, checkpoint)?;
    job.seen = data.map(|d| d.padded(job.rows).min(job.length));
    let model = Model::of(checkpoint, machine.gpu.is_none());
    let x = verdict::Inputs { checkpoint, machine: &machine, config, model: &model, job: &job };
    let lora = verdict::lora(&x);
    let full = full::full(&x, lora.verdict);
    let modes = Modes { lora, full };
    Ok(PlanReport {
        schema: PLAN_SCHEMA,
        model: clean(&checkpoint.name),
        params: model.params,
        bytes: checkpoint.total_bytes(),
        n_blocks: checkpoint.blocks.len(),
        parts: parts(&model),
        what_if: edits.iter().map(Edit::words).collect(),
        notes: notes(checkpoint, &model, &machine, &job, data),
        data: data.cloned(),
        ceilings: ceilings::ceilings(&x),
        ledger: None,
        modes,
        machine,
    })
}

/// Facts about the checkpoint's parts.
fn parts(m: &Model) -> BTreeMap<String, Bytes> {
    let (first, second) = two_largest(m);
    [
        ("largest_block", first),
        ("second_largest_block", second),
        ("embedding", m.embed),
        ("head", m.head),
        ("final_norm", m.final_norm),
        ("ring_slot", m.slot()),
        ("host_buffer", m.host_buffer()),
    ]
    .map(|(name, bytes)| (name.to_string(), bytes))
    .into()
}

fn two_largest(m: &Model) -> (Bytes, Bytes) {
    let mut sizes: Vec<Bytes> = m.blocks.iter().map(|b| b.stored).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    (sizes[0], sizes.get(1).copied().unwrap_or(Bytes::ZERO))
}

/// The warning for rows longer than the model was made for; `what` begins it.
#[must_use]
pub fn past_positions(what: &str, tokens: u64, positions: usize) -> String {
    format!(
        "{what} {tokens} tokens, but the model was made for {positions} positions (max_position_embeddings): what it \
         learns past them may be poor; data.max_length = {positions} stays within"
    )
}

fn notes(c: &Checkpoint, m: &Model, machine: &Machine, job: &Job, data: Option<&Lengths>) -> Vec<String> {
    let mut notes = c.notes.clone();
    let (first, second) = two_largest(m);
    if second > Bytes::ZERO && first.0 as f64 > UNEQUAL * second.0 as f64 {
        notes.push(format!(
            "layers differ in size: the largest has {first}, the next {second}; its largest tensor is '{}' ({})",
            m.heaviest.0, m.heaviest.1
        ));
    }
    if c.not_here {
        notes.push(format!("not on this machine yet: the download is {}", c.total_bytes()));
    }
    if job.length > c.arch.max_positions as u64 {
        notes.push(past_positions("data.max_length lets rows have", job.length, c.arch.max_positions));
    }
    let merged = Bytes(m.params * 2);
    if merged > machine.disk.free {
        notes.push(format!("a merged 16-bit export would need {merged} of disk, {} is free", machine.disk.free));
    }
    let accumulated = if job.micro > 1 { format!("{} of ", plural(job.micro, "micro-batch")) } else { String::new() };
    notes.push(format!(
        "a step trains {accumulated}{} of up to {} tokens, in {}",
        plural(job.rows, "row"),
        job.length,
        m.compute
    ));
    let last = m.blocks.len() - 1;
    let where_to = if job.lowest == 0 { "all layers".into() } else { format!("layers {} to {last}", job.lowest) };
    notes.push(format!("LoRA adapters in {where_to}, on {}", job.targets.join(", ")));
    notes.extend(data.map(|d| d.words(job.length)));
    notes.push(time::margins(machine));
    notes
}
