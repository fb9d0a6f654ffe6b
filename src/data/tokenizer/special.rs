//! Tokens that the files beside `tokenizer.json` name: which they are, and which of them it lacks.
//!
//! The rules are those of `tokenization_utils_base.py` and `tokenization_utils_tokenizers.py` of transformers 5.19. Where
//! `tokenizer_config.json` has `added_tokens_decoder`, the older `special_tokens_map.json` and `added_tokens.json` aren't
//! looked at; where it hasn't, the map's values come before the config's.

use super::super::template::clean;
use super::files;
use crate::checkpoint::keys;
use crate::error::{Error, Result};
use serde_json::{Map, Value as Json};
use std::collections::HashSet;
use std::path::Path;
use tokenizers::AddedToken;

const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const ADDED: &str = "added_tokens.json";
/// Special tokens that every tokenizer of transformers may have, under their names in templates.
const STANDARD: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What the files name.
#[derive(Debug, Default)]
pub struct Named {
    /// Variables of templates with their texts: `bos_token`, …, and those of the model's own.
    pub variables: Vec<(String, String)>,
    /// Tokens in the order in which they are added, with the id that a file gives.
    tokens: Vec<(Option<u32>, AddedToken)>,
    /// Texts of tokens that are special even where `tokenizer.json` says that they aren't.
    special: HashSet<String>,
}

impl Named {
    /// Reads what `config`, which is `tokenizer_config.json`, and its neighbours in `dir` name.
    ///
    /// # Errors
    /// A file that isn't JSON, or a value that is no token.
    pub fn read(dir: &Path, config: &Map<String, Json>, notes: &mut Vec<String>) -> Result<Named> {
        let map = files::object(&dir.join(MAP), notes)?;
        let ids = files::object(&dir.join(ADDED), notes)?;
        let own: Map<String, Json> = map.iter().filter(|(k, _)| !k.ends_with("_token")).map(pair).collect();
        notes.extend(keys::check(MAP, keys::SPECIAL_TOKENS_MAP, &own)?);
        let mut out = Named::default();
        let decoder = present(config, "added_tokens_decoder");
        let mut all = config.clone();
        if decoder.is_none() {
            merge(&mut all, &map);
        }
        let named = out.variables(&all)?;
        let extra = match extras(&all, "extra_special_tokens").or_else(|| extras(&all, "additional_special_tokens")) {
            Some(Json::Array(list)) => {
                list.iter().map(|t| token(t, CONFIG, "a special token")).collect::<Result<_>>()?
            }
            Some(Json::Object(_)) | None => Vec::new(),
            Some(other) => return Err(no_token(CONFIG, "extra_special_tokens", other)),
        };
        let names: HashSet<String> = named.iter().map(|t| t.content.clone()).collect();
        match decoder {
            Some(decoder) => {
                out.tokens = decoded(decoder)?;
                notes.extend(passed_over(config, &map, &ids, &out.tokens));
            }
            None => {
                let extra: HashSet<&str> = extra.iter().map(|t: &AddedToken| t.content.as_str()).collect();
                out.tokens = numbered(&ids, |text| names.contains(text) || extra.contains(text.as_str()))?;
                out.special.clone_from(&names);
            }
        }
        for (_, token) in &mut out.tokens {
            token.special |= names.contains(&token.content);
        }
        out.tokens.extend(named.into_iter().chain(extra).map(|t| (None, t)));
        Ok(out)
    }

    /// The named tokens of `all`; their texts become variables.
    fn variables(&mut self, all: &Map<String, Json>) -> Result<Vec<AddedToken>> {
        let objects = ["model_specific_special_tokens", "extra_special_tokens"];
        let nested = objects.into_iter().filter_map(|k| present(all, k)?.as_object()).flatten();
        let standard = STANDARD.into_iter().filter_map(|k| Some((k, present(all, k)?)));
        let own = all.iter().filter(|(k, v)| is_own(k, v)).chain(nested).map(|(k, v)| (k.as_str(), v));
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        for (name, value) in standard.chain(own).filter(|(_, v)| !v.is_null()) {
            let token = token(value, CONFIG, name)?;
            if seen.insert(name) {
                self.variables.push((name.to_string(), token.content.clone()));
            }
            found.push(token);
        }
        Ok(found)
    }

    /// Adds to `inner` what it lacks, with the flags that the files give. Returns the texts that are new to it.
    ///
    /// # Errors
    /// A token gets another id than the file gives: it would train another row of the embedding than the one meant.
    pub fn add_to(&self, inner: &mut tokenizers::Tokenizer) -> Result<Vec<String>> {
        let listed = inner.get_added_tokens_decoder();
        let promoted = listed.values().filter(|t| !t.special && self.special.contains(&t.content));
        let mut adding: Vec<AddedToken> = promoted.map(|t| t.clone().special(true)).collect();
        let mut known: HashSet<&str> = listed.values().map(|t| t.content.as_str()).collect();
        let mut new = Vec::new();
        for (id, token) in self.tokens.iter().filter(|(_, t)| !t.content.is_empty()) {
            // A file's own flags count; a mere name adds a token, and changes none.
            if !known.insert(&token.content) && id.is_none() {
                continue;
            }
            if inner.token_to_id(&token.content).is_none() {
                new.push(token.content.clone());
            }
            adding.push(token.clone());
        }
        let failed = |e: tokenizers::Error| {
            Error::checkpoint(format!("tokens of {CONFIG} can't be added: {}", clean(&e.to_string())))
        };
        super::caught(|| inner.add_tokens(adding)).map_err(failed)?;
        for (id, token) in &self.tokens {
            let (Some(id), Some(real)) = (id, inner.token_to_id(&token.content)) else { continue };
            if *id != real {
                let what = format!(
                    "token '{}' should have id {id} by the files beside tokenizer.json, but gets {real}",
                    clean(&token.content)
                );
                return Err(Error::checkpoint(what).next("fetch all files of the tokenizer again, from one place"));
            }
        }
        Ok(new)
    }
}

fn pair((key, value): (&String, &Json)) -> (String, Json) {
    (key.clone(), value.clone())
}

/// A key's value; null is absent.
fn present<'a>(map: &'a Map<String, Json>, key: &str) -> Option<&'a Json> {
    map.get(key).filter(|v| !v.is_null())
}

/// What the older map says over what the config says; the lists of further tokens are joined.
fn merge(all: &mut Map<String, Json>, map: &Map<String, Json>) {
    const LIST: &str = "extra_special_tokens";
    all.extend(map.iter().filter(|(k, _)| k.as_str() != LIST).map(pair));
    match extras(map, LIST) {
        Some(Json::Array(more)) if !all.get(LIST).is_some_and(Json::is_object) => {
            let mut list = all.get(LIST).and_then(Json::as_array).cloned().unwrap_or_default();
            let known: HashSet<String> = list.iter().map(Json::to_string).collect();
            list.extend(more.iter().filter(|t| !known.contains(&t.to_string())).cloned());
            all.insert(LIST.into(), list.into());
        }
        Some(other) => drop(all.insert(LIST.into(), other.clone())),
        None => {}
    }
}

/// A key's value where it holds something.
fn extras<'a>(map: &'a Map<String, Json>, key: &str) -> Option<&'a Json> {
    present(map, key).filter(|v| !v.as_array().is_some_and(Vec::is_empty))
}

/// Whether a key names a token of the model's own, such as `image_token`.
pub fn is_own(key: &str, value: &Json) -> bool {
    key.ends_with("_token") && !STANDARD.contains(&key) && (value.is_string() || value.get("content").is_some())
}

/// A token as text, or as an object with its flags.
fn token(value: &Json, file: &str, name: &str) -> Result<AddedToken> {
    match value {
        Json::String(text) => Ok(AddedToken::from(text.clone(), true)),
        Json::Object(map) => {
            let text = map.get("content").and_then(Json::as_str).ok_or_else(|| no_token(file, name, value))?;
            let flag = |key: &str, default: bool| match map.get(key) {
                None | Some(Json::Null) => Ok(default),
                Some(Json::Bool(on)) => Ok(*on),
                Some(_) => Err(no_token(file, name, value)),
            };
            let special = flag("special", true)?;
            Ok(AddedToken::from(text, special)
                .single_word(flag("single_word", false)?)
                .lstrip(flag("lstrip", false)?)
                .rstrip(flag("rstrip", false)?)
                .normalized(flag("normalized", !special)?))
        }
        _ => Err(no_token(file, name, value)),
    }
}

fn no_token(file: &str, name: &str, value: &Json) -> Error {
    Error::checkpoint(format!("{file}: `{}` is {}, which is no token", clean(name), clean(&value.to_string())))
        .next("fetch the file again")
}

/// The tokens of `added_tokens_decoder`, by id.
fn decoded(decoder: &Json) -> Result<Vec<(Option<u32>, AddedToken)>> {
    let map = decoder.as_object().ok_or_else(|| no_token(CONFIG, "added_tokens_decoder", decoder))?;
    let mut out = Vec::with_capacity(map.len());
    for (id, value) in map {
        let number = id.parse().map_err(|_| no_token(CONFIG, "added_tokens_decoder", &Json::from(id.as_str())))?;
        let mut value = value.clone();
        if let Some(flags) = value.as_object_mut() {
            flags.entry("special").or_insert(Json::Bool(false));
        }
        out.push((Some(number), token(&value, CONFIG, &format!("added_tokens_decoder {id}"))?));
    }
    out.sort_by_key(|(id, _)| *id);
    Ok(out)
}

/// The tokens of `added_tokens.json`, by id; `special` tells which are.
fn numbered(ids: &Map<String, Json>, special: impl Fn(&String) -> bool) -> Result<Vec<(Option<u32>, AddedToken)>> {
    let mut out = Vec::with_capacity(ids.len());
    for (text, id) in ids {
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| no_token(ADDED, text, id))?;
        out.push((Some(number), AddedToken::from(text.clone(), special(text))));
    }
    out.sort_by_key(|(id, _)| *id);
    Ok(out)
}

/// What the older files say that the newer one, which counts alone, doesn't.
fn passed_over(
    config: &Map<String, Json>,
    map: &Map<String, Json>,
    ids: &Map<String, Json>,
    known: &[(Option<u32>, AddedToken)],
) -> Option<String> {
    let text = |v: &Json| v.as_str().or_else(|| v.get("content")?.as_str()).map(String::from);
    let mut out: Vec<String> = STANDARD
        .into_iter()
        .filter_map(|name| Some((name, text(present(map, name)?)?)))
        .filter(|(name, old)| config.get(*name).and_then(text).as_ref() != Some(old))
        .map(|(name, old)| format!("`{name}` '{}' of {MAP}", clean(&old)))
        .collect();
    let known: HashSet<&str> = known.iter().map(|k| k.1.content.as_str()).collect();
    let lost: Vec<&String> = ids.keys().filter(|t| !known.contains(t.as_str())).collect();
    out.extend(lost.first().map(|t| match lost.len() {
        1 => format!("'{}' of {ADDED}", clean(t)),
        n => format!("'{}' and {} more tokens of {ADDED}", clean(t), n - 1),
    }));
    (!out.is_empty()).then(|| format!("not used, since {CONFIG} lists its tokens itself: {}", out.join(", ")))
}
