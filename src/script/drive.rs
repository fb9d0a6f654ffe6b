//! Drives a workbench by a script: the same session as the terminal's, on ratatui's test backend.

use super::expect::Facts;
use super::parse::{Command, Line, Wait, parse};
use crate::clock::Clock;
use crate::engine::Services;
use crate::error::{Error, ExitCode};
use crate::event::{Event, EventKind, Level, RunStatus};
use crate::plan::Verdict;
use crate::ui::keys::{self, Action};
use crate::ui::run::status_word;
use crate::ui::{Msg, Request, Screen, Session, Theme, UiOptions, buffer_text, frame};
use crate::units::secs;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the driver sleeps when the run says nothing.
const NAP: Duration = Duration::from_millis(10);
/// Seconds of silence after which a waiting script says where the run stands.
const QUIET: f64 = 10.0;
/// Longest script that is read.
const LONGEST: u64 = 1 << 20;

/// Runs the script in `file` over `services`. Data (snapshots, exports, the report: their paths) goes to `out`,
/// progress and errors to `err`.
pub fn run(
    file: &Path,
    services: &mut dyn Services,
    options: UiOptions,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> ExitCode {
    let name = file.display().to_string();
    let lines = match read(file) {
        Ok(text) => parse(&text),
        Err(e) => {
            say(err, &e.to_string());
            return ExitCode::Usage;
        }
    };
    let lines = match lines {
        Ok(lines) => lines,
        Err((line, what)) => {
            say(err, &format!("{name}:{line}: {what}"));
            return ExitCode::Usage;
        }
    };
    let theme = Theme { ascii: options.ascii, ..Theme::plain() };
    let session = Session::new(options.config, theme, services);
    let mut driver = Driver {
        session,
        terminal: terminal(100, 30),
        clock: Clock::real(),
        results: options.results,
        report: None,
        finished: None,
        said: 0.0,
        left: None,
        out,
        err,
    };
    for note in options.notes {
        say(driver.err, &note);
    }
    let code = driver.all(&name, &lines);
    let end = driver.end();
    // A failed line outranks how the run ended; a signal outranks both.
    match (code, end) {
        (_, ExitCode::Interrupted | ExitCode::Terminated) => end,
        (ExitCode::Ok, end) => end,
        (code, _) => code,
    }
}

fn read(file: &Path) -> Result<String, Error> {
    let length = std::fs::metadata(file).map_err(|e| Error::io("read", file, e))?.len();
    if length > LONGEST {
        return Err(Error::usage(format!("'{}' is too long for a script", file.display())));
    }
    std::fs::read_to_string(file).map_err(|e| Error::io("read", file, e))
}

fn terminal(width: u16, height: u16) -> Terminal<TestBackend> {
    Terminal::new(TestBackend::new(width, height)).expect("a test backend has no errors")
}

/// A reader that has gone must not stop a run.
fn say(to: &mut dyn Write, line: &str) {
    for part in line.lines() {
        let _ = writeln!(to, "{}", crate::text::one_line(part));
    }
    let _ = to.flush();
}

/// Why a line did not succeed, and the code that means.
struct Stop(ExitCode, String);

fn failed(what: impl Into<String>) -> Stop {
    Stop(ExitCode::Failed, what.into())
}

fn bad(e: &Error) -> Stop {
    Stop(e.exit_code(), e.to_string())
}

struct Driver<'a> {
    session: Session<'a>,
    terminal: Terminal<TestBackend>,
    clock: Clock,
    results: PathBuf,
    /// Report of the newest finished run.
    report: Option<Value>,
    /// How the newest run ended.
    finished: Option<ExitCode>,
    /// When something was last said.
    said: f64,
    /// The workbench was left by a key or a line.
    left: Option<ExitCode>,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl Driver<'_> {
    fn all(&mut self, name: &str, lines: &[Line]) -> ExitCode {
        for line in lines {
            if self.left.is_some() {
                break;
            }
            say(self.err, &format!("> {}", line.text));
            if let Err(Stop(code, what)) = self.line(&line.command) {
                say(self.err, &format!("{name}:{}: {what}", line.number));
                return code;
            }
        }
        ExitCode::Ok
    }

    /// A run that outlives its script is finished like any other that is asked to stop.
    fn end(&mut self) -> ExitCode {
        let mut told = false;
        while self.session.app.busy() {
            if !told {
                say(self.err, "the script is over: finishing this step, saving, stopping");
                self.session.send(Msg::Act(Action::Stop));
                told = true;
            }
            self.step();
        }
        match (self.left, self.finished) {
            (_, Some(code)) => code,
            (Some(code), None) => code,
            (None, None) => ExitCode::Ok,
        }
    }

    fn line(&mut self, command: &Command) -> Result<(), Stop> {
        match command {
            Command::Size(w, h) => {
                self.terminal = terminal(*w, *h);
                self.session.send(Msg::Resize(*w, *h));
            }
            Command::Key(keys) => {
                for key in keys {
                    self.send(Msg::Key(*key))?;
                }
            }
            Command::Type(text) => {
                for c in text.chars() {
                    self.send(Msg::Key(keys::press(KeyCode::Char(c), KeyModifiers::NONE)))?;
                }
            }
            Command::Open(screen) => self.send(Msg::Open(*screen))?,
            Command::Set(key, value) => {
                // The config is checked here first: a bad value is a bad line, not a note on the status bar.
                let mut trial = self.session.app.config.clone();
                crate::config::load::set(&mut trial, key, value).map_err(|e| bad(&e))?;
                self.send(Msg::Set(key.clone(), value.clone()))?;
            }
            Command::Run => self.run()?,
            Command::Wait(what, limit) => self.wait(what, *limit)?,
            Command::Expect { path, op, value, scope } => {
                let plan = self.session.app.plan.report().and_then(|p| serde_json::to_value(p).ok());
                let facts = Facts { report: self.report.as_ref(), plan: plan.as_ref() };
                facts.check(path, *op, value, *scope).map_err(failed)?;
            }
            Command::ExpectScreen(text) => {
                let screen = self.draw();
                if !screen.contains(text.as_str()) {
                    return Err(failed(format!("the screen does not show \"{text}\"; it shows:\n{screen}")));
                }
            }
            Command::Snapshot(name) => self.snapshot(name)?,
            Command::Export(kind) => self.export(kind)?,
            Command::Stop => self.send(Msg::Act(Action::Stop))?,
            Command::Quit => self.left = self.left.or(Some(ExitCode::Ok)),
        }
        Ok(())
    }

    /// Sends a message, then lets the run be heard, as the terminal's loop does.
    fn send(&mut self, msg: Msg) -> Result<(), Stop> {
        self.session.send(msg);
        self.tick();
        self.requests()
    }

    fn requests(&mut self) -> Result<(), Stop> {
        while let Some(request) = self.session.request() {
            match request {
                Request::Quit(code) => self.left = Some(code),
                Request::SaveScreen => self.snapshot("screen")?,
                Request::Suspend | Request::Redraw => {}
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), Stop> {
        if self.session.app.busy() {
            return Err(failed("a run is in progress"));
        }
        self.session.send(Msg::Open(Screen::Plan));
        self.session.send(Msg::Act(Action::Refresh));
        let app = &self.session.app;
        let Some(plan) = app.plan.report() else {
            return Err(match &self.session.plan_error {
                Some(e) => bad(e),
                None => Stop(ExitCode::Usage, "no model: give --model or 'set model.path DIR'".into()),
            });
        };
        let mode = plan.modes.of(app.config.train.mode);
        if mode.verdict == Verdict::Infeasible {
            let fix = mode.nearest_fix.as_deref().map(|f| format!("; nearest fix: {f}")).unwrap_or_default();
            let what = format!("INFEASIBLE ({}): {}{fix}", app.config.train.mode, mode.reasons.join("; "));
            return Err(Stop(ExitCode::Infeasible, what));
        }
        (self.report, self.finished) = (None, None);
        self.session.send(Msg::Act(Action::Start));
        match self.session.start_error.take() {
            Some(e) => Err(bad(&e)),
            None => Ok(()),
        }
    }

    fn wait(&mut self, what: &Wait, limit: Duration) -> Result<(), Stop> {
        let until = self.clock.now() + limit.as_secs_f64();
        loop {
            let idle = self.tick() == 0;
            self.requests()?;
            let app = &self.session.app;
            let (step, over) = (app.run.last.as_ref().map_or(0, |s| s.step), !app.busy());
            let done = match what {
                Wait::Finished => over && app.run.finished.is_some(),
                Wait::Paused => app.run.paused,
                Wait::Step(n) => step >= *n,
                Wait::Screen(text) => self.draw().contains(text.as_str()),
            };
            let app = &self.session.app;
            if done {
                let failed_run = app.run.finished.as_ref().filter(|f| over && f.status == RunStatus::Failed);
                return match failed_run {
                    Some(f) if *what == Wait::Finished => {
                        Err(failed(format!("the run failed: {}", f.reason.as_deref().unwrap_or("no reason given"))))
                    }
                    _ => Ok(()),
                };
            }
            if over && !matches!(what, Wait::Screen(_)) {
                let how = app.run.finished.as_ref().map_or("no run was started", |f| status_word(f.status));
                let why = app.run.finished.as_ref().and_then(|f| f.reason.clone()).map(|r| format!(": {r}"));
                return Err(failed(format!("what is waited for can't come: {how}{}", why.unwrap_or_default())));
            }
            if self.clock.now() >= until {
                let state = app.run.state(app.run_now());
                return Err(failed(format!(
                    "waited {} in vain; state: {state}, step {step}",
                    secs(limit.as_secs_f64())
                )));
            }
            if idle {
                std::thread::sleep(NAP);
            }
        }
    }

    fn step(&mut self) {
        if self.tick() == 0 {
            std::thread::sleep(NAP);
        }
    }

    /// Takes what the run has said and prints the steps; returns how many events there were.
    fn tick(&mut self) -> usize {
        let events = self.session.tick(self.clock.now());
        for event in &events {
            self.told(event);
        }
        self.still_there();
        events.len()
    }

    /// A step may take minutes: says where it stands when nothing else has been said for a while.
    fn still_there(&mut self) {
        let (app, now) = (&self.session.app, self.clock.now());
        if !app.busy() || now - self.said < QUIET {
            return;
        }
        let place = app.run.progress.as_ref().map_or(String::new(), |p| {
            format!(", step {}: block {}, visit {} of {}", p.step, p.block, p.visit + 1, p.visits)
        });
        say(self.err, &format!("{}{place}", app.run.state(app.run_now())));
        self.said = now;
    }

    fn told(&mut self, event: &Event) {
        let total = self.session.app.run.started.as_ref().map_or(0, |s| s.steps_total);
        let line = match &event.kind {
            EventKind::Started(s) => {
                format!("run {}: {} {}, {} layers on {}", s.run_id, s.model, s.verdict, s.n_blocks, s.device)
            }
            EventKind::Step(s) => {
                let left = self.session.app.run.eta(event.at).map(|e| format!(", {} left", secs(e.seconds)));
                let left = left.unwrap_or_default();
                format!("step {}/{total}: loss {:.4}, {}{left}", s.step, s.loss(), secs(s.seconds))
            }
            EventKind::Eval(e) => format!("eval loss {:.4} after step {}", e.loss, e.step),
            EventKind::Saved(s) => format!("saved {} of step {}", s.what, s.step),
            EventKind::Paused { step } => format!("paused after step {step}"),
            EventKind::Resumed { step } => format!("resumed after step {step}"),
            EventKind::Notice(n) if n.level == Level::Info => n.text.clone(),
            EventKind::Notice(n) if n.level == Level::Warn => format!("warning: {}", n.text),
            EventKind::Notice(n) => format!("error: {}", n.text),
            EventKind::Stage(s) if s.total > 0 && s.done >= s.total => {
                format!("{}: {} {}", s.name, s.total, s.unit)
            }
            EventKind::Finished(f) => {
                self.finished = Some(f.exit_code());
                self.session.app.run.ending().join("\n")
            }
            _ => return,
        };
        say(self.err, &line);
        self.said = self.clock.now();
        if matches!(event.kind, EventKind::Finished(_)) {
            self.reported();
        }
    }

    /// Reads the report of the run that has ended, and prints its path.
    fn reported(&mut self) {
        let Some(dir) = self.session.app.run.started.as_ref().map(|s| s.run_dir.clone()) else {
            return;
        };
        match self.session.report(&dir) {
            Ok(report) => {
                self.report = Some(report);
                say(self.out, &dir.join("report.json").display().to_string());
            }
            Err(e) => say(self.err, &e.to_string()),
        }
    }

    fn draw(&mut self) -> String {
        let app = &self.session.app;
        let drawn = self.terminal.draw(|f| frame::draw(app, f)).expect("a test backend has no errors");
        buffer_text(drawn.buffer)
    }

    fn snapshot(&mut self, name: &str) -> Result<(), Stop> {
        let folder = self.session.app.run.started.as_ref().map_or_else(|| self.results.clone(), |s| s.run_dir.clone());
        let path = folder.join(format!("{name}.txt"));
        let text = self.draw();
        std::fs::create_dir_all(&folder).map_err(|e| bad(&Error::io("create", &folder, e)))?;
        std::fs::write(&path, text).map_err(|e| bad(&Error::io("write", &path, e)))?;
        say(self.out, &path.display().to_string());
        Ok(())
    }

    fn export(&mut self, kind: &str) -> Result<(), Stop> {
        if self.session.app.busy() {
            return Err(failed("the run is still going: wait for it before the export"));
        }
        self.session.exported = None;
        self.send(Msg::Export(kind.to_owned()))?;
        match self.session.exported.take() {
            Some(Ok(path)) => {
                say(self.out, &path.display().to_string());
                Ok(())
            }
            Some(Err(e)) => Err(bad(&e)),
            None => Err(failed("there is no run to export")),
        }
    }
}
