//! Chat templates: Jinja as transformers runs it (trim_blocks, lstrip_blocks, loop controls, Python's methods and
//! `json.dumps`), with limits, a date that stands still, and `{% generation %}` turned into byte ranges.
//!
//! Known differences from Jinja2 are listed with their reasons in this module's reference test; most are refused by name and
//! line (`%` on strings, `varargs`, `wordcount`), none changes text silently but a dict's methods read as its values.

mod check;
mod date;
mod format;
mod held;
mod methods;
mod python;
mod room;

pub use date::Date;
pub use python::dumps;

pub(super) use crate::text::clean;

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};
use room::Room;
use serde_json::Value as Json;
use std::ops::Range;

/// Instructions one rendering may take beside one per byte of its messages: a thousand turns need some 200,000. What it
/// builds costs fuel too, 64 bytes each.
const FUEL: u64 = 1_000_000;
/// Most fuel.
const MAX_FUEL: u64 = 20_000_000;
/// Nested calls of macros and includes.
const RECURSION: usize = 100;
/// Largest template taken, in bytes; the longest in use have some 20 kB.
pub const MAX_TEMPLATE: u64 = 512 << 10;
/// Most words and signs in one tag: the parser goes down one level for each of some of them.
const MAX_TAG: usize = 8_000;
/// Code points that no text has (Unicode noncharacters): pairs of them mark places in a rendered text.
const NONCHARACTERS: Range<u32> = 0xFDD0..0xFDF0;
const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    room: Room,
    specials: Vec<(String, String)>,
    origin: String,
    source: String,
    has_generation: bool,
    as_parts: &'static [&'static str],
}

/// What one rendering is given.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Messages, each an object with `role` and what the data holds.
    pub messages: &'a [Json],
    /// Tool schemas; `None` is Jinja's `none`.
    pub tools: Option<&'a [Json]>,
    /// Ends with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// More variables, from the row's `chat_template_kwargs`.
    pub kwargs: Option<&'a serde_json::Map<String, Json>>,
}

/// A rendered text with the ranges that stood between `{% generation %}` and `{% endgeneration %}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The text.
    pub text: String,
    /// Byte ranges into it, ascending.
    pub generated: Vec<Range<usize>>,
}

/// Why a text couldn't be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The template called `raise_exception`.
    Raised(String),
    /// Anything else; with line number.
    Failed(String),
}

impl Refusal {
    /// What was raised or failed at.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Refusal::Raised(why) | Refusal::Failed(why) => why,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Raised(why) => write!(f, "the chat template refuses it: {why}"),
            Refusal::Failed(why) => write!(f, "the chat template fails: {why}"),
        }
    }
}

impl ChatTemplate {
    /// Compiles `source`, which came from `origin` (a file name, for messages). `specials` are variables such as
    /// `bos_token`; `date` is what `strftime_now` sees.
    ///
    /// # Errors
    /// Syntax, unknown filters and unknown tests, each with its line.
    pub fn compile(source: &str, origin: &str, specials: Vec<(String, String)>, date: Date) -> Result<ChatTemplate> {
        let fail = |line: Option<usize>, what: &str| {
            let line = line.map_or_else(String::new, |l| format!(" line {l}"));
            Error::data(format!("chat template ({}){line}: {}", clean(origin), clean(what)))
                .next("name another template file in data.template")
        };
        let whole = source.to_string();
        // Jinja reads every kind of line end in a template as \n.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        if source.len() as u64 > MAX_TEMPLATE {
            return Err(fail(None, &format!("it is longer than {} kB", MAX_TEMPLATE >> 10)));
        }
        if let Some(line) = check::longest_tag(&source, MAX_TAG) {
            return Err(fail(Some(line), &format!("one tag holds more than {MAX_TAG} words and signs")));
        }
        let (source, has_generation) = check::rewrite_generation(&source);
        let room = Room::start(move || compiled(source, date))
            .map_err(|why| fail(None, &why))?
            .map_err(|(line, what)| fail(line, &what))?;
        Ok(ChatTemplate { room, specials, origin: origin.to_string(), source: whole, has_generation, as_parts: &[] })
    }

    /// Its source, as given.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Where the source came from.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether the template itself marks what the assistant says.
    #[must_use]
    pub fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// From now on contents of these roles are given as lists of one text part, for templates that read nothing else.
    pub fn give_parts(&mut self, roles: &'static [&'static str]) {
        self.as_parts = roles;
    }

    /// Roles whose contents are given as lists of parts.
    #[must_use]
    pub fn parts(&self) -> &'static [&'static str] {
        self.as_parts
    }

    /// The text of `context`.
    ///
    /// # Errors
    /// What the template raises or fails at.
    pub fn render(&self, context: Context<'_>) -> Result<String, Refusal> {
        self.run(context, None)
    }

    /// The text of `context` with the ranges the template marks as generated.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`]; also marks that can't be trusted: the template trims, cuts or measures marked text,
    /// so that the text with marks taken out isn't the text without them.
    pub fn render_marked(&self, context: Context<'_>) -> Result<Marked, Refusal> {
        let text = self.render(context)?;
        let [open, close] =
            unused_marks(&text).ok_or_else(|| Refusal::Failed("no free code point to mark with".into()))?;
        let marked = self.run(context, Some([open, close]))?;
        let mut plain = String::with_capacity(text.len());
        let (mut generated, mut from, mut depth) = (Vec::new(), 0, 0usize);
        for c in marked.chars() {
            if c == open {
                if depth == 0 {
                    from = plain.len();
                }
                depth += 1;
            } else if c == close {
                depth = depth.saturating_sub(1);
                if depth == 0 && plain.len() > from {
                    generated.push(from..plain.len());
                }
            } else {
                plain.push(c);
            }
        }
        if plain != text || depth != 0 {
            return Err(Refusal::Failed("its {% generation %} marks change the text".into()));
        }
        Ok(Marked { text, generated })
    }

    fn run(&self, context: Context<'_>, marks: Option<[char; 2]>) -> Result<String, Refusal> {
        let list = |items: &[Json]| Value::from(items.iter().map(python::from_json).collect::<Vec<_>>());
        let mut vars: Vec<(String, Value)> =
            self.specials.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect();
        vars.push(("messages".into(), context.messages.iter().map(|m| self.message(m)).collect()));
        vars.push(("tools".into(), context.tools.map_or_else(|| Value::from(()), list)));
        vars.push(("documents".into(), Value::from(())));
        vars.push(("add_generation_prompt".into(), Value::from(context.add_generation_prompt)));
        vars.extend(context.kwargs.into_iter().flatten().map(|(k, v)| (k.clone(), python::from_json(v))));
        if let Some([open, close]) = marks {
            vars.push((check::MARK.into(), Value::from(format!("{open}{close}"))));
        }
        let bytes: u64 = context.messages.iter().chain(context.tools.into_iter().flatten()).map(size).sum();
        self.render_vars(move || Value::from_pairs(vars), (FUEL + bytes).min(MAX_FUEL))
    }

    /// A message as the template reads it.
    fn message(&self, message: &Json) -> Value {
        let role = message.get("role").and_then(Json::as_str).unwrap_or_default();
        match message.get("content") {
            Some(Json::String(text)) if self.as_parts.contains(&role) => {
                let mut message = message.clone();
                message["content"] = serde_json::json!([{"type": "text", "text": text}]);
                python::from_json(&message)
            }
            _ => python::from_json(message),
        }
    }

    fn render_vars(&self, vars: impl FnOnce() -> Value + Send + 'static, fuel: u64) -> Result<String, Refusal> {
        self.room
            .ask(move |env| {
                env.set_fuel(Some(fuel));
                env.get_template(NAME).and_then(|t| t.render(vars())).map_err(|e| refusal(&e))
            })
            .unwrap_or_else(|why| Err(Refusal::Failed(why)))
    }

    /// Renders with exactly these variables; for comparison with transformers.
    #[cfg(test)]
    pub fn render_with(&self, variables: &Json, marked: bool) -> Result<String, Refusal> {
        let mut vars = python::from_json(variables);
        if marked {
            let pairs =
                vars.try_iter().into_iter().flatten().map(|k| (k.clone(), vars.get_item(&k).unwrap_or_default()));
            let marks = (Value::from(check::MARK), Value::from("\u{FDD0}\u{FDD1}"));
            vars = Value::from_pairs(pairs.chain([marks]).collect::<Vec<_>>());
        }
        self.render_vars(move || vars, FUEL)
    }
}

/// The environment that holds `source`, its filters and tests looked up; the fault with its line.
fn compiled(source: String, date: Date) -> Result<Environment<'static>, (Option<usize>, String)> {
    let mut env = environment(date).map_err(|e| (None, describe(&e)))?;
    env.add_template_owned(NAME, source.clone()).map_err(|e| (e.line(), describe(&e)))?;
    let mut state = env.empty_state();
    for used in check::uses(&source) {
        let (result, unknown) = if used.kind == "filter" {
            (state.apply_filter(&used.name, &[]).err(), ErrorKind::UnknownFilter)
        } else {
            (state.perform_test(&used.name, &[]).err(), ErrorKind::UnknownTest)
        };
        if result.is_some_and(|e| e.kind() == unknown) {
            return Err((Some(used.line), format!("no {} is named '{}'", used.kind, used.name)));
        }
    }
    drop(state);
    Ok(env)
}

/// Bytes of text in `value`.
fn size(value: &Json) -> u64 {
    match value {
        Json::String(s) => s.len() as u64,
        Json::Array(items) => items.iter().map(size).sum(),
        Json::Object(map) => map.iter().map(|(k, v)| k.len() as u64 + size(v)).sum(),
        _ => 8,
    }
}

/// Two code points that `text` doesn't hold.
pub(super) fn unused_marks(text: &str) -> Option<[char; 2]> {
    let mut free = NONCHARACTERS.filter_map(char::from_u32).filter(|c| !text.contains(*c));
    Some([free.next()?, free.next()?])
}

fn environment(date: Date) -> Result<Environment<'static>, minijinja::Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(RECURSION);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(python::formatter);
    env.set_unknown_method_callback(methods::call);
    env.add_filter("tojson", python::tojson);
    env.add_filter("string", |state: &minijinja::State, value: &Value| python::str(state, value));
    env.add_filter("int", python::int);
    env.add_filter("float", python::to_float);
    let escape = |state: &minijinja::State, text: &Value| python::str(state, text).map(|t| python::escape(&t));
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    // Jinja's `attr` finds Python attributes only; what templates handle are dicts, which have none of interest.
    env.add_filter("attr", |_: &Value, _: &str| Value::UNDEFINED);
    env.add_test("sequence", python::is_sequence);
    env.add_test("iterable", python::is_iterable);
    env.add_filter("fromjson", |text: &str| from_text(text));
    env.add_filter(check::MARK, |state: &minijinja::State, body: &str| match state.lookup(check::MARK) {
        Some(marks) => {
            let mut marks = marks.as_str().unwrap_or_default().chars();
            marks.next().map(String::from).unwrap_or_default() + body + marks.as_str()
        }
        None => body.to_string(),
    });
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("cycler", |items: minijinja::value::Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    env.add_function("fromjson", |text: &str| from_text(text));
    env.add_function("raise_exception", |why: &str| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(why.into())))
    });
    env.add_function("strftime_now", move |format: &str| {
        date.strftime(format).map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e))
    });
    Ok(env)
}

fn from_text(text: &str) -> Result<Value, minijinja::Error> {
    serde_json::from_str::<Json>(text)
        .map(|v| python::from_json(&v))
        .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, format!("fromjson: {e}")))
}

/// The message of a template's own `raise_exception`, carried through minijinja's error.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn refusal(error: &minijinja::Error) -> Refusal {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(Raised(why)) = e.downcast_ref() {
            return Refusal::Raised(clean(why));
        }
        cause = e.source();
    }
    let line = error.line().map_or_else(String::new, |l| format!("line {l}: "));
    Refusal::Failed(line + &clean(&describe(error)))
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests;
