//! Small files of a model folder: read under a cap, with Git-LFS pointers and dangling links told apart.

use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::Bytes;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Largest `config.json` (or other small JSON of a model folder) that is read.
pub const SMALL_JSON: u64 = 16 << 20;

/// Some editors put this before UTF-8 text.
pub const BOM: &[u8] = b"\xef\xbb\xbf";

const LFS_MAGIC: &[u8] = b"version https://git-lfs.github.com/spec/";
/// A pointer file is three short lines; the LFS specification caps it at 1024 bytes.
const LFS_MAX: u64 = 1024;

/// A path in quotes, fit to print.
#[must_use]
pub fn shown(path: &Path) -> String {
    format!("'{}'", clean(&path.display().to_string()))
}

/// Opens a regular file (through links) and returns it with its metadata.
///
/// # Errors
/// Absent, a dangling link (named with its target), not a regular file, or not readable.
pub fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    // Asked before the open: opening a FIFO would wait for a writer for ever.
    let meta = std::fs::metadata(path).map_err(|e| missing(path, e))?;
    if !meta.is_file() {
        return Err(Error::checkpoint(format!("{} is not a regular file", shown(path))));
    }
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let meta = file.metadata().map_err(|e| Error::io("read", path, e))?;
    Ok((file, meta))
}

/// Reads a small file whole, up to `cap` bytes.
///
/// # Errors
/// Those of [`open_regular`]; longer than `cap`; a Git-LFS pointer.
pub fn read_small(path: &Path, cap: u64) -> Result<Vec<u8>> {
    let (file, meta) = open_regular(path)?;
    if meta.len() > cap {
        return Err(Error::checkpoint(format!(
            "{} is {} long, more than the {} this program reads of such a file",
            shown(path),
            Bytes(meta.len()),
            Bytes(cap)
        )));
    }
    let mut bytes = Vec::new();
    file.take(cap).read_to_end(&mut bytes).map_err(|e| Error::io("read", path, e))?;
    refuse_lfs_pointer(path, &bytes, meta.len())?;
    Ok(bytes)
}

/// Reads a small JSON file under [`SMALL_JSON`].
///
/// # Errors
/// Those of [`read_small`], or it isn't JSON of the shape `T`.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = read_small(path, SMALL_JSON)?;
    parse_json(path, &bytes)
}

/// A note for a file that starts with a byte order mark, which no JSON does and some editors write.
#[must_use]
pub fn bom_note(name: &str, bytes: &[u8]) -> Option<String> {
    bytes.starts_with(BOM).then(|| format!("{} starts with a byte order mark, which is skipped", clean(name)))
}

/// Parses the JSON `bytes` of the file at `path`; a byte order mark is skipped.
///
/// # Errors
/// Not JSON of the shape `T`.
pub fn parse_json<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T> {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    serde_json::from_slice(bytes).map_err(|e| {
        let what =
            if bytes.is_empty() { "is empty".into() } else { format!("is not valid: {}", clean(&e.to_string())) };
        Error::checkpoint(format!("{} {what}", shown(path))).next("fetch the file again")
    })
}

/// Refuses a Git-LFS pointer that stands where a real file should be. `head` is the start of a file of `len` bytes.
///
/// # Errors
/// It is one; the message gives the real file's size.
pub fn refuse_lfs_pointer(path: &Path, head: &[u8], len: u64) -> Result<()> {
    if len > LFS_MAX || !head.starts_with(LFS_MAGIC) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(head);
    let real = text.lines().find_map(|l| l.strip_prefix("size ")?.trim().parse().ok());
    let real = real.map_or("of unknown size".into(), |n| Bytes(n).to_string());
    Err(Error::checkpoint(format!("{} is a Git-LFS pointer ({len} bytes; the real file is {real})", shown(path)))
        .next("fetch the real file: download it from the model's page, or run 'git lfs pull' if this is a git clone"))
}

/// The error for a path whose metadata can't be read: absent, a dangling link, or refused.
fn missing(path: &Path, error: std::io::Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return Error::io("read", path, error);
    }
    let Ok(target) = std::fs::read_link(path) else {
        return Error::checkpoint(format!("{} does not exist", shown(path)));
    };
    let blob = path.parent().unwrap_or(Path::new("")).join(&target);
    let mut incomplete = blob.clone().into_os_string();
    incomplete.push(".incomplete");
    let rest = if Path::new(&incomplete).exists() { "; an unfinished '.incomplete' file lies beside it" } else { "" };
    Error::checkpoint(format!(
        "blob missing (interrupted download?): {} links to {}, which does not exist{rest}",
        shown(path),
        shown(&target)
    ))
    .next("download the model again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_or_folder_is_refused_without_waiting_for_a_writer() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("model.safetensors");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [fifo.as_path(), dir.path()] {
            let e = open_regular(path).unwrap_err();
            assert!(e.to_string().contains("not a regular file"), "{e}");
        }
    }

    #[test]
    fn a_small_file_over_its_cap_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let e = read_small(&path, SMALL_JSON).unwrap_err();
        assert!(e.to_string().contains("1.10 TB"), "{e}");
    }
}
