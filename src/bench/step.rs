//! `bench step`: seconds per step of our own `train` on one model, with what bounds it.

use super::ours::{self, Ours};
use super::scratch::Scratch;
use super::{BENCH_SCHEMA, Say};
use crate::checkpoint;
use crate::config::{DataFormat, RunConfig};
use crate::error::{Error, Result};
use crate::units::{Bytes, secs};
use serde_json::{Value, json};
use std::time::Duration;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Job {
    /// The model, and how it trains; without data files the rows are random token ids.
    pub config: RunConfig,
    /// Measured steps.
    pub steps: u64,
    /// Steps before them.
    pub warmup: u64,
    /// Longest that the run may take.
    pub limit: Duration,
}

/// Runs `job`: one JSON object.
///
/// # Errors
/// There is no such model, or the run fails.
pub fn run(job: &Job, say: Say<'_>) -> Result<Value> {
    let mut config = job.config.clone();
    if config.model.path.is_empty() {
        return Err(Error::usage("no model is named").next("bench step MODEL, or model.path in --config"));
    }
    if job.steps == 0 {
        return Err(Error::usage("'--steps' = 0 measures nothing").next("give at least 1"));
    }
    let opened = checkpoint::open(&checkpoint::resolve(&config.model.path)?)?;
    config.train.max_steps = job.warmup + job.steps;
    let scratch = Scratch::new()?;
    let own_rows = config.data.files.is_empty();
    if own_rows {
        let path = scratch.dir.join("rows.jsonl");
        let rows = config.train.per_device_train_batch_size * config.train.gradient_accumulation_steps;
        ours::random_rows(&path, rows, config.data.max_length, opened.arch.vocab)?;
        config.data.files = vec![path];
        config.data.format = DataFormat::Tokens;
    }
    say(&format!("training {} for {} steps", opened.name, config.train.max_steps));
    let ours = ours::run(&config, job.warmup, job.limit, None)?;
    let mut out = json!({
        "schema": BENCH_SCHEMA,
        "what": "step",
        "model": opened.name,
        "device": ours.report["machine"]["device"],
        "steps": job.steps,
        "warmup": job.warmup,
        "tokens": if own_rows { json!(config.data.max_length * config.train.per_device_train_batch_size * config.train.gradient_accumulation_steps) } else { Value::Null },
        "data": if own_rows { "random token ids" } else { "the config's" },
        "bound": bound(&ours),
        "config": ours.report["config"],
    });
    if let (Some(all), Value::Object(more)) = (out.as_object_mut(), ours.json()) {
        all.extend(more);
    }
    Ok(out)
}

/// The bound that the run's report tells, over our median; no share where the report gives none.
fn bound(ours: &Ours) -> Value {
    let b = &ours.report["bound"];
    let told = b["seconds"].as_f64().filter(|_| !b["share"].is_null());
    let share = told.zip(ours.seconds.median()).map(|(b, m)| b / m).filter(|s| s.is_finite());
    json!({ "resource": b["resource"], "seconds": b["seconds"], "share": share, "rates": b["source"] })
}

/// `run`'s object in lines.
#[must_use]
pub fn render(v: &Value) -> String {
    let time = |v: &Value| v.as_f64().map_or("N/A".into(), secs);
    let bytes = |v: &Value| v.as_u64().map_or("N/A".into(), |b| Bytes(b).to_string());
    let text = |v: &Value| v.as_str().unwrap_or("N/A").to_string();
    let (s, b, moved) = (&v["seconds_per_step"], &v["bound"], &v["bytes"]["per_step"]);
    let share = b["share"].as_f64().map_or(String::new(), |x| format!(": {:.0} % of it reached", x * 100.0));
    let live = if v["vram"]["live"] == 0 { "N/A".into() } else { bytes(&v["vram"]["live"]) };
    format!(
        "{} on {}: {} a step (p95 {}, {} steps after {})\n\
         bound {} ({}, at the rates {}){share}\n\
         verdict {}, VRAM live {live}, a step reads {} from disk, moves {} to the device and {} back\n\
         written: {} by the process, {} of it to the model's drive in steps\n",
        text(&v["model"]),
        text(&v["device"]),
        time(&s["median"]),
        time(&s["p95"]),
        s["n"],
        v["warmup"],
        time(&b["seconds"]),
        text(&b["resource"]),
        text(&b["rates"]),
        text(&v["verdict"]),
        bytes(&moved["disk_read"]),
        bytes(&moved["h2d"]),
        bytes(&moved["d2h"]),
        bytes(&v["written"]["process"]),
        bytes(&v["written"]["model_drive"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_not_shown_as_zero() {
        let text =
            render(&json!({ "model": "m", "seconds_per_step": { "median": 0.238, "n": 10 }, "vram": { "live": 0 } }));
        assert!(text.contains("m on N/A: 238 ms a step (p95 N/A") && text.contains("VRAM live N/A"), "{text}");
    }

    #[test]
    fn a_job_without_a_model_or_steps_is_refused() {
        let job = Job { config: RunConfig::default(), steps: 1, warmup: 0, limit: Duration::from_secs(1) };
        assert!(run(&job, &|_| {}).unwrap_err().to_string().contains("no model"));
        let mut config = RunConfig::default();
        config.model.path = "x".into();
        assert!(run(&Job { config, steps: 0, ..job }, &|_| {}).unwrap_err().to_string().contains("--steps"));
    }
}
