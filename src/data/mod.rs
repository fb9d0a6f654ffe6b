//! From rows in files to token ids with a loss mask: formats, chat template, masks, sampler.

use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::event::{DataFacts, Stage};

/// One tokenised row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Whether the token at the same place carries loss (is predicted by the one before it).
    pub trained: Vec<bool>,
}

/// Everything a run trains and evaluates on.
#[derive(Clone, Debug, Default)]
pub struct Dataset {
    /// Training rows; each has at least one trained token after its first.
    pub train: Vec<Row>,
    /// Held-out rows.
    pub eval: Vec<Row>,
    /// Counts for the report.
    pub facts: DataFacts,
    /// One line each: BOM, dropped rows, truncations, template notes.
    pub notes: Vec<String>,
}

/// Reads, renders, tokenises and masks the files of `config.data` with the checkpoint's tokenizer and template.
///
/// # Errors
/// Any fault of files, rows or template that isn't allowed by a flag; names file and line. No usable row.
pub fn prepare(config: &RunConfig, checkpoint: &Checkpoint, progress: &mut dyn FnMut(Stage)) -> Result<Dataset> {
    let _ = (config, checkpoint, progress);
    Err(Error::data("no data"))
}

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
    /// Row indices of step `step` (from 0); wraps over epoch borders, every row once per epoch.
    #[must_use]
    pub fn rows(&self, step: u64) -> Vec<usize> {
        let _ = step;
        Vec::new()
    }
    /// Epochs done after `steps` steps.
    #[must_use]
    pub fn epoch(&self, steps: u64) -> f64 {
        steps as f64 * self.rows_per_step as f64 / self.n_rows.max(1) as f64
    }
}
