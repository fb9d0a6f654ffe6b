//! A program as a child: its output in a log, a time limit, and the bytes it wrote until its very end.

use crate::device::io;
use crate::error::{Error, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a child's failure begins with when it was ended at its time limit.
pub const NO_END: &str = "no end within";

/// How a child ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Whether it was killed at the time limit.
    pub timed_out: bool,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Bytes it sent towards a drive (`write_bytes` of `/proc/<pid>/io`); `None` where the kernel doesn't say.
    pub written: Option<u64>,
    /// All it printed, stdout and stderr in order.
    pub log: String,
}

impl Ended {
    /// Why it did not end well, with the last words it printed; `None` when it did.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if self.timed_out {
            return Some(format!("{NO_END} {:.0} s", self.seconds));
        }
        if self.code == Some(0) {
            return None;
        }
        let code = self.code.map_or("a signal".to_string(), |c| format!("code {c}"));
        let lines = || self.log.lines().map(str::trim).filter(|l| !l.is_empty());
        // Our own error line says more than what may follow it; Python's last line is the exception.
        let last = lines().rfind(|l| l.starts_with("error: ")).or_else(|| lines().next_back());
        let words: String = last.unwrap_or("it printed nothing").chars().take(300).collect();
        Some(format!("ended with {code}: {words}"))
    }
}

/// Runs `command` to its end or to `limit`, with stdout and stderr appended to the file `log`.
///
/// # Errors
/// The program can't be started, or the log can't be written.
pub fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Ended> {
    let open = || std::fs::OpenOptions::new().create(true).append(true).open(log);
    let from = std::fs::metadata(log).map_or(0, |m| m.len()) as usize;
    let (out, err) = (open(), open());
    let (out, err) = out.and_then(|o| Ok((o, err?))).map_err(|e| Error::io("open", log, e))?;
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(|e| {
        Error::run(format!("cannot start '{program}': {e}")).next("check that it is installed, or name it by its path")
    })?;
    let begun = Instant::now();
    let timed_out = !wait_until(&child, begun + limit);
    if timed_out {
        let _ = child.kill();
        wait_until(&child, Instant::now() + Duration::from_secs(20));
    }
    // Not reaped yet: the kernel still has its final counts.
    let io = std::fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
    let status = child.wait().map_err(|e| Error::run(format!("cannot wait for '{program}': {e}")))?;
    let bytes = std::fs::read(log).unwrap_or_default();
    Ok(Ended {
        code: status.code(),
        timed_out,
        seconds: begun.elapsed().as_secs_f64(),
        written: io::field(&io, "write_bytes"),
        log: String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned(),
    })
}

/// Waits for the child's end without reaping it; `false` when `until` comes first.
fn wait_until(child: &Child, until: Instant) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), options) {
            Ok(None) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Ok(Some(_)) | Err(_) => return true,
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The last line `RESULT {…}` of a log, as JSON.
#[must_use]
pub fn result_line(log: &str) -> Option<serde_json::Value> {
    let line = log.lines().filter_map(|l| l.trim().strip_prefix("RESULT ")).next_back()?;
    // Python writes NaN, which is no JSON: such a figure is unknown.
    serde_json::from_str(line).or_else(|_| serde_json::from_str(&line.replace("NaN", "null"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: u64) -> (Ended, tempfile::TempDir) {
        let dir = tempfile::tempdir_in(".").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(dir.path());
        let ended = run(&mut command, &dir.path().join("log"), Duration::from_secs(limit)).unwrap();
        (ended, dir)
    }

    #[test]
    fn output_code_and_result_are_taken() {
        let (e, _) = sh("echo one; echo 'RESULT {\"a\": NaN, \"b\": 2}' >&2; exit 3", 20);
        assert_eq!((e.code, e.timed_out), (Some(3), false));
        let r = result_line(&e.log).unwrap();
        assert!(r["a"].is_null() && r["b"] == 2);
        assert!(e.failure().unwrap().contains("code 3"));
        assert!(result_line("RESULT nothing").is_none());
        let (e, _) = sh("echo 'error: no GPU; use a CPU'; echo later; exit 1", 20);
        assert_eq!(e.failure().unwrap(), "ended with code 1: error: no GPU; use a CPU");
    }

    #[test]
    fn a_child_past_its_limit_is_ended() {
        let (e, _) = sh("exec sleep 30", 1);
        assert!(e.timed_out && e.seconds < 15.0 && e.failure().unwrap().contains("no end within"));
    }

    #[test]
    fn bytes_written_are_counted_to_the_end() {
        let (quiet, _) = sh("true", 20);
        let (loud, _) = sh("exec dd if=/dev/zero of=x bs=1M count=2 status=none", 20);
        // A file system without a block device counts nothing, and then there is nothing to tell apart.
        if let (Some(quiet), Some(loud)) = (quiet.written, loud.written)
            && loud > 0
        {
            assert!(loud >= quiet + (2 << 20), "{quiet} {loud}");
        }
    }
}
