//! The results folder: new run folders, the list of runs, one run's report.

use super::record::{CONFIG_FILE, is_alive, started_in};
use super::replay::EVENTS_FILE;
use super::write::{REPORT_FILE, name_of, rebuild};
use crate::clock;
use crate::config::{Mode, RunConfig, load};
use crate::engine::RunEntry;
use crate::error::{Error, Result};
use crate::event::RunStatus;
use crate::plan::{PlanReport, ledger};
use crate::units::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Longest part of a folder's name that the model gives.
const MAX_NAME: usize = 40;
/// More folders of one second, model and mode than this are a program gone wild.
const MAX_SAME: usize = 1000;

/// Makes a fresh run folder `<UTC time>-<model>-<mode>` under `results`; the name is unique.
///
/// # Errors
/// The folder can't be made.
pub fn new_run_dir(results: &Path, model: &str, mode: Mode) -> Result<(String, PathBuf)> {
    new_run_dir_at(results, model, mode, clock::unix_now())
}

fn new_run_dir_at(results: &Path, model: &str, mode: Mode, now: u64) -> Result<(String, PathBuf)> {
    fs::create_dir_all(results)
        .map_err(|e| Error::io("create", results, e).next("choose another folder with --results"))?;
    let time: String = clock::utc(now).chars().filter(|c| !matches!(c, '-' | ':')).collect();
    let base = format!("{time}-{}-{mode}", plain(model));
    for n in 1..=MAX_SAME {
        let run_id = if n == 1 { base.clone() } else { format!("{base}-{n}") };
        let dir = results.join(&run_id);
        // The file system decides who is first, also between processes.
        match fs::create_dir(&dir) {
            Ok(()) => return Ok((run_id, dir)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io("create", &dir, e).next("choose another folder with --results")),
        }
    }
    Err(Error::run(format!("'{}' and {MAX_SAME} more of its name exist already", results.join(&base).display())))
}

/// The last part of a model's `name` in characters that every file system and shell takes.
fn plain(name: &str) -> String {
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let kept = last.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' });
    let kept: String = kept.take(MAX_NAME).collect();
    let kept = kept.trim_matches(['.', '-']);
    if kept.is_empty() { "model".into() } else { kept.into() }
}

/// Runs under `results`, newest first; unreadable ones are shown as such, not hidden.
#[must_use]
pub fn list(results: &Path) -> Vec<RunEntry> {
    let Ok(folder) = fs::read_dir(results) else {
        return Vec::new();
    };
    let dirs = folder.filter_map(|e| Some(e.ok()?.path())).filter(|p| is_run(p));
    let mut runs: Vec<(String, RunEntry)> = dirs.map(entry).collect();
    runs.sort_by(|a, b| (&b.0, &b.1.run_id).cmp(&(&a.0, &a.1.run_id)));
    runs.into_iter().map(|(_, entry)| entry).collect()
}

fn is_run(dir: &Path) -> bool {
    dir.is_dir() && [REPORT_FILE, EVENTS_FILE, CONFIG_FILE].iter().any(|f| dir.join(f).is_file())
}

/// When the run began, and its entry.
fn entry(dir: PathBuf) -> (String, RunEntry) {
    let run_id = name_of(&dir);
    let report = match load(&dir) {
        Ok(report) => report,
        Err(e) => {
            let what = if dir.join(EVENTS_FILE).exists() { "unreadable" } else { "never started" };
            let model = crate::text::clean(e.what());
            return (run_id.clone(), bare_entry(run_id, dir, model, what));
        }
    };
    let text = |v: &Value| crate::text::clean(v.as_str().unwrap_or_default());
    let started = report["started"].as_str().unwrap_or(&run_id).replace(['-', ':'], "");
    let entry = RunEntry {
        model: text(&report["model"]["name"]),
        verdict: text(&report["verdict"]),
        status: parsed(&report["status"]).unwrap_or(RunStatus::Failed),
        steps: report["steps"].as_u64().unwrap_or(0),
        loss: (report["loss"]["first"].as_f64(), report["loss"]["last"].as_f64()),
        eval: (report["eval"]["before"].as_f64(), report["eval"]["after"].as_f64()),
        seconds_per_step: report["seconds_per_step"]["median"].as_f64(),
        tiers: parsed(&report["tiers"]["placement"]).unwrap_or_default(),
        month: month_of(&started),
        written: written(&report),
        adapter: base_of_adapter(&dir),
        ..bare_entry(run_id, dir, String::new(), "")
    };
    (started, entry)
}

fn bare_entry(run_id: String, dir: PathBuf, model: String, verdict: &str) -> RunEntry {
    let month = month_of(&run_id);
    RunEntry {
        month,
        written: Bytes::ZERO,
        run_id,
        dir,
        model,
        verdict: verdict.into(),
        status: RunStatus::Failed,
        steps: 0,
        loss: (None, None),
        eval: (None, None),
        seconds_per_step: None,
        tiers: Vec::new(),
        adapter: None,
    }
}

/// The model to name beside the adapter that a run left: the folder or id it was trained from.
fn base_of_adapter(dir: &Path) -> Option<String> {
    if !dir.join("adapter/adapter_model.safetensors").is_file() {
        return None;
    }
    // Paths in there start at the folder that the run was started in.
    let file = dir.join(CONFIG_FILE);
    let path = load::load_from(Some(&file), started_in(dir).as_deref(), &[], &[]).ok()?.config.model.path;
    (!path.is_empty()).then_some(path)
}

/// `2026-11` of a time or a run's name that begins with `202611`; empty where it doesn't.
fn month_of(started: &str) -> String {
    let digits: String = started.chars().take_while(char::is_ascii_digit).take(6).collect();
    if digits.len() == 6 { format!("{}-{}", &digits[..4], &digits[4..]) } else { String::new() }
}

/// Bytes the run wrote: to the model's drive, and to its own folder.
fn written(report: &Value) -> Bytes {
    let wear = &report["wear"];
    let outside = report["bytes"]["model_drive_written"].as_u64().unwrap_or(0);
    let files = || report["files"].as_object().map_or(0, |f| f.values().filter_map(|x| x["bytes"].as_u64()).sum());
    let inside = wear["run_folder_written"].as_u64().unwrap_or_else(files);
    Bytes(outside.saturating_add(inside))
}

/// Puts what `runs` wrote into `plan`, and holds it to the budget of the month now.
pub fn with_ledger(plan: &mut PlanReport, config: &RunConfig, runs: &[RunEntry]) {
    let now = clock::utc(clock::unix_now());
    let ledger = ledger::ledger(runs, now.get(..7).unwrap_or(""), config);
    ledger::apply(plan, ledger, config);
}

fn parsed<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

/// The report of the run in `run_dir`: its `report.json`, or one made from the recording of a run that isn't over.
///
/// # Errors
/// The folder holds neither, or the report is damaged.
pub fn load(run_dir: &Path) -> Result<Value> {
    let path = run_dir.join(REPORT_FILE);
    // A report beside a living recorder tells of the session before.
    if !path.is_file() || is_alive(run_dir) {
        let report = rebuild(run_dir)?;
        return serde_json::to_value(&report).map_err(|e| Error::run(format!("cannot write the report: {e}")));
    }
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::run(format!("'{}' is damaged: {e}", path.display())).next("look at report.md instead"))?;
    if value.is_object() { Ok(value) } else { Err(Error::run(format!("'{}' is not a report", path.display()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_fo_55_a_run_names_the_base_of_the_adapter_it_left_and_none_without_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(base_of_adapter(dir.path()), None);
        fs::write(dir.path().join(CONFIG_FILE), "[model]\npath = \"models/base\"\n").unwrap();
        assert_eq!(base_of_adapter(dir.path()), None, "it left no adapter");
        fs::create_dir(dir.path().join("adapter")).unwrap();
        fs::write(dir.path().join("adapter/adapter_model.safetensors"), "").unwrap();
        assert_eq!(base_of_adapter(dir.path()).as_deref(), Some("models/base"));
        fs::write(dir.path().join(CONFIG_FILE), "not toml").unwrap();
        assert_eq!(base_of_adapter(dir.path()), None);
    }

    #[test]
    fn run_folders_have_plain_unique_names_also_in_a_race() {
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path().join("results");
        let now = 1_795_973_466;
        for (model, want) in [
            ("org/SmolLM2-135M", "20261129T173106Z-SmolLM2-135M-lora"),
            ("../../é\u{1b}[0m T0/", "20261129T173106Z-0m-T0-lora"),
            ("..", "20261129T173106Z-model-lora"),
        ] {
            let (id, path) = new_run_dir_at(&results, model, Mode::Lora, now).unwrap();
            assert_eq!(id, want);
            assert!(path.is_dir() && path.parent() == Some(results.as_path()));
        }
        let names: Vec<String> = std::thread::scope(|s| {
            let threads: Vec<_> =
                (0..8).map(|_| s.spawn(|| new_run_dir_at(&results, "m", Mode::Full, now).unwrap().0)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), 8, "{names:?}");
        assert!(names.contains(&"20261129T173106Z-m-full-8".to_string()));
        let e = new_run_dir(&dir.path().join("results/20261129T173106Z-m-full/config"), "m", Mode::Lora);
        assert!(e.is_ok());
        fs::write(dir.path().join("file"), "x").unwrap();
        let e = new_run_dir(&dir.path().join("file"), "m", Mode::Lora).unwrap_err();
        assert!(e.to_string().contains("--results"), "{e}");
    }
}
