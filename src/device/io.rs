//! Bytes this process wrote, by thread: so that "the model's drive saw no write" is counted and not asserted.
//!
//! `/proc/self/task/<tid>/io` counts a page when it is first dirtied. The threads that write the run's own folder or a
//! log are left out by name; what remains is what streaming and training wrote.

use crate::units::Bytes;

/// Threads whose writes are the run's own record (the screen's log is written by the main thread).
pub const RECORD_THREADS: [&str; 1] = ["hub"];

/// Sum of `write_bytes` over this process's threads, those named in `except` and the main thread left out.
///
/// `None` where the kernel doesn't account I/O per task.
#[must_use]
pub fn written_by_workers(except: &[&str]) -> Option<Bytes> {
    let main = std::process::id().to_string();
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        if task.file_name().to_str() == Some(main.as_str()) {
            continue;
        }
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if except.contains(&name.trim()) {
            continue;
        }
        // A thread that ended meanwhile has no file: its bytes were counted by earlier calls or are lost.
        if let Ok(io) = std::fs::read_to_string(task.path().join("io")) {
            total += field(&io, "write_bytes")?;
        }
    }
    Some(Bytes(total))
}

/// The number after `name: ` in a `/proc` file.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.split(':').next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whole() {
        let io = "rchar: 10\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n";
        assert_eq!(field(io, "write_bytes"), Some(4096));
        assert_eq!(field(io, "bytes"), None);
    }

    #[test]
    fn a_writing_thread_is_seen_unless_left_out() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("x");
        let (tx, rx) = std::sync::mpsc::sync_channel::<()>(0);
        let Some(before) = written_by_workers(&[]) else { return };
        let thread = std::thread::Builder::new()
            .name("io-writer".into())
            .spawn(move || {
                std::fs::write(path, vec![1_u8; 1 << 20]).unwrap();
                let _ = tx.send(());
                let _ = tx.send(());
            })
            .unwrap();
        rx.recv().unwrap();
        let (with, without) = (written_by_workers(&[]), written_by_workers(&["io-writer"]));
        rx.recv().unwrap();
        thread.join().unwrap();
        // A file system without a block device (tmpfs) counts nothing, and then there is nothing to tell apart.
        if with.is_some_and(|w| w.0 >= before.0 + (1 << 20)) {
            assert!(without.unwrap().0 + (1 << 20) <= with.unwrap().0);
        }
    }
}
