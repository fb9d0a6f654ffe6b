//! From the config's files to a dataset: reads, renders, cuts, splits, and counts everything that doesn't make it.

use super::chat::{Chat, ModelFiles, Refused, SystemFallback, Tokens};
use super::formats::{Format, fields};
use super::mask::TrainOn;
use super::reader;
use super::sampler::holdout;
use super::template::{Date, clean};
use super::{Dataset, Row};
use crate::config::{DataSection, RunConfig};
use crate::error::{Error, Result};
use crate::event::Stage;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

/// Rows between two progress reports.
const REPORT_EVERY: u64 = 100;
/// Distinct reasons kept apart; past it the rest are counted together.
const MAX_REASONS: usize = 40;
const OTHER: &str = "other reasons";

/// What happens to rows longer than `max_length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverLong {
    /// Tokens past the length are cut off.
    TruncateEnd,
    /// Tokens are cut off at the start; a BOS stays in front.
    TruncateStart,
    /// The row is left out.
    Drop,
    /// The run doesn't start.
    Error,
}

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
            return Err(Error::usage(format!(
                "data.max_length = {} leaves nothing to predict",
                data.max_length
            ))
            .next("set it to 2 or more"));
        }
        if !(0.0..1.0).contains(&data.eval_split) {
            return Err(Error::usage(format!(
                "data.eval_split = {} isn't between 0 and 1",
                data.eval_split
            )));
        }
        if data.packing {
            return Err(Error::usage("data.packing = true isn't there yet").next("set it to false"));
        }
        let over_long = match data.over_long.as_str() {
            "truncate_end" => OverLong::TruncateEnd,
            "truncate_start" => OverLong::TruncateStart,
            "drop" => OverLong::Drop,
            "error" => OverLong::Error,
            other => {
                let what = format!(
                    "data.over_long '{}' isn't one of truncate_end, truncate_start, drop, error",
                    clean(other)
                );
                return Err(Error::usage(what));
            }
        };
        Ok(Settings {
            format: Format::named(&data.format)?,
            train_on: TrainOn::named(&data.train_on)?,
            system: SystemFallback::named(&data.system_fallback)?,
            over_long,
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
) -> Result<Dataset> {
    let data = &config.data;
    let settings = Settings::of(data)?;
    if data.files.is_empty() {
        return Err(Error::usage("no data file is named").next("name JSONL or JSON files in data.files"));
    }
    let total = data
        .files
        .iter()
        .chain(&data.eval_files)
        .map(|f| std::fs::metadata(f).map_or(0, |m| m.len()))
        .sum();
    let chat = Chat::open(model, data.template.as_deref(), date)?;
    let mut import = Import {
        chat: &chat,
        settings,
        skip_bad: data.skip_bad_lines,
        total,
        done: 0,
        progress,
        tally: Tally::default(),
    };
    let train = import.files(&data.files)?;
    let eval = import.files(&data.eval_files)?;
    (import.progress)(Stage {
        name: "reading data".into(),
        done: total,
        total,
        unit: "bytes".into(),
    });
    let mut tally = import.tally;
    tally.check(&settings, &chat)?;
    if train.is_empty() {
        return Err(tally.nothing_usable(&data.files));
    }
    if eval.is_empty() && !data.eval_files.is_empty() {
        return Err(tally.nothing_usable(&data.eval_files));
    }
    let mut out = Dataset {
        train,
        eval,
        ..Dataset::default()
    };
    tally.write_notes(&settings, &chat, &mut out);
    split(data, config.train.seed, &mut out);
    let facts = &mut out.facts;
    facts.rows_used = out.train.len() as u64;
    facts.rows_eval = out.eval.len() as u64;
    facts.tokens = out.train.iter().map(|r| r.ids.len() as u64).sum();
    facts.trained_tokens = out.train.iter().map(|r| r.trained_tokens() as u64).sum();
    Ok(out)
}

/// Moves the held-out share of `out.train` to `out.eval`, and says so.
fn split(data: &DataSection, seed: u64, out: &mut Dataset) {
    if data.eval_files.is_empty() && data.eval_split > 0.0 {
        let all = std::mem::take(&mut out.train);
        let (count, held) = (all.len(), holdout(all.len(), data.eval_split, seed));
        for (row, held) in all.into_iter().zip(held) {
            if held { &mut out.eval } else { &mut out.train }.push(row);
        }
        out.notes.push(format!(
            "held out {} of {count} rows (eval_split {}, seed {seed}); no held-out row is trained",
            out.eval.len(),
            data.eval_split
        ));
    }
    let trained: HashSet<&[u32]> = out.train.iter().map(|r| r.ids.as_slice()).collect();
    let twins = out
        .eval
        .iter()
        .filter(|r| trained.contains(r.ids.as_slice()))
        .count();
    if twins > 0 {
        out.notes.push(format!(
            "{twins} held-out rows are the same, token for token, as a training row"
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
            if seen % REPORT_EVERY == 0 {
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
                return Err(Error::data(what).next("rows hold messages, conversations, prompt and completion, instruction and output, or text"));
            };
            let tokens = match format.read(&record.value) {
                Ok(example) => self
                    .chat
                    .tokens(&example, self.settings.train_on, self.settings.system),
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

/// A file's name without its folder: places in reports name no home.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(|| "?".into(), |n| clean(&n.to_string_lossy()))
}

/// A count with the place it was first met at.
#[derive(Clone, Debug, Default)]
struct Count {
    n: u64,
    first: String,
}

impl Count {
    fn add(&mut self, n: u64, place: &str) {
        if self.n == 0 && n > 0 {
            self.first = place.to_string();
        }
        self.n += n;
    }
}

/// What happened to rows on the way.
#[derive(Debug, Default)]
struct Tally {
    files: Vec<String>,
    formats: BTreeSet<&'static str>,
    hashes: Vec<[u8; 32]>,
    dropped: BTreeMap<String, Count>,
    bad_lines: u64,
    cut: Count,
    cut_tokens: u64,
    too_long: Count,
    longest: usize,
    system: Count,
    system_turns: Count,
    vanished: Count,
    vanished_rows: u64,
    unclosed: Count,
    inserted: Count,
    bos: BTreeSet<&'static str>,
    eos: BTreeSet<&'static str>,
}

impl Tally {
    fn drop(&mut self, reason: &str, place: &str) {
        let known = self.dropped.contains_key(reason) || self.dropped.len() < MAX_REASONS;
        self.dropped
            .entry(if known { reason } else { OTHER }.to_string())
            .or_default()
            .add(1, place);
    }

    fn file(&mut self, name: &str, format: Option<Format>, summary: &reader::Summary) {
        let mut line = format!(
            "{name}: {}, {} rows",
            format.map_or("no rows", Format::name),
            summary.rows
        );
        if summary.bom {
            line += ", starts with a byte order mark";
        }
        if summary.blank > 0 {
            line += &format!(", {} blank lines skipped", summary.blank);
        }
        if let Some((n, first)) = &summary.bad {
            line += &format!(", {n} unreadable lines skipped (first: {first})");
            self.bad_lines += n;
        }
        self.files.push(line);
        self.formats.extend(format.map(Format::name));
        self.hashes.push(summary.sha256);
    }

    /// The row to keep of `tokens`, cut as the settings say.
    fn take(&mut self, tokens: Tokens, settings: &Settings, chat: &Chat, place: &str) -> Option<Row> {
        self.system_turns.add(tokens.system_turns as u64, place);
        self.vanished.add(tokens.vanished as u64, place);
        self.vanished_rows += u64::from(tokens.vanished > 0);
        self.unclosed.add(tokens.unclosed as u64, place);
        self.inserted
            .add(tokens.inserted.iter().filter(|i| **i).count() as u64, place);
        self.bos.insert(tokens.bos);
        self.eos.insert(tokens.eos);
        let (mut row, max) = (tokens.row, settings.max_length);
        let length = row.ids.len();
        if length > max {
            self.longest = self.longest.max(length);
            match settings.over_long {
                OverLong::Error => {
                    self.too_long.add(1, place);
                    return None;
                }
                OverLong::Drop => {
                    self.drop("longer than max_length", place);
                    return None;
                }
                OverLong::TruncateEnd => {
                    row.ids.truncate(max);
                    row.trained.truncate(max);
                }
                OverLong::TruncateStart => {
                    let keep = usize::from(
                        chat.tokenizer()
                            .bos()
                            .is_some_and(|b| row.ids.first() == Some(&b)),
                    );
                    row.ids.drain(keep..keep + length - max);
                    row.trained.drain(keep..keep + length - max);
                    row.trained[0] = false;
                }
            }
            self.cut.add(1, place);
            self.cut_tokens += (length - max) as u64;
        }
        if row.trained_tokens() > 0 {
            return Some(row);
        }
        self.drop(
            if length > max {
                "nothing left to train after the cut to max_length"
            } else {
                "no token to train"
            },
            place,
        );
        None
    }

    /// Faults that stop the run once all rows were seen.
    fn check(&self, settings: &Settings, chat: &Chat) -> Result<()> {
        if self.system.n > 0 {
            return Err(Error::data(format!(
                "the chat template takes no system turn ({}), and {} rows have one (first at {})",
                chat.no_system().unwrap_or_default(),
                self.system.n,
                self.system.first
            ))
            .next("set data.system_fallback to \"fold\" (into the next user turn) or \"drop\""));
        }
        if self.too_long.n > 0 {
            return Err(Error::data(format!(
                "{} rows are longer than max_length {} (first at {}; the longest has {} tokens)",
                self.too_long.n, settings.max_length, self.too_long.first, self.longest
            ))
            .next("raise data.max_length, or set data.over_long to truncate_end, truncate_start or drop"));
        }
        Ok(())
    }

    fn nothing_usable(&self, files: &[PathBuf]) -> Error {
        let names: Vec<_> = files.iter().map(|f| format!("'{}'", f.display())).collect();
        let mut what = format!("no usable row in {}", names.join(", "));
        let reasons: Vec<_> = self
            .dropped
            .iter()
            .map(|(why, c)| format!("{} × {why} (first at {})", c.n, c.first))
            .collect();
        if reasons.is_empty() {
            what += ": it holds no rows";
        } else {
            what = format!("{what}: {}", reasons.join("; "));
        }
        let cut = self.dropped.keys().any(|k| k.contains("max_length"));
        Error::data(what).next(if cut {
            "raise data.max_length, or set data.over_long"
        } else {
            "repair the rows"
        })
    }

    fn write_notes(&mut self, settings: &Settings, chat: &Chat, out: &mut Dataset) {
        let facts = &mut out.facts;
        facts.format = self.formats.iter().copied().collect::<Vec<_>>().join("+");
        facts.dropped = self.dropped.iter().map(|(why, c)| (why.clone(), c.n)).collect();
        if self.bad_lines > 0 {
            facts
                .dropped
                .insert("not readable as JSON".into(), self.bad_lines);
        }
        facts.truncated = self.cut.n;
        facts.template_date = chat.date().iso();
        facts.sha256 = match self.hashes.as_slice() {
            [one] => hex(one),
            many => hex(&Sha256::digest(many.concat()).into()),
        };
        let notes = &mut out.notes;
        notes.append(&mut self.files);
        notes.extend(
            chat.template_origin()
                .map(|t| format!("chat template: {}", clean(t))),
        );
        notes.push(format!(
            "BOS: {}; end token: {}",
            join(&self.bos),
            join(&self.eos)
        ));
        for (why, c) in &self.dropped {
            notes.push(format!("left out {} rows: {why} (first at {})", c.n, c.first));
        }
        let mut note = |c: &Count, text: String| {
            if c.n > 0 {
                notes.push(format!("{text} (first at {})", c.first));
            }
        };
        let how = if settings.over_long == OverLong::TruncateStart {
            "truncate_start"
        } else {
            "truncate_end"
        };
        let lost = self.cut_tokens;
        note(
            &self.cut,
            format!(
                "{how}: cut {} rows to {} tokens, {lost} tokens lost",
                self.cut.n, settings.max_length
            ),
        );
        let done = if settings.system == SystemFallback::Fold {
            "folded into the next user turn"
        } else {
            "dropped"
        };
        let n = self.system_turns.n;
        note(
            &self.system_turns,
            format!("the chat template takes no system turn: {n} {done}"),
        );
        let (n, rows) = (self.vanished.n, self.vanished_rows);
        note(
            &self.vanished,
            format!("the chat template leaves out {n} characters of assistant text in {rows} rows"),
        );
        note(
            &self.inserted,
            format!(
                "{} trained tokens are the template's own, not the data's",
                self.inserted.n
            ),
        );
        note(
            &self.unclosed,
            format!(
                "{} trained turns have no end token: the model won't learn to stop there",
                self.unclosed.n
            ),
        );
        let tokenizer = chat.tokenizer();
        if let Some(eos) = tokenizer
            .eos()
            .filter(|e| self.eos.contains("appended") && tokenizer.stops().first() != Some(e))
        {
            notes.push(format!(
                "rows end in '{}' (the tokenizer's end token), which the model config doesn't name first",
                clean(&tokenizer.token_text(eos))
            ));
        }
    }
}

fn join(names: &BTreeSet<&'static str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
