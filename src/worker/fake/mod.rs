//! A scripted engine and desk: the screens, scripts and terminals of the tests run on them without libtorch, a GPU
//! or a checkpoint. `BSTUI_FAKE_ENGINE=MS` runs the whole program on them, MS milliseconds a block.

mod desk;
mod engine;
mod facts;
mod hub;
mod record;
mod trace;

pub use desk::FakeDesk;
pub use engine::{FakeEngine, Fault, narrate};
pub use facts::{machine, models, plan, runs};

use super::Signals;
use crate::engine::Services;
use crate::error::{Error, Result};
use std::path::Path;
use std::time::Duration;

/// The scripted desk that the environment asks for, if it does: `BSTUI_FAKE_ENGINE=MS` (milliseconds a block),
/// `BSTUI_FAKE_STEPS=N`, `BSTUI_FAKE_FAULT=noise|error|panic|nan|slow`. For tests of the binary.
///
/// # Errors
/// One of them can't be read.
pub fn from_env(results: &Path, signals: &Signals) -> Result<Option<Box<dyn Services>>> {
    let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let number = |name: &str| {
        let read = |v: String| v.parse::<u64>().map_err(|_| Error::usage(format!("{name}='{v}' is not a number")));
        set(name).map(read).transpose()
    };
    let Some(ms) = number("BSTUI_FAKE_ENGINE")? else {
        return Ok(None);
    };
    let fault = set("BSTUI_FAKE_FAULT").unwrap_or_default();
    let fault = Fault::named(&fault).ok_or_else(|| Error::usage(format!("BSTUI_FAKE_FAULT='{fault}' is no fault")))?;
    let engine = FakeEngine {
        visit: Duration::from_millis(ms),
        steps: number("BSTUI_FAKE_STEPS")?,
        fault,
        ..FakeEngine::default()
    };
    Ok(Some(Box::new(FakeDesk::new(engine, results.to_path_buf(), signals.clone()))))
}
