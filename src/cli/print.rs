//! Data to stdout, progress to stderr, both cleaned of what would act on the terminal. A closed pipe is the reader's
//! choice, not an error of ours.

use crate::error::{Error, ExitCode, Result};
use crate::event::Stage;
use crate::text;
use crate::units::Bytes;
use std::io::Write;

/// One line of data, or several.
///
/// # Errors
/// Stdout is closed or full.
pub fn line(text: &str) -> Result<ExitCode> {
    written(&text::lines(text))
}

fn written(text: &str) -> Result<ExitCode> {
    told(writeln!(std::io::stdout(), "{text}"))
}

fn told(wrote: std::io::Result<()>) -> Result<ExitCode> {
    match wrote {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::run(format!("cannot write to stdout: {e}"))),
        _ => Ok(ExitCode::Ok),
    }
}

/// One JSON object.
///
/// # Errors
/// Fails as [`line`] does.
pub fn json(value: &serde_json::Value) -> Result<ExitCode> {
    written(&text::json(&serde_json::to_string_pretty(value).map_err(|e| Error::run(format!("JSON: {e}")))?))
}

/// A piece of a text that comes bit by bit; shown at once.
///
/// # Errors
/// Fails as [`line`] does.
#[cfg(feature = "torch")]
pub fn piece(text: &str) -> Result<ExitCode> {
    let mut out = std::io::stdout();
    told(write!(out, "{}", text::lines(text)).and_then(|()| out.flush()))
}

/// One line of progress; a dead stderr does not stop the work.
pub fn progress(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text::lines(text));
}

/// Progress inside a long step, a line every tenth of it. `last` is the caller's memory of the line before.
pub fn stage(stage: &Stage, last: &mut String) {
    let share = (stage.done * 10).checked_div(stage.total).unwrap_or(0).min(10);
    let key = format!("{}:{share}", stage.name);
    if key == *last {
        return;
    }
    *last = key;
    let amount = |n: u64| if stage.unit == "bytes" { Bytes(n).to_string() } else { format!("{n} {}", stage.unit) };
    match stage.total {
        0 => progress(&format!("{}: {}", stage.name, amount(stage.done))),
        total => progress(&format!("{}: {} of {}", stage.name, amount(stage.done), amount(total))),
    }
}
