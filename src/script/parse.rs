//! The grammar of scripts.
//!
//! ```text
//! size WxH                  key K…                    type STR
//! open models|data|plan|run|runs|try                  set KEY VALUE
//! run                       wait finished|paused DURATION
//! wait "step N" DURATION    wait screen STR DURATION
//! expect PATH OP VALUE [in lora|full]                 expect screen STR
//! snapshot NAME             export KIND               stop                quit
//! ```

use crate::ui::Screen;
use crate::ui::keys;
use ratatui::crossterm::event::KeyEvent;
use serde_json::Value;
use std::time::Duration;

/// A command and the line it stands on.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Counts from 1.
    pub number: usize,
    /// What the line says, for progress.
    pub text: String,
    /// The command.
    pub command: Command,
}

/// One command.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// `size 80x24`
    Size(u16, u16),
    /// `key j <ret>`
    Key(Vec<KeyEvent>),
    /// `type "some text"`
    Type(String),
    /// `open plan`
    Open(Screen),
    /// `set lora.r 8`
    Set(String, String),
    /// `run`
    Run,
    /// `wait finished 90s`
    Wait(Wait, Duration),
    /// `expect steps >= 20`
    Expect {
        /// Path in the report or the plan.
        path: String,
        /// Comparison.
        op: Op,
        /// What it is compared with.
        value: Operand,
        /// Where the path starts.
        scope: Scope,
    },
    /// `expect screen "LORA_DISK"`
    ExpectScreen(String),
    /// `snapshot plan`
    Snapshot(String),
    /// `export peft`
    Export(String),
    /// `stop`
    Stop,
    /// `quit`
    Quit,
}

/// What a `wait` waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The run has ended and its report is written.
    Finished,
    /// The trainer is waiting for `Resume`.
    Paused,
    /// That many steps are complete.
    Step(u64),
    /// The screen shows the text.
    Screen(String),
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the operator of its name")]
pub enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Contains,
}

/// The right side of an expectation.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A number, a quoted string, `true`, `false` or `null`.
    Value(Value),
    /// A bare word: another path if there is one, else itself as a string.
    Word(String),
}

/// Where an expectation's path starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The report if it has the path, else the plan.
    Any,
    /// `modes.lora` of the plan.
    Lora,
    /// `modes.full` of the plan.
    Full,
}

/// A word of a line, and whether it was quoted.
#[derive(Clone, Debug, PartialEq)]
struct Word {
    text: String,
    quoted: bool,
}

/// Reads a whole script before anything runs. The byte order mark that some editors begin UTF-8 with says nothing.
///
/// # Errors
/// `(line, what)` of the first bad line.
pub fn parse(script: &str) -> Result<Vec<Line>, (usize, String)> {
    let mut lines = Vec::new();
    let script = script.strip_prefix('\u{feff}').unwrap_or(script);
    for (i, text) in script.lines().enumerate() {
        let number = i + 1;
        let words = words(text).map_err(|e| (number, e))?;
        if let Some((verb, rest)) = words.split_first() {
            let command = command(verb, rest).map_err(|e| (number, e))?;
            lines.push(Line { number, text: text.trim().to_owned(), command });
        }
    }
    Ok(lines)
}

const VERBS: &[&str] =
    &["size", "key", "type", "open", "set", "run", "wait", "expect", "snapshot", "export", "stop", "quit"];

fn command(verb: &Word, rest: &[Word]) -> Result<Command, String> {
    let texts: Vec<&str> = rest.iter().map(|w| w.text.as_str()).collect();
    match (verb.text.as_str(), texts.as_slice()) {
        ("size", [size]) => dimensions(size),
        ("key", keys) if !keys.is_empty() => {
            Ok(Command::Key(keys.iter().map(|k| keys::parse(k)).collect::<Result<_, _>>()?))
        }
        ("type", [text]) => Ok(Command::Type((*text).to_owned())),
        ("open", [name]) => Screen::named(name)
            .map(Command::Open)
            .ok_or_else(|| format!("no screen '{name}'; there are models, data, plan, run, runs, try")),
        ("set", [key, value]) => Ok(Command::Set((*key).to_owned(), (*value).to_owned())),
        ("run", []) => Ok(Command::Run),
        ("stop", []) => Ok(Command::Stop),
        ("quit", []) => Ok(Command::Quit),
        ("wait", rest) => wait(rest),
        ("expect", ["screen", text]) => Ok(Command::ExpectScreen((*text).to_owned())),
        ("expect", [path, op, _, ..]) => expectation(path, op, &rest[2], &texts[3..]),
        ("snapshot", [name]) => snapshot(name),
        ("export", [kind]) => Ok(Command::Export((*kind).to_owned())),
        (known, _) if VERBS.contains(&known) => Err(format!("'{known}' is written: {}", usage(known))),
        (unknown, _) => Err(format!("unknown command '{unknown}'{}", nearest(unknown))),
    }
}

fn usage(verb: &str) -> &'static str {
    match verb {
        "size" => "size WxH, e.g. size 80x24",
        "key" => "key K…, e.g. key j <ret> <c-c>",
        "type" => "type \"TEXT\"",
        "open" => "open models|data|plan|run|runs|try",
        "set" => "set KEY VALUE, e.g. set lora.r 8",
        "wait" => "wait finished|paused|\"step N\"|screen \"TEXT\" DURATION, e.g. wait finished 90s",
        "expect" => "expect PATH OP VALUE [in lora|full], or expect screen \"TEXT\"",
        "snapshot" => "snapshot NAME",
        "export" => "export KIND, e.g. export peft",
        "run" => "run",
        "stop" => "stop",
        _ => "quit",
    }
}

fn nearest(unknown: &str) -> String {
    let best = VERBS.iter().min_by_key(|v| strsim::levenshtein(v, unknown));
    best.filter(|v| strsim::levenshtein(v, unknown) <= 2).map(|v| format!("; did you mean '{v}'?")).unwrap_or_default()
}

fn dimensions(size: &str) -> Result<Command, String> {
    let wrong = || format!("'{size}' is not a size; write WxH, each 1 to 500");
    let (w, h) = size.split_once('x').ok_or_else(wrong)?;
    let read = |t: &str| t.parse::<u16>().ok().filter(|n| (1..=500).contains(n)).ok_or_else(wrong);
    Ok(Command::Size(read(w)?, read(h)?))
}

fn wait(words: &[&str]) -> Result<Command, String> {
    let wrong = || format!("'wait' is written: {}", usage("wait"));
    let (last, what) = words.split_last().ok_or_else(wrong)?;
    let steps = |n: &str| n.trim().parse().map(Wait::Step).map_err(|_| format!("'{n}' is not a step number"));
    let what = match what {
        ["finished"] => Wait::Finished,
        ["paused"] => Wait::Paused,
        ["screen", text] => Wait::Screen((*text).to_owned()),
        ["step", n] => steps(n)?,
        [one] if one.starts_with("step ") => steps(&one["step ".len()..])?,
        _ => return Err(wrong()),
    };
    Ok(Command::Wait(what, duration(last)?))
}

/// `250ms`, `90s`, `5m`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration; write 250ms, 90s, 5m or 1h");
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (digits, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let n: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(n * scale).map_err(|_| wrong())
}

fn expectation(path: &str, op: &str, value: &Word, rest: &[&str]) -> Result<Command, String> {
    let op = match op {
        "==" => Op::Eq,
        "!=" => Op::Ne,
        "<" => Op::Lt,
        "<=" => Op::Le,
        ">" => Op::Gt,
        ">=" => Op::Ge,
        "contains" => Op::Contains,
        other => {
            return Err(format!("'{other}' is no comparison; there are == != < <= > >= contains"));
        }
    };
    let scope = match rest {
        [] => Scope::Any,
        ["in", "lora"] => Scope::Lora,
        ["in", "full"] => Scope::Full,
        other => {
            return Err(format!("after the value stands 'in lora' or 'in full', not '{}'", other.join(" ")));
        }
    };
    Ok(Command::Expect { path: path.to_owned(), op, value: operand(value), scope })
}

fn operand(word: &Word) -> Operand {
    if word.quoted {
        return Operand::Value(Value::String(word.text.clone()));
    }
    match serde_json::from_str::<Value>(&word.text) {
        Ok(value @ (Value::Number(_) | Value::Bool(_) | Value::Null)) => Operand::Value(value),
        _ => Operand::Word(word.text.clone()),
    }
}

fn snapshot(name: &str) -> Result<Command, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!("'{name}' is no snapshot name; letters, digits, '-', '_' and '.'"));
    }
    Ok(Command::Snapshot(name.to_owned()))
}

/// Splits a line at spaces, keeps quoted strings whole (`\"` and `\\` inside), drops what follows a `#`.
fn words(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' => break,
            c if c.is_whitespace() => {}
            '"' => {
                let mut text = String::new();
                loop {
                    match chars.next() {
                        None => return Err("the quoted string has no end".into()),
                        Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some(c @ ('"' | '\\')) => text.push(c),
                            Some('n') => text.push('\n'),
                            other => {
                                let shown = other.map(String::from).unwrap_or_default();
                                return Err(format!("'\\{shown}' means nothing in a string; \\\" \\\\ \\n do"));
                            }
                        },
                        Some(c) => text.push(c),
                    }
                }
                words.push(Word { text, quoted: true });
            }
            first => {
                let mut text = String::from(first);
                while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                    text.push(c);
                }
                words.push(Word { text, quoted: false });
            }
        }
    }
    Ok(words)
}
