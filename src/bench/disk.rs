//! `bench disk`: the sustained rate of a drive, past the page cache.
//!
//! Reading is a run's own: its reader, requests and depth (a pool of threads in a build without libtorch), of files that
//! are there. Writing happens only when asked for, by a pool of threads, to a file that is removed again.

use super::cliff;
use super::stats::Sample;
use super::{BENCH_SCHEMA, Say};
use crate::device::pool::{self, Moved, PIECE, TICK};
use crate::device::{disk, smart};
use crate::error::{Error, Result};
use crate::units::{Bytes, MIB, rate};
use serde_json::{Value, json};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

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
    /// What was moved.
    pub moved: Moved,
    /// Bytes per second of each tenth of a second.
    pub samples: Sample,
}

impl Rate {
    fn of(moved: Moved) -> Rate {
        Rate { samples: Sample::of(moved.ticks.iter().copied()), moved }
    }

    /// Bytes per second over the whole time.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.moved.mean()
    }

    fn json(&self) -> Value {
        let mut out = self.samples.json();
        out["mean"] = json!(self.mean());
        out["bytes"] = json!(self.moved.bytes);
        out["seconds"] = json!(self.moved.seconds);
        out["wraps"] = json!(self.moved.wraps);
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
    // Before anything is written: a drive that still tidies up reads at half its rate (measured: 1.1 of 2.0 GB/s).
    let first = if files.is_empty() { None } else { Some(read(&files, job.seconds)?) };
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
    let right_after_write = first.is_none();
    let reading = match first {
        Some(reading) => reading,
        None => read(&files, job.seconds)?,
    };
    // The largest file has the most places to jump to.
    let largest = files.iter().max_by_key(|f| std::fs::metadata(f).map_or(0, |m| m.len()));
    let seek = largest.and_then(|f| pool::seek_seconds(f));
    drop(temporary);
    let drive = disk::describe(&job.dir);
    let cliff = written.as_ref().and_then(|w| cliff::find(&w.moved.ticks, TICK.as_secs_f64()));
    let by_reading = (drive.kind == "unknown").then(|| disk::kind_by_reading(reading.mean(), seek));
    // A volume on several drives has no wear of its own.
    let wear = smart::of_drive(&drive);
    Ok(json!({
        "schema": BENCH_SCHEMA,
        "what": "disk",
        "drive": {
            "kind": drive.kind,
            "kind_by_reading": by_reading,
            "volume": drive.id,
            "mount": drive.mount.as_ref().map(|m| &m.point),
            "devices": drive.devices,
            "free": drive.free(),
        },
        "reader": reading.moved.how,
        "o_direct": true,
        "seek": seek,
        "right_after_write": right_after_write,
        "wear": wear.map(|w| json!({ "written": w.written, "life_used": w.life_used, "source": w.source })),
        "files": files.len(),
        "read": reading.json(),
        "write": written.as_ref().map(|w| {
            let mut out = w.json();
            out["slc"] = json!(cliff.map(|c| c.bytes));
            out["before_slc"] = json!(cliff.map(|c| c.before));
            out["after_slc"] = json!(cliff.map(|c| c.after));
            out
        }),
    }))
}

/// `run`'s object as text.
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
    let w = &value["write"];
    if w.is_object() {
        out += &line("write", w);
        out += &match (w["slc"].as_u64(), w["after_slc"].as_f64()) {
            (Some(bytes), Some(after)) => {
                format!("the fast cache was full after {}: then {}\n", Bytes(bytes), rate(after))
            }
            _ => "no end of a fast cache seen; write more to look for one (--write-size)\n".into(),
        };
    }
    let seek = value["seek"].as_f64().map(|s| format!(", {:.2} ms a small read", s * 1e3)).unwrap_or_default();
    let drive = &value["drive"];
    let kind = match drive["kind_by_reading"].as_str() {
        Some(kind) => format!("not told by the system, reads like {kind}"),
        None => drive["kind"].as_str().unwrap_or("N/A").to_string(),
    };
    out + &format!("{}{seek}; drive: {kind}\n", value["reader"].as_str().unwrap_or("N/A"))
}

/// Reads `files` in order for `seconds`, as a run reads.
///
/// # Errors
/// There is nothing to read, the file system has no O_DIRECT or lies in memory, or the drive fails.
pub fn read(files: &[PathBuf], seconds: f64) -> Result<Rate> {
    #[cfg(feature = "torch")]
    let moved = crate::store::rate::read(files, seconds)?;
    #[cfg(not(feature = "torch"))]
    let moved = pool::read(files, seconds)?;
    Ok(Rate::of(moved))
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
    let mut moved = pool::run(&|turn, buffer| {
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
    moved.seconds = begun.elapsed().as_secs_f64();
    Ok((made, Rate::of(moved)))
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
