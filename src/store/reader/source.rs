//! One open weight file: how it can be read, and whether it is still the file that was opened.

use crate::checkpoint::WeightFile;
use crate::error::{Error, Result};
use crate::store::HostMemory;
use crate::store::layout::SECTOR;
use crate::units::Bytes;
use std::fs::{File, Metadata};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a file's contents are known by: size, modification time, inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    bytes: u64,
    modified: (i64, i64),
    inode: (u64, u64),
}

impl From<&Metadata> for Identity {
    fn from(m: &Metadata) -> Identity {
        Identity { bytes: m.len(), modified: (m.mtime(), m.mtime_nsec()), inode: (m.dev(), m.ino()) }
    }
}

/// What `O_DIRECT` does on a file, as found by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direct {
    /// The page cache is left alone.
    Yes,
    /// The file system takes the flag and fills the page cache all the same.
    Cached,
    /// Refused, at the open or at the read.
    No,
}

/// A weight file, open twice: past the page cache where that works, and buffered.
#[derive(Debug)]
pub(super) struct Source {
    pub path: PathBuf,
    /// Length when it was opened; nothing past it is read.
    pub len: u64,
    /// Which of the reader's drives it lies on, counted from 0.
    pub drive: usize,
    direct: Option<File>,
    cached: bool,
    /// A direct read was refused after the probe had been served.
    refused: AtomicBool,
    buffered: File,
    identity: Identity,
}

/// Numbers the drives of `sources` in the order of their first file.
pub(super) fn number_drives(sources: &mut [Source]) {
    let mut drives: Vec<u64> = Vec::new();
    for s in sources {
        let device = s.identity.inode.0;
        s.drive = drives.iter().position(|d| *d == device).unwrap_or(drives.len());
        if s.drive == drives.len() {
            drives.push(device);
        }
    }
}

impl Source {
    /// Opens `f` and tries a direct read.
    ///
    /// # Errors
    /// It can't be opened, or has another length than its header told.
    pub fn open(f: &WeightFile) -> Result<Source> {
        let open = |flags| std::fs::OpenOptions::new().read(true).custom_flags(flags).open(&f.path);
        let buffered = open(0).map_err(|e| Error::io("open", &f.path, e))?;
        let identity = Identity::from(&buffered.metadata().map_err(|e| Error::io("stat", &f.path, e))?);
        let len = identity.bytes;
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
        // A file system in memory may accept both, and has nothing but its page cache.
        let direct = if in_memory(&buffered) { None } else { open(libc::O_DIRECT).ok() };
        let direct = direct.filter(|d| read_sector(d, 0));
        let cached = direct.as_ref().is_some_and(|d| fills_cache(d, len));
        Ok(Source {
            path: f.path.clone(),
            len,
            drive: 0,
            direct,
            cached,
            refused: AtomicBool::new(false),
            buffered,
            identity,
        })
    }

    /// The descriptor for reads past the page cache, where the file system has them.
    pub fn direct_fd(&self) -> Option<RawFd> {
        self.direct.as_ref().filter(|_| !self.refused.load(Ordering::Relaxed)).map(AsRawFd::as_raw_fd)
    }

    /// The descriptor for buffered reads of any offset and length.
    pub fn buffered_fd(&self) -> RawFd {
        self.buffered.as_raw_fd()
    }

    /// From now on read this file buffered: the kernel has refused an aligned direct read.
    pub fn refuse_direct(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// What `O_DIRECT` does on this file.
    pub fn direct(&self) -> Direct {
        match self.direct_fd() {
            None => Direct::No,
            Some(_) if self.cached => Direct::Cached,
            Some(_) => Direct::Yes,
        }
    }

    /// Compares size, modification time and inode with those at the open.
    ///
    /// # Errors
    /// They differ, or nothing is at the path any more.
    pub fn check_unchanged(&self) -> Result<()> {
        let open = self.buffered.metadata().map_err(|e| Error::io("stat", &self.path, e))?;
        let (now, then) = (Identity::from(&open), self.identity);
        let changed = if now.bytes != then.bytes {
            format!("is {} now and was {}", Bytes(now.bytes), Bytes(then.bytes))
        } else if now.modified != then.modified {
            "was written to".to_string()
        } else {
            match std::fs::metadata(&self.path) {
                Ok(m) if Identity::from(&m).inode == then.inode => return Ok(()),
                Ok(_) => "was replaced by another file".to_string(),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => "was moved or deleted".to_string(),
                Err(e) => return Err(Error::io("stat", &self.path, e)),
            }
        };
        Err(Error::checkpoint(format!("'{}' {changed} since this run opened it", self.path.display()))
            .next("stop what changes the model's folder, restore the file, then resume from the last checkpoint"))
    }
}

/// Whether the file lies on tmpfs or ramfs.
fn in_memory(f: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::fstatfs(f).is_ok_and(|s| [TMPFS, RAMFS].contains(&s.f_type))
}

/// Whether one sector at `offset` can be read.
fn read_sector(f: &File, offset: u64) -> bool {
    let Ok(mem) = HostMemory::new(SECTOR) else { return false };
    // SAFETY: one page of our own fresh mapping.
    let buf = unsafe { std::slice::from_raw_parts_mut(mem.at(0), SECTOR as usize) };
    f.read_at(buf, offset).is_ok()
}

/// Whether direct reads go through the page cache all the same (ZFS, compressed btrfs): reads a sector that isn't in
/// the cache and looks again. False where that can't be told (before Linux 6.5, or every place tried is in the cache).
pub(super) fn fills_cache(direct: &File, len: u64) -> bool {
    const PLACES: u64 = 8;
    let places = (0..PLACES).map(|i| len / PLACES * i / SECTOR * SECTOR);
    let cold = places.into_iter().find(|&at| cached_pages(direct, at) == Some(0));
    cold.is_some_and(|at| read_sector(direct, at) && cached_pages(direct, at).is_some_and(|n| n > 0))
}

/// Pages in the page cache of the sector at `offset`, by `cachestat(2)`.
fn cached_pages(f: &File, offset: u64) -> Option<u64> {
    /// The same on every architecture: it is younger than their common table.
    const CACHESTAT: libc::c_long = 451;
    let range = [offset, SECTOR];
    let mut counts = [0_u64; 5];
    // SAFETY: `struct cachestat_range` is two u64, `struct cachestat` five; both outlive the call.
    let rc = unsafe { libc::syscall(CACHESTAT, f.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    (rc == 0).then_some(counts[0])
}
