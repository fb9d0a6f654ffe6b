//! Python's ways with values, where minijinja's differ: `str()` and `repr()` in print position, `json.dumps`, and
//! values made from JSON. Chat templates were written against these, byte for byte.

use super::methods::{MAX_MADE, too_large};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde_json::Value as Json;
use std::fmt::Write;

/// Deepest nesting that is printed; JSON data can't be deeper than 128.
const MAX_DEPTH: usize = 200;

/// A template value with the contents of `json`; key order and number types stay.
#[must_use]
pub fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(i), ..) => Value::from(i),
            (_, Some(u), _) => Value::from(u),
            (.., f) => Value::from(f.unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

/// Prints a value as Python's `str()` does.
pub fn formatter(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        out.write_str(text).map_err(Error::from)
    } else {
        out.write_str(&str(state, value)?).map_err(Error::from)
    }
}

/// Python's `str()`: strings as they are, undefined as nothing, the rest as `repr()`.
///
/// Each value in it costs fuel: a list that holds itself twice, forty times over, is small until it is printed.
///
/// # Errors
/// Nested too deeply, too long, or no fuel left.
pub fn str(state: &State, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        _ => repr(state, value, 0, &mut out)?,
    }
    Ok(out)
}

/// MarkupSafe's escaping, which Jinja's `e` is.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Jinja's `int`: what can't be read is `default`, or 0.
#[must_use]
pub fn int(value: &Value, default: Option<Value>) -> Value {
    let read = match value.as_str() {
        Some(text) => text.trim().parse::<i64>().ok().or_else(|| text.trim().parse::<f64>().ok().map(|x| x as i64)),
        None if value.kind() == ValueKind::Bool => Some(i64::from(value.is_true())),
        None if value.is_integer() => return value.clone(),
        None => f64::try_from(value.clone()).ok().map(|x| x as i64),
    };
    read.map_or_else(|| default.unwrap_or_else(|| Value::from(0)), Value::from)
}

/// Jinja's `float`: what can't be read is `default`, or 0.0.
#[must_use]
pub fn to_float(value: &Value, default: Option<Value>) -> Value {
    let read = match value.as_str() {
        Some(text) => text.trim().parse::<f64>().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    read.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
}

/// Jinja's `sequence` test, for which a string, a dict and the undefined are sequences too.
#[must_use]
pub fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Map | ValueKind::Seq | ValueKind::Undefined)
        || value.is_tuple()
}

/// Jinja's `iterable` test; `none` isn't.
#[must_use]
pub fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

fn repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    state.consume_fuel(1)?;
    if out.len() > MAX_MADE {
        return Err(too_large());
    }
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply to print"));
    }
    match value.kind() {
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut n = 0;
            for item in value.try_iter()?.checked() {
                if n > 0 {
                    out.push_str(", ");
                }
                repr(state, &item?, depth + 1, out)?;
                n += 1;
            }
            out.push_str(match (tuple, n) {
                (true, 1) => ",)",
                (true, _) => ")",
                _ => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (n, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if n > 0 {
                    out.push_str(", ");
                }
                repr(state, &key, depth + 1, out)?;
                out.push_str(": ");
                repr(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if printable(c) => out.push(c),
            c => {
                let n = c as u32;
                let _ = match n {
                    0..=0xff => write!(out, "\\x{n:02x}"),
                    0x100..=0xffff => write!(out, "\\u{n:04x}"),
                    _ => write!(out, "\\U{n:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable`, without its table of unassigned code points.
fn printable(c: char) -> bool {
    !(c.is_control()
        || (c != ' ' && c.is_whitespace())
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{fdd0}'..='\u{fdef}' | '\u{f0000}'..))
}

/// Python's `repr(float)`: the shortest digits that read back, two digits of exponent at least.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let text = format!("{x:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
            format!("{digits}e{sign}{size:0>2}")
        }
    }
}

/// transformers' `tojson`: `json.dumps(value, ensure_ascii=False, indent, separators, sort_keys)`, no HTML escaping.
///
/// # Errors
/// A value that JSON can't hold, as Python's `TypeError`.
pub fn tojson(state: &State, value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let arg = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let named = kwargs.get::<Option<Value>>(name)?;
        Ok(named.or_else(|| positional.get(place).cloned()).filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ascii = arg(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = match arg(1, "indent")? {
        None => None,
        Some(v) if v.kind() == ValueKind::String => v.as_str().map(String::from),
        Some(v) => Some(" ".repeat(i64::try_from(v)?.clamp(0, 16) as usize)),
    };
    let (item, key) = match arg(2, "separators")? {
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
        Some(pair) => (str(state, &pair.get_item_by_index(0)?)?, str(state, &pair.get_item_by_index(1)?)?),
    };
    let sort = arg(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let spend = |n| state.consume_fuel(n);
    let mut json = Dumper { spend: &spend, ascii, indent, item, key, sort, out: String::new() };
    json.value(value, 0)?;
    Ok(Value::from(json.out))
}

/// The JSON text of `value` as Python's `json.dumps(value, ensure_ascii=False)` writes it.
#[must_use]
pub fn dumps(value: &Json) -> String {
    let mut json = Dumper {
        // What came from JSON is no longer than its text.
        spend: &|_| Ok(()),
        ascii: false,
        indent: None,
        item: ", ".into(),
        key: ": ".into(),
        sort: false,
        out: String::new(),
    };
    // A value that came from JSON has nothing in it that can't be written.
    let _ = json.value(&from_json(value), 0);
    json.out
}

struct Dumper<'s> {
    /// Pays for so many values.
    spend: &'s dyn Fn(u64) -> Result<(), Error>,
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
    out: String,
}

impl Dumper<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // What a list or map holds is paid before it is gathered.
        (self.spend)(1 + if value.as_str().is_some() { 0 } else { value.len().unwrap_or(0) as u64 })?;
        if self.out.len() > MAX_MADE {
            return Err(too_large());
        }
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply for JSON"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let text = self.number(value)?;
                self.out.push_str(&text);
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                self.group('[', ']', depth, items, |s, v| s.value(&v, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                if self.sort {
                    keys.sort();
                }
                self.group('{', '}', depth, keys, |s, k| {
                    let name = match k.kind() {
                        ValueKind::String => k.as_str().unwrap_or_default().to_string(),
                        ValueKind::None => "null".into(),
                        ValueKind::Bool => if k.is_true() { "true" } else { "false" }.into(),
                        ValueKind::Number => s.number(&k)?,
                        other => {
                            return Err(Error::new(
                                ErrorKind::InvalidOperation,
                                format!("{other} can't be a JSON key"),
                            ));
                        }
                    };
                    s.string(&name);
                    let colon = s.key.clone();
                    s.out.push_str(&colon);
                    s.value(&value.get_item(&k)?, depth + 1)
                })?;
            }
            other => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("{other} can't be written as JSON")));
            }
        }
        Ok(())
    }

    fn number(&self, value: &Value) -> Result<String, Error> {
        if value.is_integer() {
            return Ok(value.to_string());
        }
        let x = f64::try_from(value.clone())?;
        Ok(match x {
            x if x.is_nan() => "NaN".into(),
            f64::INFINITY => "Infinity".into(),
            f64::NEG_INFINITY => "-Infinity".into(),
            x => float(x),
        })
    }

    fn group(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: Vec<Value>,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        let empty = items.is_empty();
        for (n, item) in items.into_iter().enumerate() {
            if n > 0 {
                let separator = self.item.clone();
                self.out.push_str(&separator);
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_like_pythons() {
        for (x, want) in [
            (1.0, "1.0"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (-0.0, "-0.0"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(float(x), want);
        }
    }

    #[test]
    fn json_text_keeps_order_and_number_types() {
        let value = serde_json::json!({"b": 1, "a": 1.0, "é<": [null, true, "x\n"]});
        assert_eq!(dumps(&value), r#"{"b": 1, "a": 1.0, "é<": [null, true, "x\n"]}"#);
    }
}
