//! Order statistics of a measurement.

use crate::report::stats;
use serde_json::{Value, json};

/// Finite values, sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// Of `values`; those that are not finite don't count.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Sample {
        Sample(stats::sorted(values))
    }

    /// How many there are.
    #[must_use]
    pub fn n(&self) -> usize {
        self.0.len()
    }

    /// The middle one, or the mean of the middle two.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        stats::median(&self.0)
    }

    /// The value that `share` (0..1) of them don't exceed, by nearest rank.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<f64> {
        stats::percentile(&self.0, share)
    }

    /// The least.
    #[must_use]
    pub fn min(&self) -> Option<f64> {
        self.0.first().copied()
    }

    /// The most.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        self.0.last().copied()
    }

    /// `median p10 p90 p95 min max n`.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "median": self.median(),
            "p10": self.percentile(0.1),
            "p90": self.percentile(0.9),
            "p95": self.percentile(0.95),
            "min": self.min(),
            "max": self.max(),
            "n": self.n(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_known_samples() {
        let s = Sample::of([4.0, f64::NAN, 1.0, 3.0, 2.0]);
        assert_eq!((s.n(), s.median(), s.percentile(0.1), s.percentile(0.95)), (4, Some(2.5), Some(1.0), Some(4.0)));
        assert_eq!((s.min(), s.max()), (Some(1.0), Some(4.0)));
        let none = Sample::of([]).json();
        assert!(none["median"].is_null() && none["p95"].is_null() && none["n"] == 0);
    }
}
