//! Python methods on strings and dicts that templates call and minijinja-contrib lacks or does otherwise.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// The environment's callback for methods that minijinja itself doesn't know.
///
/// # Errors
/// Unknown methods, wrong arguments.
pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str())
        && let Some(result) = string_method(state, text, method, args)
    {
        return result;
    }
    if value.kind() == ValueKind::Map && method == "copy" {
        let () = from_args(args)?;
        return Ok(value.clone());
    }
    call_contrib(state, value, method, args)
}

/// Calls the method as minijinja-contrib has it.
///
/// # Errors
/// The method is unknown, or its arguments are wrong.
pub(super) fn call_contrib(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn string_method(state: &mut State, text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "format" => super::format::format(state, text, args),
        "replace" => return replaces_small(text, args).err().map(Err),
        "join" => return joins_small(state, text, args).err().map(Err),
        "title" => no_args(args).map(|()| Value::from(title(text))),
        "removeprefix" => one(args).map(|p| Value::from(text.strip_prefix(p).unwrap_or(text))),
        "removesuffix" => one(args).map(|p| Value::from(text.strip_suffix(p).unwrap_or(text))),
        "partition" => one(args).map(|p| match text.split_once(p) {
            Some((a, b)) => tuple([a, p, b]),
            None => tuple([text, "", ""]),
        }),
        "rpartition" => one(args).map(|p| match text.rsplit_once(p) {
            Some((a, b)) => tuple([a, p, b]),
            None => tuple(["", "", text]),
        }),
        "startswith" | "endswith" => affix(state, text, method, args),
        "rsplit" => rsplit(text, args),
        "index" => one(args).and_then(|p| match text.find(p) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "zfill" => width(args).map(|(w, _)| {
            let pad = "0".repeat(w.saturating_sub(text.chars().count()));
            match text.strip_prefix(['-', '+']) {
                Some(rest) => Value::from(format!("{}{pad}{rest}", &text[..1])),
                None => Value::from(format!("{pad}{text}")),
            }
        }),
        "ljust" => padded(text, args, |n| (0, n)),
        "rjust" => padded(text, args, |n| (n, 0)),
        // CPython puts the odd space left or right by the parity of the width.
        "center" => padded(text, args, |n| {
            let width = n + text.chars().count();
            let left = n / 2 + (n & width & 1);
            (left, n - left)
        }),
        "swapcase" => no_args(args).map(|()| {
            Value::from(text.chars().fold(String::new(), |mut out, c| {
                if c.is_uppercase() {
                    out.extend(c.to_lowercase())
                } else {
                    out.extend(c.to_uppercase())
                }
                out
            }))
        }),
        "isdecimal" => no_args(args).map(|()| Value::from(!text.is_empty() && text.chars().all(char::is_numeric))),
        _ => return None,
    })
}

/// Longest text that a method may make, in bytes: minijinja counts what a method has made, not what it will make.
pub(super) const MAX_MADE: usize = 16 << 20;
/// Widest padding.
pub(super) const MAX_WIDTH: i64 = 4096;

pub(super) fn too_large() -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("it makes a text of more than {} MB", MAX_MADE >> 20))
}

fn replaces_small(text: &str, args: &[Value]) -> Result<(), Error> {
    let [old, new, ..] = args else { return Ok(()) };
    let (Some(old), Some(new)) = (old.as_str(), new.as_str()) else { return Ok(()) };
    let count = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    if count.saturating_mul(new.len()).saturating_add(text.len()) > MAX_MADE { Err(too_large()) } else { Ok(()) }
}

fn joins_small(state: &State, text: &str, args: &[Value]) -> Result<(), Error> {
    let Some(items) = args.first() else { return Ok(()) };
    let mut made = 0usize;
    for item in items.try_iter()?.checked() {
        state.consume_fuel(1)?;
        made = made.saturating_add(text.len()).saturating_add(item?.as_str().map_or(0, str::len));
        if made > MAX_MADE {
            return Err(too_large());
        }
    }
    Ok(())
}

fn no_args(args: &[Value]) -> Result<(), Error> {
    from_args(args)
}

fn one(args: &[Value]) -> Result<&str, Error> {
    let (text,): (&str,) = from_args(args)?;
    Ok(text)
}

fn tuple(parts: [&str; 3]) -> Value {
    Value::from(minijinja::value::Tuple::from(parts.map(Value::from)))
}

/// Python's `str.title`: a letter after anything that isn't one is upper case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
    }
    out
}

/// `startswith` and `endswith`: one affix or a tuple of them, optionally within `[start, end)` in characters.
fn affix(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (affixes, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let length = text.chars().count() as i64;
    let place = |at: i64| {
        let at = if at < 0 { (at + length).max(0) } else { at.min(length) };
        text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte)
    };
    let (from, to) = (place(start.unwrap_or(0)), place(end.unwrap_or(length)));
    let part = text.get(from..to).unwrap_or("");
    let holds = |affix: &Value| match affix.as_str() {
        Some(a) if method == "startswith" => Ok(part.starts_with(a)),
        Some(a) => Ok(part.ends_with(a)),
        None => Err(Error::new(ErrorKind::InvalidOperation, format!("{method} takes text, not {}", affix.kind()))),
    };
    if affixes.kind() == ValueKind::String {
        return holds(affixes).map(Value::from);
    }
    for affix in affixes.try_iter()?.checked() {
        state.consume_fuel(1)?;
        if holds(&affix?)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (sep, max): (Option<&str>, Option<i64>) = from_args(args)?;
    let Some(sep) = sep else {
        return Err(Error::new(ErrorKind::InvalidOperation, "rsplit needs a separator here"));
    };
    let mut parts: Vec<Value> = match max {
        Some(n) if n >= 0 => text.rsplitn(n as usize + 1, sep).map(Value::from).collect(),
        _ => text.rsplit(sep).map(Value::from).collect(),
    };
    parts.reverse();
    Ok(Value::from(parts))
}

/// Width and fill of a padding method; a width past the limit is refused, since the template may come from anyone.
fn width(args: &[Value]) -> Result<(usize, char), Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    if width > MAX_WIDTH {
        let what = format!("a text can't be padded to {width} characters here, only to {MAX_WIDTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok((width.max(0) as usize, fill.and_then(|f| f.chars().next()).unwrap_or(' ')))
}

fn padded(text: &str, args: &[Value], split: impl Fn(usize) -> (usize, usize)) -> Result<Value, Error> {
    let (width, fill) = width(args)?;
    let (left, right) = split(width.saturating_sub(text.chars().count()));
    let pad = |n: usize| fill.to_string().repeat(n);
    Ok(Value::from(format!("{}{text}{}", pad(left), pad(right))))
}
