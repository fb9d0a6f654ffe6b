//! Times copies between pinned host memory and the device: down, back, and both at once.
//!
//! A trial queues many copies of one size, one behind the other, as the streamer does, and takes the time between two
//! events on the device: the host's own speed at queueing counts only where it is the slower of the two.

use super::cuda::{DeviceMemory, Gpu, Pin, Queue};
use crate::error::Result;

const PAGE: usize = 4096;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Host to device.
    Down,
    /// Device to host.
    Back,
    /// Both directions at the same time, the same bytes each.
    Both,
}

/// A GPU with pinned host memory and device memory to copy between.
#[derive(Debug)]
pub struct Wire {
    /// The card.
    pub gpu: Gpu,
    // Fields are dropped in this order: memory is unpinned before it goes.
    _pin: Pin,
    host: Vec<u8>,
    start: usize,
    device: DeviceMemory,
    largest: usize,
}

impl Wire {
    /// Takes memory for copies of up to `largest` bytes each way.
    ///
    /// # Errors
    /// There is no usable GPU, or not that much memory.
    pub fn open(largest: usize) -> Result<Wire> {
        let gpu = Gpu::open(0)?;
        // Two halves each side: down and back never touch the same bytes. Ones, so that every page is really there.
        let mut host = vec![1_u8; 2 * largest + PAGE];
        let start = host.as_ptr().align_offset(PAGE);
        // SAFETY: a page-aligned part of `host`, whose buffer neither moves nor goes before the pin does.
        let pin = unsafe { gpu.pin(host.as_mut_ptr().add(start), 2 * largest) }?;
        let device = gpu.memory(2 * largest)?;
        Ok(Wire { gpu, _pin: pin, host, start, device, largest })
    }

    /// Seconds that `n` copies of `bytes` each take one `way` (with [`Way::Both`]: `n` copies in each direction, until
    /// the later of them is done). `meanwhile` runs on the host while they are under way.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// `bytes` is 0 or more than [`Wire::open`] was told.
    pub fn seconds(&mut self, way: Way, bytes: usize, n: usize, meanwhile: &mut dyn FnMut()) -> Result<f64> {
        assert!(bytes > 0 && bytes <= self.largest, "copies of {bytes} bytes");
        let places = self.largest / bytes;
        let (down, back) = (way != Way::Back, way != Way::Down);
        self.gpu.bind()?;
        let begin = self.gpu.mark(Queue::Copy)?;
        self.gpu.wait(Queue::Save, &begin)?;
        let base = self.host[self.start..].as_mut_ptr();
        for i in 0..n {
            let at = (i % places) * bytes;
            if down {
                // SAFETY: inside the first halves; nothing else uses them, and `end` below is waited for.
                unsafe { self.gpu.copy_h2d(Queue::Copy, self.device.at + at as u64, base.add(at), bytes) }?;
            }
            if back {
                let at = self.largest + at;
                // SAFETY: inside the second halves; nothing else uses them, and `end` below is waited for.
                unsafe { self.gpu.copy_d2h(base.add(at), self.device.at + at as u64, bytes) }?;
            }
        }
        let ends = [self.gpu.mark(Queue::Copy)?, self.gpu.mark(Queue::Save)?];
        meanwhile();
        let seconds = [begin.seconds_until(&ends[0])?, begin.seconds_until(&ends[1])?];
        Ok(seconds[0].max(seconds[1]))
    }
}
