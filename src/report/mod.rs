//! The run's record: consumes events only, owns the run's folder, writes the report.

use crate::config::RunConfig;
use crate::engine::RunEntry;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::plan::PlanReport;
use std::path::{Path, PathBuf};

/// Writes a run's files while it goes and its report at the end.
#[derive(Debug)]
pub struct Recorder {
    /// The run's folder.
    pub dir: PathBuf,
}

impl Recorder {
    /// Writes `config.toml`, `plan.json`, `env.json` and opens `metrics.jsonl`, `events.jsonl` (appends on resume).
    ///
    /// # Errors
    /// The disk refuses.
    pub fn create(dir: &Path, config: &RunConfig, plan: &PlanReport, env: &serde_json::Value) -> Result<Recorder> {
        let _ = (config, plan, env);
        Ok(Recorder { dir: dir.to_path_buf() })
    }
    /// Takes one event; steps and evals also go to `metrics.jsonl`.
    ///
    /// # Errors
    /// The disk refuses; the run must stop rather than lose its record.
    pub fn record(&mut self, event: &Event) -> Result<()> {
        let _ = event;
        Ok(())
    }
    /// Writes `report.json`, `report.md`, `report.html`, `loss.svg`; returns the path of `report.json`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn finish(self) -> Result<PathBuf> {
        Ok(self.dir.join("report.json"))
    }
}

/// Makes a fresh run folder `<UTC time>-<model>-<mode>` under `results`; the name is unique.
///
/// # Errors
/// The folder can't be made.
pub fn new_run_dir(results: &Path, model: &str, mode: &str) -> Result<(String, PathBuf)> {
    let _ = (results, model, mode);
    Err(Error::run("no run folder"))
}

/// Runs under `results`, newest first; unreadable ones are shown as such, not hidden.
#[must_use]
pub fn list(results: &Path) -> Vec<RunEntry> {
    let _ = results;
    Vec::new()
}
