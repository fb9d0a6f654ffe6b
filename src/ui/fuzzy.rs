//! Fuzzy match: the query's letters in order, better when together and at the start of words.

/// A score, higher is better; `None` if `text` lacks a letter. An empty query fits everything.
#[must_use]
pub fn score(query: &str, text: &str) -> Option<i32> {
    let text: Vec<char> = text.to_lowercase().chars().collect();
    let (mut score, mut at, mut last) = (0, 0, None);
    for wanted in query.to_lowercase().chars().filter(|c| !c.is_whitespace()) {
        let found = at + text[at..].iter().position(|c| *c == wanted)?;
        let word_start = found == 0 || !text[found - 1].is_alphanumeric();
        score += 1 + if word_start { 8 } else { 0 } + if last == found.checked_sub(1) && found > 0 { 5 } else { 0 };
        last = Some(found);
        at = found + 1;
    }
    // Of two texts that match alike, the shorter says less else.
    Some(score * 100 - text.len() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_in_order_match_and_word_starts_win() {
        assert!(score("qt", "quit; asks while training").is_some());
        assert_eq!(score("zz", "quit"), None);
        assert!(score("sav", "save a checkpoint") > score("sav", "the stage at five"));
        assert!(score("", "anything").is_some());
    }
}
