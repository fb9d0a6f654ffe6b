//! The tokenizer of a GGUF as the files Hugging Face's libraries read.
//!
//! Only byte-level BPE (`tokenizer.ggml.model = gpt2`) is known; the pre-tokenizer is chosen by `tokenizer.ggml.pre`,
//! and one that isn't known refuses: a wrong split gives other ids without any error.

use super::reader::{Gguf, Parsed};
use crate::text::clean;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// llama.cpp's token types.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// The splitting rule of Llama 3's own `tokenizer.json`.
const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The splitting rule of Qwen 2's and 3's own `tokenizer.json`.
const QWEN2_SPLIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The tokenizer's files.
#[derive(Clone, Debug, PartialEq)]
pub struct Files {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`.
    pub config: Value,
    /// `special_tokens_map.json`.
    pub special_map: Value,
    /// Special ids, for the model's config.
    pub ids: Ids,
}

/// Special token ids of a GGUF.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn, where it isn't `eos`.
    pub eot: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    unknown: Option<u32>,
}

/// Builds the tokenizer files of `gguf`.
///
/// # Errors
/// Another kind of tokenizer, an unknown pre-tokenizer, or lists that don't fit each other; each by name.
pub fn build(gguf: &Gguf, max_length: usize) -> Parsed<Files> {
    let model = gguf.text("tokenizer.ggml.model")?.unwrap_or("(none)");
    if model != "gpt2" {
        return Err(format!("tokenizer '{}' is not supported; supported: gpt2 (byte-level BPE)", clean(model)));
    }
    let pre = gguf.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let rule = rule(pre).ok_or_else(|| {
        let known = "smollm, llama-bpe, qwen2, gpt-2, default";
        format!("pre-tokenizer '{}' is not supported; supported: {known}", clean(pre))
    })?;
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    let types = match gguf.get("tokenizer.ggml.token_type") {
        Some(_) => gguf.ints("tokenizer.ggml.token_type")?,
        None => vec![1; tokens.len()],
    };
    if types.len() != tokens.len() {
        return Err(format!("{} tokens but {} token types", tokens.len(), types.len()));
    }
    let ids = ids(gguf, tokens.len())?;
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(&tokens, &types),
        "normalizer": rule.normalizer,
        "pre_tokenizer": rule.pre_tokenizer,
        "post_processor": post_processor(gguf, &rule, &tokens, &ids)?,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": rule.ignore_merges,
            "vocab": vocab(&tokens, &types)?,
            "merges": merges(gguf)?,
        },
    });
    let token = |id: Option<u32>| id.map(|i| tokens[i as usize]);
    let mut special_map = Map::new();
    let additional: Vec<&str> = [ids.bos, ids.eos].into_iter().filter_map(token).collect();
    special_map.insert("additional_special_tokens".into(), json!(additional));
    for (key, id) in
        [("bos_token", ids.bos), ("eos_token", ids.eos), ("pad_token", ids.pad), ("unk_token", ids.unknown)]
    {
        if let Some(text) = token(id) {
            special_map.insert(key.into(), text.into());
        }
    }
    let mut config = Map::from_iter([("add_prefix_space".to_string(), Value::Bool(false))]);
    config.extend(special_map.clone());
    if let Some(template) = gguf.text("tokenizer.chat_template")? {
        config.insert("chat_template".into(), template.into());
    }
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    config.insert("model_max_length".into(), max_length.into());
    config.insert("tokenizer_class".into(), rule.class.into());
    Ok(Files { tokenizer, config: config.into(), special_map: special_map.into(), ids })
}

struct Rule {
    normalizer: Value,
    pre_tokenizer: Value,
    /// Whether a word that is a token is taken whole, merges or not.
    ignore_merges: bool,
    /// Whether sequences begin with `bos` unless the file says otherwise.
    add_bos: bool,
    class: &'static str,
}

fn rule(pre: &str) -> Option<Rule> {
    let byte_level = |regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex });
    let sequence =
        |first: Value, regex: bool| json!({ "type": "Sequence", "pretokenizers": [first, byte_level(regex)] });
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let plain = Rule {
        normalizer: Value::Null,
        pre_tokenizer: byte_level(true),
        ignore_merges: false,
        add_bos: false,
        class: "GPT2Tokenizer",
    };
    Some(match pre {
        "default" | "gpt-2" | "gpt2" => plain,
        "smollm" => {
            Rule { pre_tokenizer: sequence(json!({ "type": "Digits", "individual_digits": true }), true), ..plain }
        }
        "llama-bpe" | "llama3" | "llama-v3" => Rule {
            pre_tokenizer: sequence(split(LLAMA3_SPLIT), false),
            ignore_merges: true,
            add_bos: true,
            class: "PreTrainedTokenizerFast",
            ..plain
        },
        "qwen2" => Rule {
            normalizer: json!({ "type": "NFC" }),
            pre_tokenizer: sequence(split(QWEN2_SPLIT), false),
            class: "Qwen2Tokenizer",
            ..plain
        },
        _ => return None,
    })
}

fn ids(gguf: &Gguf, n_tokens: usize) -> Parsed<Ids> {
    let id = |key: &str| -> Parsed<Option<u32>> {
        let key = format!("tokenizer.ggml.{key}_token_id");
        let Some(n) = gguf.int(&key)? else { return Ok(None) };
        match u32::try_from(n) {
            Ok(id) if (id as usize) < n_tokens => Ok(Some(id)),
            _ => Err(format!("metadata '{key}' is {n}, but there are {n_tokens} tokens")),
        }
    };
    let eos = id("eos")?;
    Ok(Ids {
        bos: id("bos")?,
        eos,
        eot: id("eot")?.filter(|t| Some(*t) != eos),
        pad: id("padding")?,
        unknown: id("unknown")?,
    })
}

fn added(tokens: &[&str], types: &[i64]) -> Vec<Value> {
    let one = |(id, (&content, &kind)): (usize, (&&str, &i64))| {
        let special = match kind {
            CONTROL => true,
            USER_DEFINED => false,
            _ => return None,
        };
        Some(json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        }))
    };
    tokens.iter().zip(types).enumerate().filter_map(one).collect()
}

/// The vocabulary; unused entries (padding of the embedding) are left out.
fn vocab(tokens: &[&str], types: &[i64]) -> Parsed<Value> {
    let mut seen: HashMap<&str, usize> = HashMap::with_capacity(tokens.len());
    let mut vocab = Map::new();
    for (id, (&token, &kind)) in tokens.iter().zip(types).enumerate() {
        if kind == UNUSED {
            continue;
        }
        if let Some(other) = seen.insert(token, id) {
            return Err(format!("tokens {other} and {id} are both '{}'", clean(token)));
        }
        vocab.insert(token.to_string(), id.into());
    }
    Ok(vocab.into())
}

fn merges(gguf: &Gguf) -> Parsed<Vec<Value>> {
    let pair = |(i, merge): (usize, &str)| match merge.split_once(' ') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains(' ') => Ok(json!([a, b])),
        _ => Err(format!("merge {i} is '{}', not two tokens", clean(merge))),
    };
    gguf.texts("tokenizer.ggml.merges")?.into_iter().enumerate().map(pair).collect()
}

/// Puts `bos` in front where the file (or, without a word from it, the family) asks for it.
fn post_processor(gguf: &Gguf, rule: &Rule, tokens: &[&str], ids: &Ids) -> Parsed<Value> {
    let add = gguf.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(rule.add_bos);
    let (true, Some(bos)) = (add, ids.bos) else {
        return Ok(Value::Null);
    };
    let token = tokens[bos as usize];
    let first = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let of = |id: &str, type_id: u32| json!({ "Sequence": { "id": id, "type_id": type_id } });
    let special = Map::from_iter([(token.to_string(), json!({ "id": token, "ids": [bos], "tokens": [token] }))]);
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [first, of("A", 0)],
        "pair": [first, of("A", 0), { "SpecialToken": { "id": token, "type_id": 1 } }, of("B", 1)],
        "special_tokens": special,
    }))
}
