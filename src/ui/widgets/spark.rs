//! A sparkline over samples of any size, scaled to their highest.

use super::super::theme::{Theme, Tone};
use crate::units::ratio_of;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::widgets::Sparkline;

/// Draws `samples` (oldest first) so that the newest touches the right edge.
pub fn draw(frame: &mut Frame, area: Rect, samples: &[f64], tone: Tone, theme: Theme) {
    if area.is_empty() {
        return;
    }
    /// Fine enough for eight steps a row on any screen.
    const FULL: f64 = 10_000.0;
    let width = area.width as usize;
    let kept = &samples[samples.len().saturating_sub(width)..];
    let highest = kept.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    let data: Vec<u64> = std::iter::repeat_n(0, width - kept.len())
        .chain(kept.iter().map(|v| {
            let scaled = (ratio_of(*v, highest) * FULL) as u64;
            // What moved at all shows: the lowest step is for more than nothing.
            if *v > 0.0 { scaled.max((FULL / 8.0 / f64::from(area.height.max(1))) as u64 + 1) } else { 0 }
        }))
        .collect();
    frame.render_widget(Sparkline::default().data(data).max(FULL as u64).style(theme.tone(tone)), area);
}
