//! What sets the pace of the steps: the bound they ran against, and the drive against the rate that was planned.

use crate::event::StepRecord;
use std::collections::VecDeque;

/// Steps that must agree before a drive counts as slow or well again: one long read is no slow drive.
const STEPS: usize = 3;
/// Share of the planned rate below which a drive is slow.
const SLOW: f64 = 0.5;
/// Share of a step that compute must wait for a drive which doesn't set the pace, before its rate matters.
const FELT: f64 = 0.05;

/// How near a step came to the least it could take.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Bound ÷ time taken; 1 = reached; `None` where compute sets the pace.
    pub share: Option<f64>,
    /// `disk`, `link` or `compute`.
    pub by: String,
}

/// The bound of a step; `None` of steps that don't say.
#[must_use]
pub fn bound(s: &StepRecord) -> Option<Bound> {
    let told = s.bound_s > 0.0 && s.bound_s.is_finite() && !s.bound_by.is_empty();
    told.then(|| Bound { share: s.share_of_bound(), by: s.bound_by.clone() })
}

/// The drive's rate while it read, over the newest steps that read from it.
#[derive(Clone, Debug, Default)]
pub struct Drive {
    /// Bytes per second the plan counts on.
    planned: Option<f64>,
    /// Rate, and whether the step felt it.
    newest: VecDeque<(f64, bool)>,
    slow: bool,
}

impl Drive {
    /// A drive whose plan counts on `planned` bytes per second.
    #[must_use]
    pub fn planned(planned: f64) -> Drive {
        Drive { planned: (planned.is_finite() && planned > 0.0).then_some(planned), ..Drive::default() }
    }

    /// Takes a step; says so if the drive has become slow (`true`) or well again (`false`).
    pub(super) fn push(&mut self, s: &StepRecord) -> Option<bool> {
        let rate = s.disk_read.0 as f64 / s.disk_s;
        if s.disk_read.0 == 0 || !rate.is_finite() {
            return None;
        }
        let felt = s.bound_by == "disk" || s.stall_disk_s > FELT * s.seconds;
        self.newest.push_back((rate, felt));
        if self.newest.len() > STEPS {
            self.newest.pop_front();
        }
        let below = |(rate, felt): &(f64, bool)| *felt && self.planned.is_some_and(|p| *rate < SLOW * p);
        let low = self.newest.iter().filter(|n| below(n)).count();
        let was = self.slow;
        self.slow = if was { low > 0 } else { low == STEPS };
        (was != self.slow).then_some(self.slow)
    }

    /// Rate of the newest step and the planned one, bytes per second.
    #[must_use]
    pub fn rates(&self) -> Option<(f64, f64)> {
        self.newest.back().map(|n| n.0).zip(self.planned)
    }

    /// It has delivered less than half of the plan for several steps, and they felt it.
    #[must_use]
    pub fn slow(&self) -> bool {
        self.slow
    }
}

/// `0.6 of 3.0 GB/s`: two rates in the unit of the second.
#[must_use]
pub fn of(now: f64, planned: f64) -> String {
    let (unit, name) = if planned >= 1e9 { (1e9, "GB/s") } else { (1e6, "MB/s") };
    let figure = |x: f64| match x / unit {
        x if x < 0.1 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    };
    format!("{} of {} {name}", figure(now), figure(planned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    fn step(gb: f64, by: &str) -> StepRecord {
        StepRecord {
            seconds: 1.0,
            disk_read: Bytes((gb * 1e9) as u64),
            disk_s: 1.0,
            bound_s: 0.9,
            bound_by: by.into(),
            ..StepRecord::default()
        }
    }

    #[test]
    fn a_drive_is_slow_after_several_steps_and_only_where_it_is_felt() {
        let mut drive = Drive::planned(3e9);
        let said: Vec<_> = [2.9, 0.6, 2.8, 0.6, 0.6, 0.6, 0.6].map(|gb| drive.push(&step(gb, "disk"))).into();
        assert_eq!(said, [None, None, None, None, None, Some(true), None]);
        assert!(drive.slow());
        let said: Vec<_> = [2.9, 2.9, 2.9].map(|gb| drive.push(&step(gb, "disk"))).into();
        assert_eq!(said, [None, None, Some(false)]);
        let mut idle = Drive::planned(3e9);
        assert!((0..9).all(|_| idle.push(&step(0.3, "link")).is_none()), "nothing waits for it");
        let mut unknown = Drive::default();
        assert!((0..9).all(|_| unknown.push(&step(0.3, "disk")).is_none()) && unknown.rates().is_none());
        assert_eq!(drive.push(&StepRecord::default()), None, "a step that reads nothing says nothing");
    }

    #[test]
    fn a_bound_needs_its_figures() {
        assert_eq!(bound(&step(1.0, "link")), Some(Bound { share: Some(0.9), by: "link".into() }));
        assert_eq!(bound(&StepRecord { seconds: 1.0, ..StepRecord::default() }), None);
        assert_eq!(of(0.6e9, 3e9), "0.6 of 3.0 GB/s");
        assert_eq!(of(20e6, 180e6), "20.0 of 180 MB/s");
    }

    #[test]
    fn case_fo_15a_compute_has_no_share_of_itself() {
        // The same work in 219 ms and, on a busy machine, in 1.70 s: both steps computed all the time.
        for seconds in [0.219, 1.70] {
            let s = StepRecord { seconds, bound_s: 0.95 * seconds, compute_s: 0.95 * seconds, ..step(0.0, "compute") };
            assert_eq!(bound(&s), Some(Bound { share: None, by: "compute".into() }));
        }
    }
}
