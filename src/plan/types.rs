//! What the planner is given and what it answers; the answer is the JSON of `plan --json`.

use crate::config::Mode;
use crate::device::Machine;
use crate::event::TierName;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the plan's JSON; counts up when a key changes meaning.
pub const PLAN_SCHEMA: u32 = 1;

/// Verdict on a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// No byte of base or state crosses the disk during a step.
    Ram,
    /// The frozen base streams from disk; nothing is written.
    LoraDisk,
    /// State and weights stream both ways within the wear limit.
    FullFtDisk,
    /// Can't be done, with every reason.
    Infeasible,
}

impl Verdict {
    /// The word the user sees.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ram => "RAM",
            Verdict::LoraDisk => "LORA_DISK",
            Verdict::FullFtDisk => "FULL_FT_DISK",
            Verdict::Infeasible => "INFEASIBLE",
        }
    }
    /// A sign that needs no colour: `✓ ~ ! ✗`.
    #[must_use]
    pub fn sign(self) -> char {
        match self {
            Verdict::Ram => '✓',
            Verdict::LoraDisk => '~',
            Verdict::FullFtDisk => '!',
            Verdict::Infeasible => '✗',
        }
    }
}

/// The planner's whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanReport {
    /// See [`PLAN_SCHEMA`].
    pub schema: u32,
    /// Model name as shown.
    pub model: String,
    /// Parameters.
    pub params: u64,
    /// Bytes of all tensors.
    pub bytes: Bytes,
    /// Decoder blocks.
    pub n_blocks: usize,
    /// Facts about the checkpoint's parts: largest block, second largest, embedding, head.
    pub parts: BTreeMap<String, Bytes>,
    /// The machine planned for.
    pub machine: Machine,
    /// What was edited of the machine before planning, as `ram = 32 GB`; empty for the machine as it is.
    #[serde(default)]
    pub what_if: Vec<String>,
    /// Lengths of the data's rows, where they were looked at: what the seconds are for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<super::Lengths>,
    /// Notes of the checkpoint and of the planner.
    pub notes: Vec<String>,
    /// The largest model that the machine could train, by mode, and what binds.
    #[serde(default)]
    pub ceilings: Vec<Ceiling>,
    /// What earlier runs wrote, where a results folder was looked at.
    #[serde(default)]
    pub ledger: Option<Ledger>,
    /// Both modes.
    pub modes: Modes,
}

/// A plan for each mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Modes {
    /// LoRA.
    pub lora: ModePlan,
    /// Full finetuning.
    pub full: ModePlan,
}

impl Modes {
    /// The plan of `mode`.
    #[must_use]
    pub fn of(&self, mode: Mode) -> &ModePlan {
        match mode {
            Mode::Lora => &self.lora,
            Mode::Full => &self.full,
        }
    }
}

/// The plan of one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModePlan {
    /// Verdict for the checkpoint as stored.
    pub verdict: Verdict,
    /// This version can train it; else it is a forecast, as the reasons say.
    #[serde(default)]
    pub trainable: bool,
    /// Why, most important first.
    pub reasons: Vec<String>,
    /// The nearest change that would make it feasible, or better.
    pub nearest_fix: Option<String>,
    /// The exact command with that change made, where it is one of settings.
    #[serde(default)]
    pub fix_command: Option<String>,
    /// Bytes of base weights per tier.
    pub tiers: TierBytes,
    /// Bytes moved per optimizer step.
    pub per_step: PerStep,
    /// The same by sweep: up, and down with the head at its turn.
    #[serde(default)]
    pub sweeps: [PerStep; 2],
    /// Seconds per optimizer step, as a range, with the binding resource.
    pub seconds_per_step: SecondsRange,
    /// Device memory, every term.
    pub vram: VramPlan,
    /// Host memory, every term.
    pub host: VramPlan,
    /// Space on the drive, every need; `budget` is what is free. An export that would not fit is not in the total.
    #[serde(default)]
    pub space: VramPlan,
    /// Drive wear.
    pub wear: Wear,
    /// Tier of each block.
    pub placement: Vec<BlockPlace>,
    /// Ring slots on the device beside resident blocks.
    pub ring_slots: usize,
    /// Most blocks' worth of parts on the device at once.
    pub residency: usize,
    /// How the streamer is set up.
    #[serde(default)]
    pub stream: StreamPlan,
    /// Lowest block that trains.
    pub lowest_trainable: usize,
    /// Other formats, with their own verdicts.
    pub candidates: Vec<Candidate>,
    /// The exact command that runs it.
    pub command: String,
}

/// The streamer's set-up, all of it: a run reads no key of `[stream]`. Plans of earlier versions left some to the config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamPlan {
    /// Blocks fetched ahead of the one computing.
    pub prefetch_ahead: usize,
    /// Tokens at a time in head and loss.
    pub loss_chunk: usize,
    /// Go on with pageable host memory when pinning fails.
    pub allow_pageable: bool,
    /// Ring slots for attention parts, and for the parts of the feed-forward and pieces of the head.
    pub ring: [usize; 2],
    /// Where a streamed head waits; absent when it stays on the device.
    pub head: Option<TierName>,
    /// Host memory that disk reads go through.
    pub host_ring: Bytes,
    /// Block inputs wait for the backward pass in host memory.
    pub offload: bool,
    /// Tokens of a micro-batch in the feed-forward at a time; 0 = all.
    pub mlp_chunk: usize,
    /// A block doesn't fit its slots: parts are loaded for each use.
    pub split: bool,
}

/// Bytes of base weights per tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierBytes {
    /// On the device throughout: resident blocks, head, norms.
    pub vram: Bytes,
    /// In host memory throughout.
    pub ram: Bytes,
    /// Read from disk each visit.
    pub disk: Bytes,
}

/// Bytes moved per optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerStep {
    /// Read from disk.
    pub disk_read: Bytes,
    /// Host to device.
    pub h2d: Bytes,
    /// Device to host.
    pub d2h: Bytes,
    /// Written to disk (checkpoints not counted).
    pub written: Bytes,
}

/// A forecast in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SecondsRange {
    /// Best case.
    pub low: f64,
    /// Worst case.
    pub high: f64,
    /// `disk`, `link`, `compute` or `cpu`.
    pub resource: String,
    /// What earlier runs on this machine multiplied it by; 1 = nothing known.
    #[serde(default = "one")]
    pub correction: f64,
}

fn one() -> f64 {
    1.0
}

impl Default for SecondsRange {
    fn default() -> SecondsRange {
        SecondsRange { low: 0.0, high: 0.0, resource: String::new(), correction: 1.0 }
    }
}

/// A memory plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VramPlan {
    /// Sum of the terms.
    pub total: Bytes,
    /// What the plan may use.
    pub budget: Bytes,
    /// Every term by name.
    pub terms: BTreeMap<String, Bytes>,
}

/// Drive wear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// Bytes written per step.
    pub written_per_step: Bytes,
    /// Steps until the rated endurance, what SMART counts as written already taken off; `None` when nothing is written
    /// or it is unknown.
    pub steps_to_tbw: Option<u64>,
    /// Bytes of one checkpoint.
    #[serde(default)]
    pub written_per_save: Bytes,
    /// Bytes written once a run whatever its length: state laid out at the start, the result at the end.
    #[serde(default)]
    pub written_once: Bytes,
    /// Checkpoints of the run; `None` where their number follows from the data.
    #[serde(default)]
    pub saves: Option<u64>,
    /// Bytes of the whole run; `None` where the number of steps follows from the data.
    #[serde(default)]
    pub written_per_run: Option<Bytes>,
    /// Share of the drive's rated life that the run takes, 0 to 1.
    #[serde(default)]
    pub life_per_run: Option<f64>,
    /// Share of its rated life the drive has behind it, by SMART.
    #[serde(default)]
    pub life_used: Option<f64>,
    /// Bytes a second that a step's writes go at: less than the drive's rate once its fast cache is full.
    #[serde(default)]
    pub write_rate: Option<f64>,
    /// A limit of `[wear]` is passed because `wear.override` is set.
    #[serde(default)]
    pub overridden: bool,
}

/// Where a block lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPlace {
    /// Block number.
    pub block: usize,
    /// Its tier.
    pub tier: TierName,
    /// Its bytes as stored.
    pub bytes: Bytes,
}

/// Another way to hold the base, or the state of full finetuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// `fp8`, `nf4`; of full finetuning `8-bit moments`.
    pub format: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// Bytes of the base in that format; of full finetuning of weights and state.
    pub bytes: Bytes,
    /// Best-case seconds per step.
    pub seconds_per_step: f64,
    /// Why, in a line; says when the format isn't trainable by this version yet.
    pub note: String,
    /// Why, most important first.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// The nearest change that would make it feasible.
    #[serde(default)]
    pub nearest_fix: Option<String>,
    /// Bytes of base weights per tier.
    #[serde(default)]
    pub tiers: TierBytes,
    /// Seconds per step as a range, with the binding resource.
    #[serde(default)]
    pub range: SecondsRange,
    /// Device memory.
    #[serde(default)]
    pub vram: Bytes,
    /// Drive wear.
    #[serde(default)]
    pub wear: Wear,
    /// Bytes that packing writes, once for all runs.
    #[serde(default)]
    pub packing: Bytes,
    /// The exact command that runs it; empty while this version can't.
    #[serde(default)]
    pub command: String,
}

/// The largest model that a machine can train in one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// `lora`, `lora_ram`, `full`, `full_8bit`, `full_ram`: see [`super::ceilings`].
    pub mode: String,
    /// Parameters.
    pub params: u64,
    /// What binds: `host memory`, `disk space`, `wear`, `device memory`.
    pub limit: String,
}

/// What the runs of a results folder wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The month now, `2026-11`.
    pub month: String,
    /// Bytes by month, newest first.
    pub months: Vec<LedgerMonth>,
    /// `wear.monthly_budget`; 0 = none.
    pub budget: Bytes,
}

/// A month of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerMonth {
    /// `2026-11`.
    pub month: String,
    /// Runs that began in it.
    pub runs: usize,
    /// Bytes that they wrote, to model drives and to their own folders.
    pub written: Bytes,
}
