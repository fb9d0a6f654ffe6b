//! What a `tokenizer.json` may cost: it comes from anyone, and its normalizer, decoder and post-processor run without
//! any limit of the `tokenizers` crate's own.

use super::super::template::clean;
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// Most bytes that one byte of text may become by what the file itself says; real normalizers stay below 200.
const MAX_GROWTH: u64 = 1_000;
/// Growth of real tokenizers of decoders (Llama 2 writes three bytes for a blank, and four before a text); texts under
/// it need no limit of their own.
const ORDINARY: u64 = 16;
/// Most bytes that a text may become where growth isn't ordinary.
const MAX_TEXT: u64 = 64 << 20;
/// Most tokens that a post-processor may put around a text.
const MAX_AROUND: u64 = 1_024;
/// Longest mark of a word's part; real ones are `##` and `</w>`.
const MAX_MARK: usize = 256;

/// The parts of a `tokenizer.json` that are looked at before the crate is given it.
#[derive(Deserialize)]
pub struct Parts {
    /// Added tokens with the ids that they should have.
    #[serde(default)]
    pub added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    decoder: Json,
    #[serde(default)]
    model: Model,
    /// Keys that no tokenizer has.
    #[serde(flatten)]
    pub other: Map<String, Json>,
}

/// An added token of the file.
#[derive(Deserialize)]
pub struct Added {
    /// The id that it should have.
    pub id: u32,
    /// Its text.
    pub content: String,
}

#[derive(Default, Deserialize)]
struct Model {
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

impl Parts {
    /// The most bytes that one byte of a text becomes in the normalizer.
    ///
    /// # Errors
    /// What in the file could make a text too large.
    pub fn growth(&self) -> Result<u64, String> {
        let growth = growth(&self.normalizer);
        for (name, growth) in [("normalizer", growth), ("decoder", self::growth(&self.decoder))] {
            if growth > MAX_GROWTH {
                return Err(format!("its {name} may make {growth} bytes of one, and {MAX_GROWTH} are the most"));
            }
        }
        let around = around(&self.post_processor);
        if around > MAX_AROUND {
            return Err(format!(
                "its post-processor puts {around} tokens around a text, and {MAX_AROUND} are the most"
            ));
        }
        for mark in [&self.model.continuing_subword_prefix, &self.model.end_of_word_suffix].into_iter().flatten() {
            if mark.len() > MAX_MARK {
                return Err(format!("it marks parts of words by '{}', {} bytes long", clean(mark), mark.len()));
            }
        }
        fits(self.added_tokens.iter().map(|a| a.content.len()).sum(), growth)
            .map_err(|bytes| format!("its normalizer may make {bytes} bytes of the added tokens"))?;
        Ok(growth)
    }
}

/// Whether a text of `len` bytes may be normalized; otherwise what it could become.
///
/// # Errors
/// That number of bytes.
pub fn fits(len: usize, growth: u64) -> Result<(), u64> {
    let bytes = (len as u64).saturating_mul(growth);
    if growth > ORDINARY && bytes > MAX_TEXT { Err(bytes) } else { Ok(()) }
}

/// Growth by a normalizer or decoder. Unicode's own forms grow a text by a bounded amount that no file decides.
fn growth(step: &Json) -> u64 {
    let text = |key: &str| step.get(key).and_then(Json::as_str).map_or(0, str::len) as u64;
    match step.get("type").and_then(Json::as_str) {
        Some("Sequence") => {
            let steps = step.get("normalizers").or_else(|| step.get("decoders")).and_then(Json::as_array);
            steps.into_iter().flatten().map(growth).fold(1, u64::saturating_mul)
        }
        Some("Replace") => match step.pointer("/pattern/String").and_then(Json::as_str) {
            Some(pattern) if !pattern.is_empty() => text("content").div_ceil(pattern.len() as u64).max(1),
            // A pattern may match one character, or none.
            _ => text("content") + 1,
        },
        Some("Prepend") => text("prepend") + 1,
        Some("Precompiled") => {
            let map = step.get("precompiled_charsmap").and_then(Json::as_str).map(longest_replacement);
            map.unwrap_or(1)
        }
        _ => 1,
    }
}

/// Longest replacement in a precompiled map of SentencePiece: base64 of the trie's length (four bytes, the lowest
/// first), the trie, and replacements that end in NUL.
fn longest_replacement(map: &str) -> u64 {
    let bytes = from_base64(map);
    let Some((size, rest)) = bytes.split_first_chunk::<4>() else { return 1 };
    let texts = rest.get(u32::from_le_bytes(*size) as usize..).unwrap_or(rest);
    texts.split(|b| *b == 0).map(|t| t.len() as u64).max().unwrap_or(0).max(1)
}

/// The bytes of base64 text; what isn't base64 is passed over, since only lengths are asked for here.
fn from_base64(text: &str) -> Vec<u8> {
    let (mut out, mut held, mut bits) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    for b in text.bytes() {
        let six = match b {
            b'A'..=b'Z' => b - b'A',
            b'a'..=b'z' => b - b'a' + 26,
            b'0'..=b'9' => b - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        held = held << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits & 0xFF) as u8);
        }
    }
    out
}

/// Tokens that a post-processor puts around one text.
fn around(step: &Json) -> u64 {
    match step.get("type").and_then(Json::as_str) {
        Some("Sequence") => {
            let steps = step.get("processors").and_then(Json::as_array);
            steps.into_iter().flatten().map(around).fold(0, u64::saturating_add)
        }
        Some("TemplateProcessing") => {
            let special = |piece: &Json| piece.pointer("/SpecialToken/id").and_then(Json::as_str).map(String::from);
            let ids = |id: &str| {
                let token = step.get("special_tokens").and_then(|t| t.get(id));
                token.and_then(|t| t.get("ids")).and_then(Json::as_array).map_or(0, |ids| ids.len() as u64)
            };
            let pieces = step.get("single").and_then(Json::as_array).into_iter().flatten();
            pieces.filter_map(special).map(|id| ids(&id)).fold(0, u64::saturating_add)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn checked(file: &Json) -> Result<u64, String> {
        serde_json::from_value::<Parts>(file.clone()).unwrap().growth()
    }

    #[test]
    fn real_normalizers_grow_a_text_little() {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let llama = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]});
        for (normalizer, want) in [(Json::Null, 1), (json!({"type": "NFC"}), 1), (replace.clone(), 3), (llama, 12)] {
            assert_eq!(checked(&json!({ "normalizer": normalizer })), Ok(want));
        }
        assert!(fits(1 << 40, 12).is_ok() && fits(1 << 20, 132).is_err() && fits(1 << 10, 132).is_ok());
    }

    #[test]
    fn a_precompiled_map_grows_by_its_longest_replacement() {
        // Length 4, four bytes of trie, then "abc", NUL, "abcdefg", NUL.
        let map = json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYmMAYWJjZGVmZwA="});
        assert_eq!(checked(&json!({ "normalizer": map })), Ok(7));
    }
}
