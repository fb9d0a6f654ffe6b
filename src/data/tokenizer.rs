//! The checkpoint's tokenizer: `tokenizer.json`, the special tokens and the template beside it.
//!
//! Two facts about the `tokenizers` crate shape this file. Post-processors may shrink a token's offsets (ByteLevel
//! drops leading spaces from them), so rows are encoded without one and what it would add is learnt once, here. And
//! ids are checked against the embedding's rows at every encoding: an id past its end would read foreign memory.

use super::template::{MAX_TEMPLATE, clean};
use crate::checkpoint::SpecialIds;
use crate::error::{Error, Result};
use serde_json::Value as Json;
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Largest `tokenizer.json` taken, in bytes; Gemma 3's has 33 MB.
const MAX_TOKENIZER: u64 = 512 << 20;
/// Largest small JSON file beside it.
const MAX_CONFIG: u64 = 64 << 20;

/// Token ids of a text with the bytes each covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Ids.
    pub ids: Vec<u32>,
    /// Byte range `[start, end)` of the text that each token covers; tokens that share a character share its range.
    pub offsets: Vec<(usize, usize)>,
}

/// A chat template as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateSource {
    /// `default`, or the name in a list of templates, such as `tool_use`.
    pub name: String,
    /// Jinja source.
    pub source: String,
    /// File it came from.
    pub origin: String,
}

/// A tokenizer and what is known about its special tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocab: usize,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    stops: Vec<u32>,
    starts_with_bos: Option<bool>,
    specials: Vec<(String, String)>,
    added: Vec<(String, u32)>,
    templates: Vec<TemplateSource>,
}

impl Tokenizer {
    /// Opens the tokenizer in `dir`. `vocab` is the number of rows of the embedding, `special` the model config's ids.
    ///
    /// # Errors
    /// No `tokenizer.json`, a Git-LFS pointer in its place, or contents that don't parse.
    pub fn open(dir: &Path, vocab: usize, special: &SpecialIds) -> Result<Tokenizer> {
        let path = dir.join("tokenizer.json");
        if !path.exists() {
            let error = Error::checkpoint(format!("'{}' is missing", path.display()));
            return Err(if dir.join("tokenizer.model").exists() || dir.join("vocab.json").exists() {
                error.next("convert the slow tokenizer with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)")
            } else {
                error.next("copy the checkpoint's tokenizer files into the folder")
            });
        }
        let bytes = read_file(&path, MAX_TOKENIZER)?;
        let mut inner = caught(|| tokenizers::Tokenizer::from_bytes(&bytes)).map_err(|e| {
            Error::checkpoint(format!("'{}' isn't a tokenizer: {}", path.display(), clean(&e.to_string())))
        })?;
        check_added(&bytes, &inner, &path)?;
        // Rows are cut and padded by us, with counts, or not at all.
        inner.with_padding(None);
        let bad = |e: tokenizers::Error| Error::checkpoint(format!("'{}': {}", path.display(), clean(&e.to_string())));
        inner.with_truncation(None).map_err(bad)?;
        let (prefix, suffix) = caught(|| affixes(&inner)).map_err(bad)?;
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);

        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let map = read_json(&dir.join("special_tokens_map.json"))?;
        let mut specials = Vec::new();
        for name in ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"] {
            // A null in tokenizer_config.json says "none" and wins over the older map.
            let text = [&config, &map].into_iter().find_map(|file| file.get(name)).and_then(token_text);
            specials.extend(text.map(|t| (name.to_string(), t)));
        }
        let id_of = |name: &str| {
            let text = specials.iter().find(|s| s.0 == name).map(|s| s.1.as_str())?;
            inner.token_to_id(text)
        };
        let (bos, eos, pad) = (id_of("bos_token"), id_of("eos_token"), id_of("pad_token"));
        let mut stops = special.eos.clone();
        stops.extend(eos.filter(|e| !special.eos.contains(e)));
        let mut added: Vec<(String, u32)> =
            inner.get_added_tokens_decoder().iter().map(|(id, t)| (t.content.clone(), *id)).collect();
        // Longest first, so that a token isn't taken for a shorter one that starts it.
        added.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        Ok(Tokenizer {
            inner,
            vocab,
            prefix,
            suffix,
            bos: bos.or(special.bos),
            eos: eos.or_else(|| special.eos.first().copied()),
            pad: pad.or(special.pad),
            stops,
            starts_with_bos: config.get("add_bos_token").and_then(Json::as_bool),
            specials,
            added,
            templates: templates(dir, &config)?,
        })
    }

    /// Tokens of `text`, nothing added to them.
    ///
    /// # Errors
    /// The tokenizer fails, or names an id that the embedding has no row for.
    pub fn encode(&self, text: &str) -> Result<Encoded> {
        let encoding = caught(|| self.inner.encode(text, false))
            .map_err(|e| Error::data(format!("tokenizer.json can't encode: {}", clean(&e.to_string()))))?;
        if let Some(id) = encoding.get_ids().iter().find(|id| **id as usize >= self.vocab) {
            let token = self.inner.id_to_token(*id).unwrap_or_default();
            return Err(Error::checkpoint(format!(
                "the tokenizer gives id {id} ('{}'), but the embedding has {} rows",
                clean(&token),
                self.vocab
            ))
            .next("use the tokenizer that belongs to this checkpoint"));
        }
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    /// Text of `ids`; `skip_special` leaves special tokens out.
    ///
    /// # Errors
    /// The tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        caught(|| self.inner.decode(ids, skip_special))
            .map_err(|e| Error::data(format!("tokenizer.json can't decode: {}", clean(&e.to_string()))))
    }

    /// Text of one token, for display; special tokens by their name.
    #[must_use]
    pub fn token_text(&self, id: u32) -> String {
        match self.added.iter().find(|a| a.1 == id) {
            Some((text, _)) => text.clone(),
            None => self.decode(&[id], false).unwrap_or_default(),
        }
    }

    /// Whether `id` is one byte of a text (`<0x0A>`), which only the tokens around it make a character of.
    #[must_use]
    pub fn is_byte(&self, id: u32) -> bool {
        let token = self.inner.id_to_token(id).unwrap_or_default();
        token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
    }

    /// A control token that would be read out of `text`.
    #[must_use]
    pub fn control_in(&self, text: &str) -> Option<String> {
        let tokens = self.inner.get_added_tokens_decoder().into_values();
        tokens.filter(|t| t.special && !t.content.is_empty()).map(|t| t.content).find(|t| text.contains(t.as_str()))
    }

    /// Beginning-of-sequence token: the tokenizer's, else the model config's.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End token that closes text and completion rows: the tokenizer's, else the model config's first.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Padding token, if any; padding works without.
    #[must_use]
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Ids at which generation stops: the model config's end tokens and the tokenizer's.
    #[must_use]
    pub fn stops(&self) -> &[u32] {
        &self.stops
    }

    /// Rows of the embedding.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The template variables `bos_token`, `eos_token`, … as the tokenizer's config names them.
    #[must_use]
    pub fn specials(&self) -> &[(String, String)] {
        &self.specials
    }

    /// The chat templates of the folder; the first is the default one.
    #[must_use]
    pub fn templates(&self) -> &[TemplateSource] {
        &self.templates
    }

    /// The special or added token that `text` starts with: its length in bytes and its id.
    #[must_use]
    pub fn special_at(&self, text: &str) -> Option<(usize, u32)> {
        self.added.iter().find(|(token, _)| !token.is_empty() && text.starts_with(token)).map(|(t, id)| (t.len(), *id))
    }

    /// What goes in front of a row that starts with `first`, so that it begins with BOS exactly once, and who asks for
    /// it: `post-processor` or `add_bos_token`. An explicit `add_bos_token` wins, as in transformers.
    #[must_use]
    pub fn opening(&self, first: Option<u32>) -> (&[u32], &'static str) {
        let has_bos = self.bos.is_some() && first == self.bos;
        match self.starts_with_bos {
            _ if has_bos => (&[], "template"),
            Some(false) => (&[], "none"),
            Some(true) if !self.prefix.contains(&self.bos.unwrap_or(u32::MAX)) => {
                (self.bos.as_slice(), "add_bos_token")
            }
            _ if self.prefix.is_empty() || self.prefix.first() == first.as_ref() => (&[], "none"),
            _ => (&self.prefix, "post-processor"),
        }
    }

    /// What closes a text or completion row that ends in `last`: what the post-processor adds, then the end token,
    /// unless it is there.
    #[must_use]
    pub fn closing(&self, last: Option<u32>) -> Vec<u32> {
        let mut out = if self.suffix.first() == last.as_ref() { Vec::new() } else { self.suffix.clone() };
        let end = out.last().copied().or(last);
        out.extend(self.eos.filter(|e| end != Some(*e)));
        out
    }
}

/// What `work` in the tokenizers crate gives. The file comes from anyone: a panic over it is an error like any other.
fn caught<T>(work: impl FnOnce() -> Result<T, tokenizers::Error>) -> Result<T, tokenizers::Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::panicked("the library", &*panic).into()))
}

/// The crate numbers added tokens itself, by order; where that isn't the number the file gives, every special token
/// would train another embedding row than the one meant.
fn check_added(bytes: &[u8], inner: &tokenizers::Tokenizer, path: &Path) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Added {
        id: u32,
        content: String,
    }
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<Added>,
    }
    let bad = |what: String| Error::checkpoint(format!("'{}': {what}", path.display()));
    let file: File = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
    for token in file.added_tokens {
        let real = inner.token_to_id(&token.content);
        if real != Some(token.id) {
            let real = real.map_or_else(|| "none".into(), |id| id.to_string());
            return Err(bad(format!("token '{}' should have id {} but gets {real}", clean(&token.content), token.id))
                .next("the vocabulary has gaps; fetch the tokenizer files again"));
        }
    }
    Ok(())
}

/// What the post-processor puts before and after a text.
fn affixes(inner: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), tokenizers::Error> {
    let with = inner.encode("a", true)?.get_ids().to_vec();
    let without = inner.encode("a", false)?.get_ids().to_vec();
    let at = with.windows(without.len().max(1)).position(|w| w == without);
    Ok(at.map_or_else(Default::default, |at| (with[..at].to_vec(), with[at + without.len()..].to_vec())))
}

/// A token in a config: text, or an object that holds it as `content`.
fn token_text(value: &Json) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(String::from)
}

/// The folder's templates: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json` (text, or a list of
/// name and template), else `chat_template.json`; the order in which transformers looks.
fn templates(dir: &Path, config: &Json) -> Result<Vec<TemplateSource>> {
    let one = |source: &str, origin: &str| {
        vec![TemplateSource { name: "default".into(), source: source.into(), origin: origin.into() }]
    };
    let jinja = dir.join("chat_template.jinja");
    if jinja.exists() {
        return Ok(one(&read_template(&jinja)?, "chat_template.jinja"));
    }
    let json = read_json(&dir.join("chat_template.json"))?;
    for (value, origin) in
        [(config.get("chat_template"), "tokenizer_config.json"), (json.get("chat_template"), "chat_template.json")]
    {
        match value {
            Some(Json::String(source)) => return Ok(one(source, origin)),
            Some(Json::Array(list)) => {
                let mut found: Vec<TemplateSource> = list
                    .iter()
                    .filter_map(|t| {
                        let (name, source) = (t.get("name")?.as_str()?, t.get("template")?.as_str()?);
                        Some(TemplateSource {
                            name: name.into(),
                            source: source.into(),
                            origin: format!("{origin}, '{name}'"),
                        })
                    })
                    .collect();
                found.sort_by_key(|t| t.name != "default");
                if found.len() > 1 && found[0].name != "default" {
                    let names: Vec<_> = found.iter().map(|t| clean(&t.name)).collect();
                    return Err(Error::data(format!(
                        "{origin} has the chat templates {} and none is 'default'",
                        names.join(", ")
                    ))
                    .next("copy the one you mean into a file and name it in data.template"));
                }
                return Ok(found);
            }
            _ => {}
        }
    }
    Ok(Vec::new())
}

/// A template file, length and encoding checked.
///
/// # Errors
/// It can't be read, is too long or isn't UTF-8.
pub fn read_template(path: &Path) -> Result<String> {
    String::from_utf8(read_file(path, MAX_TEMPLATE)?)
        .map_err(|e| Error::data(format!("'{}' isn't UTF-8 (byte {})", path.display(), e.utf8_error().valid_up_to())))
}

/// A small JSON file; an absent one is `null`.
fn read_json(path: &Path) -> Result<Json> {
    if !path.exists() {
        return Ok(Json::Null);
    }
    serde_json::from_slice(&read_file(path, MAX_CONFIG)?)
        .map_err(|e| Error::checkpoint(format!("'{}' isn't valid JSON: {e}", path.display())))
}

/// Reads a file of at most `limit` bytes; names Git-LFS pointers for what they are.
fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| Error::io("read", path, e))?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| Error::io("read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(Error::checkpoint(format!("'{}' is larger than {limit} bytes", path.display())));
    }
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(Error::checkpoint(format!("'{}' is a Git-LFS pointer", path.display()))
            .next("fetch the real file (git lfs pull)"));
    }
    Ok(bytes)
}
