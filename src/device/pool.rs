//! A few threads that read or write a drive in turn, past the page cache, sampled ten times a second; and how long a head
//! takes to move.

use super::disk;
use crate::error::{Error, Result};
use crate::units::MIB;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads, each with one call in flight.
pub const THREADS: usize = 8;
/// Bytes of one call.
pub const PIECE: u64 = 4 * MIB;
/// Time between two samples.
pub const TICK: Duration = Duration::from_millis(100);
/// What the kernel calls a file system that lies in memory (`TMPFS_MAGIC`, `RAMFS_MAGIC`).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// What was read or written, and how fast.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Bytes per second of each tick, in order.
    pub ticks: Vec<f64>,
    /// Times the files were begun anew.
    pub wraps: u64,
    /// How, in words.
    pub how: String,
}

impl Moved {
    /// Bytes per second over the whole time.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }
}

/// Refuses files whose reads would not reach a drive.
///
/// # Errors
/// There is no file, or one lies in memory or can't be read past the page cache.
pub fn check(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let elsewhere = "give a file on the drive itself";
        if rustix::fs::statfs(path).is_ok_and(|s| IN_MEMORY.contains(&s.f_type)) {
            return Err(Error::usage(format!("'{}' lies in memory, not on a drive", path.display())).next(elsewhere));
        }
        if !disk::reads_direct(path) {
            let e = std::io::Error::from(std::io::ErrorKind::Unsupported);
            return Err(Error::io("read past the page cache", path, e).next(elsewhere));
        }
    }
    if files.iter().all(|p| std::fs::metadata(p).is_ok_and(|m| m.len() == 0)) {
        return Err(Error::usage("there is no file to read").next("give a model, --path FILE, or --write to make one"));
    }
    Ok(())
}

/// Reads `files` in order for `seconds`, again from the first when all are read.
///
/// # Errors
/// As [`check`], or the drive fails.
pub fn read(files: &[PathBuf], seconds: f64) -> Result<Moved> {
    check(files)?;
    let mut open: Vec<(File, &Path, u64)> = Vec::new();
    for path in files {
        let file = disk::open_direct(path).map_err(|e| Error::io("read past the page cache", path, e))?;
        let len = file.metadata().map_err(|e| Error::io("stat", path, e))?.len();
        open.push((file, path, len.div_ceil(PIECE)));
    }
    let pieces: u64 = open.iter().map(|f| f.2).sum::<u64>().max(1);
    let end = Instant::now() + Duration::from_secs_f64(seconds.max(0.0));
    let mut moved = run(&|turn, buffer| {
        // The first round of pieces is always read: even no time at all measures something.
        if turn >= THREADS as u64 && Instant::now() >= end {
            return Ok(None);
        }
        let mut piece = turn % pieces;
        for (file, path, n) in &open {
            if piece < *n {
                let got = file.read_at(buffer, piece * PIECE).map_err(|e| Error::io("read", path, e))?;
                return Ok(Some(got as u64));
            }
            piece -= n;
        }
        Ok(None)
    })?;
    moved.wraps = (moved.bytes / PIECE) / pieces;
    moved.how = format!("pread, O_DIRECT, {THREADS} threads");
    Ok(moved)
}

/// What a thread does in a turn, with its buffer: the bytes it moved, `None` when there are no more turns.
pub type Work<'a> = dyn Fn(u64, &mut [u8]) -> Result<Option<u64>> + Sync + 'a;

/// Gives turns 0, 1, 2, … with an aligned buffer of [`PIECE`] bytes to the threads until one answers `None`, and
/// samples the bytes that they report.
///
/// # Errors
/// The first of a thread.
pub fn run(work: &Work<'_>) -> Result<Moved> {
    let (turn, done, running) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(THREADS as u64));
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let begun = Instant::now();
    let mut ticks = Vec::new();
    std::thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                let mut memory = vec![1_u8; PIECE as usize + 4096];
                let start = memory.as_ptr().align_offset(4096);
                let buffer = &mut memory[start..start + PIECE as usize];
                loop {
                    match work(turn.fetch_add(1, Ordering::Relaxed), buffer) {
                        Ok(Some(bytes)) => done.fetch_add(bytes, Ordering::Relaxed),
                        Ok(None) => break,
                        Err(e) => {
                            if let Ok(mut slot) = failure.lock() {
                                slot.get_or_insert(e);
                            }
                            break;
                        }
                    };
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        let (mut last, mut before) = (Instant::now(), 0);
        while running.load(Ordering::Acquire) > 0 {
            let left = TICK.checked_sub(last.elapsed()).unwrap_or_default();
            std::thread::sleep(left.min(Duration::from_millis(10)));
            if last.elapsed() >= TICK {
                let now = done.load(Ordering::Relaxed);
                ticks.push((now - before) as f64 / last.elapsed().as_secs_f64());
                (last, before) = (Instant::now(), now);
            }
        }
    });
    if let Some(e) = failure.into_inner().unwrap_or_default() {
        return Err(e);
    }
    let (bytes, seconds) = (done.into_inner(), begun.elapsed().as_secs_f64());
    if ticks.is_empty() {
        ticks.push(bytes as f64 / seconds.max(1e-9));
    }
    Ok(Moved { bytes, seconds, ticks, ..Moved::default() })
}

/// Median seconds of a read of one page at places all over `file`; `None` where it is too small to tell, or isn't read.
#[must_use]
pub fn seek_seconds(file: &Path) -> Option<f64> {
    const READS: u64 = 15;
    const LEAST: u64 = 64 * MIB;
    let open = disk::open_direct(file).ok()?;
    let pages = open.metadata().ok().map(|m| m.len()).filter(|n| *n >= LEAST)? / 4096;
    let mut memory = vec![0_u8; 8192];
    let start = memory.as_ptr().align_offset(4096);
    let mut times = Vec::new();
    for i in 0..READS {
        // Places that no read-ahead guesses.
        let page = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % pages;
        let begun = Instant::now();
        open.read_at(&mut memory[start..start + 4096], page * 4096).ok()?;
        times.push(begun.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_given_once_and_their_bytes_counted() {
        let moved = run(&|turn, buffer| {
            assert_eq!((buffer.len() as u64, buffer.as_ptr() as usize % 4096), (PIECE, 0));
            Ok((turn < 20).then_some(turn))
        })
        .unwrap();
        assert_eq!(moved.bytes, 190);
        assert!(!moved.ticks.is_empty() && moved.mean() > 0.0);
        let e = run(&|turn, _| if turn < 3 { Ok(Some(1)) } else { Err(Error::run("broken")) }).unwrap_err();
        assert!(e.to_string().contains("broken"), "{e}");
    }

    #[test]
    fn nothing_to_read_is_said() {
        assert!(check(&[]).unwrap_err().to_string().contains("no file to read"));
        assert_eq!(seek_seconds(Path::new("absent")), None);
    }
}
