//! Text from outside, made fit to show: the one place that decides which characters reach a terminal, a report or a
//! message.
//!
//! Names, values and messages come from files, hubs, models and command lines. A control character would move the
//! cursor or recolour the screen; a direction-changing or invisible one would make a name read as another. Such
//! characters are shown as escapes, `\u{1b}`, which are plain text themselves: cleaning twice changes nothing.

use std::borrow::Cow;

/// Longest text [`clean`] returns, in characters.
const SHOWN_CHARS: usize = 160;

/// Whether `c` would act on the terminal, or change how its neighbours read, instead of being seen.
///
/// Joiners (U+200C, U+200D) are not: scripts and emoji are written with them, and they reorder nothing.
#[must_use]
pub fn hostile(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` on one line, whole: line ends and tabs become spaces, other [`hostile`] characters escapes.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    shown(text, |c| matches!(c, '\n' | '\t').then_some(' '))
}

/// A name or value for a message: [`one_line`], cut after 160 characters.
#[must_use]
pub fn clean(text: &str) -> String {
    // No more than what can be shown is looked at: the text may be megabytes long.
    let end = text.char_indices().nth(SHOWN_CHARS).map_or(text.len(), |(at, _)| at);
    let mut out = one_line(&text[..end]).into_owned();
    if end < text.len() {
        out.push('…');
    }
    out
}

/// Text of many lines: line ends and tabs stay, other [`hostile`] characters become escapes.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    shown(text, |c| matches!(c, '\n' | '\t').then_some(c))
}

/// JSON text in which the [`hostile`] characters of its strings are JSON escapes: it parses to the same value.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| hostile(c) && c != '\n') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hostile(c) && c != '\n' {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// `text` on one line, whole, with its line ends and tabs to be seen: all [`hostile`] characters become escapes.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    shown(text, |_| None)
}

/// `text` with every [`hostile`] character escaped, unless `kept` gives what stands for it.
fn shown(text: &str, kept: impl Fn(char) -> Option<char>) -> Cow<'_, str> {
    if !text.chars().any(hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match kept(c) {
            Some(c) => out.push(c),
            None if hostile(c) => out.extend(c.escape_default()),
            None => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every character that must not pass, by Unicode's own properties: Cc, the bidi controls, and what is invisible.
    fn all_hostile() -> impl Iterator<Item = char> {
        (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| hostile(*c))
    }

    #[test]
    fn case_fo_33_no_hostile_character_passes_any_of_the_ways_out() {
        assert!(all_hostile().count() > 200);
        for c in all_hostile() {
            let text = format!("a{c}b");
            for out in [one_line(&text).into_owned(), clean(&text), escaped(&text).into_owned()] {
                assert!(!out.chars().any(hostile), "{out:?}");
                assert_eq!(one_line(&out), out, "cleaning twice changes nothing");
            }
            assert!(!lines(&text).chars().any(|c| hostile(c) && !matches!(c, '\n' | '\t')), "{c:?}");
            let quoted = serde_json::to_string(&text).unwrap();
            let safe = json(&quoted);
            assert!(!safe.chars().any(hostile), "{safe:?}");
            assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text, "JSON keeps its meaning");
        }
    }

    #[test]
    fn what_people_write_passes_as_it_is() {
        for text in ["é模型", "👩‍🔬 🏳️‍🌈", "می‌خواهم", "עברית", "a\u{a0}b", "naïve – “x” …"]
        {
            assert!(matches!(one_line(text), Cow::Borrowed(_)), "{text}");
            assert_eq!(clean(text), text);
        }
        assert_eq!(one_line("a\u{1b}[31mb\u{202e}c\td\ne"), "a\\u{1b}[31mb\\u{202e}c d e");
        assert_eq!(lines("a\tb\nc\rd"), "a\tb\nc\\rd");
        assert_eq!(escaped("a\tb\nc\u{1b}é"), "a\\tb\\nc\\u{1b}é");
        assert_eq!(clean(&"é".repeat(500)).chars().count(), 161);
    }
}
