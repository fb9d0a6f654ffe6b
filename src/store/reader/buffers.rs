//! Memory registered with a ring: its pages are pinned once, not at every read.

use io_uring::IoUring;
use std::io;
use std::sync::Weak;

/// The kernel's limit for one buffer.
const LARGEST: usize = 1 << 30;
/// Buffers of a ring; 1 TiB of memory.
const SLOTS: usize = 1024;

struct Buffer {
    start: usize,
    len: usize,
    alive: Weak<()>,
}

/// The buffers of one ring.
#[derive(Default)]
pub(super) struct Buffers {
    table: Vec<Buffer>,
    made: bool,
}

impl Buffers {
    /// Registers `start..start+len`, all of it or nothing. `alive` lives as long as the mapping.
    ///
    /// # Errors
    /// Why it was refused, as a short clause.
    pub fn register(
        &mut self,
        ring: &IoUring,
        start: usize,
        len: usize,
        alive: Weak<()>,
    ) -> std::result::Result<(), String> {
        if !self.made {
            // Empty places to be filled one by one: a second arena doesn't register the first anew.
            ring.submitter().register_buffers_sparse(SLOTS as u32).map_err(|e| match e.raw_os_error() {
                Some(libc::EINVAL) => "this kernel's io_uring is too old".to_string(),
                _ => clause(&e),
            })?;
            self.made = true;
        }
        let first = self.table.len();
        if first + len.div_ceil(LARGEST) > SLOTS {
            return Err(format!("more than {SLOTS} GiB"));
        }
        for at in (0..len).step_by(LARGEST) {
            let piece = Buffer { start: start + at, len: LARGEST.min(len - at), alive: alive.clone() };
            let iovec = libc::iovec { iov_base: piece.start as *mut libc::c_void, iov_len: piece.len };
            if let Err(e) = update(ring, self.table.len(), iovec) {
                self.forget_from(ring, first);
                return Err(clause(&e));
            }
            self.table.push(piece);
        }
        Ok(())
    }

    /// Gives back what an arena took before it was refused, so that the limit isn't half used up for nothing.
    fn forget_from(&mut self, ring: &IoUring, first: usize) {
        for index in first..self.table.len() {
            // An empty place; if that fails the pages stay pinned until the ring goes, and are not used.
            let _ = update(ring, index, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        }
        self.table.truncate(first);
    }

    /// The buffer that holds all of `start..start+len`, if its mapping is still the one that was registered.
    pub fn index_of(&self, start: usize, len: usize) -> Option<u16> {
        let holds = |b: &Buffer| start >= b.start && start + len <= b.start + b.len && b.alive.strong_count() > 0;
        // The youngest first: an address may be mapped anew after an arena has gone.
        self.table.iter().rposition(holds).map(|i| i as u16)
    }
}

fn update(ring: &IoUring, index: usize, iovec: libc::iovec) -> io::Result<()> {
    // SAFETY: the range is mapped (the caller of `Reader::register` lends the mapping for the call), and the kernel
    // holds its pages from here on; reads into it happen only while `alive` says that it is still mapped.
    unsafe { ring.submitter().register_buffers_update(index as u32, &[iovec], None) }
}

fn clause(e: &io::Error) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match (e.raw_os_error(), limit) {
        (Some(libc::ENOMEM | libc::EPERM), Some(limit)) => format!("memlock limit {} MB", limit.div_ceil(1 << 20)),
        _ => e.to_string(),
    }
}
