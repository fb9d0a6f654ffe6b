//! How long the rows of a run's data really are: what its seconds follow from, while memory is planned for
//! `data.max_length`.

use serde::{Deserialize, Serialize};

/// Lengths of training rows, in tokens after cutting to `data.max_length`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// Rows.
    pub rows: usize,
    /// The longest.
    pub max: usize,
    /// 99 of 100 rows are no longer.
    pub p99: usize,
    /// Mean.
    pub mean: f64,
    /// All, the shortest first.
    #[serde(skip)]
    sorted: Vec<usize>,
}

impl Lengths {
    /// Of rows of `all` tokens each; `None` of no rows.
    #[must_use]
    pub fn of(mut all: Vec<usize>) -> Option<Lengths> {
        all.sort_unstable();
        let (rows, max) = (all.len(), *all.last()?);
        let p99 = all[(rows * 99).div_ceil(100).max(1) - 1];
        let mean = all.iter().sum::<usize>() as f64 / rows as f64;
        Some(Lengths { rows, max, p99, mean, sorted: all })
    }

    /// Tokens a row takes in a micro-batch of `rows` that are drawn at random and padded to their longest, on average.
    #[must_use]
    pub fn padded(&self, rows: u64) -> u64 {
        let n = self.sorted.len() as f64;
        let below = |i: usize| (i as f64 / n).powf(rows.max(1) as f64);
        // Each length by the chance that it is the longest of those drawn.
        let longest = |(i, len): (usize, &usize)| *len as f64 * (below(i + 1) - below(i));
        (self.sorted.iter().enumerate().map(longest).sum::<f64>().round() as u64).max(1)
    }

    /// In words, for a plan's notes; `most` is `data.max_length`.
    #[must_use]
    pub fn words(&self, most: u64) -> String {
        let mut text = format!(
            "your data: {}, {:.0} tokens on average, 99 % up to {}, the longest {}; seconds are forecast for these, \
             memory for data.max_length = {most}",
            crate::units::plural(self.rows as u64, "row"),
            self.mean,
            self.p99,
            self.max
        );
        if (self.max as u64) < most {
            text.push_str(&format!(" (no row needs more than {})", self.max));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_a_micro_batch_is_expected_from_all_lengths() {
        let l = Lengths::of((1..=100).collect()).unwrap();
        assert_eq!((l.rows, l.max, l.p99, l.mean), (100, 100, 99, 50.5));
        assert_eq!(l.padded(1), 51, "the mean");
        // The expected maximum of four uniform draws lies at four fifths.
        assert!((80..=81).contains(&l.padded(4)), "{}", l.padded(4));
        assert_eq!(l.padded(100_000), 100);
        assert_eq!(Lengths::of(vec![7]).unwrap().padded(3), 7);
        assert_eq!(Lengths::of(vec![]), None);
    }
}
