//! Loss over steps in two views that keep every spike: the last thousand points, and the whole run in buckets.

use std::collections::VecDeque;

const RECENT: usize = 1_000;
const BUCKETS: usize = 500;
/// Beyond this a value is as good as infinite for a plot.
const HUGE: f64 = 1e12;

/// One or more neighbouring points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// First and last x.
    pub x: (f64, f64),
    /// Lowest and highest finite y.
    pub y: (f64, f64),
    /// Mean of the finite y.
    pub mean: f64,
    /// Finite points in it.
    pub finite: u32,
    /// Points that were not finite.
    pub bad: u32,
}

impl Bucket {
    fn point(x: f64, y: f64) -> Bucket {
        if y.is_finite() && y.abs() < HUGE {
            Bucket { x: (x, x), y: (y, y), mean: y, finite: 1, bad: 0 }
        } else {
            Bucket { x: (x, x), y: (f64::INFINITY, f64::NEG_INFINITY), mean: 0.0, finite: 0, bad: 1 }
        }
    }

    fn merge(self, next: Bucket) -> Bucket {
        let finite = self.finite + next.finite;
        let sum = self.mean * f64::from(self.finite) + next.mean * f64::from(next.finite);
        Bucket {
            x: (self.x.0, next.x.1),
            y: (self.y.0.min(next.y.0), self.y.1.max(next.y.1)),
            mean: if finite == 0 { 0.0 } else { sum / f64::from(finite) },
            finite,
            bad: self.bad + next.bad,
        }
    }
}

/// A series of points, bounded in memory however long the run.
#[derive(Clone, Debug, Default)]
pub struct History {
    recent: VecDeque<Bucket>,
    full: Vec<Bucket>,
    /// Points in a full bucket, and in the last one.
    per_bucket: usize,
    in_last: usize,
    min: Option<f64>,
}

impl History {
    /// Adds a point; x must not fall.
    pub fn push(&mut self, x: f64, y: f64) {
        let point = Bucket::point(x, y);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(point);
        if point.finite > 0 && self.min.is_none_or(|m| y < m) {
            self.min = Some(y);
        }
        self.per_bucket = self.per_bucket.max(1);
        match self.full.last_mut() {
            Some(last) if self.in_last < self.per_bucket => {
                *last = last.merge(point);
                self.in_last += 1;
            }
            _ => {
                if self.full.len() == BUCKETS {
                    self.full = self
                        .full
                        .chunks(2)
                        .map(|pair| pair.iter().copied().reduce(Bucket::merge).unwrap_or(point))
                        .collect();
                    self.per_bucket *= 2;
                }
                self.full.push(point);
                self.in_last = 1;
            }
        }
    }

    /// The whole run, or the newest thousand points at full resolution.
    #[must_use]
    pub fn view(&self, whole: bool) -> Vec<Bucket> {
        if whole { self.full.clone() } else { self.recent.iter().copied().collect() }
    }

    /// Lowest finite value so far.
    #[must_use]
    pub fn min(&self) -> Option<f64> {
        self.min
    }
    /// Whether there is nothing to plot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.full.is_empty()
    }
}

/// Merges `buckets` into at most `n`, keeping lowest and highest: a spike of one step stays visible.
#[must_use]
pub fn columns(buckets: &[Bucket], n: usize) -> Vec<Bucket> {
    if n == 0 {
        return Vec::new();
    }
    let per = buckets.len().div_ceil(n).max(1);
    buckets.chunks(per).filter_map(|c| c.iter().copied().reduce(Bucket::merge)).collect()
}

/// Exponential moving average with the bias of its start taken out (Kingma & Ba 2014, §3); weight 0 changes nothing.
#[must_use]
pub fn smooth(values: &[f64], weight: f64) -> Vec<f64> {
    let (mut average, mut norm) = (0.0, 0.0);
    values
        .iter()
        .map(|v| {
            average = weight * average + (1.0 - weight) * v;
            norm = weight * norm + (1.0 - weight);
            average / norm
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_survives_any_number_of_merges() {
        let mut h = History::default();
        for step in 0..100_000 {
            h.push(f64::from(step), if step == 31_337 { 50.0 } else { 1.0 });
        }
        let full = h.view(true);
        assert!(full.len() <= BUCKETS);
        assert_eq!(full.iter().map(|b| b.finite).sum::<u32>(), 100_000);
        for n in [1, 7, 80] {
            let c = columns(&full, n);
            assert!(c.len() <= n && c.iter().any(|b| b.y.1 == 50.0), "{n}");
        }
        assert_eq!(h.view(false).len(), RECENT);
        assert_eq!(h.min(), Some(1.0));
    }

    #[test]
    fn points_that_are_not_finite_are_marked_and_touch_no_figure() {
        let mut h = History::default();
        for y in [1.0, f64::NAN, 3.0, f64::INFINITY, 1e300] {
            h.push(1.0, y);
        }
        let all = columns(&h.view(true), 1)[0];
        assert_eq!((all.y, all.mean, all.finite, all.bad), ((1.0, 3.0), 2.0, 2, 3));
        let mut only_bad = History::default();
        only_bad.push(1.0, f64::NAN);
        assert_eq!(only_bad.min(), None);
    }

    #[test]
    fn smoothing_starts_at_the_first_value() {
        assert_eq!(smooth(&[2.0, 2.0, 2.0], 0.9), [2.0, 2.0, 2.0]);
        assert_eq!(smooth(&[1.0, 5.0], 0.0), [1.0, 5.0]);
        let s = smooth(&[0.0, 10.0], 0.5);
        assert!((s[1] - 20.0 / 3.0).abs() < 1e-12);
    }
}
