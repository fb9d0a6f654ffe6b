//! The first rung: one thread keeps up to `depth` reads in the kernel through io_uring.
//!
//! The thread waits in one place, for the next completion. A poll of the queue's bell is always among what can
//! complete, so that a new chunk is submitted at once while others are in flight.

use super::buffers::Buffers;
use super::queue::Next;
use super::request::{Ask, Outcome, Request};
use super::{Alive, Shared};
use crate::error::{Error, Result};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Marks the completion of the bell's poll; requests are marked with their place.
const BELL: u64 = u64::MAX;

/// Makes a ring for `depth` requests and tries it.
///
/// # Errors
/// Why there is none here, as a short clause.
pub(super) fn open(depth: usize) -> std::result::Result<IoUring, String> {
    let why = |e: io::Error| match e.raw_os_error() {
        Some(libc::ENOSYS) => "not in this kernel".to_string(),
        Some(libc::EPERM | libc::EACCES) => "not permitted".to_string(),
        Some(libc::ENOMEM) => "no locked memory for its queues".to_string(),
        _ => e.to_string(),
    };
    // One entry more than requests, for the bell.
    let mut ring = IoUring::new((depth as u32 + 1).next_power_of_two()).map_err(why)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|_| "this kernel's is too old".to_string())?;
    if ![opcode::Read::CODE, opcode::ReadFixed::CODE, opcode::PollAdd::CODE].iter().all(|&c| probe.is_supported(c)) {
        return Err("this kernel's is too old".into());
    }
    // A filter may allow the set-up and forbid the use.
    // SAFETY: a no-op touches no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(|e| e.to_string())?;
    ring.submit_and_wait(1).map_err(why)?;
    ring.completion().for_each(drop);
    Ok(ring)
}

/// Starts the thread `reader` on `ring`.
///
/// # Errors
/// The system gives no thread.
pub(super) fn start(shared: &Arc<Shared>, ring: IoUring, depth: usize) -> Result<Vec<JoinHandle<()>>> {
    let driver = Driver {
        shared: shared.clone(),
        ring,
        places: (0..depth).map(|_| None).collect(),
        free: (0..depth).rev().collect(),
        later: Vec::new(),
        buffers: Buffers::default(),
        bell_polled: false,
        broken: false,
    };
    let alive = Alive(shared.clone());
    let thread = std::thread::Builder::new().name("reader".into()).spawn(move || {
        driver.run();
        drop(alive);
    });
    Ok(vec![thread.map_err(|e| Error::run(format!("cannot start the reader thread: {e}")))?])
}

struct Driver {
    shared: Arc<Shared>,
    ring: IoUring,
    /// Requests in flight, and what was last asked for each.
    places: Vec<Option<(Request, Ask)>>,
    free: Vec<usize>,
    /// Requests held back by a test's delay, and until when.
    later: Vec<(Instant, usize)>,
    buffers: Buffers,
    bell_polled: bool,
    /// The kernel takes nothing more from this ring.
    broken: bool,
}

impl Driver {
    fn run(mut self) {
        loop {
            for offer in self.shared.queue.take_offers() {
                let taken = self.buffers.register(&self.ring, offer.start, offer.len, offer.alive);
                // Fails only if the asker has gone.
                let _ = offer.answer.send(taken);
            }
            let closed = self.fill();
            if closed && self.free.len() == self.places.len() {
                return;
            }
            self.poll_bell();
            self.enter();
            self.reap();
        }
    }

    /// Puts requests into the ring until it is full or none waits. True if none will come any more.
    fn fill(&mut self) -> bool {
        let now = Instant::now();
        while let Some(i) = self.later.iter().position(|l| l.0 <= now) {
            let (_, place) = self.later.swap_remove(i);
            self.submit(place);
        }
        while let Some(&place) = self.free.last() {
            let request = match self.shared.queue.next(&self.shared.sources) {
                Next::Request(r) => r,
                Next::Empty => return false,
                Next::Closed => return true,
            };
            self.free.pop();
            let ask = request.ask(&self.shared.sources[request.file]);
            self.shared.meter.begin(place, &request, ask.direct);
            let delay = self.shared.delay(&request);
            self.places[place] = Some((request, ask));
            if delay.is_zero() {
                self.submit(place);
            } else {
                self.later.push((now + delay, place));
            }
        }
        false
    }

    /// Asks for what the request at `place` still lacks.
    fn submit(&mut self, place: usize) {
        let (request, last) = self.places[place].as_mut().expect("a submitted place is taken");
        let ask = request.ask(&self.shared.sources[request.file]);
        *last = ask;
        let dst = ask.dst as *mut u8;
        let entry = match self.buffers.index_of(ask.dst, ask.len as usize) {
            Some(index) => opcode::ReadFixed::new(Fd(ask.fd), dst, ask.len, index).offset(ask.offset).build(),
            None => opcode::Read::new(Fd(ask.fd), dst, ask.len).offset(ask.offset).build(),
        };
        // A buffered read is a copy: the kernel's workers share it, and this thread goes on.
        let entry = if ask.punt { entry.flags(squeue::Flags::ASYNC) } else { entry };
        self.push(&entry.user_data(place as u64));
    }

    fn poll_bell(&mut self) {
        if let Some(bell) = self.shared.queue.bell().filter(|_| !self.bell_polled) {
            self.bell_polled = true;
            self.push(&opcode::PollAdd::new(Fd(bell), libc::POLLIN as u32).build().user_data(BELL));
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the ticket's owner keeps the memory mapped and unread until the ticket is done, which is after this
        // entry's completion; descriptors live in `shared`.
        unsafe { self.ring.submission().push(entry) }.expect("each place and the bell have one entry at most");
    }

    /// Submits, and waits for a completion or for the end of a test's delay.
    fn enter(&mut self) {
        let due = self.later.iter().map(|l| l.0).min();
        let entered = match due {
            _ if self.broken => Ok(0),
            None => self.ring.submit_and_wait(1),
            Some(due) => {
                let timeout = Timespec::from(due.saturating_duration_since(Instant::now()));
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        match entered.map_err(|e| e.raw_os_error()) {
            Ok(_) if !self.broken => {}
            Err(Some(libc::EINTR | libc::ETIME)) => {}
            // Short of memory or of room for completions: reap some, then try again.
            Ok(_) | Err(Some(libc::EAGAIN | libc::EBUSY)) => std::thread::sleep(Duration::from_millis(1)),
            Err(code) => {
                // Never seen. What is in flight completes by itself; nothing new can be read.
                self.broken = true;
                let e = code.map_or("unknown".into(), |c| io::Error::from_raw_os_error(c).to_string());
                self.shared.queue.close(&format!("io_uring has stopped: {e}"));
            }
        }
    }

    /// Takes completions: a request is over, or goes on where it was cut short.
    fn reap(&mut self) {
        let done: Vec<(u64, i32)> = self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
        for (mark, result) in done {
            if mark == BELL {
                self.bell_polled = false;
                self.shared.queue.hush();
                continue;
            }
            let place = mark as usize;
            let (mut request, ask) = self.places[place].take().expect("a completed place is taken");
            let answer = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            let answer = self.shared.answer(&request, answer);
            let error = match request.outcome(&ask, answer, &self.shared.sources[request.file]) {
                Outcome::More => {
                    self.places[place] = Some((request, ask));
                    self.submit(place);
                    continue;
                }
                Outcome::Done => None,
                Outcome::Failed(e) => Some(e),
            };
            self.free.push(place);
            self.shared.finish(place, &request, error);
        }
    }
}
