//! Every rung against the same files: equal bytes, faults, and what the machine may refuse.

mod equal;
mod faulty;
mod machine;

use super::faults::Faults;
use super::{Backend, Options, Reader, SECTOR};
use crate::checkpoint::WeightFile;
use crate::store::HostMemory;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One mebibyte; also the size of a test's requests.
const MIB: u64 = 1 << 20;

/// Files of a test, and what is in them.
struct Files {
    /// Deleted with this.
    _dir: tempfile::TempDir,
    files: Vec<WeightFile>,
    contents: Vec<Vec<u8>>,
}

/// Files of these lengths in the folder for temporary files.
fn files(lengths: &[u64]) -> Files {
    files_in(&std::env::temp_dir(), lengths)
}

fn files_in(parent: &Path, lengths: &[u64]) -> Files {
    let dir = tempfile::tempdir_in(parent).unwrap();
    let contents: Vec<Vec<u8>> = lengths.iter().zip(1_u64..).map(|(&n, seed)| noise(seed, n)).collect();
    let files = contents.iter().enumerate().map(|(i, bytes)| {
        let path = dir.path().join(format!("model-{i}.safetensors"));
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        WeightFile { path, bytes: bytes.len() as u64 }
    });
    Files { files: files.collect(), _dir: dir, contents }
}

/// `n` bytes that differ from place to place (splitmix64).
fn noise(seed: u64, n: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(n as usize + 8);
    let mut rng = Rng(seed << 32);
    while (out.len() as u64) < n {
        out.extend(rng.next().to_le_bytes());
    }
    out.truncate(n as usize);
    out
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Memory with all pages touched, filled with `fill`.
fn memory(len: u64, fill: u8) -> HostMemory {
    let m = HostMemory::new(len).unwrap();
    // SAFETY: our own fresh mapping.
    unsafe { std::ptr::write_bytes(m.at(0), fill, m.len() as usize) };
    m
}

fn bytes_of(m: &HostMemory, offset: u64, len: usize) -> &[u8] {
    // SAFETY: inside the mapping; the tests wait for reads before they look.
    unsafe { std::slice::from_raw_parts(m.at(offset), len) }
}

/// The backends that this machine has, and whether to register memory with them.
fn rungs() -> Vec<(Backend, bool)> {
    match super::ring(1) {
        Ok(_) => vec![(Backend::Uring, true), (Backend::Uring, false), (Backend::Pread, false)],
        Err(why) => {
            eprintln!("io_uring is not tried: {why}");
            vec![(Backend::Pread, false)]
        }
    }
}

fn backends() -> Vec<Backend> {
    rungs().into_iter().filter(|r| !r.1).map(|r| r.0).collect()
}

fn options(backend: Backend) -> Options {
    Options { backend, request: MIB, ..Options::default() }
}

/// A reader that faults are told to, and that gives up after `stall_ms`.
fn faulty(f: &Files, backend: Backend, stall_ms: u64) -> (Reader, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let stall_limit = Duration::from_millis(stall_ms);
    let o = Options { faults: Some(faults.clone()), stall_limit, ..options(backend) };
    (Reader::of_files(&f.files, o).unwrap(), faults)
}
