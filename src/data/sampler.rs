//! Which rows train at which step: a seeded permutation per epoch, a pure function of (seed, epoch, step).
//!
//! An epoch ends with its rows: its last step is short where they do not divide, as in transformers. The permutation is
//! part of the file format of a run (resume relies on it), so it is fixed here: ChaCha8 (D. J.
//! Bernstein, "ChaCha, a variant of Salsa20") with key = the 16 bytes `bstui/sampler/v1`, the seed and the epoch, both
//! little-endian u64; then Fisher–Yates from the last place down, each place drawing `next_u64` until it falls below
//! the largest multiple of the number of choices, so that no row is favoured.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

const SAMPLER: &[u8; 16] = b"bstui/sampler/v1";
const SPLIT: &[u8; 16] = b"bstui/holdout/v1";

/// Which rows train at which step: a seeded permutation per epoch, a pure function of the step.
///
/// Resume needs no state but the step count. ChaCha8 keyed by (seed, epoch); documented and fixed.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// Rows in the set.
    pub n_rows: usize,
    /// Rows per optimizer step (batch × accumulation).
    pub rows_per_step: usize,
    /// Seed.
    pub seed: u64,
}

impl Sampler {
    /// Steps of an epoch; the last one may be short.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        self.n_rows.div_ceil(self.rows_per_step.max(1)).max(1) as u64
    }

    /// Steps of `epochs` passes over the rows.
    #[must_use]
    pub fn steps(&self, epochs: f64) -> u64 {
        (self.steps_per_epoch() as f64 * epochs).ceil() as u64
    }

    /// Row indices of step `step` (from 0): every row once per epoch, none of two epochs in one step.
    ///
    /// Costs one permutation of all rows (about 20 ms for a million rows).
    #[must_use]
    pub fn rows(&self, step: u64) -> Vec<usize> {
        if self.n_rows == 0 {
            return Vec::new();
        }
        let (epoch, within) = (step / self.steps_per_epoch(), step % self.steps_per_epoch());
        let first = within as usize * self.rows_per_step;
        let order = permutation(SAMPLER, self.seed, epoch, self.n_rows);
        order[first..self.n_rows.min(first + self.rows_per_step)].to_vec()
    }

    /// Epochs done after `steps` steps.
    #[must_use]
    pub fn epoch(&self, steps: u64) -> f64 {
        let (whole, within) = (steps / self.steps_per_epoch(), steps % self.steps_per_epoch());
        whole as f64 + within as f64 * self.rows_per_step as f64 / self.n_rows.max(1) as f64
    }
}

/// Which of `n` rows are held out for `share` of them: at least one and never all, where `share` > 0 and `n` ≥ 2.
/// In row order; a pure function of its arguments.
#[must_use]
pub fn holdout(n: usize, share: f64, seed: u64) -> Vec<bool> {
    let mut held = vec![false; n];
    if share > 0.0 && n >= 2 {
        let count = ((n as f64 * share).round() as usize).clamp(1, n - 1);
        for &row in &permutation(SPLIT, seed, 0, n)[..count] {
            held[row] = true;
        }
    }
    held
}

fn permutation(domain: &[u8; 16], seed: u64, epoch: u64, n: usize) -> Vec<usize> {
    let mut key = [0u8; 32];
    key[..16].copy_from_slice(domain);
    key[16..24].copy_from_slice(&seed.to_le_bytes());
    key[24..].copy_from_slice(&epoch.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        order.swap(last, below(&mut rng, last as u64 + 1) as usize);
    }
    order
}

/// Uniform in `0..n`, without modulo bias.
fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    let limit = u64::MAX - (u64::MAX % n + 1) % n;
    loop {
        let x = rng.next_u64();
        if x <= limit {
            return x % n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_chacha::rand_core::RngCore;

    #[test]
    fn the_permutation_is_fixed_for_ever() {
        // ChaCha8, all-zero key: keystream of strombergson's test vectors TC1 (64-bit counter and IV 0).
        let mut rng = ChaCha8Rng::from_seed([0; 32]);
        assert_eq!(rng.next_u64().to_le_bytes(), [0x3e, 0x00, 0xef, 0x2f, 0x89, 0x5f, 0x40, 0xd6]);
        // These orders were recorded once; a change here breaks the resume of every existing run.
        let s = Sampler { n_rows: 8, rows_per_step: 8, seed: 42 };
        assert_eq!(s.rows(0), RECORDED[0]);
        assert_eq!(s.rows(1), RECORDED[1]);
    }
    const RECORDED: [[usize; 8]; 2] = [[6, 0, 2, 7, 3, 4, 5, 1], [0, 4, 2, 7, 5, 3, 1, 6]];

    #[test]
    fn nothing_to_sample_is_an_empty_step() {
        assert!(Sampler { n_rows: 0, rows_per_step: 4, seed: 1 }.rows(3).is_empty());
    }

    #[test]
    fn case_fo_09_an_epoch_is_one_pass_and_has_the_steps_of_transformers() {
        // (rows, rows a step, epochs) → steps, as `ceil(epochs * ceil(batches / accumulation))` gives them there.
        for (n_rows, rows_per_step, epochs, steps) in [
            (17, 16, 1.0, 2),
            (3, 16, 1.0, 1),
            (7, 4, 2.0, 4),
            (20, 100, 3.0, 3),
            (8, 4, 1.0, 2),
            (8, 4, 1.5, 3),
            (10, 4, 0.5, 2),
        ] {
            let s = Sampler { n_rows, rows_per_step, seed: 5 };
            assert_eq!(s.steps(epochs), steps, "{n_rows} rows, {rows_per_step} a step, {epochs} epochs");
            let trained: Vec<usize> = (0..s.steps(2.0)).flat_map(|i| s.rows(i)).collect();
            assert_eq!(trained.len(), 2 * n_rows);
            for epoch in trained.chunks(n_rows) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..n_rows).collect::<Vec<_>>());
            }
            assert_eq!((s.epoch(s.steps(1.0)), s.epoch(s.steps(2.0))), (1.0, 2.0));
        }
        let s = Sampler { n_rows: 7, rows_per_step: 4, seed: 5 };
        assert_eq!([0, 1, 2, 3].map(|i| s.rows(i).len()), [4, 3, 4, 3]);
    }

    proptest! {
        #[test]
        fn every_row_once_per_epoch(n in 1usize..40, per_step in 1usize..9, seed: u64) {
            let s = Sampler { n_rows: n, rows_per_step: per_step, seed };
            let steps = 3 * s.steps_per_epoch();
            let stream: Vec<usize> = (0..steps).flat_map(|i| s.rows(i)).collect();
            for epoch in stream.chunks_exact(n).take(3) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            }
        }

        #[test]
        fn resume_is_exact(n in 1usize..60, per_step in 1usize..9, seed: u64, step in 0u64..500) {
            let before = Sampler { n_rows: n, rows_per_step: per_step, seed };
            let after = before.clone();
            let _ = before.rows(step.saturating_sub(1));
            prop_assert_eq!(before.rows(step), after.rows(step));
        }

        #[test]
        fn micro_batching_does_not_change_the_order(n in 1usize..30, seed: u64, k in 1usize..4) {
            let wide = Sampler { n_rows: n, rows_per_step: 2 * k, seed };
            let narrow = Sampler { n_rows: n, rows_per_step: k, seed };
            let second = if n > k { narrow.rows(1) } else { Vec::new() };
            let halves: Vec<usize> = narrow.rows(0).into_iter().chain(second).collect();
            prop_assert_eq!(wide.rows(0), halves);
        }

        #[test]
        fn a_split_is_seeded_disjoint_and_of_the_asked_size(n in 2usize..200, share in 0.01f64..0.9, seed: u64) {
            let held = holdout(n, share, seed);
            let count = held.iter().filter(|h| **h).count();
            prop_assert_eq!(count, ((n as f64 * share).round() as usize).clamp(1, n - 1));
            prop_assert_eq!(held, holdout(n, share, seed));
        }
    }

    #[test]
    fn seeds_and_epochs_differ() {
        let s = |seed| Sampler { n_rows: 50, rows_per_step: 50, seed };
        assert_ne!(s(1).rows(0), s(2).rows(0));
        assert_ne!(s(1).rows(0), s(1).rows(1));
    }

    #[test]
    fn no_first_place_is_favoured() {
        let mut counts = [0u32; 5];
        for seed in 0..5000 {
            counts[Sampler { n_rows: 5, rows_per_step: 1, seed }.rows(0)[0]] += 1;
        }
        // 1000 expected, standard deviation 28: six of them on either side.
        assert!(counts.iter().all(|c| (830..1170).contains(c)), "{counts:?}");
    }
}
