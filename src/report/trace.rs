//! Where a step's time went, as data: the bound of the measured steps, what they waited for, and the last step's visits.
//!
//! Steps of older recordings say nothing of it: then the bound is the plan's, and the rest is `null`.

use super::stats::{finite, median, sorted};
use super::types::{Bound, StepTimes};
use crate::event::{Phase, StepRecord, StepTrace, VisitTimes};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Medians of the measured steps, seconds; together about one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepParts {
    /// Compute was busy.
    pub compute_s: f64,
    /// Compute waited although the drive had delivered.
    pub stall_link_s: f64,
    /// Compute waited for the drive.
    pub stall_disk_s: f64,
    /// Outside every visit: rows, batches, the host's own work.
    pub other_s: f64,
}

/// One step, visit by visit: the newest whose trace was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceReport {
    /// The step, counts from 1.
    pub step: u64,
    /// Its visits added up by phase, in the order of the phases.
    pub phases: Vec<PhaseTimes>,
    /// Its visits, in order.
    pub visits: Vec<VisitTimes>,
}

/// The visits of a phase, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Part of the step.
    pub phase: Phase,
    /// Visits in it.
    pub visits: usize,
    /// Seconds computing.
    pub compute_s: f64,
    /// Seconds waiting for the link.
    pub wait_link_s: f64,
    /// Seconds waiting for the drive.
    pub wait_disk_s: f64,
    /// Seconds that the copies for these visits moved bytes; most of it before the visit, some in the phase before.
    pub copy_s: f64,
    /// Bytes copied to the device for these visits.
    pub h2d: u64,
    /// Those of them that were read from disk.
    pub disk: u64,
}

/// Whether a step says where its time went.
fn tells(s: &&StepRecord) -> bool {
    s.bound_s.is_finite() && s.bound_s > 0.0 && !s.bound_by.is_empty()
}

/// The steps' own bound; the plan's where no step has one.
pub(super) fn bound(measured: &[StepRecord], range: &Value, times: &StepTimes) -> Bound {
    let told: Vec<&StepRecord> = measured.iter().filter(tells).collect();
    let (source, resource, seconds) = if told.is_empty() {
        ("planned", range["resource"].as_str(), range["low"].as_f64())
    } else {
        let mut counted: BTreeMap<&str, usize> = BTreeMap::new();
        for s in &told {
            *counted.entry(&s.bound_by).or_default() += 1;
        }
        let commonest = counted.into_iter().max_by_key(|(_, n)| *n).map(|(by, _)| by);
        ("measured", commonest, median(&sorted(told.iter().map(|s| s.bound_s))))
    };
    let itself = source == "measured" && resource == Some("compute");
    Bound {
        resource: resource.map(String::from),
        seconds,
        share: times.median.zip(seconds).filter(|_| !itself).and_then(|(m, s)| finite(s / m)),
        source: seconds.map(|_| source.into()),
    }
}

/// What the measured steps consisted of; `None` where none of them says.
pub(super) fn parts(measured: &[StepRecord]) -> Option<StepParts> {
    let told: Vec<&StepRecord> = measured.iter().filter(tells).collect();
    let of = |f: fn(&StepRecord) -> f64| median(&sorted(told.iter().map(|s| f(s).max(0.0))));
    Some(StepParts {
        compute_s: of(|s| s.compute_s)?,
        stall_link_s: of(|s| s.stall_s - s.stall_disk_s)?,
        stall_disk_s: of(|s| s.stall_disk_s)?,
        other_s: of(|s| s.seconds - s.compute_s - s.stall_s)?,
    })
}

/// Sums over `steps`: `(compute, stalled by the link, stalled by the drive)`; `None` where none of them says.
pub(super) fn sums(steps: &[StepRecord]) -> Option<[f64; 3]> {
    let told: Vec<&StepRecord> = steps.iter().filter(tells).collect();
    let of = |f: fn(&StepRecord) -> f64| finite(told.iter().map(|s| clean(f(s))).sum::<f64>()).unwrap_or(0.0);
    let all = [of(|s| s.compute_s), of(|s| s.stall_s - s.stall_disk_s), of(|s| s.stall_disk_s)];
    (!told.is_empty()).then_some(all)
}

/// `trace` with its visits by phase.
pub(super) fn condensed(trace: &StepTrace) -> TraceReport {
    let visits: Vec<VisitTimes> = trace.visits.iter().map(|v| tamed(*v)).collect();
    let order = [Phase::Forward, Phase::Head, Phase::Backward, Phase::Update, Phase::Eval];
    let phases = order.into_iter().filter_map(|phase| {
        let of_phase = visits.iter().filter(|v| v.phase == phase);
        let sum = of_phase.fold(PhaseTimes { phase, ..PhaseTimes::default() }, PhaseTimes::with);
        (sum.visits > 0).then_some(sum)
    });
    TraceReport { step: trace.step, phases: phases.collect(), visits: visits.clone() }
}

impl PhaseTimes {
    fn with(mut self, v: &VisitTimes) -> PhaseTimes {
        self.visits += 1;
        self.compute_s += v.compute_s;
        self.wait_link_s += v.wait_link_s;
        self.wait_disk_s += v.wait_disk_s;
        self.copy_s += v.copy_s;
        self.h2d = self.h2d.saturating_add(v.h2d);
        self.disk = self.disk.saturating_add(v.disk);
        self
    }
}

/// A visit whose figures JSON can hold and sums can take: a recording may say anything.
fn tamed(v: VisitTimes) -> VisitTimes {
    VisitTimes {
        copy_s: clean(v.copy_s),
        wait_link_s: clean(v.wait_link_s),
        wait_disk_s: clean(v.wait_disk_s),
        compute_s: clean(v.compute_s),
        ..v
    }
}

fn clean(s: f64) -> f64 {
    /// A step of a century is damage.
    const MOST: f64 = 3.2e9;
    if s.is_finite() { s.clamp(0.0, MOST) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn step(seconds: f64, bound_s: f64, by: &str) -> StepRecord {
        StepRecord {
            seconds,
            bound_s,
            bound_by: by.into(),
            compute_s: 0.5 * seconds,
            stall_s: 0.4 * seconds,
            stall_disk_s: 0.1 * seconds,
            ..StepRecord::default()
        }
    }

    #[test]
    fn the_bound_is_the_steps_own_and_the_plans_where_they_have_none() {
        let times = StepTimes { median: Some(2.0), ..StepTimes::default() };
        let range = json!({ "low": 1.0, "resource": "disk" });
        let steps = [step(2.0, 1.5, "link"), step(2.0, 1.9, "compute"), step(2.0, 1.6, "link"), StepRecord::default()];
        let b = bound(&steps, &range, &times);
        assert_eq!((b.resource.as_deref(), b.seconds, b.share), (Some("link"), Some(1.6), Some(0.8)));
        assert_eq!(b.source.as_deref(), Some("measured"));
        let b = bound(&steps[3..], &range, &times);
        assert_eq!((b.resource.as_deref(), b.seconds, b.share), (Some("disk"), Some(1.0), Some(0.5)));
        assert_eq!(b.source.as_deref(), Some("planned"));
        assert_eq!(bound(&[], &Value::Null, &times), Bound::default());
        let b = bound(&[step(2.0, 1.9, "compute")], &range, &times);
        assert_eq!((b.resource.as_deref(), b.seconds, b.share), (Some("compute"), Some(1.9), None));
    }

    #[test]
    fn a_steps_parts_add_up_to_it() {
        let p = parts(&[step(1.0, 0.5, "disk"), step(1.0, 0.5, "disk")]).unwrap();
        let all = [p.compute_s, p.stall_link_s, p.stall_disk_s, p.other_s];
        assert!(all.iter().zip([0.5, 0.3, 0.1, 0.1]).all(|(a, b)| (a - b).abs() < 1e-12), "{p:?}");
        assert_eq!((parts(&[StepRecord::default()]), sums(&[StepRecord::default()])), (None, None));
    }

    #[test]
    fn visits_add_up_by_phase_and_nonsense_counts_nothing() {
        let visit = |phase, h2d, compute_s| VisitTimes { phase, h2d, compute_s, ..VisitTimes::default() };
        let visits = vec![
            visit(Phase::Forward, 5, 1.0),
            visit(Phase::Forward, u64::MAX, f64::NAN),
            visit(Phase::Backward, 7, f64::INFINITY),
        ];
        let t = condensed(&StepTrace { step: 3, visits });
        let got: Vec<_> = t.phases.iter().map(|p| (p.phase, p.visits, p.h2d, p.compute_s)).collect();
        assert_eq!(got, [(Phase::Forward, 2, u64::MAX, 1.0), (Phase::Backward, 1, 7, 0.0)]);
    }
}
