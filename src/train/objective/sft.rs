//! Supervised finetuning: the mean cross-entropy over all trained tokens of a step, as transformers' `Trainer` takes it
//! with `num_items_in_batch`: every token counts the same, in whatever micro-batch it stands.

use super::{Objective, Score, Scored};
use crate::data::collate::Batch;
use crate::error::Result;
use crate::event::LOSS;
use tch::Kind;

/// Supervised finetuning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sft;

impl Objective for Sft {
    fn units(&self, batch: &Batch) -> u64 {
        batch.trained_tokens() as u64
    }

    fn score(&self, tokens: &Scored<'_>) -> Result<Score> {
        Ok(Score { sums: vec![(LOSS, tokens.nll.f_sum(Kind::Double)?)], weights: None })
    }
}
