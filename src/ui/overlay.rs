//! What lies over a screen: quit dialog, help, command palette, prompt, message and report.

use super::app::Screen;
use super::fuzzy;
use super::input::Input;
use super::keys::{Action, BINDINGS, Binding, notation, on};
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
    /// The palette chose an action.
    Act(Action),
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
    /// What the line becomes.
    answer: fn(String) -> Answer,
}

impl Palette {
    pub(super) fn new(screen: Screen) -> Palette {
        Palette { input: Input::new(""), selected: 0, screen }
    }

    /// Bindings that match what is typed, best first; those of this screen before others at equal rank.
    #[must_use]
    pub fn hits(&self) -> Vec<&'static Binding> {
        let here = |b: &Binding| b.on.is_empty() || b.on.contains(&self.screen);
        let query = self.input.text();
        let mut hits: Vec<_> = BINDINGS
            .iter()
            .filter(|b| here(b))
            .filter_map(|b| fuzzy::score(query, b.help).map(|score| (score, b)))
            .collect();
        hits.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        hits.into_iter().map(|(_, b)| b).collect()
    }
}

impl Prompt {
    pub(super) fn open_path(now: &str) -> Prompt {
        Prompt { title: "Model folder or hub id", input: Input::new(now), answer: Answer::OpenModel }
    }

    pub(super) fn hub() -> Prompt {
        let title = "Model on the hub: owner/name or owner/name@revision";
        Prompt { title, input: Input::new(""), answer: Answer::HubModel }
    }
}

impl Overlay {
    pub(super) fn help(screen: Screen) -> Overlay {
        Overlay::Help { screen, filter: Input::new(""), scroll: 0 }
    }

    pub(super) fn paste(&mut self, text: &str) {
        match self {
            Overlay::Help { filter, .. } => filter.paste(text),
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
            Overlay::Help { filter, scroll, .. } => match name.as_str() {
                "<down>" => *scroll = scroll.saturating_add(1),
                "<up>" => *scroll = scroll.saturating_sub(1),
                "<pgdn>" => *scroll = scroll.saturating_add(10),
                "<pgup>" => *scroll = scroll.saturating_sub(10),
                "<f1>" | "<ret>" => return Answer::Close,
                "q" | "?" if filter.text().is_empty() => return Answer::Close,
                _ => {
                    if filter.key(key) {
                        *scroll = 0;
                    }
                }
            },
            Overlay::Palette(p) => match name.as_str() {
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
                _ => {
                    p.input.key(key);
                }
            },
            Overlay::Download => match name.as_str() {
                "<ret>" | "d" if pressed => return Answer::Download,
                "c" if pressed => return Answer::CancelFetch,
                "q" if pressed => return Answer::Close,
                _ => {}
            },
            Overlay::Message { scroll, .. } | Overlay::Report { scroll, .. } => match name.as_str() {
                "j" | "<down>" => *scroll = scroll.saturating_add(1),
                "k" | "<up>" => *scroll = scroll.saturating_sub(1),
                "<pgdn>" | "<c-d>" => *scroll = scroll.saturating_add(10),
                "<pgup>" | "<c-u>" => *scroll = scroll.saturating_sub(10),
                "<ret>" | "q" | "<space>" if pressed => return Answer::Close,
                _ => {}
            },
        }
        if let Overlay::Palette(p) = &mut self {
            p.selected = p.selected.min(p.hits().len().saturating_sub(1));
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
            Some(binding) => Answer::Act(binding.action),
            None if line.is_empty() => Answer::Close,
            None => Answer::Line(line.to_owned()),
        }
    }
}

/// Lines of the help: keys and what they do, those of the screen first.
#[must_use]
pub fn help_lines(screen: Screen, filter: &str) -> Vec<(String, &'static str)> {
    let mut taken: Vec<&str> = Vec::new();
    let mut out = Vec::new();
    for binding in on(screen) {
        // A key that means something else here is not listed with its general meaning.
        let keys: Vec<&str> = binding.keys.iter().copied().filter(|k| !taken.contains(k)).collect();
        taken.extend(&keys);
        if !keys.is_empty() {
            out.push((keys.join(" "), binding.help));
        }
    }
    let wanted = filter.to_lowercase();
    out.retain(|(keys, help)| keys.contains(filter) || help.to_lowercase().contains(&wanted));
    out
}
