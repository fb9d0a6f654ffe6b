//! The room that a machine, a config and a thrift leave for blocks, and splits of blocks that keep to it.

use super::fit::Fit;
use super::memory::{self, Terms, Thrift};
use super::placement::{Pattern, place};
use super::schedule::tile;
use super::shape::{Job, Model};
use super::slots::FEED_FORWARD;
use super::types::{StreamPlan, VramPlan};
use crate::config::{Resident, RunConfig, TierChoice};
use crate::device::Machine;
use crate::event::TierName;
use crate::units::{Bytes, GIB};

/// A limit and its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: Bytes,
    /// In words, e.g. `stream.host_budget`.
    pub source: String,
}

/// Everything the search needs.
pub struct Room<'a> {
    m: &'a Model,
    job: &'a Job,
    config: &'a RunConfig,
    /// Ring slots wished for.
    slots: usize,
    thrift: Thrift,
    pattern: Pattern,
    device_fixed: Terms,
    host_fixed: Terms,
    /// Sums of both: splits are weighed by the hundred.
    fixed: [Bytes; 2],
    /// All of device memory the plan may use; `None` = the device is the host's memory.
    device: Option<Limit>,
    /// All of host memory the plan may use.
    host: Bytes,
    /// Host memory for weights (RAM tier, ring, and on a CPU the slots).
    weights: Limit,
    integrated: bool,
}

/// One way to split the blocks, and what it takes beside the fixed terms.
pub struct Split {
    tiers: Vec<TierName>,
    slots: usize,
    /// Slots by class.
    ring: [usize; 2],
    /// These slots.
    ring_bytes: Bytes,
    /// Blocks on the device.
    residents: Bytes,
    /// Blocks, and a streamed head, in host memory.
    ram_tier: Bytes,
    /// Host ring for disk reads.
    host_ring: Bytes,
}

/// Most a plan takes for reads on their way: more does not make a drive faster.
const RING_MOST: Bytes = Bytes(2 * GIB);
/// What it takes before it gives blocks a place in host memory.
const RING_WISHED: Bytes = Bytes(256 << 20);
/// For blocks that are read once, at the start.
const RING_ONCE: Bytes = Bytes(128 << 20);
/// Below this there is no room for two chunks and the reads between them.
const RING_LEAST: Bytes = Bytes(1 << 20);

/// Host memory that a plan may use: what is free, less a reserve for everything else on the machine.
pub fn usable(available: Bytes) -> Bytes {
    available.saturating_sub(Bytes((available.0 / 8).min(GIB)))
}

impl<'a> Room<'a> {
    /// As thrifty as `fit`, with as long a ring.
    pub fn like(fit: &Fit, m: &'a Model, job: &'a Job, machine: &Machine, config: &'a RunConfig) -> Room<'a> {
        let s = &fit.stream;
        let thrift = Thrift { stream_head: s.head.is_some(), offload: s.offload, mlp_chunk: s.mlp_chunk as u64 };
        let slots = if fit.slots == 0 { config.stream.ring_slots().max(1) } else { fit.slots };
        Room::new(m, job, machine, config, thrift, slots)
    }

    pub fn new(
        m: &'a Model,
        job: &'a Job,
        machine: &Machine,
        config: &'a RunConfig,
        thrift: Thrift,
        slots: usize,
    ) -> Room<'a> {
        let gpu = machine.gpu.as_ref();
        let host_fixed = memory::host_terms(m, job, thrift);
        let device_fixed = memory::device_terms(m, job, gpu.is_none(), thrift);
        let mut host = usable(machine.ram.available);
        let source = if machine.ram.limited_by == "cgroup" { "the cgroup's limit" } else { "free" };
        let own = Limit { bytes: host, source: source.into() };
        let integrated = gpu.is_some_and(|g| g.integrated);
        let device = gpu.map(|g| {
            let mut limit = Limit { bytes: g.vram_free.saturating_sub(g.overhead), source: "free".into() };
            if integrated && host < limit.bytes {
                limit = Limit { bytes: host, source: "shared with the host".into() };
            }
            let asked = Bytes(config.stream.vram_budget.0);
            if asked > Bytes::ZERO && asked < limit.bytes {
                limit = Limit { bytes: asked, source: "stream.vram_budget".into() };
            }
            limit
        });
        if integrated {
            host = device.as_ref().map_or(host, |d| host.min(d.bytes));
        }
        let fixed = [memory::total(&device_fixed), memory::total(&host_fixed)];
        let taken = fixed[1] + if device.is_none() || integrated { fixed[0] } else { Bytes::ZERO };
        let mut weights = Limit { bytes: host.saturating_sub(taken), source: own.source };
        if gpu.is_some() && machine.ram.pinnable < weights.bytes {
            weights =
                Limit { bytes: machine.ram.pinnable, source: "as much as may be locked in place for the GPU".into() };
        }
        let asked = Bytes(config.stream.host_budget.0);
        if asked > Bytes::ZERO && asked < weights.bytes {
            weights = Limit { bytes: asked, source: "stream.host_budget".into() };
        }
        let pattern = Pattern::default();
        Room {
            m,
            job,
            config,
            slots,
            thrift,
            pattern,
            device_fixed,
            host_fixed,
            fixed,
            device,
            host,
            weights,
            integrated,
        }
    }

    pub fn fit(mut self, pattern: Pattern) -> Fit {
        self.pattern = pattern;
        let found = if self.fixed_fits() { self.search(true) } else { None };
        let (mut problems, mut lack) = (Vec::new(), Bytes::ZERO);
        let (split, mut notes) = match found {
            Some(found) => found,
            None => {
                (problems, lack) = self.why_not();
                (self.split(0, self.slots.min(self.m.blocks.len()), 0), Vec::new())
            }
        };
        let on_disk = split.tiers.iter().filter(|t| **t == TierName::Disk).count();
        if self.config.stream.tier == TierChoice::Ram && on_disk > 0 && problems.is_empty() {
            problems.push(format!(
                "stream.tier = ram, but {on_disk} of {} layers find no place in RAM, which may hold {} of weights ({})",
                self.m.blocks.len(),
                self.weights.bytes,
                self.weights.source
            ));
        }
        if self.integrated {
            notes.push("integrated/shared memory: the GPU's needs and the host's come out of one budget".into());
        }
        Fit { lack, ..self.finish(split, problems, notes) }
    }

    /// Whether anything fits, some blocks on disk only if `disk` allows it.
    pub fn fits(&self, disk: bool) -> bool {
        let disk = disk && self.config.stream.tier != TierChoice::Ram;
        self.fixed_fits() && self.search(disk).is_some()
    }

    /// Whether the terms that no split can help fit.
    pub fn fixed_fits(&self) -> bool {
        let shared = self.device.is_none() || self.integrated;
        let host = self.fixed[1] + if shared { self.fixed[0] } else { Bytes::ZERO };
        host <= self.host && (self.integrated || self.device.as_ref().is_none_or(|d| self.fixed[0] <= d.bytes))
    }

    /// Blocks that may stay on the device. On a CPU they would only be second copies: none unless asked for.
    fn resident_limit(&self) -> usize {
        let n = self.m.blocks.len();
        match self.config.stream.resident_blocks {
            Resident::AtMost(k) => k.min(n),
            Resident::Auto if self.device.is_none() => 0,
            Resident::Auto => n,
        }
    }

    /// The first split that fits: most residents, then most blocks in host memory; a shorter ring only as a last
    /// resort, and only when its length was not asked for.
    /// Without `disk` every block must find a place in memory.
    fn search(&self, disk: bool) -> Option<(Split, Vec<String>)> {
        let n = self.m.blocks.len();
        let limit = self.resident_limit();
        for resident in (0..=limit).rev() {
            let slots = self.slots.min(n - resident);
            if !self.device_fits(resident, slots) {
                continue;
            }
            if let Some(split) = self.fill_host(resident, slots, disk) {
                return Some((split, Vec::new()));
            }
        }
        if self.config.stream.slots > 0 {
            return None;
        }
        let shorter = (1..self.slots.min(n)).rev().filter(|s| self.device_fits(0, *s)).find_map(|slots| {
            let note = format!("{slots} instead of {} layers are loaded ahead, to fit", self.slots);
            Some((self.fill_host(0, slots, disk)?, vec![note]))
        });
        // A block that doesn't fit whole can still pass part by part.
        let parts = || (self.least() == 0 && self.device_fits(0, 0)).then(|| self.fill_host(0, 0, disk)).flatten();
        shorter.or_else(|| Some((parts()?, Vec::new())))
    }

    /// The shortest ring: part by part, unless the feed-forward's chunks use its three parts together.
    fn least(&self) -> usize {
        usize::from(tile(self.job.micro_tokens() as usize, self.thrift.mlp_chunk as usize, false) > 0)
    }

    fn device_fits(&self, resident: usize, slots: usize) -> bool {
        let Some(device) = &self.device else { return true };
        let ring = self.ring(self.m.blocks.len() - resident, slots);
        let sizes = &self.m.slot_sizes;
        self.fixed[0] + Bytes(sizes.ring_bytes(ring).saturating_add(sizes.most(resident))) <= device.bytes
    }

    /// Ring slots by class for `slots` whole blocks of `streamed` ones.
    fn ring(&self, streamed: usize, slots: usize) -> [usize; 2] {
        match slots {
            _ if streamed == 0 => [0, if self.thrift.stream_head { 2 } else { 0 }],
            0 => [1, 1],
            // One attention part more: the next block begins with it, and the link goes on while this one ends.
            k => [k + usize::from(k < streamed), k * FEED_FORWARD],
        }
    }

    /// Most blocks in host memory for this many on the device; all the others if not some may stay on `disk`.
    fn fill_host(&self, resident: usize, slots: usize, disk: bool) -> Option<Split> {
        let streamed = self.m.blocks.len() - resident;
        let most = if self.config.stream.tier == TierChoice::Disk { 0 } else { streamed };
        // More blocks never need less: the most that fit are found by halving.
        let (mut fits, mut over) = (None, most + 1);
        let mut low = if disk { 0 } else { streamed };
        while low < over {
            let ram = (low + over) / 2;
            let split = self.split(resident, slots, ram);
            if self.host_fits(&split) {
                (fits, low) = (Some(split), ram + 1);
            } else {
                over = ram;
            }
        }
        fits
    }

    /// Whether a split fits device and host as it is.
    pub fn holds(&self, s: &Split) -> bool {
        self.device.as_ref().is_none_or(|d| self.on_device(s) <= d.bytes) && self.host_fits(s)
    }

    /// What computes in device memory, or in host memory where the device has none of its own.
    fn on_device(&self, s: &Split) -> Bytes {
        self.fixed[0] + s.ring_bytes + s.residents
    }

    fn host_fits(&self, s: &Split) -> bool {
        let mut weights = s.ram_tier + s.host_ring;
        let mut all = self.fixed[1] + weights;
        if self.device.is_none() {
            weights = weights + s.ring_bytes + s.residents;
        }
        if self.device.is_none() || self.integrated {
            all += self.on_device(s);
        }
        weights <= self.weights.bytes && all <= self.host
    }

    /// Host ring for as many blocks ahead as the config asks.
    fn wished_ring(&self, on_disk: usize) -> Bytes {
        let blocks = (self.config.stream.prefetch_ahead + 1).min(on_disk.max(1));
        (self.m.host_buffer() * blocks as u64).min(RING_MOST)
    }

    /// `slots` whole blocks in the ring; 0: one part of each kind.
    fn split(&self, resident: usize, slots: usize, ram: usize) -> Split {
        self.split_as(place(self.pattern, self.m.blocks.len(), self.job.lowest, resident, ram, slots), slots)
    }

    /// The same with each block's tier given.
    pub fn split_as(&self, tiers: Vec<TierName>, slots: usize) -> Split {
        let n = tiers.len();
        let of = |tier: TierName| tiers.iter().filter(|t| **t == tier).count();
        let (resident, ram) = (of(TierName::Vram), of(TierName::Ram));
        let sum = |tier: TierName, of: fn(&super::shape::BlockShape) -> Bytes| -> Bytes {
            tiers.iter().zip(&self.m.blocks).filter(|(t, _)| **t == tier).map(|(_, b)| of(b)).sum()
        };
        let streamed = n - resident;
        let ring = self.ring(streamed, slots);
        let sizes = &self.m.slot_sizes;
        let on_device = tiers.iter().enumerate().filter(|(_, t)| **t == TierName::Vram);
        let residents = Bytes(on_device.map(|(block, _)| sizes.block(block)).sum());
        let head_on_disk = self.thrift.stream_head && self.config.stream.tier == TierChoice::Disk;
        let mut ram_tier = sum(TierName::Ram, |b| b.host);
        if self.thrift.stream_head && !head_on_disk {
            ram_tier += self.m.head_stored();
        }
        let on_disk = tiers.iter().filter(|t| **t == TierName::Disk).count();
        let left = self.weights.bytes.saturating_sub(ram_tier);
        // Where no block waits in host memory nothing else wants it: down to the least.
        let (wished, least) = match (on_disk > 0 || head_on_disk, ram) {
            (false, _) if resident == 0 => (Bytes::ZERO, Bytes::ZERO),
            (false, _) => (RING_ONCE, RING_LEAST),
            (true, 0) => (self.wished_ring(on_disk), RING_LEAST),
            (true, _) => (self.wished_ring(on_disk), RING_WISHED),
        };
        let host_ring = wished.min(left.max(least));
        let ring_bytes = Bytes(sizes.ring_bytes(ring));
        Split { tiers, slots, ring, ring_bytes, residents, ram_tier, host_ring }
    }

    /// Why no split fits, and how many bytes are missing: the least that this way to spare memory can do with, beside
    /// what there is.
    fn why_not(&self) -> (Vec<String>, Bytes) {
        let asked = self.config.stream.slots;
        // The shortest ring needs least, unless so many slots are asked for.
        let slots = if asked > 0 { self.slots } else { self.least() }.min(self.m.blocks.len());
        let least = self.split(0, slots, 0);
        let (mut device, mut host) = self.terms(&least);
        let (mut problems, mut lack) = (Vec::new(), Bytes::ZERO);
        let mut check = |what: &str, terms: &Terms, need: Bytes, have: Bytes, source: &str| {
            if need > have {
                problems.push(memory::lacks(what, terms, need, have, source));
                lack += need.saturating_sub(have);
            }
        };
        match &self.device {
            Some(d) if !self.integrated => check("VRAM", &device, memory::total(&device), d.bytes, &d.source),
            _ => host.append(&mut device),
        }
        check("RAM", &host, memory::total(&host), self.host, "free, less a reserve");
        let keys = ["ram_tier", "ring", "slots"];
        let weights: Terms = keys.into_iter().filter_map(|k| host.get(k).map(|b| (k, *b))).collect();
        check("RAM for weights", &weights, memory::total(&weights), self.weights.bytes, &self.weights.source);
        if let Some(first) = problems.first_mut() {
            let (tensor, bytes) = &self.m.heaviest;
            first.push_str(&format!("; the largest tensor of a layer: '{tensor}', {bytes}"));
        }
        (problems, lack)
    }

    /// Terms on the device and in host memory with `split`.
    fn terms(&self, split: &Split) -> (Terms, Terms) {
        let (mut device, mut host) = (self.device_fixed.clone(), self.host_fixed.clone());
        let put = |terms: &mut Terms, name: &'static str, bytes: Bytes| {
            if bytes > Bytes::ZERO {
                terms.insert(name, bytes);
            }
        };
        put(&mut device, "slots", split.ring_bytes);
        put(&mut device, "resident_blocks", split.residents);
        put(&mut host, "ram_tier", split.ram_tier);
        put(&mut host, "ring", split.host_ring);
        (device, host)
    }

    pub fn finish(&self, split: Split, problems: Vec<String>, notes: Vec<String>) -> Fit {
        let (mut device, mut host) = self.terms(&split);
        if self.device.is_none() {
            host.append(&mut device);
        }
        let budget = self.device.as_ref().map_or(Bytes::ZERO, |d| d.bytes);
        let wished = &self.config.stream;
        let on_disk = wished.tier == TierChoice::Disk;
        let stream = StreamPlan {
            prefetch_ahead: wished.prefetch_ahead,
            loss_chunk: wished.loss_chunk,
            allow_pageable: wished.allow_pageable,
            ring: split.ring,
            head: self.thrift.stream_head.then_some(if on_disk { TierName::Disk } else { TierName::Ram }),
            host_ring: split.host_ring,
            offload: self.thrift.offload,
            mlp_chunk: self.thrift.mlp_chunk as usize,
            split: split.slots == 0 && split.ring[0] > 0,
        };
        Fit {
            tiers: split.tiers,
            slots: split.slots,
            stream,
            vram: VramPlan::of(&device, budget),
            host: VramPlan::of(&host, self.host),
            problems,
            lack: Bytes::ZERO,
            notes,
            host_limit: self.weights.clone(),
        }
    }
}
