//! Runs an engine on its own thread and carries its events out: recorder first, then the screen.
//!
//! Threads of a run: `trainer` (the engine), `hub` (numbers, records and queues events), `gauges` (polls the device
//! once a second). The trainer never waits for the screen: telemetry is dropped and counted, lifecycle events wait
//! only for the recorder.

pub mod desk;
pub mod fake;
pub mod fetch;
mod gauges;
pub mod handle;
pub mod hub;
mod queue;
pub mod signals;

pub use desk::{Desk, DeskOptions};
pub use gauges::{GaugeSource, host_gauges};
pub use handle::RunHandle;
pub use hub::{HubSink, Record};
pub use queue::EventQueue;
pub use signals::Signals;

use crate::engine::{Control, Engine, EventSink, Job, Outcome, no_engine};
use crate::error::Result;
use std::sync::Arc;

/// The engine of a build without one: every run fails and says which feature is missing.
#[derive(Clone, Copy, Debug)]
pub struct NoEngine;

impl Engine for NoEngine {
    fn run(&mut self, _: &Job, _: &Arc<dyn EventSink>, _: &Control) -> Result<Outcome> {
        Err(no_engine())
    }
}

#[cfg(test)]
mod tests;
