//! Library noise: fd 1 and fd 2 go to a log file while the screen is up, and its lines show in the log pane.
//!
//! Drivers, libtorch and panics of other threads write to the descriptors directly; nothing else can catch them.

use crate::error::{Error, Result};
use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Most of the log read at once; the rest follows at the next look.
const CHUNK: u64 = 64 << 10;

/// The descriptors while they are redirected. Dropping it puts them back.
pub struct Noise {
    saved: (OwnedFd, OwnedFd),
    log: File,
    /// Where it is written.
    path: PathBuf,
    /// Where it is kept.
    kept: PathBuf,
    read: u64,
    partial: Vec<u8>,
}

impl Noise {
    /// Redirects fd 1 and fd 2 to `path`, which is appended to. Where its folder isn't there yet, no folder is made for
    /// a log that may stay empty: it begins among the system's temporary files, and moves if there is anything in it.
    ///
    /// # Errors
    /// The file can't be opened, or the system refuses.
    pub fn redirect(path: &Path) -> Result<Noise> {
        let kept = path;
        let elsewhere = std::env::temp_dir().join(format!("blockstream-tui-{}.log", std::process::id()));
        let there = path.parent().is_none_or(|p| p.as_os_str().is_empty() || p.is_dir());
        let path = if there { path } else { elsewhere.as_path() };
        if !there {
            // Left by a program that was killed; a link that others made there is not followed.
            let _ = std::fs::remove_file(path);
        }
        let open = OpenOptions::new().append(true).create(there).create_new(!there).read(true).open(path);
        let mut log = open.map_err(|e| Error::io("open", path, e))?;
        let read = log.seek(SeekFrom::End(0)).map_err(|e| Error::io("read", path, e))?;
        let keep = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(refused);
        let saved = (keep(stdout())?, keep(stderr())?);
        dup2_stdout(&log).map_err(refused)?;
        dup2_stderr(&log).map_err(refused)?;
        Ok(Noise { saved, log, path: path.into(), kept: kept.into(), read, partial: Vec::new() })
    }

    /// Leaves fd 1 and fd 2 on the log for good: the terminal that they were is gone.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// A writer to the terminal that stdout was.
    ///
    /// # Errors
    /// The system is out of descriptors.
    pub fn tty(&self) -> Result<File> {
        self.saved.0.try_clone().map(File::from).map_err(|e| Error::device(format!("cannot keep the terminal: {e}")))
    }

    /// Complete lines written since the last call.
    pub fn lines(&mut self) -> Vec<String> {
        let mut fresh = Vec::new();
        // A log that can't be read shows nothing; it is still on disk.
        if self.log.seek(SeekFrom::Start(self.read)).is_ok() {
            let read = (&self.log).take(CHUNK).read_to_end(&mut fresh).unwrap_or(0);
            self.read += read as u64;
        }
        self.partial.extend(fresh);
        let Some(end) = self.partial.iter().rposition(|b| *b == b'\n') else {
            return Vec::new();
        };
        let rest = self.partial.split_off(end + 1);
        let whole = std::mem::replace(&mut self.partial, rest);
        String::from_utf8_lossy(&whole).lines().filter(|l| !l.trim().is_empty()).map(String::from).collect()
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        // Nothing can be done about a descriptor that won't come back.
        let _ = dup2_stdout(&self.saved.0);
        let _ = dup2_stderr(&self.saved.1);
        // An empty log says nothing: a session without noise leaves no file behind.
        if self.log.metadata().is_ok_and(|m| m.len() == 0) {
            let _ = std::fs::remove_file(&self.path);
        } else if self.path != self.kept {
            self.keep_log();
        }
    }
}

impl Noise {
    /// Moves the log to where it is kept, behind what is there. A folder that can't be made leaves it where it is.
    fn keep_log(&self) {
        let folder = self.kept.parent().map_or(Ok(()), std::fs::create_dir_all);
        let moved = folder.and_then(|()| {
            let mut to = OpenOptions::new().append(true).create(true).open(&self.kept)?;
            std::io::copy(&mut File::open(&self.path)?, &mut to)
        });
        if moved.is_ok() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn refused(e: rustix::io::Errno) -> Error {
    Error::device(format!("cannot redirect the output of libraries: {e}"))
}
