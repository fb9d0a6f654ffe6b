//! The one way this program replaces a file: a temporary name beside it, synced, then renamed.
//!
//! A reader sees the old bytes or the new ones, never half of them, also after a power cut.

use crate::error::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces (or makes) the file `path` with `bytes`; returns how many bytes that were.
///
/// # Errors
/// The folder doesn't exist or the disk refuses; the old file stands and no temporary file stays behind.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<u64> {
    replace_with(path, |file| file.write_all(bytes))?;
    Ok(bytes.len() as u64)
}

/// As [`replace`], for content that `fill` writes piece by piece.
///
/// # Errors
/// As [`replace`], and whatever `fill` reports.
pub fn replace_with(path: &Path, fill: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let temp = temporary(path);
    let written = OpenOptions::new().write(true).create_new(true).open(&temp).and_then(|mut file| {
        fill(&mut file)?;
        file.sync_all()?;
        fs::rename(&temp, path)
    });
    if let Err(e) = written {
        let _ = fs::remove_file(&temp);
        return Err(Error::io("write", path, e));
    }
    sync_dir(parent(path))
}

/// Makes the names in `dir` (new files, renames) survive a power cut.
///
/// # Errors
/// The folder can't be opened or synced.
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("sync", dir, e))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// A hidden sibling whose name no other thread or process uses.
fn temporary(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.{}-{n}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_litter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(replace(&path, b"old").unwrap(), 3);
        let e = replace_with(&path, |f| {
            f.write_all(b"half")?;
            Err(std::io::Error::other("disk full"))
        });
        assert!(e.unwrap_err().to_string().contains("disk full"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let e = replace(&dir.path().join("no/such/a"), b"x").unwrap_err();
        assert!(e.to_string().contains("no/such/a"), "{e}");
    }
}
