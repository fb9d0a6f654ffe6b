//! What a backend does for the streamer: copy chunks into slots, and order copies against compute.

use crate::error::Result;
use crate::store::{Chunk, SegmentLayout};
use tch::Device;

/// Names a copy; tickets of a lane complete in the order they were given.
pub type Ticket = u64;

/// A moment of the compute queue; see [`Lane::stamp`].
pub type Stamp = usize;

/// What happened on the queues since the last call.
#[derive(Clone, Debug, Default)]
pub struct LaneTimes {
    /// Seconds of each stamp after the first, in order.
    pub stamps: Vec<f64>,
    /// Copies that have ended.
    pub copies: Vec<CopyTimes>,
}

/// Times of one copy, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CopyTimes {
    /// Its name.
    pub ticket: Ticket,
    /// Moving bytes.
    pub seconds: f64,
    /// Waiting for the slot's last reader.
    pub waited: f64,
    /// When it ended, counted from the first stamp (less than zero: before it).
    pub done: f64,
}

/// Part of a segment's copy.
#[derive(Clone, Copy, Debug)]
pub struct Piecewise<'a> {
    /// The segment.
    pub layout: &'a SegmentLayout,
    /// One of its chunks.
    pub chunk: &'a Chunk,
    /// The first chunk copied: waits for the slot's last reader.
    pub first: bool,
    /// The last one: the slot is ready after it.
    pub last: bool,
}

/// One copy queue with its slots. All calls come from one thread, in program order.
///
/// That order is the safety argument: a slot is released (its last reader queued) before it is loaded again, and
/// waited for before it is read, all by the same thread; so no wait can meet an event that is not recorded yet.
pub trait Lane {
    /// Where the slots are.
    fn device(&self) -> Device;
    /// Queues the copy of a chunk that lies at `host` into `slot`.
    ///
    /// # Safety
    /// `host` must hold the chunk's bytes, unchanged until the ticket is copied.
    ///
    /// # Errors
    /// The backend refuses.
    unsafe fn load(&mut self, slot: usize, copy: Piecewise<'_>, host: *const u8) -> Result<Ticket>;
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
    /// Notes this moment of the compute queue. Stamps are numbered from 0 after each [`Lane::take_times`].
    ///
    /// # Errors
    /// The backend refuses.
    fn stamp(&mut self) -> Result<Stamp>;
    /// Times since the last call. On a GPU this waits for the stamps taken so far: call it at step ends only.
    ///
    /// # Errors
    /// Earlier work failed.
    fn take_times(&mut self) -> Result<LaneTimes>;
}
