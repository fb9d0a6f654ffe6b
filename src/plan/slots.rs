//! The slots on the device: which sizes there are, how many of each, and which segment may lie where.
//!
//! Slots of a class are alike, so that any of its segments may take any of them. Most blocks are alike too; what is far
//! larger than the rest (a block that hides a lookup table) has slots of its own size, as many as neighbours on the
//! walk need, instead of making every slot as large.

use super::schedule::PARTS;

/// A part this much larger than what is usual in its class is large.
const LARGE: f64 = 1.25;
/// Parts of a block's feed-forward.
pub const FEED_FORWARD: usize = PARTS - 1;

/// Whether a part belongs to the feed-forward: the second class.
fn class_of(part: usize) -> usize {
    usize::from(part > 0)
}

/// Sizes of slots, and which parts of which blocks are large.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSizes {
    /// Bytes of an ordinary slot: for attention, for a part of the feed-forward or a piece of the head.
    pub usual: [u64; 2],
    /// Bytes of a large one of each; zero where no part is large.
    pub large: [u64; 2],
    odd: Vec<[bool; PARTS]>,
    /// Bytes that so many whole blocks take at most.
    most: Vec<u64>,
}

impl SlotSizes {
    /// Of blocks whose parts take so many bytes each.
    #[must_use]
    pub fn of(blocks: &[[u64; PARTS]]) -> SlotSizes {
        let mut sizes = SlotSizes { odd: vec![[false; PARTS]; blocks.len()], ..SlotSizes::default() };
        for class in 0..2 {
            let parts = || (0..PARTS).filter(|p| class_of(*p) == class);
            let mut sorted: Vec<u64> = blocks.iter().flat_map(|b| parts().map(|p| b[p])).collect();
            sorted.sort_unstable();
            let most = sorted.get(sorted.len().saturating_sub(1) / 2).map_or(0.0, |middle| *middle as f64 * LARGE);
            for (block, odd) in blocks.iter().zip(&mut sizes.odd) {
                for p in parts() {
                    odd[p] = block[p] as f64 > most;
                    let of = if odd[p] { &mut sizes.large[class] } else { &mut sizes.usual[class] };
                    *of = (*of).max(block[p]);
                }
            }
        }
        let mut whole: Vec<u64> = (0..blocks.len()).map(|b| sizes.block(b)).collect();
        whole.sort_unstable_by(|a, b| b.cmp(a));
        let add = |sum: &mut u64, block: u64| {
            *sum = sum.saturating_add(block);
            Some(*sum)
        };
        sizes.most = std::iter::once(0).chain(whole.into_iter().scan(0, add)).collect();
        sizes
    }

    /// Bytes that the slots of `blocks` whole blocks take at most.
    #[must_use]
    pub fn most(&self, blocks: usize) -> u64 {
        self.most.get(blocks).or(self.most.last()).copied().unwrap_or(0)
    }

    /// Bytes that slots for all parts of `block` take.
    #[must_use]
    pub fn block(&self, block: usize) -> u64 {
        let of = |(part, odd): (usize, bool)| if odd { self.large } else { self.usual }[class_of(part)];
        self.odd[block].into_iter().enumerate().map(of).fold(0, u64::saturating_add)
    }

    /// Large slots of each class beside `ring` ordinary ones: what as many neighbours as the ring holds need at most.
    #[must_use]
    pub fn large_slots(&self, ring: [usize; 2]) -> [usize; 2] {
        // Without slots for attention nothing but pieces of the head passes.
        if self.large == [0, 0] || ring[0] == 0 {
            return [0, 0];
        }
        let neighbours = (ring[1] / FEED_FORWARD).clamp(1, self.odd.len().max(1));
        [0, 1].map(|class| {
            let of = |odd: &[bool; PARTS]| (0..PARTS).filter(|p| class_of(*p) == class && odd[*p]).count();
            let most = self.odd.windows(neighbours).map(|near| near.iter().map(of).sum()).max().unwrap_or(0);
            // Part by part one slot passes them all.
            if ring[1] < FEED_FORWARD { most.min(1) } else { most }
        })
    }

    /// Bytes of `ring` ordinary slots and the large ones beside them.
    #[must_use]
    pub fn ring_bytes(&self, ring: [usize; 2]) -> u64 {
        let large = self.large_slots(ring);
        let of = |n: usize, bytes: u64| bytes.saturating_mul(n as u64);
        let all = [of(ring[0], self.usual[0]), of(ring[1], self.usual[1]), of(large[0], self.large[0])];
        all.into_iter().fold(of(large[1], self.large[1]), u64::saturating_add)
    }
}

/// The slots on the device: each class of segments has its own, each resident segment one for good.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Class of each segment.
    pub class_of: Vec<usize>,
    /// Segments that never leave.
    pub fixed: Vec<bool>,
    /// Ring slots of each class.
    pub ring: Vec<usize>,
}

impl Slots {
    /// Slots for the blocks of `sizes` and, after their segments, pieces of the head. Four classes: attention parts; parts of
    /// the feed-forward and pieces of the head; large parts of each.
    #[must_use]
    pub fn new(fixed: Vec<bool>, ring: [usize; 2], sizes: &SlotSizes) -> Slots {
        let class = |s: usize| match sizes.odd.get(s / PARTS) {
            Some(odd) => class_of(s % PARTS) + if odd[s % PARTS] { 2 } else { 0 },
            None => 1,
        };
        let class_of = (0..fixed.len()).map(class).collect();
        Slots { class_of, fixed, ring: ring.into_iter().chain(sizes.large_slots(ring)).collect() }
    }

    /// Class of each slot: first those of fixed segments in order, then the rings.
    #[must_use]
    pub fn classes(&self) -> Vec<usize> {
        let fixed = (0..self.fixed.len()).filter(|&s| self.fixed[s]).map(|s| self.class_of[s]);
        fixed.chain(self.ring.iter().enumerate().flat_map(|(c, &n)| std::iter::repeat_n(c, n))).collect()
    }

    /// Bytes of each slot, in the same order.
    #[must_use]
    pub fn bytes(&self, sizes: &SlotSizes) -> Vec<u64> {
        let of = [sizes.usual[0], sizes.usual[1], sizes.large[0], sizes.large[1]];
        self.classes().into_iter().map(|class| of[class]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_as_large_as_the_worst_neighbours_and_not_as_many_times_the_largest() {
        let usual = [4, 10, 10, 10];
        let mut blocks = [usual; 6];
        assert_eq!(SlotSizes::of(&blocks).ring_bytes([2, 6]), 2 * (4 + 30));
        // One block hides a table in a part: one slot for it beside the ring.
        blocks[2][1] = 500;
        let sizes = SlotSizes::of(&blocks);
        assert_eq!((sizes.usual, sizes.large, sizes.large_slots([2, 6])), ([4, 10], [0, 500], [0, 1]));
        assert_eq!(sizes.ring_bytes([2, 6]), 2 * (4 + 30) + 500);
        assert_eq!(sizes.ring_bytes([1, 1]), 4 + 10 + 500, "part by part");
        assert_eq!(sizes.ring_bytes([0, 2]), 20, "pieces of the head");
        // Two far apart are no neighbours; two beside each other are.
        blocks[5][1] = 400;
        assert_eq!(SlotSizes::of(&blocks).large_slots([2, 6]), [0, 1]);
        blocks[3] = [4, 400, 400, 10];
        assert_eq!(SlotSizes::of(&blocks).large_slots([2, 6]), [0, 3]);
        assert_eq!(SlotSizes::of(&blocks).large_slots([1, 1]), [0, 1]);
        // A little more in one block makes all slots a little larger.
        assert_eq!(SlotSizes::of(&[usual, [4, 12, 10, 10], [5, 10, 10, 10]]).ring_bytes([2, 6]), 2 * (5 + 36));
        assert_eq!(SlotSizes::of(&[]).ring_bytes([0, 0]), 0);
        // Of whole blocks the largest are thought of first.
        assert_eq!([0, 1, 2, 6, 9].map(|n| sizes.most(n)), [0, 524, 558, 524 + 5 * 34, 524 + 5 * 34]);
        assert_eq!((sizes.block(2), sizes.block(3)), (524, 34));
    }
}
