//! The planner. Pure: (checkpoint inventory, machine, config) → plan. It asks no hardware and no clock.

pub mod types;

pub use types::*;

use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::device::Machine;
use crate::error::{Error, Result};

/// Plans both modes of `config` for `checkpoint` on `machine`.
///
/// # Errors
/// The config names something the checkpoint doesn't have (a target, a fraction out of range).
pub fn plan(checkpoint: &Checkpoint, machine: &Machine, config: &RunConfig) -> Result<PlanReport> {
    let _ = (machine, config);
    Err(Error::infeasible(format!("no plan for '{}'", checkpoint.name)))
}
