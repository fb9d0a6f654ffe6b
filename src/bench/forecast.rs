//! `bench forecast`: the planner's word against what happened, over many jobs on one machine.
//!
//! Every point is our own `train` as a child; its `plan.json` was written before its first step. What is compared: live
//! VRAM against the plan's sum, seconds per step against the plan's range.

use super::ours::{self, Ours};
use super::scratch::without_paths;
use super::stats::Sample;
use super::{BENCH_SCHEMA, Say};
use crate::checkpoint;
use crate::clock;
use crate::config::{DataFormat, RunConfig, load};
use crate::device::probe;
use crate::error::{Error, Result};
use crate::plan::soup_vram;
use crate::report;
use crate::units::{Bytes, secs};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most a plan of live VRAM may be over what was live: a share of it, or bytes, whichever is more.
const OVER: (f64, u64) = (0.03, 32 << 20);

/// What a call is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The table of points.
    pub points: PathBuf,
    /// Folder of the models they name.
    pub models: PathBuf,
    /// Only points whose name begins with one of these; empty = all.
    pub only: Vec<String>,
    /// Folder for `vram-forecast.json` and `time-forecast.json`.
    pub out: PathBuf,
    /// Time for the whole call.
    pub time: Duration,
    /// The command line, for the record.
    pub command: String,
}

/// The table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Keys of every point, `a.b=v`.
    set: Vec<String>,
    /// Measured steps.
    steps: u64,
    /// Steps before them.
    warmup: u64,
    /// The jobs.
    pub point: Vec<Point>,
}

/// A job.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Its name.
    pub name: String,
    /// Folder of its model.
    pub model: String,
    /// Where its blocks are: `ram`, `mixed`, `resident`, `disk`.
    pub tier: String,
    /// Its own keys.
    #[serde(default)]
    pub set: Vec<String>,
    /// Whether its step's time is compared too.
    #[serde(default)]
    pub time: bool,
    /// Measured steps, instead of the table's.
    #[serde(default)]
    pub steps: Option<u64>,
}

impl Table {
    /// Reads the table.
    ///
    /// # Errors
    /// It can't be read or has a key that doesn't belong.
    pub fn open(path: &Path) -> Result<Table> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::input("read", path, e))?;
        toml::from_str(&text).map_err(|e| Error::usage(format!("'{}': {}", path.display(), e.message())))
    }

    /// The run that `point` asks for.
    ///
    /// # Errors
    /// A key is unknown or its value can't be.
    pub fn config(&self, point: &Point) -> Result<RunConfig> {
        let sets: Vec<String> = self.set.iter().chain(&point.set).cloned().collect();
        let loaded = load::load(None, &[], &sets);
        let mut config = loaded.map_err(|e| Error::usage(format!("point '{}': {}", point.name, e.what())))?.config;
        config.train.max_steps = self.warmup + point.steps.unwrap_or(self.steps);
        Ok(config)
    }
}

/// Runs the points: a line for each, and the two files.
///
/// # Errors
/// The table or a key of it won't do, or a file can't be written. A point that fails is told and left out.
pub fn run(options: &Options, say: Say<'_>) -> Result<Value> {
    let table = Table::open(&options.points)?;
    let wanted = |p: &&Point| options.only.is_empty() || options.only.iter().any(|o| p.name.starts_with(o.as_str()));
    let machine = probe::measure(Some(&options.models), true);
    let begun = Instant::now();
    let (mut vram, mut time, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for point in table.point.iter().filter(wanted) {
        let left = options.time.saturating_sub(begun.elapsed());
        if left < Duration::from_secs(5) {
            failed.push(json!({ "point": point.name, "reason": super::peers::NO_TIME }));
            continue;
        }
        match one(&table, point, options, left) {
            Ok((config, ours)) => {
                let (v, t) = (vram_point(point, &config, &ours), time_point(point, &config, &ours));
                say(&format!("[{}] {} {}", point.name, line(&v), line(&t)));
                vram.extend(v);
                time.extend(t.filter(|_| point.time));
            }
            Err(e) => {
                say(&format!("[{}] {e}", point.name));
                failed.push(json!({ "point": point.name, "reason": e.to_string() }));
            }
        }
    }
    let mut env = report::environment(None, &machine);
    if let Some(gpu) = env["gpu"].as_object_mut() {
        gpu.remove("uuid");
    }
    let head = json!({
        "schema": BENCH_SCHEMA,
        "what": "forecast",
        "machine": { "gpu": env["gpu"], "os": env["os"], "tool": env["tool"], "ram_total": env["ram_total"], "rates": machine.source },
        "date": clock::utc(clock::unix_now()),
        "command": without_paths(&options.command),
        "failed": failed,
    });
    let with = |summary: Value, points: Vec<Value>| {
        let mut all = head.clone();
        (all["summary"], all["points"]) = (summary, points.into());
        all
    };
    let files = [
        ("vram-forecast.json", with(vram_summary(&vram), vram)),
        ("time-forecast.json", with(time_summary(&time), time)),
    ];
    std::fs::create_dir_all(&options.out).map_err(|e| Error::io("create", &options.out, e))?;
    for (name, value) in &files {
        let path = options.out.join(name);
        let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
        crate::files::replace(&path, text.as_bytes())?;
        say(&format!("{name}: {}", value["summary"]));
    }
    let [(_, vram), (_, time)] = files;
    Ok(json!({ "schema": BENCH_SCHEMA, "vram": vram, "time": time }))
}

fn one(table: &Table, point: &Point, options: &Options, limit: Duration) -> Result<(RunConfig, Ours)> {
    let mut config = table.config(point)?;
    config.model.path = options.models.join(&point.model).to_string_lossy().into_owned();
    let opened = checkpoint::open(&checkpoint::resolve(&config.model.path)?)?;
    let scratch = super::scratch::Scratch::new()?;
    let rows = config.train.per_device_train_batch_size * config.train.gradient_accumulation_steps;
    let path = scratch.dir.join("rows.jsonl");
    ours::random_rows(&path, rows, config.data.max_length, opened.arch.vocab)?;
    config.data.files = vec![path];
    config.data.format = DataFormat::Tokens;
    let ours = ours::run(&config, table.warmup, limit, None)?;
    Ok((config, ours))
}

/// What every point says of its job.
fn job(point: &Point, config: &RunConfig, ours: &Ours) -> Value {
    let t = &config.train;
    json!({
        "point": point.name,
        "model": point.model,
        "tier": point.tier,
        "batch": t.per_device_train_batch_size,
        "length": config.data.max_length,
        "micro_batches": t.gradient_accumulation_steps,
        "r": config.lora.r,
        "targets": config.lora.targets,
        "loss_chunk": config.stream.loss_chunk,
        "verdict": ours.plan.verdict,
        "blocks": ours.blocks(),
        "stream": ours.plan.stream,
    })
}

fn vram_point(point: &Point, config: &RunConfig, ours: &Ours) -> Option<Value> {
    let measured = ours.vram_live()?;
    let predicted = ours.plan.vram.total.0;
    let over = predicted as i64 - measured as i64;
    let mut out = job(point, config, ours);
    out["predicted"] = json!(predicted);
    out["measured"] = json!(measured);
    out["over"] = json!(over);
    out["over_share"] = json!(over as f64 / measured as f64);
    out["ok"] = json!(over >= 0 && over as u64 <= ((measured as f64 * OVER.0) as u64).max(OVER.1));
    out["soup"] = json!(soup(config, ours));
    out["terms"] = json!(ours.plan.vram.terms);
    Some(out)
}

/// What soup-cli's estimator says of the same job; it knows no resident blocks and no streamed head.
fn soup(config: &RunConfig, ours: &Ours) -> Option<u64> {
    let streamed =
        ours.plan.ring_slots > 0 && ours.plan.placement.iter().all(|p| p.tier != crate::event::TierName::Vram);
    let opened = checkpoint::open(&checkpoint::resolve(&config.model.path).ok()?).ok()?;
    (streamed && ours.plan.stream.head.is_none()).then(|| soup_vram(&opened, config, ours.plan.ring_slots).0)
}

fn time_point(point: &Point, config: &RunConfig, ours: &Ours) -> Option<Value> {
    let measured = ours.seconds.median()?;
    let range = &ours.plan.seconds_per_step;
    let mut out = job(point, config, ours);
    out["low"] = json!(range.low);
    out["high"] = json!(range.high);
    out["resource"] = json!(range.resource);
    out["measured"] = json!(measured);
    out["measured_p10"] = json!(ours.seconds.percentile(0.1));
    out["measured_p90"] = json!(ours.seconds.percentile(0.9));
    out["steps"] = json!(ours.seconds.n());
    out["width"] = json!((range.high - range.low) / range.low);
    out["inside"] = json!(range.low <= measured && measured <= range.high);
    out["sm_clock_mhz"] = ours.report["gauges"]["sm_clock_mhz"].clone();
    Some(out)
}

fn line(point: &Option<Value>) -> String {
    let Some(p) = point else { return "N/A".into() };
    let mark = if p["ok"] == true || p["inside"] == true { "ok" } else { "OFF" };
    if let Some(low) = p["low"].as_f64() {
        let of = |key: &str| p[key].as_f64().map_or("N/A".into(), secs);
        return format!("{} to {}, was {} ({mark}, {})", secs(low), of("high"), of("measured"), p["resource"]);
    }
    let of = |key: &str| Bytes(p[key].as_u64().unwrap_or(0));
    let over = p["over"].as_i64().unwrap_or(0) as f64 / 1e6;
    format!("planned {}, was {} ({over:+.1} MB, {mark});", of("predicted"), of("measured"))
}

fn vram_summary(points: &[Value]) -> Value {
    let over = Sample::of(points.iter().filter_map(|p| p["over_share"].as_f64()));
    json!({
        "points": points.len(),
        "ok": points.iter().filter(|p| p["ok"] == true).count(),
        "under": points.iter().filter(|p| p["over"].as_i64().is_some_and(|o| o < 0)).count(),
        "limit": format!("0 to max({} %, {} MiB) over", OVER.0 * 100.0, OVER.1 >> 20),
        "over_share_median": over.median(),
        "over_share_max": over.max(),
    })
}

fn time_summary(points: &[Value]) -> Value {
    let near: Vec<&Value> = points.iter().filter(|p| p["tier"] != "disk").collect();
    let width = Sample::of(near.iter().filter_map(|p| p["width"].as_f64()));
    json!({
        "points": points.len(),
        "inside": points.iter().filter(|p| p["inside"] == true).count(),
        "width_max_without_disk": width.max(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_points_are_enough_and_every_key_of_theirs_is_known() {
        let table = Table::open(Path::new("tests/peers/points.toml")).unwrap();
        let mut names: Vec<&str> = table.point.iter().map(|p| p.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), table.point.len());
        assert!(table.point.len() >= 40 && table.point.iter().filter(|p| p.time).count() >= 20);
        for p in &table.point {
            table.config(p).unwrap();
            assert!(["ram", "mixed", "resident", "disk"].contains(&p.tier.as_str()), "{}", p.name);
        }
    }
}
