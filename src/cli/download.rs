//! `download`, and the headers that `plan` fetches for a model that is not here.

use super::print;
use crate::checkpoint;
use crate::checkpoint::remote::{self, Cancel, ModelId, Settings};
use crate::engine::DownloadPlan;
use crate::error::{Error, ExitCode, Result};
use crate::event::Stage;
use crate::units::{Bytes, rate, ratio_of, secs};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two lines of progress, on a terminal and elsewhere.
const EVERY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Fetches a model into the hub cache, after saying what that takes.
///
/// # Errors
/// Not an id, no such model, no access, no room, no `--yes` where nobody can be asked, or the network fails.
pub fn download(model: &str, yes: bool, json: bool) -> Result<ExitCode> {
    let settings = Settings::from_env();
    let id = ModelId::parse(model)?;
    print::progress(&format!("asking the hub about '{id}'"));
    let survey = remote::survey(&settings, &id, &Cancel::default(), &mut |_| {})?;
    let plan = &survey.plan;
    described(plan).iter().for_each(|line| print::progress(line));
    if plan.fetch > Bytes::ZERO && !yes && !agreed(plan)? {
        print::progress("nothing was fetched");
        return Ok(ExitCode::Ok);
    }
    let stop = Stop::catch()?;
    let mut meter = Meter::new();
    match remote::download(&settings, &survey, &stop.cancel, &mut |stage| meter.show(&stage)) {
        Ok(dir) => {
            meter.end();
            done(plan, &dir, json)
        }
        Err(_) if stop.cancel.asked() => {
            meter.end();
            print::progress(&format!("stopped; what has come is kept: resume by the same command, download {id}"));
            Ok(stop.code())
        }
        Err(e) => {
            meter.end();
            Err(e)
        }
    }
}

/// The model folder of `model`. Where a hub id is named that is not on this machine, its headers are fetched first.
///
/// # Errors
/// Nothing is there, and it is no hub id or the hub does not give its headers.
pub fn folder(model: &str) -> Result<PathBuf> {
    let missing = match checkpoint::resolve(model) {
        Ok(dir) => return Ok(dir),
        Err(e) => e,
    };
    let Some(id) = ModelId::named(model).filter(|_| cfg!(feature = "hub")) else {
        return Err(missing);
    };
    print::progress(&format!("'{id}' is not on this machine: asking the hub for its headers, not its weights"));
    let stop = Stop::catch()?;
    let mut last = String::new();
    let fetched =
        remote::headers(&Settings::from_env(), &id, &stop.cancel, &mut |stage| print::stage(&stage, &mut last));
    if stop.cancel.asked() {
        // What was half fetched is gone by now; the signal does what it always does.
        let _ = signal_hook::low_level::emulate_default_handler(stop.signal());
    }
    fetched
}

/// What a download takes, before it begins.
fn described(plan: &DownloadPlan) -> Vec<String> {
    let here = plan.total.saturating_sub(plan.fetch);
    let commit: String = plan.commit.chars().take(12).collect();
    let mut lines = vec![format!("{} at {commit}: {} files, {}", plan.model, plan.files, plan.total)];
    if here > Bytes::ZERO {
        lines.push(format!("  here already  {here}"));
    }
    lines.push(format!("  to fetch      {}", plan.fetch));
    lines.push(format!("  free          {} on the drive of '{}'", plan.free, plan.cache.display()));
    lines.push(format!("  SSD wear      {} written, once", plan.fetch));
    lines
}

/// Asks on a terminal.
fn agreed(plan: &DownloadPlan) -> Result<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Error::usage(format!("{} would be fetched, and there is no terminal to ask on", plan.fetch))
            .next("repeat with --yes"));
    }
    let _ = write!(std::io::stderr(), "fetch {}? [y/N] ", plan.fetch);
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(|e| Error::run(format!("no answer: {e}")))?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn done(plan: &DownloadPlan, dir: &Path, json: bool) -> Result<ExitCode> {
    if !json {
        return print::line(&dir.display().to_string());
    }
    print::json(&serde_json::json!({
        "schema": 1,
        "model": plan.model,
        "commit": plan.commit,
        "files": plan.files,
        "bytes": plan.total,
        "fetched": plan.fetch,
        "written": plan.fetch,
        "dir": dir,
    }))
}

/// SIGINT and SIGTERM while something is fetched: the first asks it to stop, the second ends the program. Afterwards
/// the first ends it.
struct Stop {
    cancel: Cancel,
    terminated: Arc<AtomicBool>,
}

impl Stop {
    fn catch() -> Result<Stop> {
        use signal_hook::flag;
        let refused = |e: std::io::Error| Error::device(format!("cannot catch signals: {e}"));
        let (cancel, terminated) = (Cancel::default(), Arc::new(AtomicBool::new(false)));
        for (signal, code) in [(SIGINT, ExitCode::Interrupted), (SIGTERM, ExitCode::Terminated)] {
            // Registered before the flag is set by the next, so it acts on the second signal.
            flag::register_conditional_shutdown(signal, code as i32, cancel.flag()).map_err(refused)?;
            flag::register(signal, cancel.flag()).map_err(refused)?;
        }
        flag::register(SIGTERM, terminated.clone()).map_err(refused)?;
        Ok(Stop { cancel, terminated })
    }

    fn signal(&self) -> i32 {
        if self.terminated.load(Ordering::SeqCst) { SIGTERM } else { SIGINT }
    }

    fn code(&self) -> ExitCode {
        if self.signal() == SIGTERM { ExitCode::Terminated } else { ExitCode::Interrupted }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        // A handler that is taken away leaves its signal ignored, so these stay: the next signal is the second.
        self.cancel.ask();
    }
}

/// Progress on stderr: a line that is written over on a terminal, else one now and then.
struct Meter {
    terminal: bool,
    begun: Instant,
    first: Option<u64>,
    said: Option<Instant>,
}

impl Meter {
    fn new() -> Meter {
        Meter { terminal: std::io::stderr().is_terminal(), begun: Instant::now(), first: None, said: None }
    }

    fn show(&mut self, stage: &Stage) {
        let first = *self.first.get_or_insert(stage.done);
        let every = if self.terminal { EVERY.0 } else { EVERY.1 };
        if self.said.is_some_and(|at| at.elapsed() < every) && stage.done < stage.total {
            return;
        }
        self.said = Some(Instant::now());
        let line = progress_line(stage, first, self.begun.elapsed().as_secs_f64());
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        } else {
            print::progress(&line);
        }
    }

    fn end(&mut self) {
        if self.terminal && self.said.is_some() {
            let _ = writeln!(std::io::stderr());
        }
    }
}

/// How far, how fast, how long still: `first` bytes were here `elapsed` seconds ago.
fn progress_line(stage: &Stage, first: u64, elapsed: f64) -> String {
    let share = 100.0 * ratio_of(stage.done as f64, stage.total as f64);
    let mut line = format!("{share:3.0} %  {} of {}", Bytes(stage.done), Bytes(stage.total));
    let speed = stage.done.saturating_sub(first) as f64 / elapsed.max(1e-3);
    if speed > 0.0 && stage.done < stage.total {
        let left = (stage.total - stage.done) as f64 / speed;
        line += &format!("  {}  ~{} left", rate(speed), secs(left));
    }
    line + &format!("  {}", stage.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_counts_only_what_came_now() {
        let stage = |done| Stage { name: "a.safetensors".into(), done, total: 1_000_000, unit: "bytes".into() };
        let line = progress_line(&stage(600_000), 500_000, 2.0);
        assert_eq!(line, " 60 %  600.0 kB of 1.0 MB  50.0 kB/s  ~8.00 s left  a.safetensors");
        assert_eq!(progress_line(&stage(1_000_000), 0, 2.0), "100 %  1.0 MB of 1.0 MB  a.safetensors");
        assert!(progress_line(&stage(500_000), 500_000, 0.0).contains("50 %"));
    }
}
