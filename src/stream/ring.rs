//! The host ring: equal buffers that chunks are read into and copied from, each free again when its copy is done.

use super::lane::{Lane, Ticket};
use crate::error::Result;
use crate::store::HostMemory;
use crate::store::layout::SECTOR;
use std::collections::VecDeque;

/// Longest chunk: the link is at full rate from here on, and a drive's queue holds several.
const CHUNK: u64 = 16 << 20;
/// Shortest: below it requests are too small for a drive.
const LEAST: u64 = 64 << 10;
/// Chunks that a small ring still holds, so that reading and copying overlap.
const DEPTH: u64 = 8;

/// Bytes of a chunk for a ring of `ring` bytes.
#[must_use]
pub fn chunk_limit(ring: u64) -> u64 {
    (ring / DEPTH).clamp(LEAST, CHUNK) / SECTOR * SECTOR - 2 * SECTOR
}

/// See the module's text.
pub(super) struct Ring {
    memory: HostMemory,
    stride: u64,
    idle: Vec<usize>,
    /// Buffers whose copy is queued, oldest first.
    copying: VecDeque<(Ticket, usize)>,
}

impl Ring {
    /// A ring of about `bytes`, of at least two chunks of at most `limit` bytes.
    pub(super) fn new(bytes: u64, limit: u64) -> Result<Ring> {
        let stride = limit + 2 * SECTOR;
        let n = (bytes / stride).max(2) as usize;
        Ok(Ring {
            memory: HostMemory::new(stride * n as u64)?,
            stride,
            idle: (0..n).rev().collect(),
            copying: VecDeque::new(),
        })
    }

    pub(super) fn memory(&mut self) -> &mut HostMemory {
        &mut self.memory
    }

    /// It can't be made smaller.
    pub(super) fn at_least(&self) -> bool {
        self.idle.len() + self.copying.len() <= 2
    }

    pub(super) fn at(&self, buffer: usize) -> *mut u8 {
        self.memory.at(buffer as u64 * self.stride)
    }

    /// A buffer that nothing reads or writes.
    pub(super) fn take(&mut self, lane: &mut dyn Lane) -> Result<Option<usize>> {
        while let Some(&(ticket, buffer)) = self.copying.front() {
            if !lane.copied(ticket)? {
                break;
            }
            self.copying.pop_front();
            self.idle.push(buffer);
        }
        Ok(self.idle.pop())
    }

    /// Waits on the host until a buffer is free; false if none is on its way.
    pub(super) fn wait(&mut self, lane: &mut dyn Lane) -> Result<bool> {
        let Some((ticket, buffer)) = self.copying.pop_front() else { return Ok(false) };
        lane.wait_copied(ticket)?;
        self.idle.push(buffer);
        Ok(true)
    }

    /// The buffer is read by the copy `ticket`.
    pub(super) fn copied_by(&mut self, buffer: usize, ticket: Ticket) {
        self.copying.push_back((ticket, buffer));
    }

    /// The buffer was read into for nothing.
    pub(super) fn give_back(&mut self, buffer: usize) {
        self.idle.push(buffer);
    }
}
