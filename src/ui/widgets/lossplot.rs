//! The loss chart: Braille lines that break where a value is not finite and never lose a spike.

use super::super::run::{Bucket, columns, smooth};
use super::super::theme::{Theme, Tone};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use ratatui::widgets::canvas::{Canvas, Line as Stroke};

/// What to plot.
#[derive(Clone, Debug)]
pub struct LossPlot<'a> {
    /// Training loss, oldest first.
    pub buckets: Vec<Bucket>,
    /// Held-out loss by step.
    pub evals: &'a [(u64, f64)],
    /// Logarithmic axis; values at or below zero are then as bad as not finite.
    pub log_y: bool,
    /// Weight of the moving average, 0..1.
    pub smoothing: f64,
    /// Colours.
    pub theme: Theme,
}

/// Bounds that a chart can take: finite, low below high.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    x: [f64; 2],
    y: [f64; 2],
}

impl LossPlot<'_> {
    fn scale(&self, y: f64) -> Option<f64> {
        let y = if self.log_y { if y > 0.0 { y.log10() } else { return None } } else { y };
        (y.is_finite() && y.abs() < 1e12).then_some(y)
    }

    fn unscale(&self, y: f64) -> f64 {
        if self.log_y { 10f64.powf(y) } else { y }
    }

    fn bounds(&self, cols: &[Bucket], evals: &[(f64, f64)]) -> Option<Bounds> {
        let ys = cols
            .iter()
            .filter(|b| b.finite > 0)
            .flat_map(|b| [b.y.0, b.y.1])
            .filter_map(|y| self.scale(y))
            .chain(evals.iter().map(|e| e.1));
        let (low, high) = ys.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), y| (l.min(y), h.max(y)));
        let first = cols.iter().map(|b| b.x.0).chain(evals.iter().map(|e| e.0)).fold(f64::INFINITY, f64::min);
        let last = cols.iter().map(|b| b.x.1).chain(evals.iter().map(|e| e.0)).fold(f64::NEG_INFINITY, f64::max);
        if !(low.is_finite() && high.is_finite() && first.is_finite() && last.is_finite()) {
            return None;
        }
        let pad = if high > low { (high - low) * 0.05 } else { high.abs().max(1.0) * 0.05 };
        Some(Bounds { x: [first, last.max(first + 1.0)], y: [low - pad, high + pad] })
    }

    /// Draws the chart with its labels.
    pub fn draw(&self, frame: &mut Frame, area: Rect) {
        if area.width < 12 || area.height < 2 {
            return;
        }
        let width = usize::from(area.width) * 2;
        let cols = columns(&self.buckets, width);
        let recent = self.buckets.first().map_or(0.0, |b| b.x.0);
        let evals: Vec<(f64, f64)> = self
            .evals
            .iter()
            .map(|(step, y)| (*step as f64, *y))
            .filter(|(step, _)| *step >= recent.min(1.0) - 1.0 && (recent <= 1.0 || *step >= recent))
            .filter_map(|(x, y)| self.scale(y).map(|y| (x, y)))
            .collect();
        let Some(bounds) = self.bounds(&cols, &evals) else {
            let text = if cols.is_empty() { "no step yet" } else { "✗ no finite loss yet" };
            let middle = Rect { y: area.y + area.height / 2, height: 1, ..area };
            frame.render_widget(Paragraph::new(text).style(self.theme.dim()).centered(), middle);
            return;
        };
        let ticks = if area.height >= 12 {
            5
        } else if area.height >= 5 {
            3
        } else {
            2
        };
        let values: Vec<f64> = (0..ticks)
            .map(|i| bounds.y[1] - (bounds.y[1] - bounds.y[0]) * f64::from(i) / f64::from(ticks - 1))
            .map(|y| self.unscale(y))
            .collect();
        let labels = labels(&values);
        let gutter = labels.iter().map(|l| l.len()).max().unwrap_or(0).min(WIDEST_LABEL) as u16 + 1;
        let plot =
            Rect { x: area.x + gutter, width: area.width.saturating_sub(gutter), height: area.height - 1, ..area };
        for (i, text) in labels.iter().enumerate() {
            let y = area.y + ((plot.height - 1) as usize * i / (ticks as usize - 1)) as u16;
            let at = Rect { x: area.x, y, width: gutter, height: 1 };
            let line = Line::from(Span::styled(format!("{text:>w$} ", w = gutter as usize - 1), self.theme.dim()));
            super::put(frame, at, line);
        }
        let axis = Rect { y: area.y + area.height - 1, height: 1, ..plot };
        let (left, right) = (format!("{}", bounds.x[0] as u64), format!("step {}", bounds.x[1] as u64));
        let gap = usize::from(axis.width).saturating_sub(left.len() + right.len());
        super::put(frame, axis, Line::styled(format!("{left}{}{right}", " ".repeat(gap)), self.theme.dim()));
        self.curves(frame, plot, bounds, &cols, &evals);
    }

    fn curves(&self, frame: &mut Frame, area: Rect, bounds: Bounds, cols: &[Bucket], evals: &[(f64, f64)]) {
        let accent = color(self.theme.tone(Tone::Accent));
        let smoothed = self.smoothing > 0.0;
        let raw = if smoothed { color(self.theme.dim()) } else { accent };
        let (theme, top) = (self.theme, bounds.y[1]);
        let canvas = Canvas::default().marker(Marker::Braille).x_bounds(bounds.x).y_bounds(bounds.y).paint(|ctx| {
            for segment in self.segments(cols) {
                let mut last = None;
                for (x, low, high, mean) in &segment {
                    let (x, low, high, mean) = (*x, *low, *high, *mean);
                    ctx.draw(&Stroke { x1: x, y1: low, x2: x, y2: high, color: raw });
                    if let Some((px, py)) = last.replace((x, mean)) {
                        ctx.draw(&Stroke { x1: px, y1: py, x2: x, y2: mean, color: raw });
                    }
                }
                if smoothed {
                    let means: Vec<f64> = segment.iter().map(|p| p.3).collect();
                    let line = smooth(&means, self.smoothing);
                    for (i, pair) in line.windows(2).enumerate() {
                        let (x1, x2) = (segment[i].0, segment[i + 1].0);
                        ctx.draw(&Stroke { x1, y1: pair[0], x2, y2: pair[1], color: accent });
                    }
                }
            }
            ctx.layer();
            for (x, y) in evals {
                ctx.print(*x, *y, Span::styled("◆", theme.tone(Tone::Second)));
            }
            for bucket in cols.iter().filter(|b| self.broken(b)) {
                ctx.print(bucket.x.1, top, Span::styled("✗", theme.tone(Tone::Bad)));
            }
        });
        frame.render_widget(canvas, area);
    }

    fn broken(&self, b: &Bucket) -> bool {
        b.bad > 0 || (b.finite > 0 && (self.scale(b.y.0).is_none() || self.scale(b.y.1).is_none()))
    }

    /// Runs of columns without a hole, as `(x, low, high, mean)` on the axis's scale.
    fn segments(&self, cols: &[Bucket]) -> Vec<Vec<(f64, f64, f64, f64)>> {
        let mut segments = vec![Vec::new()];
        for b in cols {
            if self.broken(b) {
                segments.push(Vec::new());
            }
            let scaled = (self.scale(b.y.0), self.scale(b.y.1), self.scale(b.mean));
            if b.finite > 0
                && let (Some(low), Some(high), Some(mean)) = scaled
                && let Some(segment) = segments.last_mut()
            {
                segment.push((b.x.1, low, high, mean));
            }
        }
        segments
    }
}

fn color(style: Style) -> Color {
    style.fg.unwrap_or(Color::Reset)
}

/// Most columns of a tick's label.
const WIDEST_LABEL: usize = 10;

/// The ticks' labels: with as many places as it takes to tell them apart, where the room allows that.
fn labels(values: &[f64]) -> Vec<String> {
    let largest = values.iter().fold(0.0_f64, |l, y| l.max(y.abs()));
    let plain = largest == 0.0 || (1e-3..1e5).contains(&largest);
    let least = if plain { if largest < 10.0 { 3 } else { usize::from(largest < 1_000.0) } } else { 1 };
    let written = |places: usize| -> Vec<String> {
        values.iter().map(|y| if plain { format!("{y:.places$}") } else { format!("{y:.places$e}") }).collect()
    };
    let told_apart = |labels: &[String]| labels.windows(2).all(|l| l[0] != l[1]);
    let fits = |labels: &[String]| labels.iter().all(|l| l.len() <= WIDEST_LABEL);
    (least..=9).map(written).take_while(|l| fits(l)).find(|l| told_apart(l)).unwrap_or_else(|| written(least))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::run::History;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(values: &[f64], log_y: bool, size: (u16, u16)) -> String {
        let mut history = History::default();
        for (i, v) in values.iter().enumerate() {
            history.push(i as f64 + 1.0, *v);
        }
        let plot = LossPlot {
            buckets: history.view(true),
            evals: &[(0, 3.0), (4, f64::NAN)],
            log_y,
            smoothing: 0.6,
            theme: Theme::plain(),
        };
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal.draw(|f| plot.draw(f, f.area())).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn values_that_are_not_finite_split_the_line_and_leave_a_mark() {
        let text = drawn(&[3.0, 2.5, f64::NAN, 2.0, 1.9], false, (40, 10));
        assert_eq!(text.matches('✗').count(), 1, "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(drawn(&[f64::NAN; 3], false, (40, 10)).contains('◆'), "held-out loss shows without training loss");
    }

    #[test]
    fn case_fo_61_the_axis_has_as_many_digits_as_tell_its_ticks_apart() {
        let apart = |high: f64, low: f64, n: usize| {
            let values: Vec<f64> = (0..n).map(|i| high - (high - low) * i as f64 / (n - 1) as f64).collect();
            let mut labels = labels(&values);
            assert!(labels.iter().all(|l| l.len() <= WIDEST_LABEL), "{labels:?}");
            let all = labels.len();
            labels.dedup();
            (labels.len() == all, labels)
        };
        for (high, low) in [(12.61, 12.49), (3.0, 2.999), (99.99, 99.98), (0.02, 0.0199), (1e-5, 0.9e-5), (3e7, 2.99e7)]
        {
            for n in [2, 3, 5] {
                let (ok, labels) = apart(high, low, n);
                assert!(ok, "{labels:?}");
            }
        }
        assert_eq!(labels(&[3.076, 2.770, 2.464]), ["3.076", "2.770", "2.464"]);
        assert_eq!(labels(&[12.6, 12.55, 12.5]), ["12.60", "12.55", "12.50"]);
    }

    #[test]
    fn no_series_and_no_size_panics_or_hangs() {
        let nasty = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, 0.0, -1.0, 1e-300, 5e-324];
        for size in [(1, 1), (2, 2), (12, 2), (13, 3), (40, 10), (300, 90)] {
            for log_y in [false, true] {
                drawn(&[], log_y, size);
                drawn(&nasty, log_y, size);
                drawn(&[2.0; 5], log_y, size);
                for one in nasty {
                    drawn(&[one], log_y, size);
                }
            }
        }
    }
}
