//! Which part of which block is loaded when, and into which slot: the plan that the streamer carries out.
//!
//! The walk of a step is known before it begins, so nothing is decided on the way: a program of takes and dones is
//! laid out, and every load follows from it. A slot is given up by the segment whose next use is furthest away
//! (Belady 1966), which on a walk up and down keeps the ring across both turns. A load may start once the last use of
//! the segment that leaves has been queued: segments retire part by part, not block by block.

use super::slots::Slots;
use crate::checkpoint::Part;
use std::collections::VecDeque;

/// Segments of a block, in [`Part::ALL`] order.
pub const PARTS: usize = Part::ALL.len();

/// Index of `part` of `block` among the segments; those of the head follow all blocks.
#[must_use]
pub fn segment(block: usize, part: Part) -> usize {
    block * PARTS + part as usize
}

/// Rows of the head in one piece: as many as a slot of the feed-forward holds.
#[must_use]
pub fn head_rows(slot: u64, row: u64) -> u64 {
    (slot / row.max(1)).max(1)
}

/// One step of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// From here on compute reads the segment.
    Take(usize),
    /// Its last reader has been queued.
    Done(usize),
}

/// One stay of the walk at a block, or at a piece of the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit(pub Vec<Op>);

/// Tokens of the feed-forward at a time in a micro-batch of `tokens`, where a config asks for `chunk` (0 = all at once):
/// 0 where they go in one. The planner, the program of a visit and its passes all ask here.
///
/// A split block's feed-forward goes in one: chunks hold its three parts together, and their slots are not there.
#[must_use]
pub fn tile(tokens: usize, chunk: usize, split: bool) -> usize {
    if split || tokens <= chunk { 0 } else { chunk }
}

/// How visits use the parts of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habit {
    /// The feed-forward of the visit's only micro-batch runs by token chunks: its three parts are taken together.
    pub tiled: bool,
    /// A block doesn't fit its slots: every use takes and gives back, for each micro-batch.
    pub split: bool,
    /// Micro-batches in a visit: with more than one, parts stay from the first to the last.
    pub micro: usize,
}

impl Habit {
    /// With `micro` micro-batches in a visit, the first of which has its feed-forward in chunks of `tile` tokens (0 = one).
    #[must_use]
    pub fn of(micro: usize, tile: usize, split: bool) -> Habit {
        // Several hold all parts from the first to the last, chunks or not.
        Habit { tiled: micro == 1 && tile > 0, split, micro }
    }

    /// A visit that only runs forward.
    #[must_use]
    pub fn forward(self, block: usize) -> Visit {
        let [a, g, u, d] = Part::ALL.map(|p| segment(block, p));
        let mut ops = Vec::with_capacity(2 * PARTS);
        if self.split {
            for _ in 0..self.micro.max(1) {
                ops.extend([a, g, u, d].into_iter().flat_map(|s| [Op::Take(s), Op::Done(s)]));
            }
        } else if self.micro > 1 {
            ops.extend([a, g, u, d].map(Op::Take));
            ops.extend([a, g, u, d].map(Op::Done));
        } else if self.tiled {
            ops.extend([Op::Take(a), Op::Done(a)]);
            ops.extend([g, u, d].map(Op::Take));
            ops.extend([g, u, d].map(Op::Done));
        } else {
            ops.extend([a, g, u, d].into_iter().flat_map(|s| [Op::Take(s), Op::Done(s)]));
        }
        Visit(ops)
    }

    /// A visit that recomputes and goes back.
    #[must_use]
    pub fn backward(self, block: usize) -> Visit {
        let [a, g, u, d] = Part::ALL.map(|p| segment(block, p));
        let mut ops = Vec::with_capacity(2 * PARTS);
        if self.split {
            for _ in 0..self.micro.max(1) {
                ops.extend([a, g, u, d, u, g, a].into_iter().flat_map(|s| [Op::Take(s), Op::Done(s)]));
            }
        } else {
            ops.extend([a, g, u, d].map(Op::Take));
            ops.extend([d, u, g, a].map(Op::Done));
        }
        Visit(ops)
    }

    /// A visit at a piece of a streamed head.
    #[must_use]
    pub fn head(segment: usize) -> Visit {
        Visit(vec![Op::Take(segment), Op::Done(segment)])
    }

    /// The visits of a forward pass.
    #[must_use]
    pub fn sweep(self, n_blocks: usize, head_pieces: usize) -> Vec<Visit> {
        let up = (0..n_blocks).map(|b| self.forward(b));
        up.chain((0..head_pieces).map(|p| Habit::head(n_blocks * PARTS + p))).collect()
    }

    /// The visits of a training step: up, the head's pieces, down to the lowest trained block.
    #[must_use]
    pub fn step(self, n_blocks: usize, lowest: usize, head_pieces: usize) -> Vec<Visit> {
        let mut visits = self.sweep(n_blocks, head_pieces);
        visits.extend((lowest..n_blocks).rev().map(|b| self.backward(b)));
        visits
    }
}

/// One load of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// What is loaded.
    pub segment: usize,
    /// Where to.
    pub slot: usize,
    /// What leaves.
    pub left: Option<usize>,
    /// Ticks that must have passed: the last use of what leaves has been queued.
    pub free_at: u64,
    /// Tick of the take that needs it.
    pub needed_at: u64,
    /// Visit of that take, counted from the start.
    pub visit: u64,
}

/// A take of the program that is not yet looked at.
#[derive(Clone, Copy, Debug)]
struct Take {
    segment: usize,
    visit: u64,
    tick: u64,
    /// Tick of its done.
    done: u64,
    /// Tick of the segment's next take.
    next: u64,
}

/// See the module's text. A tick is one [`Op`].
#[derive(Clone, Debug)]
pub struct Schedule {
    class_of: Vec<usize>,
    /// Slot of a fixed segment.
    home: Vec<Option<usize>>,
    /// Ring slots by class.
    rings: Vec<Vec<usize>>,
    /// Segment of each slot, after the loads handed out.
    holds: Vec<Option<usize>>,
    /// Slot of each segment, likewise.
    place: Vec<Option<usize>>,
    /// Takes not yet looked at.
    program: VecDeque<Take>,
    /// Takes looked at or dropped so far.
    passed: u64,
    /// Ticks told so far.
    ticks: u64,
    /// Visits told so far.
    visits: u64,
    /// Each segment's last take told, as a count of takes.
    last: Vec<u64>,
    /// Tick of each segment's first take not yet looked at.
    next_use: Vec<u64>,
    /// Tick after the done of the last use looked at.
    free: Vec<u64>,
}

/// No tick: never.
const NEVER: u64 = u64::MAX;

impl Schedule {
    /// Empty slots.
    #[must_use]
    pub fn new(slots: &Slots) -> Schedule {
        let n = slots.class_of.len();
        let mut home = vec![None; n];
        let n_fixed = slots.fixed.iter().filter(|f| **f).count();
        for (slot, s) in (0..n).filter(|&s| slots.fixed[s]).enumerate() {
            home[s] = Some(slot);
        }
        let mut at = n_fixed;
        let rings = slots
            .ring
            .iter()
            .map(|&k| {
                at += k;
                (at - k..at).collect()
            })
            .collect();
        Schedule {
            class_of: slots.class_of.clone(),
            home,
            rings,
            holds: vec![None; at],
            place: vec![None; n],
            program: VecDeque::new(),
            passed: 0,
            ticks: 0,
            visits: 0,
            last: vec![NEVER; n],
            next_use: vec![NEVER; n],
            free: vec![0; n],
        }
    }

    /// Appends visits to the program.
    pub fn extend<'a>(&mut self, visits: impl IntoIterator<Item = &'a Visit>) {
        for Visit(ops) in visits {
            for &op in ops {
                let tick = self.ticks;
                match op {
                    Op::Take(segment) => {
                        match self.told(segment) {
                            Some(before) => before.next = tick,
                            None => self.next_use[segment] = tick,
                        }
                        self.last[segment] = self.passed + self.program.len() as u64;
                        self.program.push_back(Take { segment, visit: self.visits, tick, done: NEVER, next: NEVER });
                    }
                    Op::Done(segment) => {
                        if let Some(take) = self.told(segment) {
                            take.done = tick;
                        }
                    }
                }
                self.ticks += 1;
            }
            self.visits += 1;
        }
    }

    /// The last take told of `segment`, unless it was looked at.
    fn told(&mut self, segment: usize) -> Option<&mut Take> {
        let at = self.last[segment];
        if at == NEVER || at < self.passed { None } else { self.program.get_mut((at - self.passed) as usize) }
    }

    /// The next load of the program, if it is needed in a visit before `horizon`.
    ///
    /// # Panics
    /// A class has too few slots for what the program holds at once; whoever sizes the slots rules that out.
    pub fn next(&mut self, horizon: u64) -> Option<Load> {
        while let Some(&Take { segment, visit, tick, done, next }) = self.program.front() {
            if visit >= horizon {
                return None;
            }
            self.program.pop_front();
            self.passed += 1;
            self.next_use[segment] = next;
            self.free[segment] = done.saturating_add(1);
            if self.place[segment].is_some() {
                continue;
            }
            let slot = self.slot_for(segment, tick);
            let left = self.holds[slot].replace(segment);
            let free_at = left.map_or(0, |s| {
                self.place[s] = None;
                self.free[s]
            });
            self.place[segment] = Some(slot);
            return Some(Load { segment, slot, left, free_at, needed_at: tick, visit });
        }
        None
    }

    /// The slot to give up at `tick`: an empty one, or that of the segment needed furthest away.
    fn slot_for(&self, segment: usize, tick: u64) -> usize {
        if let Some(home) = self.home[segment] {
            return home;
        }
        let ring = &self.rings[self.class_of[segment]];
        if let Some(empty) = ring.iter().find(|&&slot| self.holds[slot].is_none()) {
            return *empty;
        }
        // Needed furthest away; of those the one that was free first; of those the first slot.
        let mut best: Option<(u64, u64, usize)> = None;
        for &slot in ring {
            let Some(s) = self.holds[slot] else { continue };
            let free = self.free[s];
            // A segment in use is not given up; its done comes after this tick.
            if free > tick {
                continue;
            }
            let next = self.next_use[s];
            if best.is_none_or(|(n, f, _)| next > n || (next == n && free < f)) {
                best = Some((next, free, slot));
            }
        }
        best.expect("a ring holds what the program takes at once").2
    }

    /// Whether `segment` never leaves its slot.
    #[must_use]
    pub fn is_fixed(&self, segment: usize) -> bool {
        self.home[segment].is_some()
    }

    /// Visits told so far.
    #[must_use]
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Drops the rest of the program. `held` is what each slot really holds, at tick `now`, between visits.
    pub fn forget(&mut self, held: &[Option<usize>], now: u64) {
        self.passed += self.program.len() as u64;
        self.program.clear();
        self.ticks = now;
        self.next_use.fill(NEVER);
        self.free.fill(0);
        self.holds.copy_from_slice(held);
        self.place.fill(None);
        for (slot, s) in held.iter().enumerate() {
            if let Some(s) = s {
                self.place[*s] = Some(slot);
            }
        }
    }
}

/// The loads of one step in the steady state: `(forward, head, backward)`, as segments in order.
#[must_use]
pub fn steady(slots: &Slots, habit: Habit, n_blocks: usize, lowest: usize, head_pieces: usize) -> [Vec<usize>; 3] {
    let step = habit.step(n_blocks, lowest, head_pieces);
    let mut schedule = Schedule::new(slots);
    let mut loads = [Vec::new(), Vec::new(), Vec::new()];
    // What the slots hold at a step's end depends on what came before through one step only; the one after the last is
    // told so that the last gives up what a run in its middle would.
    const STEPS: usize = 3;
    for _ in 0..=STEPS {
        schedule.extend(&step);
    }
    let visits = step.len() as u64;
    while let Some(load) = schedule.next(visits * STEPS as u64) {
        if load.visit >= visits * (STEPS as u64 - 1) {
            let at = (load.visit % visits) as usize;
            let sweep = usize::from(at >= n_blocks) + usize::from(at >= n_blocks + head_pieces);
            loads[sweep].push(load.segment);
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::slots::SlotSizes;
    use proptest::prelude::*;

    /// `ring` whole blocks and `more` attention slots for `n` blocks, `fixed` of them resident; the head in `pieces`.
    fn slots(n: usize, ring: usize, more: usize, fixed: &[usize], pieces: usize) -> Slots {
        odd_slots(n, ring, more, fixed, pieces, &SlotSizes::of(&vec![[4, 10, 10, 10]; n]))
    }

    /// The same with blocks of `sizes`.
    fn odd_slots(n: usize, ring: usize, more: usize, fixed: &[usize], pieces: usize, sizes: &SlotSizes) -> Slots {
        let resident = |s: usize| s < n * PARTS && fixed.contains(&(s / PARTS));
        Slots::new((0..n * PARTS + pieces).map(resident).collect(), [ring + more, ring * (PARTS - 1)], sizes)
    }

    fn blocks(loads: &[Vec<usize>; 3]) -> f64 {
        loads.iter().map(Vec::len).sum::<usize>() as f64 / PARTS as f64
    }

    #[test]
    fn the_ring_is_kept_across_both_turns() {
        // 2(L − C) loads a step with C slots: no policy beats that on this walk.
        for (n, ring) in [(8, 2), (8, 3), (8, 1), (32, 2), (4, 4), (3, 5)] {
            let loads = steady(&slots(n, ring, 0, &[], 0), Habit::default(), n, 0, 0);
            assert_eq!(blocks(&loads), 2.0 * n.saturating_sub(ring) as f64, "{n} {ring}");
        }
    }

    #[test]
    fn resident_blocks_are_loaded_once() {
        let loads = steady(&slots(8, 2, 0, &[2, 5], 0), Habit::default(), 8, 0, 0);
        assert_eq!(blocks(&loads), 2.0 * (8.0 - 4.0));
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(blocks(&steady(&slots(8, 0, 0, &all, 0), Habit::default(), 8, 0, 0)), 0.0);
    }

    #[test]
    fn blocks_below_the_lowest_trained_one_are_loaded_once_a_step() {
        let loads = steady(&slots(32, 2, 0, &[], 0), Habit::default(), 32, 16, 0);
        let count = |b: usize| loads.iter().flatten().filter(|&&s| s / PARTS == b).count();
        assert!((0..16).all(|b| count(b) == PARTS));
        assert!(blocks(&loads) <= 16.0 + 32.0 - 2.0, "never worse than keeping the top two across the turn");
    }

    #[test]
    fn a_streamed_head_crosses_once_and_keeps_most_of_the_turn() {
        let loads = steady(&slots(16, 1, 1, &[], 9), Habit::default(), 16, 0, 9);
        let (head, rest): (Vec<usize>, Vec<usize>) = loads.iter().flatten().copied().partition(|&s| s >= 16 * PARTS);
        assert_eq!(head.len(), 9);
        // 15 of 16 blocks each way, and one part of the top block again: the head's pieces came through its slot.
        assert!(rest.len() <= 2 * 15 * PARTS + 2, "{}", rest.len());
    }

    #[test]
    fn a_part_is_loaded_as_soon_as_another_retires() {
        let mut s = Schedule::new(&slots(3, 1, 0, &[], 0));
        s.extend(&Habit::default().step(3, 0, 0));
        let loads: Vec<Load> = std::iter::from_fn(|| s.next(2)).collect();
        // Block 1's attention waits for block 0's attention only (two ops), not for the whole block (eight).
        let second = loads.iter().find(|l| l.segment == segment(1, Part::Attention)).unwrap();
        assert_eq!((second.free_at, second.left), (2, Some(segment(0, Part::Attention))));
    }

    #[test]
    fn a_block_larger_than_its_slots_streams_within_the_visit() {
        // One slot for the three parts of the feed-forward.
        let s = Slots { ring: vec![1, 1, 0, 0], ..slots(4, 1, 0, &[], 0) };
        let loads = steady(&s, Habit { split: true, micro: 1, ..Habit::default() }, 4, 0, 0);
        assert!(loads[0].len() >= 4 * 3 && loads[2].len() >= 4 * 5, "{loads:?}");
    }

    proptest! {
        #[test]
        fn what_is_taken_is_there_and_nothing_in_use_is_overwritten(
            n in 1usize..10, ring in 1usize..4, more in 0usize..2, pieces in 0usize..4, resident in 0usize..4,
            lowest in 0usize..10, several in any::<bool>(), tiled in any::<bool>(), split in any::<bool>(),
            ahead in 1u64..6, large in prop::collection::vec((0usize..10, 0usize..4), 0..4),
        ) {
            let fixed: Vec<usize> = (0..resident.min(n)).map(|i| i * n / resident.min(n)).collect();
            let mut blocks = vec![[4, 10, 10, 10]; n];
            large.iter().for_each(|(block, part)| blocks[block % n][*part] *= 7);
            let sizes = SlotSizes::of(&blocks);
            let slots = odd_slots(n, ring, more, &fixed, pieces, &sizes);
            let bytes = slots.bytes(&sizes);
            let habit = Habit { tiled, split, micro: 1 + usize::from(several) };
            let step = habit.step(n, lowest.min(n - 1), pieces);
            let mut schedule = Schedule::new(&slots);
            let mut held: Vec<Option<usize>> = vec![None; slots.classes().len()];
            let mut queue: VecDeque<Load> = VecDeque::new();
            let (mut tick, mut visit) = (0u64, 0u64);
            let mut used = vec![false; slots.class_of.len()];
            schedule.extend(&step);
            for _ in 0..3 {
                schedule.extend(&step);
                for Visit(ops) in &step {
                    while let Some(l) = schedule.next(visit + ahead) { queue.push_back(l); }
                    for op in ops {
                        // Everything that may start, starts, in any order.
                        queue.retain(|l| {
                            let start = l.free_at <= tick;
                            if start {
                                if let Some(old) = held[l.slot] { assert!(!used[old], "{l:?} overwrites a segment in use"); }
                                assert_eq!(held[l.slot], l.left);
                                held[l.slot] = Some(l.segment);
                            }
                            !start
                        });
                        match op {
                            Op::Take(s) => {
                                prop_assert!(held.contains(&Some(*s)), "{s} is there");
                                prop_assert!(slots.classes()[held.iter().position(|h| *h == Some(*s)).unwrap()] == slots.class_of[*s]);
                                if *s < n * PARTS {
                                    let at = held.iter().position(|h| *h == Some(*s)).unwrap();
                                    prop_assert!(bytes[at] >= blocks[s / PARTS][s % PARTS], "{s} fits");
                                }
                                used[*s] = true;
                            }
                            Op::Done(s) => used[*s] = false,
                        }
                        tick += 1;
                    }
                    visit += 1;
                }
            }
        }
    }
}
