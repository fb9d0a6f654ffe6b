//! Between the reducer and the rest of the program: performs effects with [`Services`]. The terminal loop and the
//! script both drive the workbench through it, so they can't differ.

use super::app::{App, Effect, Msg};
use super::theme::Theme;
use crate::config::RunConfig;
use crate::engine::Services;
use crate::error::{Error, ExitCode};
use crate::event::Event;
use std::collections::VecDeque;
use std::path::PathBuf;

/// What only the driver of a session can do: it owns the screen and the process.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Write the screen as text.
    SaveScreen,
    /// Stop the process until `fg`.
    Suspend,
    /// Clear and draw again.
    Redraw,
    /// Leave with this code.
    Quit(ExitCode),
}

/// A workbench with someone to ask.
pub struct Session<'a> {
    /// The reducer.
    pub app: App,
    services: &'a mut dyn Services,
    requests: VecDeque<Request>,
    /// Newest error of each kind of effect, for a script to report with its exit code.
    pub plan_error: Option<Error>,
    /// Why the newest start failed.
    pub start_error: Option<Error>,
    /// Why the newest export failed, or what it wrote.
    pub exported: Option<Result<PathBuf, Error>>,
}

impl<'a> Session<'a> {
    /// A session on `config`; lists and, if a model is named, plans at once.
    pub fn new(config: RunConfig, theme: Theme, services: &'a mut dyn Services) -> Session<'a> {
        let (app, effects) = App::new(config, theme);
        let mut session =
            Session { app, services, requests: VecDeque::new(), plan_error: None, start_error: None, exported: None };
        session.perform(effects);
        session
    }

    /// Takes a message and does what it asks for.
    pub fn send(&mut self, msg: Msg) {
        let effects = self.app.update(msg);
        self.perform(effects);
    }

    /// Moves the clock and takes what the run has said; returns its events, and whether anything changed.
    pub fn tick(&mut self, now: f64) -> Vec<Event> {
        self.send(Msg::Tick(now));
        let events = self.services.poll();
        let dropped = self.services.dropped();
        if dropped > self.app.dropped {
            self.send(Msg::Dropped(dropped));
        }
        if !events.is_empty() {
            self.send(Msg::Events(events.clone()));
        }
        let fetched = self.services.fetched();
        if !fetched.is_empty() {
            self.send(Msg::Fetched(fetched));
        }
        events
    }

    /// The terminal is gone: the run is saved, and the program leaves.
    pub fn hang_up(&mut self) {
        self.services.hang_up();
        self.send(Msg::Leave(ExitCode::Terminated));
    }

    /// The next thing only the driver can do.
    pub fn request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            let answer = match effect {
                Effect::LoadModels => Some(Msg::Models(self.services.models())),
                Effect::LoadRuns => Some(Msg::Runs(self.services.runs())),
                Effect::Plan => {
                    let planned = self.plan();
                    queue.extend(self.app.update(planned));
                    Some(Msg::Unready(self.services.unready(&self.app.config)))
                }
                Effect::Complete(typed) => Some(Msg::Folders(self.services.folders(&typed))),
                Effect::Start => Some(self.start()),
                Effect::Command(command) => {
                    self.services.command(command);
                    None
                }
                Effect::LoadReports(dirs) => {
                    let read = |dir: PathBuf| {
                        let report = self.services.report(&dir).map_err(|e| e.to_string());
                        (dir, report)
                    };
                    Some(Msg::Reports(dirs.into_iter().map(read).collect()))
                }
                Effect::Export(dir, kind) => {
                    let result = self.services.export(&dir, &kind);
                    let answer = Msg::Exported(result.as_ref().map(Clone::clone).map_err(ToString::to_string));
                    self.exported = Some(result);
                    Some(answer)
                }
                Effect::FetchHeaders(id) => refused(self.services.fetch_headers(&id)),
                Effect::Survey(id) => refused(self.services.survey(&id)),
                Effect::Download => refused(self.services.download()),
                Effect::CancelFetch => {
                    self.services.cancel_fetch();
                    None
                }
                Effect::SaveScreen => self.ask(Request::SaveScreen),
                Effect::Suspend => self.ask(Request::Suspend),
                Effect::Redraw => self.ask(Request::Redraw),
                Effect::Quit(code) => self.ask(Request::Quit(code)),
            };
            if let Some(msg) = answer {
                queue.extend(self.app.update(msg));
            }
        }
    }

    fn ask(&mut self, request: Request) -> Option<Msg> {
        self.requests.push_back(request);
        None
    }

    fn plan(&mut self) -> Msg {
        let edits = self.app.plan.what_if.edits();
        let result = match edits.is_empty() {
            true => self.services.plan(&self.app.config),
            false => self.services.what_if(&self.app.config, &edits),
        };
        let answer = match &result {
            Ok(plan) => Ok(Box::new(plan.clone())),
            Err(e) => Err(e.to_string()),
        };
        self.plan_error = result.err();
        Msg::Planned(answer)
    }

    fn start(&mut self) -> Msg {
        match self.services.start(&self.app.config) {
            Ok(()) => {
                self.start_error = None;
                Msg::StartAccepted
            }
            Err(e) => {
                let text = e.to_string();
                self.start_error = Some(e);
                Msg::StartFailed(text)
            }
        }
    }

    /// The report of a run, as the Runs screen reads it.
    ///
    /// # Errors
    /// The folder holds no readable report.
    pub fn report(&mut self, run_dir: &std::path::Path) -> Result<serde_json::Value, Error> {
        self.services.report(run_dir)
    }
}

/// The message for a fetch that did not begin.
fn refused(begun: Result<(), Error>) -> Option<Msg> {
    begun.err().map(|e| Msg::FetchRefused(e.to_string()))
}
