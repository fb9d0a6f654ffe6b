//! The report of a run as data: what `report.json` holds. Bytes are integers, times seconds, rates per second.
//!
//! A value that was not measured, or is not finite, is `null`; it is never 0.

pub use super::trace::{PhaseTimes, StepParts, TraceReport};
use crate::event::{DataFacts, Level, RunStatus, TierName};
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Version of `report.json`; counts up when a key changes meaning.
pub const REPORT_SCHEMA: u32 = 1;

/// Everything that is known about a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// See [`REPORT_SCHEMA`].
    pub schema: u32,
    /// This program and its version.
    pub tool: String,
    /// Name of the run's folder.
    pub run_id: String,
    /// How it ended.
    pub status: RunStatus,
    /// Why, where it isn't plain.
    pub reason: Option<String>,
    /// `RAM`, `LORA_DISK`, …
    pub verdict: String,
    /// `lora` or `full`.
    pub mode: String,
    /// When it began, UTC.
    pub started: Option<String>,
    /// Wall-clock seconds from the first to the last event, over all sessions.
    pub seconds: f64,
    /// The base.
    pub model: ModelFacts,
    /// What it ran on.
    pub machine: MachineFacts,
    /// How it computed.
    pub setup: Setup,
    /// What it trained on.
    pub data: DataReport,
    /// Complete optimizer steps.
    pub steps: u64,
    /// Steps whose update was skipped (not finite, or no trained token).
    pub skipped_steps: Vec<u64>,
    /// Tokens through the blocks, padding not counted.
    pub tokens: u64,
    /// Tokens that carried loss.
    pub trained_tokens: u64,
    /// Training loss.
    pub loss: LossReport,
    /// Held-out loss.
    pub eval: EvalReport,
    /// Blocks on the device, in-flight copies included.
    pub residency: Residency,
    /// Bytes moved during optimizer steps, also those that a crash made the run repeat.
    pub bytes: BytesReport,
    /// What the run cost the drive.
    #[serde(default)]
    pub wear: WearReport,
    /// Wall-clock seconds per optimizer step.
    pub seconds_per_step: StepTimes,
    /// Training speed.
    pub tokens_per_second: Speed,
    /// The best that the slowest resource allowed at the rates it ran at.
    pub bound: Bound,
    /// What the plan said, against what was measured.
    pub forecast: Forecast,
    /// Device memory.
    pub vram: VramReport,
    /// Host memory of this process.
    pub ram: RamReport,
    /// Where the base's weights lived.
    pub tiers: Tiers,
    /// Streaming statistics over the whole run.
    pub stats: StatsReport,
    /// The newest step whose visits were recorded.
    #[serde(default)]
    pub trace: Option<TraceReport>,
    /// Gauges, from a thinned sample.
    pub gauges: GaugesReport,
    /// Every time the run was started, the first included.
    pub sessions: Vec<Session>,
    /// Telemetry that slow readers made the trainer drop.
    pub telemetry_dropped: u64,
    /// Warnings and errors, in order; at most [`MAX_NOTICES`].
    pub notices: Vec<NoticeLine>,
    /// The settings, without file paths.
    pub config: Value,
    /// The run's files when the report was written.
    pub files: BTreeMap<String, FileFacts>,
}

/// Notices kept in a report; `events.jsonl` has them all.
pub const MAX_NOTICES: usize = 100;

/// The base checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Shown name.
    pub name: String,
    /// Hub id, where it has one.
    pub hub_id: Option<String>,
    /// Hub commit.
    pub revision: Option<String>,
    /// SHA-256 over config, headers, sizes and times of the weights files.
    pub fingerprint: Option<String>,
    /// Parameters.
    pub params: Option<u64>,
    /// Bytes of all tensors.
    pub bytes: Option<u64>,
    /// Decoder blocks.
    pub n_blocks: usize,
    /// First block that trains.
    pub lowest_trainable: usize,
    /// Trained parameters.
    pub trainable_params: u64,
}

/// What the run ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// `cpu`, or the GPU's name.
    pub device: String,
    /// The GPU, `None` on CPU.
    pub gpu: Option<GpuFacts>,
    /// Operating system, kernel and architecture.
    pub os: Option<String>,
    /// All host memory.
    pub ram_total: Option<u64>,
    /// Kind of the drive with the checkpoint.
    pub disk: Option<String>,
    /// libtorch's version, in builds with it.
    pub libtorch: Option<String>,
}

/// The GPU of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Marketing name.
    pub name: String,
    /// UUID.
    pub uuid: Option<String>,
    /// Driver version.
    pub driver: Option<String>,
    /// Its memory.
    pub vram_total: Option<u64>,
}

/// How the run computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Compute type of the blocks.
    pub dtype: String,
    /// Types of what is trained and kept.
    pub storage: String,
    /// Longest row in tokens.
    pub seq: Option<u64>,
    /// Rows in a micro-batch.
    pub batch: Option<u64>,
    /// Micro-batches in a step.
    pub micro_batches: usize,
    /// Seed.
    pub seed: Option<u64>,
    /// Deterministic kernels.
    pub deterministic: Option<bool>,
    /// Attention kernel.
    pub attention: String,
    /// How the disk was read.
    pub reader: String,
}

/// What the run trained on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataReport {
    /// Hash and counts.
    #[serde(flatten)]
    pub facts: DataFacts,
    /// What happened to rows that are too long.
    pub over_long: Option<String>,
}

/// Training loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// Of the first step.
    pub first: Option<f64>,
    /// Of the last step.
    pub last: Option<f64>,
    /// `(step, loss)` of every step.
    pub list: Vec<(u64, Option<f64>)>,
}

/// Held-out loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalReport {
    /// Before the first step.
    pub before: Option<f64>,
    /// At the newest measurement after training began.
    pub after: Option<f64>,
    /// `(step, loss)` of every measurement.
    pub list: Vec<(u64, Option<f64>)>,
}

/// Blocks on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// Most that the plan allows.
    pub planned: usize,
    /// Most there ever were.
    pub peak: usize,
}

/// Bytes moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Read from disk.
    pub disk_read: u64,
    /// Host to device.
    pub h2d: u64,
    /// Device to host.
    pub d2h: u64,
    /// Written by this process outside the run's folder.
    pub model_drive_written: u64,
}

/// Bytes moved in all, per step, and as planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesReport {
    /// In all.
    #[serde(flatten)]
    pub total: Moved,
    /// Median of the measured steps.
    pub per_step: Moved,
    /// The plan's figures for a step.
    pub planned_per_step: Option<Moved>,
}

/// What the run cost the drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WearReport {
    /// Written by this process outside the run's folder, in all steps.
    pub model_drive_written: u64,
    /// Written into the run's folder: every checkpoint and adapter saved, those deleted since too.
    pub run_folder_written: u64,
    /// Both, over the steps of the run.
    pub per_step: Option<u64>,
    /// Rated endurance of the drive, bytes.
    pub tbw: Option<u64>,
    /// Share of it that the run took, 0 to 1.
    pub life: Option<f64>,
    /// The drive's own count when the run began, by SMART.
    pub smart_before: Option<SmartFigures>,
    /// The same when it ended.
    pub smart_after: Option<SmartFigures>,
    /// A limit of `[wear]` was passed because `wear.override` was set.
    pub overridden: bool,
}

/// A drive's own figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SmartFigures {
    /// Bytes written in its life, by every program.
    pub written: Option<u64>,
    /// Share of its rated life used, 0 to 1.
    pub life_used: Option<f64>,
    /// Where they come from; records of earlier versions may not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Times of optimizer steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Median.
    pub median: Option<f64>,
    /// 95th percentile (nearest rank).
    pub p95: Option<f64>,
    /// Fastest.
    pub min: Option<f64>,
    /// Slowest.
    pub max: Option<f64>,
    /// Steps measured.
    pub n: usize,
    /// Steps left out as warm-up: the first two of each session, when at least four others remain.
    pub warmup_excluded: usize,
    /// What a measured step consisted of.
    #[serde(default)]
    pub parts: Option<StepParts>,
    /// `(step, seconds)` of every step, warm-up included.
    pub list: Vec<(u64, Option<f64>)>,
}

/// Training speed and how it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Tokens per second.
    pub value: Option<f64>,
    /// What was divided by what.
    pub method: String,
}

/// The best that the slowest resource allows: per sweep, the time of the slowest of disk, link and compute.
///
/// The rates are those of the measured steps themselves. Where a recording has none, the plan's bound stands here,
/// which is always in [`Forecast::low`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// `disk`, `link`, `compute`; of a plan for a CPU also `cpu`. The commonest of the measured steps.
    pub resource: Option<String>,
    /// Seconds per step: the median of the measured steps' bounds.
    pub seconds: Option<f64>,
    /// `seconds` ÷ measured median: 1 = the bound is reached. `None` where the steps' own compute is the bound: it would
    /// be near 1 however slow compute was.
    pub share: Option<f64>,
    /// Whose rates: `measured` or `planned`.
    #[serde(default)]
    pub source: Option<String>,
}

/// The plan's forecast against the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Best case, seconds per step: the bound at the rates of the plan's machine.
    pub low: Option<f64>,
    /// Worst case.
    pub high: Option<f64>,
    /// Measured median.
    pub median: Option<f64>,
    /// Measured 95th percentile.
    pub p95: Option<f64>,
    /// Median ÷ the middle of low and high.
    pub ratio: Option<f64>,
    /// The median lies between low and high.
    pub inside: Option<bool>,
}

/// Device memory; the three measured figures are never mixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VramReport {
    /// The plan's total.
    pub planned: Option<u64>,
    /// Allocator's allocated peak plus slabs; 0 on CPU.
    pub live: u64,
    /// Allocator's reserved peak.
    pub reserved: u64,
    /// NVML used minus used before CUDA started.
    pub device: Option<u64>,
}

/// Host memory of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamReport {
    /// The plan's total.
    pub planned: Option<u64>,
    /// Most anonymous memory sampled (`RssAnon`).
    pub anon_peak: Option<u64>,
    /// Largest resident set sampled.
    pub rss_peak: Option<u64>,
}

/// Where the base's weights lived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiers {
    /// Bytes on the device throughout.
    pub vram: u64,
    /// Bytes in host memory throughout.
    pub ram: u64,
    /// Bytes read from disk at each visit.
    pub disk: u64,
    /// Tier of each block.
    pub placement: Vec<TierName>,
}

/// Streaming statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatsReport {
    /// Seconds copies spent moving bytes.
    pub h2d_s: f64,
    /// Seconds compute waited for weights.
    pub stall_s: f64,
    /// Seconds the copy lane waited for a free slot.
    pub evict_wait_s: f64,
    /// Seconds the disk lane was busy.
    pub disk_s: f64,
    /// Seconds compute was busy.
    #[serde(default)]
    pub compute_s: Option<f64>,
    /// Of `stall_s`, seconds in which the drive had delivered and the copy was under way.
    #[serde(default)]
    pub stall_link_s: Option<f64>,
    /// Of `stall_s`, seconds in which the drive was waited for.
    #[serde(default)]
    pub stall_disk_s: Option<f64>,
    /// `(block, resident)` over the last step.
    pub resident_history: Vec<(usize, usize)>,
}

/// Least, middle and most of a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Least.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Most.
    pub max: f64,
    /// Samples.
    pub n: usize,
}

/// Gauges over the run; `None` where the driver gave none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GaugesReport {
    /// SM clock, MHz.
    pub sm_clock_mhz: Option<Spread>,
    /// Board power, watts.
    pub power_w: Option<Spread>,
    /// GPU temperature, Celsius.
    pub gpu_temp_c: Option<Spread>,
    /// Temperature of the checkpoint's drive, Celsius.
    #[serde(default)]
    pub drive_temp_c: Option<Spread>,
}

/// One stretch of the run between a start and its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// When it began, UTC.
    pub started: Option<String>,
    /// What it computed on.
    pub device: String,
    /// Steps already done when it began.
    pub from_step: u64,
    /// Steps done when it ended.
    pub to_step: u64,
    /// How it ended.
    pub status: RunStatus,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// A warning or error of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeLine {
    /// How serious.
    pub level: Level,
    /// The text.
    pub text: String,
}

/// A file of the run's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Length.
    pub bytes: Bytes,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}
