//! Parts that screens are made of. Each draws into any area, empty ones included.

pub mod blockmap;
pub mod lossplot;
pub mod spark;
pub mod table;
pub mod visits;

use super::theme::{Theme, Tone};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::border;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

/// Frames a pane and returns its inside. Small areas get a heading line instead of a box, tiny ones nothing.
pub fn pane(frame: &mut Frame, area: Rect, title: Line<'_>, focused: bool, compact: bool, theme: Theme) -> Rect {
    let style = if focused { theme.tone(Tone::Accent) } else { theme.dim() };
    if !compact && area.width >= 10 && area.height >= 3 {
        let block = Block::bordered().border_set(border::ROUNDED).border_style(style);
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let mut heading = vec![Span::raw(" ")];
        heading.extend(title.spans);
        heading.push(Span::raw(" "));
        let at = Rect { x: area.x + 2, y: area.y, width: area.width.saturating_sub(4), height: 1 };
        put(frame, at, Line::from(heading));
        return inner;
    }
    if area.height < 2 {
        return area;
    }
    let used = title.width() as u16 + 2;
    let mut spans = title.spans;
    let rest = area.width.saturating_sub(used + 1);
    spans.insert(0, Span::styled(if focused { "▸" } else { "─" }, style));
    spans.push(Span::styled(format!(" {}", "─".repeat(rest.into())), style));
    put(frame, Rect { height: 1, ..area }, Line::from(spans));
    Rect { y: area.y + 1, height: area.height - 1, ..area }
}

/// Draws a line over whatever is there, no wider than the line.
pub fn put(frame: &mut Frame, area: Rect, line: Line<'_>) {
    let area = area.intersection(frame.area());
    if !area.is_empty() {
        let width = (line.width() as u16).min(area.width);
        frame.render_widget(Paragraph::new(line), Rect { width, height: 1, ..area });
    }
}

/// Draws lines from the top of an area, from line `scroll` on.
pub fn lines(frame: &mut Frame, area: Rect, text: Vec<Line<'_>>, scroll: usize) {
    let shown: Vec<Line<'_>> = text.into_iter().skip(scroll).take(area.height.into()).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

/// A bar of `width` cells filled to `ratio` (0..=1, see `units::ratio_of`), with a tick at `mark`.
#[must_use]
pub fn bar(width: usize, ratio: f64, mark: Option<f64>, style: Style, theme: Theme) -> Vec<Span<'static>> {
    let cell = |r: f64| ((r * width as f64).round() as usize).min(width);
    let full = cell(ratio);
    let tick = mark.map(|m| cell(m).saturating_sub(1));
    let glyph = |i: usize| match tick {
        Some(t) if t == i => '│',
        _ if i < full => '█',
        _ => '░',
    };
    let run = |from: usize, to: usize| (from..to).map(glyph).collect::<String>();
    vec![Span::styled(run(0, full), style), Span::styled(run(full, width), theme.dim())]
}

/// `label value` with a dim label.
#[must_use]
pub fn pair(label: &str, value: impl Into<String>, theme: Theme) -> Vec<Span<'static>> {
    vec![Span::styled(format!("{label} "), theme.dim()), Span::raw(value.into())]
}

/// Wraps text to `width` columns at spaces; a longer word is cut across lines.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut out = Vec::new();
    let width = width.max(1);
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in crate::text::one_line(paragraph).split(' ') {
            let mut word = word.to_owned();
            let used = super::text::width(&line);
            if used > 0 && used + 1 + super::text::width(&word) <= width {
                line.push(' ');
            } else if used > 0 {
                out.push(std::mem::take(&mut line));
            }
            while super::text::width(&word) > width {
                let mut head = super::text::cut(&word, width + 1);
                head.pop();
                if head.is_empty() || !word.starts_with(&head) {
                    // One grapheme wider than the line: nothing to be done for it.
                    word = "…".into();
                    break;
                }
                word.drain(..head.len());
                out.push(head);
            }
            line.push_str(&word);
        }
        out.push(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_lines_never_leave_their_width_and_lose_nothing() {
        let text = "the quick 模型七十亿模型七十亿 brown foxjumpsoverthelazydog again";
        for width in 2..30 {
            let lines = wrap(text, width);
            assert!(lines.iter().all(|l| crate::ui::text::width(l) <= width), "{width}: {lines:?}");
            assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""), "{width}");
        }
        assert_eq!(wrap("模", 1), ["…"]);
        assert_eq!(wrap("", 9), [""]);
        assert_eq!(wrap("a\n\nb", 9), ["a", "", "b"]);
    }

    #[test]
    fn a_bar_fills_to_its_ratio() {
        let text = |r, m| {
            bar(10, r, m, Style::default(), Theme::plain()).iter().map(|s| s.content.to_string()).collect::<String>()
        };
        assert_eq!(text(0.5, None), "█████░░░░░");
        assert_eq!(text(0.2, Some(0.8)), "██░░░░░│░░");
        assert_eq!(text(1.0, Some(1.0)), "█████████│");
    }
}
