//! The GPU lane: driver copies on their own stream, ordered against libtorch's stream by events on the device.
//!
//! The host never waits here except in [`Lane::wait_copied`] and [`Lane::take_times`].

use super::lane::{CopyTimes, Lane, LaneTimes, Piecewise, Stamp, Ticket};
use crate::device::cuda::{Gpu, Mark, Queue};
use crate::error::Result;
use std::collections::VecDeque;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// One copy's marks in the copy queue.
struct Copy {
    ticket: Ticket,
    /// Before waiting for the slot's last reader; `None` where there was nothing to wait for.
    asked: Option<Mark>,
    /// After that wait.
    begun: Mark,
    done: Arc<Mark>,
}

/// See the module's text.
pub struct CudaLane {
    gpu: Arc<Gpu>,
    /// One slab for all slots, a torch tensor so that one allocator owns the device's memory.
    slab: Tensor,
    at: Vec<u64>,
    ready: Vec<Option<Arc<Mark>>>,
    free: Vec<Option<Mark>>,
    next: Ticket,
    copied: Ticket,
    in_flight: VecDeque<(Ticket, Arc<Mark>)>,
    untimed: Vec<Copy>,
    stamps: Vec<Mark>,
}

impl CudaLane {
    /// Allocates slots of `lens` bytes on `gpu`.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(gpu: Arc<Gpu>, lens: &[u64]) -> Result<CudaLane> {
        let mut len = 0;
        let mut place = |l: &u64| {
            len += l.div_ceil(512) * 512;
            len - l.div_ceil(512) * 512
        };
        let at = lens.iter().map(&mut place).collect();
        let slab = Tensor::f_empty([len as i64], (Kind::Uint8, Device::Cuda(gpu.index)))?;
        Ok(CudaLane {
            gpu,
            slab,
            at,
            ready: lens.iter().map(|_| None).collect(),
            free: lens.iter().map(|_| None).collect(),
            next: 1,
            copied: 0,
            in_flight: VecDeque::new(),
            untimed: Vec::new(),
            stamps: Vec::new(),
        })
    }
}

impl Lane for CudaLane {
    fn device(&self) -> Device {
        Device::Cuda(self.gpu.index)
    }

    unsafe fn load(&mut self, slot: usize, copy: Piecewise<'_>, host: *const u8) -> Result<Ticket> {
        let base = self.slot(slot) as u64;
        self.gpu.bind()?;
        let mut asked = None;
        if copy.first
            && let Some(free) = self.free[slot].take()
        {
            asked = Some(self.gpu.mark(Queue::Copy)?);
            self.gpu.wait(Queue::Copy, &free)?;
        }
        let begun = self.gpu.mark(Queue::Copy)?;
        for span in &copy.chunk.spans {
            let to = base + copy.layout.pieces[span.piece].slot + span.at;
            // SAFETY: the caller keeps the host buffer until the ticket is copied; the slot's last reader was queued
            // and waited for above, and the next one waits for `done`.
            unsafe { self.gpu.copy_h2d(Queue::Copy, to, host.add(span.host as usize), span.bytes as usize)? };
        }
        let done = Arc::new(self.gpu.mark(Queue::Copy)?);
        let ticket = self.next;
        self.next += 1;
        if copy.last {
            self.ready[slot] = Some(done.clone());
        }
        self.in_flight.push_back((ticket, done.clone()));
        self.untimed.push(Copy { ticket, asked, begun, done });
        Ok(ticket)
    }

    fn wait(&mut self, slot: usize) -> Result<()> {
        // What the host knows to be there needs no wait on the device.
        if let Some(ready) = self.ready[slot].take()
            && !ready.passed()?
        {
            self.gpu.wait(Queue::Compute, &ready)?;
        }
        Ok(())
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        self.free[slot] = Some(self.gpu.mark_untimed(Queue::Compute)?);
        Ok(())
    }

    fn copied(&mut self, ticket: Ticket) -> Result<bool> {
        while let Some((t, mark)) = self.in_flight.front() {
            if self.copied >= ticket || !mark.passed()? {
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
        (self.slab.data_ptr() as usize + self.at[slot] as usize) as *const u8
    }

    fn stamp(&mut self) -> Result<Stamp> {
        self.stamps.push(self.gpu.mark(Queue::Compute)?);
        Ok(self.stamps.len() - 1)
    }

    fn take_times(&mut self) -> Result<LaneTimes> {
        let mut times = LaneTimes::default();
        let stamps = std::mem::take(&mut self.stamps);
        let Some(first) = stamps.first() else { return Ok(times) };
        for s in &stamps {
            times.stamps.push(first.seconds_until(s)?);
        }
        // Copies still in flight (prefetch for the next step) are timed by the next call.
        let mut later = Vec::new();
        for c in self.untimed.drain(..) {
            if !later.is_empty() || !c.done.passed()? {
                later.push(c);
                continue;
            }
            let waited = c.asked.map_or(Ok(0.0), |asked| asked.seconds_until(&c.begun))?;
            let (seconds, done) = (c.begun.seconds_until(&c.done)?, first.seconds_until(&c.done)?);
            times.copies.push(CopyTimes { ticket: c.ticket, seconds, waited, done });
        }
        self.untimed = later;
        Ok(times)
    }
}
