//! What the screen knows of a run: a fold over its events. Nothing here draws.

mod asked;
mod history;
mod log;
mod pace;
mod rates;
mod spill;

pub use asked::Asked;
pub use history::{Bucket, History, columns, smooth};
pub use log::{Log, LogLine, Source};
pub use pace::{Bound, Drive, bound, of};
pub use rates::Rate;
pub use spill::Spill;

use crate::config::RunConfig;
use crate::event::{
    Command, Event, EventKind, Gauges, Level, Phase, Progress, RunFinished, RunStarted, RunStatus, Saved, Stage,
    StepRecord, StepTrace,
};
use crate::plan::PlanReport;
use crate::units::{Bytes, secs};
use std::collections::VecDeque;

/// Steps that the windowed step time looks back on.
pub const WINDOW: usize = 20;
/// Evaluations kept for the chart; past that every second one goes, the first and the newest stay.
const EVALS: usize = 1_000;

/// What a run was started with. It stays what it was while the next run is being set up.
#[derive(Clone, Debug)]
pub struct Basis {
    /// Its settings.
    pub config: RunConfig,
    /// Its plan.
    pub plan: PlanReport,
}

/// A run as seen from its events.
#[derive(Clone, Debug, Default)]
pub struct RunView {
    /// What it was started with.
    pub basis: Option<Box<Basis>>,
    /// What it is; `None` before the first run.
    pub started: Option<RunStarted>,
    /// Preparation step in progress.
    pub stage: Option<Stage>,
    /// Training loss.
    pub loss: History,
    /// Held-out loss by step.
    pub evals: Vec<(u64, f64)>,
    /// Newest step whose loss was not finite.
    pub not_finite: Option<u64>,
    /// Newest step.
    pub last: Option<StepRecord>,
    /// Newest progress.
    pub progress: Option<Progress>,
    /// Disk reads over time.
    pub disk: Rate,
    /// The drive against its plan.
    pub drive: Drive,
    /// The card's memory against what is put into it.
    pub spill: Spill,
    /// Host-to-device copies over time.
    pub h2d: Rate,
    /// Newest gauges.
    pub gauges: Gauges,
    /// Highest live device memory seen.
    pub vram_peak: Option<Bytes>,
    /// Most blocks on the device at once.
    pub residency_peak: usize,
    /// Where the last step's time went.
    pub trace: Option<StepTrace>,
    /// Log lines.
    pub log: Log,
    /// The newest of each kind that is safely on disk.
    pub saved: Vec<Saved>,
    /// How it ended.
    pub finished: Option<RunFinished>,
    /// Waiting for `Resume`.
    pub paused: bool,
    /// Requests that the trainer has not answered yet.
    pub asked: Asked,
    /// Run seconds of the newest event.
    pub at: f64,
    step_began: f64,
    step_times: VecDeque<f64>,
    steps_seen: usize,
    eval_s: Option<f64>,
    evals_left: u64,
}

/// A forecast of what is left, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    /// Seconds left.
    pub seconds: f64,
    /// Steps it was averaged over.
    pub window: usize,
    /// Held-out measurements counted in.
    pub evals: u64,
}

impl RunView {
    /// A view of a run that is about to start, with what is known beforehand.
    #[must_use]
    pub fn starting(log: Log, basis: Option<Box<Basis>>) -> RunView {
        RunView { log, basis, ..RunView::default() }
    }

    /// Steps that a run which ends now without a save would lose, and the step of its newest checkpoint.
    #[must_use]
    pub fn unsaved(&self) -> (u64, Option<u64>) {
        let resumed = self.started.as_ref().map_or(0, |s| s.steps_done);
        let done = self.last.as_ref().map_or(resumed, |s| s.step);
        let kept = self.saved.iter().filter(|s| s.what == "checkpoint").map(|s| s.step).max();
        let kept = kept.or((resumed > 0).then_some(resumed));
        (done.saturating_sub(kept.unwrap_or(0)), kept)
    }

    /// The run computes on the processor: there is no card whose figures could be shown.
    #[must_use]
    pub fn on_cpu(&self) -> bool {
        self.device() == "cpu"
    }

    /// What it computes on: `cpu`, or a card's name; empty before it has started.
    #[must_use]
    pub fn device(&self) -> &str {
        self.started.as_ref().map_or("", |s| &s.device)
    }

    /// A run is going on.
    #[must_use]
    pub fn running(&self) -> bool {
        self.started.is_some() && self.finished.is_none()
    }

    /// Takes one event. `eval_steps` is the config's, for the forecast.
    pub fn apply(&mut self, event: &Event, eval_steps: u64) {
        self.at = event.at;
        match &event.kind {
            EventKind::Started(s) => {
                *self = RunView {
                    drive: std::mem::take(&mut self.drive),
                    spill: std::mem::take(&mut self.spill),
                    ..RunView::starting(std::mem::take(&mut self.log), self.basis.take())
                };
                self.at = event.at;
                self.step_began = event.at;
                let text = format!("{} {}: {} layers on {}, {}", s.model, s.mode, s.n_blocks, s.device, s.verdict);
                self.note(Level::Info, text);
                self.started = Some(s.clone());
            }
            EventKind::Stage(s) => self.stage = (s.total == 0 || s.done < s.total).then(|| s.clone()),
            EventKind::Step(s) => self.step(s, eval_steps),
            EventKind::Eval(e) => {
                self.evaluated(e.step, e.loss);
                self.eval_s = Some(e.seconds);
                self.step_began = event.at;
                self.note(Level::Info, format!("eval loss {:.4} after step {}", e.loss, e.step));
            }
            EventKind::Saved(s) => {
                self.asked.answered(Command::SaveNow);
                self.step_began = event.at;
                self.note(Level::Info, format!("saved {} of step {}, {}", s.what, s.step, s.bytes));
                self.saved.retain(|old| old.what != s.what);
                self.saved.push(s.clone());
            }
            EventKind::Paused { step } => {
                self.paused = true;
                self.asked.answered(Command::Pause);
                self.note(Level::Info, format!("paused after step {step}"));
            }
            EventKind::Resumed { step } => {
                self.paused = false;
                self.asked.answered(Command::Resume);
                self.step_began = event.at;
                self.note(Level::Info, format!("resumed after step {step}"));
            }
            EventKind::Notice(n) => self.note(n.level, n.text.clone()),
            EventKind::Finished(f) => self.finish(f),
            EventKind::Trace(t) => self.trace = Some(t.clone()),
            EventKind::Progress(p) => {
                if self.progress.as_ref().is_none_or(|old| old.step != p.step) && p.visit == 0 {
                    self.step_began = event.at;
                }
                self.stage = None;
                self.disk.push(event.at, p.disk_read);
                self.h2d.push(event.at, p.h2d);
                self.vram_peak = self.vram_peak.max(p.vram_live);
                let said = self.spill.holds(p.vram_live);
                self.tell_of_a_spill(said);
                self.progress = Some(p.clone());
            }
            EventKind::Gauges(g) => {
                self.gauges = g.clone();
                let said = self.spill.uses(g.vram_used);
                self.tell_of_a_spill(said);
            }
        }
    }

    fn evaluated(&mut self, step: u64, loss: f64) {
        if self.evals.len() >= EVALS {
            let mut n = 0;
            self.evals.retain(|_| {
                n += 1;
                n % 2 == 1
            });
        }
        self.evals.push((step, loss));
    }

    fn step(&mut self, s: &StepRecord, eval_steps: u64) {
        self.loss.push(s.step as f64, s.loss());
        if !s.loss().is_finite() {
            self.not_finite = Some(s.step);
        }
        if s.seconds.is_finite() && s.seconds > 0.0 {
            self.steps_seen += 1;
            self.step_times.push_back(s.seconds);
            if self.step_times.len() > WINDOW {
                self.step_times.pop_front();
            }
            self.forget_another_pace();
        }
        let said = self.spill.step(s.seconds);
        self.tell_of_a_spill(said);
        if let Some(slow) = self.drive.push(s) {
            self.tell_of_the_drive(slow);
        }
        let total = self.started.as_ref().map_or(0, |r| r.steps_total);
        let left = total.saturating_sub(s.step);
        // The one at the end comes whether or not there are some on the way.
        self.evals_left = if self.eval_s.is_none() {
            0
        } else {
            1 + left.checked_div(eval_steps).map_or(0, |n| n.saturating_sub(u64::from(left.is_multiple_of(eval_steps))))
        };
        self.residency_peak = self.residency_peak.max(s.residency_peak);
        self.step_began = self.at;
        self.stage = None;
        self.last = Some(s.clone());
    }

    /// Drops the times of a pace that is over: the newest steps are all far slower, or all far faster, than the usual
    /// one before. A single long step changes nothing.
    fn forget_another_pace(&mut self) {
        const NEWEST: usize = 3;
        const FAR: f64 = 1.5;
        let Some(before) = self.step_times.len().checked_sub(NEWEST).filter(|n| *n > 0) else {
            return;
        };
        let mut old: Vec<f64> = self.step_times.iter().take(before).copied().collect();
        old.sort_by(f64::total_cmp);
        let usual = old[before / 2];
        let newest = || self.step_times.iter().skip(before);
        if newest().all(|t| *t > FAR * usual) || newest().all(|t| FAR * *t < usual) {
            self.step_times.drain(..before);
        }
    }

    fn tell_of_a_spill(&mut self, why: Option<String>) {
        if let Some(why) = why {
            self.note(Level::Warn, format!("spill suspected: {why}; lower stream.vram_budget"));
        }
    }

    fn tell_of_the_drive(&mut self, slow: bool) {
        let Some((now, planned)) = self.drive.rates() else {
            return;
        };
        let rates = of(now, planned);
        if slow {
            let text =
                format!("the drive reads at {rates} planned, and is waited for; drives slow down when hot or busy");
            self.note(Level::Warn, text);
        } else {
            self.note(Level::Info, format!("the drive reads well again: {rates} planned"));
        }
    }

    fn finish(&mut self, f: &RunFinished) {
        let level = if f.status == RunStatus::Failed { Level::Error } else { Level::Info };
        let reason = f.reason.as_deref().map(|r| format!(": {r}")).unwrap_or_default();
        self.note(level, format!("{} after step {}{reason}", status_word(f.status), f.step));
        self.residency_peak = self.residency_peak.max(f.residency_peak);
        (self.paused, self.asked, self.stage) = (false, Asked::default(), None);
        self.finished = Some(f.clone());
    }

    /// Adds a line to the log.
    pub fn note(&mut self, level: Level, text: impl Into<String>) {
        self.log.push(self.at, level, Source::Run, &text.into());
    }

    /// Mean seconds of the newest steps, and how many they are. The first of a run is a warm-up and counts only while
    /// it is alone; one that took far longer than the rest (the machine slept) does not count.
    #[must_use]
    pub fn step_time(&self) -> Option<(f64, usize)> {
        const FAR: f64 = 8.0;
        let warm_up_in = self.steps_seen == self.step_times.len();
        let skip = usize::from(warm_up_in && self.step_times.len() > 1);
        let mut times: Vec<f64> = self.step_times.iter().skip(skip).copied().collect();
        times.sort_by(f64::total_cmp);
        let median = *times.get(times.len() / 2)?;
        times.retain(|t| *t <= FAR * median);
        Some((times.iter().sum::<f64>() / times.len() as f64, times.len()))
    }

    /// Seconds that the step in progress still takes, at run time `at`.
    #[must_use]
    pub fn step_left(&self, at: f64) -> Option<f64> {
        let spent = (at - self.step_began).max(0.0);
        if let Some((mean, _)) = self.step_time() {
            return Some((mean - spent).max(0.0));
        }
        // No step is complete: the visits say how far this one is. A backward visit costs about twice a forward one.
        let p = self.progress.as_ref().filter(|p| p.visit > 0)?;
        let forward = self.started.as_ref()?.n_blocks;
        let cost = |visit: usize| (visit.min(forward) + 2 * visit.saturating_sub(forward)) as f64;
        let (done, all) = (cost(p.visit), cost(p.visits));
        (done > 0.0 && all.is_finite()).then(|| (spent / done * (all - done)).max(0.0))
    }

    /// Seconds until the run's last step at run time `at`, once a step is complete.
    #[must_use]
    pub fn eta(&self, at: f64) -> Option<Eta> {
        let (mean, window) = self.step_time()?;
        let (started, last) = (self.started.as_ref()?, self.last.as_ref()?);
        let left = started.steps_total.saturating_sub(last.step);
        let evals = if self.eval_s.is_some() { self.evals_left } else { 0 };
        let spent = if left > 0 && !self.paused { (at - self.step_began).clamp(0.0, mean) } else { 0.0 };
        let seconds = (left as f64 * mean - spent).max(0.0) + evals as f64 * self.eval_s.unwrap_or(0.0);
        Some(Eta { seconds, window, evals })
    }

    /// How the run ended and how it goes on, a line each; nothing before it has ended.
    #[must_use]
    pub fn ending(&self) -> Vec<String> {
        let Some(f) = &self.finished else {
            return Vec::new();
        };
        let why = f.reason.as_deref().map(|r| format!(": {r}")).unwrap_or_default();
        let mut lines = vec![format!("{} after step {}{why}", status_word(f.status), f.step)];
        if f.status != RunStatus::Finished {
            lines.push(f.kept());
            if let (Some(_), Some(s)) = (&f.checkpoint, &self.started) {
                lines.push(format!("resume with: blockstream-tui train --resume {}", s.run_dir.display()));
            }
        }
        lines
    }

    /// The run in one line, for a terminal that has room for no more.
    #[must_use]
    pub fn brief(&self, at: f64) -> String {
        let mut words = vec![self.state(at)];
        if let (Some(s), Some(last)) = (&self.started, &self.last) {
            words.push(format!("step {}/{}", last.step, s.steps_total));
            words.push(format!("loss {:.3}", last.loss()));
        }
        if let Some(eta) = self.eta(at).filter(|_| self.finished.is_none()) {
            words.push(format!("{} left", about(eta.seconds)));
        }
        words.join("  ")
    }

    /// The state in words, at run time `at`: a request is acknowledged here before the trainer answers it.
    #[must_use]
    pub fn state(&self, at: f64) -> String {
        if let Some(f) = &self.finished {
            return status_word(f.status).into();
        }
        if self.started.is_none() {
            return "no run".into();
        }
        if let Some(stage) = &self.stage {
            // A save or a load that takes long is what happens now, whatever was asked for.
            return match self.asked.words() {
                Some((words, _)) if self.asked.stop().is_some() => format!("{words}: {}", stage.name),
                _ if self.asked.has(Command::Pause) => format!("{}, then pausing", stage.name),
                _ => stage.name.clone(),
            };
        }
        let left = || self.step_left(at).map(|s| format!(", {}", about(s))).unwrap_or_default();
        match self.asked.words() {
            Some((words, true)) => format!("{words} after this step{}", left()),
            Some((words, false)) => words,
            None if self.paused => "paused".into(),
            None => match &self.progress {
                None if self.last.is_none() => "preparing".into(),
                Some(p) if p.phase == Phase::Eval => "evaluating".into(),
                _ => "training".into(),
            },
        }
    }
}

/// A forecast as a person says it: no more digits than it is worth.
#[must_use]
pub fn about(s: f64) -> String {
    match s {
        s if s < 1.0 => "under 1 s".into(),
        s if s < 99.5 => format!("~{s:.0} s"),
        s => format!("~{}", secs(s)),
    }
}

/// How a run ended, in a word or two.
#[must_use]
pub fn status_word(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Running => "running",
        RunStatus::Finished => "finished",
        RunStatus::Stopped => "stopped",
        RunStatus::Aborted => "stopped at once",
        RunStatus::Interrupted => "interrupted",
        RunStatus::Terminated => "terminated",
        RunStatus::Failed => "failed",
    }
}

#[cfg(test)]
mod tests;
