//! What a backend does for the streamer: copy a block into a slot, and order copies against compute.

use crate::error::Result;
use crate::store::BlockLayout;
use tch::Device;

/// Names a copy; tickets of a lane complete in the order they were given.
pub type Ticket = u64;

/// Seconds since the last call, measured on the queues themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneTimes {
    /// Copies moving bytes.
    pub h2d_s: f64,
    /// Compute waiting for weights.
    pub stall_s: f64,
    /// The copy queue waiting for a slot's last reader.
    pub evict_wait_s: f64,
}

/// One copy queue with its slots. All calls come from one thread, in program order.
///
/// That order is the safety argument: a slot is released (its last reader queued) before it is loaded again, and
/// waited for before it is read, all by the same thread; so no wait can meet an event that is not recorded yet.
pub trait Lane {
    /// Where the slots are.
    fn device(&self) -> Device;
    /// Queues the copy of a block from its host buffer into `slot`, after the slot's last release.
    ///
    /// # Safety
    /// `host` must hold `layout.host_len` bytes, unchanged until the ticket is copied.
    ///
    /// # Errors
    /// The backend refuses.
    unsafe fn load(&mut self, slot: usize, layout: &BlockLayout, host: *const u8) -> Result<Ticket>;
    /// Lets compute read `slot` from here on: waits on the device (GPU) or the host (CPU) for its last load.
    ///
    /// # Errors
    /// The copy failed.
    fn wait(&mut self, slot: usize) -> Result<()>;
    /// Says that the last reader of `slot` has been queued.
    ///
    /// # Errors
    /// The backend refuses.
    fn release(&mut self, slot: usize) -> Result<()>;
    /// Whether the copy is complete, so that its host buffer may change. Never waits.
    ///
    /// # Errors
    /// The copy failed.
    fn copied(&mut self, ticket: Ticket) -> Result<bool>;
    /// Waits on the host until the copy is complete.
    ///
    /// # Errors
    /// The copy failed.
    fn wait_copied(&mut self, ticket: Ticket) -> Result<()>;
    /// Address of `slot`.
    fn slot(&self, slot: usize) -> *const u8;
    /// Times since the last call. On a GPU this waits for the marks recorded so far: call it at step ends only.
    ///
    /// # Errors
    /// Earlier work failed.
    fn take_times(&mut self) -> Result<LaneTimes>;
}
