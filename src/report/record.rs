//! The recorder: consumes events, owns the run's folder. Every line is on its way to the disk before the next event.

use super::replay::{EVENTS_FILE, read_events};
use super::scrub::Scrubber;
use super::types::SmartFigures;
use super::write::{REPORT_FILE, write_report};
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind, StepRecord};
use crate::files;
use crate::plan::PlanReport;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The resolved config. It alone keeps file paths as they were given: resuming needs them.
pub const CONFIG_FILE: &str = "config.toml";
/// The plan the run was started on.
pub const PLAN_FILE: &str = "plan.json";
/// What the run ran with, see [`super::environment`].
pub const ENV_FILE: &str = "env.json";
/// Step and evaluation lines with TRL's names, for other programs' plots.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Key of `env.json`: the folder that the program was started in, from the run's folder.
const STARTED_IN: &str = "started_in";

/// Asks the drive what it has written in its life, once, when the run is over.
pub type DriveSource = Box<dyn FnOnce() -> Option<SmartFigures> + Send>;

/// Writes a run's files while it goes and its report at the end.
pub struct Recorder {
    /// The run's folder.
    pub dir: PathBuf,
    /// Locked as long as the run lives, so that readers can tell a running run from a dead one.
    events: File,
    metrics: File,
    scrub: Scrubber,
    /// Tokens of each step before this session, which begins at one of them.
    earlier: BTreeMap<u64, u64>,
    num_tokens: u64,
    epoch: f64,
    next_gauges_at: f64,
    /// The newest trace that is not in the file yet.
    trace: Option<Event>,
    next_trace_at: f64,
    drive: Option<DriveSource>,
    /// What a resume will write once its run has started; until then nothing that stands in the folder changes.
    pending: Option<Pending>,
}

/// The files of a session, and the events before its start.
struct Pending {
    config: String,
    plan: Value,
    env: Value,
    events: Vec<Event>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Writes `config.toml`, `plan.json`, `env.json` and opens `metrics.jsonl`, `events.jsonl` (appends on resume).
    ///
    /// In the folder of an earlier run this is done at `Started`: a resume that is refused before leaves no trace.
    ///
    /// # Errors
    /// The disk refuses, or another process is recording into `dir`.
    pub fn create(dir: &Path, config: &RunConfig, plan: &PlanReport, env: &Value) -> Result<Recorder> {
        fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
        let resumed = dir.join(CONFIG_FILE).exists();
        let events_path = dir.join(EVENTS_FILE);
        let mut events = open_lines(&events_path, true)?;
        let mut metrics = open_lines(&dir.join(METRICS_FILE), false)?;
        let scrub = Scrubber::new(dir);
        let (text, started_in) = portable(dir, config)?;
        let mut env = env.clone();
        if let (Some(env), Some(folder)) = (env.as_object_mut(), started_in) {
            env.insert(STARTED_IN.into(), json!(folder));
        }
        let plan = serde_json::to_value(plan).map_err(|e| Error::run(format!("cannot write the plan: {e}")))?;
        let pending = Pending { config: text, plan: scrub.json(plan), env: scrub.json(env), events: Vec::new() };
        if !resumed {
            pending.write(dir)?;
            mend(&mut events, &events_path)?;
            mend(&mut metrics, &dir.join(METRICS_FILE))?;
        }
        let mut earlier = BTreeMap::new();
        let mut epoch = 0.0;
        for event in read_events(&events_path)?.events {
            if let EventKind::Step(s) = event.kind {
                earlier.insert(s.step, s.tokens);
                epoch = s.epoch;
            }
        }
        let dir = dir.to_path_buf();
        Ok(Recorder {
            dir,
            events,
            metrics,
            scrub,
            earlier,
            num_tokens: 0,
            epoch,
            next_gauges_at: 0.0,
            trace: None,
            next_trace_at: 0.0,
            drive: None,
            pending: resumed.then_some(pending),
        })
    }

    /// Whom to ask about the drive when the run is over; what it says stands in `env.json` as `drive_after`.
    pub fn ask_drive_at_end(&mut self, drive: DriveSource) {
        self.drive = Some(drive);
    }

    /// Takes one event; steps and evals also go to `metrics.jsonl`. Of the telemetry a thinned sample of the gauges is
    /// kept (one a second at first, later one every 1/500 of the run's age) and few traces: one whenever the run's age
    /// has doubled, for a run that is killed, and the newest just before `Finished`.
    ///
    /// # Errors
    /// The disk refuses; the run must stop rather than lose its record.
    pub fn record(&mut self, event: &Event) -> Result<()> {
        if let Some(mut pending) = self.pending.take() {
            if !matches!(event.kind, EventKind::Started(_)) {
                if matches!(event.kind, EventKind::Stage(_) | EventKind::Notice(_)) {
                    pending.events.push(event.clone());
                }
                self.pending = Some(pending);
                return Ok(());
            }
            pending.write(&self.dir)?;
            for (file, name) in [(&mut self.events, EVENTS_FILE), (&mut self.metrics, METRICS_FILE)] {
                mend(file, &self.dir.join(name))?;
            }
            pending.events.iter().try_for_each(|e| self.record(e))?;
        }
        match &event.kind {
            EventKind::Progress(_) => return Ok(()),
            EventKind::Gauges(_) => {
                if event.at < self.next_gauges_at {
                    return Ok(());
                }
                self.next_gauges_at = event.at + (event.at / 500.0).max(0.9);
            }
            EventKind::Trace(_) if event.at < self.next_trace_at => {
                self.trace = Some(event.clone());
                return Ok(());
            }
            EventKind::Trace(_) => {
                self.trace = None;
                self.next_trace_at = (event.at * 2.0).max(event.at + 1.0);
            }
            EventKind::Finished(_) => {
                if let Some(trace) = self.trace.take() {
                    self.event_line(&trace)?;
                }
            }
            EventKind::Started(s) => {
                self.next_trace_at = 0.0;
                let kept = self.earlier.range(..=s.steps_done);
                self.num_tokens = kept.fold(0, |sum, (_, tokens)| sum.saturating_add(*tokens));
                self.next_gauges_at = 0.0;
                self.forget_metrics_after(s.steps_done)?;
            }
            _ => {}
        }
        self.event_line(event)?;
        match &event.kind {
            EventKind::Step(s) => {
                self.num_tokens = self.num_tokens.saturating_add(s.tokens);
                self.epoch = s.epoch;
                self.line(METRICS_FILE, &step_line(s, self.num_tokens))
            }
            EventKind::Eval(e) => {
                let line = json!({
                    "eval_loss": e.loss,
                    "eval_runtime": e.seconds,
                    "eval_num_tokens": e.tokens,
                    "epoch": self.epoch,
                    "step": e.step,
                });
                self.line(METRICS_FILE, &line)
            }
            // What these say is safe on disk; so must the record of it be.
            EventKind::Saved(_) | EventKind::Finished(_) => {
                self.events.sync_data().map_err(|e| Error::io("sync", &self.dir.join(EVENTS_FILE), e))
            }
            _ => Ok(()),
        }
    }

    /// Writes `report.json`, `report.md`, `report.html`, `loss.svg`; returns the path of `report.json`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn finish(mut self) -> Result<PathBuf> {
        if self.pending.is_some() {
            return Ok(self.dir.join(REPORT_FILE));
        }
        if let Some(drive) = self.drive.take() {
            let path = self.dir.join(ENV_FILE);
            let env: Option<Value> = fs::read(&path).ok().and_then(|b| serde_json::from_slice(&b).ok());
            if let Some(Value::Object(mut env)) = env {
                env.insert("drive_after".into(), json!(drive()));
                files::replace(&path, format!("{:#}\n", Value::Object(env)).as_bytes())?;
            }
        }
        for (file, name) in [(&self.events, EVENTS_FILE), (&self.metrics, METRICS_FILE)] {
            file.sync_all().map_err(|e| Error::io("sync", &self.dir.join(name), e))?;
        }
        write_report(&self.dir)
    }

    /// Takes lines of steps after `done` out of `metrics.jsonl`: those steps are run again.
    fn forget_metrics_after(&mut self, done: u64) -> Result<()> {
        let path = self.dir.join(METRICS_FILE);
        let text = fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        let step = |line: &str| serde_json::from_str::<Value>(line).ok().and_then(|v| v["step"].as_u64());
        // A run that goes on from step 0 measures the held-out loss again.
        let stays = |line: &&str| step(line).is_none_or(|s| s <= done && done > 0);
        let kept: String = text.lines().filter(stays).flat_map(|l| [l, "\n"]).collect();
        if kept != text {
            files::replace(&path, kept.as_bytes())?;
            self.metrics = open_lines(&path, false)?;
        }
        Ok(())
    }

    fn event_line(&mut self, event: &Event) -> Result<()> {
        let stored = serde_json::to_value(self.scrub.event(event))
            .map_err(|e| Error::run(format!("cannot record an event: {e}")))?;
        self.line(EVENTS_FILE, &stored)
    }

    fn line(&mut self, name: &str, line: &Value) -> Result<()> {
        let file = if name == EVENTS_FILE { &mut self.events } else { &mut self.metrics };
        file.write_all(format!("{line}\n").as_bytes())
            .map_err(|e| Error::io("write", &self.dir.join(name), e).next("free some space"))
    }
}

impl Pending {
    fn write(&self, dir: &Path) -> Result<()> {
        replace_keeping(dir, CONFIG_FILE, self.config.as_bytes())?;
        replace_keeping(dir, PLAN_FILE, format!("{:#}\n", self.plan).as_bytes())?;
        let env = with_earlier(&dir.join(ENV_FILE), self.env.clone());
        files::replace(&dir.join(ENV_FILE), format!("{env:#}\n").as_bytes())?;
        Ok(())
    }
}

/// Whether a living process is recording into `dir`.
#[must_use]
pub(super) fn is_alive(dir: &Path) -> bool {
    let Ok(file) = File::open(dir.join(EVENTS_FILE)) else {
        return false;
    };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn step_line(s: &StepRecord, num_tokens: u64) -> Value {
    let mut line = json!(s.metrics);
    let taken = json!({
        "epoch": s.epoch,
        "num_tokens": num_tokens,
        "step": s.step,
        "step_time": s.seconds,
        "step_tokens": s.tokens,
        "trained_tokens": s.trained_tokens,
        "skipped": s.skipped,
        "disk_read": s.disk_read,
        "h2d": s.h2d,
        "d2h": s.d2h,
        "model_drive_written": s.model_drive_written,
        "stall_time": s.stall_s,
    });
    if let (Value::Object(line), Value::Object(taken)) = (&mut line, taken) {
        line.extend(taken);
    }
    line
}

/// Opens a file of lines for appending.
fn open_lines(path: &Path, lock: bool) -> Result<File> {
    let file =
        OpenOptions::new().read(true).append(true).create(true).open(path).map_err(|e| Error::io("open", path, e))?;
    if lock {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(Error::usage(format!("another process is recording into '{}'", path.display()))
                    .next("wait for that run to end, or start a new one"));
            }
            // Some network file systems have no locks; the run matters more than knowing that it lives.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
    }
    Ok(file)
}

/// Takes away a last line that a crash cut off.
fn mend(file: &mut File, path: &Path) -> Result<()> {
    let kept = whole_lines(file).map_err(|e| Error::io("read", path, e))?;
    file.set_len(kept).map_err(|e| Error::io("mend", path, e))
}

/// The config as it is kept for a resume, which may be asked for from another folder, and the folder that its relative
/// paths start at, told from the run's. Where that is none of the run's own parents it would name this machine's
/// folders: then the paths are kept absolute instead, since the config alone may name them.
fn portable(dir: &Path, config: &RunConfig) -> Result<(String, Option<PathBuf>)> {
    let here = std::env::current_dir().ok();
    let real = dir.canonicalize().ok();
    let above = here.as_ref().zip(real.as_ref()).and_then(|(here, real)| real.strip_prefix(here).ok());
    let started_in = above.map(|inside| inside.iter().map(|_| "..").collect());
    let kept = match (&started_in, &here) {
        (None, Some(here)) => config.from_folder(here),
        _ => config.clone(),
    };
    let text = toml::to_string_pretty(&kept).map_err(|e| Error::usage(format!("cannot write the config: {e}")))?;
    Ok((text, started_in))
}

/// The folder that relative paths in the config of the run in `dir` start at; `None` where it is not known.
#[must_use]
pub fn started_in(dir: &Path) -> Option<PathBuf> {
    let env: Value = serde_json::from_slice(&fs::read(dir.join(ENV_FILE)).ok()?).ok()?;
    dir.join(env[STARTED_IN].as_str()?).canonicalize().ok()
}

/// Bytes up to and with the last newline.
fn whole_lines(file: &mut File) -> std::io::Result<u64> {
    const CHUNK: u64 = 64 << 10;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        let mut chunk = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk)?;
        if let Some(at) = chunk.iter().rposition(|b| *b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Replaces `name`; an older version that differs stays as `name` with a number (`config.1.toml`).
fn replace_keeping(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let path = dir.join(name);
    if fs::read(&path).is_ok_and(|old| old != bytes) {
        let (stem, ext) = name.split_once('.').unwrap_or((name, "old"));
        let mut numbered = (1..).map(|n| dir.join(format!("{stem}.{n}.{ext}")));
        if let Some(free) = numbered.find(|p| !p.exists()) {
            fs::rename(&path, free).map_err(|e| Error::io("keep", &path, e))?;
        }
    }
    files::replace(&path, bytes)?;
    Ok(())
}

/// `env` with the environments of earlier sessions under `earlier`.
fn with_earlier(path: &Path, mut env: Value) -> Value {
    let old: Option<Value> = fs::read(path).ok().and_then(|b| serde_json::from_slice(&b).ok());
    let Some(Value::Object(mut old)) = old else {
        return env;
    };
    let mut earlier = match old.remove("earlier") {
        Some(Value::Array(a)) => a,
        _ => Vec::new(),
    };
    earlier.push(Value::Object(old));
    if let Some(map) = env.as_object_mut() {
        map.insert("earlier".into(), Value::Array(earlier));
    }
    env
}
