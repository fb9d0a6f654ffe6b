//! One row as the model will see it: rendered text, token ids, and which of them train, by sign and not by colour.

use super::chat::{Chat, ModelFiles, Refused};
use super::formats::{Format, fields};
use super::pipeline::Settings;
use super::reader;
use super::tally::{file_name, shown_prompt, typed_note};
use super::template::{Date, clean};
use crate::config::{OverLong, RunConfig};
use crate::error::{Error, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// One token of an inspected row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenView {
    /// Its id.
    pub id: u32,
    /// Its text; a special token's name.
    pub text: String,
    /// It carries loss.
    pub trained: bool,
    /// It carries loss and is the template's, not the data's.
    pub inserted: bool,
    /// It lies past `max_length`.
    pub cut: bool,
    /// It is a letter of a control token that the row's own text spells out.
    pub typed: bool,
}

/// One inspected row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// Version of this object.
    pub schema: u32,
    /// File name.
    pub file: String,
    /// Row in the file, from 1.
    pub row: u64,
    /// Line it starts on, from 1.
    pub line: u64,
    /// Its format.
    pub format: String,
    /// Where the chat template came from; `null` for rows that need none.
    pub template: Option<String>,
    /// The text that was tokenised.
    pub rendered: String,
    /// Its tokens, added ones included.
    pub tokens: Vec<TokenView>,
    /// Tokens that carry loss, cut ones left out.
    pub trained_tokens: u64,
    /// Where BOS came from: `template`, `post-processor`, `none`.
    pub bos: String,
    /// Where the last end token came from: `template`, `appended`, `text`, `none`.
    pub eos: String,
    /// What is worth knowing about it.
    pub notes: Vec<String>,
}

/// Inspects row `row` (from 1) of `file` under the `[data]` settings of `config`.
///
/// # Errors
/// As [`super::prepare`] for this row; the file has fewer rows.
pub fn inspect(file: &Path, row: u64, config: &RunConfig, model: ModelFiles<'_>, date: Date) -> Result<Inspection> {
    let settings = Settings::of(&config.data)?;
    let chat = Chat::open(model, config.data.template.as_deref(), date)?.with_control(config.data.control_tokens);
    let mut format = settings.format;
    let (mut seen, mut found) = (0, None);
    let read = reader::read(file, config.data.skip_bad_lines, &mut |record| {
        seen += 1;
        format = format.or_else(|| Format::detect(&record.value));
        if seen == row {
            found = Some((record.line, record.value));
            // The rest of the file isn't needed; the error only carries the reader out and is not seen.
            return Err(Error::data("found"));
        }
        Ok(())
    });
    let Some((line, value)) = found else {
        read?;
        return Err(Error::usage(format!("'{}' has {seen} rows, so there is no row {row}", file.display())));
    };
    let place = format!("'{}' line {line}", file.display());
    let Some(format) = format else {
        return Err(Error::data(format!("{place}: a row with {} is in no known format", fields(&value))));
    };
    let example = format.read(&value).map_err(|why| Error::data(format!("{place} would be left out: {why}")))?;
    let tokens = chat.tokens(&example, settings.train_on, settings.system).map_err(|refused| match refused {
        Refused::Row(why) => Error::data(format!("{place} would be left out: {why}")),
        Refused::System => {
            let why = chat.no_system().unwrap_or_default();
            Error::data(format!("{place} has a system turn, which the chat template doesn't take ({why})"))
                .next("set data.system_fallback to \"fold\" or \"drop\"")
        }
        Refused::Fatal(e) => e,
    })?;

    let mut notes = Vec::new();
    let is_chat = matches!(example, super::formats::Example::Conversation(_));
    let length = tokens.row.ids.len();
    let over = length.saturating_sub(settings.max_length);
    let cut = match settings.over_long {
        _ if over == 0 => 0..0,
        OverLong::TruncateStart => {
            let keep = usize::from(chat.tokenizer().bos().is_some_and(|b| tokens.row.ids.first() == Some(&b)));
            keep..keep + over
        }
        _ => length - over..length,
    };
    if over > 0 {
        notes.push(match settings.over_long {
            OverLong::Drop => format!("the row is {over} tokens longer than max_length and will be left out"),
            OverLong::Error => {
                format!("the row is {over} tokens longer than max_length and will stop the run")
            }
            _ => format!("{over} tokens past max_length {} will be cut", settings.max_length),
        });
    }
    if tokens.vanished > 0 {
        notes.push(format!("the chat template leaves out {} characters of assistant text", tokens.vanished));
    }
    let inserted = tokens.inserted.iter().filter(|i| **i).count();
    if inserted > 0 {
        notes.push(format!("{inserted} trained tokens are the template's own"));
    }
    if tokens.unclosed > 0 {
        notes.push(format!("{} trained turns have no end token", tokens.unclosed));
    }
    if tokens.system_turns > 0 {
        notes.push(format!("{} system turns were {}", tokens.system_turns, config.data.system_fallback));
    }
    if tokens.hidden > 0 {
        notes.push(format!("the chat template leaves out {} characters of user and tool text", tokens.hidden));
    }
    notes.extend(typed_note(tokens.typed, is_chat, chat.control()));
    if tokens.tools_hidden {
        notes.push("the chat template shows no tools: the model won't see those that the row names".into());
    }
    if let (0, Some(prompt)) = (tokens.opened, &tokens.unlike) {
        notes.push(format!("no trained turn begins with the generation prompt '{}'", shown_prompt(prompt)));
    }
    let views: Vec<TokenView> = (0..length)
        .map(|i| TokenView {
            id: tokens.row.ids[i],
            text: chat.tokenizer().token_text(tokens.row.ids[i]),
            trained: tokens.row.trained[i],
            inserted: tokens.inserted[i],
            cut: cut.contains(&i),
            typed: tokens.offsets[i]
                .is_some_and(|(start, end)| tokens.letters.iter().any(|l| start < l.end && l.start < end)),
        })
        .collect();
    let trained_tokens = views.iter().filter(|v| v.trained && !v.cut).count() as u64;
    if trained_tokens == 0 {
        notes.push("no token trains: the row will be left out".into());
    }
    notes.extend_from_slice(chat.notes());
    notes.extend(chat.turn_end_note().filter(|_| is_chat));
    Ok(Inspection {
        schema: 1,
        file: file_name(file),
        row,
        line,
        format: format.name().into(),
        template: chat.template_origin().filter(|_| is_chat).map(String::from),
        rendered: tokens.text,
        tokens: views,
        trained_tokens,
        bos: tokens.bos.into(),
        eos: tokens.eos.into(),
        notes,
    })
}

impl TokenView {
    /// `+` trained, `*` trained and the template's own, `.` not trained, `x` cut off.
    #[must_use]
    pub fn sign(&self) -> char {
        match (self.cut, self.trained, self.inserted) {
            (true, ..) => 'x',
            (_, true, true) => '*',
            (_, true, _) => '+',
            _ => '.',
        }
    }
}

impl Inspection {
    /// Plain text for a terminal or a file: head, rendered text, one line a token. ASCII signs, no escapes of its own.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}, row {} (line {}), {}", self.file, self.row, self.line, self.format);
        if let Some(template) = &self.template {
            let _ = writeln!(out, "chat template: {}", clean(template));
        }
        let share = self.trained_tokens as f64 * 100.0 / self.tokens.len().max(1) as f64;
        let _ = writeln!(out, "{} tokens, {} trained ({share:.0} %)", self.tokens.len(), self.trained_tokens);
        let _ = writeln!(out, "BOS: {}; end token: {}", self.bos, self.eos);
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        out.push_str("\nrendered text:\n");
        for line in self.rendered.lines() {
            let _ = writeln!(out, "  | {}", visible(line));
        }
        out.push_str("\n+ trained   * trained, the template's own   . not trained   x cut off\n\n");
        for (i, token) in self.tokens.iter().enumerate() {
            let typed = if token.typed { "   (typed)" } else { "" };
            let _ = writeln!(out, "{i:>6} {} {:>7}  {}{typed}", token.sign(), token.id, visible(&token.text));
        }
        out
    }

    /// The same as JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Text with nothing in it that acts or isn't seen, blanks at either end among it.
fn visible(text: &str) -> String {
    let out = crate::text::escaped(text);
    let body = out.trim_matches(' ');
    let (before, after) = if body.is_empty() {
        (out.len(), 0)
    } else {
        (out.len() - out.trim_start_matches(' ').len(), out.len() - out.trim_end_matches(' ').len())
    };
    format!("{}{body}{}", "\u{2423}".repeat(before), "\u{2423}".repeat(after))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{CHATML, Fixture, IM_END, chat_row};
    use super::*;

    fn look(
        fixture: Fixture,
        rows: &[serde_json::Value],
        row: u64,
        edit: impl FnOnce(&mut RunConfig),
    ) -> Result<Inspection> {
        let model = fixture.build();
        let mut config = RunConfig::default();
        edit(&mut config);
        inspect(&model.data("rows.jsonl", rows), row, &config, model.files(), Date::from_unix(0))
    }

    #[test]
    fn case_da_10_the_preview_says_where_bos_came_from() {
        let rows = [chat_row(&[("user", "a"), ("assistant", "b")])];
        let with = |template: &str| Fixture { bos_post: true, template: template.into(), ..Fixture::default() };
        let own = look(with(&format!("{{{{ bos_token }}}}{CHATML}")), &rows, 1, |_| {}).unwrap();
        assert_eq!(own.bos, "template");
        let added = look(with(CHATML), &rows, 1, |_| {}).unwrap();
        assert_eq!(added.bos, "post-processor");
        assert!(added.to_text().contains("BOS: post-processor; end token: template"));
    }

    #[test]
    fn trained_and_masked_differ_by_sign() {
        let rows =
            [chat_row(&[("user", "x"), ("assistant", "y")]), chat_row(&[("user", "a\u{1b}[2J"), ("assistant", "b\n")])];
        let seen = look(Fixture::default(), &rows, 2, |_| {}).unwrap();
        assert_eq!((seen.row, seen.line, seen.format.as_str()), (2, 2, "messages"));
        assert_eq!(seen.trained_tokens, 3);
        let end = seen.tokens.iter().rfind(|t| t.id == IM_END).unwrap();
        assert_eq!((end.sign(), end.text.as_str()), ('+', "<|im_end|>"));
        let text = seen.to_text();
        assert!(!text.contains('\x1b'), "control characters of the data must not reach the terminal");
        assert!(text.contains("     ") && text.lines().any(|l| l.ends_with("+      98  b")), "{text}");
        assert!(text.lines().any(|l| l.ends_with("+      10  \\n")), "{text}");
        let json = seen.to_json();
        assert_eq!(json["tokens"][0]["trained"], false);
        assert_eq!(json["schema"], 1);
    }

    #[test]
    fn case_fo_35c_control_tokens_that_a_row_spells_out_are_shown() {
        let rows = [chat_row(&[("user", "x<|im_end|>"), ("assistant", "y")])];
        let seen = look(Fixture::default(), &rows, 1, |_| {}).unwrap();
        let typed: String = seen.tokens.iter().filter(|t| t.typed).map(|t| t.text.as_str()).collect();
        assert_eq!(typed, "<|im_end|>");
        let text = seen.to_text();
        assert!(text.contains("note: 1 control token typed in turns: read as letters"), "{text}");
        assert_eq!(text.lines().filter(|l| l.ends_with("   (typed)")).count(), 10, "{text}");
    }

    #[test]
    fn what_is_cut_is_shown() {
        let rows = [chat_row(&[("user", "a"), ("assistant", "bbbbbbbb")])];
        let seen = look(Fixture::default(), &rows, 1, |c| c.data.max_length = 24).unwrap();
        assert!(seen.tokens.iter().skip(24).all(|t| t.sign() == 'x') && seen.tokens.len() > 24);
        assert!(seen.notes[0].contains("will be cut"), "{:?}", seen.notes);
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let rows = [chat_row(&[("user", "x"), ("assistant", "y")])];
        assert!(look(Fixture::default(), &rows, 2, |_| {}).unwrap_err().to_string().contains("has 1 rows"));
        assert!(look(Fixture::default(), &rows, 0, |_| {}).is_err());
        let bad = [serde_json::json!({"messages": []})];
        assert!(
            look(Fixture::default(), &bad, 1, |_| {})
                .unwrap_err()
                .to_string()
                .contains("left out: `messages` is empty")
        );
    }

    #[test]
    fn blanks_are_visible() {
        assert_eq!(visible(" a "), "\u{2423}a\u{2423}");
        assert_eq!(visible("  "), "\u{2423}\u{2423}");
        assert_eq!(visible("\n"), "\\n");
    }
}
