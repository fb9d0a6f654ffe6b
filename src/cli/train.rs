//! `train` and `replay`: a run without a screen, its events as lines on stderr.

use super::args::TrainArgs;
use super::{desk, print};
use crate::config::load;
use crate::engine::{Resume, Services};
use crate::error::{Error, ExitCode, Result};
use crate::event::{Event, EventKind, Level, RunFinished, RunStatus, StepRecord};
use crate::plan;
use crate::report;
use crate::units::secs;
use crate::worker::Signals;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs `train` to its end.
///
/// # Errors
/// The config, checkpoint or plan won't do; the run's own failure is an exit code.
pub fn train(args: &TrainArgs) -> Result<ExitCode> {
    let resume = args.resume.as_deref().map(checkpoint_to_resume).transpose()?;
    let mut config_args = args.config.clone();
    let mut base = None;
    if let (Some((run_dir, _)), None) = (&resume, &config_args.config) {
        config_args.config = Some(run_dir.join(report::CONFIG_FILE));
        base = report::started_in(run_dir);
    }
    let loaded = config_args.loaded_from(None, base.as_deref())?;
    loaded.notes.iter().for_each(|n| print::progress(n));
    let config = loaded.config;
    let results = config.results.clone().unwrap_or_else(|| PathBuf::from("results"));
    let signals = Signals::install()?;
    let resume = resume.map(|(_, checkpoint)| Resume { checkpoint, force: args.force });
    let mut desk = desk::real(results, &config, signals, resume);

    let plan = desk.plan(&config)?;
    if args.dry_run {
        print::line(&load::to_toml(&config)?)?;
        print::line(plan::explain(&plan).trim_end())?;
        return Ok(super::verdict_code(&config, &plan));
    }
    desk.start(&config)?;
    let mut lines = Lines::default();
    let finished = loop {
        let mut end = None;
        for event in desk.poll() {
            lines.show(&event);
            if let EventKind::Finished(f) = event.kind {
                end = Some(f);
            }
        }
        if let Some(f) = end {
            break f;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let Some(run_dir) = lines.run_dir else {
        return if finished.status == RunStatus::Failed {
            print::progress(&format!("error: {}", reason(&finished)));
            Ok(finished.exit_code())
        } else {
            Ok(say_end(&finished, None))
        };
    };
    let printed = match args.json {
        true => report::load(&run_dir).and_then(|r| print::json(&r)),
        false => print::line(&run_dir.join("report.json").display().to_string()),
    };
    // How the run ended outranks a stdout that is gone.
    match say_end(&finished, Some(&run_dir)) {
        ExitCode::Ok => printed,
        code => Ok(code),
    }
}

/// The run folder and newest whole checkpoint that `dir` means.
fn checkpoint_to_resume(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    #[cfg(feature = "torch")]
    {
        use crate::train::save;
        if dir.join("checkpoint.json").is_file() {
            save::check(dir)?;
            let run = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return Ok((run.to_path_buf(), dir.to_path_buf()));
        }
        let (newest, skipped) = save::newest(dir);
        for why in skipped {
            print::progress(&format!("checkpoint passed over: {why}"));
        }
        match newest {
            Some(checkpoint) => Ok((dir.to_path_buf(), checkpoint)),
            None => Err(Error::usage(format!("'{}' holds no whole checkpoint to resume from", dir.display()))
                .next("give a run folder with checkpoint-N inside, or start a new run")),
        }
    }
    #[cfg(not(feature = "torch"))]
    Err(Error::usage(format!("cannot resume '{}': this build has no training engine", dir.display())))
}

/// What limited a step; nothing of recordings that don't say.
fn bottleneck(s: &StepRecord, device: &str) -> String {
    if s.bound_by.is_empty() {
        return String::new();
    }
    format!(" (bottleneck: {})", plan::words::limiting(&s.bound_by, device))
}

fn reason(finished: &RunFinished) -> String {
    finished.reason.clone().unwrap_or_else(|| "the run ended before it began".into())
}

/// Says how it ended and how to go on; the exit code of the contract.
fn say_end(finished: &RunFinished, run_dir: Option<&Path>) -> ExitCode {
    let mut resume = finished.kept();
    if let (Some(_), Some(dir)) = (&finished.checkpoint, run_dir) {
        resume += &format!("; resume with: blockstream-tui train --resume {}", dir.display());
    }
    let text = match finished.status {
        RunStatus::Finished => return ExitCode::Ok,
        RunStatus::Running | RunStatus::Failed => format!("failed: {}; {resume}", reason(finished)),
        RunStatus::Stopped | RunStatus::Aborted => format!("stopped; {resume}"),
        RunStatus::Interrupted => format!("interrupted; {resume}"),
        RunStatus::Terminated => format!("terminated; {resume}"),
    };
    print::progress(&text);
    finished.exit_code()
}

/// Events as lines.
#[derive(Default)]
struct Lines {
    run_dir: Option<PathBuf>,
    device: String,
    total: u64,
    stage: String,
}

impl Lines {
    fn show(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Started(s) => {
                self.run_dir = Some(s.run_dir.clone());
                self.total = s.steps_total;
                self.device.clone_from(&s.device);
                print::progress(&format!(
                    "{} on {} ({}): {}, {} layers, at most {} loaded at once, disk reader {}",
                    s.model, s.device, s.compute_dtype, s.verdict, s.n_blocks, s.residency_planned, s.reader
                ));
            }
            EventKind::Stage(s) => print::stage(s, &mut self.stage),
            EventKind::Step(s) => print::progress(&format!(
                "step {}/{}  {}{} tokens  {}{}  disk reads {}  {} {}",
                s.step,
                self.total,
                s.metrics.shown().map(|(label, figure)| format!("{label} {figure}  ")).collect::<String>(),
                s.tokens,
                secs(s.seconds),
                bottleneck(s, &self.device),
                s.disk_read,
                if self.device == "cpu" { "loaded" } else { "RAM→GPU" },
                s.h2d
            )),
            EventKind::Eval(e) => {
                print::progress(&format!("eval loss {:.4} after step {} ({} tokens)", e.loss, e.step, e.tokens));
            }
            EventKind::Saved(s) => print::progress(&format!("{} saved: {} ({})", s.what, s.path.display(), s.bytes)),
            EventKind::Paused { step } => print::progress(&format!("paused after step {step}")),
            EventKind::Resumed { step } => print::progress(&format!("resumed after step {step}")),
            EventKind::Notice(n) => {
                let mark = match n.level {
                    Level::Info => "",
                    Level::Warn => "warning: ",
                    Level::Error => "error: ",
                };
                print::progress(&format!("{mark}{}", n.text));
            }
            EventKind::Finished(_) | EventKind::Progress(_) | EventKind::Gauges(_) | EventKind::Trace(_) => {}
        }
    }
}

/// Prints a recorded run's events at `speed` times their pace (0 = at once).
///
/// # Errors
/// The folder holds no readable `events.jsonl`.
pub fn replay(run: &Path, speed: f64) -> Result<ExitCode> {
    let mut replay = report::replay(&run.join("events.jsonl"))?;
    let mut lines = Lines::default();
    let begun = std::time::Instant::now();
    while !replay.is_over() {
        let elapsed = if speed > 0.0 { begun.elapsed().as_secs_f64() * speed } else { f64::INFINITY };
        replay.due(elapsed).iter().for_each(|e| lines.show(e));
        if !replay.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(ExitCode::Ok)
}
