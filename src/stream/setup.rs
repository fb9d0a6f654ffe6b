//! From a placement to slots, host memory and a lane: everything the streamer works with, made once.

use super::boundaries::Boundaries;
use super::cpu::CpuLane;
use super::lane::Lane;
use super::pinning::{self, Pinned};
use super::ring::{Ring, chunk_limit};
use crate::checkpoint::{Checkpoint, Part};
use crate::device::PIN_PIECE;
use crate::engine::{Control, Stop};
use crate::error::{Error, Result};
use crate::event::TierName;
use crate::plan::ModePlan;
use crate::plan::schedule::{PARTS, head_rows};
use crate::plan::slots::{FEED_FORWARD, SlotSizes, Slots};
use crate::store::layout::SlotKind;
use crate::store::{HostMemory, Pin, Reader, SegmentLayout};
use std::collections::VecDeque;
use std::time::Duration;
use tch::Device;

/// How to stream a checkpoint: the plan's placement, and where to.
#[derive(Clone, Debug)]
pub struct StreamSetup {
    /// Tier of each block.
    pub tiers: Vec<TierName>,
    /// Ring slots for attention parts, and for the parts of the feed-forward and pieces of the head.
    pub ring: [usize; 2],
    /// Visits fetched ahead of the one computing.
    pub prefetch_ahead: usize,
    /// A block doesn't fit its slots: parts are loaded for each use.
    pub split: bool,
    /// Where the head waits when it streams; `None`: it stays on the device and is not the streamer's.
    pub head: Option<TierName>,
    /// Host memory that disk reads go through, bytes.
    pub ring_bytes: u64,
    /// Go on with pageable memory when pinning fails.
    pub allow_pageable: bool,
    /// A stop ends pinning and the loading of the RAM tier.
    pub control: Control,
    /// Added to every copy on CPU (tests of ordering; zero otherwise).
    pub copy_delay: Duration,
    /// GPU to stream to; `None` = CPU.
    #[cfg(feature = "cuda")]
    pub gpu: Option<std::sync::Arc<crate::device::cuda::Gpu>>,
}

impl StreamSetup {
    /// What `plan` says, on a CPU until a GPU is put in.
    #[must_use]
    pub fn of(plan: &ModePlan) -> StreamSetup {
        StreamSetup {
            ring: plan.stream.ring,
            split: plan.stream.split,
            head: plan.stream.head,
            ring_bytes: plan.stream.host_ring.0,
            allow_pageable: plan.stream.allow_pageable,
            ..StreamSetup::cpu(plan.placement.iter().map(|p| p.tier).collect(), 0, plan.stream.prefetch_ahead)
        }
    }

    /// A CPU stream with a ring of `ring` whole blocks, without test delays.
    #[must_use]
    pub fn cpu(tiers: Vec<TierName>, ring: usize, prefetch_ahead: usize) -> StreamSetup {
        StreamSetup {
            tiers,
            ring: [ring, ring * FEED_FORWARD],
            prefetch_ahead,
            split: false,
            head: None,
            ring_bytes: 64 << 20,
            allow_pageable: false,
            control: Control::default(),
            copy_delay: Duration::ZERO,
            #[cfg(feature = "cuda")]
            gpu: None,
        }
    }
}

impl StreamSetup {
    /// The same on `device`.
    ///
    /// # Errors
    /// The GPU can't be opened.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, unused_variables, reason = "no GPU"))]
    pub fn on(self, device: Device) -> Result<StreamSetup> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(i) = device {
            let gpu = std::sync::Arc::new(crate::device::cuda::Gpu::open(i)?);
            return Ok(StreamSetup { gpu: Some(gpu), ..self });
        }
        Ok(self)
    }

    /// Host memory for the inputs of `blocks` blocks, `rows` each of at most `bytes`, in any number of tensors.
    ///
    /// # Errors
    /// No memory, or it can't be pinned. A stop was asked for.
    pub fn offload(&self, blocks: usize, rows: usize, bytes: u64) -> Result<Boundaries> {
        #[cfg(feature = "cuda")]
        if let Some(gpu) = &self.gpu {
            return Boundaries::offloaded_from(gpu.clone(), blocks, rows, bytes, &|| {
                self.control.check(Stop::AfterStep)
            });
        }
        Boundaries::offloaded(blocks, rows, bytes)
    }
}

/// Sizes of the slots for the blocks whose parts have these layouts.
fn sizes(parts: &[SegmentLayout]) -> SlotSizes {
    let block = |parts: &[SegmentLayout]| Part::ALL.map(|p| parts[p as usize].slot_len);
    SlotSizes::of(&parts.chunks_exact(PARTS).map(block).collect::<Vec<_>>())
}

/// What [`StreamSetup::build`] makes.
pub(super) struct Parts {
    pub layouts: Vec<SegmentLayout>,
    /// Tier of each segment.
    pub tiers: Vec<TierName>,
    pub slots: Slots,
    pub lane: Box<dyn Lane>,
    pub ram: HostMemory,
    /// Place of each segment of the RAM tier.
    pub ram_at: Vec<u64>,
    pub ring: Ring,
    pub pinned: bool,
    /// What of the pinning is not as planned.
    pub note: Option<String>,
}

impl StreamSetup {
    fn kind(&self) -> SlotKind {
        #[cfg(feature = "cuda")]
        if self.gpu.is_some() {
            return SlotKind::AsStored;
        }
        SlotKind::F32
    }

    /// Layouts and tiers of all segments: the parts of every block, then the pieces of a streamed head.
    fn segments(&self, c: &Checkpoint) -> (Vec<SegmentLayout>, Vec<TierName>) {
        let kind = self.kind();
        let short = chunk_limit(self.ring_bytes);
        let limit = |tier| if tier == TierName::Ram { u64::MAX / 2 } else { short };
        let mut tiers: Vec<TierName> = self.tiers.iter().flat_map(|&t| [t; Part::ALL.len()]).collect();
        let mut layouts: Vec<SegmentLayout> = (0..c.blocks.len())
            .flat_map(|b| Part::ALL.map(|p| SegmentLayout::part(c, b, p, kind, limit(self.tiers[b]))))
            .collect();
        if let Some(tier) = self.head {
            let t = c.head_tensor();
            let row = t.elements() / t.shape[0].max(1) * kind.element(t.bytes / t.elements().max(1));
            let rows = head_rows(sizes(&layouts).usual[1], row);
            for first in (0..t.shape[0]).step_by(rows as usize) {
                layouts.push(SegmentLayout::head(c, first, rows.min(t.shape[0] - first), kind, limit(tier)));
                tiers.push(tier);
            }
        }
        (layouts, tiers)
    }

    /// Makes everything and loads the RAM tier.
    ///
    /// # Errors
    /// A file can't be read, memory can't be had or pinned, the slots can't hold what a visit takes.
    pub(super) fn build(
        &self,
        checkpoint: &Checkpoint,
        reader: &Reader,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Parts> {
        let n = checkpoint.blocks.len();
        assert_eq!(self.tiers.len(), n, "one tier per block");
        let (layouts, tiers) = self.segments(checkpoint);
        let mut sizes = sizes(&layouts[..n * PARTS]);
        let slots = Slots::new(tiers.iter().map(|t| *t == TierName::Vram).collect(), self.ring, &sizes);
        self.check(&slots, n)?;
        let pieces = layouts[n * PARTS..].iter().map(|l| l.slot_len);
        sizes.usual[1] = pieces.fold(sizes.usual[1], u64::max);
        let lens = slots.bytes(&sizes);
        let lane: Box<dyn Lane> = {
            #[cfg(feature = "cuda")]
            match &self.gpu {
                Some(g) => Box::new(super::cuda::CudaLane::new(g.clone(), &lens)?),
                None => Box::new(CpuLane::new(&lens, self.copy_delay)?),
            }
            #[cfg(not(feature = "cuda"))]
            Box::new(CpuLane::new(&lens, self.copy_delay)?)
        };

        let mut ram_at = vec![0; layouts.len()];
        let mut ram_len = 0;
        for (s, l) in layouts.iter().enumerate().filter(|(s, _)| tiers[*s] == TierName::Ram) {
            if l.host_len > 0 && ram_len / PIN_PIECE != (ram_len + l.host_len - 1) / PIN_PIECE {
                ram_len = ram_len.div_ceil(PIN_PIECE) * PIN_PIECE;
            }
            ram_at[s] = ram_len;
            ram_len += l.host_len;
        }
        let ring_bytes = if tiers.iter().all(|t| *t == TierName::Ram) { 0 } else { self.ring_bytes };
        let mut ram = HostMemory::new(ram_len)?;
        #[cfg(feature = "cuda")]
        let mut gpu = self.gpu.clone();
        #[cfg(feature = "cuda")]
        let pinner = gpu.as_mut().map(|g| g as &mut dyn Pin);
        #[cfg(not(feature = "cuda"))]
        let pinner: Option<&mut dyn Pin> = None;
        let limit = chunk_limit(self.ring_bytes);
        let stop = || self.control.check(Stop::AfterStep);
        let pinned = pinning::pin((&mut ram, ram_len), ring_bytes, limit, self.allow_pageable, pinner, &stop)?;
        let Pinned { mut ring, pinned, note } = pinned;
        reader.register(ring.memory())?;
        self.load(&layouts, &tiers, &ram, &ram_at, reader, &mut |done| progress(done, ram_len.max(1)))?;
        Ok(Parts { layouts, tiers, slots, lane, ram, ram_at, ring, pinned, note })
    }

    /// Whether the rings hold what a visit takes at once.
    fn check(&self, slots: &Slots, n_blocks: usize) -> Result<()> {
        let (blocks, pieces) = slots.fixed.split_at(n_blocks * PARTS);
        let least = match (blocks.iter().any(|f| !f), self.split) {
            (true, true) => [1, 1],
            (true, false) => [1, FEED_FORWARD],
            // Every block stays: only pieces of the head may pass.
            (false, _) => [0, usize::from(!pieces.is_empty())],
        };
        if self.ring[0] < least[0] || self.ring[1] < least[1] {
            return Err(Error::infeasible(format!(
                "{} and {} slots cannot hold the parts of a block that are used at once, {} and {}",
                self.ring[0], self.ring[1], least[0], least[1]
            )));
        }
        Ok(())
    }

    /// Fills the RAM tier.
    fn load(
        &self,
        layouts: &[SegmentLayout],
        tiers: &[TierName],
        ram: &HostMemory,
        ram_at: &[u64],
        reader: &Reader,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        /// One request to the reader at most.
        const PIECE: u64 = 32 << 20;
        /// Requests in flight.
        const DEPTH: usize = 4;
        let mut done = 0;
        let mut pending: VecDeque<(u64, crate::store::ReadTicket)> = VecDeque::new();
        let mut load = || -> Result<()> {
            let mut wait = |(n, ticket): (u64, crate::store::ReadTicket)| {
                ticket.wait()?;
                done += n;
                self.control.check(Stop::AfterStep)?;
                progress(done);
                Ok::<_, Error>(())
            };
            for (s, l) in layouts.iter().enumerate().filter(|(s, _)| tiers[*s] == TierName::Ram) {
                for c in &l.chunks {
                    for at in (0..c.len).step_by(PIECE as usize) {
                        let len = PIECE.min(c.len - at);
                        let ticket = reader.read_at(c.file, c.offset + at, len, ram.at(ram_at[s] + c.host + at))?;
                        pending.push_back((len, ticket));
                        if pending.len() > DEPTH {
                            wait(pending.pop_front().expect("more than none"))?;
                        }
                    }
                }
            }
            // Not `drain`: what it has not given when a wait fails, it drops.
            while let Some(one) = pending.pop_front() {
                wait(one)?;
            }
            Ok(())
        };
        let loaded = load();
        // After a stop or an error too: nothing may still be read into memory that is about to be given back.
        for (_, ticket) in pending {
            let _ = ticket.wait();
        }
        loaded
    }
}
