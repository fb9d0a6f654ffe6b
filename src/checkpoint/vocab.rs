//! How many ids a tokenizer has, read from `tokenizer.json` without building the tokenizer.

use super::files::{open_regular, read_small, shown};
use super::index::list;
use crate::error::{Error, Result};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::Path;

/// Largest `tokenizer.json` that is read.
const MAX_TOKENIZER: u64 = 512 << 20;
/// Files of the tokenizer that may be Git-LFS pointers in a broken clone.
const OTHERS: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

/// Checks the tokenizer of the model folder `dir` against an embedding of `rows` rows; returns notes.
///
/// # Errors
/// A Git-LFS pointer in place of a tokenizer file, a `tokenizer.json` that isn't one, or ids past the last row.
pub fn check(dir: &Path, rows: usize) -> Result<Vec<String>> {
    for name in OTHERS {
        let path = dir.join(name);
        if path.symlink_metadata().is_ok() {
            read_small(&path, super::files::SMALL_JSON)?;
        }
    }
    let path = dir.join("tokenizer.json");
    if path.symlink_metadata().is_err() {
        return Ok(vec![no_tokenizer(dir)]);
    }
    let Some(highest) = highest_id(&path)? else {
        return Err(Error::checkpoint(format!("{} has no tokens", shown(&path))));
    };
    let rows = rows as u64;
    if highest >= rows {
        return Err(Error::checkpoint(format!(
            "{}: the highest token id is {highest}, but the embedding has {rows} rows",
            shown(&path)
        ))
        .next("use the tokenizer of this very model"));
    }
    let spare = rows - 1 - highest;
    Ok(if spare == 0 {
        Vec::new()
    } else {
        vec![format!(
            "embedding has {rows} rows for {} token ids: the {spare} spare rows stay, and count in the loss",
            highest + 1
        )]
    })
}

/// The highest id in a `tokenizer.json`: vocabulary and added tokens; `None` if it has no token.
///
/// # Errors
/// Not readable, a Git-LFS pointer, or not a tokenizer.
pub fn highest_id(path: &Path) -> Result<Option<u64>> {
    open_regular(path)?;
    let bytes = read_small(path, MAX_TOKENIZER)?;
    let t: Tokenizer = super::files::parse_json(path, &bytes)?;
    Ok(t.model.vocab.0.max(t.added_tokens.iter().map(|a| a.id).max()))
}

fn no_tokenizer(dir: &Path) -> String {
    format!("no tokenizer.json (found: {}): planning works, training and generating need it", found(dir))
}

/// The other tokenizer files of the folder, by name.
fn found(dir: &Path) -> String {
    let known = ["tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json", "tokenizer_config.json"];
    let found: Vec<&str> = known.into_iter().filter(|n| dir.join(n).exists()).collect();
    if found.is_empty() { "no tokenizer file at all".into() } else { list(found.into_iter()) }
}

/// Refuses a folder without `tokenizer.json`, which text rows and prompts need.
///
/// # Errors
/// It isn't there; names the tokenizer files that are, and says how to make it.
pub fn needs_tokenizer(dir: &Path) -> Result<()> {
    if dir.join("tokenizer.json").symlink_metadata().is_ok() {
        return Ok(());
    }
    let other = ["tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"].iter().any(|n| dir.join(n).exists());
    Err(Error::checkpoint(format!("{} has no tokenizer.json (found: {})", shown(dir), found(dir))).next(if other {
        "make it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
    } else {
        "copy the tokenizer.json of the same model into the folder"
    }))
}

#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    vocab: Highest,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
}

/// The highest id of a vocabulary: an object from token to id, or (Unigram) a list whose places are the ids.
struct Highest(Option<u64>);

impl<'de> Deserialize<'de> for Highest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Highest, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = Highest;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Highest, A::Error> {
                let mut highest = None;
                while map.next_key::<IgnoredAny>()?.is_some() {
                    highest = highest.max(Some(map.next_value::<u64>()?));
                }
                Ok(Highest(highest))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Highest, A::Error> {
                let mut n = 0u64;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    n += 1;
                }
                Ok(Highest(n.checked_sub(1)))
            }
        }
        d.deserialize_any(Ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::fixture::{Tokenizer as Make, put};
    use serde_json::json;

    #[test]
    fn the_highest_id_counts_vocabulary_and_added_tokens() {
        let d = tempfile::tempdir().unwrap();
        let path = d.path().join("tokenizer.json");
        let highest = |v: serde_json::Value| {
            put(&path, v.to_string());
            highest_id(&path).map_err(|e| e.to_string())
        };
        assert_eq!(highest(Make::default().json()), Ok(Some(263)));
        assert_eq!(highest(json!({ "model": { "vocab": { "a": 0, "b": 7 } } })), Ok(Some(7)));
        let unigram =
            json!({ "added_tokens": [], "model": { "type": "Unigram", "vocab": [["a", -1.5], ["b", -2.0]] } });
        assert_eq!(highest(unigram), Ok(Some(1)));
        assert_eq!(highest(json!({ "model": { "vocab": {} } })), Ok(None));
        for bad in
            [json!({}), json!([]), json!({ "model": { "vocab": { "a": -1 } } }), json!({ "model": { "vocab": 3 } })]
        {
            assert!(highest(bad.clone()).unwrap_err().contains("not valid"), "{bad}");
        }
    }
}
