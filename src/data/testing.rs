//! The fixture of this room's tests: a byte-level tokenizer whose token ids are byte values, with eight specials.

use super::chat::{Chat, ModelFiles, Tokens};
use super::formats::Format;
use super::template::Date;
use super::{Dataset, pipeline};
use crate::checkpoint::SpecialIds;
use crate::config::{RunConfig, SystemFallback, TrainOn};
use crate::error::Result;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const VOCAB: usize = 264;
pub const BOS: u32 = 257;
pub const IM_START: u32 = 259;
pub const IM_END: u32 = 260;
const SPECIALS: [&str; 8] =
    ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"];

pub const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// What may differ from the plain fixture.
pub struct Fixture {
    pub template: Json,
    pub bos_post: bool,
    pub config: Json,
    /// `(token, left, right)`: a token of its own with the merge that makes it; ids from 264 up.
    pub merges: Vec<(&'static str, &'static str, &'static str)>,
    pub special: SpecialIds,
}

impl Default for Fixture {
    fn default() -> Self {
        Fixture {
            template: CHATML.into(),
            bos_post: false,
            config: json!({}),
            merges: Vec::new(),
            special: SpecialIds { bos: Some(BOS), eos: vec![258], pad: Some(256) },
        }
    }
}

/// A model folder on disk, with a place for data files beside it.
pub struct Model {
    pub dir: TempDir,
    pub vocab: usize,
    pub special: SpecialIds,
}

impl Fixture {
    pub fn template(source: &str) -> Fixture {
        Fixture { template: source.into(), ..Fixture::default() }
    }

    pub fn build(self) -> Model {
        let dir = tempfile::tempdir().unwrap();
        let post = self.bos_post.then(|| {
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}}})
        });
        write(dir.path(), "tokenizer.json", &tokenizer(post, &self.merges));
        let mut config = json!({"bos_token": "<bos>", "eos_token": "<|im_end|>", "pad_token": "<pad>", "chat_template": self.template});
        for (key, value) in self.config.as_object().unwrap() {
            config[key] = value.clone();
        }
        write(dir.path(), "tokenizer_config.json", &config);
        Model { dir, vocab: VOCAB + self.merges.len(), special: self.special }
    }
}

impl Model {
    pub fn files(&self) -> ModelFiles<'_> {
        ModelFiles { dir: self.dir.path(), vocab: self.vocab, special: &self.special }
    }
    pub fn chat(&self) -> Chat {
        self.try_chat().unwrap()
    }
    pub fn try_chat(&self) -> Result<Chat> {
        Chat::open(self.files(), None, Date::from_unix(1_720_256_703))
    }
    /// Tokens of one row in its own format.
    pub fn tokens(&self, row: &Json) -> Tokens {
        self.tokens_with(row, TrainOn::Assistant)
    }
    pub fn tokens_with(&self, row: &Json, train_on: TrainOn) -> Tokens {
        let example = Format::detect(row).unwrap().read(row).unwrap();
        self.chat().tokens(&example, train_on, SystemFallback::Stop).unwrap()
    }
    /// A data file with one row a line.
    pub fn data(&self, name: &str, rows: &[Json]) -> PathBuf {
        let path = self.dir.path().join(name);
        let text: String = rows.iter().map(|r| format!("{r}\n")).collect();
        std::fs::write(&path, text).unwrap();
        path
    }
    /// Prepares `rows`, with the config as `edit` leaves it.
    pub fn prepare(&self, rows: &[Json], edit: impl FnOnce(&mut RunConfig)) -> Result<Dataset> {
        let mut config = RunConfig::default();
        config.data.files = vec![self.data("rows.jsonl", rows)];
        edit(&mut config);
        pipeline::prepare(&config, self.files(), Date::from_unix(1_720_256_703), &mut |_| {}, &|| Ok(()))
    }
}

pub fn turn(role: &str, content: &str) -> Json {
    json!({"role": role, "content": content})
}

pub fn chat_row(turns: &[(&str, &str)]) -> Json {
    json!({"messages": turns.iter().map(|(r, c)| turn(r, c)).collect::<Vec<_>>()})
}

/// Text of the trained tokens of `tokens`, one `|` where others lie between.
pub fn trained_text(chat: &Chat, tokens: &Tokens) -> String {
    let mut out = String::new();
    let mut last = None;
    for (i, trained) in tokens.row.trained.iter().enumerate() {
        if *trained {
            if last.is_some_and(|l| l + 1 != i) {
                out.push('|');
            }
            out += &chat.tokenizer().token_text(tokens.row.ids[i]);
            last = Some(i);
        }
    }
    out
}

pub fn write(dir: &Path, name: &str, value: &Json) {
    std::fs::write(dir.join(name), value.to_string()).unwrap();
}

fn tokenizer(post: Option<Json>, merges: &[(&str, &str, &str)]) -> Json {
    let mut vocab = serde_json::Map::new();
    let mut extra = 256u32;
    for byte in 0..=255u8 {
        let plain = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let c = if plain {
            char::from(byte)
        } else {
            extra += 1;
            char::from_u32(extra - 1).unwrap()
        };
        vocab.insert(c.to_string(), byte.into());
    }
    if !merges.is_empty() {
        // The crate numbers added tokens from the vocabulary's length on, so the places between must be taken.
        vocab.extend(SPECIALS.iter().enumerate().map(|(i, s)| (s.to_string(), (256 + i).into())));
    }
    for (i, (token, ..)) in merges.iter().enumerate() {
        vocab.insert((*token).into(), (VOCAB + i).into());
    }
    let added: Vec<Json> = SPECIALS.iter().enumerate()
        .map(|(i, s)| json!({"id": 256 + i, "content": s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}))
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": post, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges.iter().map(|m| format!("{} {}", m.1, m.2)).collect::<Vec<_>>()}})
}
