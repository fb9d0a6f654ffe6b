//! The CPU lane: a thread that widens stored tensors to f32 in aligned slots.
//!
//! Compute is synchronous on CPU, so a release needs no event; a wait is a condition variable.

use super::lane::{CopyTimes, Lane, LaneTimes, Piecewise, Stamp, Ticket};
use crate::checkpoint::Dtype;
use crate::error::{Error, Result};
use crate::store::{Chunk, HostMemory, SegmentLayout};
use half::slice::HalfFloatSliceExt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tch::Device;

/// Chunks queued before the trainer waits for the copy thread.
const QUEUE: usize = 64;

struct Job {
    ticket: Ticket,
    layout: Arc<SegmentLayout>,
    chunk: Chunk,
    host: usize,
    slot: usize,
}

#[derive(Default)]
struct Progress {
    copied: Ticket,
    /// Beginning and end of each copy.
    times: Vec<(Ticket, Instant, Instant)>,
    dead: bool,
}

/// See the module's text.
pub struct CpuLane {
    slots: HostMemory,
    at: Vec<u64>,
    /// Last ticket of each slot.
    loading: Vec<Ticket>,
    next: Ticket,
    progress: Arc<(Mutex<Progress>, Condvar)>,
    queue: Option<SyncSender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
    stamps: Vec<Instant>,
}

impl CpuLane {
    /// Makes slots of `lens` bytes and starts the copy thread. `delay` is added to each copy (tests).
    ///
    /// # Errors
    /// No memory or no thread.
    pub fn new(lens: &[u64], delay: Duration) -> Result<CpuLane> {
        let mut len = 0;
        let mut place = |l: &u64| {
            len += l.div_ceil(4096) * 4096;
            len - l.div_ceil(4096) * 4096
        };
        let at = lens.iter().map(&mut place).collect();
        let slots = HostMemory::new(len)?;
        let progress: Arc<(Mutex<Progress>, Condvar)> = Arc::default();
        let (tx, rx) = sync_channel::<Job>(QUEUE);
        let shared = progress.clone();
        let thread = std::thread::Builder::new()
            .name("copy-lane".into())
            .spawn(move || {
                let guard = MarkDead(shared.clone());
                for job in rx {
                    let start = Instant::now();
                    if !delay.is_zero() {
                        std::thread::sleep(delay);
                    }
                    // SAFETY: `Lane::load`'s promise for the host buffer; the slot has no reader until `wait`.
                    unsafe { widen(&job.layout, &job.chunk, job.host as *const u8, job.slot as *mut u8) };
                    if let Ok(mut p) = shared.0.lock() {
                        p.copied = job.ticket;
                        p.times.push((job.ticket, start, Instant::now()));
                    }
                    shared.1.notify_all();
                }
                drop(guard);
            })
            .map_err(|e| Error::run(format!("cannot start the copy thread: {e}")))?;
        Ok(CpuLane {
            slots,
            at,
            loading: vec![0; lens.len()],
            next: 1,
            progress,
            queue: Some(tx),
            thread: Some(thread),
            stamps: Vec::new(),
        })
    }
}

/// Wakes waiters should the copy thread die.
struct MarkDead(Arc<(Mutex<Progress>, Condvar)>);
impl Drop for MarkDead {
    fn drop(&mut self) {
        if let Ok(mut p) = self.0.0.lock() {
            p.dead = true;
        }
        self.0.1.notify_all();
    }
}

/// Copies what a chunk holds of each tensor to its place, as f32.
///
/// # Safety
/// `host` holds the chunk and `slot` has room for the layout; no one else writes either meanwhile.
unsafe fn widen(layout: &SegmentLayout, chunk: &Chunk, host: *const u8, slot: *mut u8) {
    for span in &chunk.spans {
        let p = &layout.pieces[span.piece];
        let size = p.bytes / (p.shape.iter().product::<i64>() as u64).max(1);
        // SAFETY: inside the chunk by construction of the layout.
        let src = unsafe { std::slice::from_raw_parts(host.add(span.host as usize), span.bytes as usize) };
        // SAFETY: inside the tensor's 256-byte aligned place, at a whole element, by construction of the layout.
        let dst = unsafe {
            std::slice::from_raw_parts_mut(
                slot.add(p.slot as usize).cast::<f32>().add((span.at / size) as usize),
                (span.bytes / size) as usize,
            )
        };
        widen_slice(&p.dtype, src, dst);
    }
}

/// Widens stored bytes (little-endian, any alignment) to f32.
pub(crate) fn widen_slice(dtype: &Dtype, src: &[u8], dst: &mut [f32]) {
    match dtype {
        Dtype::BF16 => {
            for (d, s) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
                *d = f32::from_bits(u32::from(u16::from_le_bytes(*s)) << 16);
            }
        }
        Dtype::F16 => {
            // In pieces through an aligned buffer: half's SIMD conversion wants a typed slice.
            let mut typed = [half::f16::ZERO; 1024];
            for (d, s) in dst.chunks_mut(1024).zip(src.chunks(2048)) {
                for (t, b) in typed.iter_mut().zip(s.as_chunks::<2>().0) {
                    *t = half::f16::from_le_bytes(*b);
                }
                typed[..d.len()].convert_to_f32_slice(d);
            }
        }
        // Other types are refused when the checkpoint is opened.
        _ => {
            for (d, s) in dst.iter_mut().zip(src.as_chunks::<4>().0) {
                *d = f32::from_le_bytes(*s);
            }
        }
    }
}

impl Lane for CpuLane {
    fn device(&self) -> Device {
        Device::Cpu
    }

    unsafe fn load(&mut self, slot: usize, copy: Piecewise<'_>, host: *const u8) -> Result<Ticket> {
        let ticket = self.next;
        self.next += 1;
        let job = Job {
            ticket,
            layout: Arc::new(copy.layout.clone()),
            chunk: copy.chunk.clone(),
            host: host as usize,
            slot: self.slot(slot) as usize,
        };
        let queue = self.queue.as_ref().ok_or_else(|| Error::run("the copy thread has stopped"))?;
        queue.send(job).map_err(|_| Error::run("the copy thread has stopped"))?;
        self.loading[slot] = ticket;
        Ok(ticket)
    }

    fn wait(&mut self, slot: usize) -> Result<()> {
        self.wait_copied(self.loading[slot])
    }

    fn release(&mut self, _slot: usize) -> Result<()> {
        Ok(())
    }

    fn copied(&mut self, ticket: Ticket) -> Result<bool> {
        let p = self.progress.0.lock().map_err(|_| Error::run("the copy thread died"))?;
        Ok(p.copied >= ticket)
    }

    fn wait_copied(&mut self, ticket: Ticket) -> Result<()> {
        let died = || Error::run("the copy thread died");
        let mut p = self.progress.0.lock().map_err(|_| died())?;
        while p.copied < ticket {
            if p.dead {
                return Err(died());
            }
            p = self.progress.1.wait(p).map_err(|_| died())?;
        }
        Ok(())
    }

    fn slot(&self, slot: usize) -> *const u8 {
        self.slots.at(self.at[slot])
    }

    fn stamp(&mut self) -> Result<Stamp> {
        self.stamps.push(Instant::now());
        Ok(self.stamps.len() - 1)
    }

    fn take_times(&mut self) -> Result<LaneTimes> {
        let mut p = self.progress.0.lock().map_err(|_| Error::run("the copy thread died"))?;
        let stamps = std::mem::take(&mut self.stamps);
        let Some(&first) = stamps.first() else { return Ok(LaneTimes::default()) };
        let copy = |(ticket, begun, ended): (Ticket, Instant, Instant)| CopyTimes {
            ticket,
            seconds: (ended - begun).as_secs_f64(),
            waited: 0.0,
            done: ended.saturating_duration_since(first).as_secs_f64(),
        };
        Ok(LaneTimes {
            stamps: stamps.iter().map(|t| (*t - first).as_secs_f64()).collect(),
            copies: p.times.drain(..).map(copy).collect(),
        })
    }
}

impl Drop for CpuLane {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_ck_28_each_dtype_is_decoded_as_itself() {
        let mut out = [0.0; 3];
        let bf: Vec<u8> =
            [1.0_f32, -2.5, f32::NAN].iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
        widen_slice(&Dtype::BF16, &bf, &mut out);
        assert_eq!((out[0], out[1], out[2].is_nan()), (1.0, -2.5, true));
        let f16: Vec<u8> =
            [1.0_f32, -2.5, 5.96e-8].iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
        widen_slice(&Dtype::F16, &f16, &mut out);
        assert_eq!(out, [1.0, -2.5, 5.960_464_5e-8]);
        let f: Vec<u8> = [1.5_f32, 3.25, 1e-30].iter().flat_map(|x| x.to_le_bytes()).collect();
        widen_slice(&Dtype::F32, &f, &mut out);
        assert_eq!(out, [1.5, 3.25, 1e-30]);
    }

    #[test]
    fn f16_widening_crosses_its_buffer_size() {
        let src: Vec<u8> = (0..3000_u32).flat_map(|i| half::f16::from_f32(i as f32).to_le_bytes()).collect();
        let mut out = vec![0.0; 3000];
        widen_slice(&Dtype::F16, &src, &mut out);
        // Integers up to 2048 are exact in f16.
        assert!((0..=2048).all(|i| out[i] == i as f32));
        assert_eq!(out[2998], 2998.0);
    }
}
