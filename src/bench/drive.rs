//! The drive's rate around a run: what its own reads can be measured by, on a drive whose rate changes by the hour.

use super::peers::{Call, Known};
use super::table::Row;
use crate::units::rate;
use serde_json::{Value, json};
use std::path::Path;

/// Largest difference of the drive's rate before and after a run that still counts as the same drive.
const STEADY: f64 = 0.10;
/// Runs of a program on a drive that changes.
const ATTEMPTS: usize = 2;

/// The drive's rate around one run, bytes per second.
#[derive(Clone, Debug)]
pub struct Drive {
    before: Known<f64>,
    after: Known<f64>,
    attempts: usize,
}

impl Drive {
    /// Mean of both reads.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        let (before, after) = (self.before.as_ref().ok()?, self.after.as_ref().ok()?);
        Some(f64::midpoint(*before, *after))
    }

    fn difference(&self) -> Option<f64> {
        let (before, after) = (self.before.as_ref().ok()?, self.after.as_ref().ok()?);
        Some((before - after).abs() / before.max(*after))
    }

    /// `before after mean difference steady attempts why_not`.
    #[must_use]
    pub fn json(&self) -> Value {
        let why = self.before.as_ref().err().or(self.after.as_ref().err());
        json!({
            "before": self.before.as_ref().ok(),
            "after": self.after.as_ref().ok(),
            "mean": self.mean(),
            "difference": self.difference(),
            "steady": self.difference().map(|d| d <= STEADY),
            "attempts": self.attempts,
            "why_not": why,
        })
    }
}

/// Runs `program` between two reads of the drive where the row is one of the disk's, again if its rate changed.
pub fn on_drive<T>(
    call: &mut Call<'_>,
    row: &Row,
    checkpoint: &Path,
    program: &mut dyn FnMut(&mut Call<'_>) -> Known<T>,
) -> (Known<T>, Option<Drive>) {
    if row.tier != "disk" {
        return (program(call), None);
    }
    let mut best: Option<(Known<T>, Drive)> = None;
    for attempt in 1..=ATTEMPTS {
        let before = call.drive(checkpoint);
        let ran = program(call);
        let after = call.drive(checkpoint);
        let drive = Drive { before, after, attempts: attempt };
        let difference = drive.difference();
        let say = |d: &Known<f64>| d.as_ref().map_or_else(Clone::clone, |r| rate(*r));
        call.say(row, &format!("drive before {}, after {}", say(&drive.before), say(&drive.after)));
        let steady = difference.is_none_or(|d| d <= STEADY);
        let nearer = best.as_ref().is_none_or(|(was, d)| was.is_err() || difference < d.difference());
        if ran.is_ok() && nearer || best.is_none() {
            best = Some((ran, drive));
        }
        if let Some((_, d)) = &mut best {
            d.attempts = attempt;
        }
        if steady || best.as_ref().is_some_and(|b| b.0.is_err()) || call.time(row).is_err() {
            break;
        }
    }
    match best {
        Some((ran, drive)) => (ran, Some(drive)),
        None => (program(call), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_steady_within_a_tenth() {
        let drive = |before: f64, after: f64| Drive { before: Ok(before), after: Ok(after), attempts: 1 };
        assert_eq!(drive(1.8e9, 1.7e9).json()["steady"], true);
        assert_eq!(drive(1.8e9, 1.5e9).json()["steady"], false);
        assert_eq!(drive(1e9, 2e9).mean(), Some(1.5e9));
        let unknown = Drive { before: Err("no O_DIRECT".into()), after: Ok(1e9), attempts: 1 };
        assert!(unknown.mean().is_none() && unknown.json()["why_not"] == "no O_DIRECT");
    }
}
