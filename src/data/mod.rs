//! From rows in files to token ids with a loss mask: formats, chat template, masks, sampler.

pub mod chat;
pub mod collate;
mod fit;
pub mod formats;
pub mod inspect;
pub mod mask;
pub mod messages;
pub mod pipeline;
pub mod reader;
pub mod sampler;
pub mod spoken;
mod tally;
pub mod template;
pub mod tokenizer;
mod tokens;
mod typed;

#[cfg(test)]
mod found_tests;
#[cfg(test)]
mod mask_tests;
#[cfg(test)]
mod pipeline_tests;
#[cfg(test)]
mod testing;

pub use chat::{Chat, ModelFiles};
pub use collate::{Batch, micro_batches};
pub use inspect::{Inspection, inspect};
pub use sampler::Sampler;
pub use spoken::Spoken;
pub use template::Date;

use crate::checkpoint::Checkpoint;
use crate::clock;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::event::{DataFacts, Stage};
use std::time::{Duration, Instant};

/// One tokenised row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Whether the token at the same place carries loss (is predicted by the one before it).
    pub trained: Vec<bool>,
}

impl Row {
    /// Tokens that carry loss; the first never does.
    #[must_use]
    pub fn trained_tokens(&self) -> usize {
        self.trained.iter().skip(1).filter(|t| **t).count()
    }
}

/// Everything a run trains and evaluates on.
#[derive(Clone, Debug, Default)]
pub struct Dataset {
    /// Training rows; each has at least one trained token after its first.
    pub train: Vec<Row>,
    /// Held-out rows.
    pub eval: Vec<Row>,
    /// The chat template that conversations came through; `None` where no row is one.
    pub template: Option<String>,
    /// Counts for the report.
    pub facts: DataFacts,
    /// One line each: BOM, dropped rows, truncations, template notes.
    pub notes: Vec<String>,
}

/// Reads, renders, tokenises and masks the files of `config.data` with the checkpoint's tokenizer and template.
///
/// The chat template sees today's date (UTC), which [`DataFacts::template_date`] keeps: a run that is resumed on
/// another day passes it to [`prepare_dated`] and gets the same rows.
///
/// # Errors
/// Any fault of files, rows or template that isn't allowed by a flag; names file and line. No usable row.
pub fn prepare(config: &RunConfig, checkpoint: &Checkpoint, progress: &mut dyn FnMut(Stage)) -> Result<Dataset> {
    prepare_dated(config, checkpoint, None, progress, &|| Ok(()))
}

/// Tokens of each training row of `config.data`; `None` where there are none, the data can't be used (the run says why), or
/// looking takes longer than `within`.
#[must_use]
pub fn lengths(config: &RunConfig, checkpoint: &Checkpoint, within: Duration) -> Option<Vec<usize>> {
    if config.data.files.is_empty() {
        return None;
    }
    let begun = Instant::now();
    // Only an end to the work: nobody reads it.
    let late = || if begun.elapsed() > within { Err(Error::run("looking at the data takes too long")) } else { Ok(()) };
    let data = prepare_dated(config, checkpoint, None, &mut |_| (), &late).ok()?;
    Some(data.train.iter().map(|r| r.ids.len()).collect())
}

/// [`prepare`] with the template's date given, as [`DataFacts::template_date`] writes it (`None`: today). `stop` is
/// asked before each row.
///
/// # Errors
/// As [`prepare`]; also a date that isn't one; what `stop` says.
pub fn prepare_dated(
    config: &RunConfig,
    checkpoint: &Checkpoint,
    date: Option<&str>,
    progress: &mut dyn FnMut(Stage),
    stop: &dyn Fn() -> Result<()>,
) -> Result<Dataset> {
    let date = date.map_or_else(|| Ok(Date::day_of(clock::unix_now())), Date::parse)?;
    pipeline::prepare(config, checkpoint.into(), date, progress, stop)
}
