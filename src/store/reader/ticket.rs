//! What a caller holds of a read in progress.

use super::{STOPPED, Shared};
use crate::error::{Error, Kind, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Requests still to come, and the first error.
#[derive(Debug, Default)]
pub(super) struct TicketState {
    left: AtomicUsize,
    error: Mutex<Option<Error>>,
    done: Condvar,
}

impl TicketState {
    /// A ticket of `requests` requests.
    pub fn new(requests: usize) -> TicketState {
        TicketState { left: AtomicUsize::new(requests), ..TicketState::default() }
    }

    /// Counts `requests` of them as over.
    pub fn finish(&self, requests: usize, error: Option<Error>) {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = error {
            first.get_or_insert(e);
        }
        // Release: whoever sees zero sees the bytes too.
        if self.left.fetch_sub(requests, Ordering::AcqRel) == requests {
            self.done.notify_all();
        }
    }

    fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

/// A read in progress. Its clones are the same read.
#[derive(Clone)]
pub struct ReadTicket {
    pub(super) state: Arc<TicketState>,
    pub(super) shared: Arc<Shared>,
}

impl std::fmt::Debug for ReadTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadTicket").field(&self.state).finish()
    }
}

impl ReadTicket {
    /// Whether it is complete or failed, and the kernel has let go of the memory. Never waits, takes no lock.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// Waits for it. May be called again, with the same answer.
    ///
    /// # Errors
    /// The first failure of its requests. A reader whose thread has panicked. A drive that has not answered for `Options::stall_limit`: the kernel may
    /// still write to the memory then, and [`ReadTicket::is_done`] stays false until it has let go.
    pub fn wait(&self) -> Result<()> {
        let limit = self.shared.stall_limit;
        let mut error = self.state.error.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.state.is_done() {
            if self.shared.dead.load(Ordering::Acquire) {
                return Err(error.as_ref().map_or_else(|| Error::run(STOPPED).next("resume the run"), again));
            }
            let (age, oldest) =
                self.shared.meter.oldest(&self.state).map_or((Duration::ZERO, None), |o| (o.age, Some(o)));
            if let Some(o) = oldest.filter(|_| age >= limit) {
                return Err(Error::new(
                    Kind::Io,
                    format!(
                        "cannot read '{}' at offset {}: the drive has not answered for {} s",
                        self.shared.sources[o.file].path.display(),
                        o.offset,
                        limit.as_secs_f64().round()
                    ),
                )
                .next("check the drive, its cable or its network, then resume the run"));
            }
            // Looks again now and then: the oldest request changes while others are answered.
            let nap = (limit - age.min(limit)).clamp(Duration::from_millis(1), Duration::from_secs(1));
            let woken = self.state.done.wait_timeout(error, nap);
            error = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        error.as_ref().map_or(Ok(()), |e| Err(again(e)))
    }
}

/// The error once more: every clone of a ticket tells it.
fn again(e: &Error) -> Error {
    let copy = Error::new(e.kind(), e.what());
    match e.advice() {
        Some(next) => copy.next(next),
        None => copy,
    }
}
