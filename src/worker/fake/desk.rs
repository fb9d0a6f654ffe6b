//! The scripted desk: [`Services`] over canned facts and a [`FakeEngine`] on the real threads.

use super::engine::{FakeEngine, Fault};
use super::facts;
use super::hub::FakeHub;
use super::record::FakeRecord;
use crate::config::RunConfig;
use crate::engine::{Fetched, Job, ModelEntry, RunEntry, Services};
use crate::error::{Error, Result};
use crate::event::{Command, Event, EventKind, Gauges};
use crate::plan::{Edit, PlanReport};
use crate::report;
use crate::units::Bytes;
use crate::worker::desk::refuse_infeasible;
use crate::worker::{RunHandle, Signals};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A desk for tests of the screen, the script and the terminal.
pub struct FakeDesk {
    /// The engine of each run.
    pub engine: FakeEngine,
    /// Folder of run folders.
    pub results: PathBuf,
    /// Signals that stop a run.
    pub signals: Signals,
    run: Option<RunHandle>,
    started: usize,
    hub: FakeHub,
}

impl FakeDesk {
    /// A desk whose runs go under `results`.
    #[must_use]
    pub fn new(engine: FakeEngine, results: PathBuf, signals: Signals) -> FakeDesk {
        FakeDesk { engine, results, signals, run: None, started: 0, hub: FakeHub::default() }
    }
}

impl Services for FakeDesk {
    fn models(&mut self) -> Vec<ModelEntry> {
        facts::models().into_iter().chain(self.hub.models()).collect()
    }

    fn plan(&mut self, config: &RunConfig) -> Result<PlanReport> {
        let models = self.models();
        facts::plan_of(config, models, &[])
    }

    fn what_if(&mut self, config: &RunConfig, edits: &[Edit]) -> Result<PlanReport> {
        facts::plan_of(config, facts::models(), edits)
    }

    fn start(&mut self, config: &RunConfig) -> Result<()> {
        if self.run.as_ref().is_some_and(RunHandle::running) {
            return Err(Error::run("a run is in progress").next("stop it first"));
        }
        let plan = self.plan(config)?;
        refuse_infeasible(config, &plan)?;
        if self.hub.models().any(|m| m.not_here && m.path.as_os_str() == config.model.path.as_str()) {
            return Err(Error::checkpoint(format!("the weights of '{}' are not on this machine", config.model.path))
                .next(format!("fetch them with `blockstream-tui download {}`", config.model.path)));
        }
        self.started += 1;
        let run_id = format!("fake-{}", self.started);
        let run_dir = config.results.as_ref().unwrap_or(&self.results).join(&run_id);
        std::fs::create_dir_all(&run_dir).map_err(|e| Error::io("create", &run_dir, e))?;
        let record = FakeRecord::new(run_dir.clone(), config.clone(), plan.modes.of(config.train.mode).clone());
        let job = Job { config: config.clone(), run_dir, run_id, plan: plan.clone(), resume: None };
        let engine = FakeEngine { n_blocks: plan.n_blocks, ..self.engine.clone() };
        let gauges = Box::new(|| Gauges {
            sm_clock_mhz: Some(1_785),
            gpu_util: Some(97),
            gpu_temp_c: Some(71),
            drive_temp_c: Some(54),
            vram_used: Some(Bytes(1_325_400_064)),
            rss_anon: Some(Bytes(3_100_000_000)),
            ram_available: Some(Bytes(7_900_000_000)),
            ..Gauges::default()
        });
        self.run = Some(RunHandle::spawn(Box::new(engine), job, Box::new(record), gauges, self.signals.clone())?);
        Ok(())
    }

    fn poll(&mut self) -> Vec<Event> {
        assert!(self.engine.fault != Fault::Screen, "the screen panicked as told");
        let events = self.run.as_ref().map(RunHandle::poll).unwrap_or_default();
        if events.iter().any(|e| matches!(e.kind, EventKind::Finished(_))) {
            self.run = None;
        }
        events
    }

    fn command(&mut self, command: Command) {
        if let Some(run) = &self.run {
            run.command(command);
        }
    }

    fn hang_up(&mut self) {
        self.signals.hang_up();
    }

    fn dropped(&self) -> u64 {
        self.run.as_ref().map_or(0, RunHandle::dropped)
    }

    fn runs(&mut self) -> Vec<RunEntry> {
        facts::runs()
    }

    fn fetch_headers(&mut self, id: &str) -> Result<()> {
        self.hub.headers(id)
    }

    fn survey(&mut self, id: &str) -> Result<()> {
        self.hub.survey(id)
    }

    fn download(&mut self) -> Result<()> {
        self.hub.download()
    }

    fn cancel_fetch(&mut self) {
        self.hub.cancel();
    }

    fn fetched(&mut self) -> Vec<Fetched> {
        self.hub.said()
    }

    fn report(&mut self, run_dir: &Path) -> Result<Value> {
        if run_dir.join("report.json").exists() {
            return report::load(run_dir);
        }
        let entry = facts::runs().into_iter().find(|r| r.dir == run_dir);
        let entry = entry.ok_or_else(|| Error::run(format!("'{}' holds no report", run_dir.display())))?;
        if entry.steps == 0 {
            return Err(Error::run(format!("'{}' holds no report", run_dir.display())));
        }
        Ok(json!({
            "schema": 1, "run_id": entry.run_id, "model": entry.model, "verdict": entry.verdict, "mode": "lora",
            "status": entry.status, "steps": entry.steps, "tokens": entry.steps * 2_048,
            "loss": { "first": entry.loss.0, "last": entry.loss.1 },
            "eval": { "before": entry.eval.0, "after": entry.eval.1 },
            "residency": { "planned": 13, "peak": 13 },
            "bytes": { "disk_read": entry.steps * 141_600_000, "h2d": entry.steps * 283_200_000, "d2h": 0,
                       "model_drive_written": 0 },
            "seconds_per_step": { "median": entry.seconds_per_step, "p95": entry.seconds_per_step },
            "bound": { "resource": "disk", "seconds": 0.38 },
            "forecast": { "low": 0.39, "high": 0.53 },
            "vram": { "planned": 6_100_000_000u64, "live": 5_900_000_000u64, "reserved": 6_100_000_000u64,
                      "device": 6_420_000_000u64 },
        }))
    }

    fn export(&mut self, run_dir: &Path, kind: &str) -> Result<PathBuf> {
        match kind {
            "peft" => Ok(run_dir.join("adapter")),
            other => Err(Error::usage(format!("no export '{other}'")).next("export peft")),
        }
    }
}
