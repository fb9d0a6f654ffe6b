//! How the next token is chosen from the logits.

use crate::error::Result;
use crate::model::dropout::{mix, uniform};
use tch::{Kind, Tensor};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The likeliest.
    Greedy,
    /// Drawn from the softmax at a temperature, among the `top_k` likeliest that make up the `top_p` mass; seeded.
    Sample {
        /// Divides the logits.
        temperature: f64,
        /// Most tokens drawn from; 0 = all.
        top_k: usize,
        /// Nucleus mass, 0..=1.
        top_p: f64,
        /// Seed.
        seed: u64,
    },
}

/// `logits [V]` with those of the ids in `seen` made less likely: positive ones divided by `penalty`, negative ones
/// multiplied by it (transformers' `RepetitionPenaltyLogitsProcessor`; 1 changes nothing).
///
/// # Errors
/// libtorch fails.
pub fn penalised(logits: &Tensor, seen: &[u32], penalty: f64) -> Result<Tensor> {
    if penalty == 1.0 {
        return Ok(logits.shallow_clone());
    }
    let mut ids: Vec<i64> = seen.iter().map(|&id| i64::from(id)).collect();
    ids.sort_unstable();
    ids.dedup();
    let ids = Tensor::from_slice(&ids);
    let old = logits.f_index_select(0, &ids)?;
    let new = (&old * penalty).f_where_self(&old.f_lt(0.0)?, &(&old / penalty))?;
    Ok(logits.f_index_copy(0, &ids, &new)?)
}

/// The next id from logits `[V]`; `at` counts the draws.
///
/// # Errors
/// libtorch fails.
pub fn choose(logits: &Tensor, choice: Choice, at: u64) -> Result<u32> {
    match choice {
        Choice::Greedy => Ok(logits.argmax(0, false).int64_value(&[]) as u32),
        Choice::Sample { temperature, top_k, top_p, seed } => {
            let (probabilities, ids) = (logits / temperature.max(1e-4)).softmax(0, Kind::Double).sort(0, true);
            let (mut p, ids) = (Vec::<f64>::try_from(&probabilities)?, Vec::<i64>::try_from(&ids)?);
            if top_k > 0 && top_k < p.len() {
                p.truncate(top_k);
                // The nucleus is of what is left, as in transformers.
                let left: f64 = p.iter().sum();
                p.iter_mut().for_each(|x| *x /= left);
            }
            let mut mass = 0.0;
            let mut kept = 0;
            while kept < p.len() && (kept == 0 || mass < top_p) {
                mass += p[kept];
                kept += 1;
            }
            let total: f64 = p[..kept].iter().sum();
            let mut left = uniform(mix(seed ^ 0x6765_6E65_7261_7465), at) * total;
            let i = p[..kept].iter().position(|x| {
                left -= x;
                left < 0.0
            });
            Ok(ids[i.unwrap_or(kept - 1)] as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_fo_42_top_k_draws_among_that_many_and_a_penalty_turns_away_from_what_was_said() {
        let logits = Tensor::from_slice(&[1.0f32, 3.0, 2.9, -1.0]);
        let drawn = |top_k, top_p| {
            let choice = |seed| Choice::Sample { temperature: 5.0, top_k, top_p, seed };
            let mut ids: Vec<u32> = (0..200).map(|seed| choose(&logits, choice(seed), 0).unwrap()).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(drawn(0, 1.0), [0, 1, 2, 3]);
        assert_eq!(drawn(2, 1.0), [1, 2]);
        assert_eq!(drawn(1, 1.0), [1]);
        assert_eq!(drawn(9, 1.0), [0, 1, 2, 3]);
        // Of the two likeliest the first alone makes up half of the mass; of all four it doesn't.
        assert_eq!(drawn(2, 0.5), [1]);
        let got = Vec::<f32>::try_from(penalised(&logits, &[1, 3, 1], 2.0).unwrap()).unwrap();
        assert_eq!(got, [1.0, 1.5, 2.9, -2.0]);
        assert_eq!(choose(&penalised(&logits, &[1], 1.1).unwrap(), Choice::Greedy, 0).unwrap(), 2);
        assert_eq!(Vec::<f32>::try_from(penalised(&logits, &[1], 1.0).unwrap()).unwrap()[1], 3.0);
    }
}
