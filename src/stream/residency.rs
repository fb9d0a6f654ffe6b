//! Which block is in which slot, and which slot to give up: the one whose block is needed furthest away.
//!
//! Pure bookkeeping, so that the bound "never more blocks on the device than planned" is a property of this file.

/// The slots of a device.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    slots: Vec<Option<usize>>,
    /// Slot of each block.
    place: Vec<Option<usize>>,
    /// Blocks that never leave once loaded.
    fixed: Vec<bool>,
    peak: usize,
}

impl Residency {
    pub(crate) fn new(n_slots: usize, fixed: Vec<bool>) -> Residency {
        Residency { slots: vec![None; n_slots], place: vec![None; fixed.len()], fixed, peak: 0 }
    }

    /// The slot that holds (or is receiving) `block`.
    pub(crate) fn slot_of(&self, block: usize) -> Option<usize> {
        self.place[block]
    }

    /// Blocks on the device now, in-flight copies included.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Most blocks on the device since the last call.
    pub(crate) fn take_peak(&mut self) -> usize {
        let now = self.count();
        std::mem::replace(&mut self.peak, now)
    }

    /// A slot for `block`, wanted at position `position` of `upcoming` (0 = now); `active` may not be given up.
    ///
    /// Gives up the slot whose block is next needed furthest away, and only if that is later than `position`.
    /// Returns the slot and the block that left it.
    pub(crate) fn admit(
        &mut self,
        block: usize,
        position: usize,
        upcoming: &[usize],
        active: Option<usize>,
    ) -> Option<(usize, Option<usize>)> {
        debug_assert!(self.place[block].is_none());
        // Slots not yet filled by resident blocks are theirs: a streamed block may not take the last of them.
        let missing_fixed = (0..self.place.len()).filter(|&b| self.fixed[b] && self.place[b].is_none()).count();
        let empty = self.slots.iter().filter(|s| s.is_none()).count();
        let slot = if empty > 0 && (self.fixed[block] || empty > missing_fixed) {
            self.slots.iter().position(Option::is_none)?
        } else {
            let next_use = |b: usize| upcoming.iter().position(|&u| u == b).unwrap_or(usize::MAX);
            let (use_at, slot) = self
                .slots
                .iter()
                .enumerate()
                .filter_map(|(i, b)| b.map(|b| (i, b)))
                .filter(|&(_, b)| !self.fixed[b] && Some(b) != active)
                .map(|(i, b)| (next_use(b), i))
                .max()?;
            if use_at <= position {
                return None;
            }
            slot
        };
        let left = self.slots[slot].replace(block);
        if let Some(b) = left {
            self.place[b] = None;
        }
        self.place[block] = Some(slot);
        self.peak = self.peak.max(self.count());
        Some((slot, left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks F 0..n, B n-1..0 for `steps` steps and counts loads of the last one.
    fn loads(n: usize, n_slots: usize, fixed: &[usize], ahead: usize) -> usize {
        let mut r = Residency::new(n_slots, (0..n).map(|b| fixed.contains(&b)).collect());
        let step: Vec<usize> = (0..n).chain((0..n).rev()).collect();
        let steps = 4;
        let all: Vec<usize> = step.iter().copied().cycle().take(step.len() * (steps + 1)).collect();
        let mut count = 0;
        for at in 0..step.len() * steps {
            for p in 0..=ahead {
                let upcoming = &all[at..];
                let b = upcoming[p];
                if r.slot_of(b).is_none() && r.admit(b, p, upcoming, (p > 0).then(|| upcoming[0])).is_some() {
                    count += usize::from(at >= step.len() * (steps - 1));
                }
            }
            assert!(r.slot_of(all[at]).is_some(), "the block to visit always gets a slot");
            assert!(r.count() <= n_slots);
        }
        count
    }

    #[test]
    fn the_ring_is_reused_at_both_turns() {
        // 2(L - C) loads per step with C slots: the bound that no policy beats on this walk.
        assert_eq!(loads(8, 2, &[], 1), 12);
        assert_eq!(loads(8, 3, &[], 2), 10);
        assert_eq!(loads(8, 1, &[], 0), 14);
    }

    #[test]
    fn resident_blocks_are_loaded_once() {
        assert_eq!(loads(8, 4, &[2, 5], 1), 2 * (8 - 4));
        assert_eq!(loads(8, 8, &[0, 1, 2, 3, 4, 5, 6, 7], 2), 0);
    }

    #[test]
    fn a_streamed_block_never_takes_the_last_slot_of_a_resident_one() {
        let mut r = Residency::new(2, vec![false, false, true]);
        assert!(r.admit(0, 0, &[0, 1, 2], None).is_some());
        assert!(r.admit(1, 1, &[0, 1, 2], Some(0)).is_none(), "one ring slot, in use");
        assert!(r.admit(2, 2, &[0, 1, 2], Some(0)).is_some());
        assert_eq!(r.count(), 2);
    }
}
