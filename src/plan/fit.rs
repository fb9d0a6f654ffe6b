//! Fits blocks into tiers: as many on the device as the budget holds beside the ring, as many of the rest in host
//! memory, the others on disk. Where that doesn't fit it is thriftier, step by step; where nothing fits it says what is
//! missing.

use super::memory::{self, Terms, Thrift};
use super::placement::{Pattern, place};
use super::schedule::PARTS;
use super::shape::{Job, Model};
use super::time;
use super::types::{StreamPlan, VramPlan};
use crate::config::{Resident, RunConfig};
use crate::device::Machine;
use crate::event::TierName;
use crate::units::{Bytes, GIB};

/// What fits where.
#[derive(Clone, Debug, Default)]
pub struct Fit {
    /// Tier of each block.
    pub tiers: Vec<TierName>,
    /// Device ring slots, in whole blocks.
    pub slots: usize,
    /// The streamer's set-up.
    pub stream: StreamPlan,
    /// Device memory; empty on a CPU machine.
    pub vram: VramPlan,
    /// Host memory.
    pub host: VramPlan,
    /// Why it can't be done; empty when it can.
    pub problems: Vec<String>,
    /// What the user should know about the fit.
    pub notes: Vec<String>,
    /// What limits host memory for weights.
    pub host_limit: Limit,
}

/// A limit and its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes.
    pub bytes: Bytes,
    /// In words, e.g. `stream.host_budget`.
    pub source: String,
}

/// Everything the search needs.
struct Room<'a> {
    m: &'a Model,
    job: &'a Job,
    config: &'a RunConfig,
    /// Ring slots wished for.
    slots: usize,
    thrift: Thrift,
    pattern: Pattern,
    device_fixed: Terms,
    host_fixed: Terms,
    /// All of device memory the plan may use; `None` = the device is the host's memory.
    device: Option<Limit>,
    /// All of host memory the plan may use.
    host: Bytes,
    /// Host memory for weights (RAM tier, ring, and on a CPU the slots).
    weights: Limit,
    integrated: bool,
}

/// One way to split the blocks.
struct Split {
    tiers: Vec<TierName>,
    slots: usize,
    /// Slots by class.
    ring: [usize; 2],
    /// Host ring for disk reads.
    host_ring: Bytes,
    device: Terms,
    host: Terms,
}

/// Most a plan takes for reads on their way: more does not make a drive faster.
const RING_MOST: Bytes = Bytes(2 * GIB);
/// What it takes before it gives blocks a place in host memory.
const RING_WISHED: Bytes = Bytes(256 << 20);
/// For blocks that are read once, at the start.
const RING_ONCE: Bytes = Bytes(128 << 20);
/// Below this there is no room for two chunks and the reads between them.
const RING_LEAST: Bytes = Bytes(1 << 20);

/// Free host memory kept for everything else on the machine.
pub fn reserve(available: Bytes) -> Bytes {
    Bytes((available.0 / 8).min(GIB))
}

/// Ways to spare device memory that the config leaves open, the fastest first.
fn thrifts(config: &RunConfig, on_device: bool) -> Vec<Thrift> {
    let s = &config.stream;
    let choices = |value: &str, always: &str| match value {
        "auto" if on_device => vec![false, true],
        "auto" => vec![false],
        v => vec![v == always],
    };
    let mut all = Vec::new();
    for stream_head in choices(&s.head, "stream") {
        for offload in choices(&s.activation_offload, "on") {
            all.push(Thrift { stream_head, offload, mlp_chunk: s.mlp_chunk as u64 });
        }
    }
    all
}

/// How much better a thriftier way's forecast must be: what it moves beside the weights delays them and compute in ways
/// that a forecast by rates doesn't see (on an H200 7 % of a step with offloaded inputs, 5 % with a streamed head).
const GAIN: f64 = 0.9;

/// How much worse a forecast may be for a ring of more slots: forecasts don't see all that jitter does.
const STEADIER: f64 = 1.005;

/// As [`fit`], with what another fit settled: how thrifty, and how long a ring.
pub fn fit_like(like: &Fit, m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    Room::like(like, m, job, machine, config).fit(Pattern::Spread)
}

/// The fits that ask least of the device: every way to spare its memory that the config leaves open, with the shortest
/// ring.
pub fn least_demanding<'a>(
    m: &'a Model,
    job: &'a Job,
    machine: &'a Machine,
    config: &'a RunConfig,
) -> impl Iterator<Item = Fit> + 'a {
    let slots = config.stream.slots.max(1);
    let ways = thrifts(config, machine.gpu.is_some()).into_iter();
    ways.map(move |thrift| Room::new(m, job, machine, config, thrift, slots).fit(Pattern::Spread))
}

/// Fits `m` for `job` on `machine`: the least thrifty way that fits, unless a thriftier one is clearly faster; of its
/// ring lengths the fastest.
pub fn fit(m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    match ways(m, job, machine, config) {
        Ok(found) => refined(found, m, job, machine, config),
        Err(none) => none,
    }
}

/// As [`fit`], but blocks stay where the usual pattern puts them: enough for a verdict.
pub fn settled(m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    match ways(m, job, machine, config) {
        Ok(found) => fastest(found).1,
        Err(none) => none,
    }
}

/// Fits of the best thrift by ring length, longest first, with their seconds; or one that can't be done.
#[expect(clippy::result_large_err, reason = "both are answers")]
fn ways(m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Result<Vec<(f64, Fit)>, Fit> {
    let mut best: Option<(f64, Vec<(f64, Fit)>)> = None;
    let mut last = None;
    for thrift in thrifts(config, machine.gpu.is_some()) {
        let mut found: Vec<(f64, Fit)> = Vec::new();
        for slots in ring_lengths(config, m.blocks.len()) {
            let fit = Room::new(m, job, machine, config, thrift, slots).fit(Pattern::Spread);
            if !fit.problems.is_empty() {
                last.get_or_insert(fit);
                continue;
            }
            found.push((time::least(m, job, machine, &fit), fit));
            if found.last().is_some_and(|(_, f)| f.slots == 0) {
                break;
            }
        }
        let least = found.iter().map(|f| f.0).fold(f64::INFINITY, f64::min);
        if !found.is_empty() && best.as_ref().is_none_or(|b| least < b.0 * GAIN) {
            best = Some((least, found));
        }
    }
    match best {
        Some((_, found)) => Ok(found),
        None => Err(last.expect("there is always one way to try")),
    }
}

/// The fastest of `found`, its blocks placed by the best pattern and swapped where that helps.
fn refined(mut found: Vec<(f64, Fit)>, m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    // Only now the other patterns: which ring and thrift are best hardly depends on them.
    for i in 0..found.len() {
        let (like, mixed) = (found[i].1.clone(), found[i].1.tiers.iter().any(|t| *t != found[i].1.tiers[0]));
        if mixed || job.lowest > 0 {
            let others = Pattern::ALL[1..].iter().map(|p| Room::like(&like, m, job, machine, config).fit(*p));
            let others = others.filter(|f| f.problems.is_empty());
            found.extend(others.map(|f| (time::least(m, job, machine, &f), f)).collect::<Vec<_>>());
        }
    }
    polished(fastest(found), m, job, machine, config)
}

/// Longer rings and the usual pattern come first, and win unless another is clearly better.
fn fastest(mut found: Vec<(f64, Fit)>) -> (f64, Fit) {
    let mut best = found.remove(0);
    for other in found {
        if other.0 * STEADIER < best.0 {
            best = other;
        }
    }
    best
}

/// Steps played for swaps, times blocks: enough to try every pair of a small model, a few of a large one, where a
/// single block hardly counts.
const POLISH: usize = 1200;

/// Swaps tiers of two blocks, near ones first, as long as that is clearly faster.
fn polished(best: (f64, Fit), m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    let (mut seconds, mut best) = best;
    let room = Room::like(&best, m, job, machine, config);
    let n = best.tiers.len();
    let mut tries = POLISH / n.max(1);
    let mut again = true;
    while std::mem::take(&mut again) {
        for (i, j) in (1..n).flat_map(|d| (0..n - d).map(move |i| (i, i + d))) {
            if best.tiers[i] == best.tiers[j] {
                continue;
            }
            if tries == 0 {
                return best;
            }
            tries -= 1;
            let mut tiers = best.tiers.clone();
            tiers.swap(i, j);
            let split = room.split_as(tiers, best.slots);
            if !room.holds(&split) {
                continue;
            }
            let fit = room.finish(split, Vec::new(), best.notes.clone());
            let of_fit = time::least(m, job, machine, &fit);
            if of_fit * STEADIER < seconds {
                (seconds, best, again) = (of_fit, fit, true);
            }
        }
    }
    best
}

/// Ring lengths to try, in blocks: what the config asks for, or up to what its prefetch can use.
fn ring_lengths(config: &RunConfig, n_blocks: usize) -> Vec<usize> {
    let most = config.stream.ring_slots().clamp(1, n_blocks.max(1));
    if config.stream.slots > 0 { vec![most] } else { (1..=most).rev().collect() }
}

impl<'a> Room<'a> {
    /// As thrifty as `fit`, with as long a ring.
    fn like(fit: &Fit, m: &'a Model, job: &'a Job, machine: &Machine, config: &'a RunConfig) -> Room<'a> {
        let s = &fit.stream;
        let thrift = Thrift { stream_head: s.head.is_some(), offload: s.offload, mlp_chunk: s.mlp_chunk as u64 };
        let slots = if fit.slots == 0 { config.stream.ring_slots().max(1) } else { fit.slots };
        Room::new(m, job, machine, config, thrift, slots)
    }

    fn new(
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
        let available = machine.ram.available;
        let mut host = available.saturating_sub(reserve(available));
        let source = if machine.ram.limited_by == "cgroup" { "the cgroup's limit" } else { "free host memory" };
        let own = Limit { bytes: host, source: source.into() };
        let integrated = gpu.is_some_and(|g| g.integrated);
        let device = gpu.map(|g| {
            let mut limit = Limit { bytes: g.vram_free.saturating_sub(g.overhead), source: "free VRAM".into() };
            if integrated && host < limit.bytes {
                limit = Limit { bytes: host, source: "the memory it shares with the host".into() };
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
        let taken = memory::total(&host_fixed)
            + if device.is_none() || integrated { memory::total(&device_fixed) } else { Bytes::ZERO };
        let mut weights = Limit { bytes: host.saturating_sub(taken), source: own.source };
        if gpu.is_some() && machine.ram.pinnable < weights.bytes {
            weights = Limit { bytes: machine.ram.pinnable, source: "pinnable host memory".into() };
        }
        let asked = Bytes(config.stream.host_budget.0);
        if asked > Bytes::ZERO && asked < weights.bytes {
            weights = Limit { bytes: asked, source: "stream.host_budget".into() };
        }
        let pattern = Pattern::default();
        Room { m, job, config, slots, thrift, pattern, device_fixed, host_fixed, device, host, weights, integrated }
    }

    fn fit(mut self, pattern: Pattern) -> Fit {
        self.pattern = pattern;
        let fixed = self.fixed_problems();
        let found = if fixed.is_empty() { self.search() } else { None };
        let mut problems = fixed;
        let (split, mut notes) = match found {
            Some(found) => found,
            None => {
                if problems.is_empty() {
                    problems.push(self.why_not());
                }
                (self.split(0, self.slots.min(self.m.blocks.len()), 0), Vec::new())
            }
        };
        let on_disk = split.tiers.iter().filter(|t| **t == TierName::Disk).count();
        if self.config.stream.tier == "ram" && on_disk > 0 && problems.is_empty() {
            problems.push(format!(
                "stream.tier = ram, but {on_disk} blocks find no place in the {} that {} allows for weights",
                self.weights.bytes, self.weights.source
            ));
        }
        if self.integrated {
            notes.push("integrated/shared memory: device and host needs are added into one budget".into());
        }
        self.finish(split, problems, notes)
    }

    /// Terms that no split can help.
    fn fixed_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |what: &str, terms: &Terms, have: Bytes, source: &str| {
            let need = memory::total(terms);
            if need > have {
                let (name, bytes) = memory::largest(terms).unwrap_or(("", Bytes::ZERO));
                problems.push(format!(
                    "{what} needs {need} before any block, {have} are there ({source}); largest: {} {bytes}",
                    name.replace('_', " ")
                ));
            }
        };
        let mut host = self.host_fixed.clone();
        match &self.device {
            Some(d) if !self.integrated => check("device memory", &self.device_fixed, d.bytes, &d.source),
            _ => host.extend(self.device_fixed.clone()),
        }
        check("host memory", &host, self.host, "free host memory less a reserve");
        problems
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
    fn search(&self) -> Option<(Split, Vec<String>)> {
        let n = self.m.blocks.len();
        let limit = self.resident_limit();
        for resident in (0..=limit).rev() {
            let slots = self.slots.min(n - resident);
            if !self.device_fits(resident, slots) {
                continue;
            }
            if let Some(split) = self.fill_host(resident, slots) {
                return Some((split, Vec::new()));
            }
        }
        if self.config.stream.slots > 0 {
            return None;
        }
        let shorter = (1..self.slots.min(n)).rev().filter(|s| self.device_fits(0, *s)).find_map(|slots| {
            let note = format!("the ring is cut from {} to {slots} slots to fit", self.slots);
            Some((self.fill_host(0, slots)?, vec![note]))
        });
        // A block that doesn't fit whole can still pass part by part.
        shorter.or_else(|| self.device_fits(0, 0).then(|| Some((self.fill_host(0, 0)?, Vec::new())))?)
    }

    fn device_fits(&self, resident: usize, slots: usize) -> bool {
        let Some(device) = &self.device else { return true };
        let [attention, feed_forward] = self.m.part_slots();
        let ring = self.ring(self.m.blocks.len() - resident, slots);
        let blocks = attention * (ring[0] + resident) as u64 + feed_forward * (ring[1] + resident * (PARTS - 1)) as u64;
        memory::total(&self.device_fixed) + blocks <= device.bytes
    }

    /// Ring slots by class for `slots` whole blocks of `streamed` ones.
    fn ring(&self, streamed: usize, slots: usize) -> [usize; 2] {
        match slots {
            _ if streamed == 0 => [0, if self.thrift.stream_head { 2 } else { 0 }],
            0 => [1, 1],
            // One attention part more: the next block begins with it, and the link goes on while this one ends.
            k => [k + usize::from(k < streamed), k * (PARTS - 1)],
        }
    }

    /// Most blocks in host memory for this many on the device.
    fn fill_host(&self, resident: usize, slots: usize) -> Option<Split> {
        let streamed = self.m.blocks.len() - resident;
        let most = if self.config.stream.tier == "disk" { 0 } else { streamed };
        // More blocks never need less: the most that fit are found by halving.
        let (mut fits, mut over) = (None, most + 1);
        let mut low = 0;
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
    fn holds(&self, s: &Split) -> bool {
        self.device.as_ref().is_none_or(|d| memory::total(&s.device) <= d.bytes) && self.host_fits(s)
    }

    fn host_fits(&self, s: &Split) -> bool {
        let get = |terms: &Terms, name: &str| terms.get(name).copied().unwrap_or(Bytes::ZERO);
        let mut weights = get(&s.host, "ram_tier") + get(&s.host, "ring");
        if self.device.is_none() {
            weights = weights + get(&s.host, "slots") + get(&s.host, "resident_blocks");
        }
        if self.integrated {
            let all = memory::total(&s.host) + memory::total(&s.device);
            return weights <= self.weights.bytes && all <= self.host;
        }
        weights <= self.weights.bytes && memory::total(&s.host) <= self.host
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
    fn split_as(&self, tiers: Vec<TierName>, slots: usize) -> Split {
        let n = tiers.len();
        let of = |tier: TierName| tiers.iter().filter(|t| **t == tier).count();
        let (resident, ram) = (of(TierName::Vram), of(TierName::Ram));
        let sum = |tier: TierName, of: fn(&super::shape::BlockShape) -> Bytes| -> Bytes {
            tiers.iter().zip(&self.m.blocks).filter(|(t, _)| **t == tier).map(|(_, b)| of(b)).sum()
        };
        let [attention, feed_forward] = self.m.part_slots();
        let streamed = n - resident;
        let ring = self.ring(streamed, slots);
        let parts = PARTS as u64 - 1;
        let residents = (attention + feed_forward * parts) * resident as u64;
        let head_on_disk = self.thrift.stream_head && self.config.stream.tier == "disk";
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
        let (mut device, mut host) = (self.device_fixed.clone(), self.host_fixed.clone());
        let put = |terms: &mut Terms, name: &str, bytes: Bytes| {
            if bytes > Bytes::ZERO {
                terms.insert(name.into(), bytes);
            }
        };
        put(&mut device, "slots", attention * ring[0] as u64 + feed_forward * ring[1] as u64);
        put(&mut device, "resident_blocks", residents);
        put(&mut host, "ram_tier", ram_tier);
        put(&mut host, "ring", host_ring);
        if self.device.is_none() {
            host.append(&mut device);
        }
        Split { tiers, slots, ring, host_ring, device, host }
    }

    /// The reason no split fits although the fixed terms do.
    fn why_not(&self) -> String {
        let least =
            self.split(0, if self.config.stream.slots > 0 { self.slots.min(self.m.blocks.len()) } else { 1 }, 0);
        let (slot, (tensor, bytes)) = (self.m.slot(), &self.m.heaviest);
        match &self.device {
            Some(d) if memory::total(&least.device) > d.bytes => {
                let left = d.bytes.saturating_sub(memory::total(&self.device_fixed));
                format!(
                    "{} ring slot(s) of {slot} need {} on the device, {left} of {} ({}) are left; \
                     the largest tensor of a block is '{tensor}' with {bytes}",
                    least.slots,
                    slot * least.slots as u64,
                    d.bytes,
                    d.source
                )
            }
            _ => {
                let mut need = RING_LEAST;
                if self.device.is_none() {
                    need += slot * least.slots as u64;
                }
                format!(
                    "the ring needs {need} of host memory, {} allows {} for weights; \
                     the largest tensor of a block is '{tensor}' with {bytes}",
                    self.weights.source, self.weights.bytes
                )
            }
        }
    }

    fn finish(&self, split: Split, problems: Vec<String>, notes: Vec<String>) -> Fit {
        let plan = |terms: Terms, budget: Bytes| VramPlan { total: memory::total(&terms), budget, terms };
        let budget = self.device.as_ref().map_or(Bytes::ZERO, |d| d.bytes);
        let on_disk = self.config.stream.tier == "disk";
        let stream = StreamPlan {
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
            vram: plan(if self.device.is_some() { split.device } else { Terms::new() }, budget),
            host: plan(split.host, self.host),
            problems,
            notes,
            host_limit: self.weights.clone(),
        }
    }
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
