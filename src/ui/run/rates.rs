//! Bytes per second over time, from counters that only grow and arrive when they arrive.

use crate::units::Bytes;
use std::collections::VecDeque;

/// Seconds in a bin.
pub const BIN: f64 = 0.5;
const BINS: usize = 600;

/// A counter's rate in bins of half a second.
#[derive(Clone, Debug, Default)]
pub struct Rate {
    bins: VecDeque<f64>,
    /// Index of the newest bin, counted from run second 0.
    newest: i64,
    last: Option<(f64, Bytes)>,
    peak: f64,
}

impl Rate {
    /// Takes the counter's value at run second `at`; what grew since the last one is spread evenly between.
    pub fn push(&mut self, at: f64, total: Bytes) {
        let Some((before, old)) = self.last.replace((at, total)) else {
            self.newest = bin(at);
            self.bins.push_back(0.0);
            return;
        };
        if !at.is_finite() || at <= before {
            // The same instant: keep the growth for the next interval.
            self.last = Some((before, old));
            return;
        }
        let per_second = total.saturating_sub(old).0 as f64 / (at - before);
        self.advance(bin(at));
        let oldest = self.newest - (self.bins.len() as i64 - 1);
        for b in bin(before).max(oldest)..=self.newest {
            let covered = (at.min((b + 1) as f64 * BIN) - before.max(b as f64 * BIN)).max(0.0);
            let slot = &mut self.bins[(b - oldest) as usize];
            *slot += per_second * covered / BIN;
            if b < self.newest {
                self.peak = self.peak.max(*slot);
            }
        }
    }

    fn advance(&mut self, to: i64) {
        while self.newest < to {
            self.newest += 1;
            if self.bins.len() == BINS {
                self.bins.pop_front();
            }
            self.bins.push_back(0.0);
            if to - self.newest > BINS as i64 {
                // A long silence: nothing of what was kept stays in view.
                self.bins.clear();
                self.bins.push_back(0.0);
                self.newest = to;
            }
        }
    }

    /// The newest `n` complete bins in bytes per second, oldest first.
    #[must_use]
    pub fn newest(&self, n: usize) -> Vec<f64> {
        let complete = self.bins.len().saturating_sub(1);
        self.bins.iter().take(complete).skip(complete.saturating_sub(n)).copied().collect()
    }
    /// The rate now: mean of the last two complete bins.
    #[must_use]
    pub fn now(&self) -> f64 {
        let last = self.newest(2);
        if last.is_empty() { 0.0 } else { last.iter().sum::<f64>() / last.len() as f64 }
    }
    /// The highest complete bin so far.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.peak
    }
}

fn bin(at: f64) -> i64 {
    (at / BIN).floor() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_counter_gives_a_steady_rate_however_it_arrives() {
        let mut r = Rate::default();
        for ms in [0, 130, 700, 710, 1900, 3100, 4000] {
            r.push(f64::from(ms) / 1e3, Bytes(ms as u64 * 1_000_000));
        }
        for rate in r.newest(7) {
            assert!((rate - 1e9).abs() < 1.0, "{rate}");
        }
        assert!((r.now() - 1e9).abs() < 1.0 && (r.peak() - 1e9).abs() < 1.0);
    }

    #[test]
    fn odd_clocks_and_long_silences_do_no_harm() {
        let mut r = Rate::default();
        r.push(5.0, Bytes(10));
        r.push(5.0, Bytes(20));
        r.push(4.0, Bytes(30));
        r.push(f64::NAN, Bytes(40));
        r.push(1e6, Bytes(50));
        r.push(1e6 + 1.0, Bytes(1_000_050));
        assert!(r.newest(1_000).len() <= BINS);
        assert!(r.now() > 0.0);
    }
}
