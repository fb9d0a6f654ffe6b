//! `bench disk`: the sustained rate of a drive, past the page cache.
//!
//! Eight threads share one sequence of places; each asks for 4 MiB at a time, so 32 requests of 1 MiB are under way.
//! Reading takes files that are there; writing happens only when asked for, to a file that is removed again.

use super::stats::Sample;
use super::{BENCH_SCHEMA, Say};
use crate::device::disk;
use crate::error::{Error, Result};
use crate::units::{Bytes, MIB, rate};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads, each with one call in flight.
pub const THREADS: usize = 8;
/// Bytes of one call.
const PIECE: u64 = 4 * MIB;
/// Time between two samples.
const TICK: Duration = Duration::from_millis(100);
/// What the kernel calls a file system that lies in memory (`TMPFS_MAGIC`, `RAMFS_MAGIC`).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Job {
    /// Files to read, one after the other, again from the first when all are read.
    pub files: Vec<PathBuf>,
    /// Folder of the drive, for its kind and for writing.
    pub dir: PathBuf,
    /// Seconds of reading.
    pub seconds: f64,
    /// Bytes to write; `None` writes nothing.
    pub write: Option<Bytes>,
}

/// A measured rate.
#[derive(Clone, Debug)]
pub struct Rate {
    /// Bytes moved.
    pub bytes: u64,
    /// Wall-clock seconds, a final sync included.
    pub seconds: f64,
    /// Bytes per second of each tenth of a second.
    pub samples: Sample,
    /// Times the files were begun anew.
    pub wraps: u64,
}

impl Rate {
    /// Bytes per second over the whole time.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }

    fn json(&self) -> Value {
        let mut out = self.samples.json();
        out["mean"] = json!(self.mean());
        out["bytes"] = json!(self.bytes);
        out["seconds"] = json!(self.seconds);
        out["wraps"] = json!(self.wraps);
        out
    }
}

/// The weights (or all files of at least 1 MiB) that `path` means: itself, or those in it.
///
/// # Errors
/// It isn't there.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let meta = std::fs::metadata(path).map_err(|e| Error::input("read", path, e))?;
    if meta.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| Error::input("list", path, e))?;
    let large = |p: &PathBuf| std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.len() >= MIB);
    let mut all: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(large).collect();
    all.sort();
    let is_weights = |p: &PathBuf| p.extension().is_some_and(|e| e == "safetensors");
    if all.iter().any(is_weights) {
        all.retain(is_weights);
    }
    Ok(all)
}

/// Runs `job`: one JSON object.
///
/// # Errors
/// There is nothing to read, the file system has no O_DIRECT, or the drive fails.
pub fn run(job: &Job, say: Say<'_>) -> Result<Value> {
    let mut files = job.files.clone();
    let (mut written, mut temporary) = (None, None);
    if let Some(bytes) = job.write.map(|b| b.align_up(PIECE)) {
        let path = job.dir.join(format!("blockstream-bench-{}.tmp", std::process::id()));
        say(&format!("writes {bytes} to '{}' and removes it", path.display()));
        let (made, rate) = write(path, bytes)?;
        written = Some(rate);
        if files.is_empty() {
            files.push(made.0.clone());
        }
        temporary = Some(made);
    }
    let reading = read(&files, job.seconds)?;
    drop(temporary);
    let drive = disk::describe(&job.dir);
    Ok(json!({
        "schema": BENCH_SCHEMA,
        "what": "disk",
        "drive": { "kind": drive.kind, "devices": drive.devices, "free": drive.free },
        "threads": THREADS,
        "request": MIB,
        "in_flight": THREADS as u64 * PIECE / MIB,
        "o_direct": true,
        "files": files.len(),
        "read": reading.json(),
        "write": written.as_ref().map(Rate::json),
    }))
}

/// `run`'s object in two lines.
#[must_use]
pub fn render(value: &Value) -> String {
    let line = |what: &str, r: &Value| {
        let of = |key: &str| rate(r[key].as_f64().unwrap_or(f64::NAN));
        format!(
            "{what}: {} mean, median {} (p10 {}, p90 {}) over {:.1} s, {}\n",
            of("mean"),
            of("median"),
            of("p10"),
            of("p90"),
            r["seconds"].as_f64().unwrap_or(f64::NAN),
            Bytes(r["bytes"].as_u64().unwrap_or(0)),
        )
    };
    let mut out = line("read", &value["read"]);
    if value["write"].is_object() {
        out += &line("write", &value["write"]);
    }
    out + &format!("O_DIRECT, {} x 1 MiB in flight, drive: {}\n", value["in_flight"], value["drive"]["kind"])
}

/// Reads `files` in order for `seconds`.
///
/// # Errors
/// There is nothing to read, the file system has no O_DIRECT or lies in memory, or the drive fails.
pub fn read(files: &[PathBuf], seconds: f64) -> Result<Rate> {
    let mut open: Vec<(File, &Path, u64)> = Vec::new();
    for path in files {
        let direct = |e| Error::io("read past the page cache", path, e).next("give a file on the drive itself");
        if rustix::fs::statfs(path).is_ok_and(|s| IN_MEMORY.contains(&s.f_type)) {
            return Err(Error::usage(format!("'{}' lies in memory, not on a drive", path.display()))
                .next("give a file on the drive itself"));
        }
        if !disk::reads_direct(path) {
            return Err(direct(std::io::Error::from(std::io::ErrorKind::Unsupported)));
        }
        let file = disk::open_direct(path).map_err(direct)?;
        let len = file.metadata().map_err(|e| Error::io("stat", path, e))?.len();
        open.push((file, path, len.div_ceil(PIECE)));
    }
    let pieces: u64 = open.iter().map(|f| f.2).sum();
    if pieces == 0 {
        return Err(Error::usage("there is no file to read").next("give a model, --path FILE, or --write to make one"));
    }
    let end = Instant::now() + Duration::from_secs_f64(seconds.max(0.0));
    let mut rate = pool(&|turn, buffer| {
        // The first round of pieces is always read: even `--seconds 0` measures something.
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
    rate.wraps = (rate.bytes / PIECE) / pieces;
    Ok(rate)
}

/// A file that goes with its owner.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes `bytes`, whole pieces, to the new file `path` and syncs it.
fn write(path: PathBuf, bytes: Bytes) -> Result<(Temporary, Rate)> {
    let refused = |e| Error::io("write past the page cache to", &path, e).next("name a folder on the drive by --path");
    let file = disk::create_direct(&path).map_err(refused)?;
    let made = Temporary(path.clone());
    let pieces = bytes.0 / PIECE;
    let begun = Instant::now();
    let mut rate = pool(&|turn, buffer| {
        if turn >= pieces {
            return Ok(None);
        }
        // Different bytes in every sector: a drive that compresses or deduplicates would flatter itself.
        for (i, sector) in buffer.chunks_exact_mut(512).enumerate() {
            sector[..8].copy_from_slice(&(turn << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        file.write_all_at(buffer, turn * PIECE).map_err(refused)?;
        Ok(Some(PIECE))
    })?;
    file.sync_data().map_err(|e| Error::io("sync", &path, e))?;
    rate.seconds = begun.elapsed().as_secs_f64();
    Ok((made, rate))
}

/// What a thread does in a turn, with its buffer: the bytes it moved, `None` when there are no more turns.
type Work<'a> = dyn Fn(u64, &mut [u8]) -> Result<Option<u64>> + Sync + 'a;

/// Gives turns 0, 1, 2, … with an aligned buffer of [`PIECE`] bytes to the threads until one answers `None`, and
/// samples the bytes that they report.
fn pool(work: &Work<'_>) -> Result<Rate> {
    let (turn, done, running) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(THREADS as u64));
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let begun = Instant::now();
    let mut samples = Vec::new();
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
            let ticks = TICK.checked_sub(last.elapsed()).unwrap_or_default();
            std::thread::sleep(ticks.min(Duration::from_millis(10)));
            if last.elapsed() >= TICK {
                let now = done.load(Ordering::Relaxed);
                samples.push((now - before) as f64 / last.elapsed().as_secs_f64());
                (last, before) = (Instant::now(), now);
            }
        }
    });
    if let Some(e) = failure.into_inner().unwrap_or_default() {
        return Err(e);
    }
    let (bytes, seconds) = (done.into_inner(), begun.elapsed().as_secs_f64());
    if samples.is_empty() {
        samples.push(bytes as f64 / seconds.max(1e-9));
    }
    Ok(Rate { bytes, seconds, samples: Sample::of(samples), wraps: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(dir: &Path, write: Option<Bytes>) -> Job {
        Job { files: files(dir).unwrap(), dir: dir.to_path_buf(), seconds: 0.3, write }
    }

    /// A folder on a drive with O_DIRECT, or `None` where this machine has no such place.
    fn drive() -> Option<tempfile::TempDir> {
        let dir = tempfile::tempdir_in(".").unwrap();
        let probe = dir.path().join("probe");
        std::fs::write(&probe, vec![7_u8; 8192]).unwrap();
        let direct = disk::reads_direct(&probe) && read(std::slice::from_ref(&probe), 0.0).is_ok();
        std::fs::remove_file(probe).unwrap();
        direct.then_some(dir)
    }

    #[test]
    fn a_file_is_really_read() {
        let Some(dir) = drive() else { return };
        std::fs::write(dir.path().join("w.safetensors"), vec![7_u8; (9 << 20) + 100]).unwrap();
        std::fs::write(dir.path().join("small.json"), "{}").unwrap();
        let v = run(&job(dir.path(), None), &|_| {}).unwrap();
        assert_eq!((v["schema"].clone(), v["files"].clone(), v["write"].clone()), (json!(1), json!(1), Value::Null));
        let r = &v["read"];
        assert!(r["bytes"].as_u64().unwrap() > 9 << 20 && r["wraps"].as_u64().unwrap() >= 1, "{r}");
        for key in ["median", "p10", "p90", "mean"] {
            assert!(r[key].as_f64().unwrap() > 0.0, "{key}");
        }
        assert!(render(&v).contains("read: ") && !render(&v).contains("write: "));
    }

    #[test]
    fn writing_says_how_much_first_and_leaves_nothing() {
        let Some(dir) = drive() else { return };
        let said = std::cell::RefCell::new(Vec::new());
        let v = run(&job(dir.path(), Some(Bytes(8 * MIB))), &|l| said.borrow_mut().push(l.to_string())).unwrap();
        assert!(said.borrow()[0].contains("writes 8.4 MB"), "{said:?}");
        assert_eq!(v["write"]["bytes"], 8 * MIB);
        assert!(v["read"]["bytes"].as_u64().unwrap() >= 8 * MIB, "what was written is read back");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn memory_is_no_drive_and_nothing_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let e = run(&job(dir.path(), None), &|_| {}).unwrap_err();
        assert!(e.to_string().contains("no file to read"), "{e}");
        if Path::new("/dev/shm").is_dir() {
            let shm = tempfile::tempdir_in("/dev/shm").unwrap();
            std::fs::write(shm.path().join("w"), vec![1_u8; 2 << 20]).unwrap();
            let e = run(&job(shm.path(), None), &|_| {}).unwrap_err();
            assert!(e.to_string().contains("lies in memory"), "{e}");
        }
    }
}
