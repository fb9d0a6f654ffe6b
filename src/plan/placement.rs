//! Which block lives in which tier.
//!
//! Blocks visited twice a step (trained ones) go to the faster tiers first. Within a class of equal visits the slower
//! blocks are spread evenly among the faster ones, so that each transfer hides behind as much compute as possible;
//! the blocks next to a turn of the walk belong to the slowest tier, because the ring keeps them across it.

use crate::event::TierName;

/// Which blocks stay on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Trained ones first; the others evenly among them, and next to the turns.
    #[default]
    Spread,
    /// The same, away from the turns.
    Inner,
    /// Those that a step begins with.
    Low,
    /// Those around the head.
    High,
}

impl Pattern {
    /// All, the usual one first.
    pub const ALL: [Pattern; 4] = [Pattern::Spread, Pattern::Inner, Pattern::Low, Pattern::High];
}

/// Places `n` blocks: `resident` on the device, `ram` in host memory, the rest on disk.
pub fn place(pattern: Pattern, n: usize, lowest: usize, resident: usize, ram: usize, slots: usize) -> Vec<TierName> {
    let resident = resident.min(n);
    let trained = n - lowest;
    let resident_top = resident.min(trained);
    let below: Vec<usize> = (0..lowest).collect();
    let top: Vec<usize> = (lowest..n).collect();
    let ends = if lowest == 0 { Ends::Both } else { Ends::Top };
    let (streamed_below, streamed_top) = match pattern {
        Pattern::Low => ((resident.min(lowest)..lowest).collect(), (resident.max(lowest)..n).collect()),
        Pattern::High => {
            let end = n - resident;
            ((0..end.min(lowest)).collect(), (lowest..end.max(lowest)).collect())
        }
        Pattern::Spread | Pattern::Inner => {
            let at = if pattern == Pattern::Inner { Ends::Open } else { ends };
            let below = spread(&below, lowest - (resident - resident_top), Ends::Open);
            (below, spread(&top, trained - resident_top, at))
        }
    };
    let mut tiers = vec![TierName::Vram; n];
    let ram_top = ram.min(streamed_top.len());
    let ram_below = (ram - ram_top).min(streamed_below.len());
    let disk_top = near_turns(&streamed_top, streamed_top.len() - ram_top, slots, ends);
    let disk_below = spread(&streamed_below, streamed_below.len() - ram_below, Ends::Open);
    for b in streamed_below.iter().chain(&streamed_top) {
        tiers[*b] = TierName::Ram;
    }
    for b in disk_below.iter().chain(&disk_top) {
        tiers[*b] = TierName::Disk;
    }
    tiers
}

/// Which ends of a list are turns of the walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Open,
    Top,
    Both,
}

/// `count` of `blocks`, evenly spaced, reaching the ends that are turns.
fn spread(blocks: &[usize], count: usize, ends: Ends) -> Vec<usize> {
    let n = blocks.len();
    let count = count.min(n);
    let at = |i: usize| match ends {
        Ends::Both if count > 1 => i * (n - 1) / (count - 1),
        Ends::Both | Ends::Top => (i + 1) * n / count - 1,
        Ends::Open => (2 * i + 1) * n / (2 * count),
    };
    (0..count).map(|i| blocks[at(i)]).collect()
}

/// `count` of the streamed `blocks`: up to `slots` next to each turn, the rest evenly between.
fn near_turns(blocks: &[usize], count: usize, slots: usize, ends: Ends) -> Vec<usize> {
    let count = count.min(blocks.len());
    let (low, high) = match ends {
        Ends::Both => ((count / 2).min(slots), (count - count / 2).min(slots)),
        Ends::Top => (0, count.min(slots)),
        Ends::Open => (0, 0),
    };
    let n = blocks.len();
    let mut chosen: Vec<usize> = blocks[..low].to_vec();
    chosen.extend(spread(&blocks[low..n - high], count - low - high, Ends::Open));
    chosen.extend(&blocks[n - high..]);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use TierName::{Disk, Ram, Vram};

    fn letters(tiers: &[TierName]) -> String {
        tiers.iter().map(|t| t.letter()).collect()
    }

    #[test]
    fn streamed_blocks_are_spread_and_touch_both_turns() {
        assert_eq!(letters(&place(Pattern::Spread, 9, 0, 6, 3, 2)), "RVVVRVVVR");
        assert_eq!(letters(&place(Pattern::Spread, 8, 0, 0, 4, 2)), "DDRRRRDD");
        assert_eq!(letters(&place(Pattern::Spread, 4, 0, 4, 0, 0)), "VVVV");
        assert_eq!(letters(&place(Pattern::Spread, 4, 0, 0, 0, 2)), "DDDD");
    }

    #[test]
    fn most_visited_blocks_get_the_faster_tier() {
        // Upper half trained: residents go there first, then host memory.
        let t = place(Pattern::Spread, 8, 4, 3, 1, 2);
        assert_eq!(letters(&t[..4]), "DDDD");
        assert_eq!(t[4..].iter().filter(|x| **x == Vram).count(), 3);
        let t = place(Pattern::Spread, 8, 4, 6, 0, 2);
        assert!(t[4..].iter().all(|x| *x == Vram));
        assert_eq!(t[..4].iter().filter(|x| **x == Disk).count(), 2);
    }

    #[test]
    fn every_count_is_kept_exactly() {
        for n in 1..12 {
            for lowest in 0..n {
                for v in 0..=n {
                    for r in 0..=n - v {
                        for pattern in Pattern::ALL {
                            let t = place(pattern, n, lowest, v, r, 2);
                            let count = |k| t.iter().filter(|x| **x == k).count();
                            let counts = (count(Vram), count(Ram), count(Disk));
                            assert_eq!(counts, (v, r, n - v - r), "{pattern:?} {n} {lowest} {v} {r}");
                        }
                    }
                }
            }
        }
    }
}
