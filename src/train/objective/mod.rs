//! What a run minimises: an objective turns the losses of tokens into the loss of a step, into weights of the gradient that
//! goes down from the head, and into metrics.
//!
//! The head makes the negative log-likelihood of each labelled token and the gradient of their sum, in one pass. For every
//! objective here the gradient is that of a weighted sum: `factor · Σ weight[n] · nll[n]`. Weights of tokens are put on at
//! the head and should be near 1. The factor that all tokens share is put on the adapter's f32 gradient after the last
//! block: f16 can't hold a gradient divided by thousands of tokens on its way down.

mod sft;

pub use sft::Sft;

use crate::data::collate::Batch;
use crate::error::{Error, Result};
use crate::event::Metrics;
use tch::{Device, Kind, Tensor};

/// What a run minimises. One file each, and a row in [`OBJECTIVES`].
pub trait Objective: std::fmt::Debug + Send {
    /// What the loss of a step is a mean over, counted in `batch`: trained tokens, pairs, rows.
    fn units(&self, batch: &Batch) -> u64;

    /// The factor that the gradients of all tokens of a step share, for a step of so many `units`.
    fn factor(&self, units: u64) -> f64 {
        mean(units)
    }

    /// What the tokens of one micro-batch are worth. Nothing may be waited for: the device is behind.
    ///
    /// # Errors
    /// The device is out of memory.
    fn score(&self, tokens: &Scored<'_>) -> Result<Score>;
}

/// The factor of a mean over so many `units`; 1 over none.
#[must_use]
pub fn mean(units: u64) -> f64 {
    1.0 / units.max(1) as f64
}

/// Makes an objective.
pub type Make = fn() -> Box<dyn Objective>;

/// Every objective, by the name that TRL's trainers have for it.
pub const OBJECTIVES: [(&str, Make); 1] = [("sft", || Box::new(Sft))];

/// The objective that is called `name`.
///
/// # Errors
/// There is none of that name.
pub fn named(name: &str) -> Result<Box<dyn Objective>> {
    let found = OBJECTIVES.iter().find(|(n, _)| *n == name);
    found.map(|(_, make)| make()).ok_or_else(|| {
        let names: Vec<&str> = OBJECTIVES.iter().map(|(n, _)| *n).collect();
        Error::usage(format!("there is no objective '{name}'")).next(format!("use one of: {}", names.join(", ")))
    })
}

/// The labelled tokens of one micro-batch, as the head scored them.
#[derive(Debug)]
pub struct Scored<'a> {
    /// The micro-batch. Its labelled places, row by row, are the tokens.
    pub batch: &'a Batch,
    /// Negative log-likelihood of each label, `[N]` f32 on the device.
    pub nll: &'a Tensor,
}

/// What the tokens of one micro-batch are worth.
#[derive(Debug)]
pub struct Score {
    /// What this micro-batch adds to each metric of the step, f64 scalars on the device. The metric is the sum over all
    /// micro-batches by the step's units; the loss is called [`crate::event::LOSS`].
    pub sums: Vec<(&'static str, Tensor)>,
    /// Weight of each token's gradient, `[N]` f32 on the device; `None`: all are 1.
    pub weights: Option<Tensor>,
}

/// Sums of a step's metrics, by name in the order in which they came first; f64 on the device.
#[derive(Debug, Default)]
pub struct Sums(Vec<(&'static str, Tensor)>);

impl Sums {
    /// Adds what the next micro-batch gives. Micro-batches come in order, so that the sums don't depend on anything else.
    pub fn add(&mut self, more: Vec<(&'static str, Tensor)>) {
        for (name, x) in more {
            match self.0.iter_mut().find(|(n, _)| *n == name) {
                Some((_, sum)) => *sum += x,
                None => self.0.push((name, x)),
            }
        }
    }

    /// The sums times `factor`, on the host, after one wait for the device.
    ///
    /// # Errors
    /// Earlier work on the device failed.
    pub fn read(&self, factor: f64) -> Result<Metrics> {
        if self.0.is_empty() {
            return Ok(Metrics::default());
        }
        let all: Vec<&Tensor> = self.0.iter().map(|(_, x)| x).collect();
        let all = Tensor::f_stack(&all, 0)?.f_to_device(Device::Cpu)?;
        let all = Vec::<f64>::try_from(all.to_kind(Kind::Double))?;
        Ok(self.0.iter().zip(all).map(|((name, _), x)| (*name, x * factor)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::LOSS;

    #[test]
    fn sums_add_in_order_and_are_read_by_name() {
        let _ = crate::device::shim::init();
        let mut sums = Sums::default();
        assert_eq!(sums.read(0.5).unwrap(), Metrics::default());
        sums.add(vec![(LOSS, Tensor::from(3.0_f64))]);
        sums.add(vec![(LOSS, Tensor::from(1.0_f64)), ("rewards/margins", Tensor::from(2.0_f64))]);
        assert_eq!(sums.read(0.25).unwrap(), Metrics::from([(LOSS, 1.0), ("rewards/margins", 0.5)]));
    }

    #[test]
    fn names_stand_once_and_an_unknown_one_is_refused_with_those_there_are() {
        let names: std::collections::BTreeSet<&str> = OBJECTIVES.iter().map(|(n, _)| *n).collect();
        assert_eq!(names.len(), OBJECTIVES.len());
        assert!(names.iter().all(|n| named(n).is_ok()));
        let e = named("dpp").unwrap_err();
        assert!(e.to_string().contains("'dpp'") && e.advice().is_some_and(|a| a.contains("sft")), "{e}");
    }
}
