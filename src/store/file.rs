//! Reading weights: a pool of threads with `O_DIRECT` reads into host memory, page cache untouched.
//!
//! Where the file system has no `O_DIRECT` (tmpfs, some overlays) the file is read buffered and says so in
//! [`Reader::describe`]. A file whose size or modification time changed since the headers were read is refused.

use super::layout::SECTOR;
use crate::checkpoint::{Checkpoint, WeightFile};
use crate::error::{Error, Result};
use crate::units::Bytes;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// One request of a read; large enough for a drive's full rate, small enough that threads share a block evenly.
const REQUEST: u64 = 4 << 20;
/// Requests in flight.
const THREADS: usize = 4;

struct Source {
    path: PathBuf,
    direct: Option<File>,
    buffered: File,
    len: u64,
}

impl Source {
    fn open(f: &WeightFile) -> Result<Source> {
        let open = |flags| std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&f.path);
        let buffered = open(0).map_err(|e| Error::io("open", &f.path, e))?;
        let len = buffered.metadata().map_err(|e| Error::io("stat", &f.path, e))?.len();
        if len != f.bytes {
            return Err(Error::checkpoint(format!(
                "'{}' has changed since its header was read: {} now, {} then",
                f.path.display(),
                Bytes(len),
                Bytes(f.bytes)
            ))
            .next("let downloads finish, then start again"));
        }
        // Some file systems accept the flag at open and refuse the read: try one sector.
        let direct = open(libc::O_DIRECT).ok().filter(probe_direct);
        Ok(Source { path: f.path.clone(), direct, buffered, len })
    }

    /// Reads `[offset, offset + len)` to `dst`; the tail past the end of the file is left alone.
    fn read(&self, offset: u64, len: u64, dst: *mut u8) -> Result<()> {
        // SAFETY: the ticket's owner keeps `dst..dst+len` mapped and unread until the ticket is done.
        let buf = unsafe { std::slice::from_raw_parts_mut(dst, len as usize) };
        let want = len.min(self.len.saturating_sub(offset)) as usize;
        let mut got = 0;
        while got < want {
            let at = offset + got as u64;
            // After a short read the rest may be unaligned: the buffered file takes over for it.
            let aligned = (got as u64).is_multiple_of(SECTOR);
            let (file, end) = match &self.direct {
                Some(d) if aligned => (d, buf.len()),
                _ => (&self.buffered, want),
            };
            match file.read_at(&mut buf[got..end], at) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", &self.path, e).next("check the drive; nothing was lost")),
            }
        }
        if got < want {
            return Err(Error::checkpoint(format!(
                "'{}' ended early: {} of {} bytes at offset {offset}",
                self.path.display(),
                got,
                want
            ))
            .next("the file was cut while in use; restore it and resume the run"));
        }
        Ok(())
    }
}

fn probe_direct(f: &File) -> bool {
    let Ok(mem) = super::HostMemory::new(SECTOR) else { return false };
    // SAFETY: one page of our own fresh mapping.
    let buf = unsafe { std::slice::from_raw_parts_mut(mem.at(0), SECTOR as usize) };
    f.read_at(buf, 0).is_ok()
}

/// A read in progress.
#[derive(Clone, Debug)]
pub struct ReadTicket(Arc<TicketState>);

#[derive(Debug, Default)]
struct TicketState {
    left: Mutex<(usize, Option<Error>)>,
    done: Condvar,
}

impl ReadTicket {
    /// Whether it is complete (or failed). Never waits.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.left.lock().map_or(true, |l| l.0 == 0)
    }
    /// Waits for it.
    ///
    /// # Errors
    /// The first failure of its requests.
    pub fn wait(&self) -> Result<()> {
        let poisoned = |_| Error::run("a disk reader died");
        let mut left = self.0.left.lock().map_err(poisoned)?;
        while left.0 > 0 {
            left = self.0.done.wait(left).map_err(|_| Error::run("a disk reader died"))?;
        }
        left.1.take().map_or(Ok(()), Err)
    }
}

struct Request {
    source: usize,
    offset: u64,
    len: u64,
    dst: usize,
    ticket: Arc<TicketState>,
}

struct Shared {
    sources: Vec<Source>,
    bytes: AtomicU64,
    busy: Mutex<Busy>,
    delay: Duration,
}

/// Time during which at least one request was in flight.
#[derive(Default)]
struct Busy {
    in_flight: usize,
    since: Option<Instant>,
    total: Duration,
}

/// The reading pool over all weight files of a checkpoint.
pub struct Reader {
    shared: Arc<Shared>,
    queue: Option<SyncSender<Request>>,
    threads: Vec<std::thread::JoinHandle<()>>,
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
    /// A file can't be opened or has changed.
    pub fn open(checkpoint: &Checkpoint, delay: Duration) -> Result<Reader> {
        let sources = checkpoint.files.iter().map(Source::open).collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared { sources, bytes: AtomicU64::new(0), busy: Mutex::default(), delay });
        let (tx, rx) = sync_channel::<Request>(1024);
        let rx = Arc::new(Mutex::new(rx));
        let threads = (0..THREADS)
            .map(|i| {
                let (rx, shared) = (rx.clone(), shared.clone());
                std::thread::Builder::new()
                    .name(format!("reader-{i}"))
                    .spawn(move || serve(&rx, &shared))
                    .map_err(|e| Error::run(format!("cannot start a reader thread: {e}")))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Reader { shared, queue: Some(tx), threads })
    }

    /// Starts reading `[offset, offset + len)` of file `file` to `dst`; all multiples of [`SECTOR`].
    ///
    /// The caller keeps the buffer mapped and unread until the ticket is done.
    ///
    /// # Errors
    /// The pool is gone.
    pub fn read_at(&self, file: usize, offset: u64, len: u64, dst: *mut u8) -> Result<ReadTicket> {
        let requests = (0..len.div_ceil(REQUEST))
            .map(|i| i * REQUEST)
            .map(|o| (file, offset + o, (len - o).min(REQUEST), dst as usize + o as usize))
            .collect();
        self.submit(requests)
    }

    fn submit(&self, requests: Vec<(usize, u64, u64, usize)>) -> Result<ReadTicket> {
        let ticket = Arc::new(TicketState { left: Mutex::new((requests.len(), None)), done: Condvar::new() });
        let queue = self.queue.as_ref().ok_or_else(|| Error::run("the disk readers have stopped"))?;
        for (source, offset, len, dst) in requests {
            queue
                .send(Request { source, offset, len, dst, ticket: ticket.clone() })
                .map_err(|_| Error::run("the disk readers have stopped"))?;
        }
        Ok(ReadTicket(ticket))
    }

    /// Reads `[offset, offset + len)` of file `source` and hands the bytes to `take` in order, in pieces.
    ///
    /// # Errors
    /// The read fails, or `take` does.
    pub fn read_range(
        &self,
        source: usize,
        offset: u64,
        len: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        const PIECE: u64 = 32 << 20;
        let start = offset / SECTOR * SECTOR;
        let mem = super::HostMemory::new(PIECE.min((offset + len - start).div_ceil(SECTOR) * SECTOR))?;
        let mut at = start;
        while at < offset + len {
            let n = mem.len().min((offset + len - at).div_ceil(SECTOR) * SECTOR);
            let requests = (0..n.div_ceil(REQUEST))
                .map(|i| i * REQUEST)
                .map(|o| (source, at + o, (n - o).min(REQUEST), mem.at(o) as usize))
                .collect();
            self.submit(requests)?.wait()?;
            let (from, to) = (offset.max(at) - at, (offset + len).min(at + n) - at);
            // SAFETY: inside the mapping; the ticket is done, so nothing writes it.
            take(unsafe { std::slice::from_raw_parts(mem.at(from), (to - from) as usize) })?;
            at += n;
        }
        Ok(())
    }

    /// Bytes read since opening.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.shared.bytes.load(Ordering::Relaxed))
    }

    /// Seconds during which at least one request was in flight.
    #[must_use]
    pub fn busy_seconds(&self) -> f64 {
        self.shared
            .busy
            .lock()
            .map_or(0.0, |b| (b.total + b.since.map_or(Duration::ZERO, |s| s.elapsed())).as_secs_f64())
    }

    /// How it reads, e.g. `pread, O_DIRECT, 4 threads`.
    #[must_use]
    pub fn describe(&self) -> String {
        let direct = self.shared.sources.iter().filter(|s| s.direct.is_some()).count();
        let how = match direct {
            0 => "buffered (this file system has no O_DIRECT)".to_string(),
            n if n == self.shared.sources.len() => "O_DIRECT".to_string(),
            n => format!("O_DIRECT for {n} of {} files, the rest buffered", self.shared.sources.len()),
        };
        format!("pread, {how}, {THREADS} threads")
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.queue = None;
        for t in self.threads.drain(..) {
            let _ = t.join();
        }
    }
}

fn serve(rx: &Mutex<Receiver<Request>>, shared: &Shared) {
    loop {
        let Ok(request) = rx.lock().map_or_else(|_| Err(std::sync::mpsc::RecvError), |rx| rx.recv()) else { return };
        if let Ok(mut b) = shared.busy.lock() {
            b.in_flight += 1;
            if b.in_flight == 1 {
                b.since = Some(Instant::now());
            }
        }
        if !shared.delay.is_zero() {
            std::thread::sleep(shared.delay);
        }
        let result = shared.sources[request.source].read(request.offset, request.len, request.dst as *mut u8);
        if result.is_ok() {
            shared.bytes.fetch_add(request.len, Ordering::Relaxed);
        }
        if let Ok(mut b) = shared.busy.lock() {
            b.in_flight -= 1;
            if b.in_flight == 0
                && let Some(since) = b.since.take()
            {
                b.total += since.elapsed();
            }
        }
        if let Ok(mut left) = request.ticket.left.lock() {
            left.0 -= 1;
            if let Err(e) = result {
                left.1.get_or_insert(e);
            }
            if left.0 == 0 {
                request.ticket.done.notify_all();
            }
        }
    }
}
