//! One step in the steady state, played through: the disk, the link and compute as three queues along the schedule.
//!
//! A copy starts when the link is free, its slot's last reader has computed and its bytes are off the disk; a read
//! starts when the drive is free and the host ring has room; compute waits for what it takes. The host launches in
//! program order and meets the device at each step's end, as `train/` does.

use super::schedule::{Habit, Load, Op, PARTS, Schedule};
use super::slots::Slots;
use super::work::{Cost, VisitCost};
use crate::event::TierName;
use std::collections::VecDeque;

/// Steps played; the last counts.
const STEPS: u64 = 2;

/// Seconds that a copy takes besides its bytes (H200: 64 KiB at 17 GB/s where large ones reach 55).
const COPY: f64 = 4.0e-6;
/// Link seconds of inputs on their way back over what their bytes take: they wait between the weights' copies, and
/// compute waits for them (H200, inputs of 17 MB: 10 ms a step where the bytes take 2.4).
const OFFLOAD: f64 = 4.0;

/// What is played.
pub struct Scene<'a> {
    /// Blocks.
    pub n_blocks: usize,
    /// Lowest block that trains.
    pub lowest: usize,
    /// Slots as the streamer has them.
    pub slots: &'a Slots,
    /// How visits use parts.
    pub habit: Habit,
    /// Pieces of a streamed head.
    pub pieces: usize,
    /// Bytes of each segment as stored.
    pub bytes: &'a [f64],
    /// Copies of each segment.
    pub copies: &'a [f64],
    /// Tier of each segment.
    pub tiers: &'a [TierName],
    /// Host ring of disk reads, bytes.
    pub ring: f64,
    /// Compute of each block's visits, for one micro-batch.
    pub blocks: &'a [VisitCost],
    /// Head and loss, for the whole step.
    pub head: Cost,
    /// The optimizer.
    pub update: Cost,
    /// Block inputs that cross the link each way per trained block, bytes.
    pub offload: f64,
}

/// Rates it is played at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Disk reads, bytes per second.
    pub disk: f64,
    /// Host to device, bytes per second.
    pub link: f64,
    /// What compute takes over its costs.
    pub compute: f64,
    /// Host seconds at the border between two steps, with the device idle.
    pub border: f64,
}

/// What a step came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Seconds.
    pub seconds: f64,
    /// Seconds the disk was busy.
    pub disk: f64,
    /// Seconds the link was busy.
    pub link: f64,
    /// Seconds compute was busy.
    pub compute: f64,
    /// Seconds of launching.
    pub host: f64,
}

/// Bytes on their way through the host ring.
#[derive(Default)]
struct Ring {
    room: f64,
    inside: f64,
    /// Bytes and when they were copied out.
    out: VecDeque<(f64, f64)>,
}

impl Ring {
    /// The earliest time at which `bytes` fit.
    fn enter(&mut self, bytes: f64) -> f64 {
        let mut at = 0.0;
        self.inside += bytes;
        while self.inside > self.room
            && let Some((left, when)) = self.out.pop_front()
        {
            self.inside -= left;
            at = when;
        }
        at
    }
}

struct Play<'a> {
    s: &'a Scene<'a>,
    rates: Rates,
    ring: Ring,
    /// When each queue is free.
    disk: f64,
    link: f64,
    device: f64,
    host: f64,
    /// When compute had done each tick's op.
    ticks: Vec<f64>,
    busy: Step,
}

impl Play<'_> {
    /// Queues `load`; when it is on the device.
    fn load(&mut self, load: Load) -> f64 {
        let bytes = self.s.bytes[load.segment];
        let free = if load.free_at == 0 { 0.0 } else { self.ticks[load.free_at as usize - 1] };
        let copy = bytes / self.rates.link + self.s.copies[load.segment] * COPY;
        let mut start = self.link.max(free);
        let mut end = start + copy;
        if self.s.tiers[load.segment] == TierName::Disk {
            let read = bytes / self.rates.disk;
            self.disk = self.disk.max(self.ring.enter(bytes)) + read;
            self.busy.disk += read;
            // Chunks are copied as they come.
            end = end.max(self.disk);
            start = start.max(end - copy);
            self.ring.out.push_back((bytes, end));
        }
        self.link = end.max(start + copy);
        self.busy.link += copy;
        end
    }

    fn compute(&mut self, cost: Cost, times: f64) {
        let seconds = cost.device * self.rates.compute * times;
        self.device = self.device.max(self.host) + seconds;
        let launching = cost.host * self.rates.compute * times;
        self.host += launching;
        self.busy.compute += seconds;
        self.busy.host += launching;
        // The host can't be behind what it launches.
        self.device = self.device.max(self.host);
    }
}

/// Plays `s` at `rates`.
#[must_use]
pub fn step(s: &Scene<'_>, rates: Rates) -> Step {
    let program = s.habit.step(s.n_blocks, s.lowest, s.pieces);
    let visits = program.len() as u64;
    let mut schedule = Schedule::new(s.slots);
    (0..=STEPS).for_each(|_| schedule.extend(&program));
    let micro = s.habit.micro.max(1) as f64;
    let mut play = Play {
        s,
        rates,
        ring: Ring { room: s.ring, ..Ring::default() },
        disk: 0.0,
        link: 0.0,
        device: 0.0,
        host: 0.0,
        ticks: Vec::with_capacity(program.iter().map(|v| v.0.len()).sum::<usize>() * STEPS as usize),
        busy: Step::default(),
    };
    let mut next = schedule.next(visits * STEPS);
    let mut begun = 0.0;
    for _ in 0..STEPS {
        begun = play.device;
        play.busy = Step::default();
        for (at, visit) in program.iter().enumerate() {
            let sweep = usize::from(at >= s.n_blocks) + usize::from(at >= s.n_blocks + s.pieces);
            if at == s.n_blocks && s.pieces == 0 {
                play.compute(s.head, 1.0);
            }
            let mut seen = [0_u32; PARTS];
            for op in &visit.0 {
                match *op {
                    Op::Take(segment) => {
                        let tick = play.ticks.len() as u64;
                        while let Some(load) = next.filter(|l| l.needed_at <= tick) {
                            let there = play.load(load);
                            play.device = play.device.max(there);
                            next = schedule.next(visits * STEPS);
                        }
                        if sweep == 1 && s.pieces > 0 {
                            let share = 1.0 / s.pieces as f64;
                            play.compute(s.head, share);
                        } else {
                            let (block, part) = (&s.blocks[segment / PARTS], segment % PARTS);
                            // A split visit takes the down projection once for each micro-batch, the others twice.
                            let cost = match (sweep, seen[part] % if part + 1 == PARTS { 1 } else { 2 }) {
                                (0, _) => block.forward[part],
                                (_, 0) => block.recompute[part],
                                _ => block.back[part],
                            };
                            seen[part] += 1;
                            play.compute(cost, if s.habit.split { 1.0 } else { micro });
                        }
                    }
                    Op::Done(segment) => {
                        if sweep == 2 && !s.habit.split {
                            let (block, part) = (&s.blocks[segment / PARTS], segment % PARTS);
                            play.compute(block.back[part], micro);
                        }
                    }
                }
                play.ticks.push(play.device);
            }
            if s.offload > 0.0 && sweep == 2 {
                play.link += OFFLOAD * s.offload / rates.link;
            }
        }
        play.compute(s.update, 1.0);
        // The host reads the loss, then launches the next step.
        play.device += rates.border;
        play.host = play.device;
    }
    // A first step from empty slots may leave the second some of its loads; a steady one takes as long as its queues.
    let seconds = (play.device - begun).max(play.busy.disk).max(play.busy.link);
    Step { seconds, ..play.busy }
}
