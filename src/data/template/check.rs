//! What is done to a template's source before it is compiled: `{% generation %}` becomes something minijinja can
//! parse, and names of filters and tests are listed so that an unknown one is found now and not in row 4,000.

/// Name of the filter that marks what stands between `{% generation %}` and `{% endgeneration %}`.
pub const MARK: &str = "__generation";

/// A filter or test by name, with the line it stands on (from 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// `filter` or `test`.
    pub kind: &'static str,
    /// As written.
    pub name: String,
    /// In the source.
    pub line: usize,
}

/// Turns each `{% generation %}` … `{% endgeneration %}` into a scope with a marking filter over it, on the same lines
/// and with the same whitespace control. True if there was one.
///
/// transformers wraps the body in a call block: what is set inside is not seen outside, hence the `with`.
#[must_use]
pub fn rewrite_generation(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let mut found = false;
    for piece in pieces(source) {
        let word = piece.tag_word();
        if word != Some("generation") && word != Some("endgeneration") {
            out.push_str(piece.text);
            continue;
        }
        found = true;
        let close = piece.close();
        let open = &piece.text[..if piece.text[2..].starts_with(['-', '+']) { 3 } else { 2 }];
        if word == Some("generation") {
            out.push_str(&format!("{open} with %}}{{% filter {MARK} {close}"));
        } else {
            out.push_str(&format!("{open} endfilter %}}{{% endwith {close}"));
        }
        out.extend(piece.text.chars().filter(|c| *c == '\n'));
    }
    (out, found)
}

/// The filters and tests that `source` names, each once.
#[must_use]
pub fn uses(source: &str) -> Vec<Use> {
    let mut found: Vec<Use> = Vec::new();
    for piece in pieces(source) {
        if piece.kind == Kind::Text {
            continue;
        }
        let tokens = words(piece.text, piece.line);
        for (i, (word, _)) in tokens.iter().enumerate() {
            let (kind, at) = match *word {
                "|" => ("filter", i + 1),
                "is" if tokens.get(i + 1).is_some_and(|t| t.0 == "not") => ("test", i + 2),
                "is" => ("test", i + 1),
                "filter" if i == 0 && piece.kind == Kind::Block => ("filter", 1),
                _ => continue,
            };
            let Some((name, line)) = tokens.get(at) else {
                continue;
            };
            let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
            if is_name && !found.iter().any(|u| u.kind == kind && u.name == *name) {
                found.push(Use { kind, name: (*name).to_string(), line: *line });
            }
        }
    }
    found
}

/// The line of the first tag with more than `limit` words and signs.
#[must_use]
pub fn longest_tag(source: &str, limit: usize) -> Option<usize> {
    let count = |tag: &str| {
        let (mut n, mut in_word, mut quote, mut escaped) = (0, false, None, false);
        for c in tag.chars() {
            match quote {
                Some(_) if escaped => escaped = false,
                Some(_) if c == '\\' => escaped = true,
                Some(q) if c == q => quote = None,
                Some(_) => {}
                None => {
                    let word = c.is_alphanumeric() || c == '_';
                    n += usize::from(!(c.is_whitespace() || word && in_word));
                    in_word = word;
                    quote = (c == '"' || c == '\'').then_some(c);
                }
            }
        }
        n
    };
    pieces(source).iter().find(|p| p.kind != Kind::Text && count(p.text) > limit).map(|p| p.line)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Block,
    Variable,
}

struct Piece<'s> {
    kind: Kind,
    text: &'s str,
    line: usize,
}

impl<'s> Piece<'s> {
    /// First word of a block tag.
    fn tag_word(&self) -> Option<&'s str> {
        (self.kind == Kind::Block)
            .then(|| self.text[2..].trim_start_matches(['-', '+']).trim_start())
            .and_then(|rest| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next())
    }
    fn close(&self) -> &'s str {
        &self.text[self.text.len() - if self.text.ends_with("-%}") || self.text.ends_with("+%}") { 3 } else { 2 }..]
    }
}

/// Cuts a template into text, tags and comments (comments and raw blocks count as text). Strings inside tags may hold
/// any delimiter. An unclosed tag runs to the end; the compiler will complain about it.
fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let (mut at, mut line, mut raw) = (0, 1, false);
    while at < source.len() {
        let rest = &source[at..];
        let (kind, len) = if rest.starts_with("{%") {
            (Kind::Block, tag_len(rest, "%}"))
        } else if rest.starts_with("{{") && !raw {
            (Kind::Variable, tag_len(rest, "}}"))
        } else if rest.starts_with("{#") && !raw {
            (Kind::Text, rest.find("#}").map_or(rest.len(), |i| i + 2))
        } else {
            (Kind::Text, rest.char_indices().skip(1).find(|c| c.1 == '{').map_or(rest.len(), |c| c.0))
        };
        let mut piece = Piece { kind, text: &rest[..len], line };
        match piece.tag_word() {
            Some("raw") if !raw => raw = true,
            Some("endraw") => raw = false,
            _ if raw => piece.kind = Kind::Text,
            _ => {}
        }
        line += piece.text.matches('\n').count();
        at += len;
        out.push(piece);
    }
    out
}

/// Length of the tag at the start of `text`, its closing delimiter included.
fn tag_len(text: &str, close: &str) -> usize {
    let mut quote = None;
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if text[i..].starts_with(close) => return i + close.len(),
            None => {}
        }
    }
    text.len()
}

/// Words and single marks of a tag, strings left out, with the line each stands on.
fn words(tag: &str, mut line: usize) -> Vec<(&str, usize)> {
    let mut out = Vec::new();
    let mut rest = tag;
    while let Some(c) = rest.chars().next() {
        let len = if c == '"' || c == '\'' {
            // A string: only its length matters. `tag_len` with a delimiter that can't occur finds its end.
            let body = &rest[1..];
            let mut escaped = false;
            body.find(|x: char| {
                let ends = x == c && !escaped;
                escaped = x == '\\' && !escaped;
                ends
            })
            .map_or(rest.len(), |i| i + 2)
        } else if c.is_alphanumeric() || c == '_' {
            rest.find(|x: char| !(x.is_alphanumeric() || x == '_')).unwrap_or(rest.len())
        } else {
            c.len_utf8()
        };
        let word = &rest[..len];
        let skipped = c == '"' || c == '\'' || c.is_whitespace() || matches!(c, '{' | '}' | '%' | '-' | '+');
        if !skipped {
            out.push((word, line));
        } else if c == '"' || c == '\'' {
            out.push(("", line)); // keeps `is "x"` from reading the word after the string
        }
        line += word.matches('\n').count();
        rest = &rest[len..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_keep_their_lines_and_dashes() {
        let (out, found) =
            rewrite_generation("a\n{%- generation -%}\nx{% endgeneration %}b{% raw %}{% generation %}{% endraw %}");
        assert!(found);
        assert_eq!(
            out,
            "a\n{%- with %}{% filter __generation -%}\nx{% endfilter %}{% endwith %}b{% raw %}{% generation %}{% endraw %}"
        );
        let same = "{{ '{% generation %}' }}{# {% generation %} #}{% set generation = 1 %}";
        assert_eq!(rewrite_generation(same), (same.to_string(), false));
    }

    #[test]
    fn filters_and_tests_are_listed_with_lines() {
        let source = "{# x | nope #}{{ a | tojson }}\n{% if b is not defined and 'c | no' is string %}\n| text{% filter upper %}{% endfilter %}";
        let names: Vec<_> = uses(source).into_iter().map(|u| (u.kind, u.name, u.line)).collect();
        let want = [("filter", "tojson", 1), ("test", "defined", 2), ("test", "string", 2), ("filter", "upper", 3)];
        assert_eq!(names, want.map(|(k, n, l)| (k, n.to_string(), l)));
    }

    #[test]
    fn hostile_templates_end() {
        for source in ["{", "{%", "{{ '", "{% \"\\", "{#", "é{é", "{% raw %}{% x", "{{ a |", "{% if x is"] {
            let _ = (rewrite_generation(source), uses(source));
        }
    }
}
