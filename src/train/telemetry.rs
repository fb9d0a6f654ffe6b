//! Progress inside a step, at most thirty times a second, so that telling costs nothing that can be measured.

use super::walk::Visit;
use crate::engine::EventSink;
use crate::event::{EventKind, Phase, Progress};
use crate::stream::Streamer;
use crate::units::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(33);

/// Sends [`Progress`] events.
pub(super) struct Telemetry {
    sink: Arc<dyn EventSink>,
    visits: usize,
    n_blocks: usize,
    gpu: Option<usize>,
    last: Option<Instant>,
}

impl Telemetry {
    pub(super) fn new(sink: Arc<dyn EventSink>, visits: usize, n_blocks: usize, gpu: Option<usize>) -> Telemetry {
        Telemetry { sink, visits, n_blocks, gpu, last: None }
    }

    /// Tells where the walk is, if the last time was long enough ago.
    pub(super) fn visit(&mut self, step: u64, visit: Visit, streamer: &mut Streamer) {
        if self.last.is_some_and(|t| t.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let totals = streamer.totals();
        self.sink.send(EventKind::Progress(Progress {
            step,
            phase: visit.phase,
            block: visit.block,
            visit: visit.index,
            visits: if visit.phase == Phase::Eval { self.n_blocks } else { self.visits },
            blocks: streamer.states(),
            disk_read: totals.disk_read,
            h2d: totals.h2d,
            vram_live: self.gpu.map(|g| Bytes(crate::device::shim::memory(g).allocated_peak)),
        }));
    }
}
