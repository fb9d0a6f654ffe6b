//! Which way of reading the kernel lets this process use: io_uring with registered buffers, io_uring, or none.

use super::roots::{Roots, text};
use io_uring::IoUring;

/// How weights can be read here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    /// `registered`, `plain` or `none` (then a pool of threads reads).
    pub name: &'static str,
    /// Why not the better one.
    pub why: Option<String>,
}

/// Bytes that are registered to try: what a small ring of a run holds.
const TRIED: usize = 64 << 20;

/// Whether the kernel lets this process use io_uring.
///
/// # Errors
/// It doesn't; the text says why.
pub fn allowed() -> Result<(), String> {
    allowed_in(&Roots::system())
}

fn allowed_in(roots: &Roots) -> Result<(), String> {
    match text(&roots.proc.join("sys/kernel/io_uring_disabled")).as_deref() {
        Some("2") => return Err("kernel.io_uring_disabled = 2".into()),
        Some("1") => return Err("kernel.io_uring_disabled = 1: only for a privileged group".into()),
        _ => {}
    }
    // A setting can't tell what a seccomp filter of a container does; only asking can. Zero entries are refused
    // before anything is created.
    // SAFETY: io_uring_setup(0, NULL) reads no memory for entries = 0 or faults in the kernel's own copy (EFAULT);
    // it can't succeed, so no descriptor leaks.
    let rc = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0u32, std::ptr::null_mut::<u8>()) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    match (rc, errno) {
        (-1, Some(libc::ENOSYS)) => Err("this kernel has none, or a sandbox hides it".into()),
        (-1, Some(libc::EPERM | libc::EACCES)) => Err("a sandbox forbids it".into()),
        _ => Ok(()),
    }
}

/// The best rung, found by making a ring and registering 64 MiB of memory with it. Takes some tens of milliseconds.
#[must_use]
pub fn rung() -> Rung {
    rung_in(&Roots::system(), TRIED)
}

fn rung_in(roots: &Roots, bytes: usize) -> Rung {
    let none = |why: String| Rung { name: "none", why: Some(why) };
    if let Err(why) = allowed_in(roots) {
        return none(why);
    }
    let ring = match IoUring::new(8) {
        Ok(ring) => ring,
        Err(e) => return none(e.to_string()),
    };
    match register(&ring, bytes) {
        Ok(()) => Rung { name: "registered", why: None },
        Err(e) => Rung { name: "plain", why: Some(refusal(&e)) },
    }
}

fn register(ring: &IoUring, bytes: usize) -> std::io::Result<()> {
    let mut memory = vec![0_u8; bytes];
    let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    // SAFETY: `memory` outlives the registration, which the next call (or the end of the ring) takes back.
    unsafe { ring.submitter().register_buffers(&[buffer]) }?;
    let _ = ring.submitter().unregister_buffers();
    Ok(())
}

fn refusal(e: &std::io::Error) -> String {
    match (e.raw_os_error(), super::host::memlock()) {
        (Some(libc::ENOMEM | libc::EPERM), Some(limit)) => {
            format!("buffers can't be registered: the memlock limit is {limit}; raise it with `ulimit -l unlimited`")
        }
        _ => format!("buffers can't be registered: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rung_has_a_reason_unless_it_is_the_best() {
        let r = rung_in(&Roots::system(), 4096);
        assert!(["registered", "plain", "none"].contains(&r.name));
        assert_eq!(r.why.is_none(), r.name == "registered", "{r:?}");
        assert_eq!(allowed().is_err(), r.name == "none" && r.why == allowed().err(), "{r:?}");
    }

    #[test]
    fn a_setting_that_forbids_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        std::fs::create_dir_all(roots.proc.join("sys/kernel")).unwrap();
        std::fs::write(roots.proc.join("sys/kernel/io_uring_disabled"), "2\n").unwrap();
        let want = Rung { name: "none", why: Some("kernel.io_uring_disabled = 2".into()) };
        assert_eq!(rung_in(&roots, 4096), want);
    }
}
