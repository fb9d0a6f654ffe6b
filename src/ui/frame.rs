//! One frame: header, screen, status bar and overlay, at any size down to one cell.

use super::app::{App, Screen};
use super::keys::{Action, Binding, on};
use super::overlay::Overlay;
use super::screens;
use super::text::cut;
use super::theme::Tone;
use super::widgets::{put, wrap};
use crate::event::Level;
use crate::units::plural;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// Below this the screen only says so.
pub const SMALLEST: (u16, u16) = (60, 16);

/// Whether panes in `area` do without boxes.
#[must_use]
pub fn compact(area: Rect) -> bool {
    area.width < 76 || area.height < 19
}

/// Draws everything.
pub fn draw(app: &App, frame: &mut Frame) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        too_small(app, frame, area);
    } else {
        let [head, body, hint, status] = rows(area);
        let hints = hint.height;
        header(app, frame, head);
        match app.screen {
            Screen::Models => screens::models::draw(app, frame, body),
            Screen::Data => screens::data::draw(app, frame, body),
            Screen::Plan => screens::plan::draw(app, frame, body),
            Screen::Run => screens::run::draw(app, frame, body),
            Screen::Runs => screens::runs::draw(app, frame, body),
            Screen::Try => screens::tryout::draw(app, frame, body),
        }
        if hints > 0 {
            put(frame, hint, hint_line(app, hint.width.into()));
        }
        status_bar(app, frame, status, hints == 0);
        if let Some(overlay) = &app.overlay {
            super::overlays::draw(app, frame, overlay, area);
        }
    }
    if app.theme.ascii {
        super::ascii::fold(frame.buffer_mut());
    }
}

/// Header, screen, hints and status.
fn rows(area: Rect) -> [Rect; 4] {
    let hints = u16::from(area.height >= 20);
    let heights = [Constraint::Length(1), Constraint::Fill(1), Constraint::Length(hints), Constraint::Length(1)];
    Layout::vertical(heights).areas(area)
}

/// Where a screen lies in a terminal of `area`.
#[must_use]
pub fn body(area: Rect) -> Rect {
    rows(area)[1]
}

/// Names the size needed and the size there is; the keys to leave still work, and say so.
fn too_small(app: &App, frame: &mut Frame, area: Rect) {
    let need = format!("terminal too small: need {}x{}, have {}x{}", SMALLEST.0, SMALLEST.1, area.width, area.height);
    let keys = match (&app.overlay, app.busy()) {
        (Some(Overlay::Quit(d)), _) if d.sure => "y discard  s save and stop  c keep training",
        (Some(Overlay::Quit(_)), _) => "s save and stop  d discard  c keep training",
        (_, true) => "q quit  (training goes on)",
        (_, false) => "q quit",
    };
    let run = app.run.started.as_ref().map(|_| app.run.brief(app.run_now()));
    let text: Vec<Line> = run
        .iter()
        .chain([&need])
        .flat_map(|text| wrap(text, area.width.into()))
        .map(Line::from)
        .chain([Line::styled(keys, app.theme.strong())])
        .collect();
    // Where there is least room the way out matters more than the size, and a run more than either.
    let small = text.len() > area.height.into();
    let text = match (&app.overlay, run) {
        (Some(Overlay::Quit(_)), _) if small => vec![Line::from(keys)],
        (_, Some(run)) if small => vec![Line::from(run), Line::from(keys)],
        _ => text,
    };
    frame.render_widget(Paragraph::new(text), area);
}

fn header(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let mut spans = Vec::new();
    if area.width >= 100 {
        spans.push(Span::styled(" blockstream ", theme.title()));
        spans.push(Span::styled("│", theme.dim()));
    }
    for (i, screen) in Screen::ALL.into_iter().enumerate() {
        let style = if screen == app.screen { theme.selected() } else { Style::default() };
        spans.push(Span::styled(format!(" {} {} ", i + 1, screen.name()), style));
    }
    let line = Line::from(spans);
    let used = line.width();
    put(frame, area, line);
    let next = app.plan.report().map_or(app.config.model.path.as_str(), |r| r.model.as_str());
    // What is looked at: the run's own model there, elsewhere the one that the next run would take.
    let own = app.run.started.as_ref().filter(|_| app.screen == Screen::Run).map(|s| s.model.as_str());
    let name = own.unwrap_or(next);
    let room = (area.width as usize).saturating_sub(used + 2);
    if room >= 8 && !name.is_empty() {
        let name = cut(name, room);
        let width = super::text::width(&name) as u16;
        let at = Rect { x: area.right().saturating_sub(width + 1), width, ..area };
        put(frame, at, Line::styled(name, theme.dim()));
    }
}

/// Keys that matter here, as many as fit; the way to help and out is never what gives way.
fn hint_line(app: &App, width: usize) -> Line<'static> {
    let theme = app.theme;
    let general = |a: Action| matches!(a, Action::Help | Action::Quit);
    let hinted = |b: &&Binding| !b.hint.is_empty();
    let cost = |key: &str, word: &str| key.len() + word.len() + 4;
    let mut last: Vec<_> =
        on(app.screen).filter(hinted).filter(|b| general(b.action)).map(|b| (b.keys[0], b.hint)).collect();
    let tail = |last: &[(&str, &str)]| last.iter().map(|(k, w)| cost(k, w)).sum::<usize>();
    if tail(&last) + cost(":", "commands") < width {
        last.insert(0, (":", "commands"));
    }
    let mut room = width.saturating_sub(1 + tail(&last));
    let mut shown = Vec::new();
    for b in on(app.screen).filter(hinted).filter(|b| !general(b.action) && useful(app, b.action)) {
        let key = match b.keys[0] {
            "<ret>" => "enter",
            "<space>" => "space",
            other => other,
        };
        let word = hint_word(app, b.action, b.hint);
        let Some(left) = room.checked_sub(cost(key, word)) else {
            break;
        };
        room = left;
        shown.push((key, word));
    }
    let mut spans = vec![Span::raw(" ")];
    for (key, word) in shown.into_iter().chain(last) {
        spans.push(Span::styled(key.to_owned(), theme.strong()));
        spans.push(Span::styled(format!(" {word}   "), theme.dim()));
    }
    Line::from(spans)
}

/// Whether an action does anything now: a run that is over can't be paused, one that goes on has no report.
fn useful(app: &App, action: Action) -> bool {
    match action {
        Action::PauseResume | Action::SaveNow | Action::Stop => app.busy(),
        Action::Confirm if app.screen == Screen::Run => app.run.finished.is_some(),
        Action::Start => !app.busy() && app.plan.unready().is_none(),
        Action::Download => app.fetch.downloading().is_some() || app.models.list.selected().is_some_and(|m| m.not_here),
        _ => true,
    }
}

fn hint_word(app: &App, action: Action, hint: &'static str) -> &'static str {
    match action {
        Action::PauseResume if app.run.paused => "resume",
        Action::Expand if app.panes.expanded => "restore",
        Action::Freeze if app.panes.frozen.is_some() => "unfreeze",
        _ => hint,
    }
}

/// What keys mean now, in a word.
fn mode(app: &App) -> &'static str {
    match &app.overlay {
        Some(Overlay::Quit(_)) => "QUIT?",
        Some(Overlay::Help { typing: true, .. }) => "FILTER",
        Some(Overlay::Help { .. }) => "HELP",
        Some(Overlay::Palette(_)) => "COMMAND",
        Some(Overlay::Prompt(_)) => "OPEN",
        Some(Overlay::Download) => "DOWNLOAD",
        Some(Overlay::Message { .. }) => "READ",
        Some(Overlay::Report { .. }) => "REPORT",
        None if app.models.list.filtering() && app.screen == Screen::Models => "FILTER",
        None if app.runs.list.filtering() && app.screen == Screen::Runs => "FILTER",
        None if app.plan.form.editing.is_some() && app.screen == Screen::Plan => "EDIT",
        None if app.data.form.editing.is_some() && app.screen == Screen::Data => "EDIT",
        None => "NORMAL",
    }
}

fn status_bar(app: &App, frame: &mut Frame, area: Rect, with_hints: bool) {
    let theme = app.theme;
    let chip = format!(" {} ", mode(app));
    let state = if app.handed_over { "preparing".to_owned() } else { app.run.state(app.run_now()) };
    let dropped = match app.dropped {
        0 => String::new(),
        n => format!(" {} skipped ", plural(n, "screen update")),
    };
    let left = |used: usize| (area.width as usize).saturating_sub(used + dropped.len());
    let mut spans = vec![Span::styled(chip, theme.selected())];
    let said = app.flash.as_ref().map_or(0, |(_, text, _)| super::text::width(text) + 4);
    // What was just said comes before what can be read a moment later.
    if said + state.len() <= left(12) || said == 0 {
        spans.push(Span::raw(format!(" {state}")));
        if app.run.running()
            && let (Some(s), Some(last)) = (&app.run.started, &app.run.last)
        {
            let steps = format!("  step {}/{}", last.step, s.steps_total);
            if said + state.len() + steps.len() <= left(12) {
                spans.push(Span::styled(steps, theme.dim()));
            }
        }
    }
    let room = left(Line::from(spans.clone()).width() + 2);
    let typing = match app.screen {
        Screen::Models => app.models.list.typing(),
        Screen::Runs => app.runs.list.typing(),
        _ => None,
    };
    if let Some(input) = typing {
        spans.push(Span::styled(format!("  / {}▏", cut(input.text(), room.saturating_sub(4))), theme.strong()));
    } else if let Some((level, text, _)) = &app.flash {
        let (sign, style) = match level {
            Level::Info => ("", theme.strong()),
            Level::Warn => ("! ", theme.tone(Tone::Notice)),
            Level::Error => ("✗ ", theme.tone(Tone::Bad)),
        };
        spans.push(Span::styled(format!("  {}", cut(&format!("{sign}{text}"), room)), style));
    } else if with_hints {
        let hints = hint_line(app, room);
        spans.push(Span::raw("  "));
        spans.extend(hints.spans);
    }
    put(frame, area, Line::from(spans));
    let width = (dropped.len() as u16).min(area.width);
    put(frame, Rect { x: area.right() - width, width, ..area }, Line::styled(dropped, theme.tone(Tone::Notice)));
}
