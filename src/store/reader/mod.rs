//! Reading weights: a deep queue over all files of a checkpoint, `O_DIRECT` into host memory, page cache untouched.
//!
//! Three rungs, the first that this machine has: io_uring with registered buffers, io_uring, a pool of threads with
//! `pread`. [`Reader::describe`] says which, and why not a better one. A file whose file system has no `O_DIRECT`
//! (tmpfs, some overlays) is read buffered, and that is said too. Chunks are cut into requests, and these are sent
//! in the order of the chunks: while one chunk's last requests are in flight the next one's first are as well.

mod buffers;
#[cfg(test)]
mod faults;
mod meter;
mod options;
mod pread;
mod queue;
mod range;
mod request;
mod source;
#[cfg(test)]
mod tests;
mod ticket;
mod uring;

pub use meter::Rates;
pub use options::{Backend, Options, QUEUE_DEPTH, REQUEST, STALL_LIMIT, THREADS};
pub use ticket::ReadTicket;

use super::layout::SECTOR;
use super::memory::HostMemory;
use crate::checkpoint::{Checkpoint, WeightFile};
use crate::error::{Error, Result};
use crate::units::Bytes;
use meter::Meter;
use queue::{Offer, Queue};
use request::{Chunk, Request};
use source::{Direct, Source};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use ticket::TicketState;

/// What the reader and its threads share.
struct Shared {
    sources: Vec<Source>,
    queue: Queue,
    meter: Meter,
    delay: Duration,
    stall_limit: Duration,
    /// A thread of the reader has panicked: some of what was asked for will never be answered.
    dead: AtomicBool,
    #[cfg(test)]
    faults: Option<Arc<faults::Faults>>,
}

/// Held by each thread of the reader. Dropped in a panic it tells those who wait.
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.dead.store(true, Ordering::Release);
            self.0.queue.close(STOPPED);
        }
    }
}

/// What whoever waits for a dead reader is told.
const STOPPED: &str = "the disk reader has stopped by a fault of its own";

impl Shared {
    /// How long to hold `request` back.
    fn delay(&self, request: &Request) -> Duration {
        #[cfg(test)]
        if let Some(f) = &self.faults {
            return self.delay + f.stall(request.file, request.offset);
        }
        let _ = request;
        self.delay
    }

    /// The kernel's answer to `request`, as it is outside of tests.
    fn answer(&self, request: &Request, answer: std::io::Result<usize>) -> std::io::Result<usize> {
        #[cfg(test)]
        if let Some(f) = &self.faults {
            return f.bend(request.file, request.offset, answer);
        }
        let _ = request;
        answer
    }

    /// `request`, at `place`, is over.
    fn finish(&self, place: usize, request: &Request, error: Option<Error>) {
        // First the meter: after a wait the bytes are counted.
        self.meter.end(place, if error.is_none() { request.len } else { 0 });
        request.ticket.finish(1, error);
    }
}

/// Arenas offered for registered-buffer reads, and what became of them.
#[derive(Default)]
struct Registered {
    offered: usize,
    taken: usize,
    refused: Option<String>,
}

/// The rung that reads.
enum Rung {
    Uring { depth: usize },
    Pread { threads: usize, no_uring: Option<String> },
}

/// Reads the weight files of a checkpoint. May be shared between threads.
pub struct Reader {
    shared: Arc<Shared>,
    rung: Rung,
    registered: Mutex<Registered>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({})", self.describe())
    }
}

impl Reader {
    /// Opens the files of `checkpoint`. `delay` is added to every request (tests only; zero otherwise).
    ///
    /// # Errors
    /// As [`Reader::open_with`].
    pub fn open(checkpoint: &Checkpoint, delay: Duration) -> Result<Reader> {
        Reader::open_with(checkpoint, Options { delay, ..Options::default() })
    }

    /// Opens the files of `checkpoint` to be read as `options` say.
    ///
    /// # Errors
    /// A file can't be opened or has changed; io_uring was asked for and isn't to be had.
    pub fn open_with(checkpoint: &Checkpoint, options: Options) -> Result<Reader> {
        Reader::of_files(&checkpoint.files, options)
    }

    /// Opens `files`, numbered in this order.
    ///
    /// # Errors
    /// As [`Reader::open_with`].
    pub fn of_files(files: &[WeightFile], options: Options) -> Result<Reader> {
        let mut sources = files.iter().map(Source::open).collect::<Result<Vec<_>>>()?;
        source::number_drives(&mut sources);
        let (depth, threads) = (options.queue_depth.max(1), options.threads.max(1));
        let ring = match options.backend {
            Backend::Pread => Err(None),
            Backend::Auto => ring(depth).map_err(Some),
            Backend::Uring => Ok(ring(depth).map_err(|why| {
                Error::device(format!("cannot read with io_uring: {why}")).next("leave the choice to the program")
            })?),
        };
        let (ring, bell, no_uring) = match ring {
            Ok((ring, bell)) => (Some(ring), Some(bell), None),
            Err(why) => (None, None, why),
        };
        let shared = Arc::new(Shared {
            sources,
            queue: Queue::new(options.request.max(1).next_multiple_of(SECTOR), bell),
            meter: Meter::new(if ring.is_some() { depth } else { threads }),
            delay: options.delay,
            stall_limit: options.stall_limit,
            dead: AtomicBool::new(false),
            #[cfg(test)]
            faults: options.faults,
        });
        let (rung, threads) = match ring {
            Some(ring) => (Rung::Uring { depth }, uring::start(&shared, ring, depth)?),
            None => (Rung::Pread { threads, no_uring }, pread::start(&shared, threads)?),
        };
        Ok(Reader { shared, rung, registered: Mutex::default(), threads })
    }

    /// Offers `memory` for registered-buffer reads: its pages are pinned once and not at every read. Touch them first.
    ///
    /// Where that is refused (the memlock limit, an old kernel, the pool) reads into it work all the same, and
    /// [`Reader::describe`] says so. The pages stay pinned until the reader is dropped.
    ///
    /// # Errors
    /// The reader has stopped.
    pub fn register(&self, memory: &HostMemory) -> Result<()> {
        if let Rung::Pread { .. } = self.rung {
            return Ok(());
        }
        let (answer, told) = sync_channel(1);
        let (start, len) = (memory.at(0) as usize, memory.len() as usize);
        self.shared.queue.offer(Offer { start, len, alive: memory.alive(), answer });
        let taken = told.recv().map_err(|_| Error::run("the disk reader has stopped"))?;
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.offered += 1;
        match taken {
            Ok(()) => registered.taken += 1,
            Err(why) => registered.refused = Some(why),
        }
        Ok(())
    }

    /// Starts reading `[offset, offset + len)` of file `file` to `dst`; what lies past the end of the file is left out.
    ///
    /// Never waits for the drive. The caller keeps `dst..dst + len` mapped and unread until the ticket is done.
    ///
    /// # Errors
    /// `offset`, `len` or `dst` is no multiple of [`SECTOR`], there is no such file, or the reader has stopped.
    pub fn read_at(&self, file: usize, offset: u64, len: u64, dst: *mut u8) -> Result<ReadTicket> {
        self.submit(&[(file, offset, len, dst as usize)])
    }

    /// One ticket for several `(file, offset, len, dst)`.
    fn submit(&self, parts: &[(usize, u64, u64, usize)]) -> Result<ReadTicket> {
        let mut chunks = Vec::with_capacity(parts.len());
        for &(file, offset, len, dst) in parts {
            let source = self.shared.sources.get(file).ok_or_else(|| Error::run(format!("there is no file {file}")))?;
            if ![offset, len, dst as u64].iter().all(|n| n.is_multiple_of(SECTOR)) {
                return Err(Error::run(format!("{len} bytes at offset {offset} to {dst:#x} are not whole sectors")));
            }
            let len = len.min(source.len.next_multiple_of(SECTOR).saturating_sub(offset));
            if len > 0 {
                chunks.push((file, offset, len, dst));
            }
        }
        let requests = chunks.iter().map(|c| c.2.div_ceil(self.shared.queue.request()) as usize).sum();
        let ticket = Arc::new(TicketState::new(requests));
        let chunk = |(file, offset, len, dst)| Chunk { file, offset, len, dst, ticket: ticket.clone(), at: 0 };
        self.shared.queue.push(chunks.into_iter().map(chunk).collect())?;
        Ok(ReadTicket { state: ticket, shared: self.shared.clone() })
    }

    /// Compares `files` (their indices) with themselves at the open: size, modification time, and what its path leads to. Asks the
    /// file system twice per file and reads nothing.
    ///
    /// # Errors
    /// The first file that changed, and how.
    pub fn check_unchanged(&self, files: impl IntoIterator<Item = usize>) -> Result<()> {
        files.into_iter().try_for_each(|f| self.shared.sources[f].check_unchanged())
    }

    /// Bytes read since opening, in whole sectors.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.shared.meter.bytes()
    }

    /// Seconds during which at least one request was in flight.
    #[must_use]
    pub fn busy_seconds(&self) -> f64 {
        self.shared.meter.busy().as_secs_f64()
    }

    /// What came since the last call: asked every second or two, the current rate. For one caller.
    #[must_use]
    pub fn rates(&self) -> Rates {
        self.shared.meter.rates()
    }

    /// How it reads, e.g. `io_uring, registered buffers, O_DIRECT, depth 32`, and why not better.
    #[must_use]
    pub fn describe(&self) -> String {
        let direct = self.describe_direct();
        match &self.rung {
            Rung::Pread { threads, no_uring } => {
                let why = no_uring.as_ref().map(|why| format!(" (io_uring: {why})")).unwrap_or_default();
                format!("pread, {direct}, {threads} threads{why}")
            }
            Rung::Uring { depth } => {
                let r = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
                let buffers = match (r.taken, r.offered) {
                    (0, _) => String::new(),
                    (taken, offered) if taken == offered => ", registered buffers".into(),
                    (taken, offered) => format!(", registered buffers for {taken} of {offered} arenas"),
                };
                let why = r.refused.as_ref().map(|why| format!(" (registered buffers refused: {why})"));
                format!("io_uring{buffers}, {direct}, depth {depth}{}", why.unwrap_or_default())
            }
        }
    }

    fn describe_direct(&self) -> String {
        let all = self.shared.sources.len();
        let count = |d| self.shared.sources.iter().filter(|s| s.direct() == d).count();
        match (count(Direct::Yes), count(Direct::Cached)) {
            (0, 0) => "buffered (this file system has no O_DIRECT)".into(),
            (n, 0) if n == all => "O_DIRECT".into(),
            (n, 0) => format!("O_DIRECT for {n} of {all} files, the rest buffered"),
            (_, n) => format!("O_DIRECT (for {n} of {all} files this file system fills the page cache all the same)"),
        }
    }
}

/// How long requests of a thread that died may still be on their way when the reader is closed.
const DEAD_LIMIT: Duration = Duration::from_secs(5);

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.queue.close("the disk reader was closed before this read began");
        // The kernel writes to our callers' memory until then; a thread that died tells nobody when that is.
        let dead = self.shared.dead.load(Ordering::Acquire);
        let limit = if dead { DEAD_LIMIT.min(self.shared.stall_limit) } else { self.shared.stall_limit };
        if self.shared.meter.wait_idle(limit, dead) {
            for t in self.threads.drain(..) {
                let _ = t.join();
            }
        }
    }
}

/// A ring and the bell that wakes it.
fn ring(depth: usize) -> std::result::Result<(io_uring::IoUring, std::os::fd::OwnedFd), String> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    let bell = rustix::event::eventfd(0, flags).map_err(|e| format!("no eventfd: {e}"))?;
    Ok((uring::open(depth)?, bell))
}
