//! Chunks that wait for their turn, first come, first read, drive by drive; and the bell that wakes whoever reads.
//!
//! Files on several drives take turns, so that no drive idles while chunks of another stand before its own.

use super::request::{Chunk, Request};
use super::source::Source;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Memory offered for registered-buffer reads.
pub(super) struct Offer {
    pub start: usize,
    pub len: usize,
    /// Lives as long as the mapping.
    pub alive: Weak<()>,
    /// Told whether it was taken, or why not.
    pub answer: SyncSender<std::result::Result<(), String>>,
}

/// What the queue has for a reader.
pub(super) enum Next {
    Request(Request),
    Empty,
    Closed,
}

#[derive(Default)]
struct Inner {
    chunks: VecDeque<Chunk>,
    /// When each drive had its last turn.
    turns: Vec<u64>,
    offers: Vec<Offer>,
    /// Why nothing more is taken.
    closed: Option<String>,
}

impl Inner {
    /// The chunk whose turn it is: the first one of the drive that has waited longest.
    fn turn(&mut self, sources: &[Source]) -> Option<usize> {
        let drives = sources.iter().map(|s| s.drive + 1).max().unwrap_or(1);
        self.turns.resize(drives, 0);
        let mut first: Vec<Option<usize>> = vec![None; drives];
        let mut missing = drives;
        for (at, chunk) in self.chunks.iter().enumerate() {
            let place = &mut first[sources[chunk.file].drive];
            if place.is_none() {
                *place = Some(at);
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        let of = (0..drives).filter(|d| first[*d].is_some()).min_by_key(|d| self.turns[*d])?;
        self.turns[of] = self.turns.iter().max().copied().unwrap_or(0) + 1;
        first[of]
    }
}

/// The queue. Its length is bounded by the memory that its callers hold for it.
pub(super) struct Queue {
    inner: Mutex<Inner>,
    wake: Condvar,
    /// Polled by the ring, which can't wait for a condition variable.
    bell: Option<OwnedFd>,
    request: u64,
}

impl Queue {
    /// A queue that cuts requests of `request` bytes; with a `bell` for a ring, without for threads.
    pub fn new(request: u64, bell: Option<OwnedFd>) -> Queue {
        Queue { inner: Mutex::default(), wake: Condvar::new(), bell, request }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring_bell(&self) {
        match &self.bell {
            // Fails only when the count would overflow: then it is ringing already.
            Some(bell) => _ = rustix::io::write(bell, &1_u64.to_ne_bytes()),
            None => self.wake.notify_all(),
        }
    }

    /// The bell's descriptor.
    pub fn bell(&self) -> Option<RawFd> {
        self.bell.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Stops the bell; what rang before is to be looked at after this call.
    pub fn hush(&self) {
        if let Some(bell) = &self.bell {
            // Nothing to read is fine: it was hushed by an earlier call.
            let _ = rustix::io::read(bell, &mut [0_u8; 8]);
        }
    }

    /// Bytes of a request.
    pub fn request(&self) -> u64 {
        self.request
    }

    /// Appends chunks.
    ///
    /// # Errors
    /// The reader has stopped.
    pub fn push(&self, chunks: Vec<Chunk>) -> Result<()> {
        let mut inner = self.lock();
        if let Some(why) = &inner.closed {
            return Err(Error::run(why));
        }
        inner.chunks.extend(chunks);
        drop(inner);
        self.ring_bell();
        Ok(())
    }

    /// Hands memory to the ring; the answer comes through the offer, or its channel closes.
    pub fn offer(&self, offer: Offer) {
        let mut inner = self.lock();
        if inner.closed.is_none() {
            inner.offers.push(offer);
            drop(inner);
            self.ring_bell();
        }
    }

    /// Offers not taken up yet.
    pub fn take_offers(&self) -> Vec<Offer> {
        std::mem::take(&mut self.lock().offers)
    }

    /// Cuts off the next request, without waiting.
    pub fn next(&self, sources: &[Source]) -> Next {
        self.cut(&mut self.lock(), sources)
    }

    /// Waits for the next request; `None` when the queue is closed.
    pub fn wait_next(&self, sources: &[Source]) -> Option<Request> {
        let mut inner = self.lock();
        loop {
            match self.cut(&mut inner, sources) {
                Next::Request(r) => return Some(r),
                Next::Closed => return None,
                Next::Empty => inner = self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn cut(&self, inner: &mut Inner, sources: &[Source]) -> Next {
        let Some(at) = inner.turn(sources) else {
            return if inner.closed.is_some() { Next::Closed } else { Next::Empty };
        };
        let chunk = &mut inner.chunks[at];
        let request = chunk.cut(self.request, &sources[chunk.file]);
        if chunk.at == chunk.len {
            inner.chunks.remove(at);
        }
        Next::Request(request)
    }

    /// Takes nothing more. Requests in flight go on; what waits fails with `why`.
    pub fn close(&self, why: &str) {
        let mut inner = self.lock();
        inner.closed.get_or_insert_with(|| why.to_string());
        inner.offers.clear();
        let left = std::mem::take(&mut inner.chunks);
        drop(inner);
        for chunk in left {
            chunk.ticket.finish(chunk.requests(self.request), Some(Error::run(why)));
        }
        self.ring_bell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::WeightFile;
    use crate::store::reader::ticket::TicketState;
    use std::sync::Arc;

    /// The files whose requests come out, in order, for chunks of two requests of these files.
    fn order(drives: &[usize], chunks: &[usize]) -> Vec<usize> {
        let dir = tempfile::tempdir().unwrap();
        let mut sources: Vec<Source> = (0..drives.len())
            .map(|i| {
                let path = dir.path().join(i.to_string());
                std::fs::write(&path, vec![0; 1 << 16]).unwrap();
                Source::open(&WeightFile { path, bytes: 1 << 16 }).unwrap()
            })
            .collect();
        sources.iter_mut().zip(drives).for_each(|(s, d)| s.drive = *d);
        let queue = Queue::new(4096, None);
        let chunk = |&file: &usize| {
            let ticket = Arc::new(TicketState::new(2));
            Chunk { file, offset: 0, len: 8192, dst: 0, ticket, at: 0 }
        };
        queue.push(chunks.iter().map(chunk).collect()).unwrap();
        std::iter::from_fn(|| match queue.next(&sources) {
            Next::Request(r) => Some(r.file),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn one_drive_is_read_in_order_and_several_take_turns() {
        assert_eq!(order(&[0, 0], &[0, 1, 0]), [0, 0, 1, 1, 0, 0]);
        assert_eq!(order(&[0, 1], &[0, 0, 1, 1]), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(order(&[0, 1, 2], &[0, 0, 1, 2]), [0, 1, 2, 0, 1, 2, 0, 0]);
    }
}
