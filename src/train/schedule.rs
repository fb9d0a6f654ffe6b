//! Learning-rate schedules: pure functions of the step, as `transformers.optimization` defines them.

use crate::config::{Scheduler, TrainSection};

/// A learning-rate schedule over a run of known length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    kind: Scheduler,
    peak: f64,
    warmup: u64,
    total: u64,
}

impl Schedule {
    /// The schedule of `train` over `total` steps. A `warmup_steps` below 1 is a share of all steps. The last step is
    /// never one of warming up: a run of one step would train at rate 0.
    #[must_use]
    pub fn new(train: &TrainSection, total: u64) -> Schedule {
        let warmup = if train.warmup_steps < 1.0 {
            (train.warmup_steps * total as f64).ceil() as u64
        } else {
            train.warmup_steps as u64
        };
        let warmup = warmup.min(total.saturating_sub(1));
        Schedule { kind: train.lr_scheduler_type, peak: train.learning_rate, warmup, total }
    }

    /// The rate of step `step`, counted from 0.
    #[must_use]
    pub fn rate(&self, step: u64) -> f64 {
        let (step, warmup, total) = (step as f64, self.warmup as f64, self.total as f64);
        let warming = step < warmup;
        let left = (total - warmup).max(1.0);
        let factor = match self.kind {
            Scheduler::Constant => 1.0,
            _ if warming => step / warmup.max(1.0),
            Scheduler::ConstantWithWarmup => 1.0,
            Scheduler::Linear => ((total - step) / left).max(0.0),
            Scheduler::Cosine => (0.5 * (1.0 + (std::f64::consts::PI * (step - warmup) / left).cos())).max(0.0),
        };
        self.peak * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: Scheduler, warmup: f64, total: u64) -> Schedule {
        let train = TrainSection {
            lr_scheduler_type: kind,
            warmup_steps: warmup,
            learning_rate: 1.0,
            ..TrainSection::default()
        };
        Schedule::new(&train, total)
    }

    #[test]
    fn rates_are_those_of_transformers() {
        let s = schedule(Scheduler::Linear, 2.0, 10);
        let got: Vec<f64> = (0..10).map(|i| s.rate(i)).collect();
        assert_eq!(got, [0.0, 0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]);
        let s = schedule(Scheduler::Cosine, 0.0, 4);
        for (i, want) in [1.0, 0.853_553_390_593, 0.5, 0.146_446_609_407].into_iter().enumerate() {
            assert!((s.rate(i as u64) - want).abs() < 1e-9);
        }
        assert_eq!(schedule(Scheduler::Constant, 5.0, 10).rate(0), 1.0);
        assert_eq!(schedule(Scheduler::ConstantWithWarmup, 2.0, 10).rate(1), 0.5);
    }

    #[test]
    fn a_warmup_below_one_is_a_share() {
        assert_eq!(schedule(Scheduler::Linear, 0.1, 20).warmup, 2);
    }

    #[test]
    fn case_fo_10_some_step_of_every_run_trains() {
        assert_eq!(schedule(Scheduler::Linear, 0.03, 1).rate(0), 1.0);
        for kind in [Scheduler::Linear, Scheduler::Cosine, Scheduler::Constant, Scheduler::ConstantWithWarmup] {
            for (warmup, total) in [0.0, 0.03, 0.999, 1.0, 7.0, 1e6].into_iter().flat_map(|w| [1, 2, 7].map(|t| (w, t)))
            {
                let s = schedule(kind, warmup, total);
                assert!((0..total).any(|i| s.rate(i) > 0.0), "{kind}, warm-up {warmup} of {total} steps");
            }
        }
    }

    #[test]
    fn case_tr_01_the_rate_depends_on_the_step_alone() {
        let s = schedule(Scheduler::Cosine, 2.0, 20);
        let straight: Vec<f64> = (0..20).map(|i| s.rate(i)).collect();
        let resumed: Vec<f64> = (9..20).map(|i| schedule(Scheduler::Cosine, 2.0, 20).rate(i)).collect();
        assert_eq!(straight[9..], resumed[..]);
        assert!(straight[19] > 0.0);
    }
}
