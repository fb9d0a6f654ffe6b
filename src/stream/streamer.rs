//! Carries the schedule out: reads ahead, copies as soon as a slot's last reader is queued, hands segments to compute.
//!
//! The trainer's thread is the only one that issues copies, records and waits, in program order. It waits for nothing
//! but a disk completion (or, with the ring full, for the oldest copy out of it), and never for a segment that is not
//! the next one.

use super::lane::{Lane, Piecewise};
use super::ring::Ring;
use super::setup::{Parts, StreamSetup};
use super::trace::{Cause, StepTimes, Trace};
use crate::checkpoint::{Checkpoint, Part};
use crate::engine::{Control, Stop};
use crate::error::Result;
use crate::event::{BlockState, Phase, TierName};
use crate::plan::schedule::{Load, Op, PARTS, Schedule, Visit, segment};
use crate::store::{HostMemory, ReadTicket, Reader, SegmentLayout};
use crate::units::Bytes;
use std::collections::{BTreeSet, VecDeque};

/// A load that isn't wholly queued yet.
struct Pending {
    load: Load,
    /// Chunks whose read has been submitted.
    read: usize,
    /// Chunks whose copy has been queued.
    copied: usize,
    /// Buffers between the two.
    buffers: VecDeque<(usize, ReadTicket)>,
}

/// Bytes moved since the streamer was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Read from disk by the block readers (aligned supersets).
    pub disk_read: Bytes,
    /// Copied host to device.
    pub h2d: Bytes,
}

/// What the streamer did since the last snapshot.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Where the time went.
    pub times: StepTimes,
    /// Seconds the disk lane was busy.
    pub disk_s: f64,
    /// Most blocks' worth of segments on the device at once.
    pub residency_peak: usize,
    /// Blocks on the device after each admission: `(block, resident)`.
    pub history: Vec<(usize, usize)>,
}

/// Streams the segments of a checkpoint along the program it is told.
pub struct Streamer {
    layouts: Vec<SegmentLayout>,
    tiers: Vec<TierName>,
    n_blocks: usize,
    split: bool,
    ahead: u64,
    schedule: Schedule,
    /// Ops not yet done, the visit each belongs to, and whether it opens it.
    program: VecDeque<(Op, u64)>,
    tick: u64,
    pending: VecDeque<Pending>,
    /// Segment of each slot, as queued.
    holds: Vec<Option<usize>>,
    place: Vec<Option<usize>>,
    /// Newest copy into each slot.
    tickets: Vec<u64>,
    /// Segments taken and not given back.
    active: Vec<usize>,
    reader: Option<Reader>,
    lane: Box<dyn Lane>,
    ram: HostMemory,
    ram_at: Vec<u64>,
    ring: Ring,
    h2d: Bytes,
    disk_s_seen: f64,
    peak: usize,
    history: Vec<(usize, usize)>,
    pinned: bool,
    pin_note: Option<String>,
    trace: Trace,
    control: Control,
    /// The weakest stop that ends the walk under way.
    heeds: Stop,
}

impl Streamer {
    /// Makes slots and host memory, and loads the RAM tier through `reader`. `progress(done, total)` in bytes.
    ///
    /// # Errors
    /// A file can't be read, memory can't be had or pinned.
    pub fn new(
        checkpoint: &Checkpoint,
        reader: Reader,
        setup: &StreamSetup,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Streamer> {
        let Parts { layouts, tiers, slots, lane, ram, ram_at, ring, pinned, note } =
            setup.build(checkpoint, &reader, progress)?;
        let n_slots = slots.classes().len();
        Ok(Streamer {
            n_blocks: checkpoint.blocks.len(),
            split: setup.split,
            ahead: setup.prefetch_ahead as u64,
            schedule: Schedule::new(&slots),
            program: VecDeque::new(),
            tick: 0,
            pending: VecDeque::new(),
            holds: vec![None; n_slots],
            place: vec![None; layouts.len()],
            tickets: vec![0; n_slots],
            active: Vec::new(),
            layouts,
            tiers,
            reader: Some(reader),
            lane,
            ram,
            ram_at,
            ring,
            h2d: Bytes::ZERO,
            disk_s_seen: 0.0,
            peak: 0,
            history: Vec::new(),
            pinned,
            pin_note: note,
            trace: Trace::default(),
            control: setup.control.clone(),
            heeds: Stop::AtOnce,
        })
    }

    /// From here on a stop of `strength` or a stronger one ends the walk, wherever in a visit it is.
    pub fn heed(&mut self, strength: Stop) {
        self.heeds = strength;
    }

    /// What long work between two uses of parts asks now and then: an error once such a stop was asked for.
    pub fn heard(&self) -> impl Fn() -> Result<()> + use<> {
        let (control, heeds) = (self.control.clone(), self.heeds);
        move || control.check(heeds)
    }

    /// Appends visits to the program. Told early, the next step's segments are fetched across the step border.
    pub fn extend(&mut self, visits: impl IntoIterator<Item = Visit>) {
        for visit in visits {
            let number = self.schedule.visits();
            self.program.extend(visit.0.iter().map(|&op| (op, number)));
            self.schedule.extend([&visit]);
        }
    }

    /// Drops the program between two visits (a run that stops, an evaluation).
    ///
    /// # Errors
    /// A read that had begun failed.
    pub fn forget(&mut self) -> Result<()> {
        for s in std::mem::take(&mut self.active) {
            let slot = self.place[s].expect("a segment in use keeps its slot");
            self.lane.release(slot)?;
        }
        // A segment that is only partly copied is not there.
        for p in self.pending.drain(..) {
            for (buffer, read) in p.buffers {
                read.wait()?;
                self.ring.give_back(buffer);
            }
            if p.copied > 0 {
                self.holds[p.load.slot] = None;
                self.place[p.load.segment] = None;
            }
        }
        self.program.clear();
        self.schedule.forget(&self.holds, self.tick);
        Ok(())
    }

    /// Whether the program is over.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.program.is_empty()
    }

    /// Whether parts are loaded for each use, because a block doesn't fit its slots.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.split
    }

    /// Pieces of a streamed head; 0 when the head stays on the device.
    #[must_use]
    pub fn head_pieces(&self) -> usize {
        self.layouts.len() - self.n_blocks * PARTS
    }

    /// Says that a visit begins, for the trace.
    ///
    /// # Errors
    /// The backend refuses.
    pub fn begin(&mut self, phase: Phase, block: usize) -> Result<()> {
        let streams = match phase {
            Phase::Forward | Phase::Backward | Phase::Eval => true,
            Phase::Head => self.head_pieces() > 0,
            Phase::Update => false,
        };
        let visit = self.program.front().filter(|_| streams).map(|p| p.1);
        if self.trace.is_empty() {
            // The step begins here: what was read before it (other tensors, blocks ahead of it) took none of its time.
            self.disk_s_seen = self.reader.as_ref().map_or(0.0, Reader::busy_seconds);
        }
        self.trace.begin(phase, block, visit, self.lane.as_mut())
    }

    /// Makes a segment readable by compute; it stays until [`Streamer::done`].
    ///
    /// Returns its layout and the address of its slot.
    ///
    /// # Errors
    /// A read or a copy failed.
    ///
    /// # Panics
    /// The segment is not the next of the program.
    pub fn take(&mut self, segment: usize) -> Result<(&SegmentLayout, *const u8)> {
        let next = self.program.front().map(|p| p.0);
        assert_eq!(next, Some(Op::Take(segment)), "the walk follows its program");
        self.pump()?;
        // Before the host waits for a read: compute has nothing to do from here on.
        let late = self.pending.iter().any(|p| p.load.needed_at == self.tick);
        let mut stamp = late.then(|| self.trace.now(self.lane.as_mut())).transpose()?;
        // A load of it that is needed later may be pending too: then it is here now, and leaves in between.
        while let Some(at) = self.pending.iter().position(|p| p.load.needed_at == self.tick) {
            self.wait_for(at)?;
            self.pump()?;
        }
        self.program.pop_front();
        self.tick += 1;
        self.active.push(segment);
        let slot = self.place[segment].expect("a segment without pending load has its slot");
        // The trace's marks are only worth their cost where compute may have to wait.
        if stamp.is_none() && !self.lane.copied(self.tickets[slot])? {
            stamp = Some(self.trace.now(self.lane.as_mut())?);
        }
        if let Some(stamp) = stamp {
            self.trace.waits(stamp, self.tickets[slot], if late { Cause::Disk } else { Cause::Link });
        }
        self.lane.wait(slot)?;
        self.trace.queued();
        Ok((&self.layouts[segment], self.lane.slot(slot)))
    }

    /// Ends the use of a segment: compute's last reader of it has been queued.
    ///
    /// # Errors
    /// The backend refuses, or a read failed.
    ///
    /// # Panics
    /// Its done is not the next of the program.
    pub fn done(&mut self, segment: usize) -> Result<()> {
        let next = self.program.pop_front().map(|p| p.0);
        assert_eq!(next, Some(Op::Done(segment)), "the walk follows its program");
        self.active.retain(|s| *s != segment);
        let slot = self.place[segment].expect("a segment in use keeps its slot");
        if !self.schedule.is_fixed(segment) {
            self.lane.release(slot)?;
        }
        self.tick += 1;
        self.pump()
    }

    /// Starts whatever can start now. Called between micro-batches too, so that long visits don't starve the lanes.
    ///
    /// # Errors
    /// A read or a copy failed, or a stop was asked for.
    pub fn pump(&mut self) -> Result<()> {
        self.control.check(self.heeds)?;
        self.look_ahead();
        self.submit_reads()?;
        let mut at = 0;
        while at < self.pending.len() {
            if self.advance(at)? {
                self.pending.remove(at);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Plans loads: those of the visit in turn, and of so many further visits that need any.
    fn look_ahead(&mut self) {
        let Some(&(_, now)) = self.program.front() else { return };
        loop {
            // Visits beyond this one that already have a load waiting or on its way.
            let mut further: Vec<u64> = self.pending.iter().map(|p| p.load.visit).filter(|&v| v > now).collect();
            further.dedup();
            let horizon = match further.len() as u64 {
                n if n < self.ahead => u64::MAX,
                0 => now + 1,
                _ => further.last().map_or(now + 1, |v| v + 1),
            };
            let Some(load) = self.schedule.next(horizon) else { return };
            self.pending.push_back(Pending { load, read: 0, copied: 0, buffers: VecDeque::new() });
        }
    }

    fn in_ram(&self, segment: usize) -> bool {
        self.tiers[segment] == TierName::Ram
    }

    /// Keeps the drive's queue full, in the order of need.
    fn submit_reads(&mut self) -> Result<()> {
        for i in 0..self.pending.len() {
            let segment = self.pending[i].load.segment;
            if self.in_ram(segment) {
                continue;
            }
            while self.pending[i].read < self.layouts[segment].chunks.len() {
                let Some(buffer) = self.ring.take(self.lane.as_mut())? else { return Ok(()) };
                let chunk = &self.layouts[segment].chunks[self.pending[i].read];
                let reader = self.reader.as_ref().expect("open until dropped");
                let ticket = reader.read_at(chunk.file, chunk.offset, chunk.len, self.ring.at(buffer))?;
                self.pending[i].buffers.push_back((buffer, ticket));
                self.pending[i].read += 1;
            }
        }
        Ok(())
    }

    /// Queues what can be copied of a pending load; true when all of it is.
    fn advance(&mut self, at: usize) -> Result<bool> {
        let load = self.pending[at].load;
        if load.free_at > self.tick {
            return Ok(false);
        }
        let n = self.layouts[load.segment].chunks.len();
        while self.pending[at].copied < n {
            let copied = self.pending[at].copied;
            let (host, buffer) = if self.in_ram(load.segment) {
                let chunk = &self.layouts[load.segment].chunks[copied];
                (self.ram.at(self.ram_at[load.segment] + chunk.host).cast_const(), None)
            } else {
                match self.pending[at].buffers.front() {
                    Some((_, read)) if !read.is_done() => return Ok(false),
                    None => return Ok(false),
                    Some((buffer, read)) => {
                        read.wait()?;
                        (self.ring.at(*buffer).cast_const(), Some(*buffer))
                    }
                }
            };
            if copied == 0 {
                self.admit(load);
            }
            let layout = &self.layouts[load.segment];
            let chunk = &layout.chunks[copied];
            let copy = Piecewise { layout, chunk, first: copied == 0, last: copied + 1 == n };
            // SAFETY: the RAM tier never changes; a ring buffer is not taken again before its copy is done.
            let ticket = unsafe { self.lane.load(load.slot, copy, host)? };
            self.h2d += Bytes(chunk.spans.iter().map(|s| s.bytes).sum());
            self.tickets[load.slot] = ticket;
            self.trace.copying(ticket, load.visit, chunk.spans.iter().map(|s| s.bytes).sum(), buffer.is_some());
            if let Some(buffer) = buffer {
                self.pending[at].buffers.pop_front();
                self.ring.copied_by(buffer, ticket);
            }
            self.pending[at].copied += 1;
        }
        Ok(true)
    }

    /// The slot changes hands.
    fn admit(&mut self, load: Load) {
        debug_assert_eq!(self.holds[load.slot], load.left);
        // What leaves may already be on its way back into another slot.
        if let Some(left) = self.holds[load.slot].replace(load.segment)
            && self.place[left] == Some(load.slot)
        {
            self.place[left] = None;
        }
        self.place[load.segment] = Some(load.slot);
        let resident = self.resident();
        self.peak = self.peak.max(resident);
        self.history.push((load.segment / PARTS, resident));
    }

    /// Blocks' worth of segments on the device, in-flight copies included. The slots bound it.
    fn resident(&self) -> usize {
        let blocks = self.n_blocks * PARTS;
        self.holds.iter().flatten().filter(|s| **s < blocks).count().div_ceil(PARTS)
    }

    /// Waits on the host for the next thing that a pending load needs.
    fn wait_for(&mut self, at: usize) -> Result<()> {
        if let Some((_, read)) = self.pending[at].buffers.front() {
            return read.wait();
        }
        // Its next chunk has no buffer yet: earlier chunks are on their way out of the ring.
        let held = self.ring.wait(self.lane.as_mut())?;
        assert!(held, "the ring is filled in the order of need");
        Ok(())
    }

    /// State of every block, for the block map.
    #[must_use]
    pub fn states(&self) -> Vec<BlockState> {
        let of = |block: usize| Part::ALL.map(|p| segment(block, p));
        (0..self.n_blocks)
            .map(|b| {
                let parts = of(b);
                let pending = |want: fn(&Pending) -> bool| {
                    self.pending.iter().any(|p| parts.contains(&p.load.segment) && want(p))
                };
                if parts.iter().any(|s| self.active.contains(s)) {
                    BlockState::Active
                } else if parts.iter().all(|s| self.place[*s].is_some()) && !pending(|_| true) {
                    BlockState::Resident
                } else if pending(|p| !p.buffers.is_empty()) {
                    BlockState::Reading
                } else if pending(|_| true) || parts.iter().any(|s| self.place[*s].is_some()) {
                    BlockState::Copying
                } else {
                    BlockState::Away
                }
            })
            .collect()
    }

    /// Bytes moved since the start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals { disk_read: self.reader.as_ref().map_or(Bytes::ZERO, Reader::bytes), h2d: self.h2d }
    }

    /// Compares the files that are still read with themselves at the open; those that lie in host memory whole are not
    /// asked for any more.
    ///
    /// # Errors
    /// A file has changed, and how.
    pub fn check_files(&self) -> Result<()> {
        let read = self.layouts.iter().enumerate().filter(|&(s, _)| !self.in_ram(s));
        let files: BTreeSet<usize> = read.flat_map(|(_, l)| l.chunks.iter().map(|c| c.file)).collect();
        self.reader().check_unchanged(files)
    }

    /// Times, peak and history since the last call, the drive's from the first visit after it. On a GPU waits for queued work: call it at step ends.
    ///
    /// # Errors
    /// Earlier work on the device failed.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        let disk_s = self.reader.as_ref().map_or(0.0, Reader::busy_seconds);
        let since = disk_s - std::mem::replace(&mut self.disk_s_seen, disk_s);
        let peak = std::mem::replace(&mut self.peak, 0).max(self.resident());
        Ok(Snapshot {
            times: self.trace.take(self.lane.as_mut())?,
            disk_s: since,
            residency_peak: peak,
            history: std::mem::take(&mut self.history),
        })
    }

    /// What of the pinning is not as planned, and what it costs.
    #[must_use]
    pub fn pin_note(&self) -> Option<&str> {
        self.pin_note.as_deref()
    }

    /// Whether all host memory that feeds copies is pinned (always false on CPU).
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// The reading pool, for the parts that stay on the device.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        self.reader.as_ref().expect("open until dropped")
    }

    /// Where the slots are.
    #[must_use]
    pub fn device(&self) -> tch::Device {
        self.lane.device()
    }
}

impl Drop for Streamer {
    fn drop(&mut self) {
        // Readers and the copy queue still write to and read from the memory below: let them finish first.
        self.reader = None;
        let newest = self.tickets.iter().copied().max().unwrap_or(0);
        let _ = self.lane.wait_copied(newest);
    }
}
