//! A table whose columns are cut by display width, with the selected row in reverse video.

use super::super::list::window;
use super::super::text::{fit, fit_right, middle};
use super::super::theme::Theme;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub title: &'static str,
    /// Its width; 0 takes what the others leave.
    pub width: usize,
    /// Numbers stand on the right.
    pub right: bool,
    /// Narrowest table that shows it.
    pub from: u16,
}

/// A cell: text and style.
pub type Cell = (String, Style);

/// Draws `rows` under their headings and marks row `cursor`.
pub fn draw(frame: &mut Frame, area: Rect, columns: &[Column], rows: &[Vec<Cell>], cursor: usize, theme: Theme) {
    if area.is_empty() {
        return;
    }
    let shown: Vec<(usize, Column)> =
        columns.iter().copied().enumerate().filter(|(_, c)| area.width >= c.from).collect();
    let fixed: usize = shown.iter().map(|(_, c)| c.width + 1).sum();
    let fills = shown.iter().filter(|(_, c)| c.width == 0).count().max(1);
    let fill = (area.width as usize).saturating_sub(fixed + 1) / fills;
    let width = |c: Column| if c.width == 0 { fill } else { c.width };
    let text = |c: Column, t: &str| {
        // Of a name that doesn't fit, its end tells as much as its beginning.
        if c.right { fit_right(t, width(c)) } else { fit(&middle(t, width(c)), width(c)) }
    };
    let heading: String = shown.iter().map(|(_, c)| format!(" {}", text(*c, c.title))).collect();
    let mut lines = vec![Line::styled(heading, theme.dim())];
    let height = (area.height as usize).saturating_sub(1);
    let first = window(cursor, rows.len(), height);
    for (i, row) in rows.iter().enumerate().skip(first).take(height) {
        let mut spans = Vec::new();
        for (at, column) in &shown {
            let (t, style) = row.get(*at).cloned().unwrap_or_default();
            spans.push(Span::raw(" "));
            spans.push(Span::styled(text(*column, &t), style));
        }
        let line = Line::from(spans);
        let pad = (area.width as usize).saturating_sub(line.width());
        let mut line = line;
        line.push_span(Span::raw(" ".repeat(pad)));
        lines.push(if i == cursor { line.style(theme.selected()) } else { line });
    }
    super::lines(frame, area, lines, 0);
}
