//! The two seams of the program: [`Engine`] (what trains) and [`Services`] (what the screen may ask for).
//!
//! `train` implements [`Engine`], `worker` runs one on its own thread, and the screen sees only [`Services`]:
//! so the planner, the screen and the script also build and test without libtorch.

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::event::{Command, Event, EventKind, RunStatus, TierName};
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Where an engine sends its events.
pub trait EventSink: Send + Sync {
    /// Sends an event. Lifecycle events block until taken; telemetry is dropped and counted when the hub is busy.
    fn send(&self, kind: EventKind);
    /// Telemetry dropped so far.
    fn dropped(&self) -> u64;
}

/// Everything an engine needs to know about the run it is given.
#[derive(Clone, Debug)]
pub struct Job {
    /// The resolved config.
    pub config: RunConfig,
    /// The run's folder, which exists; nothing is written outside it.
    pub run_dir: PathBuf,
    /// Name of that folder.
    pub run_id: String,
    /// The plan this run executes: placement, slots, budgets.
    pub plan: crate::plan::PlanReport,
    /// What to go on from.
    pub resume: Option<Resume>,
}

/// A run to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// One of its checkpoint folders.
    pub checkpoint: PathBuf,
    /// Take other rows, and another factor on what was trained.
    pub force: bool,
}

impl From<PathBuf> for Resume {
    /// As it was, or not at all.
    fn from(checkpoint: PathBuf) -> Resume {
        Resume { checkpoint, force: false }
    }
}

/// Something that trains: the real trainer, or a scripted one for screen tests.
pub trait Engine: Send {
    /// Runs the job to its end, or to where `control` stops it. Sends `Started` once checkpoint, plan and data are known
    /// (only stages and notices come before); the worker sends `Finished`.
    ///
    /// # Errors
    /// Whatever stopped the run.
    fn run(&mut self, job: &Job, sink: &Arc<dyn EventSink>, control: &Control) -> Result<Outcome>;
}

/// How an engine's run ended, and what the report needs that only it knows.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Finished, stopped or aborted; the worker turns signals into `Interrupted`/`Terminated`.
    pub status: RunStatus,
    /// Why it failed, where it did.
    pub reason: Option<String>,
    /// It failed for what it was given: config, checkpoint or data.
    pub refused: bool,
    /// Steps complete.
    pub step: u64,
    /// Newest checkpoint to resume from; it exists.
    pub checkpoint: Option<PathBuf>,
    /// Device memory figures.
    pub vram: crate::event::VramFigures,
    /// Streaming statistics.
    pub stats: crate::event::StreamStats,
    /// Most blocks on the device at once.
    pub residency_peak: usize,
}

/// Requests to a running engine, polled between blocks and inside long ones. Cheap to clone; all clones share state.
#[derive(Clone, Debug, Default)]
pub struct Control(Arc<ControlState>);

#[derive(Debug, Default)]
struct ControlState {
    pause: AtomicBool,
    save: AtomicBool,
    stop: AtomicU8,
}

/// How far a stop has been asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Not at all.
    No,
    /// Finish the step, save, stop.
    AfterStep,
    /// Drop the step in progress, save the last whole one, stop.
    DropStep,
    /// Save nothing more, stop.
    AtOnce,
}

impl Control {
    /// Passes a command on; a stop can only get stronger.
    pub fn send(&self, command: Command) {
        let s = &self.0;
        match command {
            Command::Pause => s.pause.store(true, Ordering::SeqCst),
            Command::Resume => s.pause.store(false, Ordering::SeqCst),
            Command::SaveNow => s.save.store(true, Ordering::SeqCst),
            Command::StopAndSave => {
                s.stop.fetch_max(1, Ordering::SeqCst);
            }
            Command::DropStep => {
                s.stop.fetch_max(2, Ordering::SeqCst);
            }
            Command::Discard => {
                s.stop.fetch_max(3, Ordering::SeqCst);
            }
        }
    }
    /// Whether to wait after this step.
    #[must_use]
    pub fn paused(&self) -> bool {
        self.0.pause.load(Ordering::SeqCst)
    }
    /// Whether a save was asked for; asking clears it.
    #[must_use]
    pub fn take_save(&self) -> bool {
        self.0.save.swap(false, Ordering::SeqCst)
    }
    /// How far a stop has been asked for.
    #[must_use]
    pub fn stop(&self) -> Stop {
        match self.0.stop.load(Ordering::SeqCst) {
            0 => Stop::No,
            1 => Stop::AfterStep,
            2 => Stop::DropStep,
            _ => Stop::AtOnce,
        }
    }
    /// For work that a stop of `strength` or a stronger one ends.
    ///
    /// # Errors
    /// Such a stop was asked for ([`Error::is_stop`]).
    pub fn check(&self, strength: Stop) -> Result<()> {
        if self.stop() >= strength { Err(Error::stopped()) } else { Ok(()) }
    }
}

/// A checkpoint the user can pick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelEntry {
    /// Shown name: hub id or folder name.
    pub name: String,
    /// What `--model` takes to open it.
    pub path: PathBuf,
    /// Where it was found: `folder`, `hub cache`, `demo`.
    pub origin: String,
    /// Family, or why it can't be used.
    pub family: String,
    /// Parameters, 0 if unknown.
    pub params: u64,
    /// Bytes of its weights.
    pub bytes: Bytes,
    /// Decoder blocks.
    pub n_blocks: usize,
    /// `None` if it can be trained, else the reason.
    pub problem: Option<String>,
    /// Only its headers are here: it can be planned, not trained.
    #[serde(default)]
    pub not_here: bool,
}

/// What a download would fetch and write, before any of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DownloadPlan {
    /// `owner/name[@revision]`.
    pub model: String,
    /// The commit that the revision is at.
    pub commit: String,
    /// Files of the model that training needs.
    pub files: usize,
    /// Their bytes.
    pub total: Bytes,
    /// Bytes of them that are still to come; as many are written to the drive, once.
    pub fetch: Bytes,
    /// Bytes free on the cache's drive.
    pub free: Bytes,
    /// The hub cache.
    pub cache: PathBuf,
}

/// What a fetch from the hub says. It goes on beside the screen; one at a time.
#[derive(Clone, Debug, PartialEq)]
pub enum Fetched {
    /// How far it is.
    Progress(crate::event::Stage),
    /// Headers are here: what `--model` takes to plan them.
    Headers(String),
    /// What a download would take.
    Survey(DownloadPlan),
    /// The model is here, and can be trained.
    Model(String),
    /// It was cancelled; what had come is kept.
    Cancelled,
    /// It failed; what had come is kept.
    Failed(String),
}

/// A past or present run, read from its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// Folder name.
    pub run_id: String,
    /// Its folder.
    pub dir: PathBuf,
    /// Model name.
    pub model: String,
    /// `RAM`, `LORA_DISK`, …
    pub verdict: String,
    /// How it ended.
    pub status: RunStatus,
    /// Steps complete.
    pub steps: u64,
    /// First and last training loss.
    pub loss: (Option<f64>, Option<f64>),
    /// Held-out loss before and after.
    pub eval: (Option<f64>, Option<f64>),
    /// Median seconds per step.
    pub seconds_per_step: Option<f64>,
    /// Tiers of its blocks.
    pub tiers: Vec<TierName>,
    /// Month it began in, `2026-11`; empty if unknown.
    #[serde(default)]
    pub month: String,
    /// Bytes it wrote, to the model's drive and to its own folder.
    #[serde(default)]
    pub written: Bytes,
    /// The model to name beside its adapter: the folder or id it was trained from. `None`: it left no adapter.
    #[serde(default)]
    pub adapter: Option<String>,
}

/// What the screen may ask of the rest of the program. Calls return fast or say that work has begun.
pub trait Services {
    /// Checkpoints on this machine: the one named on the command line, the demo, folders, the hub cache.
    fn models(&mut self) -> Vec<ModelEntry>;
    /// Plans `config` on this machine (or its profile). Pure after headers are read; a few milliseconds.
    ///
    /// # Errors
    /// The checkpoint can't be read.
    fn plan(&mut self, config: &RunConfig) -> Result<crate::plan::PlanReport>;
    /// Plans `config` for the machine with `edits` made, for screens that ask "what if".
    ///
    /// # Errors
    /// As [`Services::plan`], or an edit is for a card that isn't there.
    fn what_if(&mut self, config: &RunConfig, edits: &[crate::plan::Edit]) -> Result<crate::plan::PlanReport>;
    /// Why `config` could not be started now, however well it fits; `None` where nothing is in the way.
    fn unready(&mut self, _config: &RunConfig) -> Option<String> {
        None
    }
    /// Folders that a path being typed can go on to, for a prompt to complete.
    fn folders(&mut self, _typed: &str) -> Vec<String> {
        Vec::new()
    }
    /// Starts a run on the worker thread; its events arrive by [`Services::poll`].
    ///
    /// # Errors
    /// A run is in progress, the plan is infeasible, or its folder can't be made.
    fn start(&mut self, config: &RunConfig) -> Result<()>;
    /// Events since the last call, in order. Never blocks.
    fn poll(&mut self) -> Vec<Event>;
    /// Passes a command to the running trainer, if any.
    fn command(&mut self, command: Command);
    /// The terminal is gone: counts as the SIGHUP that tells of it, which may come later, or not at all.
    fn hang_up(&mut self) {}
    /// Telemetry of the running trainer dropped so far, because a reader was slow.
    fn dropped(&self) -> u64 {
        0
    }
    /// Runs under the results folder, newest first.
    fn runs(&mut self) -> Vec<RunEntry>;
    /// The report of a run, as the JSON its folder holds.
    ///
    /// # Errors
    /// The folder holds no readable report.
    fn report(&mut self, run_dir: &Path) -> Result<serde_json::Value>;
    /// Begins to fetch the headers of hub model `owner/name[@revision]`; answers come by [`Services::fetched`].
    ///
    /// # Errors
    /// Not an id, a fetch is going on, or this desk has no hub.
    fn fetch_headers(&mut self, _id: &str) -> Result<()> {
        Err(no_hub())
    }
    /// Begins to ask what a download of a model would take.
    ///
    /// # Errors
    /// As [`Services::fetch_headers`].
    fn survey(&mut self, _id: &str) -> Result<()> {
        Err(no_hub())
    }
    /// Begins the download that was surveyed last.
    ///
    /// # Errors
    /// As [`Services::fetch_headers`], or nothing was surveyed.
    fn download(&mut self) -> Result<()> {
        Err(no_hub())
    }
    /// Asks the fetch that is going on to stop.
    fn cancel_fetch(&mut self) {}
    /// What the fetch has said since the last call, in order; of its progress only the newest. Never blocks.
    fn fetched(&mut self) -> Vec<Fetched> {
        Vec::new()
    }
    /// Exports a finished run: `peft`, later more. Returns what was written.
    ///
    /// # Errors
    /// Unknown kind, or the run has no adapter.
    fn export(&mut self, run_dir: &Path, kind: &str) -> Result<PathBuf>;
}

/// The error of an engine that isn't in this build.
#[must_use]
pub fn no_engine() -> Error {
    Error::device("this build has no training engine (feature 'torch' is off)").next("build with default features")
}

/// The error of a desk that can't reach a hub.
#[must_use]
pub fn no_hub() -> Error {
    Error::usage("there is no access to a model hub here").next("use `download` of a build with feature 'hub'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_only_gets_stronger() {
        let c = Control::default();
        c.send(Command::DropStep);
        c.send(Command::StopAndSave);
        assert_eq!(c.stop(), Stop::DropStep);
        assert!(c.check(Stop::AfterStep).is_err_and(|e| e.is_stop()) && c.check(Stop::AtOnce).is_ok());
        c.send(Command::Discard);
        assert_eq!(c.stop(), Stop::AtOnce);
        c.send(Command::SaveNow);
        assert!(c.take_save() && !c.take_save());
    }
}
