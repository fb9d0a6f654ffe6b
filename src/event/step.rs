//! One optimizer step as it is told: its metrics by name, and what it took.

use super::{LOSS, Metrics};
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// One optimizer step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Counts from 1.
    pub step: u64,
    /// Passes over the data, fractional.
    pub epoch: f64,
    /// What the objective and the tuner measured: loss, gradient norm, learning rate and whatever else they name.
    pub metrics: Metrics,
    /// Tokens through the blocks (padding not counted).
    pub tokens: u64,
    /// Tokens that carried loss.
    pub trained_tokens: u64,
    /// The update was skipped: not finite, or no trained token.
    pub skipped: bool,
    /// Wall-clock seconds of the step.
    pub seconds: f64,
    /// Bytes read from disk.
    pub disk_read: Bytes,
    /// Bytes copied host to device.
    pub h2d: Bytes,
    /// Bytes copied device to host.
    pub d2h: Bytes,
    /// Bytes this process wrote outside the run's folder during the step.
    pub model_drive_written: Bytes,
    /// Seconds copies spent moving bytes.
    pub h2d_s: f64,
    /// Seconds the disk readers were busy (summed busy time of the lane, not per thread).
    pub disk_s: f64,
    /// Seconds compute waited for weights.
    pub stall_s: f64,
    /// Seconds the copy lane waited for a slot to be free.
    pub evict_wait_s: f64,
    /// Of `stall_s`, what the drive was waited for.
    #[serde(default)]
    pub stall_disk_s: f64,
    /// Seconds compute was busy: the step without its stalls.
    #[serde(default)]
    pub compute_s: f64,
    /// The least this step could take at the rates it ran at: `max(disk, link, compute)` up, and again down; never more
    /// than `seconds`.
    #[serde(default)]
    pub bound_s: f64,
    /// What sets that bound for the larger part: `disk`, `link` or `compute`.
    #[serde(default)]
    pub bound_by: String,
    /// Most blocks on the device at once during the step, in-flight copies included.
    pub residency_peak: usize,
}

impl StepRecord {
    /// The loss that was minimised, before the update; NaN where it was not finite.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.metrics.get(LOSS).unwrap_or(f64::NAN)
    }

    /// Bound ÷ time taken, of a step that disk or link set the pace of; 1 = reached.
    ///
    /// Compute has none: the time it was busy is the step without its stalls, however slow it was, so that the share
    /// would be near 1 on a machine that does something else as well.
    #[must_use]
    pub fn share_of_bound(&self) -> Option<f64> {
        let share = self.bound_s / self.seconds;
        let known = matches!(self.bound_by.as_str(), "disk" | "link") && self.bound_s > 0.0;
        (known && share.is_finite()).then_some(share)
    }
}
