//! The GPU lane: driver copies on their own stream, ordered against libtorch's stream by events on the device.
//!
//! The host never waits here except in [`Lane::wait_copied`] and [`Lane::take_times`].

use super::lane::{Lane, LaneTimes, Ticket};
use crate::device::cuda::{Gpu, Mark, Queue};
use crate::error::Result;
use crate::store::BlockLayout;
use std::collections::VecDeque;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// One copy's marks in the copy queue.
struct Copy {
    ticket: Ticket,
    /// Before waiting for the slot's last reader.
    asked: Mark,
    /// After that wait.
    begun: Mark,
    done: Arc<Mark>,
}

/// See the module's text.
pub struct CudaLane {
    gpu: Arc<Gpu>,
    /// One slab for all slots, a torch tensor so that one allocator owns the device's memory.
    slab: Tensor,
    slot_len: u64,
    ready: Vec<Option<Arc<Mark>>>,
    free: Vec<Option<Mark>>,
    next: Ticket,
    copied: Ticket,
    in_flight: VecDeque<(Ticket, Arc<Mark>)>,
    untimed: Vec<Copy>,
    waits: Vec<(Mark, Mark)>,
}

impl CudaLane {
    /// Allocates `n_slots` slots of `slot_len` bytes on `gpu`.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(gpu: Arc<Gpu>, n_slots: usize, slot_len: u64) -> Result<CudaLane> {
        let slot_len = slot_len.div_ceil(512) * 512;
        let bytes = (slot_len * n_slots as u64) as i64;
        let slab = Tensor::f_empty([bytes], (Kind::Uint8, Device::Cuda(gpu.index)))?;
        Ok(CudaLane {
            gpu,
            slab,
            slot_len,
            ready: (0..n_slots).map(|_| None).collect(),
            free: (0..n_slots).map(|_| None).collect(),
            next: 1,
            copied: 0,
            in_flight: VecDeque::new(),
            untimed: Vec::new(),
            waits: Vec::new(),
        })
    }
}

impl Lane for CudaLane {
    fn device(&self) -> Device {
        Device::Cuda(self.gpu.index)
    }

    unsafe fn load(&mut self, slot: usize, layout: &BlockLayout, host: *const u8) -> Result<Ticket> {
        assert!(layout.slot_len <= self.slot_len, "block {} fits its slot", layout.block);
        let base = self.slot(slot) as u64;
        self.gpu.bind()?;
        let asked = self.gpu.mark(Queue::Copy)?;
        if let Some(free) = self.free[slot].take() {
            self.gpu.wait(Queue::Copy, &free)?;
        }
        let begun = self.gpu.mark(Queue::Copy)?;
        for p in &layout.pieces {
            // SAFETY: the caller keeps the host buffer until the ticket is copied; the slot's last reader was queued
            // and waited for above, and the next one waits for `done`.
            unsafe { self.gpu.copy_h2d(base + p.slot, host.add(p.host as usize), p.bytes as usize)? };
        }
        let done = Arc::new(self.gpu.mark(Queue::Copy)?);
        let ticket = self.next;
        self.next += 1;
        self.ready[slot] = Some(done.clone());
        self.in_flight.push_back((ticket, done.clone()));
        self.untimed.push(Copy { ticket, asked, begun, done });
        Ok(ticket)
    }

    fn wait(&mut self, slot: usize) -> Result<()> {
        if let Some(ready) = self.ready[slot].take() {
            let before = self.gpu.mark(Queue::Compute)?;
            self.gpu.wait(Queue::Compute, &ready)?;
            self.waits.push((before, self.gpu.mark(Queue::Compute)?));
        }
        Ok(())
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        self.free[slot] = Some(self.gpu.mark(Queue::Compute)?);
        Ok(())
    }

    fn copied(&mut self, ticket: Ticket) -> Result<bool> {
        while let Some((t, mark)) = self.in_flight.front() {
            if !mark.passed()? {
                break;
            }
            self.copied = *t;
            self.in_flight.pop_front();
        }
        Ok(self.copied >= ticket)
    }

    fn wait_copied(&mut self, ticket: Ticket) -> Result<()> {
        while self.copied < ticket {
            let Some((t, mark)) = self.in_flight.pop_front() else { break };
            mark.sync()?;
            self.copied = t;
        }
        Ok(())
    }

    fn slot(&self, slot: usize) -> *const u8 {
        (self.slab.data_ptr() as usize + slot * self.slot_len as usize) as *const u8
    }

    fn take_times(&mut self) -> Result<LaneTimes> {
        let mut times = LaneTimes::default();
        for (before, after) in self.waits.drain(..) {
            times.stall_s += before.seconds_until(&after)?;
        }
        // Copies still in flight (prefetch for the next step) are timed by the next call.
        let copied = self.copied;
        let mut later = Vec::new();
        for c in self.untimed.drain(..) {
            if c.ticket > copied && !c.done.passed()? {
                later.push(c);
                continue;
            }
            times.evict_wait_s += c.asked.seconds_until(&c.begun)?;
            times.h2d_s += c.begun.seconds_until(&c.done)?;
        }
        self.untimed = later;
        Ok(times)
    }
}
