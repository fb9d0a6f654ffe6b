//! Keys: their notation (`j`, `<ret>`, `<c-c>`), and the one table that feeds dispatch, footer, help and palette.

use super::app::Screen;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table below says what each does")]
pub enum Action {
    Open(Screen),
    Up,
    Down,
    Left,
    Right,
    Top,
    Bottom,
    PageUp,
    PageDown,
    FocusNext,
    FocusPrev,
    Confirm,
    Back,
    Mark,
    Filter,
    NextMatch,
    PrevMatch,
    Edit,
    OpenPath,
    Hub,
    Download,
    Mode,
    WhatIf,
    More,
    Less,
    AsItIs,
    Start,
    PauseResume,
    SaveNow,
    Stop,
    Expand,
    Freeze,
    LogY,
    Smooth,
    View,
    LogLevel,
    Follow,
    Export,
    Compare,
    Refresh,
    Theme,
    Help,
    Palette,
    SaveScreen,
    Redraw,
    Suspend,
    Quit,
}

impl Action {
    /// It only moves what is selected or shown.
    #[must_use]
    pub fn moves(self) -> bool {
        use Action as A;
        matches!(
            self,
            A::Up
                | A::Down
                | A::Left
                | A::Right
                | A::Top
                | A::Bottom
                | A::PageUp
                | A::PageDown
                | A::FocusNext
                | A::FocusPrev
                | A::NextMatch
                | A::PrevMatch
        )
    }

    /// A held-down key repeats only these: movement never confirms, stops or quits anything.
    #[must_use]
    pub fn repeats(self) -> bool {
        use Action as A;
        matches!(
            self,
            A::Up
                | A::Down
                | A::Left
                | A::Right
                | A::PageUp
                | A::PageDown
                | A::NextMatch
                | A::PrevMatch
                | A::More
                | A::Less
        )
    }
}

/// One line of the table.
#[derive(Debug)]
pub struct Binding {
    /// Keys in notation; the first is shown.
    pub keys: &'static [&'static str],
    /// What it does.
    pub action: Action,
    /// A word for the footer; empty keeps it out.
    pub hint: &'static str,
    /// A line for help and palette.
    pub help: &'static str,
    /// Where it works; empty means everywhere.
    pub on: &'static [Screen],
}

const fn b(
    keys: &'static [&'static str],
    action: Action,
    hint: &'static str,
    help: &'static str,
    on: &'static [Screen],
) -> Binding {
    Binding { keys, action, hint, help, on }
}

const LISTS: &[Screen] = &[Screen::Models, Screen::Runs];
const FORMS: &[Screen] = &[Screen::Plan, Screen::Data];

/// Every key of the program. The first binding that fits the screen wins.
#[rustfmt::skip]
pub const BINDINGS: &[Binding] = &[
    b(&["<ret>"], Action::Confirm, "plan", "plan the selected checkpoint", &[Screen::Models]),
    b(&["<ret>"], Action::Start, "start", "start the run that is planned here", &[Screen::Plan]),
    b(&["<ret>"], Action::Confirm, "report", "show the report of the selected run", &[Screen::Runs]),
    b(&["<ret>"], Action::Confirm, "report", "show the report of the run that has ended", &[Screen::Run]),
    b(&["<ret>", "i"], Action::Edit, "edit", "edit the selected setting as text", &[Screen::Data]),
    b(&["i", "="], Action::Edit, "edit", "edit the selected setting as text", &[Screen::Plan]),
    b(&["h", "<left>"], Action::Left, "", "previous value of the setting", FORMS),
    b(&["l", "<right>"], Action::Right, "change", "next value of the setting", FORMS),
    b(&["m"], Action::Mode, "lora/full", "switch between LoRA and full finetuning (forecast only)", &[Screen::Plan]),
    b(&["w"], Action::WhatIf, "what if", "what if: choose the figure to change", &[Screen::Plan]),
    b(&["+"], Action::More, "", "what if: raise the figure", &[Screen::Plan]),
    b(&["-"], Action::Less, "", "what if: lower the figure", &[Screen::Plan]),
    b(&["W"], Action::AsItIs, "", "what if: back to this machine", &[Screen::Plan]),
    b(&["o"], Action::OpenPath, "open path", "open a folder or hub id by name", &[Screen::Models]),
    b(&["H"], Action::Hub, "hub", "fetch the headers of a model on the hub, to plan it", &[Screen::Models]),
    b(&["d"], Action::Download, "download", "download a model that is not here, or see how far it is", &[Screen::Models]),
    b(&["/"], Action::Filter, "filter", "filter the list as you type", LISTS),
    b(&["n"], Action::NextMatch, "", "next row", LISTS),
    b(&["N"], Action::PrevMatch, "", "previous row", LISTS),
    b(&["<space>"], Action::Mark, "mark", "mark a run; two marked runs can be compared", &[Screen::Runs]),
    b(&["c"], Action::Compare, "compare", "compare the two marked runs side by side", &[Screen::Runs]),
    b(&["x"], Action::Export, "export", "export the selected run's adapter for PEFT", &[Screen::Runs]),
    b(&["p"], Action::PauseResume, "pause", "pause after this step, or resume", &[Screen::Run]),
    b(&["w"], Action::SaveNow, "save", "save a checkpoint after this step and go on", &[Screen::Run]),
    b(&["S"], Action::Stop, "stop", "finish this step, save, stop", &[Screen::Run]),
    b(&["e"], Action::Expand, "expand", "the focused pane on the whole screen, or restore", &[Screen::Run]),
    b(&["y"], Action::LogY, "log y", "logarithmic loss axis on or off", &[Screen::Run]),
    b(&["s"], Action::Smooth, "smooth", "smoothing of the loss curve: none, 0.6, 0.9", &[Screen::Run]),
    b(&["v"], Action::View, "view", "loss of the whole run, or of the last thousand steps", &[Screen::Run]),
    b(&["f"], Action::Freeze, "freeze", "freeze the panes; training goes on", &[Screen::Run]),
    b(&["L"], Action::LogLevel, "", "log level shown: all, warnings, errors", &[Screen::Run]),
    b(&["F"], Action::Follow, "", "follow the newest log line", &[Screen::Run]),
    b(&["<tab>"], Action::FocusNext, "", "focus the next pane", &[Screen::Run, Screen::Plan]),
    b(&["<s-tab>"], Action::FocusPrev, "", "focus the previous pane", &[Screen::Run, Screen::Plan]),
    b(&["j", "<down>"], Action::Down, "", "down", &[]),
    b(&["k", "<up>"], Action::Up, "", "up", &[]),
    b(&["h", "<left>"], Action::Left, "", "left", &[]),
    b(&["l", "<right>"], Action::Right, "", "right", &[]),
    b(&["g", "<home>"], Action::Top, "", "first row", &[]),
    b(&["G", "<end>"], Action::Bottom, "", "last row", &[]),
    b(&["<c-d>", "<pgdn>"], Action::PageDown, "", "page down", &[]),
    b(&["<c-u>", "<pgup>"], Action::PageUp, "", "page up", &[]),
    b(&["1"], Action::Open(Screen::Models), "", "Models: pick a checkpoint", &[]),
    b(&["2"], Action::Open(Screen::Data), "", "Data: training files and how rows are read", &[]),
    b(&["3"], Action::Open(Screen::Plan), "", "Plan: does it fit, how fast, what it costs", &[]),
    b(&["4"], Action::Open(Screen::Run), "", "Run: the training in progress", &[]),
    b(&["5"], Action::Open(Screen::Runs), "", "Runs: reports of earlier runs", &[]),
    b(&["6"], Action::Open(Screen::Try), "", "Try: ask the finetuned model", &[]),
    b(&["r"], Action::Refresh, "", "refresh", &[]),
    b(&["t"], Action::Theme, "", "change theme", &[]),
    b(&["<esc>"], Action::Back, "", "close what is open; never quits", &[]),
    b(&["<c-s>"], Action::SaveScreen, "", "save screenshot (text)", &[]),
    b(&["<c-l>"], Action::Redraw, "", "draw everything again", &[]),
    b(&["<c-z>"], Action::Suspend, "", "suspend; training stands still until `fg`", &[]),
    b(&[":"], Action::Palette, "", "command palette", &[]),
    b(&["?", "<f1>"], Action::Help, "help", "this help", &[]),
    b(&["q"], Action::Quit, "quit", "quit; asks while training", &[]),
];

/// The binding of `key` on `screen`.
#[must_use]
pub fn lookup(key: &KeyEvent, screen: Screen) -> Option<&'static Binding> {
    let name = notation(key);
    on(screen).find(|b| b.keys.contains(&name.as_str()))
}

/// Bindings that work on `screen`, in the table's order.
pub fn on(screen: Screen) -> impl Iterator<Item = &'static Binding> {
    BINDINGS.iter().filter(move |b| b.on.is_empty() || b.on.contains(&screen))
}

const NAMES: &[(&str, KeyCode)] = &[
    ("ret", KeyCode::Enter),
    ("esc", KeyCode::Esc),
    ("tab", KeyCode::Tab),
    ("s-tab", KeyCode::BackTab),
    ("bs", KeyCode::Backspace),
    ("del", KeyCode::Delete),
    ("space", KeyCode::Char(' ')),
    ("lt", KeyCode::Char('<')),
    ("up", KeyCode::Up),
    ("down", KeyCode::Down),
    ("left", KeyCode::Left),
    ("right", KeyCode::Right),
    ("home", KeyCode::Home),
    ("end", KeyCode::End),
    ("pgup", KeyCode::PageUp),
    ("pgdn", KeyCode::PageDown),
    ("f1", KeyCode::F(1)),
];

/// A key press as `j`, `<ret>`, `<c-c>`.
#[must_use]
pub fn notation(key: &KeyEvent) -> String {
    let name = NAMES.iter().find(|(_, code)| *code == key.code).map(|(name, _)| *name);
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match (name, key.code, control) {
        (Some(name), _, false) => format!("<{name}>"),
        (Some(name), _, true) => format!("<c-{name}>"),
        (None, KeyCode::Char(c), true) => format!("<c-{}>", c.to_ascii_lowercase()),
        (None, KeyCode::Char(c), false) => c.to_string(),
        (None, KeyCode::F(n), _) => format!("<f{n}>"),
        (None, code, _) => format!("<{code}>"),
    }
}

/// Reads one key in notation.
///
/// # Errors
/// Not a key: says what one looks like.
pub fn parse(text: &str) -> Result<KeyEvent, String> {
    let mut chars = text.chars();
    if let (Some(c), None) = (chars.next(), chars.next()) {
        return Ok(press(KeyCode::Char(c), KeyModifiers::NONE));
    }
    let wrong = || format!("'{text}' is not a key; write j, <ret>, <esc>, <tab>, <space>, <up>, <c-c>");
    let inner = text.strip_prefix('<').and_then(|t| t.strip_suffix('>')).ok_or_else(wrong)?;
    if let Some((_, code)) = NAMES.iter().find(|(name, _)| *name == inner) {
        return Ok(press(*code, KeyModifiers::NONE));
    }
    let mut control = inner.strip_prefix("c-").ok_or_else(wrong)?.chars();
    match (control.next(), control.next()) {
        (Some(c), None) => Ok(press(KeyCode::Char(c), KeyModifiers::CONTROL)),
        _ => Err(wrong()),
    }
}

/// A press of `code`.
#[must_use]
pub fn press(code: KeyCode, modifiers: KeyModifiers) -> KeyEvent {
    KeyEvent::new_with_kind(code, modifiers, KeyEventKind::Press)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_table_reads_back_as_itself() {
        for binding in BINDINGS {
            for key in binding.keys {
                assert_eq!(notation(&parse(key).unwrap()), *key);
            }
        }
        assert!(parse("<nope>").unwrap_err().contains("<ret>"));
        assert!(parse("jj").is_err() && parse("").is_err() && parse("<c-xy>").is_err());
    }

    #[test]
    fn no_key_means_two_things_on_one_screen_beyond_the_first() {
        for screen in Screen::ALL {
            let mut seen = Vec::new();
            for binding in on(screen) {
                for key in binding.keys {
                    if !seen.contains(&(key, binding.on.is_empty())) {
                        seen.push((key, binding.on.is_empty()));
                    } else {
                        panic!("{key} is bound twice on {screen:?}");
                    }
                }
            }
        }
    }
}
