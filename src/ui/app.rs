//! The workbench as a reducer: [`App::update`] takes a [`Msg`], changes the state and returns [`Effect`]s.
//!
//! It never sees a terminal, a file or a thread: the terminal loop and the script drive the same reducer.

use super::fetch::FetchView;
use super::keys::{Action, lookup, notation};
use super::overlay::{Overlay, QuitChoice, QuitDialog};
use super::run::{Basis, Drive, RunView, Source, Spill};
use super::screens::{data::DataScreen, models::ModelsScreen, plan::PlanScreen, run::RunPanes, runs::RunsScreen};
use super::theme::Theme;
use crate::config::{Mode, RunConfig};
use crate::engine::{Fetched, ModelEntry, RunEntry};
use crate::error::ExitCode;
use crate::event::{Command, Event, EventKind, Level, RunFinished, RunStatus};
use crate::plan::PlanReport;
use ratatui::crossterm::event::{KeyEvent, KeyEventKind};
use std::path::PathBuf;

/// Seconds that a stop-now may take before the program leaves without it.
const STOP_NOW_GRACE: f64 = 10.0;
/// Seconds that a message stays in the status bar.
const FLASH: f64 = 6.0;

/// The screens, in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// Pick a checkpoint.
    Models,
    /// Rows, template, mask.
    Data,
    /// Verdict, settings, memory.
    Plan,
    /// The training in progress.
    Run,
    /// Earlier runs and their reports.
    Runs,
    /// Generate with the adapter.
    Try,
}

impl Screen {
    /// All of them.
    pub const ALL: [Screen; 6] = [Screen::Models, Screen::Data, Screen::Plan, Screen::Run, Screen::Runs, Screen::Try];
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Screen::Models => "Models",
            Screen::Data => "Data",
            Screen::Plan => "Plan",
            Screen::Run => "Run",
            Screen::Runs => "Runs",
            Screen::Try => "Try",
        }
    }
    /// The screen of a name, as `open` takes it.
    #[must_use]
    pub fn named(name: &str) -> Option<Screen> {
        Screen::ALL.into_iter().find(|s| s.name().eq_ignore_ascii_case(name))
    }
}

/// What happens to the workbench.
#[derive(Debug)]
pub enum Msg {
    /// A key event of any kind.
    Key(KeyEvent),
    /// Pasted text.
    Paste(String),
    /// The terminal's size.
    Resize(u16, u16),
    /// The clock, seconds since the program started.
    Tick(f64),
    /// Events of the run.
    Events(Vec<Event>),
    /// Telemetry dropped so far.
    Dropped(u64),
    /// Lines that libraries wrote to fd 1 or 2.
    Noise(Vec<String>),
    /// Checkpoints on this machine.
    Models(Vec<ModelEntry>),
    /// Answer to [`Effect::Plan`]; an error as text.
    Planned(Result<Box<PlanReport>, String>),
    /// Why what was planned could not be started.
    Unready(Option<String>),
    /// Answer to [`Effect::Complete`].
    Folders(Vec<String>),
    /// Answer to [`Effect::Start`].
    StartFailed(String),
    /// The run has been handed to the worker.
    StartAccepted,
    /// Runs under the results folder.
    Runs(Vec<RunEntry>),
    /// Reports asked for by [`Effect::LoadReports`].
    Reports(Vec<(PathBuf, Result<serde_json::Value, String>)>),
    /// Answer to [`Effect::Export`].
    Exported(Result<PathBuf, String>),
    /// What a fetch from the hub has said.
    Fetched(Vec<Fetched>),
    /// A fetch could not begin.
    FetchRefused(String),
    /// Something for the status bar.
    Say(Level, String),
    /// Go to a screen, as `open` does.
    Open(Screen),
    /// Change a setting, as `set` does.
    Set(String, String),
    /// SIGINT or SIGTERM or a lost terminal: save, stop, leave with this code.
    Leave(ExitCode),
    /// Export the newest run, as `export` does.
    Export(String),
    /// An action without its key, as the palette sends it.
    Act(Action),
}

/// What the workbench wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// List checkpoints.
    LoadModels,
    /// Plan the config.
    Plan,
    /// Find the folders that a path being typed can go on to.
    Complete(String),
    /// Start the run that the config describes.
    Start,
    /// Tell the trainer.
    Command(Command),
    /// List runs.
    LoadRuns,
    /// Read these reports.
    LoadReports(Vec<PathBuf>),
    /// Fetch the headers of a model on the hub.
    FetchHeaders(String),
    /// Ask what a download of a model takes.
    Survey(String),
    /// Begin the download that was asked about.
    Download,
    /// Stop what is being fetched.
    CancelFetch,
    /// Export a run.
    Export(PathBuf, String),
    /// Write the screen as text.
    SaveScreen,
    /// Stop the process until `fg`.
    Suspend,
    /// Clear and draw again.
    Redraw,
    /// Leave with this code.
    Quit(ExitCode),
}

/// The whole state of the workbench.
#[derive(Debug)]
pub struct App {
    /// The config that the next run gets.
    pub config: RunConfig,
    /// Colours and characters.
    pub theme: Theme,
    /// The screen shown.
    pub screen: Screen,
    /// What lies over it.
    pub overlay: Option<Overlay>,
    /// Checkpoints.
    pub models: ModelsScreen,
    /// Data settings.
    pub data: DataScreen,
    /// The plan.
    pub plan: PlanScreen,
    /// The run, from its events.
    pub run: RunView,
    /// The panes' own state.
    pub panes: RunPanes,
    /// Earlier runs.
    pub runs: RunsScreen,
    /// What is being fetched from the hub.
    pub fetch: FetchView,
    /// Telemetry dropped.
    pub dropped: u64,
    /// Terminal size, columns and rows.
    pub size: (u16, u16),
    /// Seconds since the program started.
    pub now: f64,
    pub(super) flash: Option<(Level, String, f64)>,
    /// A run was handed to the worker and has not sent `Started` yet.
    pub(super) handed_over: bool,
    leaving: Option<Leaving>,
    event_seen_at: f64,
}

#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// Leave even if the run has not ended.
    deadline: Option<f64>,
    /// The code, where a signal decides it.
    code: Option<ExitCode>,
}

impl App {
    /// A workbench on `config`: on the Plan screen if it names a model, else on Models.
    #[must_use]
    pub fn new(config: RunConfig, theme: Theme) -> (App, Vec<Effect>) {
        let named = !config.model.path.is_empty();
        let app = App {
            screen: if named { Screen::Plan } else { Screen::Models },
            config,
            theme,
            overlay: None,
            models: ModelsScreen::default(),
            data: DataScreen::default(),
            plan: PlanScreen::default(),
            run: RunView::default(),
            panes: RunPanes::default(),
            runs: RunsScreen::default(),
            fetch: FetchView::default(),
            dropped: 0,
            size: (0, 0),
            now: 0.0,
            flash: None,
            handed_over: false,
            leaving: None,
            event_seen_at: 0.0,
        };
        let mut effects = vec![Effect::LoadModels, Effect::LoadRuns];
        if named {
            effects.push(Effect::Plan);
        }
        (app, effects)
    }

    /// A run is going on or about to.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.handed_over || self.run.running()
    }

    /// What a run that starts now is started with.
    fn basis(&self) -> Option<Box<Basis>> {
        self.plan.report().map(|plan| Box::new(Basis { config: self.config.clone(), plan: plan.clone() }))
    }

    /// Seconds of the run, moved on with the clock since its newest event.
    #[must_use]
    pub fn run_now(&self) -> f64 {
        self.run.at + if self.run.running() { (self.now - self.event_seen_at).max(0.0) } else { 0.0 }
    }

    /// Takes one message.
    pub fn update(&mut self, msg: Msg) -> Vec<Effect> {
        match msg {
            Msg::Key(key) => return self.key(&key),
            Msg::Paste(text) => self.paste(&text),
            Msg::Resize(w, h) => self.size = (w, h),
            Msg::Tick(now) => return self.tick(now),
            Msg::Events(events) => return self.events(&events),
            Msg::Dropped(n) => self.dropped = n,
            Msg::Noise(lines) => {
                let at = self.run_now();
                for line in lines {
                    self.run.log.push(at, Level::Warn, Source::Library, &line);
                }
            }
            Msg::Models(list) => {
                self.models.list.replace(list);
                self.select_fetched();
            }
            Msg::Planned(Ok(plan)) => self.plan.set(Ok(*plan)),
            Msg::Planned(Err(e)) => self.plan.set(Err(e)),
            Msg::Unready(why) => self.plan.ready(why.map(|why| match self.config.data.files.is_empty() {
                true if self.config.train.mode == Mode::Lora => "No training data yet: press 2 and set files".into(),
                _ => why,
            })),
            Msg::Folders(folders) => {
                if let Some(Overlay::Prompt(p)) = &mut self.overlay {
                    p.complete(folders);
                }
            }
            Msg::StartAccepted => {
                self.run = RunView::starting(std::mem::take(&mut self.run.log), self.basis());
                self.event_seen_at = self.now;
                self.panes.frozen = None;
                self.handed_over = true;
                self.screen = Screen::Run;
            }
            Msg::StartFailed(e) => self.message("The run can't start", &e),
            Msg::Runs(list) => self.runs.list.replace(list),
            Msg::Reports(reports) => self.show_reports(reports),
            Msg::Exported(Ok(path)) => self.say(Level::Info, format!("written: {}", path.display())),
            Msg::Exported(Err(e)) => self.message("The export failed", &e),
            Msg::Fetched(said) => return self.fetched(said),
            Msg::FetchRefused(why) => self.fetch_failed(&why),
            Msg::Say(level, text) => self.say(level, text),
            Msg::Open(screen) => return self.open(screen),
            Msg::Set(key, value) => return self.set(&key, &value),
            Msg::Leave(code) => return self.leave(code),
            Msg::Export(kind) => return self.export(&kind),
            Msg::Act(action) => return self.act(action),
        }
        Vec::new()
    }

    /// Puts a line into the status bar.
    pub fn say(&mut self, level: Level, text: impl Into<String>) {
        self.flash = Some((level, text.into(), self.now));
    }

    /// Opens a dialog with a text to read.
    pub fn message(&mut self, title: &str, text: &str) {
        self.overlay = Some(Overlay::Message { title: title.into(), text: text.into(), scroll: 0, fix: None });
    }

    /// Changes one setting and plans again.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Vec<Effect> {
        self.change(key, value).unwrap_or_default()
    }

    /// As [`App::set`]; `None` if it was refused, which is then said.
    pub(super) fn change(&mut self, key: &str, value: &str) -> Option<Vec<Effect>> {
        match crate::config::load::set(&mut self.config, key, value) {
            Ok(note) => {
                if let Some(note) = note {
                    self.say(Level::Info, note);
                }
                Some(self.replan())
            }
            Err(e) => {
                self.say(Level::Error, e.to_string());
                None
            }
        }
    }

    /// Takes over the settings of a command that the planner has printed, and plans them.
    pub(super) fn apply_fix(&mut self, command: &str) -> Vec<Effect> {
        match crate::plan::read_command(command) {
            Ok(config) => {
                let (machine, results) = (self.config.machine.take(), self.config.results.take());
                self.config = RunConfig { machine, results, ..config };
                self.say(Level::Info, "the nearest fix is applied; enter starts the run");
                self.replan()
            }
            Err(e) => {
                self.say(Level::Error, e.to_string());
                Vec::new()
            }
        }
    }

    fn replan(&self) -> Vec<Effect> {
        if self.config.model.path.is_empty() { Vec::new() } else { vec![Effect::Plan] }
    }

    fn open(&mut self, screen: Screen) -> Vec<Effect> {
        self.overlay = None;
        self.screen = screen;
        match screen {
            Screen::Runs => vec![Effect::LoadRuns],
            Screen::Models if self.models.list.is_empty() => vec![Effect::LoadModels],
            Screen::Plan if self.plan.is_empty() => self.replan(),
            _ => Vec::new(),
        }
    }

    fn tick(&mut self, now: f64) -> Vec<Effect> {
        self.now = now;
        if self.flash.as_ref().is_some_and(|(_, _, since)| now - since > FLASH) {
            self.flash = None;
        }
        match self.leaving {
            Some(Leaving { deadline: Some(deadline), code }) if now > deadline => {
                vec![Effect::Quit(code.unwrap_or(ExitCode::Failed))]
            }
            _ => Vec::new(),
        }
    }

    fn events(&mut self, events: &[Event]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            if matches!(event.kind, EventKind::Started(_)) {
                self.run.basis = self.run.basis.take().or_else(|| self.basis());
                let machine = self.run.basis.as_ref().map(|b| &b.plan.machine);
                let card = machine.and_then(|m| m.gpu.as_ref()).filter(|g| !g.integrated);
                self.run.spill = card.map(|g| Spill::of(g.vram_total, g.spills)).unwrap_or_default();
                self.run.drive = machine.map(|m| Drive::planned(m.disk.read)).unwrap_or_default();
            }
            let eval_steps = self.run.basis.as_ref().map_or(0, |b| b.config.train.eval_steps);
            self.run.apply(event, eval_steps);
            self.event_seen_at = self.now;
            match &event.kind {
                EventKind::Started(_) => self.handed_over = false,
                EventKind::Finished(f) => {
                    self.handed_over = false;
                    effects.push(Effect::LoadRuns);
                    if let Some(leaving) = self.leaving.take() {
                        effects.push(Effect::Quit(leaving.code.unwrap_or_else(|| f.exit_code())));
                    } else if matches!(self.overlay, Some(Overlay::Quit(_))) {
                        self.overlay = None;
                    }
                    if f.status == RunStatus::Failed {
                        self.say(Level::Error, "the run failed; the log says why");
                    }
                }
                _ => {}
            }
        }
        effects
    }

    fn key(&mut self, key: &KeyEvent) -> Vec<Effect> {
        if key.kind == KeyEventKind::Release {
            return Vec::new();
        }
        if notation(key) == "<c-c>" {
            return if key.kind == KeyEventKind::Press { self.interrupt() } else { Vec::new() };
        }
        if let Some(overlay) = self.overlay.take() {
            return self.overlay_key(overlay, key);
        }
        if let Some(effects) = self.edit_key(key) {
            return effects;
        }
        match lookup(key, self.screen) {
            Some(b) if key.kind == KeyEventKind::Press || b.action.repeats() => self.act(b.action),
            _ => Vec::new(),
        }
    }

    /// Ctrl-C: leaves when nothing runs; else asks. Once more drops the step, and once more leaves at once.
    fn interrupt(&mut self) -> Vec<Effect> {
        if !self.busy() {
            return vec![Effect::Quit(self.code_of_last_run())];
        }
        if self.leaving.is_some() || matches!(self.overlay, Some(Overlay::Quit(_))) {
            self.overlay = None;
            let code = self.leaving.and_then(|l| l.code);
            return self.leave_with(self.stronger().max(Command::DropStep), code);
        }
        self.overlay = Some(Overlay::Quit(QuitDialog::default()));
        Vec::new()
    }

    pub(super) fn quit(&mut self) -> Vec<Effect> {
        if self.busy() {
            self.overlay = Some(Overlay::Quit(QuitDialog::default()));
            return Vec::new();
        }
        vec![Effect::Quit(self.code_of_last_run())]
    }

    /// Quitting after a run tells how it ended, as quitting in its middle does.
    fn code_of_last_run(&self) -> ExitCode {
        self.run.finished.as_ref().map_or(ExitCode::Ok, RunFinished::exit_code)
    }

    /// The stop that one more request means.
    fn stronger(&self) -> Command {
        match self.run.asked.stop() {
            None => Command::StopAndSave,
            Some(Command::StopAndSave) => Command::DropStep,
            Some(_) => Command::Discard,
        }
    }

    /// Asks the run for `command` and leaves when it has ended. Only a run that saves nothing more has a deadline.
    fn leave_with(&mut self, command: Command, code: Option<ExitCode>) -> Vec<Effect> {
        let deadline = (command == Command::Discard).then_some(self.now + STOP_NOW_GRACE);
        self.leaving = Some(Leaving { deadline, code });
        self.ask(command)
    }

    pub(super) fn quit_with(&mut self, choice: QuitChoice) -> Vec<Effect> {
        self.overlay = None;
        let command = match choice {
            QuitChoice::Cancel => return Vec::new(),
            QuitChoice::SaveAndStop => Command::StopAndSave,
            QuitChoice::Discard => Command::Discard,
        };
        if !self.busy() {
            return vec![Effect::Quit(self.code_of_last_run())];
        }
        self.leave_with(command, None)
    }

    fn leave(&mut self, code: ExitCode) -> Vec<Effect> {
        self.overlay = None;
        if !self.busy() {
            return vec![Effect::Quit(code)];
        }
        self.leave_with(self.stronger(), Some(code))
    }

    /// Passes a command on and shows at once that it was heard.
    pub(super) fn ask(&mut self, command: Command) -> Vec<Effect> {
        self.run.asked.add(command, self.run.paused);
        vec![Effect::Command(command)]
    }

    fn show_reports(&mut self, reports: Vec<(PathBuf, Result<serde_json::Value, String>)>) {
        match reports.iter().find_map(|(_, r)| r.as_ref().err()) {
            Some(e) => {
                let e = e.clone();
                self.message("No report", &e);
            }
            None => {
                let values = reports.into_iter().filter_map(|(_, r)| r.ok()).collect();
                self.overlay = Some(Overlay::Report { reports: values, scroll: 0 });
            }
        }
    }
}
