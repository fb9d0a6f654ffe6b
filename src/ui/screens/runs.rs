//! Runs: earlier runs in a table; enter reads a report, two marks compare.

use super::plan::verdict_tone;
use crate::engine::RunEntry;
use crate::event::RunStatus;
use crate::plan::ledger;
use crate::ui::app::App;
use crate::ui::list::List;
use crate::ui::run::status_word;
use crate::ui::text::cut;
use crate::ui::theme::Tone;
use crate::ui::widgets::table::{Column, draw as table};
use crate::ui::widgets::{lines, pane, put, wrap};
use crate::units::{Bytes, secs};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use std::path::PathBuf;

/// State of the Runs screen.
#[derive(Clone, Debug)]
pub struct RunsScreen {
    /// The runs.
    pub list: List<RunEntry>,
    marked: Vec<PathBuf>,
}

impl Default for RunsScreen {
    fn default() -> Self {
        RunsScreen {
            list: List::new(|r| format!("{} {} {} {}", r.run_id, r.model, r.verdict, status_word(r.status))),
            marked: Vec::new(),
        }
    }
}

impl RunsScreen {
    /// Marks the selected run, or takes its mark away; the older of two marks gives way to a third.
    pub(in crate::ui) fn mark(&mut self) {
        let Some(dir) = self.list.selected().map(|r| r.dir.clone()) else {
            return;
        };
        if let Some(i) = self.marked.iter().position(|m| *m == dir) {
            self.marked.remove(i);
        } else {
            if self.marked.len() == 2 {
                self.marked.remove(0);
            }
            self.marked.push(dir);
        }
        self.list.step(1);
    }
    /// Folders of the marked runs, in the order marked.
    #[must_use]
    pub fn marked(&self) -> &[PathBuf] {
        &self.marked
    }
}

const COLUMNS: &[Column] = &[
    Column { title: "", width: 2, right: false, from: 0 },
    Column { title: "run", width: 0, right: false, from: 0 },
    Column { title: "verdict", width: 12, right: false, from: 72 },
    Column { title: "status", width: 15, right: false, from: 56 },
    Column { title: "steps", width: 6, right: true, from: 0 },
    Column { title: "loss", width: 12, right: true, from: 0 },
    Column { title: "eval loss", width: 12, right: true, from: 90 },
    Column { title: "a step", width: 9, right: true, from: 100 },
    Column { title: "model", width: 26, right: false, from: 130 },
];

/// What the listed runs wrote, by month, newest first; nothing where there is no run.
fn written_line(app: &App) -> Option<String> {
    let runs = app.runs.list.rows();
    let newest = runs.iter().map(|r| r.month.as_str()).max()?;
    let ledger = ledger::ledger(runs, newest, &app.config);
    let months: Vec<String> = ledger.months.iter().map(|m| format!("{} {}", month(&m.month), m.written)).collect();
    let budget = match ledger.budget {
        Bytes::ZERO => String::new(),
        b => format!("; budget {b} a month"),
    };
    Some(format!("written by these runs: {}{budget}", months.join(", ")))
}

fn month(month: &str) -> &str {
    if month.is_empty() { "undated" } else { month }
}

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let compact = super::super::frame::compact(area);
    let list = &app.runs.list;
    let shown: Vec<&RunEntry> = list.shown().collect();
    let title = super::list_title("runs", shown.len(), list.filter(), theme);
    let inner = pane(frame, area, title, true, compact, theme);
    let written = written_line(app);
    let [inner, footer] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(u16::from(written.is_some()))]).areas(inner);
    if let Some(written) = written {
        put(frame, footer, Line::styled(cut(&written, inner.width.into()), theme.dim()));
    }
    let change = |(from, to): (Option<f64>, Option<f64>)| match (from, to) {
        (Some(from), Some(to)) => format!("{from:.2} → {to:.2}"),
        (Some(from), None) => format!("{from:.2}"),
        _ => "–".into(),
    };
    let rows: Vec<_> = shown
        .iter()
        .map(|r| {
            let (sign, tone) = match r.status {
                RunStatus::Finished => ("✓", Tone::Good),
                RunStatus::Failed => ("✗", Tone::Bad),
                RunStatus::Running => ("▸", Tone::Accent),
                _ => ("!", Tone::Notice),
            };
            let mark = if app.runs.marked.contains(&r.dir) { "◆" } else { " " };
            let plain = Style::default();
            vec![
                (format!("{mark}{sign}"), theme.tone(tone)),
                (r.run_id.clone(), plain),
                (r.verdict.clone(), theme.tone(verdict_tone(&r.verdict))),
                (status_word(r.status).into(), plain),
                (r.steps.to_string(), plain),
                (change(r.loss), plain),
                (change(r.eval), plain),
                (r.seconds_per_step.map_or("–".into(), secs), plain),
                (r.model.clone(), theme.dim()),
            ]
        })
        .collect();
    if rows.is_empty() {
        let text =
            if list.is_empty() { "No run yet. Plan one (3) and press enter." } else { "Nothing matches the filter." };
        lines(frame, inner, wrap(text, inner.width.into()).into_iter().map(Line::from).collect(), 0);
    } else {
        table(frame, inner, COLUMNS, &rows, list.cursor(), theme);
    }
}
