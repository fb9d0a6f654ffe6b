//! Control tokens that a row's own text spells out (`<|im_end|>`): kept apart from the ones that the template writes, so
//! that they are read as letters and forge no turn. Only tokens that make turns count; `<think>` and the like are what a
//! model is to say.
//!
//! A code point that no text has is put into each of them before the template renders the row. What carries it
//! afterwards is the row's, what doesn't is the template's.

use super::mask::Masked;
use super::messages::Conversation;
use super::template::unused_marks;
use serde_json::Value as Json;
use std::ops::Range;

/// Why a row with control tokens in its text is left out.
pub(super) const MIXED: &str = "control tokens in its text can't be told from the chat template's own";

/// Where control tokens stand in a text.
pub(super) type Find<'a> = &'a dyn Fn(&str) -> Vec<Range<usize>>;

/// Control tokens in what `conversation` says and in its tools.
pub(super) fn count(conversation: &Conversation, find: Find<'_>) -> usize {
    let messages = conversation.turns.iter().map(|t| &t.message);
    messages.chain(conversation.tools.iter().flatten()).map(|value| count_in(value, find)).sum()
}

fn count_in(value: &Json, find: Find<'_>) -> usize {
    match value {
        Json::String(text) => find(text).len(),
        Json::Array(items) => items.iter().map(|v| count_in(v, find)).sum(),
        Json::Object(map) => map.values().map(|v| count_in(v, find)).sum(),
        _ => 0,
    }
}

/// Puts a mark into each control token of `conversation`; `None` if every code point for it is taken.
pub(super) fn mark(conversation: &mut Conversation, find: Find<'_>) -> Option<char> {
    let mut all = String::new();
    for turn in &conversation.turns {
        all += &turn.message.to_string();
    }
    conversation.tools.iter().flatten().for_each(|tool| all += &tool.to_string());
    let [mark, _] = unused_marks(&all)?;
    let messages = conversation.turns.iter_mut().map(|t| &mut t.message);
    messages.chain(conversation.tools.iter_mut().flatten()).for_each(|value| mark_in(value, find, mark));
    Some(mark)
}

fn mark_in(value: &mut Json, find: Find<'_>, mark: char) {
    match value {
        Json::String(text) => {
            for at in find(text).into_iter().rev() {
                let behind = text[at.start..].chars().next().map_or(0, char::len_utf8);
                text.insert(at.start + behind, mark);
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|v| mark_in(v, find, mark)),
        Json::Object(map) => map.values_mut().for_each(|v| mark_in(v, find, mark)),
        _ => {}
    }
}

/// Takes the marks out of `masked`, places adjusted; where the marked tokens lie in the text without them. `None` if one
/// isn't whole any more.
pub(super) fn unmark(masked: &mut Masked, find: Find<'_>, mark: char) -> Option<Vec<Range<usize>>> {
    let marks: Vec<usize> = masked.text.match_indices(mark).map(|(at, _)| at).collect();
    let without = |at: usize| at - mark.len_utf8() * marks.partition_point(|m| *m < at);
    for range in masked.spans.iter_mut().chain(&mut masked.inserted) {
        *range = without(range.start)..without(range.end);
    }
    masked.text = masked.text.replace(mark, "");
    let token = |at: &usize| {
        let begun = masked.text[..without(*at)].char_indices().next_back()?.0;
        let range = find(&masked.text[begun..]).into_iter().next().filter(|range| range.start == 0)?;
        Some(begun..begun + range.end)
    };
    marks.iter().map(token).collect()
}
