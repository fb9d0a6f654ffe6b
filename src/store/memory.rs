//! Page-aligned anonymous host memory, pinned where a GPU is used.

use crate::error::{Error, Result};
use crate::units::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::{Arc, Weak};

/// Anonymous memory of its own mapping: given back to the system on drop.
#[derive(Debug)]
pub struct HostMemory {
    ptr: *mut u8,
    len: usize,
    /// Gone when the mapping is: a reader that registered these pages must not read into them any more.
    alive: Arc<()>,
    /// Dropped before the mapping goes (see `Drop`).
    #[cfg(feature = "cuda")]
    pin: Option<crate::device::cuda::Pin>,
}

// SAFETY: a plain mapping; who writes which range when is ordered by the streamer's tickets and marks.
unsafe impl Send for HostMemory {}
// SAFETY: as above; shared access only hands out addresses.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `len` bytes (at least one page), zeroed by the system when first touched.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(len: u64) -> Result<HostMemory> {
        let len = (len.max(1)).div_ceil(4096) as usize * 4096;
        // SAFETY: a fresh private mapping at an address of the kernel's choice.
        let ptr =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
                .map_err(|e| {
                    Error::run(format!("cannot map {} of host memory: {e}", Bytes(len as u64)))
                        .next("lower stream.host_budget or close other programs")
                })?;
        Ok(HostMemory {
            ptr: ptr.cast(),
            len,
            alive: Arc::new(()),
            #[cfg(feature = "cuda")]
            pin: None,
        })
    }

    /// Makes the system give every page, from several threads. What the memory held is lost. `stop` is asked meanwhile.
    ///
    /// # Errors
    /// What `stop` says.
    fn touch(&mut self, stop: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        /// Bytes between two questions: a few milliseconds' worth.
        const ASK_EVERY: usize = 16 << 20;
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(16);
        let per = self.len.div_ceil(threads).div_ceil(4096) * 4096;
        let base = self.ptr as usize;
        std::thread::scope(|s| {
            let piece = |from: usize, to: usize| {
                for part in (from..to).step_by(ASK_EVERY) {
                    stop()?;
                    for at in (part..to.min(part + ASK_EVERY)).step_by(4096) {
                        // SAFETY: inside our mapping; `&mut self` means that no one reads or writes it.
                        unsafe { ((base + at) as *mut u8).write_volatile(0) };
                    }
                }
                Ok(())
            };
            let bounds = |t: usize| ((t * per).min(self.len), ((t + 1) * per).min(self.len));
            let all: Vec<_> = (0..threads).map(bounds).map(|(from, to)| s.spawn(move || piece(from, to))).collect();
            all.into_iter().try_for_each(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Has `driver` pin the memory, touched first: registering touched pages is several times faster than
    /// `cudaHostAlloc`, and touching, by far the longest part, asks `stop` all the while.
    ///
    /// # Errors
    /// The driver refuses. What `stop` says.
    pub(crate) fn pin(&mut self, driver: &mut dyn Pin, stop: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        self.touch(stop)?;
        stop()?;
        driver.register(self)
    }

    /// Address of byte `offset`.
    #[must_use]
    pub fn at(&self, offset: u64) -> *mut u8 {
        assert!(offset as usize <= self.len, "offset inside the mapping");
        // SAFETY: inside the mapping, or one past its end.
        unsafe { self.ptr.add(offset as usize) }
    }

    /// Lives as long as the mapping.
    pub(super) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Never true: a mapping has at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A driver that takes touched host memory into its care. [`HostMemory::pin`] is the way to it.
pub(crate) trait Pin {
    /// Registers all of `memory`.
    ///
    /// # Errors
    /// The driver refuses.
    fn register(&mut self, memory: &mut HostMemory) -> Result<()>;
}

#[cfg(feature = "cuda")]
impl Pin for Arc<crate::device::cuda::Gpu> {
    fn register(&mut self, memory: &mut HostMemory) -> Result<()> {
        // SAFETY: `Drop` releases the pin before the mapping.
        memory.pin = Some(unsafe { self.pin(memory.ptr, memory.len) }?);
        Ok(())
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        drop(self.pin.take());
        // SAFETY: our own mapping, unmapped once.
        let _ = unsafe { munmap(self.ptr.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn case_fo_11c_memory_is_not_touched_to_the_end_after_a_stop() {
        let mut memory = HostMemory::new(1 << 30).unwrap();
        let asked = AtomicUsize::new(0);
        let stop = || if asked.fetch_add(1, Ordering::SeqCst) < 2 { Ok(()) } else { Err(Error::stopped()) };
        assert!(memory.touch(&stop).is_err_and(|e| e.is_stop()));
        // Each thread asks once more at most.
        assert!(asked.into_inner() <= 2 + 16);
        let mut memory = HostMemory::new(40 << 20).unwrap();
        memory.touch(&|| Ok(())).unwrap();
    }
}
