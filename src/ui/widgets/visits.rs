//! The visits of a step as a strip of bars: computing below, waiting for the link above it, for the disk on top.
//!
//! `█` computes, `›` waits for a copy, `·` waits for a read: the block map's signs, so that it reads without colour.

use super::super::text::width as columns;
use super::super::theme::{Theme, Tone};
use crate::event::{Phase, StepRecord, VisitTimes};
use crate::units::secs;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// What compute does, in the order in which a bar is stacked.
const SIGNS: [char; 3] = ['█', '›', '·'];
/// Columns a visit takes at most, where there is room.
const WIDEST: usize = 3;
/// A wait of this share of its visit shows, however few cells the bar has.
const SHOWN: f64 = 0.15;

fn styles(theme: Theme) -> [Style; 3] {
    let bold = |tone| theme.tone(tone).add_modifier(Modifier::BOLD);
    [theme.tone(Tone::Good), bold(Tone::Accent), bold(Tone::Notice)]
}

/// `visits` as at most `height` lines of `width` columns: a bar for each visit, or for neighbours where they are many,
/// as high as it took. From three lines on the last one names the phases.
#[must_use]
pub fn strip(visits: &[VisitTimes], width: usize, height: usize, theme: Theme) -> Vec<Line<'static>> {
    if visits.is_empty() || width == 0 || height == 0 {
        return Vec::new();
    }
    let per = visits.len().div_ceil(width);
    let bars: Vec<[f64; 3]> = visits.chunks(per).map(sum).collect();
    let wide = (width / bars.len()).clamp(1, WIDEST);
    let named = height >= 3;
    let rows = height - usize::from(named);
    let longest = bars.iter().map(|b| b.iter().sum::<f64>()).fold(0.0, f64::max);
    let stacks: Vec<Vec<usize>> = bars.iter().map(|b| stack(*b, longest, rows)).collect();
    let styles = styles(theme);
    let mut out: Vec<Line> = (0..rows)
        .rev()
        .map(|row| {
            let mut spans: Vec<Span> = Vec::new();
            for stack in &stacks {
                let cell = stack.get(row);
                let text = cell.map_or(' ', |i| SIGNS[*i]).to_string().repeat(wide);
                spans.push(Span::styled(text, cell.map_or(Style::default(), |i| styles[*i])));
            }
            Line::from(spans)
        })
        .collect();
    if named {
        out.push(Line::styled(phases(visits, per, wide, width), theme.dim()));
    }
    out
}

fn sum(visits: &[VisitTimes]) -> [f64; 3] {
    let clean = |x: f64| if x.is_finite() { x.max(0.0) } else { 0.0 };
    visits
        .iter()
        .fold([0.0; 3], |s, v| [s[0] + clean(v.compute_s), s[1] + clean(v.wait_link_s), s[2] + clean(v.wait_disk_s)])
}

/// The cells of one bar from the bottom up, each an index into [`SIGNS`].
fn stack(bar: [f64; 3], longest: f64, rows: usize) -> Vec<usize> {
    let total: f64 = bar.iter().sum();
    if total.is_nan() || total <= 0.0 || !longest.is_finite() {
        return Vec::new();
    }
    let cells = ((total / longest * rows as f64).round() as usize).clamp(1, rows.max(1));
    if cells == 1 {
        // The one that took the most.
        return vec![(0..3).fold(0, |best, i| if bar[i] > bar[best] { i } else { best })];
    }
    let part = |x: f64| {
        let least = usize::from(x / total >= SHOWN);
        ((x / total * cells as f64).round() as usize).max(least)
    };
    // What was computed always has its cell: a bar of waits alone would say that nothing was done.
    let room = cells - usize::from(bar[0] > 0.0);
    let disk = part(bar[2]).min(room);
    let link = part(bar[1]).min(room - disk);
    [vec![0; cells - disk - link], vec![1; link], vec![2; disk]].concat()
}

/// Where the sweeps begin: `forward       backward`.
fn phases(visits: &[VisitTimes], per: usize, wide: usize, width: usize) -> String {
    let mut line = String::new();
    let mut last = None;
    for (i, chunk) in visits.chunks(per).enumerate() {
        let phase = chunk[0].phase;
        let name = match phase {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            _ => "",
        };
        let at = i * wide;
        let free = line.is_empty() || at > line.len();
        if last != Some(phase) && !name.is_empty() && free && at + name.len() <= width {
            line.push_str(&" ".repeat(at - line.len()));
            line.push_str(name);
        }
        last = Some(phase);
    }
    line
}

/// The signs with the step's seconds: `█ compute 310 ms  › copy wait 20.0 ms  · disk wait 0.0 ms`, shorter where it is
/// narrow.
#[must_use]
pub fn legend(s: &StepRecord, width: usize, theme: Theme) -> Line<'static> {
    let times = [s.compute_s, s.stall_s - s.stall_disk_s, s.stall_disk_s].map(|t| t.max(0.0));
    let whole =
        [" compute ", " copy wait ", " disk wait "].into_iter().zip(times).map(|(word, t)| word.to_owned() + &secs(t));
    let (unit, scale, digits) = if s.seconds < 1.0 { (" ms", 1e3, 0) } else { (" s", 1.0, 2) };
    let short = |words: [&str; 3]| -> Vec<String> {
        let mut out: Vec<String> =
            words.into_iter().zip(times).map(|(word, t)| format!("{word}{:.digits$}", t * scale)).collect();
        out[2].push_str(unit);
        out
    };
    let forms: [(Vec<String>, &str); 3] =
        [(whole.collect(), "  "), (short([" compute ", " copy ", " disk "]), " "), (short([""; 3]), " ")];
    let length =
        |(words, gap): &(Vec<String>, &str)| words.iter().map(|w| columns(w) + 1).sum::<usize>() + 2 * gap.len();
    let chosen = forms.iter().position(|f| length(f) <= width).unwrap_or(forms.len() - 1);
    let (words, gap) = &forms[chosen];
    let mut spans = Vec::new();
    for (i, word) in words.iter().enumerate() {
        spans.push(Span::styled(SIGNS[i].to_string(), styles(theme)[i]));
        let gap = if i < 2 { *gap } else { "" };
        spans.push(Span::raw(format!("{word}{gap}")));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|l| l.spans.iter().map(|s| s.content.as_ref()).collect()).collect()
    }

    fn visit(phase: Phase, compute_s: f64, wait_link_s: f64, wait_disk_s: f64) -> VisitTimes {
        VisitTimes { phase, compute_s, wait_link_s, wait_disk_s, ..VisitTimes::default() }
    }

    #[test]
    fn waits_stand_on_what_was_computed_and_read_without_colour() {
        let (f, b) = (Phase::Forward, Phase::Backward);
        let visits =
            [visit(f, 1.0, 0.0, 0.0), visit(f, 1.0, 1.2, 0.0), visit(f, 1.0, 0.0, 3.0), visit(b, 2.0, 0.0, 0.0)];
        assert_eq!(text(&strip(&visits, 4, 2, Theme::plain())), ["  · ", "█›██"].map(String::from));
        let tall = text(&strip(&visits, 12, 5, Theme::plain()));
        assert_eq!(tall[0], "      ···   ");
        assert_eq!(tall[2], "   ›››···███");
        assert_eq!(tall[3], "████████████");
        assert_eq!(tall[4], "forward", "the name of a phase that has no room is left out");
    }

    #[test]
    fn no_size_and_no_figure_panics_or_leaves_the_area() {
        let mut visits = vec![visit(Phase::Forward, f64::NAN, f64::INFINITY, -1.0); 7];
        visits.extend(vec![visit(Phase::Backward, 1.0, f64::MAX, f64::MAX); 90]);
        for n in [0, 1, 7, 97] {
            for width in 0..50 {
                for height in 0..7 {
                    let lines = strip(&visits[..n], width, height, Theme::plain());
                    assert!(lines.len() <= height);
                    assert!(lines.iter().all(|l| l.width() <= width.max(1)), "{n} {width}x{height}");
                }
            }
        }
    }

    #[test]
    fn the_legend_gets_shorter_with_its_room() {
        let s = StepRecord { seconds: 0.4, compute_s: 0.31, stall_s: 0.02, ..StepRecord::default() };
        let at = |width| text(&[legend(&s, width, Theme::plain())])[0].clone();
        assert_eq!(at(60), "█ compute 310 ms  › copy wait 20.0 ms  · disk wait 0.0 ms");
        assert_eq!(at(41), "█ compute 310 › copy 20 · disk 0 ms");
        assert_eq!(at(20), "█310 ›20 ·0 ms");
    }
}
