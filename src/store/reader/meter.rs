//! What is in flight, for how long, and how many bytes have come: the reader's own clock.

use super::request::Request;
use super::ticket::TicketState;
use crate::units::Bytes;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the drive gave since [`super::Reader::rates`] was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Bytes that arrived.
    pub bytes: Bytes,
    /// Seconds with at least one request in flight.
    pub busy_s: f64,
    /// Seconds since the last call.
    pub span_s: f64,
    /// Seconds that the oldest request in flight has waited by now: a stall, long before it is an error.
    pub waiting_s: f64,
}

impl Rates {
    /// Bytes per second while the drive had something to do; zero where it had not.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        if self.busy_s > 0.0 { self.bytes.0 as f64 / self.busy_s } else { 0.0 }
    }
}

/// A request in the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oldest {
    pub file: usize,
    pub offset: u64,
    pub age: Duration,
}

struct Flying {
    file: usize,
    offset: u64,
    direct: bool,
    since: Instant,
    ticket: Arc<TicketState>,
}

struct State {
    flying: Vec<Option<Flying>>,
    count: usize,
    busy_since: Instant,
    busy: Duration,
    bytes: u64,
    /// Bytes, busy time and moment of the last call of [`Meter::rates`].
    told: (u64, Duration, Instant),
}

impl State {
    fn busy(&self) -> Duration {
        self.busy + if self.count > 0 { self.busy_since.elapsed() } else { Duration::ZERO }
    }
}

/// Counts for all requests of a reader; each has a place of its own while it flies.
pub(super) struct Meter {
    state: Mutex<State>,
    idle: Condvar,
}

impl Meter {
    /// With `places` for requests in flight.
    pub fn new(places: usize) -> Meter {
        let now = Instant::now();
        let state = State {
            flying: (0..places).map(|_| None).collect(),
            count: 0,
            busy_since: now,
            busy: Duration::ZERO,
            bytes: 0,
            told: (0, Duration::ZERO, now),
        };
        Meter { state: Mutex::new(state), idle: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `request` goes to the kernel from `place`.
    pub fn begin(&self, place: usize, request: &Request, direct: bool) {
        let now = Instant::now();
        let mut s = self.lock();
        if s.count == 0 {
            s.busy_since = now;
        }
        s.count += 1;
        let (file, offset, ticket) = (request.file, request.offset, request.ticket.clone());
        s.flying[place] = Some(Flying { file, offset, direct, since: now, ticket });
    }

    /// The request at `place` is over; `bytes` of it arrived.
    pub fn end(&self, place: usize, bytes: u64) {
        let mut s = self.lock();
        s.flying[place] = None;
        s.bytes += bytes;
        s.count -= 1;
        if s.count == 0 {
            let busy = s.busy_since.elapsed();
            s.busy += busy;
            self.idle.notify_all();
        }
    }

    /// The longest-waiting request of `ticket`, or of all where none of its own is in the kernel yet: then it is those
    /// before it that hold it up.
    pub fn oldest(&self, ticket: &Arc<TicketState>) -> Option<Oldest> {
        let s = self.lock();
        let all = || s.flying.iter().flatten();
        let own = all().filter(|f| Arc::ptr_eq(&f.ticket, ticket)).min_by_key(|f| f.since);
        own.or_else(|| all().min_by_key(|f| f.since)).map(|f| Oldest {
            file: f.file,
            offset: f.offset,
            age: f.since.elapsed(),
        })
    }

    /// Waits until nothing is in flight. Returns false, and lets go, once all that flies are direct reads that have
    /// waited `limit`: the kernel holds the pages of a direct read itself, so a dead drive can't write to memory that
    /// has been given to others. With a `dead` thread, who never says that its requests are over, so do buffered ones.
    pub fn wait_idle(&self, limit: Duration, dead: bool) -> bool {
        let mut s = self.lock();
        while s.count > 0 {
            if s.flying.iter().flatten().all(|f| (f.direct || dead) && f.since.elapsed() >= limit) {
                return false;
            }
            s = self.idle.wait_timeout(s, Duration::from_millis(200)).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Bytes that have arrived.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.lock().bytes)
    }

    /// Time with at least one request in flight.
    pub fn busy(&self) -> Duration {
        self.lock().busy()
    }

    /// What came since the last call.
    pub fn rates(&self) -> Rates {
        let now = Instant::now();
        let mut s = self.lock();
        let (bytes, busy) = (s.bytes, s.busy());
        let waiting = s.flying.iter().flatten().map(|f| f.since.elapsed()).max().unwrap_or_default();
        let told = std::mem::replace(&mut s.told, (bytes, busy, now));
        Rates {
            bytes: Bytes(bytes - told.0),
            busy_s: (busy.saturating_sub(told.1)).as_secs_f64(),
            span_s: (now - told.2).as_secs_f64(),
            waiting_s: waiting.as_secs_f64(),
        }
    }
}
