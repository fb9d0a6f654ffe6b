//! From rows in files to token ids with a loss mask: formats, chat template, masks, sampler.

pub mod collate;
pub mod formats;
pub mod messages;
pub mod reader;
pub mod sampler;
pub mod template;
pub mod tokenizer;

pub use collate::{Batch, micro_batches};
pub use sampler::Sampler;

use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::event::{DataFacts, Stage};

/// One tokenised row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
