//! The block map: one cell per block, its letter the tier (V, R, D), its form the state.
//!
//! Lower case is away, upper case resident, reversed active, `·` being read from disk, `›` being copied: so it reads
//! without colour too.

use super::super::theme::{Theme, Tone};
use crate::event::{BlockState, TierName};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// Blocks with their tiers and, while a run is on, their states.
#[derive(Clone, Copy, Debug)]
pub struct BlockMap<'a> {
    /// Tier of each block.
    pub tiers: &'a [TierName],
    /// State of each block; empty means nothing is known (a plan), shown as where it lives.
    pub states: &'a [BlockState],
    /// Colours.
    pub theme: Theme,
}

/// Blocks that stand together.
const GROUP: usize = 8;

impl BlockMap<'_> {
    /// The map in at most `height` lines of `width` columns. If it can't be whole, the lines around the active block.
    #[must_use]
    pub fn lines(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let n = self.tiers.len();
        if n == 0 || height == 0 {
            return Vec::new();
        }
        let gutter = (n - 1).to_string().len() + 1;
        let room = width.saturating_sub(gutter);
        // Airy cells where they fit the height, else dense ones in groups, else dense ones to the edge.
        let airy = room / 2 / GROUP * GROUP;
        let dense = (room + 1) / (GROUP + 1) * GROUP;
        let (per_row, airy) = if airy > 0 && n.div_ceil(airy) <= height {
            (airy, true)
        } else if dense > 0 {
            (dense, false)
        } else {
            (room.max(1), false)
        };
        let rows: Vec<usize> = (0..n).step_by(per_row).collect();
        let active = self.states.iter().position(|s| *s == BlockState::Active).unwrap_or(0) / per_row;
        let first = super::super::list::window(active, rows.len(), height);
        rows.into_iter()
            .skip(first)
            .take(height)
            .map(|start| {
                let mut spans = vec![Span::styled(format!("{start:>w$} ", w = gutter - 1), self.theme.dim())];
                for block in start..(start + per_row).min(n) {
                    if block > start && (airy || (block - start).is_multiple_of(GROUP)) {
                        spans.push(Span::raw(" "));
                    }
                    spans.push(self.cell(block));
                }
                Line::from(spans)
            })
            .collect()
    }

    fn cell(&self, block: usize) -> Span<'static> {
        let tier = self.tiers[block];
        let (upper, lower) = (tier.letter(), tier.letter().to_ascii_lowercase());
        let style = tier_style(tier, self.theme);
        match self.states.get(block) {
            None => Span::styled(upper.to_string(), style),
            Some(BlockState::Away) => Span::styled(lower.to_string(), style),
            Some(BlockState::Reading) => Span::styled("·", self.theme.tone(Tone::Notice).add_modifier(Modifier::BOLD)),
            Some(BlockState::Copying) => Span::styled("›", self.theme.tone(Tone::Accent).add_modifier(Modifier::BOLD)),
            Some(BlockState::Resident) => Span::styled(upper.to_string(), style.add_modifier(Modifier::BOLD)),
            Some(BlockState::Active) => {
                Span::styled(upper.to_string(), style.add_modifier(Modifier::REVERSED | Modifier::BOLD))
            }
        }
    }

    /// What the signs mean, in one line; shorter where `width` is small.
    #[must_use]
    pub fn legend(&self, width: usize) -> Line<'static> {
        let dim = self.theme.dim();
        let long = ["UPPER", " loaded  ", "lower", " not  ", "·", " reading  ", "›", " copying  "];
        let mid = ["A", " loaded  ", "a", " not  ", "·", " reading  ", "›", " copying  "];
        let short = ["UPPER", " loaded ", "lower", " not ", "·", " read ", "›", " copy"];
        let least = ["A", " loaded ", "a", " not ", "·", " read ", "›", " copy"];
        for (states, active) in [(long, "inverse"), (mid, "A"), (short, ""), (least, "")] {
            let mut spans: Vec<Span> = Vec::new();
            for pair in states.chunks(2) {
                spans.push(Span::raw(pair[0]));
                spans.push(Span::styled(pair[1], dim));
            }
            if !active.is_empty() {
                spans.push(Span::styled(active, self.theme.selected()));
                spans.push(Span::styled(" computing", dim));
            }
            let line = Line::from(spans);
            if line.width() <= width {
                return line;
            }
        }
        Line::styled("A loaded  a not", dim)
    }
}

/// Colour of a tier.
#[must_use]
pub fn tier_style(tier: TierName, theme: Theme) -> Style {
    theme.tone(match tier {
        TierName::Vram => Tone::Good,
        TierName::Ram => Tone::Ram,
        TierName::Disk => Tone::Notice,
    })
}

/// How many layers each tier holds: `V 10  R 10  D 10`, and where it is `wide` `V 10 VRAM  R 10 RAM  D 10 disk`.
#[must_use]
pub fn counts(tiers: &[TierName], wide: bool, cpu: bool, theme: Theme) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    // Without a card the first tier is layers that stay ready to compute with.
    let fast = if cpu { "ready" } else { "VRAM" };
    for (tier, name) in [(TierName::Vram, fast), (TierName::Ram, "RAM"), (TierName::Disk, "disk")] {
        let n = tiers.iter().filter(|t| **t == tier).count();
        spans.push(Span::styled(tier.letter().to_string(), tier_style(tier, theme)));
        let name = if wide { format!(" {name}") } else { String::new() };
        spans.push(Span::raw(format!(" {n}{name}  ")));
    }
    if let Some(last) = spans.last_mut() {
        *last = Span::raw(last.content.trim_end().to_owned());
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|l| l.spans.iter().map(|s| s.content.as_ref()).collect()).collect()
    }

    #[test]
    fn case_ui_13_every_state_reads_without_colour() {
        use BlockState as S;
        let states = [S::Away, S::Reading, S::Copying, S::Resident, S::Active];
        let map = BlockMap { tiers: &[TierName::Disk; 5], states: &states, theme: Theme::plain() };
        let lines = map.lines(40, 3);
        assert_eq!(text(&lines), ["0 d · › D D"]);
        let active = lines[0].spans.iter().filter(|s| s.style.add_modifier.contains(Modifier::REVERSED)).count();
        assert_eq!(active, 1, "active is reversed, resident is not");
    }

    #[test]
    fn a_map_that_is_too_small_shows_the_lines_around_the_active_block() {
        let mut states = vec![BlockState::Away; 96];
        states[90] = BlockState::Active;
        let map = BlockMap { tiers: &[TierName::Ram; 96], states: &states, theme: Theme::plain() };
        let lines = text(&map.lines(12, 2));
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().any(|l| l.contains('R')), "{lines:?}");
        for width in 0..60 {
            for height in 0..5 {
                assert!(map.lines(width, height).len() <= height);
            }
        }
    }
}
