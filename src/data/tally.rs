//! What happened to rows on the way to a dataset: counts by reason, with the place each was first met at.

use super::chat::{Chat, Tokens};
use super::formats::Format;
use super::pipeline::Settings;
use super::reader;
use super::template::clean;
use super::{Dataset, Row};
use crate::config::{ControlTokens, OverLong, SystemFallback};
use crate::error::{Error, Result};
use crate::units::plural;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Distinct reasons kept apart; past it the rest are counted together.
const MAX_REASONS: usize = 40;
const OTHER: &str = "other reasons";

/// A file's name without its folder: places in reports name no home.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| "?".into(), |n| clean(&n.to_string_lossy()))
}

/// `1 row`, `2 rows`.
pub(super) fn rows(n: u64) -> String {
    plural(n, "row")
}

/// A count with the place it was first met at.
#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    n: u64,
    first: String,
}

impl Count {
    pub(super) fn add(&mut self, n: u64, place: &str) {
        if self.n == 0 && n > 0 {
            self.first = place.to_string();
        }
        self.n += n;
    }
}

/// What happened to rows on the way.
#[derive(Debug, Default)]
pub(super) struct Tally {
    files: Vec<String>,
    formats: BTreeSet<&'static str>,
    hashes: Vec<[u8; 32]>,
    dropped: BTreeMap<String, Count>,
    bad_lines: u64,
    cut: Count,
    cut_tokens: u64,
    too_long: Count,
    longest: usize,
    pub(super) system: Count,
    system_turns: Count,
    vanished: Count,
    vanished_rows: u64,
    unclosed: Count,
    inserted: Count,
    hidden: Count,
    hidden_rows: u64,
    user_shown: bool,
    user_hidden: Count,
    tools_hidden: Count,
    chats: bool,
    typed: Count,
    typed_in_texts: Count,
    opened: u64,
    unlike: Count,
    prompt: String,
    bos: BTreeSet<&'static str>,
    eos: BTreeSet<&'static str>,
}

impl Tally {
    pub(super) fn drop(&mut self, reason: &str, place: &str) {
        let known = self.dropped.contains_key(reason) || self.dropped.len() < MAX_REASONS;
        self.dropped.entry(if known { reason } else { OTHER }.to_string()).or_default().add(1, place);
    }

    pub(super) fn file(&mut self, name: &str, format: Option<Format>, summary: &reader::Summary) {
        let mut line = format!("{name}: {}, {}", format.map_or("no rows", Format::name), rows(summary.rows));
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
    pub(super) fn take(&mut self, tokens: Tokens, settings: &Settings, chat: &Chat, place: &str) -> Option<Row> {
        let chat_row = tokens.is_chat;
        self.system_turns.add(tokens.system_turns as u64, place);
        self.vanished.add(tokens.vanished as u64, place);
        self.vanished_rows += u64::from(tokens.vanished > 0);
        self.unclosed.add(tokens.unclosed as u64, place);
        self.inserted.add(tokens.inserted.iter().filter(|i| **i).count() as u64, place);
        self.hidden.add(tokens.hidden as u64, place);
        self.hidden_rows += u64::from(tokens.hidden > 0);
        self.user_shown |= tokens.user_shown == Some(true);
        self.user_hidden.add(u64::from(tokens.user_shown == Some(false)), place);
        self.tools_hidden.add(u64::from(tokens.tools_hidden), place);
        self.chats |= chat_row;
        let typed = if chat_row { &mut self.typed } else { &mut self.typed_in_texts };
        typed.add(tokens.typed as u64, place);
        self.opened += tokens.opened as u64;
        if let Some(prompt) = tokens.unlike {
            self.unlike.add(1, place);
            self.prompt = prompt;
        }
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
                    let keep = usize::from(chat.tokenizer().bos().is_some_and(|b| row.ids.first() == Some(&b)));
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
            if length > max { "nothing left to train after the cut to max_length" } else { "no token to train" },
            place,
        );
        None
    }

    /// Whether any row is a conversation.
    pub(super) fn has_chats(&self) -> bool {
        self.chats
    }

    /// Faults that stop the run once all rows were seen.
    pub(super) fn check(&self, settings: &Settings, chat: &Chat) -> Result<()> {
        if self.system.n > 0 {
            return Err(Error::data(format!(
                "the chat template takes no system turn ({}), and {} rows have one (first at {})",
                chat.no_system().unwrap_or_default(),
                self.system.n,
                self.system.first
            ))
            .next("set data.system_fallback to \"fold\" (into the next user turn) or \"drop\""));
        }
        if self.user_hidden.n > 0 && !self.user_shown && !chat.was_tried() {
            return Err(Error::data(format!(
                "the chat template shows no user text in any of {} (first at {}): the model would learn answers \
                 without their questions",
                rows(self.user_hidden.n),
                self.user_hidden.first
            ))
            .next("name another template file in data.template"));
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

    pub(super) fn nothing_usable(&self, files: &[PathBuf]) -> Error {
        let names: Vec<_> = files.iter().map(|f| format!("'{}'", f.display())).collect();
        let mut what = format!("no usable row in {}", names.join(", "));
        let reasons: Vec<_> =
            self.dropped.iter().map(|(why, c)| format!("{} × {why} (first at {})", c.n, c.first)).collect();
        if reasons.is_empty() {
            what += ": it holds no rows";
        } else {
            what = format!("{what}: {}", reasons.join("; "));
        }
        let cut = self.dropped.keys().any(|k| k.contains("max_length"));
        Error::data(what).next(if cut { "raise data.max_length, or set data.over_long" } else { "repair the rows" })
    }

    pub(super) fn write_notes(&mut self, settings: &Settings, chat: &Chat, out: &mut Dataset) {
        let facts = &mut out.facts;
        facts.format = self.formats.iter().copied().collect::<Vec<_>>().join("+");
        facts.dropped = self.dropped.iter().map(|(why, c)| (why.clone(), c.n)).collect();
        if self.bad_lines > 0 {
            facts.dropped.insert("not readable as JSON".into(), self.bad_lines);
        }
        facts.truncated = self.cut.n;
        facts.template_date = chat.date().iso();
        facts.sha256 = match self.hashes.as_slice() {
            [one] => hex(one),
            many => hex(&Sha256::digest(many.concat()).into()),
        };
        let notes = &mut out.notes;
        notes.append(&mut self.files);
        notes.extend_from_slice(chat.notes());
        notes.extend(chat.turn_end_note().filter(|_| self.eos.contains("template")));
        notes.extend(chat.template_origin().map(|t| format!("chat template: {}", clean(t))));
        notes.push(format!("BOS: {}; end token: {}", join(&self.bos), join(&self.eos)));
        for (why, c) in &self.dropped {
            notes.push(format!("left out {}: {why} (first at {})", rows(c.n), c.first));
        }
        let mut note = |c: &Count, text: String| {
            if c.n > 0 {
                notes.push(format!("{text} (first at {})", c.first));
            }
        };
        let how = if settings.over_long == OverLong::TruncateStart { "truncate_start" } else { "truncate_end" };
        let lost = self.cut_tokens;
        note(
            &self.cut,
            format!("{how}: cut {} to {} tokens, {lost} tokens lost", rows(self.cut.n), settings.max_length),
        );
        let done = if settings.system == SystemFallback::Fold { "folded into the next user turn" } else { "dropped" };
        let n = self.system_turns.n;
        note(&self.system_turns, format!("the chat template takes no system turn: {n} {done}"));
        let (n, places) = (self.vanished.n, rows(self.vanished_rows));
        note(&self.vanished, format!("the chat template leaves out {n} characters of assistant text in {places}"));
        note(&self.inserted, format!("{} trained tokens are the template's own, not the data's", self.inserted.n));
        note(
            &self.unclosed,
            format!("{} trained turns have no end token: the model won't learn to stop there", self.unclosed.n),
        );
        let (n, places) = (self.hidden.n, rows(self.hidden_rows));
        note(&self.hidden, format!("the chat template leaves out {n} characters of user and tool text in {places}"));
        note(
            &self.tools_hidden,
            format!(
                "the chat template shows no tools: {} name tools that the model won't see, calls of them included",
                rows(self.tools_hidden.n)
            ),
        );
        for (count, is_chat) in [(&self.typed, true), (&self.typed_in_texts, false)] {
            note(count, typed_note(count.n as usize, is_chat, chat.control()).unwrap_or_default());
        }
        if self.opened == 0 {
            note(
                &self.unlike,
                format!(
                    "no trained turn begins with the generation prompt '{}': answers will be asked for otherwise than \
                     they are trained",
                    shown_prompt(&self.prompt)
                ),
            );
        }
        let tokenizer = chat.tokenizer();
        if let Some(eos) =
            tokenizer.eos().filter(|e| self.eos.contains("appended") && tokenizer.stops().first() != Some(e))
        {
            notes.push(format!(
                "rows end in '{}' (the tokenizer's end token), which the model config doesn't name first",
                clean(&tokenizer.token_text(eos))
            ));
        }
    }
}

/// What is done with `n` control tokens that rows' own texts spell out; `None` where there are none.
pub(super) fn typed_note(n: usize, is_chat: bool, control: ControlTokens) -> Option<String> {
    let all = plural(n as u64, "control token");
    match (n, is_chat, control) {
        (0, ..) => None,
        (_, false, _) => Some(format!("{all} in texts without a template: read as the tokens themselves")),
        (_, _, ControlTokens::Tokens) => {
            Some(format!("{all} typed in turns: read as the tokens themselves, as data.control_tokens says"))
        }
        _ => Some(format!("{all} typed in turns: read as letters (data.control_tokens)")),
    }
}

/// A generation prompt, its line ends to be seen.
pub(super) fn shown_prompt(prompt: &str) -> String {
    clean(&crate::text::escaped(prompt))
}

fn join(names: &BTreeSet<&'static str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
