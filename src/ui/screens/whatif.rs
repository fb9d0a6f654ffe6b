//! What if the machine were another: sizes that keys walk up and down, and the banner that says so.

use crate::device::Machine;
use crate::plan::Edit;
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::put;
use crate::units::{Bytes, GB, rate};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// A figure that keys change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Host memory.
    Ram,
    /// The card's memory.
    Vram,
    /// Free space on the drive.
    Disk,
    /// The drive's read rate.
    Read,
}

impl Figure {
    const ALL: [Figure; 4] = [Figure::Ram, Figure::Vram, Figure::Disk, Figure::Read];

    fn name(self) -> &'static str {
        match self {
            Figure::Ram => "RAM",
            Figure::Vram => "VRAM",
            Figure::Disk => "disk",
            Figure::Read => "read",
        }
    }

    /// Values that the keys walk through, GB, tenths of GB/s for the rate.
    fn walk(self) -> &'static [u64] {
        match self {
            Figure::Ram => &[4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024],
            Figure::Vram => &[4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141, 192],
            Figure::Disk => &[16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 8000],
            Figure::Read => &[2, 5, 10, 20, 35, 50, 70, 100, 140],
        }
    }

    fn unit(self) -> f64 {
        if self == Figure::Read { 1e8 } else { GB as f64 }
    }

    fn of(self, m: &Machine) -> f64 {
        match self {
            Figure::Ram => m.ram.total.0 as f64,
            Figure::Vram => m.gpu.as_ref().map_or(0.0, |g| g.vram_total.0 as f64),
            Figure::Disk => m.disk.free.0 as f64,
            Figure::Read => m.disk.read,
        }
    }

    fn edit(self, to: f64) -> Edit {
        match self {
            Figure::Ram => Edit::Ram(to as u64),
            Figure::Vram => Edit::Vram(to as u64),
            Figure::Disk => Edit::Disk(to as u64),
            Figure::Read => Edit::Read(to),
        }
    }
}

/// The edits made on a screen.
#[derive(Clone, Debug, Default)]
pub struct WhatIf {
    selected: Option<usize>,
    changed: Vec<(Figure, f64)>,
}

impl WhatIf {
    /// Whether the plan shown is not for the machine as it is.
    #[must_use]
    pub fn active(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What is to be planned for.
    #[must_use]
    pub fn edits(&self) -> Vec<Edit> {
        self.changed.iter().map(|(figure, to)| figure.edit(*to)).collect()
    }

    pub(in crate::ui) fn select_next(&mut self) {
        self.selected = Some(self.selected.map_or(0, |i| (i + 1) % Figure::ALL.len()));
    }

    pub(in crate::ui) fn reset(&mut self) {
        *self = WhatIf::default();
    }

    /// Moves the selected figure `by` one value up or down from that of the machine shown; an answer where it can't.
    pub(in crate::ui) fn step(&mut self, by: isize, shown: &Machine) -> Result<(), &'static str> {
        let figure = Figure::ALL[*self.selected.get_or_insert(0)];
        let now = self.changed.iter().find(|(f, _)| *f == figure).map_or_else(|| figure.of(shown), |(_, to)| *to);
        let values = figure.walk().iter().map(|v| *v as f64 * figure.unit());
        // A hair of slack: a value that is one of the walk's own is left, not found again.
        let next = if by > 0 {
            values.into_iter().find(|v| *v > now * 1.001)
        } else {
            values.into_iter().rfind(|v| *v < now * 0.999)
        };
        let to = next.ok_or(if by > 0 { "no larger preset" } else { "no smaller preset" })?;
        self.changed.retain(|(f, _)| *f != figure);
        self.changed.push((figure, to));
        Ok(())
    }

    /// Rows the banner takes.
    #[must_use]
    pub fn height(&self) -> u16 {
        u16::from(self.active() || self.selected.is_some())
    }

    /// One line: the figures, the selected one marked, the changed ones with a sign.
    pub fn draw(&self, frame: &mut Frame, area: Rect, shown: &Machine, theme: Theme) {
        if area.height == 0 {
            return;
        }
        let style = theme.tone(Tone::Costly).patch(theme.strong());
        let mut spans = vec![Span::styled(if self.active() { " WHAT IF " } else { " what if " }, style)];
        for (i, figure) in Figure::ALL.into_iter().enumerate() {
            let changed = self.changed.iter().any(|(f, _)| *f == figure);
            let mark = if self.selected == Some(i) { "▸" } else { " " };
            let value = figure.of(shown);
            let text = match figure {
                Figure::Read => rate(value),
                Figure::Vram if shown.gpu.is_none() => "none".into(),
                _ => Bytes(value as u64).to_string(),
            };
            let star = if changed { "*" } else { "" };
            let text = format!("{mark}{} {text}{star} ", figure.name());
            spans.push(Span::styled(text, if changed { style } else { theme.dim() }));
        }
        let left = (area.width as usize).saturating_sub(Line::from(spans.clone()).width());
        let hints = ["w next, + - change, W resets to this machine", "+ - change, W resets", "W resets"];
        if let Some(hint) = hints.into_iter().find(|h| h.len() <= left) {
            spans.push(Span::styled(hint, theme.dim()));
        }
        put(frame, area, Line::from(spans));
    }
}
