//! Which bytes of a rendered conversation the assistant said, proven for every row.
//!
//! An assistant turn's span is what the model itself would have to generate: from the end of the generation prompt to
//! the turn's end token. Templates that carry `{% generation %}` say it themselves. For the others it is found so:
//!
//! * The turn is rendered once more with its content replaced by a code point that no text has. What stands before it
//!   (H) and after it (T) in that rendering is the template's; if the real text ends in T, the turn's content ends
//!   where T begins. Trimming, cut thinking and inserted tags all fall between H and T.
//! * The conversation up to the turn, rendered with the generation prompt, is P. If the real text begins with P, and P
//!   agrees with H, the span begins after P: a `<think></think>` that the template inserts after P is trained, since
//!   the model will have to produce it. If there is no generation prompt, or it isn't what history turns look like, the
//!   span begins after H.
//! * The end token is the special token that follows T's white space, if it is one that ends generation or one that
//!   follows the turn also when nothing comes after it.
//!
//! A turn for which this doesn't hold (and whose neighbouring prefixes P and P + turn don't settle it either) is an
//! error. There is no fallback to training everything.

use super::messages::{Conversation, Reason, Turn};
use super::template::{ChatTemplate, Context, Refusal, unused_marks};
use super::tokenizer::Tokenizer;
use crate::config::TrainOn;
use serde_json::Value as Json;
use std::ops::Range;

/// A rendered conversation with its trained bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masked {
    /// The text.
    pub text: String,
    /// Trained byte ranges, ascending.
    pub spans: Vec<Range<usize>>,
    /// Byte ranges inside `spans` that the template put there and the data doesn't hold, such as an empty `<think>`.
    pub inserted: Vec<Range<usize>>,
    /// Characters of assistant text in the data that the template leaves out.
    pub vanished: usize,
    /// Trained turns that the template closes without an end token.
    pub unclosed: usize,
    /// Trained turns that begin as the generation prompt does.
    pub opened: usize,
    /// What the generation prompt adds, where a trained turn begins otherwise.
    pub unlike: Option<String>,
}

/// Why a conversation gives no mask.
#[derive(Debug)]
pub enum Fault {
    /// This row can't be rendered.
    Row(Reason),
    /// The template can't be masked; no row of this kind can.
    Template(String),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        Fault::Row(refusal.to_string())
    }
}

/// Renders `conversation` and finds what is trained in it.
///
/// # Errors
/// The template refuses the row, or its mask can't be proven.
pub fn conversation(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    train_on: TrainOn,
) -> Result<Masked, Fault> {
    let view = View { template, tokenizer, conversation, messages: messages(&conversation.turns) };
    let assistants: Vec<usize> =
        (0..conversation.turns.len()).filter(|&i| conversation.turns[i].role() == "assistant").collect();
    if train_on == TrainOn::All {
        let text = view.render(&view.messages, false)?;
        let vanished = assistants.iter().map(|&i| lost(&conversation.turns[i], &text)).sum();
        let spans = std::iter::once(0..text.len()).collect();
        let mut out = Masked { spans, vanished, text, ..Masked::default() };
        out.compare(assistants.last().and_then(|&i| view.prompt(&out.text, i)));
        return Ok(out);
    }
    let wanted =
        |i: &usize| conversation.turns[*i].train && (train_on == TrainOn::Assistant || assistants.last() == Some(i));
    if template.has_generation() {
        return view.by_marks(&assistants, wanted);
    }
    let mut out = Masked { text: view.render(&view.messages, false)?, ..Masked::default() };
    for i in assistants.iter().copied().filter(wanted) {
        let prompt = view.prompt(&out.text, i);
        let turn = view.locate(&out.text, i, prompt.as_ref()).ok_or_else(|| {
            Fault::Template(format!(
                "what the assistant says in message {i} can't be told from the rest of the rendered text"
            ))
        })?;
        if out.spans.last().is_some_and(|last| last.end > turn.start) {
            return Err(Fault::Template(format!("message {i} is rendered before the one it follows")));
        }
        out.compare(prompt);
        let said = turn.start..turn.content_end;
        out.vanished += lost(&conversation.turns[i], &out.text[said.clone()]);
        out.inserted.extend(inserted(&conversation.turns[i], &out.text, said));
        out.unclosed += usize::from(!turn.closed);
        out.spans.push(turn.start..turn.end);
    }
    Ok(out)
}

/// The text of `conversation` alone.
///
/// # Errors
/// The template refuses the row.
pub fn rendered(template: &ChatTemplate, conversation: &Conversation) -> Result<String, Refusal> {
    let (messages, tools) = (messages(&conversation.turns), conversation.tools.as_deref());
    template.render(Context {
        messages: &messages,
        tools,
        add_generation_prompt: false,
        kwargs: conversation.kwargs.as_ref(),
    })
}

/// The end token with which the template closes what the assistant says, on made-up turns; `None` if it has none, or if
/// it wants other turns.
#[must_use]
pub fn turn_end(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    let turns = vec![Turn::new("user", "qqq", false), Turn::new("assistant", "aaa", true)];
    let made_up = Conversation { turns, ..Conversation::default() };
    let masked = conversation(template, tokenizer, &made_up, TrainOn::Assistant).ok()?;
    special_end(tokenizer, &masked.text[..masked.spans.last()?.end])
}

/// The special token that `text` ends in, white space aside.
fn special_end(tokenizer: &Tokenizer, text: &str) -> Option<u32> {
    let text = text.trim_end();
    let mut starts = text.char_indices().rev().take(LONGEST_SPECIAL).map(|c| c.0);
    starts.find_map(|at| tokenizer.special_at(&text[at..]).filter(|(len, _)| at + len == text.len()).map(|(_, id)| id))
}

/// The conversation up to a turn with the generation prompt, against the real text.
struct Prompt {
    /// Both.
    text: String,
    /// Bytes of it that are there without the generation prompt as well.
    closed: usize,
    /// The real text begins with it.
    fits: bool,
}

impl Masked {
    /// Counts a trained turn by whether it begins as its generation prompt does.
    fn compare(&mut self, prompt: Option<Prompt>) {
        match prompt {
            Some(p) if p.fits => self.opened += 1,
            Some(p) if self.unlike.is_none() => self.unlike = Some(p.text[p.closed..].to_string()),
            _ => {}
        }
    }
}

/// Characters of the longest special token looked for at the end of a turn.
const LONGEST_SPECIAL: usize = 64;

struct Located {
    start: usize,
    content_end: usize,
    end: usize,
    closed: bool,
}

struct View<'a> {
    template: &'a ChatTemplate,
    tokenizer: &'a Tokenizer,
    conversation: &'a Conversation,
    messages: Vec<Json>,
}

fn messages(turns: &[Turn]) -> Vec<Json> {
    turns.iter().map(|t| t.message.clone()).collect()
}

impl View<'_> {
    fn context<'m>(&'m self, messages: &'m [Json], prompt: bool) -> Context<'m> {
        Context {
            messages,
            tools: self.conversation.tools.as_deref(),
            add_generation_prompt: prompt,
            kwargs: self.conversation.kwargs.as_ref(),
        }
    }

    fn render(&self, messages: &[Json], prompt: bool) -> Result<String, Refusal> {
        self.template.render(self.context(messages, prompt))
    }

    fn by_marks(&self, assistants: &[usize], wanted: impl Fn(&usize) -> bool) -> Result<Masked, Fault> {
        let marked = self.template.render_marked(self.context(&self.messages, false))?;
        let all = assistants.iter().all(&wanted);
        if !all && marked.generated.len() != assistants.len() {
            return Err(Fault::Template(format!(
                "its {{% generation %}} marks {} places for {} assistant turns, so that one turn can't be picked",
                marked.generated.len(),
                assistants.len()
            )));
        }
        let mut out = Masked { text: marked.text, ..Masked::default() };
        for (n, span) in marked.generated.into_iter().enumerate() {
            if all || wanted(&assistants[n]) {
                out.unclosed += usize::from(!self.ends_in_special(&out.text[span.clone()]));
                out.spans.push(span);
            }
        }
        out.vanished =
            assistants.iter().filter(|i| wanted(i)).map(|&i| lost(&self.conversation.turns[i], &out.text)).sum();
        out.compare(assistants.iter().rfind(|i| wanted(i)).and_then(|&i| self.prompt(&out.text, i)));
        Ok(out)
    }

    /// What stands before assistant turn `i` with the generation prompt; `None` if the template has no such prompt.
    fn prompt(&self, full: &str, i: usize) -> Option<Prompt> {
        let text = self.render(&self.messages[..i], true).ok()?;
        let closed = self.render(&self.messages[..i], false).ok()?;
        let fits = full.starts_with(&text);
        let same = text.bytes().zip(closed.bytes()).take_while(|(a, b)| a == b).count();
        let closed = (0..=same).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        (closed < text.len()).then_some(Prompt { text, closed, fits })
    }

    /// The span of assistant turn `i` in `full`; `None` if it can't be proven. A generation prompt that isn't there, or
    /// that the real text doesn't begin with, says nothing.
    fn locate(&self, full: &str, i: usize, prompt: Option<&Prompt>) -> Option<Located> {
        let prompt = prompt.filter(|p| p.fits).map(|p| p.text.as_str());
        self.by_probe(full, i, prompt).or_else(|| self.by_prefix(full, i, prompt?))
    }

    fn by_probe(&self, full: &str, i: usize, prompt: Option<&str>) -> Option<Located> {
        let [mark, _] = unused_marks(full)?;
        let (before, after) = self.around(i, self.messages.len(), mark)?;
        let content_end = full.len().checked_sub(after.len()).filter(|_| full.ends_with(&after))?;
        let start = match prompt {
            Some(p) if p.len() <= content_end && (before.starts_with(p) || p.starts_with(&before)) => p.len(),
            _ if full.starts_with(&before) && before.len() <= content_end => before.len(),
            _ => return None,
        };
        let rest = &full[content_end..];
        let gap = rest.len() - rest.trim_start().len();
        let end = self.tokenizer.special_at(&rest[gap..]).filter(|(len, id)| {
            self.tokenizer.stops().contains(id)
                || self.around(i, i + 1, mark).is_some_and(|(_, t)| t.trim_start().starts_with(&rest[gap..gap + len]))
        });
        Some(Located {
            start,
            content_end,
            end: end.map_or(content_end, |(len, _)| content_end + gap + len),
            closed: end.is_some(),
        })
    }

    /// What the template puts before and after turn `i`'s content among the first `n` messages.
    fn around(&self, i: usize, n: usize, mark: char) -> Option<(String, String)> {
        let mut messages = self.messages[..n].to_vec();
        messages[i] = serde_json::json!({"role": "assistant", "content": mark.to_string()});
        let text = self.render(&messages, false).ok()?;
        let (before, after) = text.split_once(mark)?;
        (!after.contains(mark)).then(|| (before.to_string(), after.to_string()))
    }

    /// For turns that can't stand with other content (templates that insist on tool calls): what the conversation grows
    /// by when the turn is added, up to its last special token.
    fn by_prefix(&self, full: &str, i: usize, prompt: &str) -> Option<Located> {
        let through = self.render(&self.messages[..=i], false).ok()?;
        if !full.starts_with(&through) || through.len() <= prompt.len() || !through.starts_with(prompt) {
            return None;
        }
        let said = through[prompt.len()..].trim_end();
        let end = prompt.len() + said.len();
        let closed = self.ends_in_special(said);
        Some(Located { start: prompt.len(), content_end: end, end, closed })
    }

    fn ends_in_special(&self, text: &str) -> bool {
        special_end(self.tokenizer, text).is_some()
    }
}

/// Thinking inside a content, and what follows it.
fn thinking(content: &str) -> Option<(&str, &str)> {
    let (before, rest) = content.rsplit_once("</think>")?;
    Some((before.trim_start().strip_prefix("<think>").unwrap_or(before).trim(), rest.trim()))
}

/// Characters of `turn` that aren't in `text`; of a call whose name isn't there, all.
pub(super) fn lost(turn: &Turn, text: &str) -> usize {
    let chars = |s: &str| s.chars().count();
    let reasoning = turn.reasoning().filter(|r| !text.contains(r.trim())).map_or(0, chars);
    let content = turn.content().unwrap_or_default();
    let missing = if text.contains(content.trim()) {
        0
    } else {
        match thinking(content) {
            Some((inner, rest)) if text.contains(rest) && text.contains(inner) => 0,
            Some((_, rest)) if text.contains(rest) => chars(content.trim()) - chars(rest),
            // Line by line, since templates may trim or indent.
            _ => match content.lines().map(str::trim).filter(|l| !text.contains(l)).map(chars).sum() {
                some if content.lines().any(|l| !l.trim().is_empty() && text.contains(l.trim())) => some,
                _ => chars(content.trim()),
            },
        }
    };
    let calls = turn.message.get("tool_calls").and_then(Json::as_array).into_iter().flatten();
    let calls = calls
        .map(|c| c.get("function").unwrap_or(c))
        .filter(|c| c.get("name").and_then(Json::as_str).is_some_and(|name| !text.contains(name)));
    reasoning + missing + calls.map(|c| chars(&super::template::dumps(c))).sum::<usize>()
}

/// Parts of `said` that hold more than white space and aren't in the data.
fn inserted(turn: &Turn, text: &str, said: Range<usize>) -> Vec<Range<usize>> {
    if turn.calls_tools() {
        return Vec::new(); // how calls are written is the template's affair
    }
    let content = turn.content().unwrap_or_default();
    let mut pieces: Vec<&str> = turn.reasoning().into_iter().map(str::trim).collect();
    match thinking(content) {
        Some((inner, rest)) if !text[said.clone()].contains(content.trim()) => pieces.extend([inner, rest]),
        _ => pieces.push(content.trim()),
    }
    let (mut out, mut at) = (Vec::new(), said.start);
    for piece in pieces.into_iter().filter(|p| !p.is_empty()) {
        if let Some(found) = text[at..said.end].find(piece) {
            out.push(at..at + found);
            at += found + piece.len();
        }
    }
    out.push(at..said.end);
    out.retain(|r| !text[r.clone()].trim().is_empty());
    out
}
