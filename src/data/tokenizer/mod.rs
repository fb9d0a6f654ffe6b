//! The checkpoint's tokenizer: `tokenizer.json`, the special tokens and the template beside it.
//!
//! Two facts about the `tokenizers` crate shape this file. Post-processors may shrink a token's offsets (ByteLevel
//! drops leading spaces from them), so rows are encoded without one and what it would add is learnt once, here. And
//! ids are checked against the embedding's rows at every encoding: an id past its end would read foreign memory.

mod apart;
mod bounds;
mod files;
mod special;
mod templates;

pub use templates::TemplateSource;

use super::template::clean;
use crate::checkpoint::{SpecialIds, keys};
use crate::error::{Error, Result};
use crate::panics;
use apart::Apart;
use serde_json::{Map, Value as Json};
use special::Named;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

/// Largest `tokenizer.json` taken, in bytes; Gemma 3's has 33 MB.
const MAX_TOKENIZER: u64 = 512 << 20;

/// Token ids of a text with the bytes each covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Ids.
    pub ids: Vec<u32>,
    /// Byte range `[start, end)` of the text that each token covers; tokens that share a character share its range.
    pub offsets: Vec<(usize, usize)>,
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
    specials: Vec<(String, String)>,
    added: Vec<(String, u32)>,
    /// Those of them that control a model, and what they begin with.
    controls: Vec<(String, u32)>,
    firsts: Vec<char>,
    apart: OnceLock<Apart>,
    templates: Vec<TemplateSource>,
    growth: u64,
    notes: Vec<String>,
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
        let mut notes = Vec::new();
        let bytes = files::bytes(&path, MAX_TOKENIZER, &mut notes)?;
        let bad = |what: String| Error::checkpoint(format!("'{}': {what}", path.display()));
        let not_one =
            |what: &str| Error::checkpoint(format!("'{}' isn't a tokenizer: {}", path.display(), clean(what)));
        let parts: bounds::Parts = serde_json::from_slice(&bytes).map_err(|e| not_one(&e.to_string()))?;
        // Before the crate is given the file: it normalizes added tokens as it reads them.
        let growth = parts.growth().map_err(|what| bad(what).next("use the tokenizer that its makers publish"))?;
        // The crate can't read past a key that it doesn't know.
        if let Some(what) = keys::check("tokenizer.json", keys::TOKENIZER, &parts.other)? {
            return Err(bad(what).next("use the tokenizer that its makers publish"));
        }
        let mut inner = caught(|| tokenizers::Tokenizer::from_bytes(&bytes)).map_err(|e| not_one(&e.to_string()))?;
        check_added(&parts, &inner)
            .map_err(|what| bad(what).next("the vocabulary has gaps; fetch the tokenizer files again"))?;
        // Rows are cut and padded by us, with counts, or not at all.
        inner.with_padding(None);
        let failed = |e: tokenizers::Error| bad(clean(&e.to_string()));
        inner.with_truncation(None).map_err(failed)?;
        let (prefix, suffix) = caught(|| affixes(&inner)).map_err(failed)?;
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);

        let config = files::object(&dir.join("tokenizer_config.json"), &mut notes)?;
        notes.extend(unused(&config)?);
        let named = Named::read(dir, &config, &mut notes)?;
        let new = named.add_to(&mut inner)?;
        let specials = named.variables;
        let id_of = |name: &str| {
            let text = specials.iter().find(|s| s.0 == name).map(|s| s.1.as_str())?;
            inner.token_to_id(text)
        };
        // A name without a row of the embedding: padding works without, and what would use another is refused there.
        let within = |id: &u32| (*id as usize) < vocab;
        let (bos, eos, pad) =
            (id_of("bos_token").filter(within), id_of("eos_token"), id_of("pad_token").filter(within));
        if let Some(id) = eos.filter(|id| !within(id)) {
            return Err(Error::checkpoint(format!(
                "the end token '{}' that tokenizer_config.json names gets id {id}, but the embedding has {vocab} rows",
                clean(&inner.id_to_token(id).unwrap_or_default())
            ))
            .next("use the tokenizer that belongs to this checkpoint"));
        }
        notes.extend(added_note(&new, &inner));
        notes.extend(affix_notes(&config, (&prefix, bos), (&suffix, eos)));
        let mut stops = special.eos.clone();
        stops.extend(eos.filter(|e| !special.eos.contains(e)));
        let mut added: Vec<(String, u32)> =
            inner.get_added_tokens_decoder().iter().map(|(id, t)| (t.content.clone(), *id)).collect();
        // Longest first, so that a token isn't taken for a shorter one that starts it.
        added.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        let control = |id: &u32| inner.get_added_tokens_decoder().get(id).is_some_and(|t| t.special);
        let controls: Vec<(String, u32)> =
            added.iter().filter(|(text, id)| !text.is_empty() && control(id)).cloned().collect();
        let mut firsts: Vec<char> = controls.iter().filter_map(|(text, _)| text.chars().next()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        Ok(Tokenizer {
            inner,
            controls,
            firsts,
            apart: OnceLock::new(),
            vocab,
            prefix,
            suffix,
            bos: bos.or(special.bos),
            eos: eos.or_else(|| special.eos.first().copied()),
            pad: pad.or(special.pad),
            stops,
            specials,
            added,
            templates: templates::find(dir, &config, &mut notes)?,
            growth,
            notes,
        })
    }

    /// What the files say that isn't used, or that was mended: one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Tokens of `text`, nothing added to them.
    ///
    /// # Errors
    /// The tokenizer fails, or names an id that the embedding has no row for.
    pub fn encode(&self, text: &str) -> Result<Encoded> {
        self.encode_with(&self.inner, text, |id| id)
    }

    /// Tokens that `inner` makes of `text`, by the ids that `id` gives for its.
    fn encode_with(&self, inner: &tokenizers::Tokenizer, text: &str, id: impl Fn(u32) -> u32) -> Result<Encoded> {
        bounds::fits(text.len(), self.growth).map_err(|bytes| {
            Error::data(format!("the tokenizer's normalizer may make {bytes} bytes of a text of {}", text.len()))
                .next("shorten the text, or use the tokenizer that the model's makers publish")
        })?;
        let encoding = caught(|| inner.encode(text, false))
            .map_err(|e| Error::data(format!("tokenizer.json can't encode: {}", clean(&e.to_string()))))?;
        let ids: Vec<u32> = encoding.get_ids().iter().map(|own| id(*own)).collect();
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab) {
            let token = self.inner.id_to_token(*id).unwrap_or_default();
            return Err(Error::checkpoint(format!(
                "the tokenizer gives id {id} ('{}'), but the embedding has {} rows",
                clean(&token),
                self.vocab
            ))
            .next("use the tokenizer that belongs to this checkpoint"));
        }
        Ok(Encoded { ids, offsets: encoding.get_offsets().to_vec() })
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

    /// Where control tokens would be read out of `text`, and their ids.
    pub fn controls_in<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (Range<usize>, u32)> + 'a {
        let mut from = 0;
        std::iter::from_fn(move || {
            loop {
                let at = from + text[from..].find(self.firsts.as_slice())?;
                let rest = &text[at..];
                if let Some((token, id)) = self.controls.iter().find(|(token, _)| rest.starts_with(token.as_str())) {
                    from = at + token.len();
                    return Some((at..from, *id));
                }
                from = at + rest.chars().next().map_or(1, char::len_utf8);
            }
        })
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
    /// it. The post-processor of `tokenizer.json` decides; `add_bos_token` isn't asked, as in transformers 5.
    #[must_use]
    pub fn opening(&self, first: Option<u32>) -> (&[u32], &'static str) {
        if self.bos.is_some() && first == self.bos {
            (&[], "template")
        } else if self.prefix.is_empty() || self.prefix.first() == first.as_ref() {
            (&[], "none")
        } else {
            (&self.prefix, "post-processor")
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
    panics::caught("the library", work).unwrap_or_else(|panic| Err(panic.into()))
}

/// The crate numbers added tokens itself, by order; where that isn't the number the file gives, every special token
/// would train another embedding row than the one meant.
fn check_added(parts: &bounds::Parts, inner: &tokenizers::Tokenizer) -> Result<(), String> {
    for token in &parts.added_tokens {
        let real = inner.token_to_id(&token.content);
        if real != Some(token.id) {
            let real = real.map_or_else(|| "none".into(), |id| id.to_string());
            return Err(format!("token '{}' should have id {} but gets {real}", clean(&token.content), token.id));
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

/// Keys of `tokenizer_config.json` that mean something and aren't used; tokens of the model's own are.
fn unused(config: &Map<String, Json>) -> Result<Option<String>> {
    let own = |key: &str, value: &Json| special::is_own(key, value);
    let rest = config.iter().filter(|(k, v)| !own(k, v)).map(|(k, v)| (k.clone(), v.clone())).collect();
    keys::check("tokenizer_config.json", keys::TOKENIZER_CONFIG, &rest)
}

/// Tokens that `tokenizer.json` lacks and the files beside it name.
fn added_note(new: &[String], inner: &tokenizers::Tokenizer) -> Option<String> {
    let shown = |t: &String| format!("'{}' ({})", clean(t), inner.token_to_id(t).unwrap_or_default());
    let names: Vec<String> = new.iter().take(5).map(shown).collect();
    let more = if new.len() > 5 { format!(" and {} more", new.len() - 5) } else { String::new() };
    (!new.is_empty()).then(|| {
        format!("tokens that only the files beside tokenizer.json name, with their ids: {}{more}", names.join(", "))
    })
}

/// Where `add_bos_token` and `add_eos_token` say other than the post-processor does, which counts.
fn affix_notes(
    config: &Map<String, Json>,
    (prefix, bos): (&[u32], Option<u32>),
    (suffix, eos): (&[u32], Option<u32>),
) -> Vec<String> {
    let one = |key: &str, around: &[u32], id: Option<u32>, name: &str| {
        let asked = config.get(key).and_then(Json::as_bool)?;
        let does = id.is_some_and(|id| around.contains(&id));
        let what = if does { format!("adds {name}") } else { format!("adds no {name}") };
        (asked != does && id.is_some()).then(|| {
            format!("{key} = {asked} of tokenizer_config.json isn't used: tokenizer.json's post-processor {what}")
        })
    };
    let notes = [one("add_bos_token", prefix, bos, "BOS"), one("add_eos_token", suffix, eos, "end token")];
    notes.into_iter().flatten().collect()
}

/// A template file that the user names, length and encoding checked; notes say what was mended.
///
/// # Errors
/// It can't be read, is too long or isn't UTF-8.
pub fn read_template(path: &Path, notes: &mut Vec<String>) -> Result<String> {
    files::template(path, notes)
}

#[cfg(test)]
mod tests;
