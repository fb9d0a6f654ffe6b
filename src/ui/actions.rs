//! What each [`Action`] does to the workbench, and the keys of text fields and overlays.

use super::app::{App, Effect, Screen};
use super::keys::{Action, notation};
use super::overlay::{Answer, Overlay, Palette, Prompt};
use crate::config::Mode;
use crate::event::{Command, Level};
use crate::plan::Verdict;
use ratatui::crossterm::event::KeyEvent;
use ratatui::layout::Rect;

impl App {
    /// Does what a key or the palette asks for.
    pub(super) fn act(&mut self, action: Action) -> Vec<Effect> {
        use Action as A;
        match action {
            A::Open(screen) => return self.update(super::app::Msg::Open(screen)),
            A::Up => self.scroll(-1),
            A::Down => self.scroll(1),
            A::PageUp => self.scroll(-10),
            A::PageDown => self.scroll(10),
            A::Top => self.scroll(isize::MIN),
            A::Bottom => self.scroll(isize::MAX),
            A::NextMatch => self.scroll(1),
            A::PrevMatch => self.scroll(-1),
            A::Left => return self.step_setting(-1),
            A::Right => return self.step_setting(1),
            A::FocusNext => self.focus(1),
            A::FocusPrev => self.focus(-1),
            A::Confirm => return self.confirm(),
            A::Back => self.back(),
            A::Mark => self.runs.mark(),
            A::Filter => self.start_filter(),
            A::Edit => self.edit_setting(),
            A::OpenPath => {
                // A path that was refused can be mended; one that was taken is not what is wanted next.
                let typed = if self.plan.error().is_some() { self.config.model.path.as_str() } else { "" };
                self.overlay = Some(Overlay::Prompt(Prompt::open_path(typed)));
            }
            A::Hub => self.overlay = Some(Overlay::Prompt(Prompt::hub())),
            A::Download => return self.look_into_download(),
            A::Mode => return self.toggle_mode(),
            A::WhatIf => self.plan.what_if.select_next(),
            A::More => return self.what_if(1),
            A::Less => return self.what_if(-1),
            A::AsItIs => {
                self.plan.what_if.reset();
                return self.refresh();
            }
            A::Start => return self.start(),
            A::PauseResume => return self.pause_or_resume(),
            A::SaveNow => return self.running_command(Command::SaveNow),
            A::Stop => return self.running_command(Command::StopAndSave),
            A::Expand => self.panes.expanded = !self.panes.expanded,
            A::Freeze => {
                self.panes.frozen = if self.panes.frozen.is_some() { None } else { Some(Box::new(self.run.clone())) };
            }
            A::LogY => self.panes.log_y = !self.panes.log_y,
            A::Smooth => self.panes.next_smoothing(),
            A::View => self.panes.recent = !self.panes.recent,
            A::LogLevel => self.panes.next_level(),
            A::Follow => self.panes.scroll = 0,
            A::Export => return self.export("peft"),
            A::Compare => return self.compare(),
            A::Refresh => return self.refresh(),
            A::Theme => {
                self.theme = self.theme.next();
                self.say(Level::Info, format!("colours: {}", self.theme.name()));
            }
            A::Help => self.overlay = Some(Overlay::help(self.screen)),
            A::Palette => self.overlay = Some(Overlay::Palette(Palette::new(self.screen))),
            A::SaveScreen => return vec![Effect::SaveScreen],
            A::Redraw => return vec![Effect::Redraw],
            A::Suspend => return vec![Effect::Suspend],
            A::Quit => return self.quit(),
        }
        Vec::new()
    }

    fn scroll(&mut self, by: isize) {
        match self.screen {
            Screen::Models => self.models.list.step(by),
            Screen::Runs => self.runs.list.step(by),
            Screen::Plan => {
                let most = super::screens::plan::most_scroll(self, super::frame::body(self.area()));
                self.plan.step(by, most);
            }
            Screen::Data => self.data.form.step(by, super::form::DATA.len()),
            Screen::Run => {
                let most = super::screens::run::most_scroll(self, super::frame::body(self.area()));
                self.panes.scroll_log(by, most);
            }
            Screen::Try => {}
        }
    }

    fn focus(&mut self, by: isize) {
        match self.screen {
            Screen::Run => self.panes.focus(by),
            Screen::Plan => self.plan.focus(by),
            _ => {}
        }
    }

    fn confirm(&mut self) -> Vec<Effect> {
        match self.screen {
            Screen::Models => {
                let Some(entry) = self.models.list.selected() else {
                    return Vec::new();
                };
                if let Some(problem) = entry.problem.clone().filter(|_| entry.n_blocks == 0) {
                    self.message("This checkpoint can't be used", &problem);
                    return Vec::new();
                }
                let path = entry.path.display().to_string();
                self.choose_model(&path)
            }
            Screen::Runs => match self.runs.list.selected() {
                Some(entry) => vec![Effect::LoadReports(vec![entry.dir.clone()])],
                None => Vec::new(),
            },
            Screen::Run => match &self.run.started {
                Some(s) if self.run.finished.is_some() => vec![Effect::LoadReports(vec![s.run_dir.clone()])],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// Takes a checkpoint and opens its plan.
    pub(super) fn choose_model(&mut self, path: &str) -> Vec<Effect> {
        self.config.model.path = path.trim().to_owned();
        self.plan.clear();
        self.update(super::app::Msg::Open(Screen::Plan))
    }

    /// Starts what is planned, unless the plan says it can't be.
    pub(super) fn start(&mut self) -> Vec<Effect> {
        if self.busy() {
            self.say(Level::Warn, "a run is in progress");
            return Vec::new();
        }
        let refusal = match self.plan.report() {
            Some(_) if self.plan.what_if.active() => {
                Some(("What if", "This plan is for another machine. Press W to plan for this one, then start.".into()))
            }
            None => Some(("No plan yet", self.plan.error().unwrap_or("pick a model on the Models screen").to_owned())),
            Some(report) => {
                let mode = report.modes.of(self.config.train.mode);
                if mode.verdict == Verdict::Infeasible {
                    let near = mode.nearest_fix.as_deref().map(|f| format!("\n\nNearest fix: {f}")).unwrap_or_default();
                    let text = format!("{}{near}", mode.reasons.join("\n"));
                    let fix = mode.fix_command.clone();
                    self.overlay = Some(Overlay::Message { title: "This does not fit".into(), text, scroll: 0, fix });
                    return Vec::new();
                }
                if let Some(why) = self.plan.unready() {
                    let why = why.to_owned();
                    self.message("This can't start yet", &why);
                    // A file may have come since: the next enter goes by what is there now.
                    return vec![Effect::Plan];
                }
                None
            }
        };
        match refusal {
            Some((title, text)) => {
                self.message(title, &text);
                Vec::new()
            }
            None => vec![Effect::Start],
        }
    }

    /// The whole screen; a usual one while nobody has said how large it is.
    pub(super) fn area(&self) -> Rect {
        let (width, height) = if self.size == (0, 0) { (80, 24) } else { self.size };
        Rect { x: 0, y: 0, width, height }
    }

    /// Changes the selected figure of the machine and plans for it.
    fn what_if(&mut self, by: isize) -> Vec<Effect> {
        let Some(machine) = self.plan.report().map(|r| r.machine.clone()) else {
            self.say(Level::Warn, "there is no plan to change yet");
            return Vec::new();
        };
        match self.plan.what_if.step(by, &machine) {
            Ok(()) => vec![Effect::Plan],
            Err(why) => {
                self.say(Level::Warn, why);
                Vec::new()
            }
        }
    }

    fn toggle_mode(&mut self) -> Vec<Effect> {
        self.config.train.mode = match self.config.train.mode {
            Mode::Lora => Mode::Full,
            Mode::Full => Mode::Lora,
        };
        vec![Effect::Plan]
    }

    fn pause_or_resume(&mut self) -> Vec<Effect> {
        let pausing = self.run.paused || self.run.asked.has(Command::Pause);
        self.running_command(if pausing { Command::Resume } else { Command::Pause })
    }

    fn running_command(&mut self, command: Command) -> Vec<Effect> {
        if self.busy() {
            return self.ask(command);
        }
        self.say(Level::Warn, "no run is in progress");
        Vec::new()
    }

    /// Exports the selected run, or the newest one where none is listed.
    pub(super) fn export(&mut self, kind: &str) -> Vec<Effect> {
        let newest = || self.run.started.as_ref().map(|s| s.run_dir.clone());
        let dir = match self.screen {
            Screen::Runs => self.runs.list.selected().map(|r| r.dir.clone()).or_else(newest),
            _ => newest().or_else(|| self.runs.list.selected().map(|r| r.dir.clone())),
        };
        match dir {
            Some(dir) => vec![Effect::Export(dir, kind.to_owned())],
            None => {
                self.say(Level::Warn, "there is no run to export");
                Vec::new()
            }
        }
    }

    fn compare(&mut self) -> Vec<Effect> {
        match self.runs.marked() {
            [a, b] => vec![Effect::LoadReports(vec![a.clone(), b.clone()])],
            other => {
                let n = other.len();
                self.say(Level::Warn, format!("mark two runs with space to compare them; {n} marked"));
                Vec::new()
            }
        }
    }

    fn refresh(&mut self) -> Vec<Effect> {
        match self.screen {
            Screen::Models => vec![Effect::LoadModels],
            Screen::Runs => vec![Effect::LoadRuns],
            _ if self.config.model.path.is_empty() => Vec::new(),
            _ => vec![Effect::Plan],
        }
    }

    fn start_filter(&mut self) {
        match self.screen {
            Screen::Models => self.models.list.start_filter(),
            Screen::Runs => self.runs.list.start_filter(),
            _ => {}
        }
    }

    fn back(&mut self) {
        match self.screen {
            Screen::Models => self.models.list.clear_filter(),
            Screen::Runs => self.runs.list.clear_filter(),
            Screen::Run if self.panes.expanded => self.panes.expanded = false,
            _ => {}
        }
    }

    fn edit_setting(&mut self) {
        let config = &self.config;
        match self.screen {
            Screen::Plan => self.plan.form.start_edit(&super::form::PLAN, config),
            Screen::Data => self.data.form.start_edit(&super::form::DATA, config),
            _ => {}
        }
    }

    fn step_setting(&mut self, by: isize) -> Vec<Effect> {
        let stepped = match self.screen {
            Screen::Plan => self.plan.form.stepped(&super::form::PLAN, &self.config, by),
            Screen::Data => self.data.form.stepped(&super::form::DATA, &self.config, by),
            _ => None,
        };
        stepped.map_or_else(Vec::new, |(key, value)| self.set(key, value))
    }

    /// Keys of a filter being typed or a setting being edited; `None` if there is neither.
    pub(super) fn edit_key(&mut self, key: &KeyEvent) -> Option<Vec<Effect>> {
        let name = notation(key);
        let form = match self.screen {
            Screen::Models if self.models.list.filtering() => {
                self.models.list.filter_key(key, &name);
                return Some(Vec::new());
            }
            Screen::Runs if self.runs.list.filtering() => {
                self.runs.list.filter_key(key, &name);
                return Some(Vec::new());
            }
            Screen::Plan => (&mut self.plan.form, &*super::form::PLAN),
            Screen::Data => (&mut self.data.form, &*super::form::DATA),
            _ => return None,
        };
        let (form, fields) = form;
        let input = form.editing.as_mut()?;
        match name.as_str() {
            "<esc>" => form.editing = None,
            "<ret>" => {
                let text = input.text().trim().to_owned();
                let key = fields.get(form.selected)?.key;
                let effects = self.change(key, &text);
                // What was refused stays to be mended.
                if effects.is_some() {
                    match self.screen {
                        Screen::Plan => self.plan.form.editing = None,
                        _ => self.data.form.editing = None,
                    }
                }
                return Some(effects.unwrap_or_default());
            }
            _ => {
                input.key(key);
            }
        }
        Some(Vec::new())
    }

    /// Pasted text goes to whatever is being typed, and nowhere else.
    pub(super) fn paste(&mut self, text: &str) {
        if let Some(overlay) = &mut self.overlay {
            overlay.paste(text);
            return;
        }
        let form = match self.screen {
            Screen::Plan => &mut self.plan.form,
            Screen::Data => &mut self.data.form,
            Screen::Models => return self.models.list.paste(text),
            Screen::Runs => return self.runs.list.paste(text),
            _ => return,
        };
        if let Some(input) = &mut form.editing {
            input.paste(text);
        }
    }

    /// A key while `overlay` is open; it is put back unless it closes.
    pub(super) fn overlay_key(&mut self, overlay: Overlay, key: &KeyEvent) -> Vec<Effect> {
        match overlay.key(key) {
            Answer::Stay(mut overlay) => {
                let most = super::overlays::most_scroll(self, &overlay, self.area());
                overlay.limit(most);
                self.overlay = Some(*overlay);
                Vec::new()
            }
            Answer::Complete(overlay, typed) => {
                self.overlay = Some(*overlay);
                vec![Effect::Complete(typed)]
            }
            Answer::Fix(command) => self.apply_fix(&command),
            Answer::ActOn(screen, action) => {
                let mut effects = match screen {
                    Some(screen) if screen != self.screen => self.update(super::app::Msg::Open(screen)),
                    _ => Vec::new(),
                };
                effects.extend(self.act(action));
                effects
            }
            Answer::Close => Vec::new(),
            Answer::Quit(choice) => self.quit_with(choice),
            Answer::OpenModel(path) => self.choose_model(&path),
            Answer::HubModel(id) => self.fetch_headers(&id),
            Answer::Download => self.start_download(),
            Answer::CancelFetch => self.cancel_fetch(),
            Answer::Line(line) => self.command_line(&line),
        }
    }

    /// A line of the palette that is no action's name: the script's verbs.
    fn command_line(&mut self, line: &str) -> Vec<Effect> {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("set"), Some(key)) => {
                let value = words.collect::<Vec<_>>().join(" ");
                return self.set(key, &value);
            }
            (Some("open"), Some(name)) => {
                if let Some(screen) = Screen::named(name) {
                    return self.update(super::app::Msg::Open(screen));
                }
            }
            (Some("export"), Some(kind)) => return self.export(kind),
            (Some("run" | "start"), None) => return self.start(),
            (Some("stop"), None) => return self.running_command(Command::StopAndSave),
            (Some("save"), None) => return self.running_command(Command::SaveNow),
            (Some("pause" | "resume"), None) => return self.pause_or_resume(),
            (Some("q" | "quit"), None) => return self.quit(),
            _ => {}
        }
        self.say(Level::Error, format!("no such command: {}", super::text::cut(line, 40)));
        Vec::new()
    }
}
