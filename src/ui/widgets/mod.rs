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
use ratatui::widgets::{Block, Clear, Paragraph};

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

/// `line` in at most `width` columns; where something is missing it ends in `…`.
fn shortened(mut line: Line<'_>, width: usize) -> Line<'_> {
    let text: String = line.spans.iter().map(|s| s.content.as_ref()).collect();
    if super::text::width(text.trim_end()) <= width {
        return line;
    }
    let mut left = width;
    for span in &mut line.spans {
        let whole = span.width();
        if whole < left {
            left -= whole;
        } else {
            // The blank stands for what follows: a span that just fits is cut too.
            span.content = super::text::cut(&format!("{} ", span.content), left).into();
            left = 0;
        }
    }
    line
}

/// Draws a line over whatever is there, no wider than the line.
pub fn put(frame: &mut Frame, area: Rect, line: Line<'_>) {
    let area = area.intersection(frame.area());
    if !area.is_empty() {
        let line = shortened(line, area.width.into());
        let width = (line.width() as u16).min(area.width);
        let at = Rect { width, height: 1, ..area };
        // A paragraph adds its style to the cell's own: a title would take on what its border is drawn with.
        frame.render_widget(Clear, at);
        frame.render_widget(Paragraph::new(line), at);
    }
}

/// Draws lines from the top of an area, from line `scroll` on.
pub fn lines(frame: &mut Frame, area: Rect, text: Vec<Line<'_>>, scroll: usize) {
    let width = usize::from(area.width);
    let shown: Vec<Line<'_>> =
        text.into_iter().skip(scroll).take(area.height.into()).map(|line| shortened(line, width)).collect();
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

/// Puts groups of spans into lines of at most `width` columns, `gap` columns apart; lines after the first begin `indent`
/// columns in.
#[must_use]
pub fn packed(groups: Vec<Vec<Span<'static>>>, indent: usize, gap: usize, width: usize) -> Vec<Line<'static>> {
    let mut out: Vec<Line<'static>> = Vec::new();
    for group in groups {
        let group = Line::from(group);
        match out.last_mut() {
            Some(last) if last.width() + gap + group.width() <= width => {
                last.spans.push(Span::raw(" ".repeat(gap)));
                last.spans.extend(group.spans);
            }
            None => out.push(group),
            Some(_) => {
                let mut line = Line::from(" ".repeat(indent));
                line.spans.extend(group.spans);
                out.push(line);
            }
        }
    }
    out
}

/// A command in lines of at most `width` columns, broken before its `--` words with a backslash, as a shell takes it.
#[must_use]
pub fn shell_lines(command: &str, width: usize) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut line = String::new();
    for (i, part) in command.split(" --").enumerate() {
        let part = if i == 0 { part.to_owned() } else { format!("--{part}") };
        if i > 0 && super::text::width(&line) + super::text::width(&part) + 3 > width {
            out.push(format!("{line} \\"));
            line = format!("  {part}");
        } else {
            line.push_str(if i == 0 { "" } else { " " });
            line.push_str(&part);
        }
    }
    out.push(line);
    out.into_iter().flat_map(|line| hard_cut(line, width)).collect()
}

/// A line that is too long goes on at the very start of the next, which a shell joins without a gap.
fn hard_cut(line: String, width: usize) -> Vec<String> {
    if super::text::width(&line) <= width {
        return vec![line];
    }
    let (mut out, mut part) = (Vec::new(), String::new());
    for c in line.chars() {
        let next = super::text::width(c.encode_utf8(&mut [0; 4]));
        if !part.is_empty() && super::text::width(&part) + next + 1 > width {
            out.push(std::mem::take(&mut part) + "\\");
        }
        part.push(c);
    }
    out.push(part);
    out
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
    fn what_is_cut_says_so() {
        let line = || Line::from(vec![Span::raw("ab "), Span::raw("cde"), Span::raw("  ")]);
        let at = |width| shortened(line(), width).spans.iter().map(|s| s.content.to_string()).collect::<String>();
        assert_eq!([6, 5, 4, 3, 2, 1, 0].map(at), ["ab cde  ", "ab c…", "ab …", "ab…", "a…", "…", ""]);
    }

    #[test]
    fn groups_fill_lines_and_none_is_broken() {
        let groups = || ["disk 1", "link 22", "x"].map(|t| vec![Span::raw(t)]).to_vec();
        let at = |width| packed(groups(), 2, 2, width).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(at(30), ["disk 1  link 22  x"]);
        assert_eq!(at(15), ["disk 1  link 22", "  x"]);
        assert_eq!(at(9), ["disk 1", "  link 22", "  x"]);
    }

    #[test]
    fn case_fo_55_a_broken_command_reads_back_as_the_whole_one() {
        let command = "blockstream-tui generate --model 'a b/c' --adapter x/adapter --greedy --prompt \"Hi\"";
        for width in 26..120 {
            let lines = shell_lines(command, width);
            assert!(lines.iter().all(|l| super::super::text::width(l) <= width), "{width}: {lines:?}");
            // What a shell does with it.
            let back = lines.join("\n").replace("\\\n", "").replace("   ", " ");
            assert_eq!(back, command, "{width}: {lines:?}");
        }
        assert_eq!(shell_lines(command, 200), [command]);
        assert_eq!(shell_lines("a --path abcdefghijkl", 11), ["a \\", "  --path a\\", "bcdefghijk\\", "l"]);
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
