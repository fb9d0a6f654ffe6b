//! The driver's side of streaming: context, copy stream, events, pinned memory. All calls are made by one thread.
//!
//! libtorch and cudarc share the primary context, so a torch tensor's address is valid for a driver copy and a
//! torch pool stream can be wrapped here. Nothing in this file is called before [`driver_present`] says yes:
//! cudarc panics when libcuda is absent.

use crate::error::{Error, Result};
use cudarc::driver::result::event;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, sys};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// Whether `libcuda` can be loaded. Never panics.
#[must_use]
pub fn driver_present() -> bool {
    // SAFETY: only tries to load the library.
    unsafe { sys::is_culib_present() }
}

fn failed(doing: &str, e: DriverError) -> Error {
    Error::device(format!("CUDA: {doing}: {e:?}"))
}

/// A GPU opened for streaming.
#[derive(Debug)]
pub struct Gpu {
    /// Device index as libtorch counts.
    pub index: usize,
    context: Arc<CudaContext>,
    /// The stream that copies weights.
    copy: Arc<CudaStream>,
    /// libtorch's compute stream of this thread.
    compute: Arc<CudaStream>,
    /// Takes block inputs to host memory and back, beside the weights.
    save: Arc<CudaStream>,
    restore: Arc<CudaStream>,
    /// Events that have been used and may be again: making one costs more than recording it.
    spare: [Pool; 2],
}

/// Spare events.
type Pool = Arc<Mutex<Vec<CudaEvent>>>;

/// Which of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Weights, host to device.
    Copy,
    /// libtorch's kernels.
    Compute,
    /// Device to host: the link carries both directions at once.
    Save,
    /// Block inputs, host to device.
    Restore,
}

/// A point in a queue. Always recorded: waiting for an event that never was is a silent no-op, so there is no other kind.
#[derive(Debug)]
pub struct Mark {
    /// Taken by `drop`.
    event: Option<CudaEvent>,
    pool: Pool,
}

impl Gpu {
    /// Opens GPU `index` and makes a pool stream current for libtorch on this thread.
    ///
    /// # Errors
    /// The driver or libtorch refuses.
    pub fn open(index: usize) -> Result<Gpu> {
        let context = CudaContext::new(index).map_err(|e| failed("opening the GPU", e))?;
        // SAFETY: we order all work by our own events; cudarc's tracking would add events per allocation.
        unsafe { context.disable_event_tracking() };
        let handle = super::shim::use_pool_stream(index)?;
        // SAFETY: a stream of libtorch's pool, which lives as long as the process.
        let compute = unsafe { context.wrap_borrowed_stream(handle.cast()) };
        let copy = context.new_stream().map_err(|e| failed("making the copy stream", e))?;
        let stream = |what: &str| context.new_stream().map_err(|e| failed(what, e));
        let (save, restore) = (stream("making the save stream")?, stream("making the restore stream")?);
        Ok(Gpu { index, context, copy, compute, save, restore, spare: [Pool::default(), Pool::default()] })
    }

    /// Marketing name and UUID (as NVML writes it) of this very card; `None` where the driver doesn't say.
    #[must_use]
    pub fn identity(&self) -> (Option<String>, Option<String>) {
        let uuid = self.context.uuid().ok().map(|u| {
            let hex: String = u.bytes.iter().map(|b| format!("{b:02x}")).collect();
            format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
        });
        (self.context.name().ok(), uuid)
    }

    fn stream(&self, queue: Queue) -> &Arc<CudaStream> {
        match queue {
            Queue::Copy => &self.copy,
            Queue::Compute => &self.compute,
            Queue::Save => &self.save,
            Queue::Restore => &self.restore,
        }
    }

    /// Records a timed mark in `queue`.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn mark(&self, queue: Queue) -> Result<Mark> {
        self.record(queue, 0, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Records a mark that only orders: cheaper than a timed one.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn mark_untimed(&self, queue: Queue) -> Result<Mark> {
        self.record(queue, 1, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn record(&self, queue: Queue, pool: usize, flags: sys::CUevent_flags) -> Result<Mark> {
        let pool = &self.spare[pool];
        let spare = pool.lock().ok().and_then(|mut p| p.pop());
        let event = match spare {
            Some(e) => e,
            None => self.context.new_event(Some(flags)).map_err(|e| failed("making an event", e))?,
        };
        event.record(self.stream(queue)).map_err(|e| failed("recording an event", e))?;
        Ok(Mark { event: Some(event), pool: pool.clone() })
    }

    /// Makes `queue` wait on the device for `mark`; the host does not wait.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn wait(&self, queue: Queue, mark: &Mark) -> Result<()> {
        self.stream(queue).wait(mark.event()).map_err(|e| failed("waiting for an event", e))
    }

    /// Queues a copy of `len` bytes from host to device in `queue`.
    ///
    /// # Safety
    /// `src` must stay valid and unchanged until a later mark of the queue is reached; `dst` must be device
    /// memory of at least `len` bytes that no queued kernel reads (ordered by marks).
    ///
    /// # Errors
    /// The driver refuses.
    pub unsafe fn copy_h2d(&self, queue: Queue, dst: u64, src: *const u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise; the context is current because marks and waits bind it.
        unsafe { sys::cuMemcpyHtoDAsync_v2(dst, src.cast(), len, self.stream(queue).cu_stream()) }
            .result()
            .map_err(|e| failed("queueing a copy", e))
    }

    /// Queues a copy of `len` bytes from device to host, in [`Queue::Save`].
    ///
    /// # Safety
    /// `dst` must stay mapped and unread until a later mark of that queue is reached; `src` must be device memory
    /// of at least `len` bytes that no queued kernel or copy writes (ordered by marks).
    ///
    /// # Errors
    /// The driver refuses.
    pub unsafe fn copy_d2h(&self, dst: *mut u8, src: u64, len: usize) -> Result<()> {
        // SAFETY: the caller's promise; the context is current because marks and waits bind it.
        unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src, len, self.save.cu_stream()) }
            .result()
            .map_err(|e| failed("queueing a copy back", e))
    }

    /// Takes `len` bytes of device memory from the driver, outside libtorch's allocator.
    ///
    /// # Errors
    /// There is no room.
    pub fn memory(&self, len: usize) -> Result<DeviceMemory> {
        self.bind()?;
        let mut at = 0;
        // SAFETY: writes one address; the context is current.
        unsafe { sys::cuMemAlloc_v2(&raw mut at, len) }.result().map_err(|e| {
            failed(&format!("taking {} of device memory", crate::units::Bytes(len as u64)), e)
                .next("close other programs that use the GPU")
        })?;
        Ok(DeviceMemory { at, context: self.context.clone() })
    }

    /// Binds the context to this thread; copies need it.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| failed("binding the context", e))
    }

    /// Pins `len` bytes of host memory at `ptr`, in pieces of at most 64 GiB (larger registrations fail on r580).
    ///
    /// # Safety
    /// The memory must stay mapped until the [`Pin`] is dropped.
    ///
    /// # Errors
    /// The driver refuses: no more memory may be pinned (a limit of the driver, WSL or RLIMIT_MEMLOCK).
    pub unsafe fn pin(&self, ptr: *mut u8, len: usize) -> Result<Pin> {
        self.bind()?;
        let mut pin = Pin { pieces: Vec::new(), context: self.context.clone() };
        let mut at = 0;
        while at < len {
            let n = (len - at).min(super::PIN_PIECE as usize);
            // SAFETY: inside the caller's mapping.
            let piece = unsafe { ptr.add(at) };
            // SAFETY: page-aligned memory of this process; flags 0 = ordinary cached pinned memory.
            unsafe { sys::cuMemHostRegister_v2(piece.cast(), n, 0) }.result().map_err(|e| {
                failed(&format!("pinning {} of host memory", crate::units::Bytes(len as u64)), e).next(
                    "lower stream.host_budget, raise the memlock limit (`ulimit -l unlimited`), or accept slower copies with stream.allow_pageable = true",
                )
            })?;
            pin.pieces.push(piece as usize);
            at += n;
        }
        Ok(pin)
    }
}

impl Mark {
    fn event(&self) -> &CudaEvent {
        self.event.as_ref().expect("there until dropped")
    }
    /// Whether the queue has passed it. Never waits.
    ///
    /// # Errors
    /// An asynchronous failure of earlier work on the GPU.
    pub fn passed(&self) -> Result<bool> {
        self.event().try_is_complete().map_err(|e| failed("the GPU", e))
    }
    /// Waits on the host until the queue has passed it.
    ///
    /// # Errors
    /// An asynchronous failure of earlier work on the GPU.
    pub fn sync(&self) -> Result<()> {
        self.event().synchronize().map_err(|e| failed("the GPU", e))
    }
    /// Seconds on the device from this mark to a later one; waits for both.
    ///
    /// # Errors
    /// An asynchronous failure of earlier work on the GPU.
    pub fn seconds_until(&self, later: &Mark) -> Result<f64> {
        // A step has hundreds of marks, all passed when they are read: one call of the driver each, not three.
        // SAFETY: both events are ours, recorded and alive.
        let quick = unsafe { event::elapsed(self.event().cu_event(), later.event().cu_event()) };
        let ms = quick.or_else(|_| self.event().elapsed_ms(later.event()));
        ms.map(|ms| f64::from(ms) / 1e3).map_err(|e| failed("the GPU", e))
    }
}

impl Drop for Mark {
    /// A wait that is queued keeps the state it saw, so the event may be recorded again at once.
    fn drop(&mut self) {
        if let (Some(event), Ok(mut pool)) = (self.event.take(), self.pool.lock()) {
            pool.push(event);
        }
    }
}

/// Device memory of the driver's own; given back on drop.
#[derive(Debug)]
pub struct DeviceMemory {
    /// Its address.
    pub at: u64,
    context: Arc<CudaContext>,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: taken by `memory`, freed once; the driver waits for copies that still use it.
            let _ = unsafe { sys::cuMemFree_v2(self.at) };
        }
    }
}

/// Pinned host memory; unpinned on drop.
#[derive(Debug)]
pub struct Pin {
    pieces: Vec<usize>,
    context: Arc<CudaContext>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_err() {
            return;
        }
        let unique: HashSet<usize> = self.pieces.drain(..).collect();
        for p in unique {
            // SAFETY: registered by `pin` and still mapped; a failure at exit has no one to tell.
            let _ = unsafe { sys::cuMemHostUnregister(p as *mut _) };
        }
    }
}
