//! Builds the services that screen, script and `train` share, over the real engine.

use crate::checkpoint;
use crate::config::RunConfig;
use crate::device::nvml::Sampler;
use crate::engine::{Engine, Resume, Services};
use crate::error::Result;
use crate::report;
use crate::worker::{Desk, DeskOptions, Signals};
use std::path::PathBuf;

/// Folders to look for checkpoints in: those given, the demo, the working folder.
#[must_use]
pub fn places(given: &[PathBuf]) -> Vec<PathBuf> {
    let mut places = given.to_vec();
    for p in [".demo", "."].map(PathBuf::from) {
        if p.is_dir() {
            places.push(p);
        }
    }
    places
}

/// Makes what answers screen and script, from the folder of runs, the config and the signals.
pub type MakeServices = fn(PathBuf, &RunConfig, Signals) -> Result<Box<dyn Services>>;

/// The desk of this process.
///
/// # Errors
/// None; those of [`MakeServices`].
pub fn services(results: PathBuf, config: &RunConfig, signals: Signals) -> Result<Box<dyn Services>> {
    Ok(Box::new(real(results, config, signals, None)))
}

/// The desk over the real engine; `resume` is what its first run goes on from.
#[must_use]
pub fn real(results: PathBuf, config: &RunConfig, signals: Signals, resume: Option<Resume>) -> Desk {
    let model = (!config.model.path.is_empty()).then(|| PathBuf::from(&config.model.path));
    Desk::new(DeskOptions {
        engine: Box::new(engine),
        gauges: Box::new(|machine| {
            let uuid = machine.gpu.as_ref().and_then(|g| g.uuid.as_deref());
            let mut sampler = Sampler::new(uuid);
            Box::new(move || sampler.sample())
        }),
        env: Box::new(|config, machine| {
            let opened = checkpoint::resolve(&config.model.path).and_then(|d| checkpoint::open(&d)).ok();
            let mut env = report::environment(opened.as_ref(), machine);
            env["libtorch"] = serde_json::json!(libtorch());
            env
        }),
        places: places(model.as_slice()),
        results,
        signals,
        resume,
    })
}

#[cfg(feature = "torch")]
fn engine() -> Box<dyn Engine> {
    Box::new(crate::train::Trainer)
}

#[cfg(not(feature = "torch"))]
fn engine() -> Box<dyn Engine> {
    Box::new(crate::worker::NoEngine)
}

/// Version of the libtorch this build was made for.
fn libtorch() -> Option<&'static str> {
    cfg!(feature = "torch").then_some("2.11.0")
}
