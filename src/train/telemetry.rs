//! Progress inside a step, at most thirty times a second, so that telling costs nothing that can be measured.

use super::walk::Visit;
use crate::engine::EventSink;
use crate::event::{EventKind, Phase, Progress, Stage};
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

/// Stages of long work: an event at most every 64 MB, and always the last one.
pub(super) struct Stages<'a> {
    sink: &'a dyn EventSink,
    last: u64,
}

/// Bytes between two events, and the least that is worth one.
const STAGE_EVERY: u64 = 64_000_000;

impl<'a> Stages<'a> {
    pub(super) fn new(sink: &'a dyn EventSink) -> Stages<'a> {
        Stages { sink, last: 0 }
    }

    /// `done` of `total` bytes of the work `name` are done.
    pub(super) fn bytes(&mut self, name: &str, done: u64, total: u64) {
        if done >= total || done.saturating_sub(self.last) >= STAGE_EVERY || done < self.last {
            self.last = done;
            self.sink.send(EventKind::Stage(Stage { name: name.into(), done, total, unit: "bytes".into() }));
        }
    }

    /// As [`Stages::bytes`], and at its beginning too; nothing of work that is over at once.
    pub(super) fn long(&mut self, name: &str, done: u64, total: u64) {
        if total >= STAGE_EVERY {
            self.last = if done == 0 { u64::MAX } else { self.last };
            self.bytes(name, done, total);
        }
    }
}
