//! Which blocks are loaded in one optimizer step, in the steady state, and how many bytes that moves.
//!
//! The walk is `0 … n-1` forward, then `n-1 … lowest` backward, and again. The ring gives up the block visited longest
//! ago, so it saves its own length at each turn: with every block trained, 2(n - resident - slots) loads.

use super::shape::Model;
use super::types::PerStep;
use crate::event::TierName;
use crate::units::Bytes;

/// Blocks loaded in a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// In the forward sweep, in order.
    pub forward: Vec<usize>,
    /// In the backward sweep, in order.
    pub backward: Vec<usize>,
}

/// Simulates steps until they repeat and returns the loads of one.
pub fn loads(tiers: &[TierName], lowest: usize, slots: usize) -> Loads {
    let n = tiers.len();
    let walk: Vec<usize> = (0..n).chain((lowest..n).rev()).collect();
    // Least recently visited first.
    let mut ring: Vec<usize> = Vec::new();
    let mut last = Loads::default();
    // The ring's contents at a step's end depend on its beginning only through one step: three steps are steady.
    for _ in 0..3 {
        last = Loads::default();
        for (p, &b) in walk.iter().enumerate() {
            if tiers[b] == TierName::Vram {
                continue;
            }
            if let Some(at) = ring.iter().position(|x| *x == b) {
                ring.remove(at);
            } else {
                if ring.len() >= slots && !ring.is_empty() {
                    ring.remove(0);
                }
                if p < n { last.forward.push(b) } else { last.backward.push(b) }
            }
            ring.push(b);
        }
    }
    last
}

/// Bytes of `blocks`, as stored.
pub fn bytes_of(model: &Model, blocks: &[usize]) -> Bytes {
    blocks.iter().map(|b| model.blocks[*b].stored).sum()
}

/// Those of `blocks` that come from disk.
pub fn from_disk(tiers: &[TierName], blocks: &[usize]) -> Vec<usize> {
    blocks.iter().copied().filter(|b| tiers[*b] == TierName::Disk).collect()
}

/// Weight bytes of one step. Independent of the number of micro-batches: they all run inside one visit.
pub fn per_step(model: &Model, tiers: &[TierName], loads: &Loads) -> PerStep {
    let sweep = |blocks: &[usize]| (bytes_of(model, blocks), bytes_of(model, &from_disk(tiers, blocks)));
    let (f, b) = (sweep(&loads.forward), sweep(&loads.backward));
    PerStep { disk_read: f.1 + b.1, h2d: f.0 + b.0, d2h: Bytes::ZERO, written: Bytes::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TierName::{Disk, Ram, Vram};

    #[test]
    fn the_ring_saves_its_length_at_both_turns() {
        for (n, slots) in [(32, 2), (32, 3), (16, 4), (8, 1), (4, 4), (3, 5)] {
            let l = loads(&vec![Ram; n], 0, slots);
            assert_eq!(l.forward.len() + l.backward.len(), 2 * n.saturating_sub(slots), "{n} {slots}");
        }
    }

    #[test]
    fn residents_are_never_loaded() {
        let tiers: Vec<TierName> = (0..16).map(|i| if i % 2 == 0 { Vram } else { Disk }).collect();
        let l = loads(&tiers, 0, 2);
        assert_eq!(l.forward.len() + l.backward.len(), 2 * (8 - 2));
        assert!(l.forward.iter().chain(&l.backward).all(|b| tiers[*b] == Disk));
        assert_eq!(loads(&[Vram; 4], 0, 0), Loads::default());
    }

    #[test]
    fn blocks_below_the_lowest_trainable_are_loaded_once() {
        let l = loads(&[Disk; 32], 16, 2);
        let once = |b: &usize| l.forward.iter().chain(&l.backward).filter(|x| *x == b).count();
        assert!((0..16).all(|b| once(&b) == 1));
        // 16 below once, 16 above twice, less the top turn's two; nothing survives the way back to block 0.
        assert_eq!(l.forward.len() + l.backward.len(), 16 + 32 - 2);
    }
}
