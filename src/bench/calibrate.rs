//! `bench calibrate`: drive, link, products and the card's own overhead in one go of about ten seconds, for plans to come.

use super::{BENCH_SCHEMA, Say, disk};
use crate::error::Result;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Seconds of reading.
const SECONDS: f64 = 4.0;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Job {
    /// Files to read; none leaves the drive out.
    pub files: Vec<PathBuf>,
    /// Folder of the drive.
    pub dir: PathBuf,
    /// The card that a run would take, by its UUID; `None` measures the processor.
    pub gpu: Option<String>,
}

/// Runs `job`: one JSON object with an answer of each benchmark, or `{ "why_not": … }` in its place.
#[must_use]
pub fn run(job: &Job, say: Say<'_>) -> Value {
    let part = |answer: Result<Value>| answer.unwrap_or_else(|e| json!({ "why_not": e.to_string() }));
    let reading = if job.files.is_empty() {
        json!({ "why_not": "no weights here to read; name a model" })
    } else {
        say(&format!("reads weights for {SECONDS} s"));
        part(disk::run(
            &disk::Job { files: job.files.clone(), dir: job.dir.clone(), seconds: SECONDS, write: None },
            say,
        ))
    };
    let mut out = json!({ "schema": BENCH_SCHEMA, "what": "calibrate", "disk": reading });
    gpu(job, &mut out, say);
    out
}

#[cfg(feature = "torch")]
fn gpu(job: &Job, out: &mut Value, say: Say<'_>) {
    use super::gemm;
    let before = used(job);
    let device = if job.gpu.is_some() { "cuda" } else { "cpu" };
    // A processor takes seconds for what a GPU does in milliseconds.
    let size = if job.gpu.is_some() { 4096 } else { 1536 };
    let part = |answer: Result<Value>| answer.unwrap_or_else(|e| json!({ "why_not": e.to_string() }));
    say("multiplies matrices");
    out["gemm"] = part(gemm::run(&gemm::Job { size, tokens: 2048, model: None, device }));
    out["overhead"] = overhead(job, before);
    out["link"] = link(job, say);
}

#[cfg(not(feature = "torch"))]
fn gpu(_: &Job, out: &mut Value, _: Say<'_>) {
    let none = json!({ "why_not": "this build has no libtorch (feature 'torch' is off)" });
    for part in ["gemm", "overhead", "link"] {
        out[part] = none.clone();
    }
}

#[cfg(feature = "torch")]
fn used(job: &Job) -> Option<u64> {
    let uuid = job.gpu.as_deref()?;
    crate::device::nvml::Sampler::new(Some(uuid)).sample().vram_used.map(|b| b.0)
}

/// Device memory that is there since `before` and that no tensor holds: context, libraries, their workspaces.
#[cfg(feature = "torch")]
fn overhead(job: &Job, before: Option<u64>) -> Value {
    use crate::device::shim;
    if job.gpu.is_none() {
        return json!({ "why_not": "no GPU" });
    }
    shim::empty_cache();
    let live = shim::memory(0).allocated;
    match before.zip(used(job)) {
        Some((before, now)) => json!({
            "what": "overhead",
            "uuid": job.gpu,
            "bytes": now.saturating_sub(before).saturating_sub(live),
        }),
        None => json!({ "why_not": "the driver doesn't say how much memory is used" }),
    }
}

#[cfg(feature = "cuda")]
fn link(job: &Job, say: Say<'_>) -> Value {
    if job.gpu.is_none() {
        return json!({ "why_not": "no GPU" });
    }
    say("copies to the GPU and back");
    super::link::run().unwrap_or_else(|e| json!({ "why_not": e.to_string() }))
}

#[cfg(all(feature = "torch", not(feature = "cuda")))]
fn link(_: &Job, _: Say<'_>) -> Value {
    json!({ "why_not": "this build has no GPU backend (feature 'cuda' is off)" })
}

/// `run`'s object as text.
#[must_use]
pub fn render(value: &Value) -> String {
    let mut out = String::new();
    for (name, figure) in [
        ("disk", value["disk"]["read"]["mean"].as_f64().map(crate::units::rate)),
        ("link", value["link"]["h2d"].as_f64().map(crate::units::rate)),
        ("gemm", value["gemm"]["flops"].as_f64().map(|f| format!("{:.2} TFLOP/s", f / 1e12))),
        ("overhead", value["overhead"]["bytes"].as_u64().map(|b| crate::units::Bytes(b).to_string())),
    ] {
        let why = || value[name]["why_not"].as_str().unwrap_or("N/A").to_string();
        out += &format!("{name:<10} {}\n", figure.unwrap_or_else(|| format!("not measured: {}", why())));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_not_measured_and_says_why() {
        let out = render(&json!({ "disk": { "why_not": "no weights" }, "gemm": { "flops": 2e12 } }));
        assert_eq!(out.lines().count(), 4);
        assert!(out.contains("disk       not measured: no weights") && out.contains("2.00 TFLOP/s"), "{out}");
        assert!(out.contains("link       not measured: N/A"), "{out}");
    }
}
