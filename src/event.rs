//! The contract between the trainer and everything that watches it: plain, versioned data.
//!
//! The trainer emits [`Event`]s and obeys [`Command`]s; recorder, screen, script and replay see nothing else.
//! *Lifecycle* events always arrive; *telemetry* may be dropped when a reader is slow, and the drops are counted.
//! Bytes are integers, times are seconds, rates are bytes per second.

mod metrics;
mod step;

pub use metrics::{GRAD_NORM, LEARNING_RATE, LOSS, Metrics};
pub use step::StepRecord;

use crate::error::ExitCode;
use crate::units::{Bytes, plural};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Version of the event format; counts up when a field changes meaning. Until 2 a step's loss, gradient norm and learning
/// rate were fields of it; now they are its metrics.
pub const EVENT_SCHEMA: u32 = 2;

/// One event with its place in the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Counts from 0 without gaps for lifecycle events; telemetry shares the count.
    pub seq: u64,
    /// Seconds since the run's worker started.
    pub at: f64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[expect(clippy::large_enum_variant, reason = "a run has few events, and each is moved a few times")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The run has a folder and a plan and is about to prepare.
    Started(RunStarted),
    /// Progress inside a long preparation step; `done == total` ends it.
    Stage(Stage),
    /// One optimizer step is complete.
    Step(StepRecord),
    /// Held-out loss was measured.
    Eval(EvalRecord),
    /// A checkpoint or the adapter is safely on disk.
    Saved(Saved),
    /// The trainer is waiting for `Resume`, after this step.
    Paused {
        /// Steps complete.
        step: u64,
    },
    /// Training goes on.
    Resumed {
        /// Steps complete.
        step: u64,
    },
    /// A line for the log pane and the event file.
    Notice(Notice),
    /// The run is over; always the last lifecycle event.
    Finished(RunFinished),
    /// Telemetry: where inside the step the trainer is. At most ~30 a second.
    Progress(Progress),
    /// Telemetry: GPU and host gauges, once a second.
    Gauges(Gauges),
    /// Telemetry: where the last step's time went.
    Trace(StepTrace),
}

impl EventKind {
    /// Telemetry may be dropped; `events.jsonl` holds a thinned sample of gauges and traces, and no progress.
    #[must_use]
    pub fn is_telemetry(&self) -> bool {
        matches!(self, EventKind::Progress(_) | EventKind::Gauges(_) | EventKind::Trace(_))
    }
}

/// What a run is, said once at its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    /// See [`EVENT_SCHEMA`].
    pub schema: u32,
    /// Name of the folder under `results/`.
    pub run_id: String,
    /// The run's folder.
    pub run_dir: PathBuf,
    /// Model name as shown (hub id or folder name), never a home path.
    pub model: String,
    /// `lora` or `full`.
    pub mode: String,
    /// `RAM`, `LORA_DISK`, …
    pub verdict: String,
    /// Decoder blocks.
    pub n_blocks: usize,
    /// First block that trains; blocks below it run forward only.
    pub lowest_trainable: usize,
    /// Tier of each block.
    pub tiers: Vec<TierName>,
    /// Most blocks the plan allows on the device at once, in-flight copies included.
    pub residency_planned: usize,
    /// Steps this run will have when finished.
    pub steps_total: u64,
    /// Steps already done when it started (resume).
    pub steps_done: u64,
    /// Micro-batches inside each visit.
    pub micro_batches: usize,
    /// `cpu` or the GPU's name.
    pub device: String,
    /// Compute type of the blocks: `f32`, `bf16`, `f16`.
    pub compute_dtype: String,
    /// Attention kernel, e.g. `sdpa-flash`, `sdpa-cpu`.
    pub attention: String,
    /// How the disk is read, e.g. `pread, O_DIRECT, 4 threads`.
    pub reader: String,
    /// LoRA tensors trained and their parameter count.
    pub trainable_params: u64,
    /// Facts about the data: rows used, dropped by reason, truncated, tokens, hash.
    pub data: DataFacts,
}

/// Counts over the training data, for the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Detected format, e.g. `messages`.
    pub format: String,
    /// Rows that train.
    pub rows_used: u64,
    /// Rows in the held-out split.
    pub rows_eval: u64,
    /// Rows left out, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Rows cut to `max_length`.
    pub truncated: u64,
    /// Tokens in all used rows.
    pub tokens: u64,
    /// Tokens that carry loss.
    pub trained_tokens: u64,
    /// SHA-256 over the data files.
    pub sha256: String,
    /// Date given to the chat template's `strftime_now`.
    pub template_date: String,
}

/// The three exclusive tiers of a block's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierName {
    /// Stays on the device.
    Vram,
    /// Pinned (on CPU: plain) host memory.
    Ram,
    /// Read from the checkpoint's own files at every visit.
    Disk,
}

impl TierName {
    /// One letter for the block map: `V`, `R`, `D`.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            TierName::Vram => 'V',
            TierName::Ram => 'R',
            TierName::Disk => 'D',
        }
    }
}

/// Progress inside a long preparation step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// E.g. `reading data`, `loading the RAM tier`.
    pub name: String,
    /// Done so far, in `unit`.
    pub done: u64,
    /// All there is, in `unit`; 0 if unknown.
    pub total: u64,
    /// `bytes`, `rows`, `blocks`, `tokens`.
    pub unit: String,
}

/// Where a step's time went, visit by visit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTrace {
    /// Step, counts from 1.
    pub step: u64,
    /// Its visits in order.
    pub visits: Vec<VisitTimes>,
}

/// Held-out loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Steps complete when it was measured.
    pub step: u64,
    /// Token-weighted mean loss.
    #[serde(with = "nan_as_null")]
    pub loss: f64,
    /// Tokens that carried loss.
    pub tokens: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// Something is safely on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Steps complete in it.
    pub step: u64,
    /// `checkpoint` or `adapter`.
    pub what: String,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes written.
    pub bytes: Bytes,
}

/// How serious a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// For the record.
    Info,
    /// Something is not as the user may expect: a fallback, a skipped row.
    Warn,
    /// Something failed.
    Error,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// How serious.
    pub level: Level,
    /// The text, one line.
    pub text: String,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Still going.
    Running,
    /// All steps done.
    Finished,
    /// Stopped early on request.
    Stopped,
    /// Stopped at once on request; nothing more was saved.
    Aborted,
    /// SIGINT.
    Interrupted,
    /// SIGTERM, or the terminal went away.
    Terminated,
    /// Failed.
    Failed,
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFinished {
    /// How.
    pub status: RunStatus,
    /// Why, where it isn't plain: the error, the signal.
    pub reason: Option<String>,
    /// Steps complete.
    pub step: u64,
    /// Newest checkpoint to resume from.
    pub checkpoint: Option<PathBuf>,
    /// Device memory figures.
    pub vram: VramFigures,
    /// Streaming statistics over the whole run.
    pub stats: StreamStats,
    /// Most blocks on the device at once.
    pub residency_peak: usize,
    /// Telemetry events dropped because a reader was slow.
    pub telemetry_dropped: u64,
    /// It failed for what it was given: config, checkpoint or data.
    #[serde(default)]
    pub refused: bool,
}

impl RunFinished {
    /// The step that its checkpoint holds.
    #[must_use]
    pub fn saved_step(&self) -> Option<u64> {
        self.checkpoint.as_ref()?.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok()
    }

    /// The exit code of a program that ends with this run.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.status {
            RunStatus::Finished => ExitCode::Ok,
            RunStatus::Stopped => ExitCode::StoppedEarly,
            RunStatus::Aborted if self.checkpoint.is_some() => ExitCode::StoppedEarly,
            RunStatus::Failed if self.refused => ExitCode::Usage,
            RunStatus::Running | RunStatus::Aborted | RunStatus::Failed => ExitCode::Failed,
            RunStatus::Interrupted => ExitCode::Interrupted,
            RunStatus::Terminated => ExitCode::Terminated,
        }
    }

    /// What of its steps is kept, as a clause: every word about an end takes it from here.
    #[must_use]
    pub fn kept(&self) -> String {
        let steps = |n: u64| plural(n, "step");
        match self.saved_step() {
            Some(at) if at < self.step => format!("saved at step {at}; {} after it lost", steps(self.step - at)),
            Some(at) => format!("saved at step {at}"),
            None if self.step == 0 => "nothing was saved: no step was complete".into(),
            None => format!("nothing was saved: {} lost", steps(self.step)),
        }
    }
}

/// Peak device memory, the three figures that are never mixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VramFigures {
    /// Allocator's allocated peak plus slabs; on CPU 0.
    pub live: Bytes,
    /// Allocator's reserved peak.
    pub reserved: Bytes,
    /// NVML used minus used before CUDA started; `None` without NVML.
    pub device: Option<Bytes>,
}

/// Streaming statistics, as the seed's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamStats {
    /// Seconds copies spent moving bytes.
    pub h2d_s: f64,
    /// Seconds compute waited for weights.
    pub stall_s: f64,
    /// Seconds the copy lane waited for a slot to be free.
    pub evict_wait_s: f64,
    /// Blocks on the device after each admission and retirement of the last step: `(block, resident)`.
    pub resident_history: Vec<(usize, usize)>,
}

/// Where the time of one visit went, measured on the device's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VisitTimes {
    /// Part of the step.
    pub phase: Phase,
    /// Block.
    pub block: usize,
    /// Bytes copied to the device for this visit.
    pub h2d: u64,
    /// Those of them that were read from disk.
    pub disk: u64,
    /// Seconds those copies moved bytes; most of it before the visit.
    pub copy_s: f64,
    /// Seconds compute waited although the drive had delivered: the link set the pace.
    pub wait_link_s: f64,
    /// Seconds compute waited for the drive.
    pub wait_disk_s: f64,
    /// Seconds of the visit without waits.
    pub compute_s: f64,
}

/// The part of a step a block is visited in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Bottom to top.
    #[default]
    Forward,
    /// Head and loss.
    Head,
    /// Recompute and backward, top to lowest trainable.
    Backward,
    /// The optimizer's update.
    Update,
    /// Held-out loss, forward only.
    Eval,
}

impl Phase {
    /// The word the user sees.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Head => "output layer",
            Phase::Backward => "backward",
            Phase::Update => "update",
            Phase::Eval => "evaluation",
        }
    }
}

/// State of one block on the block map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Not on the device.
    Away,
    /// Being read from disk.
    Reading,
    /// Being copied to the device.
    Copying,
    /// On the device.
    Resident,
    /// On the device and computing now.
    Active,
}

/// Where inside the step the trainer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Step in progress, counts from 1.
    pub step: u64,
    /// Part of the step.
    pub phase: Phase,
    /// Block being visited.
    pub block: usize,
    /// Visits done in this step.
    pub visit: usize,
    /// Visits this step will have.
    pub visits: usize,
    /// State of every block.
    pub blocks: Vec<BlockState>,
    /// Bytes read from disk since the run began.
    pub disk_read: Bytes,
    /// Bytes copied to the device since the run began.
    pub h2d: Bytes,
    /// Allocator's peak plus slabs so far; `None` on CPU.
    pub vram_live: Option<Bytes>,
}

/// GPU and host gauges. Every field that a driver may refuse is optional: N/A is not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gauges {
    /// SM clock, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// GPU utilisation, percent.
    pub gpu_util: Option<u32>,
    /// GPU temperature, Celsius.
    pub gpu_temp_c: Option<u32>,
    /// Temperature of the checkpoint's drive, Celsius.
    #[serde(default)]
    pub drive_temp_c: Option<u32>,
    /// Board power, watts.
    pub power_w: Option<f64>,
    /// NVML used memory.
    pub vram_used: Option<Bytes>,
    /// Resident set of this process.
    pub rss: Option<Bytes>,
    /// Anonymous memory of this process (`RssAnon`).
    pub rss_anon: Option<Bytes>,
    /// Free host memory.
    pub ram_available: Option<Bytes>,
}

/// What a reader may ask of the trainer, stops last and by strength. Checked between blocks; answered by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Wait after this step.
    Pause,
    /// Go on.
    Resume,
    /// Save a checkpoint after this step and go on.
    SaveNow,
    /// Finish this step, save, stop.
    StopAndSave,
    /// Drop the step in progress, save the last whole one, stop.
    DropStep,
    /// Stop and save nothing more: steps since the last checkpoint are lost.
    Discard,
}

/// JSON has no NaN: a value that is not finite is `null`.
pub mod nan_as_null {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes `null` where the value is not finite.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
        if x.is_finite() { s.serialize_some(x) } else { s.serialize_none() }
    }

    /// Reads `null` as NaN.
    ///
    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(d)?.unwrap_or(f64::NAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_fo_52_what_is_kept_is_told_from_the_checkpoint_that_exists() {
        let end = |step, checkpoint: Option<&str>| RunFinished {
            status: RunStatus::Terminated,
            reason: None,
            step,
            checkpoint: checkpoint.map(PathBuf::from),
            vram: VramFigures::default(),
            stats: StreamStats::default(),
            residency_peak: 0,
            telemetry_dropped: 0,
            refused: false,
        };
        assert_eq!(end(6, Some("run/checkpoint-6")).kept(), "saved at step 6");
        assert_eq!(end(6, Some("run/checkpoint-4")).kept(), "saved at step 4; 2 steps after it lost");
        assert_eq!(end(1, None).kept(), "nothing was saved: 1 step lost");
        assert_eq!(end(0, None).kept(), "nothing was saved: no step was complete");
    }
}
