//! Our own `train` as a child of this program, and what its records say.

use super::child::{self, Ended};
use super::scratch::Scratch;
use super::stats::Sample;
use crate::config::{RunConfig, load};
use crate::error::{Error, Result};
use crate::event::TierName;
use crate::plan::{ModePlan, PlanReport};
use crate::report::{METRICS_FILE, PLAN_FILE, REPORT_FILE};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A finished run.
#[derive(Debug)]
pub struct Ours {
    /// Seconds of each step after the warm-up.
    pub seconds: Sample,
    /// `report.json`.
    pub report: Value,
    /// The plan it ran by.
    pub plan: ModePlan,
    /// Loss of the first step.
    pub loss_first: Option<f64>,
    /// Seconds of the first step.
    pub first_step: Option<f64>,
    /// Bytes the whole process sent towards a drive; `None` where its records went to one too.
    pub written: Option<u64>,
    /// Seconds from start to end of the process.
    pub wall: f64,
}

/// What a benchmark never does: evaluate, and save on the way.
pub fn quiet(config: &mut RunConfig) {
    config.data.eval_files.clear();
    config.data.eval_split = 0.0;
    config.train.eval_steps = 0;
    config.train.save_steps = 0;
}

/// Writes rows of random token ids below `vocab`, each of `length`, for data that needs no tokenizer.
///
/// # Errors
/// The file can't be written.
pub fn random_rows(path: &Path, rows: usize, length: usize, vocab: usize) -> Result<()> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        // xorshift64*: any ids do, as long as every machine has the same.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % vocab.max(1) as u64
    };
    let mut text = String::new();
    for _ in 0..rows {
        let ids: Vec<u64> = (0..length).map(|_| next()).collect();
        text += &format!("{}\n", json!({ "input_ids": ids }));
    }
    std::fs::write(path, text).map_err(|e| Error::io("write", path, e))
}

/// Runs `config` (its model, data and steps are set; `results` is ours) and leaves the first `warmup` steps out.
///
/// The run's folder, its config and its log are in `scratch`; `keep_log` is where the log goes if it fails.
///
/// # Errors
/// The run doesn't end well: what it said last.
pub fn run(config: &RunConfig, warmup: u64, limit: Duration, keep_log: Option<&Path>) -> Result<Ours> {
    let scratch = Scratch::new()?;
    let mut config = config.clone();
    let results = scratch.dir.join("runs");
    config.results = Some(results.clone());
    quiet(&mut config);
    let file = scratch.dir.join("config.toml");
    std::fs::write(&file, load::to_toml(&config)?).map_err(|e| Error::io("write", &file, e))?;
    let log = scratch.dir.join("log");
    let ended = child::run(command(&file)?.arg("train").arg("--config").arg(&file), &log, limit)?;
    if let Some(why) = ended.failure() {
        if let Some(kept) = keep_log {
            let _ = std::fs::copy(&log, kept);
        }
        let what = Error::run(format!("train {why}"));
        return Err(match keep_log {
            Some(kept) => what.next(format!("read its log, '{}'", kept.display())),
            None => what.next("run `train` with the same keys to see all it says"),
        });
    }
    let mut ours = read(&folder(&results)?, warmup, &ended)?;
    ours.written = ours.written.filter(|_| scratch.in_memory);
    Ok(ours)
}

/// This program, told nothing by the environment that `config` (already the sum of all layers) doesn't say.
fn command(config: &Path) -> Result<Command> {
    let me = std::env::current_exe().map_err(|e| Error::io("find this program for", config, e))?;
    let mut command = Command::new(me);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BSTUI_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// The one run folder in `results`.
fn folder(results: &Path) -> Result<PathBuf> {
    let mut entries = std::fs::read_dir(results).map_err(|e| Error::io("list", results, e))?.flatten();
    let found = entries.find(|e| e.path().join(REPORT_FILE).is_file()).map(|e| e.path());
    found.ok_or_else(|| Error::run("train ended well but left no report"))
}

fn read(run: &Path, warmup: u64, ended: &Ended) -> Result<Ours> {
    let text = |name: &str| {
        let path = run.join(name);
        std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))
    };
    let odd = |name: &str, e: serde_json::Error| Error::run(format!("the run's {name} can't be read: {e}"));
    let report: Value = serde_json::from_str(&text(REPORT_FILE)?).map_err(|e| odd(REPORT_FILE, e))?;
    let plan: PlanReport = serde_json::from_str(&text(PLAN_FILE)?).map_err(|e| odd(PLAN_FILE, e))?;
    let metrics = text(METRICS_FILE)?;
    let steps: Vec<Value> = metrics
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .filter(|v: &Value| v["step_time"].is_number())
        .collect();
    let measured = steps.iter().skip(warmup as usize).filter_map(|s| s["step_time"].as_f64());
    let seconds = Sample::of(measured);
    if seconds.n() == 0 {
        return Err(Error::run(format!("the run has {} steps, and {warmup} of them are warm-up", steps.len()))
            .next("raise --steps"));
    }
    let mode = if report["mode"] == "full" { plan.modes.full } else { plan.modes.lora };
    Ok(Ours {
        seconds,
        loss_first: steps.first().and_then(|s| s["loss"].as_f64()),
        first_step: steps.first().and_then(|s| s["step_time"].as_f64()),
        report,
        plan: mode,
        written: ended.written,
        wall: ended.seconds,
    })
}

impl Ours {
    /// Whether every block stayed on the device.
    #[must_use]
    pub fn all_resident(&self) -> bool {
        self.plan.placement.iter().all(|p| p.tier == TierName::Vram)
    }

    /// Bytes per second that its steps read from the drive, at the median.
    #[must_use]
    pub fn drive_rate(&self) -> f64 {
        let bytes: u64 = self.plan.sweeps.iter().map(|s| s.disk_read.0).sum();
        self.seconds.median().map_or(0.0, |seconds| bytes as f64 / seconds)
    }

    /// Blocks per tier.
    #[must_use]
    pub fn blocks(&self) -> Value {
        let count = |t: TierName| self.plan.placement.iter().filter(|p| p.tier == t).count();
        json!({
            "vram": count(TierName::Vram),
            "ram": count(TierName::Ram),
            "disk": count(TierName::Disk),
            "ring": self.plan.ring_slots,
        })
    }

    /// Live VRAM peak in bytes; `None` on a CPU.
    #[must_use]
    pub fn vram_live(&self) -> Option<u64> {
        self.report["vram"]["live"].as_u64().filter(|b| *b > 0)
    }

    /// What the report says, cut down to what a result needs.
    #[must_use]
    pub fn json(&self) -> Value {
        let r = &self.report;
        json!({
            "seconds_per_step": self.seconds.json(),
            "first_step_s": self.first_step,
            "loss": { "first": self.loss_first, "last": r["loss"]["last"] },
            "verdict": r["verdict"],
            "blocks": self.blocks(),
            "residency": r["residency"],
            "bytes": { "per_step": r["bytes"]["per_step"], "planned_per_step": r["bytes"]["planned_per_step"] },
            "written": { "process": self.written, "model_drive": r["bytes"]["model_drive_written"] },
            "vram": r["vram"],
            "host": self.plan.host.terms,
            "stats": {
                "h2d_s": r["stats"]["h2d_s"],
                "stall_s": r["stats"]["stall_s"],
                "evict_wait_s": r["stats"]["evict_wait_s"],
                "disk_s": r["stats"]["disk_s"],
            },
            "setup": r["setup"],
            "sm_clock_mhz": r["gauges"]["sm_clock_mhz"],
            "wall_s": self.wall,
        })
    }
}
