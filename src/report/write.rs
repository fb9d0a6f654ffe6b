//! The report's files, made from what the run's folder holds: `report.json`, `report.md`, `report.html`, `loss.svg`.

use super::record::{CONFIG_FILE, ENV_FILE, PLAN_FILE, is_alive};
use super::replay::read_events;
use super::types::{NoticeLine, Report};
use super::verify::hash_files;
use super::{plot, render, summary};
use crate::error::{Error, Result};
use crate::event::{Level, RunStatus};
use crate::files;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The report as JSON; its presence means the run ended and was written up.
pub const REPORT_FILE: &str = "report.json";
/// The report to read in a terminal or on a code host.
pub const MARKDOWN_FILE: &str = "report.md";
/// The report to read in a browser.
pub const HTML_FILE: &str = "report.html";
/// The loss curve.
pub const PLOT_FILE: &str = "loss.svg";

/// The report of the run in `dir`, made anew from its recording. A run whose process is gone without a last event
/// is shown as failed, one that is still being recorded as running.
///
/// # Errors
/// There is no recording, or it can't be read.
pub fn rebuild(dir: &Path) -> Result<Report> {
    from_recording(dir, is_alive(dir))
}

fn from_recording(dir: &Path, alive: bool) -> Result<Report> {
    let recording = read_events(dir)?;
    let config = fs::read_to_string(dir.join(CONFIG_FILE)).ok();
    let config: Value = config.and_then(|t| toml::from_str(&t).ok()).unwrap_or_default();
    let mut report = summary(&recording.events, &config, &json_file(dir, PLAN_FILE), &json_file(dir, ENV_FILE));
    if report.run_id.is_empty() {
        report.run_id = name_of(dir);
    }
    if report.status == RunStatus::Running && !alive {
        report.status = RunStatus::Failed;
        report.reason = Some("the process ended without a last word (killed, or out of memory)".into());
    }
    if recording.damaged > 0 {
        let text = format!("{} lines of events.jsonl could not be read and are missing here", recording.damaged);
        report.notices.push(NoticeLine { level: Level::Warn, text });
    }
    Ok(report)
}

/// Writes the report of a run that is over; returns the path of `report.json`, which is written last.
pub(super) fn write_report(dir: &Path) -> Result<PathBuf> {
    let mut report = from_recording(dir, false)?;
    files::replace(&dir.join(PLOT_FILE), plot::standalone(&plot::loss(&report)).as_bytes())?;
    files::replace(&dir.join(MARKDOWN_FILE), render::markdown(&report).as_bytes())?;
    files::replace(&dir.join(HTML_FILE), render::html(&report)?.as_bytes())?;
    report.files = hash_files(dir)?;
    let path = dir.join(REPORT_FILE);
    let json =
        serde_json::to_string_pretty(&report).map_err(|e| Error::run(format!("cannot write the report: {e}")))?;
    files::replace(&path, format!("{json}\n").as_bytes())?;
    Ok(path)
}

/// The last part of `dir`, as shown.
pub(super) fn name_of(dir: &Path) -> String {
    let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    crate::text::clean(&name)
}

fn json_file(dir: &Path, name: &str) -> Value {
    fs::read(dir.join(name)).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default()
}
