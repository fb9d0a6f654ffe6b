//! Inputs of the trained blocks between the sweeps: kept on the device, or waiting in host memory.
//!
//! Offloaded, an input is copied to one of three staging sets, from there to pinned memory on a stream of its own, and
//! comes back the same way two blocks ahead of the backward pass: beside large copies of weights it may have to queue
//! for the copy engine. Everything is ordered by events on the device: the host never waits, and the device holds three
//! blocks' inputs however far the host runs ahead.

#[cfg(feature = "cuda")]
use crate::device::cuda::{Gpu, Mark, Queue};
use crate::device::{PIN_PIECE, shim};
use crate::error::Result;
use crate::store::{HostMemory, Pin};
use crate::units::Bytes;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Shape and type of a saved input.
type Saved = (Vec<i64>, Kind);

/// See the module's text. A stack: saved upwards, taken downwards.
pub enum Boundaries {
    /// On the device.
    Kept(Vec<Vec<Tensor>>),
    /// In host memory.
    Offloaded(Box<Offload>),
}

impl Boundaries {
    /// Room on the device, taken as it comes.
    #[must_use]
    pub fn kept() -> Boundaries {
        Boundaries::Kept(Vec::new())
    }

    /// Host memory for `blocks` blocks of `rows` rows of at most `bytes` each, in any number of inputs, on a CPU.
    ///
    /// # Errors
    /// No memory.
    pub fn offloaded(blocks: usize, rows: usize, bytes: u64) -> Result<Boundaries> {
        Ok(Boundaries::Offloaded(Box::new(Offload::new(blocks, rows, bytes, None, &|| Ok(()))?)))
    }

    /// The same, pinned for `gpu`. `stop` is asked meanwhile.
    ///
    /// # Errors
    /// No memory, or it can't be pinned. What `stop` says.
    #[cfg(feature = "cuda")]
    pub fn offloaded_from(
        mut gpu: Arc<Gpu>,
        blocks: usize,
        rows: usize,
        bytes: u64,
        stop: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Boundaries> {
        let mut o = Offload::new(blocks, rows, bytes, Some(&mut gpu), stop)?;
        let set = || -> Result<Set> {
            let buffer = Tensor::f_empty([o.level as i64], (Kind::Uint8, Device::Cuda(gpu.index)))?;
            Ok(Set { buffer, read: None, moved: None })
        };
        let sets = [set()?, set()?, set()?];
        o.gpu = Some(OnGpu { gpu, sets, saved: None, restored: usize::MAX });
        Ok(Boundaries::Offloaded(Box::new(o)))
    }

    /// Saves the inputs of the next block up.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn save(&mut self, xs: &[Tensor]) -> Result<()> {
        match self {
            Boundaries::Kept(stack) => stack.push(xs.iter().map(Tensor::shallow_clone).collect()),
            Boundaries::Offloaded(o) => o.save(xs)?,
        }
        Ok(())
    }

    /// Starts bringing the topmost inputs back.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn prefetch(&mut self) -> Result<()> {
        match self {
            Boundaries::Kept(_) => Ok(()),
            Boundaries::Offloaded(o) => o.prefetch(),
        }
    }

    /// Takes the topmost inputs. Those taken before may be overwritten from here on.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// Nothing is saved.
    pub fn take(&mut self) -> Result<Vec<Tensor>> {
        match self {
            Boundaries::Kept(stack) => Ok(stack.pop().expect("one per trained block")),
            Boundaries::Offloaded(o) => o.take(),
        }
    }

    /// Forgets what is saved (a step that was cut short).
    pub fn clear(&mut self) {
        match self {
            Boundaries::Kept(stack) => stack.clear(),
            Boundaries::Offloaded(o) => o.stack.clear(),
        }
    }

    /// Bytes taken to host memory, and back, since the start.
    #[must_use]
    pub fn moved(&self) -> (Bytes, Bytes) {
        match self {
            Boundaries::Kept(_) => (Bytes::ZERO, Bytes::ZERO),
            Boundaries::Offloaded(o) => (o.down, o.up),
        }
    }
}

/// Inputs in host memory.
pub struct Offload {
    host: HostMemory,
    /// Place of one block's inputs, whatever their number.
    level: u64,
    stack: Vec<Vec<Saved>>,
    down: Bytes,
    up: Bytes,
    #[cfg(feature = "cuda")]
    gpu: Option<OnGpu>,
}

/// Alignment of an input.
const ALIGN: u64 = 4096;

/// Where each input lies among a block's, and where the last one ends.
fn places(saved: &[Saved]) -> (Vec<u64>, u64) {
    let mut end = 0;
    let at = saved.iter().map(|s| {
        let at = end;
        end += bytes_of(s).next_multiple_of(ALIGN);
        at
    });
    (at.collect(), end)
}

/// Where level `k` of `level` bytes begins: none crosses the border of two pinned pieces unless it is larger than one.
fn start_of(k: usize, level: u64) -> u64 {
    let (k, fit) = (k as u64, PIN_PIECE / level.max(1));
    match k.checked_div(fit) {
        Some(pieces) => pieces * PIN_PIECE + k % fit * level,
        None => k * level.next_multiple_of(PIN_PIECE),
    }
}

fn bytes_of((shape, kind): &Saved) -> u64 {
    shape.iter().product::<i64>() as u64 * kind.elt_size_in_bytes() as u64
}

impl Offload {
    fn new(
        blocks: usize,
        rows: usize,
        bytes: u64,
        pinner: Option<&mut dyn Pin>,
        stop: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<Offload> {
        // A step tried again in halves comes down to an input a row: each has room for its alignment.
        let level = bytes.next_multiple_of(ALIGN) * rows as u64;
        let mut host = HostMemory::new(start_of(blocks, level))?;
        if let Some(pinner) = pinner {
            host.pin(pinner, stop)?;
        }
        Ok(Offload {
            host,
            level,
            stack: Vec::new(),
            down: Bytes::ZERO,
            up: Bytes::ZERO,
            #[cfg(feature = "cuda")]
            gpu: None,
        })
    }

    fn place(&self, level: usize, at: u64) -> *mut u8 {
        self.host.at(start_of(level, self.level) + at)
    }

    fn save(&mut self, xs: &[Tensor]) -> Result<()> {
        let level = self.stack.len();
        let saved: Vec<Saved> = xs.iter().map(|x| (x.size(), x.kind())).collect();
        let (places, end) = places(&saved);
        assert!(end <= self.level, "a block's inputs are no longer than planned");
        self.down += saved.iter().map(|s| Bytes(bytes_of(s))).sum();
        #[cfg(feature = "cuda")]
        let on_gpu = self.save_on_gpu(level, xs, &saved)?;
        #[cfg(not(feature = "cuda"))]
        let on_gpu = false;
        if !on_gpu {
            for ((x, (shape, kind)), at) in xs.iter().zip(&saved).zip(places) {
                // SAFETY: the place is inside our mapping, which outlives this view.
                let mut host = unsafe { shim::view(self.place(level, at), shape, *kind, Device::Cpu) };
                host.copy_(x);
            }
        }
        self.stack.push(saved);
        Ok(())
    }

    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "no GPU"))]
    fn prefetch(&mut self) -> Result<()> {
        #[cfg(feature = "cuda")]
        for level in (0..self.stack.len()).rev().take(2) {
            self.start_restore(level)?;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Vec<Tensor>> {
        let level = self.stack.len() - 1;
        let saved = self.stack.pop().expect("one per trained block");
        self.up += saved.iter().map(|s| Bytes(bytes_of(s))).sum();
        #[cfg(feature = "cuda")]
        if self.gpu.is_some() {
            return self.take_on_gpu(level, &saved);
        }
        let restore = |((shape, kind), at): (&Saved, u64)| {
            // SAFETY: as in `save`; the view is copied before it is dropped.
            unsafe { shim::view(self.place(level, at), shape, *kind, Device::Cpu) }.copy()
        };
        Ok(saved.iter().zip(places(&saved).0).map(restore).collect())
    }
}

/// Staging sets and the marks that order their users.
#[cfg(feature = "cuda")]
struct OnGpu {
    gpu: Arc<Gpu>,
    sets: [Set; SETS],
    /// After the newest copy to the host.
    saved: Option<Mark>,
    /// Lowest level whose inputs are back or on their way.
    restored: usize,
}

/// One in use, two on their way.
#[cfg(feature = "cuda")]
const SETS: usize = 3;

#[cfg(feature = "cuda")]
struct Set {
    buffer: Tensor,
    /// After compute's last use.
    read: Option<Mark>,
    /// After the last copy out of or into it.
    moved: Option<Mark>,
}

#[cfg(feature = "cuda")]
impl Set {
    /// The staged input at `at` as a tensor.
    fn view(&self, at: u64, saved: &Saved) -> Tensor {
        let bytes = self.buffer.narrow(0, at as i64, bytes_of(saved) as i64);
        bytes.view_dtype(saved.1).view(saved.0.as_slice())
    }
}

#[cfg(feature = "cuda")]
impl Offload {
    fn save_on_gpu(&mut self, level: usize, xs: &[Tensor], saved: &[Saved]) -> Result<bool> {
        let Some(mut on) = self.gpu.take() else { return Ok(false) };
        let set = &mut on.sets[level % SETS];
        if let Some(moved) = set.moved.take() {
            on.gpu.wait(Queue::Compute, &moved)?;
        }
        let (places, _) = places(saved);
        for ((x, s), at) in xs.iter().zip(saved).zip(&places) {
            set.view(*at, s).copy_(x);
        }
        let staged = on.gpu.mark_untimed(Queue::Compute)?;
        on.gpu.wait(Queue::Save, &staged)?;
        for (s, at) in saved.iter().zip(places) {
            let from = set.buffer.data_ptr() as u64 + at;
            // SAFETY: the staging buffer is not written before `moved`; the place is ours and pinned.
            unsafe { on.gpu.copy_d2h(self.place(level, at), from, bytes_of(s) as usize)? };
        }
        set.moved = Some(on.gpu.mark_untimed(Queue::Save)?);
        on.saved = Some(on.gpu.mark_untimed(Queue::Save)?);
        on.restored = usize::MAX;
        self.gpu = Some(on);
        Ok(true)
    }

    /// Queues the way back of `level`, once. Levels come back from the top.
    fn start_restore(&mut self, level: usize) -> Result<()> {
        let Some(mut on) = self.gpu.take() else { return Ok(()) };
        if level < on.restored {
            let set = &mut on.sets[level % SETS];
            for mark in [set.read.take().as_ref(), set.moved.take().as_ref(), on.saved.as_ref()].into_iter().flatten() {
                on.gpu.wait(Queue::Restore, mark)?;
            }
            let saved = &self.stack[level];
            for (s, at) in saved.iter().zip(places(saved).0) {
                let to = set.buffer.data_ptr() as u64 + at;
                // SAFETY: compute's last use and the last copy were waited for above; the place holds what was saved.
                unsafe { on.gpu.copy_h2d(Queue::Restore, to, self.place(level, at), bytes_of(s) as usize)? };
            }
            set.moved = Some(on.gpu.mark_untimed(Queue::Restore)?);
            on.restored = level;
        }
        self.gpu = Some(on);
        Ok(())
    }

    fn take_on_gpu(&mut self, level: usize, saved: &[Saved]) -> Result<Vec<Tensor>> {
        self.stack.push(saved.to_vec());
        self.start_restore(level)?;
        if level > 0 {
            self.start_restore(level - 1)?;
        }
        self.stack.pop();
        let mut on = self.gpu.take().expect("the caller looked");
        // What the set of two levels down holds was used by the block above, whose kernels are all queued by now.
        on.sets[(level + 1) % SETS].read = Some(on.gpu.mark_untimed(Queue::Compute)?);
        if let Some(moved) = on.sets[level % SETS].moved.take() {
            on.gpu.wait(Queue::Compute, &moved)?;
        }
        let xs = saved.iter().zip(places(saved).0).map(|(s, at)| on.sets[level % SETS].view(at, s)).collect();
        self.gpu = Some(on);
        if level > 1 {
            self.start_restore(level - 2)?;
        }
        Ok(xs)
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        // Copies may still write to and read from the host memory.
        #[cfg(feature = "cuda")]
        if let Some(on) = &self.gpu {
            let marks = on.sets.iter().filter_map(|s| s.moved.as_ref()).chain(on.saved.as_ref());
            marks.for_each(|m| {
                let _ = m.sync();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn case_fo_18c_no_level_straddles_two_pinned_pieces() {
        for level in [4096, 4096 * 7, 3 << 30, (64 << 30) - 4096, 64 << 30, 65 << 30] {
            let mut end = 0;
            for k in 0..100 {
                let at = start_of(k, level);
                assert!(at >= end && at.is_multiple_of(4096), "{k} of {level}");
                end = at + level;
                let straddles = at / PIN_PIECE != (end - 1) / PIN_PIECE;
                assert!(!straddles || level > PIN_PIECE, "{k} of {level}");
            }
            assert!(start_of(100, level) >= end, "the memory is long enough");
        }
    }

    #[test]
    fn case_fo_11d_memory_for_inputs_is_not_pinned_after_a_stop() {
        struct Driver(usize);
        impl Pin for Driver {
            fn register(&mut self, _: &mut HostMemory) -> Result<()> {
                self.0 += 1;
                Ok(())
            }
        }
        let mut driver = Driver(0);
        let stopped = Offload::new(64, 4, 1 << 20, Some(&mut driver), &|| Err(Error::stopped()));
        assert!(stopped.is_err_and(|e| e.is_stop()));
        assert_eq!(driver.0, 0, "pinned after a stop");
        assert!(Offload::new(2, 4, 1 << 20, Some(&mut driver), &|| Ok(())).is_ok());
        assert_eq!(driver.0, 1);
    }

    #[test]
    fn case_fo_18b_inputs_find_room_however_they_are_halved() {
        let _ = shim::init();
        // Eleven rows of 35 values: whole, in odd halves, row by row.
        for split in [vec![11], vec![5, 6], vec![2, 3, 3, 3], vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]] {
            let mut away = Boundaries::offloaded(2, 11, 4 * 35).unwrap();
            let inputs: Vec<Tensor> = split
                .iter()
                .map(|&rows| Tensor::arange(rows * 35, (Kind::Float, Device::Cpu)).view([rows, 5, 7]))
                .collect();
            (0..2).for_each(|_| away.save(&inputs).unwrap());
            (0..2).for_each(|_| assert_eq!(away.take().unwrap(), inputs, "{split:?}"));
        }
    }

    #[test]
    fn what_is_saved_comes_back_in_reverse_bit_for_bit() {
        let _ = shim::init();
        let mut kept = Boundaries::kept();
        let mut away = Boundaries::offloaded(3, 7, 4 * 7).unwrap();
        let inputs = |k: i64| {
            let x = Tensor::arange(35, (Kind::Float, Device::Cpu)) * k as f64 + 0.3;
            vec![x.view([5, 7]), x.narrow(0, 0, 14).view([2, 7])]
        };
        for k in 0..3 {
            kept.save(&inputs(k)).unwrap();
            away.save(&inputs(k)).unwrap();
        }
        away.prefetch().unwrap();
        for k in (0..3).rev() {
            let (a, b) = (kept.take().unwrap(), away.take().unwrap());
            assert!(a.iter().zip(&b).zip(&inputs(k)).all(|((a, b), x)| a == b && a == x));
        }
        assert_eq!(away.moved(), (Bytes(3 * 4 * 49), Bytes(3 * 4 * 49)));
        assert_eq!(kept.moved(), (Bytes::ZERO, Bytes::ZERO));
    }
}
