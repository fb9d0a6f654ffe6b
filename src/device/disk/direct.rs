//! Reading and writing past the page cache: whether a file system does it, and what it wants to be aligned.

use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a direct read must be a multiple of, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Address in memory.
    pub memory: u32,
    /// Offset and length in the file.
    pub offset: u32,
}

/// Opens `path` for reading past the page cache.
///
/// # Errors
/// The file system has no O_DIRECT, or the file can't be opened.
pub fn open_direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Makes the new file `path` for writing past the page cache.
///
/// # Errors
/// There is such a file already, the file system has no O_DIRECT, or the folder can't be written.
pub fn create_direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Whether one aligned page can be read with O_DIRECT. Some file systems refuse at open, others only at the read.
#[must_use]
pub fn reads_direct(path: &Path) -> bool {
    let mut buffer = vec![0u8; 8192];
    let start = buffer.as_ptr().align_offset(4096);
    open_direct(path).and_then(|f| f.read_at(&mut buffer[start..start + 4096], 0)).is_ok_and(|n| n > 0)
}

/// What direct reads of `path` must be aligned to, where the kernel (6.1 and newer) says; `None` where it doesn't.
#[must_use]
pub fn alignment(path: &Path) -> Option<Alignment> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a plain structure of integers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a terminated name and a structure of the kernel's size, both ours for the call.
    let rc = unsafe { libc::statx(libc::AT_FDCWD, name.as_ptr(), 0, libc::STATX_DIOALIGN, &raw mut found) };
    // Zero offsets: the file system knows the question and has no direct reads.
    (rc == 0 && found.stx_mask & libc::STATX_DIOALIGN != 0 && found.stx_dio_offset_align > 0)
        .then_some(Alignment { memory: found.stx_dio_mem_align, offset: found.stx_dio_offset_align })
}

/// A file of weights, by its name.
pub(super) fn is_weights(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "safetensors")
}

/// The largest file of weights below `folder`, looked for within bounds.
#[must_use]
pub fn largest_weights(folder: &Path) -> Option<PathBuf> {
    let mut best: Option<(u64, PathBuf)> = None;
    let mut folders = vec![folder.to_path_buf()];
    // A hub cache is a few thousand entries; the bound keeps a strange one from taking minutes.
    for _ in 0..20_000 {
        let Some(folder) = folders.pop() else { break };
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(t) if t.is_dir() => folders.push(path),
                Ok(_) if is_weights(&path) => {
                    let len = std::fs::metadata(&path).map_or(0, |m| if m.is_file() { m.len() } else { 0 });
                    if len > best.as_ref().map_or(0, |b| b.0) {
                        best = Some((len, path));
                    }
                }
                _ => {}
            }
        }
    }
    best.map(|(_, path)| path)
}

/// A regular file of at least one page in `path` (or `path` itself) to try a direct read on.
pub(super) fn sample_file(path: &Path) -> Option<PathBuf> {
    let usable = |p: &Path| std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.len() >= 4096);
    if usable(path) {
        return Some(path.to_path_buf());
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(path).ok()?.take(4096).flatten().map(|e| e.path()).collect();
    files.sort_by_key(|p| !is_weights(p));
    files.into_iter().find(|p| usable(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_pl_11_alignment_is_a_power_of_two_or_not_said() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let file = dir.path().join("w");
        std::fs::write(&file, vec![7_u8; 8192]).unwrap();
        if let Some(a) = alignment(&file) {
            assert!(a.offset.is_power_of_two() && a.memory.is_power_of_two() && a.offset <= 65536, "{a:?}");
        }
        assert_eq!(alignment(&dir.path().join("absent")), None);
        assert!(!reads_direct(&dir.path().join("absent")));
    }

    #[test]
    fn the_largest_file_of_weights_is_found_below_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("m/snapshots")).unwrap();
        std::fs::write(dir.path().join("m/small.safetensors"), [0; 10]).unwrap();
        std::fs::write(dir.path().join("m/snapshots/large.safetensors"), [0; 20]).unwrap();
        std::fs::write(dir.path().join("m/other.bin"), [0; 99]).unwrap();
        assert_eq!(largest_weights(dir.path()), Some(dir.path().join("m/snapshots/large.safetensors")));
        assert_eq!(largest_weights(&dir.path().join("none")), None);
    }
}
