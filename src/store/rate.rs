//! The rate of a drive as a run would read it: the same reader, requests and depth, chunk after chunk.

use super::memory::HostMemory;
use super::reader::{Options, ReadTicket, Reader};
use crate::checkpoint::WeightFile;
use crate::device::pool::{self, Moved, TICK};
use crate::error::{Error, Result};
use crate::units::MIB;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

/// Bytes of a chunk: what a run cuts its segments into.
const CHUNK: u64 = 16 * MIB;
/// Chunks asked for at a time: with the reader's requests of 2 MiB its queue is always full.
const CHUNKS: u64 = 16;

/// Reads `files` in order for `seconds`, again from the first when all are read.
///
/// # Errors
/// As [`pool::check`]; a file can't be read, or the drive fails.
pub fn read(files: &[PathBuf], seconds: f64) -> Result<Moved> {
    pool::check(files)?;
    let weights = |path: &PathBuf| {
        let path = path.canonicalize().map_err(|e| Error::io("open", path, e))?;
        let bytes = std::fs::metadata(&path).map_err(|e| Error::io("stat", &path, e))?.len();
        Ok(WeightFile { path, bytes })
    };
    let files = files.iter().map(weights).collect::<Result<Vec<_>>>()?;
    let places: Vec<(usize, u64)> =
        files.iter().enumerate().flat_map(|(i, f)| (0..f.bytes.div_ceil(CHUNK)).map(move |n| (i, n * CHUNK))).collect();
    // The reader goes first: it waits for reads that are still under way into this memory.
    let memory = HostMemory::new(CHUNK * CHUNKS)?;
    let reader = Reader::of_files(&files, Options::default())?;
    touch(&memory);
    reader.register(&memory)?;
    let how = reader.describe();

    let begun = Instant::now();
    let (mut last, mut before, mut ticks) = (begun, 0, Vec::new());
    let mut waiting = VecDeque::new();
    let mut turn = 0_u64;
    while begun.elapsed().as_secs_f64() < seconds || turn < CHUNKS {
        if waiting.len() as u64 == CHUNKS
            && let Some(oldest) = waiting.pop_front()
        {
            ReadTicket::wait(&oldest)?;
        }
        let (file, at) = places[(turn % places.len() as u64) as usize];
        let buffer = memory.at((turn % CHUNKS) * CHUNK);
        waiting.push_back(reader.read_at(file, at, CHUNK, buffer)?);
        turn += 1;
        if last.elapsed() >= TICK {
            let now = reader.bytes().0;
            ticks.push((now - before) as f64 / last.elapsed().as_secs_f64());
            (last, before) = (Instant::now(), now);
        }
    }
    waiting.iter().try_for_each(ReadTicket::wait)?;
    let (bytes, seconds) = (reader.bytes().0, begun.elapsed().as_secs_f64());
    if ticks.is_empty() {
        ticks.push(bytes as f64 / seconds.max(1e-9));
    }
    Ok(Moved { bytes, seconds, ticks, wraps: turn / places.len() as u64, how })
}

/// Touches every page, as pinning does for a run: registering takes pages that are there.
fn touch(memory: &HostMemory) {
    for at in (0..memory.len()).step_by(4096) {
        // SAFETY: inside the mapping, which nothing else uses yet.
        unsafe { memory.at(at).write_volatile(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_round_and_round_by_the_runs_reader() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, vec![1_u8; (20 << 20) + 100]).unwrap();
        std::fs::write(&b, vec![2_u8; 3 << 20]).unwrap();
        let files = [a, b];
        if pool::check(&files).is_err() {
            return;
        }
        let moved = read(&files, 0.0).unwrap();
        // Three chunks a round, sixteen in all: five rounds and the first chunk, in whole sectors.
        let round = (20 << 20) + 4096 + (3 << 20);
        assert_eq!((moved.bytes, moved.wraps), (5 * round + CHUNK, 5));
        assert!(moved.how.contains("O_DIRECT") && moved.mean() > 0.0 && moved.ticks[0] > 0.0, "{moved:?}");
        assert!(read(&[dir.path().join("absent")], 0.0).is_err());
    }
}
