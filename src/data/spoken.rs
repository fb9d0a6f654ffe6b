//! Text of tokens as they come: only what no later token changes is handed out.
//!
//! A decoder looks at all tokens: an unfinished character shows as U+FFFD until its last byte comes, and a run of byte
//! tokens (`<0x0A>`, Llama 2's kind) that turns out not to be UTF-8 becomes U+FFFD from its first byte on. So the text
//! of a run of bytes waits for the token behind it, U+FFFD at the end waits, and so does what may become a stop text.

use super::tokenizer::Tokenizer;
use crate::error::Result;

/// A growing list of tokens whose text is handed out in pieces.
#[derive(Debug)]
pub struct Spoken<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a [String],
    ids: Vec<u32>,
    shown: String,
    stopped: bool,
}

impl<'a> Spoken<'a> {
    /// Nothing yet. The text ends before the first of the non-empty `stops`.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, stops: &'a [String]) -> Spoken<'a> {
        Spoken { tokenizer, stops, ids: Vec::new(), shown: String::new(), stopped: false }
    }

    /// Takes the next token; the piece of text that is sure now, often empty.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        if self.tokenizer.is_byte(id) {
            return Ok(String::new());
        }
        let text = self.text()?;
        let whole = text.trim_end_matches('\u{FFFD}');
        let end = if self.stopped { whole.len() } else { whole.len() - self.begun(whole) };
        Ok(self.piece(&whole[..end]))
    }

    /// The rest of the text.
    ///
    /// # Errors
    /// As [`Spoken::push`].
    pub fn finish(&mut self) -> Result<String> {
        let text = self.text()?;
        Ok(self.piece(&text))
    }

    /// Whether a stop text has come.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The text of all tokens, up to the first stop text.
    fn text(&mut self) -> Result<String> {
        let mut text = self.tokenizer.decode(&self.ids, true)?;
        if let Some(at) = self.stops.iter().filter_map(|stop| text.find(stop.as_str())).min() {
            text.truncate(at);
            self.stopped = true;
        }
        Ok(text)
    }

    /// Bytes at the end of `text` that may be the beginning of a stop text.
    fn begun(&self, text: &str) -> usize {
        let begins = |stop: &String| {
            let parts = stop.char_indices().map(|(at, _)| at).rev();
            parts.into_iter().find(|&at| text.ends_with(&stop[..at])).unwrap_or(0)
        };
        self.stops.iter().map(begins).max().unwrap_or(0)
    }

    /// What `text` has behind what was shown. Where a decoder changed what was shown, that is behind what still holds.
    fn piece(&mut self, text: &str) -> String {
        let same = self.shown.chars().zip(text.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
        if same == text.len() {
            return String::new();
        }
        self.shown = text.into();
        text[same..].into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Fixture;
    use super::*;
    use crate::checkpoint::SpecialIds;
    use proptest::prelude::*;
    use serde_json::json;

    /// A tokenizer of Llama 2's kind: 0 is unknown, 1 to 256 are the bytes, then three words.
    fn byte_fallback() -> Tokenizer {
        let mut vocab = serde_json::Map::new();
        vocab.insert("<unk>".into(), 0.into());
        vocab.extend((0..256).map(|b| (format!("<0x{b:02X}>"), (b + 1).into())));
        vocab.extend([("▁ok", 257), ("a", 258), ("é", 259)].map(|(t, id)| (t.to_string(), id.into())));
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null,
            "decoder": { "type": "Sequence", "decoders": [
                { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" },
                { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 }] },
            "model": { "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": [] }
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
        Tokenizer::open(dir.path(), 260, &SpecialIds::default()).unwrap()
    }

    fn pieces(tokenizer: &Tokenizer, stops: &[String], ids: &[u32]) -> Vec<String> {
        let mut spoken = Spoken::new(tokenizer, stops);
        let mut out = Vec::new();
        for id in ids {
            out.push(spoken.push(*id).unwrap());
            if spoken.stopped() {
                break;
            }
        }
        out.push(spoken.finish().unwrap());
        out
    }

    #[test]
    fn case_fo_40_a_broken_run_of_bytes_waits_and_comes_out_as_decoded() {
        let tokenizer = byte_fallback();
        // `ok`, a line end, the first byte of an emoji, `a`: the line end is taken back with the broken run.
        let ids = [257, 0x0a + 1, 0xf0 + 1, 258];
        assert_eq!(pieces(&tokenizer, &[], &ids), ["ok", "", "", "\u{FFFD}\u{FFFD}a", ""]);
        assert_eq!(pieces(&tokenizer, &[], &ids[..3]).concat(), "ok\u{FFFD}\u{FFFD}");
        assert_eq!(pieces(&tokenizer, &[], &[257, 0x0a + 1, 258]), ["ok", "", "\na", ""]);
    }

    proptest! {
        #[test]
        fn case_fo_40_pieces_add_up_to_the_text_whatever_the_tokens(
            words in prop::collection::vec(prop_oneof![
                Just(257u32), Just(258), Just(259), Just(11), Just(0xf0 + 1), Just(0x9f + 1), Just(0xc3 + 1), 1..257u32
            ], 0..24),
            bytes in prop::collection::vec(prop_oneof![
                Just(0xf0u32), Just(0x9f), Just(0x98), Just(0x80), Just(0xc3), Just(0xa9), 32..127u32
            ], 0..24),
        ) {
            let tokenizer = byte_fallback();
            prop_assert_eq!(pieces(&tokenizer, &[], &words).concat(), tokenizer.decode(&words, true).unwrap());
            let model = Fixture::default().build();
            let level = Tokenizer::open(model.dir.path(), model.vocab, &model.special).unwrap();
            prop_assert_eq!(pieces(&level, &[], &bytes).concat(), level.decode(&bytes, true).unwrap());
        }
    }

    #[test]
    fn case_fo_42_the_text_ends_before_a_stop_text_and_no_part_of_it_shows() {
        let model = Fixture::default().build();
        let tokenizer = Tokenizer::open(model.dir.path(), model.vocab, &model.special).unwrap();
        let ids: Vec<u32> = "one\n\nEnd two".bytes().map(u32::from).collect();
        let stops = ["\nEnd".to_string(), "never".to_string()];
        let got = pieces(&tokenizer, &stops, &ids);
        assert_eq!(got.concat(), "one\n");
        assert_eq!(got.len(), "one\n\nEnd".len() + 1, "nothing is taken behind it");
        // What only began like a stop text comes out.
        assert_eq!(pieces(&tokenizer, &stops, &ids[..6]).concat(), "one\n\nE");
    }
}
