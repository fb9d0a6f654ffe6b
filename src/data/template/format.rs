//! Python's `str.format` over minijinja's: a width or precision that is itself a field (`{:>{}}`) is filled in first,
//! and those past a limit are refused, since the template may come from anyone.

use super::methods::{MAX_WIDTH, call_contrib};
use minijinja::value::{Kwargs, Rest, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// `text.format(*args)`.
///
/// # Errors
/// A field without its argument, a malformed field, a width or precision past the limit.
pub fn format(state: &mut State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let text = expand(text, args)?;
    call_contrib(state, &Value::from(text), "format", args)
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("format: {}", what.into()))
}

/// `text` with every field numbered and nothing nested in it.
fn expand(text: &str, args: &[Value]) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    let mut fields = Fields { next: 0, args };
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            out.push_str(&rest[..2]);
            rest = &rest[2..];
        } else if rest.starts_with('}') {
            return Err(invalid("a '}' closes nothing"));
        } else {
            let end = field_len(rest).ok_or_else(|| invalid("a '{' is not closed"))?;
            fields.write(&rest[1..end], &mut out)?;
            rest = &rest[end + 1..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Bytes before the brace that closes the field at the start of `text`.
fn field_len(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

struct Fields<'a> {
    /// Number of the next field that names no argument.
    next: usize,
    args: &'a [Value],
}

impl Fields<'_> {
    fn write(&mut self, field: &str, out: &mut String) -> Result<(), Error> {
        let (name, spec) = field.split_once(':').map_or((field, None), |(n, s)| (n, Some(s)));
        out.push('{');
        if !name.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            out.push_str(&self.next.to_string());
            self.next += 1;
        }
        out.push_str(name);
        if let Some(spec) = spec {
            let spec = self.filled(spec)?;
            // The fill, before the sign of the alignment, may be any character, a digit too.
            let sized = spec.char_indices().nth(1).filter(|c| "<>^".contains(c.1)).map_or(&*spec, |c| &spec[c.0..]);
            let mut numbers = sized.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
            if numbers.any(|n| n.parse::<i64>().map_or(true, |n| n > MAX_WIDTH)) {
                return Err(invalid(format!("a width or precision is larger than {MAX_WIDTH}")));
            }
            out.push(':');
            out.push_str(&spec);
        }
        out.push('}');
        Ok(())
    }

    /// `spec` with the fields inside it replaced by their arguments.
    fn filled(&mut self, spec: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = spec;
        while let Some((before, inner)) = rest.split_once('{') {
            let (name, after) = inner.split_once('}').ok_or_else(|| invalid("a '{' is not closed"))?;
            out.push_str(before);
            let value = self.argument(name)?;
            match (value.as_str(), value.as_i64()) {
                (Some(text), _) if !text.contains(['{', '}']) => out.push_str(text),
                (None, Some(n)) if n >= 0 => out.push_str(&n.to_string()),
                _ => return Err(invalid(format!("'{{{name}}}' in a field is neither a number nor plain text"))),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn argument(&mut self, name: &str) -> Result<Value, Error> {
        let (Rest(positional), named): (Rest<Value>, Kwargs) = from_args(self.args)?;
        let at = match name {
            "" => {
                self.next += 1;
                Ok(self.next - 1)
            }
            name => name.parse::<usize>(),
        };
        let found = match at {
            Ok(at) => positional.get(at).cloned(),
            Err(_) => named.get::<Option<Value>>(name)?,
        };
        found.ok_or_else(|| invalid(format!("no argument for '{{{name}}}'")))
    }
}
