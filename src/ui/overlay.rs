//! What lies over a screen: quit dialog, help, command palette, prompt, message and report.

use super::app::Screen;
use super::form::{DATA, PLAN};
use super::fuzzy;
use super::input::Input;
use super::keys::{Action, BINDINGS, Binding, notation, on};
use crate::config::config_keys;
use ratatui::crossterm::event::{KeyEvent, KeyEventKind};
use serde_json::Value;

/// One thing over the screen at a time.
#[derive(Clone, Debug)]
pub enum Overlay {
    /// Asks what to do with the run in progress.
    Quit(QuitDialog),
    /// Keys that work here.
    Help {
        /// The screen they are for.
        screen: Screen,
        /// What is being looked for.
        filter: Input,
        /// It is being typed.
        typing: bool,
        /// First line shown.
        scroll: usize,
    },
    /// Every action by name, and the script's verbs.
    Palette(Palette),
    /// Asks for a line of text.
    Prompt(Prompt),
    /// What a download takes, or how far it is; the state is the workbench's.
    Download,
    /// Something to read.
    Message {
        /// Its title.
        title: String,
        /// Its text.
        text: String,
        /// First line shown.
        scroll: usize,
        /// The command whose settings enter takes over.
        fix: Option<String>,
    },
    /// One report, or two side by side.
    Report {
        /// The reports.
        reports: Vec<Value>,
        /// First line shown.
        scroll: usize,
    },
}

/// What a key did to an overlay.
pub(super) enum Answer {
    /// It stays open.
    Stay(Box<Overlay>),
    /// It closes.
    Close,
    /// The quit dialog was answered.
    Quit(QuitChoice),
    /// The palette chose an action, of a screen if it has one of its own.
    ActOn(Option<Screen>, Action),
    /// The settings of a command are to be taken over.
    Fix(String),
    /// It stays open, and wants to know how what is typed can go on.
    Complete(Box<Overlay>, String),
    /// The palette got a line that is no action.
    Line(String),
    /// The prompt got a checkpoint.
    OpenModel(String),
    /// The prompt got a model on the hub.
    HubModel(String),
    /// The download dialog was told to begin.
    Download,
    /// The download dialog was told to cancel.
    CancelFetch,
}

/// Answers of the quit dialog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuitChoice {
    /// Finish this step, save, stop, leave.
    #[default]
    SaveAndStop,
    /// Leave at once; what came after the last checkpoint is lost.
    Discard,
    /// Keep training.
    Cancel,
}

impl QuitChoice {
    /// In the order shown, with their keys. No key that moves anything stands here: who reads on with `j` and `k` must
    /// not lose a run.
    pub const ALL: [(QuitChoice, &'static str, &'static str); 3] = [
        (QuitChoice::SaveAndStop, "s", "save and stop"),
        (QuitChoice::Discard, "d", "discard"),
        (QuitChoice::Cancel, "c", "keep training"),
    ];
    /// The same once discarding was chosen: it needs a key of its own, so that one held or hit twice discards nothing.
    pub const SURE: [(QuitChoice, &'static str, &'static str); 3] = [
        (QuitChoice::SaveAndStop, "s", "save and stop"),
        (QuitChoice::Discard, "y", "yes, discard"),
        (QuitChoice::Cancel, "c", "keep training"),
    ];
}

/// The quit dialog.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuitDialog {
    /// Index into [`QuitDialog::choices`].
    pub selected: usize,
    /// Discarding was chosen, and asks once more.
    pub sure: bool,
}

impl QuitDialog {
    /// What can be answered now, with keys and words.
    #[must_use]
    pub fn choices(&self) -> &'static [(QuitChoice, &'static str, &'static str)] {
        if self.sure { &QuitChoice::SURE } else { &QuitChoice::ALL }
    }

    fn key(&mut self, name: &str, pressed: bool) -> Option<Answer> {
        let choices = self.choices();
        let choice = match name {
            "<left>" | "<up>" | "h" | "k" | "<s-tab>" => {
                self.selected = self.selected.saturating_sub(1);
                return None;
            }
            "<right>" | "<down>" | "j" | "l" | "<tab>" => {
                self.selected = (self.selected + 1).min(choices.len() - 1);
                return None;
            }
            "q" if pressed => return Some(Answer::Close),
            "<ret>" if pressed => choices.get(self.selected)?.0,
            other if pressed => choices.iter().find(|(_, k, _)| *k == other)?.0,
            _ => return None,
        };
        if choice == QuitChoice::Discard && !self.sure {
            // Enter alone must not be enough: what keeps the run is selected.
            *self = QuitDialog { sure: true, selected: choices.len() - 1 };
            return None;
        }
        Some(Answer::Quit(choice))
    }
}

/// The command palette.
#[derive(Clone, Debug)]
pub struct Palette {
    /// What is typed.
    pub input: Input,
    /// Index into [`Palette::hits`].
    pub selected: usize,
    screen: Screen,
}

/// A line of text being asked for.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// What it is for.
    pub title: &'static str,
    /// What is typed.
    pub input: Input,
    /// How it can go on, after the key that asks.
    pub offers: Vec<String>,
    /// It names a folder, which can be completed.
    folders: bool,
    /// What the line becomes.
    answer: fn(String) -> Answer,
}

impl Palette {
    pub(super) fn new(screen: Screen) -> Palette {
        Palette { input: Input::new(""), selected: 0, screen }
    }

    /// Bindings that match what is typed, best first: those of this screen, those of every screen, those of others.
    /// Keys that only move are left out: they say nothing by name.
    #[must_use]
    pub fn hits(&self) -> Vec<&'static Binding> {
        let rank = |b: &Binding| match b.on {
            [] => 1,
            on if on.contains(&self.screen) => 0,
            _ => 2,
        };
        let query = self.input.text();
        let mut hits: Vec<_> = BINDINGS
            .iter()
            .filter(|b| !b.action.moves())
            .filter(|b| rank(b) < 2 || !BINDINGS.iter().any(|h| h.action == b.action && rank(h) < 2))
            .filter_map(|b| fuzzy::score(query, b.help).map(|score| (score, b)))
            .collect();
        hits.sort_by_key(|(score, b)| (if query.is_empty() { rank(b) } else { 0 }, std::cmp::Reverse(*score), rank(b)));
        hits.into_iter().map(|(_, b)| b).collect()
    }

    /// The screen that a binding needs, where it isn't this one.
    #[must_use]
    pub fn elsewhere(&self, b: &Binding) -> Option<Screen> {
        b.on.first().copied().filter(|_| !b.on.contains(&self.screen))
    }

    /// Lines that what is typed can become: verbs, then keys and their usual values.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let typed = self.input.text().trim_start();
        let Some((verb, rest)) = typed.split_once(' ') else {
            return Vec::new();
        };
        let all: Vec<String> = match (verb, rest.split_once(' ')) {
            // A key is found by any part of it, its values by their beginning.
            ("set", None) => config_keys().filter(|k| k.path.contains(rest)).map(|k| format!("{} ", k.path)).collect(),
            ("set", Some((key, _))) => {
                let field = PLAN.iter().chain(DATA.iter()).find(|f| f.key == key);
                field.map_or(&[][..], |f| f.steps).iter().map(|v| format!("{key} {v}")).collect()
            }
            ("open", _) => Screen::ALL.iter().map(|s| s.name().to_lowercase()).collect(),
            ("export", _) => crate::export::KINDS.map(|(kind, _)| kind.to_string()).into(),
            _ => Vec::new(),
        };
        let by_part = verb == "set" && !rest.contains(' ');
        all.into_iter().filter(|l| by_part || l.starts_with(rest)).map(|l| format!("{verb} {l}")).collect()
    }
}

impl Prompt {
    pub(super) fn open_path(typed: &str) -> Prompt {
        let title = "Model folder or hub id (tab completes)";
        Prompt { title, input: Input::new(typed), offers: Vec::new(), folders: true, answer: Answer::OpenModel }
    }

    pub(super) fn hub() -> Prompt {
        let title = "Model on the hub: owner/name or owner/name@revision";
        Prompt { title, input: Input::new(""), offers: Vec::new(), folders: false, answer: Answer::HubModel }
    }

    /// Goes on as far as all `folders` agree; more than one are shown.
    pub(super) fn complete(&mut self, mut folders: Vec<String>) {
        let Some(first) = folders.first() else {
            self.offers = Vec::new();
            return;
        };
        let shared = |a: &str, b: &str| a.char_indices().zip(b.chars()).take_while(|((_, x), y)| x == y).count();
        let most = folders.iter().map(|f| shared(first, f)).min().unwrap_or(0);
        let mut text: String = first.chars().take(most).collect();
        if folders.len() == 1 {
            text.push('/');
            folders.clear();
        }
        if text.len() > self.input.text().len() {
            self.input = Input::new(&text);
        }
        self.offers = folders;
    }
}

impl Overlay {
    pub(super) fn help(screen: Screen) -> Overlay {
        Overlay::Help { screen, filter: Input::new(""), typing: false, scroll: 0 }
    }

    /// Keeps what is scrolled away within `most` lines.
    pub(super) fn limit(&mut self, most: usize) {
        if let Overlay::Help { scroll, .. } | Overlay::Message { scroll, .. } | Overlay::Report { scroll, .. } = self {
            *scroll = (*scroll).min(most);
        }
    }

    pub(super) fn paste(&mut self, text: &str) {
        match self {
            Overlay::Help { filter, typing: true, .. } => filter.paste(text),
            Overlay::Palette(p) => p.input.paste(text),
            Overlay::Prompt(p) => p.input.paste(text),
            _ => {}
        }
    }

    /// Takes a key.
    pub(super) fn key(mut self, key: &KeyEvent) -> Answer {
        let name = notation(key);
        if name == "<esc>" {
            return Answer::Close;
        }
        // Held keys move; only a fresh press answers.
        let pressed = key.kind == KeyEventKind::Press;
        match &mut self {
            Overlay::Quit(dialog) => {
                if let Some(answer) = dialog.key(&name, pressed) {
                    return answer;
                }
            }
            Overlay::Help { filter, typing: typing @ true, scroll, .. } => match name.as_str() {
                "<ret>" => *typing = false,
                "<f1>" => return Answer::Close,
                "<down>" | "<up>" | "<pgdn>" | "<pgup>" => scrolled(&name, scroll),
                _ => {
                    if filter.key(key) {
                        *scroll = 0;
                    }
                }
            },
            Overlay::Help { typing, scroll, .. } => match name.as_str() {
                "/" if pressed => *typing = true,
                "<f1>" | "<ret>" | "q" | "?" if pressed => return Answer::Close,
                _ => scrolled(&name, scroll),
            },
            Overlay::Palette(p) => match name.as_str() {
                "<tab>" if p.verb() => {
                    if let Some(line) = p.lines().get(p.selected) {
                        p.input = Input::new(line);
                        p.selected = 0;
                    }
                }
                "<down>" | "<c-n>" | "<tab>" => p.selected = p.selected.saturating_add(1),
                "<up>" | "<c-p>" | "<s-tab>" => p.selected = p.selected.saturating_sub(1),
                "<ret>" if pressed => return p.chosen(),
                _ => {
                    if p.input.key(key) {
                        p.selected = 0;
                    }
                }
            },
            Overlay::Prompt(p) => match name.as_str() {
                "<ret>" if pressed => {
                    let text = p.input.text().trim().to_owned();
                    return if text.is_empty() { Answer::Close } else { (p.answer)(text) };
                }
                "<tab>" if p.folders => {
                    let typed = p.input.text().to_owned();
                    return Answer::Complete(Box::new(self), typed);
                }
                _ => {
                    if p.input.key(key) {
                        p.offers = Vec::new();
                    }
                }
            },
            Overlay::Download => match name.as_str() {
                "<ret>" | "d" if pressed => return Answer::Download,
                "c" if pressed => return Answer::CancelFetch,
                "q" if pressed => return Answer::Close,
                _ => {}
            },
            Overlay::Message { fix: Some(command), .. } if pressed && name == "<ret>" => {
                return Answer::Fix(std::mem::take(command));
            }
            Overlay::Message { scroll, .. } | Overlay::Report { scroll, .. } => match name.as_str() {
                "<ret>" | "q" | "<space>" if pressed => return Answer::Close,
                _ => scrolled(&name, scroll),
            },
        }
        if let Overlay::Palette(p) = &mut self {
            let rows = if p.verb() { p.lines().len() } else { p.hits().len() };
            p.selected = p.selected.min(rows.saturating_sub(1));
        }
        Answer::Stay(Box::new(self))
    }
}

impl Palette {
    /// What is typed is a line for the script's verbs, not the name of an action.
    #[must_use]
    pub fn verb(&self) -> bool {
        let verb = self.input.text().split_whitespace().next().unwrap_or("");
        matches!(verb, "set" | "open" | "export" | "run" | "stop" | "save" | "q" | "quit" | "pause" | "resume")
    }

    fn chosen(&self) -> Answer {
        let line = self.input.text().trim();
        if self.verb() {
            return Answer::Line(line.to_owned());
        }
        match self.hits().get(self.selected) {
            Some(binding) => Answer::ActOn(self.elsewhere(binding), binding.action),
            None if line.is_empty() => Answer::Close,
            None => Answer::Line(line.to_owned()),
        }
    }
}

/// Moves through what is read, by the keys that lists know.
fn scrolled(name: &str, scroll: &mut usize) {
    *scroll = match name {
        "j" | "<down>" => scroll.saturating_add(1),
        "k" | "<up>" => scroll.saturating_sub(1),
        "<pgdn>" | "<c-d>" => scroll.saturating_add(10),
        "<pgup>" | "<c-u>" => scroll.saturating_sub(10),
        "g" | "<home>" => 0,
        "G" | "<end>" => usize::MAX,
        _ => *scroll,
    };
}

/// A line of the help: a heading, or keys and what they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelpLine {
    /// A heading.
    Heading(String),
    /// Keys and what they do.
    Keys(String, &'static str),
}

/// Lines of the help under headings: the screen's own keys, then moving, then what works everywhere.
#[must_use]
pub fn help_lines(screen: Screen, filter: &str) -> Vec<HelpLine> {
    let mut taken: Vec<&str> = Vec::new();
    let mut groups: [(String, Vec<HelpLine>); 4] =
        [screen.name(), "screens", "everywhere", "moving"].map(|heading| (heading.to_owned(), Vec::new()));
    let wanted = filter.to_lowercase();
    for binding in on(screen) {
        // A key that means something else here is not listed with its general meaning.
        let keys: Vec<&str> = binding.keys.iter().copied().filter(|k| !taken.contains(k)).collect();
        taken.extend(&keys);
        let group = match binding.action {
            _ if !binding.on.is_empty() => 0,
            Action::Open(_) => 1,
            action if action.moves() => 3,
            _ => 2,
        };
        let keys = keys.join(" ");
        if !keys.is_empty() && (keys.contains(filter) || binding.help.to_lowercase().contains(&wanted)) {
            groups[group].1.push(HelpLine::Keys(keys, binding.help));
        }
    }
    let shown = groups.into_iter().filter(|(_, lines)| !lines.is_empty());
    shown.flat_map(|(heading, lines)| std::iter::once(HelpLine::Heading(heading)).chain(lines)).collect()
}
