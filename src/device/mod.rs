//! The only code that asks hardware: GPU, NVML, host memory, drives, counters.

pub mod attention;
pub mod calibration;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod disk;
pub mod gpu;
pub mod host;
pub mod hwmon;
pub mod io;
#[cfg(feature = "cuda")]
pub mod link;
pub mod machine;
pub mod nvml;
#[cfg(feature = "cuda")]
pub mod nvrtc;
pub mod pool;
pub mod probe;
#[cfg(feature = "torch")]
pub mod products;
pub mod profile;
pub mod roots;
#[cfg(feature = "torch")]
pub mod shim;
pub mod smart;
mod told;
pub mod uring;

pub use attention::{Attention, AttentionKernel};
pub use machine::{Disk, Gpu, Kernels, Machine, Past, Ram};

use crate::config::{DeviceChoice, RunConfig};
use crate::error::Result;
use std::path::Path;

/// Host memory is pinned in pieces of this many bytes. A copy must not straddle two of them: whoever lays out an arena
/// lets nothing that is copied at once cross a multiple of it.
pub const PIN_PIECE: u64 = 64 << 30;

/// Free space in `results` where that is another volume than `model_dir`'s; of a profile nothing is known.
#[must_use]
pub fn results_free(config: &RunConfig, model_dir: &Path, results: &Path) -> Option<crate::units::Bytes> {
    config.machine.is_none().then(|| disk::free_elsewhere(model_dir, results)).flatten()
}

/// Measures this machine once, or reads `config.machine`'s profile. Takes well under a second: where blocks will compute
/// on a processor that was never calibrated, a few products are timed.
///
/// `model_dir`'s drive is the one described; `config.stream` budgets are not applied here. With `train.device = cpu`
/// the GPU is left alone and out.
///
/// # Errors
/// The named profile can't be read.
pub fn machine(config: &RunConfig, model_dir: Option<&Path>) -> Result<Machine> {
    let use_gpu = config.train.device != DeviceChoice::Cpu;
    let mut machine = match &config.machine {
        Some(file) => profile::load(file)?,
        None => probe::measure(model_dir, use_gpu),
    };
    if !use_gpu {
        machine.gpu = None;
    }
    #[cfg(feature = "torch")]
    if config.machine.is_none() && machine.gpu.is_none() {
        probe::look_at_products(&mut machine);
    }
    Ok(machine)
}
