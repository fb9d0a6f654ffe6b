//! The least a step could take at the rates it ran at, and what sets it.
//!
//! `max(disk, link, compute)` up, and again down with the head at its turn: three queues that overlap inside a sweep.
//! Rates are the step's own: a queue that is slow today makes the bound longer, and waiting makes it no shorter.

use crate::event::{Phase, VisitTimes};
use crate::stream::StepTimes;

/// Seconds, and the queue's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    pub(super) seconds: f64,
    pub(super) by: &'static str,
}

/// The bound of a step that took `step_s` seconds. `disk_s` are seconds of it that the readers were busy, with what it
/// needed and what they fetched ahead.
pub(super) fn bound(times: &StepTimes, disk_s: f64, step_s: f64) -> Bound {
    let disk_bytes: u64 = times.visits.iter().map(|v| v.disk).sum();
    let up = |v: &&VisitTimes| matches!(v.phase, Phase::Forward | Phase::Eval);
    let queues = |up_wanted: bool| {
        let visits = || times.visits.iter().filter(|v| up(v) == up_wanted);
        let disk: u64 = visits().map(|v| v.disk).sum();
        let share = if disk_bytes == 0 { 0.0 } else { disk as f64 / disk_bytes as f64 };
        [disk_s * share, visits().map(|v| v.copy_s).sum(), visits().map(|v| v.compute_s).sum::<f64>()]
    };
    const NAMES: [&str; 3] = ["disk", "link", "compute"];
    let mut paced = [0.0; 3];
    for q in [queues(true), queues(false)] {
        let slowest = (0..3).fold(2, |best, i| if q[i] > q[best] { i } else { best });
        paced[slowest] += q[slowest];
    }
    let by = (0..3).fold(2, |best, i| if paced[i] > paced[best] { i } else { best });
    // What a queue did ahead of a sweep, or before the step, counts as that sweep's: no step takes less than it took.
    Bound { seconds: paced.iter().sum::<f64>().min(step_s), by: NAMES[by] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(phase: Phase, disk: u64, copy_s: f64, compute_s: f64) -> VisitTimes {
        VisitTimes { phase, disk, copy_s, compute_s, ..VisitTimes::default() }
    }

    #[test]
    fn each_sweep_is_paced_by_its_slowest_queue() {
        let times = StepTimes {
            visits: vec![
                visit(Phase::Forward, 0, 0.2, 0.1),
                visit(Phase::Head, 0, 0.0, 0.05),
                visit(Phase::Backward, 0, 0.2, 0.3),
                visit(Phase::Update, 0, 0.0, 0.01),
            ],
            ..StepTimes::default()
        };
        let b = bound(&times, 0.0, 1.0);
        assert!((b.seconds - 0.56).abs() < 1e-12 && b.by == "compute", "{b:?}");
    }

    #[test]
    fn case_fo_15b_no_step_beats_its_bound() {
        // Blocks that were read while the first sweep computed: the drive's share of the second is not its time in it.
        let visits = vec![visit(Phase::Forward, 100, 0.1, 0.2), visit(Phase::Backward, 900, 0.1, 1.0)];
        let times = StepTimes { visits, ..StepTimes::default() };
        let b = bound(&times, 1.3, 1.2);
        assert_eq!((b.seconds, b.by), (1.2, "disk"));
    }

    #[test]
    fn the_drives_time_is_shared_by_bytes() {
        let times = StepTimes {
            visits: vec![visit(Phase::Forward, 300, 0.1, 0.1), visit(Phase::Backward, 100, 0.1, 2.0)],
            ..StepTimes::default()
        };
        let b = bound(&times, 4.0, 9.0);
        assert_eq!((b.seconds, b.by), (5.0, "disk"));
        assert_eq!(bound(&StepTimes::default(), 0.0, 1.0), Bound { seconds: 0.0, by: "compute" });
    }
}
