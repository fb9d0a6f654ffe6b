//! A scripted engine and desk: the screens, scripts and terminals of the tests run on them without libtorch, a GPU
//! or a checkpoint. `BSTUI_FAKE_ENGINE=MS` runs the whole program on them, MS milliseconds a block.

mod desk;
mod engine;
mod facts;
mod record;

pub use desk::FakeDesk;
pub use engine::{Fault, FakeEngine, narrate};
pub use facts::{machine, models, plan, runs};

use crate::engine::Services;
use crate::error::{Error, Result};
use std::path::Path;
use std::time::Duration;

/// The scripted desk that `BSTUI_FAKE_ENGINE` (milliseconds a visit) and `BSTUI_FAKE_FAULT` ask for, if they do.
///
/// # Errors
/// A fault of that name doesn't exist.
pub fn from_env(results: &Path, signals: &super::Signals) -> Result<Option<Box<dyn Services>>> {
    let Some(ms) = std::env::var("BSTUI_FAKE_ENGINE").ok().and_then(|s| s.parse().ok()) else { return Ok(None) };
    let fault = match std::env::var("BSTUI_FAKE_FAULT").as_deref() {
        Ok("noise") => Fault::Noise(1),
        Ok("panic") => Fault::Panic(2),
        Ok("error") => Fault::Error(2),
        Ok("nan") => Fault::Nan(2),
        Ok(other) => return Err(Error::usage(format!("BSTUI_FAKE_FAULT '{other}' is unknown"))),
        Err(_) => Fault::None,
    };
    let engine = FakeEngine { visit: Duration::from_millis(ms), fault, ..FakeEngine::default() };
    Ok(Some(Box::new(FakeDesk::new(engine, results.to_path_buf(), signals.clone()))))
}
