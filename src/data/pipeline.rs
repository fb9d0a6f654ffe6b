//! From the config's files to a dataset: reads, renders, cuts, splits, and counts everything that doesn't make it.

use super::chat::{Chat, ModelFiles, Refused};
use super::formats::{Format, fields};
use super::reader;
use super::sampler::holdout;
use super::tally::{Tally, file_name, rows};
use super::template::Date;
use super::{Dataset, Row};
use crate::config::{DataFormat, DataSection, OverLong, RunConfig, SystemFallback, TrainOn};
use crate::error::{Error, Result};
use crate::event::Stage;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Rows between two progress reports.
const REPORT_EVERY: u64 = 100;

/// Settings of `[data]`, checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub format: Option<Format>,
    pub train_on: TrainOn,
    pub system: SystemFallback,
    pub over_long: OverLong,
    pub max_length: usize,
}

impl Settings {
    pub(super) fn of(data: &DataSection) -> Result<Settings> {
        if data.max_length < 2 {
            return Err(Error::usage(format!("data.max_length = {} leaves nothing to predict", data.max_length))
                .next("set it to 2 or more"));
        }
        if !(0.0..1.0).contains(&data.eval_split) {
            return Err(Error::usage(format!("data.eval_split = {} isn't between 0 and 1", data.eval_split)));
        }
        Ok(Settings {
            format: Format::named(data.format),
            train_on: data.train_on,
            system: data.system_fallback,
            over_long: data.over_long,
            max_length: data.max_length,
        })
    }
}

/// Prepares the rows of `config.data` for `model`; `date` is what the chat template sees.
///
/// # Errors
/// As [`super::prepare`].
pub fn prepare(
    config: &RunConfig,
    model: ModelFiles<'_>,
    date: Date,
    progress: &mut dyn FnMut(Stage),
    stop: &dyn Fn() -> Result<()>,
) -> Result<Dataset> {
    let data = &config.data;
    let settings = Settings::of(data)?;
    if data.files.is_empty() {
        return Err(Error::usage("no data file is named").next("name JSONL or JSON files in data.files"));
    }
    if data.format == DataFormat::Tokens {
        let mut out = Dataset::default();
        (out.train, out.eval) = super::tokens::read(data, &settings, model, stop, &mut out.facts)?;
        return Ok(finish(data, config.train.seed, out));
    }
    let total = data.files.iter().chain(&data.eval_files).map(|f| std::fs::metadata(f).map_or(0, |m| m.len())).sum();
    let chat = Chat::open(model, data.template.as_deref(), date)?.with_control(data.control_tokens);
    let mut import = Import {
        chat: &chat,
        settings,
        skip_bad: data.skip_bad_lines,
        total,
        done: 0,
        progress,
        stop,
        tally: Tally::default(),
    };
    let train = import.files(&data.files)?;
    let eval = import.files(&data.eval_files)?;
    (import.progress)(Stage { name: "reading data".into(), done: total, total, unit: "bytes".into() });
    let mut tally = import.tally;
    tally.check(&settings, &chat)?;
    if train.is_empty() {
        return Err(tally.nothing_usable(&data.files));
    }
    if eval.is_empty() && !data.eval_files.is_empty() {
        return Err(tally.nothing_usable(&data.eval_files));
    }
    let mut out = Dataset { train, eval, ..Dataset::default() };
    out.template = chat.template_source().filter(|_| tally.has_chats()).map(String::from);
    tally.write_notes(&settings, &chat, &mut out);
    Ok(finish(data, config.train.seed, out))
}

/// The split, and the counts that don't depend on how rows were made.
fn finish(data: &DataSection, seed: u64, mut out: Dataset) -> Dataset {
    split(data, seed, &mut out);
    let facts = &mut out.facts;
    facts.rows_used = out.train.len() as u64;
    facts.rows_eval = out.eval.len() as u64;
    facts.tokens = out.train.iter().map(|r| r.ids.len() as u64).sum();
    facts.trained_tokens = out.train.iter().map(|r| r.trained_tokens() as u64).sum();
    out
}

/// Moves the share for evaluation from `out.train` to `out.eval`, and says so.
fn split(data: &DataSection, seed: u64, out: &mut Dataset) {
    if data.eval_files.is_empty() && data.eval_split > 0.0 {
        let all = std::mem::take(&mut out.train);
        let (count, held) = (all.len(), holdout(all.len(), data.eval_split, seed));
        for (row, held) in all.into_iter().zip(held) {
            if held { &mut out.eval } else { &mut out.train }.push(row);
        }
        out.notes.push(format!(
            "{} of {count} rows are kept for evaluation and not trained (eval_split {}, seed {seed})",
            out.eval.len(),
            data.eval_split
        ));
    }
    let trained: HashSet<&[u32]> = out.train.iter().map(|r| r.ids.as_slice()).collect();
    let twins = out.eval.iter().filter(|r| trained.contains(r.ids.as_slice())).count();
    if twins > 0 {
        out.notes.push(format!(
            "{} for evaluation with a twin among the training rows, token for token: the eval loss looks too good",
            rows(twins as u64)
        ));
    }
}

struct Import<'a> {
    chat: &'a Chat,
    settings: Settings,
    skip_bad: bool,
    total: u64,
    done: u64,
    progress: &'a mut dyn FnMut(Stage),
    stop: &'a dyn Fn() -> Result<()>,
    tally: Tally,
}

impl Import<'_> {
    fn files(&mut self, files: &[PathBuf]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for file in files {
            self.file(file, &mut rows)?;
        }
        Ok(rows)
    }

    fn file(&mut self, path: &Path, rows: &mut Vec<Row>) -> Result<()> {
        let name = file_name(path);
        let mut format = self.settings.format;
        let mut seen = 0u64;
        let before = self.done;
        let summary = reader::read(path, self.skip_bad, &mut |record| {
            (self.stop)()?;
            if seen.is_multiple_of(REPORT_EVERY) {
                let stage = Stage {
                    name: "reading data".into(),
                    done: before + record.end,
                    total: self.total,
                    unit: "bytes".into(),
                };
                (self.progress)(stage);
            }
            seen += 1;
            let place = format!("{name}:{}", record.line);
            if format.is_none() {
                format = Format::detect(&record.value);
            }
            let Some(format) = format else {
                let what = format!(
                    "'{}' line {}: a row with {} is in no known format",
                    path.display(),
                    record.line,
                    fields(&record.value)
                );
                return Err(Error::data(what).next(
                    "rows hold messages, conversations, prompt and completion, instruction and output, or text",
                ));
            };
            let tokens = match format.read(&record.value) {
                Ok(example) => self.chat.tokens(&example, self.settings.train_on, self.settings.system),
                Err(reason) => Err(Refused::Row(reason)),
            };
            match tokens {
                Ok(tokens) => rows.extend(self.tally.take(tokens, &self.settings, self.chat, &place)),
                Err(Refused::Row(reason)) => self.tally.drop(&reason, &place),
                Err(Refused::System) => self.tally.system.add(1, &place),
                Err(Refused::Fatal(e)) => {
                    let error = Error::new(e.kind(), format!("{} (at {place})", e.what()));
                    return Err(match e.advice() {
                        Some(next) => error.next(next),
                        None => error,
                    });
                }
            }
            Ok(())
        })?;
        self.done += std::fs::metadata(path).map_or(0, |m| m.len());
        self.tally.file(&name, format, &summary);
        Ok(())
    }
}
