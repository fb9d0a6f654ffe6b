//! The schedule: given the walk ahead, keep the next blocks coming and never hold more than planned.
//!
//! The trainer's thread is the only one that issues copies, records and waits, in program order. It waits for nothing
//! but a disk completion, and never for a block that is not the next one.

use super::cpu::CpuLane;
use super::lane::{Lane, LaneTimes, Ticket};
use super::residency::Residency;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::event::{BlockState, TierName};
use crate::store::layout::{SECTOR, SlotKind};
use crate::store::{BlockLayout, HostMemory, ReadTicket, Reader};
use crate::units::Bytes;
use std::collections::VecDeque;
use std::time::Duration;

/// How to stream a checkpoint: the plan's placement, and where to.
#[derive(Clone, Debug)]
pub struct StreamSetup {
    /// Tier of each block.
    pub tiers: Vec<TierName>,
    /// Device slots: blocks of the VRAM tier plus the ring.
    pub slots: usize,
    /// Blocks fetched ahead of the one computing.
    pub prefetch_ahead: usize,
    /// Go on with pageable memory when pinning fails.
    pub allow_pageable: bool,
    /// Added to every copy on CPU (tests of ordering; zero otherwise).
    pub copy_delay: Duration,
    /// GPU to stream to; `None` = CPU.
    #[cfg(feature = "cuda")]
    pub gpu: Option<std::sync::Arc<crate::device::cuda::Gpu>>,
}

impl StreamSetup {
    /// A CPU stream without test delays.
    #[must_use]
    pub fn cpu(tiers: Vec<TierName>, slots: usize, prefetch_ahead: usize) -> StreamSetup {
        StreamSetup {
            tiers,
            slots,
            prefetch_ahead,
            allow_pageable: false,
            copy_delay: Duration::ZERO,
            #[cfg(feature = "cuda")]
            gpu: None,
        }
    }
}

/// A host buffer of the disk ring.
struct RingBuffer {
    block: Option<usize>,
    read: Option<ReadTicket>,
    copy: Option<Ticket>,
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
    /// Queue times.
    pub times: LaneTimes,
    /// Seconds the disk lane was busy.
    pub disk_s: f64,
    /// Most blocks on the device at once.
    pub residency_peak: usize,
    /// Blocks on the device after each admission: `(block, resident)`.
    pub history: Vec<(usize, usize)>,
}

/// Streams the blocks of a checkpoint along the walk it is told.
pub struct Streamer {
    layouts: Vec<BlockLayout>,
    tiers: Vec<TierName>,
    ahead: usize,
    residency: Residency,
    slots: usize,
    /// Blocks to visit, the current one first.
    walk: VecDeque<usize>,
    active: bool,
    reader: Option<Reader>,
    lane: Box<dyn Lane>,
    ram: HostMemory,
    ram_at: Vec<u64>,
    ring_memory: HostMemory,
    ring_len: u64,
    ring: Vec<RingBuffer>,
    last_ticket: Ticket,
    h2d: Bytes,
    disk_s_seen: f64,
    history: Vec<(usize, usize)>,
    pinned: bool,
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
        assert_eq!(setup.tiers.len(), checkpoint.blocks.len(), "one tier per block");
        let resident = setup.tiers.iter().filter(|&&t| t == TierName::Vram).count();
        if setup.slots < resident + usize::from(resident < setup.tiers.len()) {
            return Err(Error::infeasible(format!(
                "{} slots cannot hold {resident} resident blocks and a ring",
                setup.slots
            )));
        }
        let slots = setup.slots.min(setup.tiers.len());
        #[cfg(feature = "cuda")]
        let gpu = setup.gpu.clone();
        #[cfg(feature = "cuda")]
        let kind = if gpu.is_some() { SlotKind::AsStored } else { SlotKind::F32 };
        #[cfg(not(feature = "cuda"))]
        let kind = SlotKind::F32;

        let layouts: Vec<_> = (0..checkpoint.blocks.len()).map(|b| BlockLayout::new(checkpoint, b, kind)).collect();
        let slot_len = layouts.iter().map(|l| l.slot_len).max().unwrap_or(0);
        let lane: Box<dyn Lane> = {
            #[cfg(feature = "cuda")]
            match &gpu {
                Some(g) => Box::new(super::cuda::CudaLane::new(g.clone(), slots, slot_len)?),
                None => Box::new(CpuLane::new(slots, slot_len, setup.copy_delay)?),
            }
            #[cfg(not(feature = "cuda"))]
            Box::new(CpuLane::new(slots, slot_len, setup.copy_delay)?)
        };

        let mut ram_at = vec![0; layouts.len()];
        let mut ram_len = 0;
        for l in layouts.iter().filter(|l| setup.tiers[l.block] == TierName::Ram) {
            // A copy must not straddle two pinned pieces.
            const PIECE: u64 = 64 << 30;
            if ram_len / PIECE != (ram_len + l.host_len - 1) / PIECE {
                ram_len = ram_len.div_ceil(PIECE) * PIECE;
            }
            ram_at[l.block] = ram_len;
            ram_len += l.host_len;
        }
        let through_ring = layouts.iter().filter(|l| setup.tiers[l.block] != TierName::Ram);
        let ring_len = through_ring.clone().map(|l| l.host_len).max().unwrap_or(0).div_ceil(SECTOR) * SECTOR;
        let from_disk = setup.tiers.iter().filter(|&&t| t == TierName::Disk).count();
        let n_ring = match from_disk {
            0 => usize::from(ring_len > 0),
            n => (setup.prefetch_ahead + 1).min(n),
        };

        #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "pinned only with a GPU"))]
        let (mut ram, mut ring_memory) = (HostMemory::new(ram_len)?, HostMemory::new(ring_len * n_ring as u64)?);
        #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "pinned only with a GPU"))]
        let mut pinned = false;
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &gpu {
            pinned = true;
            for m in [&mut ram, &mut ring_memory] {
                match m.pin(gpu) {
                    Ok(()) => {}
                    Err(_) if setup.allow_pageable => pinned = false,
                    Err(e) => return Err(e),
                }
            }
        }

        let total = ram_len.max(1);
        let mut pending = VecDeque::new();
        let mut done = 0;
        for l in layouts.iter().filter(|l| setup.tiers[l.block] == TierName::Ram) {
            pending.push_back((l.host_len, reader.read(l, ram.at(ram_at[l.block]))?));
            if pending.len() > 2 {
                let (n, t) = pending.pop_front().expect("three are pending");
                t.wait()?;
                done += n;
                progress(done, total);
            }
        }
        for (n, t) in pending {
            t.wait()?;
            done += n;
            progress(done, total);
        }

        Ok(Streamer {
            residency: Residency::new(slots, setup.tiers.iter().map(|&t| t == TierName::Vram).collect()),
            slots,
            layouts,
            tiers: setup.tiers.clone(),
            ahead: setup.prefetch_ahead,
            walk: VecDeque::new(),
            active: false,
            reader: Some(reader),
            lane,
            ram,
            ram_at,
            ring_memory,
            ring_len,
            ring: (0..n_ring).map(|_| RingBuffer { block: None, read: None, copy: None }).collect(),
            last_ticket: 0,
            h2d: Bytes::ZERO,
            disk_s_seen: 0.0,
            history: Vec::new(),
            pinned,
        })
    }

    /// Appends blocks to the walk. Told early, the next step's blocks are fetched across the step border.
    pub fn extend(&mut self, blocks: impl IntoIterator<Item = usize>) {
        self.walk.extend(blocks);
    }

    /// Forgets the walk beyond the current block (a run that stops).
    pub fn forget(&mut self) {
        self.walk.truncate(usize::from(self.active));
    }

    /// Blocks still to visit, the current one included.
    #[must_use]
    pub fn left(&self) -> usize {
        self.walk.len()
    }

    /// Makes the next block of the walk readable by compute; it stays until [`Streamer::release`].
    ///
    /// Returns its layout and the address of its slot.
    ///
    /// # Errors
    /// A read or a copy failed; the walk is empty.
    pub fn acquire(&mut self) -> Result<(&BlockLayout, *const u8)> {
        assert!(!self.active, "one block is visited at a time");
        let block = *self.walk.front().ok_or_else(|| Error::run("the walk is over"))?;
        self.pump()?;
        let slot = self.residency.slot_of(block).expect("the next block always gets a slot");
        self.lane.wait(slot)?;
        self.active = true;
        self.pump()?;
        Ok((&self.layouts[block], self.lane.slot(slot)))
    }

    /// Ends the visit: compute's last use of the block has been queued.
    ///
    /// # Errors
    /// The backend refuses.
    pub fn release(&mut self) -> Result<()> {
        let block = self.walk.pop_front().expect("a block is being visited");
        let slot = self.residency.slot_of(block).expect("an active block keeps its slot");
        self.active = false;
        self.lane.release(slot)?;
        self.pump()
    }

    /// Starts whatever can start now. Called between micro-batches too, so that long visits don't starve the lanes.
    ///
    /// # Errors
    /// A read or a copy failed.
    pub fn pump(&mut self) -> Result<()> {
        let walk: Vec<usize> = self.walk.iter().copied().collect();
        let mut distinct: Vec<usize> = Vec::with_capacity(self.ahead + 1);
        for (position, &block) in walk.iter().enumerate() {
            if !distinct.contains(&block) {
                if distinct.len() > self.ahead {
                    break;
                }
                distinct.push(block);
                self.fetch(block, position, &walk)?;
            }
        }
        Ok(())
    }

    /// Moves `block`, needed at `position` of the walk, one stage on if that can be done without waiting; at position
    /// 0 waits for what it takes.
    fn fetch(&mut self, block: usize, position: usize, walk: &[usize]) -> Result<()> {
        if self.residency.slot_of(block).is_some() {
            return Ok(());
        }
        let now = position == 0;
        let host = if self.tiers[block] == TierName::Ram {
            self.ram.at(self.ram_at[block]).cast_const()
        } else {
            let Some(buffer) = self
                .ring
                .iter()
                .position(|r| r.block == Some(block))
                .map_or_else(|| self.start_read(block, position, walk), |b| Ok(Some(b)))?
            else {
                return Ok(());
            };
            let read = self.ring[buffer].read.as_ref();
            if !now && read.is_some_and(|r| !r.is_done()) {
                return Ok(());
            }
            if let Some(read) = self.ring[buffer].read.take() {
                read.wait()?;
            }
            self.ring_memory.at(buffer as u64 * self.ring_len).cast_const()
        };
        let active = self.active.then(|| walk[0]);
        let Some((slot, left)) = self.residency.admit(block, position, walk, active) else { return Ok(()) };
        if let Some(left) = left {
            self.history.push((left, self.residency.count() - 1));
        }
        self.history.push((block, self.residency.count()));
        assert!(self.residency.count() <= self.slots, "residency stays within the plan");
        // SAFETY: the RAM tier never changes; a ring buffer is not reused before its copy is done (`start_read`).
        let ticket = unsafe { self.lane.load(slot, &self.layouts[block], host)? };
        self.last_ticket = ticket;
        self.h2d += Bytes(self.layouts[block].bytes);
        if let Some(r) = self.ring.iter_mut().find(|r| r.block == Some(block)) {
            r.copy = Some(ticket);
        }
        Ok(())
    }

    /// Starts reading `block` into the ring buffer whose block is needed furthest away, if one can be had.
    fn start_read(&mut self, block: usize, position: usize, walk: &[usize]) -> Result<Option<usize>> {
        let now = position == 0;
        let next_use =
            |b: Option<usize>| b.map_or(usize::MAX, |b| walk.iter().position(|&w| w == b).unwrap_or(usize::MAX - 1));
        let mut order: Vec<_> = (0..self.ring.len()).map(|i| (next_use(self.ring[i].block), i)).collect();
        order.sort_by_key(|&(use_at, i)| (std::cmp::Reverse(use_at), i));
        for (use_at, i) in order {
            // A block that is already on the device does not need its buffer any more.
            let spent = self.ring[i].block.is_none_or(|b| self.residency.slot_of(b).is_some());
            if use_at <= position && !spent {
                continue;
            }
            if let Some(read) = &self.ring[i].read {
                if !now && !read.is_done() {
                    continue;
                }
                read.wait()?;
            }
            if let Some(ticket) = self.ring[i].copy {
                if now {
                    self.lane.wait_copied(ticket)?;
                } else if !self.lane.copied(ticket)? {
                    continue;
                }
            }
            let reader = self.reader.as_ref().expect("open until dropped");
            let host = self.ring_memory.at(i as u64 * self.ring_len);
            let read = reader.read(&self.layouts[block], host)?;
            self.ring[i] = RingBuffer { block: Some(block), read: Some(read), copy: None };
            return Ok(Some(i));
        }
        Ok(None)
    }

    /// State of every block, for the block map.
    #[must_use]
    pub fn states(&mut self) -> Vec<BlockState> {
        let active = self.active.then(|| self.walk[0]);
        (0..self.layouts.len())
            .map(|b| {
                if Some(b) == active {
                    BlockState::Active
                } else if self.residency.slot_of(b).is_some() {
                    BlockState::Resident
                } else if self.ring.iter().any(|r| r.block == Some(b) && r.read.as_ref().is_some_and(|t| !t.is_done()))
                {
                    BlockState::Reading
                } else if self.ring.iter().any(|r| r.block == Some(b) && r.copy.is_none()) {
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

    /// Times, peak and history since the last call. On a GPU waits for queued work: call it at step ends.
    ///
    /// # Errors
    /// Earlier work on the device failed.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        let disk_s = self.reader.as_ref().map_or(0.0, Reader::busy_seconds);
        let since = disk_s - std::mem::replace(&mut self.disk_s_seen, disk_s);
        Ok(Snapshot {
            times: self.lane.take_times()?,
            disk_s: since,
            residency_peak: self.residency.take_peak(),
            history: std::mem::take(&mut self.history),
        })
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
        let _ = self.lane.wait_copied(self.last_ticket);
    }
}
