//! The scripted desk's record: a `report.json` with the contract's keys, made from events like the real one.

use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind, RunFinished, RunStarted, StepRecord};
use crate::plan::ModePlan;
use crate::units::Bytes;
use crate::worker::Record;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Collects what the report needs.
pub(crate) struct FakeRecord {
    pub dir: PathBuf,
    pub config: RunConfig,
    pub plan: ModePlan,
    pub started: RunStarted,
    pub steps: Vec<StepRecord>,
    pub evals: Vec<f64>,
    pub finished: Option<RunFinished>,
}

impl FakeRecord {
    pub fn new(dir: PathBuf, config: RunConfig, plan: ModePlan) -> FakeRecord {
        let started = RunStarted::default();
        FakeRecord { dir, config, plan, started, steps: Vec::new(), evals: Vec::new(), finished: None }
    }
}

impl Record for FakeRecord {
    fn record(&mut self, event: &Event) -> Result<()> {
        match &event.kind {
            EventKind::Started(s) => self.started = s.clone(),
            EventKind::Step(s) => self.steps.push(s.clone()),
            EventKind::Eval(e) => self.evals.push(e.loss),
            EventKind::Finished(f) => self.finished = Some(f.clone()),
            _ => {}
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<PathBuf> {
        let path = self.dir.join("report.json");
        let text = format!("{:#}\n", report(&self));
        std::fs::write(&path, text).map_err(|e| Error::io("write", &path, e))?;
        Ok(path)
    }
}

fn report(r: &FakeRecord) -> Value {
    let sum = |f: fn(&StepRecord) -> Bytes| r.steps.iter().map(f).sum::<Bytes>();
    let (first, last) = (r.steps.first(), r.steps.last());
    let finished = r.finished.as_ref();
    json!({
        "schema": 1,
        "run_id": r.started.run_id,
        "model": r.started.model,
        "verdict": r.started.verdict,
        "mode": r.started.mode,
        "status": finished.map(|f| f.status),
        "steps": last.map_or(0, |s| s.step),
        "tokens": r.steps.iter().map(|s| s.tokens).sum::<u64>(),
        "loss": { "first": first.map(StepRecord::loss), "last": last.map(StepRecord::loss) },
        "eval": { "before": r.evals.first(), "after": r.evals.get(1..).and_then(<[f64]>::last) },
        "residency": { "planned": r.started.residency_planned, "peak": finished.map(|f| f.residency_peak) },
        "bytes": {
            "disk_read": sum(|s| s.disk_read), "h2d": sum(|s| s.h2d), "d2h": sum(|s| s.d2h),
            "model_drive_written": sum(|s| s.model_drive_written),
        },
        "seconds_per_step": { "median": last.map(|s| s.seconds), "p95": last.map(|s| s.seconds) },
        "bound": { "resource": last.map(|s| &s.bound_by), "seconds": last.map(|s| s.bound_s) },
        "forecast": { "low": r.plan.seconds_per_step.low, "high": r.plan.seconds_per_step.high },
        "vram": {
            "planned": r.plan.vram.total, "live": finished.map(|f| f.vram.live),
            "reserved": finished.map(|f| f.vram.reserved), "device": finished.and_then(|f| f.vram.device),
        },
        "tiers": r.plan.tiers,
        "seed": r.config.train.seed,
    })
}
