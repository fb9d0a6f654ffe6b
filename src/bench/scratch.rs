//! Folders and files that a benchmark makes and takes away again, and texts without this machine's paths.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of this process; removed on drop.
#[derive(Debug)]
pub struct Scratch {
    /// Where it is.
    pub dir: PathBuf,
    /// Whether that is in memory: what is written there goes to no drive.
    pub in_memory: bool,
}

/// Free bytes that make `/dev/shm` large enough for a run's records: containers often give it 64 MB.
const ENOUGH: u64 = 2 << 30;

impl Scratch {
    /// Makes one, in memory (`/dev/shm`) where there is such a place with room: a run's records then write to no drive.
    ///
    /// # Errors
    /// The folder can't be made.
    pub fn new() -> Result<Scratch> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shm = Path::new("/dev/shm");
        let in_memory = rustix::fs::statvfs(shm).is_ok_and(|s| s.f_bavail.saturating_mul(s.f_frsize) >= ENOUGH);
        let parent = if in_memory { shm.to_path_buf() } else { std::env::temp_dir() };
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("blockstream-bench-{}-{n}", std::process::id()));
        // A folder of that name is what a killed process of the same number left.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
        Ok(Scratch { dir, in_memory })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// `text` with absolute paths cut to their last part: results are published, folders of one machine are not.
#[must_use]
pub fn without_paths(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let path_begins = !rest[..at].ends_with(|c: char| c.is_alphanumeric() || ".-_~/".contains(c));
        let len = rest[at..].find(|c: char| c.is_whitespace() || "'\"`,;:()=".contains(c)).unwrap_or(rest.len() - at);
        let (path, after) = rest[at..].split_at(len.max(1));
        out.push_str(&rest[..at]);
        match path.trim_end_matches('/').rsplit_once('/') {
            Some((folder, name)) if path_begins && !folder.is_empty() => {
                out.push_str("…/");
                out.push_str(name);
            }
            _ => out.push_str(path),
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_goes_with_its_owner() {
        let (a, b) = (Scratch::new().unwrap(), Scratch::new().unwrap());
        assert_ne!(a.dir, b.dir);
        std::fs::write(a.dir.join("x"), "y").unwrap();
        let dir = a.dir.clone();
        drop(a);
        assert!(!dir.exists() && b.dir.exists());
    }

    #[test]
    fn absolute_paths_are_cut_and_other_slashes_kept() {
        let cut = "soup=/srv/x/soup --work /mnt/w/a: 'No such file: /a/b/c.py' 5 MB/s tests/peers and /tmp, n/a";
        let want = "soup=…/soup --work …/a: 'No such file: …/c.py' 5 MB/s tests/peers and /tmp, n/a";
        assert_eq!(without_paths(cut), want);
    }
}
