//! A checkpoint's way with conversations: its tokenizer and template, what the template can't do, and the one path
//! from an example to token ids, which training, the inspector and generation share.

use super::Row;
use super::fit::{self, made_up, render, without_system, write_arguments};
use super::formats::Example;
use super::mask::{self, Fault, Masked};
use super::messages::Conversation;
use super::template::{ChatTemplate, Context, Date, Refusal, clean};
use super::tokenizer::{Tokenizer, read_template};
use super::typed;
use crate::checkpoint::{Checkpoint, SpecialIds};
use crate::config::{ControlTokens, SystemFallback, TrainOn};
use crate::error::{Error, Result};
use serde_json::{Value as Json, json};
use std::ops::Range;
use std::path::Path;

/// What is needed of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct ModelFiles<'a> {
    /// Its folder.
    pub dir: &'a Path,
    /// Rows of its embedding.
    pub vocab: usize,
    /// Its config's special ids.
    pub special: &'a SpecialIds,
}

impl<'a> From<&'a Checkpoint> for ModelFiles<'a> {
    fn from(c: &'a Checkpoint) -> Self {
        ModelFiles { dir: &c.dir, vocab: c.arch.vocab, special: &c.arch.special }
    }
}

/// A tokenizer with its chat template.
#[derive(Debug)]
pub struct Chat {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    tool_template: Option<ChatTemplate>,
    date: Date,
    no_system: Option<String>,
    arguments_as_text: bool,
    turn_end: Option<u32>,
    tried: bool,
    tool_fault: Option<Error>,
    control: ControlTokens,
    /// Control tokens that make turns: those that the template prints around made-up ones, and what the files name.
    turn_tokens: Vec<u32>,
    notes: Vec<String>,
}

/// An example as tokens, before anything is cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Ids and mask.
    pub row: Row,
    /// The text they came from.
    pub text: String,
    /// Bytes of `text` that each token covers; `None` for tokens that were added to it.
    pub offsets: Vec<Option<(usize, usize)>>,
    /// Whether a trained token is the template's and not the data's.
    pub inserted: Vec<bool>,
    /// Characters of assistant text that the template leaves out.
    pub vanished: usize,
    /// Trained assistant turns without an end token.
    pub unclosed: usize,
    /// System turns folded or dropped.
    pub system_turns: usize,
    /// Characters of user and tool text that the template leaves out.
    pub hidden: usize,
    /// Whether any user text shows; `None` if there is none.
    pub user_shown: Option<bool>,
    /// The row has tools and the template shows none.
    pub tools_hidden: bool,
    /// Trained turns that begin as the generation prompt does.
    pub opened: usize,
    /// What the generation prompt adds, where a trained turn begins otherwise.
    pub unlike: Option<String>,
    /// It came through a chat template.
    pub is_chat: bool,
    /// Control tokens that the row's own text spells out.
    pub typed: usize,
    /// Bytes of `text` in which they are letters.
    pub letters: Vec<Range<usize>>,
    /// Where BOS came from: `template`, `post-processor`, `none`.
    pub bos: &'static str,
    /// Where the last end token came from: `template`, `appended`, `text`, `none`.
    pub eos: &'static str,
}

/// Why an example gives no tokens.
#[derive(Debug)]
pub enum Refused {
    /// This row can't be used, for a reason that is counted.
    Row(String),
    /// It has a system turn, the template has none, and the choice is to stop.
    System,
    /// Nothing can go on.
    Fatal(Error),
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused::Fatal(e)
    }
}

impl Chat {
    /// Opens the tokenizer and template of `model`; the file `template` wins over the checkpoint's own.
    ///
    /// # Errors
    /// Files missing or malformed; a template that can't be compiled or can't render a user and an assistant turn.
    pub fn open(model: ModelFiles<'_>, template: Option<&Path>, date: Date) -> Result<Chat> {
        let tokenizer = Tokenizer::open(model.dir, model.vocab, model.special)?;
        let mut notes = tokenizer.notes().to_vec();
        let compile =
            |source: &str, origin: &str| ChatTemplate::compile(source, origin, tokenizer.specials().to_vec(), date);
        let (default, tool_use) = match template {
            Some(path) => {
                let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
                (Some(compile(&read_template(path, &mut notes)?, &name)?), None)
            }
            None => {
                let list = tokenizer.templates();
                let default = list.first().map(|t| compile(&t.source, &t.origin)).transpose()?;
                let tools = list.iter().skip(1).find(|t| t.name == "tool_use");
                (default, tools.map(|t| compile(&t.source, &t.origin)).transpose()?)
            }
        };
        let mut chat = Chat {
            tokenizer,
            template: default,
            tool_template: tool_use,
            date,
            no_system: None,
            arguments_as_text: false,
            turn_end: None,
            tried: false,
            tool_fault: None,
            control: ControlTokens::default(),
            turn_tokens: Vec::new(),
            notes,
        };
        let named = [chat.tokenizer.bos(), chat.tokenizer.eos(), chat.tokenizer.pad()];
        chat.turn_tokens = named.into_iter().flatten().chain(chat.tokenizer.stops().iter().copied()).collect();
        chat.learn()?;
        Ok(chat)
    }

    /// The same, with control tokens that a conversation's text spells out read as `control` says.
    #[must_use]
    pub fn with_control(self, control: ControlTokens) -> Chat {
        Chat { control, ..self }
    }

    /// Where tokens that make turns stand in a text of a row.
    fn typed_in(&self, text: &str) -> Vec<Range<usize>> {
        let found = self.tokenizer.controls_in(text).filter(|(_, id)| self.turn_tokens.contains(id));
        found.map(|(at, _)| at).collect()
    }

    /// How those are read.
    #[must_use]
    pub fn control(&self) -> ControlTokens {
        self.control
    }

    /// Tries the templates on made-up turns: what they can't do is known before the first row.
    fn learn(&mut self) -> Result<()> {
        // A fault of this one concerns rows with tools alone.
        self.tool_fault = self.tool_template.as_mut().and_then(|t| fit::fit(t, &mut self.notes).err());
        let Some(template) = &mut self.template else {
            return Ok(());
        };
        self.tried = fit::fit(template, &mut self.notes)?;
        if !self.tried {
            return Ok(()); // it wants other turns; the rows will show
        }
        let template = &*template;
        self.turn_end = mask::turn_end(template, &self.tokenizer);
        let (user, assistant) = made_up();
        // An answer that isn't the last one: around that some templates put an empty thought.
        if let Ok(text) = render(template, &[user.clone(), assistant.clone(), user.clone()]) {
            self.turn_tokens.extend(self.tokenizer.controls_in(&text).map(|(_, id)| id));
        }
        let system = json!({"role": "system", "content": "sss"});
        self.no_system = match render(template, &[system, user.clone(), assistant]) {
            Err(why) => Some(why.to_string()),
            Ok(text) if !text.contains("sss") => Some("it leaves system turns out".into()),
            Ok(_) => None,
        };
        let calls = |arguments: Json| {
            let flat = json!({"name": "nnn", "arguments": arguments, "type": "function", "id": "call00000",
                "function": {"name": "nnn", "arguments": arguments}});
            let call = json!({"role": "assistant", "content": "", "tool_calls": [flat]});
            render(self.tool_template.as_ref().unwrap_or(template), &[user.clone(), call])
        };
        let as_json = |text: Result<String, Refusal>| text.is_ok_and(|t| t.contains("\"kkk\""));
        self.arguments_as_text = !as_json(calls(json!({"kkk": 1}))) && as_json(calls(json!("{\"kkk\": 1}")));
        Ok(())
    }

    /// What the files say that isn't used, that was mended, or that the template wants otherwise: one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the template took the turns that it was tried on, and so is known to show what a user says.
    #[must_use]
    pub fn was_tried(&self) -> bool {
        self.tried
    }

    /// Ids at which generation stops: the end tokens that the model's files name, and the one with which the template
    /// closes a turn.
    #[must_use]
    pub fn stops(&self) -> Vec<u32> {
        let named = self.tokenizer.stops();
        named.iter().copied().chain(self.turn_end.filter(|id| !named.contains(id))).collect()
    }

    /// A note, if the template closes turns with a token at which programs that know only the model's files don't stop.
    #[must_use]
    pub fn turn_end_note(&self) -> Option<String> {
        let end = self.turn_end.filter(|id| !self.tokenizer.stops().contains(id))?;
        Some(format!(
            "the chat template ends turns with '{}', which isn't among the model's end tokens: `generate` stops there, \
             other programs need it in eos_token_id of generation_config.json",
            clean(&self.tokenizer.token_text(end))
        ))
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// File the chat template came from; `None` if there is none.
    #[must_use]
    pub fn template_origin(&self) -> Option<&str> {
        self.template.as_ref().map(ChatTemplate::origin)
    }

    /// The template's source, a byte order mark taken off; `None` if there is none.
    #[must_use]
    pub fn template_source(&self) -> Option<&str> {
        self.template.as_ref().map(ChatTemplate::source)
    }

    /// Why the template can't take a system turn; `None` if it can.
    #[must_use]
    pub fn no_system(&self) -> Option<&str> {
        self.no_system.as_deref()
    }

    /// The date that the template sees.
    #[must_use]
    pub fn date(&self) -> Date {
        self.date
    }

    /// Token ids that ask for an answer to `messages` (role and content): the template's generation prompt, BOS once.
    ///
    /// # Errors
    /// No template, or it refuses the messages.
    pub fn prompt(&self, messages: &[(&str, &str)]) -> Result<Vec<u32>> {
        let messages: Vec<Json> =
            messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        let template = self.template.as_ref().ok_or_else(no_template)?;
        let context = Context { messages: &messages, tools: None, add_generation_prompt: true, kwargs: None };
        let text = template.render(context).map_err(|e| Error::data(e.to_string()))?;
        self.text_prompt(&text)
    }

    /// Token ids that ask for a continuation of `text`: BOS once, if the tokenizer adds one.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn text_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode(text)?.ids;
        let (opening, _) = self.tokenizer.opening(ids.first().copied());
        Ok([opening, &ids].concat())
    }

    /// Renders, tokenises and masks `example`.
    ///
    /// # Errors
    /// Why this row, or all of them, can't be used.
    pub fn tokens(&self, example: &Example, train_on: TrainOn, system: SystemFallback) -> Result<Tokens, Refused> {
        match example {
            Example::Conversation(c) => self.conversation(c, train_on, system),
            Example::Text(text) => self.joined(text.clone(), 0),
            Example::PromptCompletion { prompt, completion } => {
                let from = if train_on == TrainOn::All { 0 } else { prompt.len() };
                self.joined(format!("{prompt}{completion}"), from)
            }
        }
    }

    /// `text` with its beginning and end tokens; bytes from `from` on are trained.
    ///
    /// The rule at the border (DA-14): the whole text is encoded at once, so that joined ids are the ids of the joined
    /// text, and a token that covers at least one trained byte is trained. One that straddles the border is.
    fn joined(&self, text: String, from: usize) -> Result<Tokens, Refused> {
        let end = text.len();
        // White space behind a text's own end token doesn't make it another token's turn to end it.
        let own = self.tokenizer.eos().filter(|eos| {
            let name = self.tokenizer.token_text(*eos);
            !name.is_empty() && text.trim_end().ends_with(&name)
        });
        let typed = self.typed_in(&text).len();
        let masked = Masked { text, spans: std::iter::once(from..end).collect(), ..Masked::default() };
        let mut out = self.assemble(masked, Vec::new())?;
        out.typed = typed;
        let closing = self.tokenizer.closing(own.or(out.row.ids.last().copied()));
        out.eos = match (closing.is_empty(), self.tokenizer.eos()) {
            (false, _) => "appended",
            (true, Some(_)) => "text",
            (true, None) => "none",
        };
        for id in closing {
            out.row.ids.push(id);
            out.row.trained.push(true);
            out.offsets.push(None);
            out.inserted.push(false);
        }
        Ok(out)
    }

    fn conversation(
        &self,
        conversation: &Conversation,
        train_on: TrainOn,
        system: SystemFallback,
    ) -> Result<Tokens, Refused> {
        let template = match (&self.tool_template, &conversation.tools) {
            (Some(t), Some(_)) => t,
            _ => self.template.as_ref().ok_or_else(no_template)?,
        };
        if let (Some(fault), Some(_)) = (&self.tool_fault, &conversation.tools) {
            return Err(Refused::Fatal(Error::data(fault.what()).next("name another template file in data.template")));
        }
        let mut fitted = conversation.clone();
        let mut system_turns = 0;
        if self.no_system.is_some() {
            system_turns = without_system(&mut fitted.turns, system)?;
        }
        if self.arguments_as_text {
            fitted.turns.iter_mut().for_each(|t| write_arguments(&mut t.message));
        }
        let typed = typed::count(&fitted, &|text| self.typed_in(text));
        if typed > 0 && self.control == ControlTokens::Drop {
            return Err(Refused::Row("control tokens stand in its text".into()));
        }
        let plain = fitted.clone();
        let mark = match typed > 0 && self.control == ControlTokens::Text {
            true => Some(
                typed::mark(&mut fitted, &|text| self.typed_in(text))
                    .ok_or_else(|| Refused::Row(typed::MIXED.into()))?,
            ),
            false => None,
        };
        let mut masked = mask::conversation(template, &self.tokenizer, &fitted, train_on).map_err(|fault| match fault {
            Fault::Row(why) => Refused::Row(why),
            Fault::Template(why) => Refused::Fatal(
                Error::data(format!("chat template ({}) can't be masked: {why}", clean(template.origin()))).next(
                    "put {% generation %} and {% endgeneration %} around what the assistant says in a copy of it and name that in data.template, or set data.train_on = \"all\"",
                ),
            ),
        })?;
        let tools_hidden = conversation.tools.is_some() && fit::shows_no_tools(template, &fitted, &masked.text);
        let user_shown = fit::shows_a_user(&fitted, &masked.text);
        let hidden = fitted.turns.iter().map(|t| fit::hidden(t, &masked.text)).sum();
        let mut letters = Vec::new();
        if let Some(mark) = mark {
            let found = typed::unmark(&mut masked, &|text| self.typed_in(text), mark);
            let same = || mask::rendered(template, &plain).is_ok_and(|text| text == masked.text);
            letters = found.filter(|_| same()).ok_or_else(|| Refused::Row(typed::MIXED.into()))?;
        }
        let (opened, unlike) = (masked.opened, masked.unlike.take());
        let (vanished, unclosed) = (masked.vanished, masked.unclosed);
        let mut out = self.assemble(masked, letters)?;
        out.typed = typed;
        (out.tools_hidden, out.user_shown, out.hidden) = (tools_hidden, user_shown, hidden);
        (out.is_chat, out.opened, out.unlike) = (true, opened, unlike);
        (out.vanished, out.unclosed, out.system_turns) = (vanished, unclosed, system_turns);
        out.eos = if unclosed == 0 { "template" } else { "none" };
        Ok(out)
    }

    /// The tokens of a masked text; the control tokens at `letters` are text.
    fn assemble(&self, masked: Masked, letters: Vec<Range<usize>>) -> Result<Tokens, Refused> {
        let Masked { text, spans, inserted, .. } = masked;
        let encoded = self.tokenizer.encode_apart(&text, &letters)?;
        let encoded = encoded.ok_or_else(|| Refused::Row(typed::MIXED.into()))?;
        let (opening, bos) = self.tokenizer.opening(encoded.ids.first().copied());
        let touches = |ranges: &[Range<usize>], (start, end): (usize, usize)| {
            ranges.iter().any(|r| start < r.end && end > r.start)
        };
        let added = opening.len();
        let mut row = Row { ids: [opening, &encoded.ids].concat(), trained: vec![false; added] };
        row.trained.extend(encoded.offsets.iter().map(|o| touches(&spans, *o)));
        // Nothing stands before the first token to predict it from.
        if let Some(first) = row.trained.first_mut() {
            *first = false;
        }
        let mut marks = vec![false; added];
        marks.extend(encoded.offsets.iter().map(|o| touches(&inserted, *o)));
        let offsets = vec![None; added].into_iter().chain(encoded.offsets.into_iter().map(Some)).collect();
        Ok(Tokens { row, text, offsets, letters, inserted: marks, bos, ..Tokens::default() })
    }
}

fn no_template() -> Error {
    Error::data("the checkpoint has no chat template, and conversations need one")
        .next("name a template file in data.template, or use rows of prompt and completion, or of text")
}
