//! Models: the checkpoints on this machine, with why one can't be used.

use crate::engine::ModelEntry;
use crate::ui::app::App;
use crate::ui::list::List;
use crate::ui::theme::Tone;
use crate::ui::widgets::table::{Column, draw as table};
use crate::ui::widgets::{lines, pane, wrap};
use crate::units::count;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// State of the Models screen.
#[derive(Clone, Debug)]
pub struct ModelsScreen {
    /// The checkpoints.
    pub list: List<ModelEntry>,
}

impl Default for ModelsScreen {
    fn default() -> Self {
        ModelsScreen { list: List::new(|m| format!("{} {} {}", m.name, m.family, m.origin)) }
    }
}

const COLUMNS: &[Column] = &[
    Column { title: "", width: 1, right: false, from: 0 },
    Column { title: "model", width: 0, right: false, from: 0 },
    Column { title: "params", width: 8, right: true, from: 0 },
    Column { title: "size", width: 9, right: true, from: 0 },
    Column { title: "layers", width: 6, right: true, from: 70 },
    Column { title: "family", width: 8, right: false, from: 56 },
    Column { title: "from", width: 9, right: false, from: 70 },
];

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let compact = super::super::frame::compact(area);
    let [top, bottom] =
        Layout::vertical([Constraint::Min(4), Constraint::Length(if compact { 3 } else { 5 })]).areas(area);
    let list = &app.models.list;
    let shown: Vec<&ModelEntry> = list.shown().collect();
    let title = super::list_title("models", shown.len(), list.filter(), theme);
    let inner = pane(frame, top, title, true, compact, theme);
    let rows: Vec<_> = shown
        .iter()
        .map(|m| {
            let (sign, tone) = match (&m.problem, m.not_here) {
                (_, true) => ("↓", Tone::Notice),
                (Some(_), false) => ("✗", Tone::Bad),
                (None, false) => ("✓", Tone::Good),
            };
            let dash = |known: bool, text: String| if known { text } else { "–".into() };
            let plain = if m.problem.is_some() && !m.not_here { theme.dim() } else { Style::default() };
            vec![
                (sign.into(), theme.tone(tone)),
                (m.name.clone(), plain),
                (dash(m.params > 0, count(m.params)), plain),
                (dash(m.bytes.0 > 0, m.bytes.to_string()), plain),
                (dash(m.n_blocks > 0, m.n_blocks.to_string()), plain),
                (m.family.clone(), plain),
                (m.origin.clone(), theme.dim()),
            ]
        })
        .collect();
    if rows.is_empty() {
        let text = match (list.loaded(), list.is_empty()) {
            (false, _) => "looking for checkpoints…",
            (true, true) => "No checkpoint found. Press o to open a folder, H to plan a model on the hub.",
            (true, false) => "Nothing matches the filter.",
        };
        let text = wrap(text, inner.width.into()).into_iter().map(Line::from).collect();
        lines(frame, inner, text, 0);
    } else {
        table(frame, inner, COLUMNS, &rows, list.cursor(), theme);
    }
    let inner = pane(frame, bottom, Line::styled("selected", theme.title()), false, compact, theme);
    let fetch = super::download::status(app).map(|s| crate::ui::text::cut(&s, inner.width.into()));
    let fetch = fetch.map(|s| Line::styled(s, theme.strong()));
    let selected = list.selected();
    if let (Some(fetch), None) = (&fetch, selected) {
        lines(frame, inner, vec![fetch.clone()], 0);
    }
    if let Some(m) = selected {
        // The whole path where there is room for two lines of it.
        let path = m.path.display().to_string();
        let room = (inner.width as usize).saturating_sub(5);
        let parts = if inner.height >= 3 { wrap(&path, room) } else { Vec::new() };
        let parts = if matches!(parts.len(), 1 | 2) { parts } else { vec![crate::ui::text::tail(&path, room)] };
        let mut text: Vec<Line> = parts
            .into_iter()
            .enumerate()
            .map(|(i, part)| {
                Line::from(vec![Span::styled(if i == 0 { "path " } else { "     " }, theme.dim()), Span::raw(part)])
            })
            .collect();
        let broken = m.problem.is_some() && !m.not_here;
        let verdict = match &m.problem {
            _ if m.not_here && m.origin == "hub" => {
                "↓ only its headers are here: enter plans it, d downloads it".into()
            }
            _ if m.not_here => "↓ only its headers are here: enter plans it".into(),
            Some(problem) => format!("✗ {problem}"),
            None => "✓ press enter to plan it on this machine".into(),
        };
        let style = if broken { theme.tone(Tone::Bad) } else { Style::default() };
        text.extend(wrap(&verdict, inner.width.into()).into_iter().map(|l| Line::styled(l, style)));
        if compact && (broken || fetch.is_some()) {
            text.remove(0);
        }
        text.splice(0..0, fetch);
        lines(frame, inner, text, 0);
    }
}
