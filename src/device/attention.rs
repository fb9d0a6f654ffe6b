//! Which kernel attention goes through: one rule, asked by the engine for each row and by the planner for its seconds.

use std::collections::{BTreeMap, BTreeSet};

/// Tokens of a row from which cuDNN's attention is the faster one.
pub const LONG_ROW: usize = 1024;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttentionKernel {
    /// cuDNN's.
    Cudnn,
    /// Flash attention.
    Flash,
    /// libtorch's own choice.
    Sdpa,
    /// Ours, which caps scores: products of a tile of queries at a time.
    Tiled,
}

/// Scores that a tile of queries holds, of all heads and rows together.
const TILE_SCORES: usize = 1 << 25;

/// Queries of a tile of [`AttentionKernel::Tiled`] over `keys` keys, for `heads` heads of `rows` rows.
#[must_use]
pub fn tile_queries(rows: usize, heads: usize, keys: usize) -> usize {
    (TILE_SCORES / rows.saturating_mul(heads).saturating_mul(keys).max(1)).max(1)
}

/// What decides it besides the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Compute capability of the card; `None` on a CPU, or where nobody asked the card.
    pub capability: Option<(i32, i32)>,
    /// Numbers have 16 bits.
    pub half: bool,
    /// Width of a head.
    pub head_dim: usize,
    /// Deterministic kernels only.
    pub deterministic: bool,
    /// Scores are capped, which no kernel of others does.
    pub capped: bool,
}

impl Attention {
    /// Whether flash attention takes such heads here.
    #[must_use]
    pub fn flash(&self) -> bool {
        // Its backward for widths 193–224 needs more shared memory than consumer cards have.
        let d = self.head_dim;
        let fits = d.is_multiple_of(8) && d <= 256 && !(193..=224).contains(&d);
        fits && self.half && self.capability.is_some_and(|c| c >= (8, 0))
    }

    /// The kernel for rows of `length` whose queries see `window` tokens, all without one.
    ///
    /// cuDNN's is taken as libtorch does it, on data-centre cards of Hopper and Blackwell only, and for rows that no
    /// window cuts; and never in deterministic mode, since its backward adds up in another order each time (H200, 4 rows
    /// of 2048 tokens: dQ differed in 39 of 40 repeats).
    #[must_use]
    pub fn kernel(&self, length: usize, window: Option<usize>) -> AttentionKernel {
        let card = self.capability.is_some_and(|c| matches!(c.0, 9 | 10));
        let cudnn = card && !self.deterministic && self.head_dim <= 128;
        match self.flash() {
            _ if self.capped => AttentionKernel::Tiled,
            true if cudnn && length >= LONG_ROW && cut(length, window).is_none() => AttentionKernel::Cudnn,
            true => AttentionKernel::Flash,
            false => AttentionKernel::Sdpa,
        }
    }

    /// The kernels of a run in words, for rows of each of `lengths` in blocks of each of `windows`: `cudnn + flash,
    /// causal; flash, sliding window`.
    #[must_use]
    pub fn words(&self, lengths: &BTreeSet<usize>, windows: &[Option<usize>]) -> String {
        let windows: BTreeSet<Option<usize>> = windows.iter().copied().collect();
        let mut all: BTreeMap<bool, BTreeSet<AttentionKernel>> = BTreeMap::new();
        for (&length, &window) in lengths.iter().flat_map(|l| windows.iter().map(move |w| (l, w))) {
            all.entry(cut(length, window).is_some()).or_default().insert(self.kernel(length, window));
        }
        let word = |kernel: &AttentionKernel| match kernel {
            AttentionKernel::Cudnn => "cudnn",
            AttentionKernel::Flash => "flash",
            AttentionKernel::Tiled => "tiled",
            AttentionKernel::Sdpa if self.capability.is_some() => "sdpa",
            AttentionKernel::Sdpa => "sdpa, cpu",
        };
        let of = |(windowed, kernels): (bool, BTreeSet<AttentionKernel>)| {
            let mask = match (windowed, kernels.contains(&AttentionKernel::Sdpa)) {
                (false, _) => "causal",
                (true, false) => "sliding window",
                (true, true) => "masked window",
            };
            format!("{}, {mask}", kernels.iter().map(word).collect::<Vec<_>>().join(" + "))
        };
        all.into_iter().map(of).collect::<Vec<_>>().join("; ")
    }
}

/// `window` where it hides a token from another in rows of `length`.
#[must_use]
pub fn cut(length: usize, window: Option<usize>) -> Option<usize> {
    window.filter(|&w| w < length)
}

#[cfg(test)]
mod tests {
    use super::AttentionKernel::{Cudnn, Flash, Sdpa, Tiled};
    use super::*;

    const HOPPER: Attention =
        Attention { capability: Some((9, 0)), half: true, head_dim: 128, deterministic: false, capped: false };

    #[test]
    fn case_fo_17a_a_window_counts_where_it_cuts_a_row() {
        let window = Some(4096);
        assert_eq!([1023, 1024, 4096, 4097].map(|l| HOPPER.kernel(l, window)), [Flash, Cudnn, Cudnn, Flash]);
        assert_eq!([1023, 1024, 4097].map(|l| HOPPER.kernel(l, None)), [Flash, Cudnn, Cudnn]);
        for other in [
            Attention { capability: Some((8, 9)), ..HOPPER },
            Attention { head_dim: 256, ..HOPPER },
            Attention { deterministic: true, ..HOPPER },
        ] {
            assert_eq!([1024, 8192].map(|l| other.kernel(l, None)), [Flash, Flash], "{other:?}");
        }
        for other in [
            Attention { capability: Some((7, 5)), ..HOPPER },
            Attention { capability: None, ..HOPPER },
            Attention { half: false, ..HOPPER },
            Attention { head_dim: 20, ..HOPPER },
        ] {
            assert_eq!([1024, 8192].map(|l| other.kernel(l, None)), [Sdpa, Sdpa], "{other:?}");
            assert_eq!(Attention { capped: true, ..other }.kernel(8192, window), Tiled);
        }
        assert_eq!(Attention { capped: true, ..HOPPER }.kernel(8192, None), Tiled);
    }

    #[test]
    fn a_tile_holds_as_many_queries_as_its_scores_have_room() {
        assert_eq!(tile_queries(1, 16, 4096), 512);
        assert_eq!([tile_queries(4, 16, 8192), tile_queries(64, 64, 1 << 20)], [64, 1]);
        assert_eq!(tile_queries(0, 1, 0), 1 << 25);
    }

    #[test]
    fn case_fo_17b_the_words_name_what_runs_for_the_rows_at_hand() {
        let says = |of: Attention, lengths: &[usize], windows: &[Option<usize>]| {
            of.words(&lengths.iter().copied().collect(), windows)
        };
        let window = [Some(4096); 2];
        assert_eq!(says(HOPPER, &[2048, 4096], &window), "cudnn, causal");
        assert_eq!(says(HOPPER, &[300, 2048], &window), "cudnn + flash, causal");
        assert_eq!(says(HOPPER, &[8192], &window), "flash, sliding window");
        assert_eq!(says(HOPPER, &[2048, 8192], &window), "cudnn, causal; flash, sliding window");
        assert_eq!(says(HOPPER, &[8192], &[None, Some(4096)]), "cudnn, causal; flash, sliding window");
        assert_eq!(says(Attention { deterministic: true, ..HOPPER }, &[2048], &window), "flash, causal");
        let capped = Attention { capped: true, ..HOPPER };
        assert_eq!(says(capped, &[2048, 8192], &[None, Some(4096)]), "tiled, causal; tiled, sliding window");
        let cpu = Attention { capability: None, half: false, ..HOPPER };
        assert_eq!(says(cpu, &[30], &[Some(64)]), "sdpa, cpu, causal");
        assert_eq!(says(cpu, &[300], &[Some(64)]), "sdpa, cpu, masked window");
        assert_eq!(says(Attention { half: false, ..HOPPER }, &[30], &[None]), "sdpa, causal");
    }
}
