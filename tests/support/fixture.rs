//! Model folders: config, safetensors (sharded, edited, broken), byte-level tokenizer, hub cache layout.
//!
//! [`Model::tiny`] is the base of the public cases: llama, 4 blocks, hidden 64, 4 heads / 2 kv heads, vocab 264, 39
//! tensors, 363,648 bytes of BF16, and a tokenizer in which a token's id is its byte (specials from 256). A tensor's
//! values depend on its name and the seed alone, so sharding and editing others never changes them.

pub use super::raw::{Raw, Tensor, decode, put, safetensors};
use super::raw::{header, made};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Special tokens, ids from 256.
pub const SPECIAL: [&str; 8] =
    ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"];

/// The default chat template.
pub const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + \
    '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

type Edit<T> = Rc<dyn Fn(&mut T)>;

/// A model folder to be written.
#[derive(Clone)]
pub struct Model {
    config: Map<String, Value>,
    removed: Vec<String>,
    outer: Option<Map<String, Value>>,
    dtype: String,
    prefix: String,
    shards: usize,
    seed: u64,
    std: f32,
    edits: Vec<Edit<Vec<Tensor>>>,
    weight_map: Option<Edit<BTreeMap<String, String>>>,
    /// `None` = the truth, `Some(None)` = no metadata object.
    total_size: Option<Option<Value>>,
    tokenizer: Tokenizer,
}

impl Model {
    /// The base fixture.
    pub fn tiny() -> Model {
        let Value::Object(config) = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "vocab_size": 264, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null,
            "max_position_embeddings": 512, "tie_word_embeddings": false, "attention_bias": false,
            "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 257, "eos_token_id": 258,
            "pad_token_id": 256
        }) else {
            unreachable!("an object literal")
        };
        Model {
            config,
            removed: Vec::new(),
            outer: None,
            dtype: "BF16".into(),
            prefix: "model.".into(),
            shards: 1,
            seed: 1,
            std: 0.02,
            edits: Vec::new(),
            weight_map: None,
            total_size: None,
            tokenizer: Tokenizer::default(),
        }
    }
    /// The base fixture as another family: `llama`, `mistral`, `qwen2` (q/k/v biases), `qwen3` (q/k norms).
    pub fn family(name: &str) -> Model {
        let class = match name {
            "mistral" => "MistralForCausalLM",
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        let m = Model::tiny().set("model_type", name).set("architectures", json!([class]));
        match name {
            "mistral" => m.set("sliding_window", Value::Null).unset("attention_bias"),
            "qwen2" => m.unset("attention_bias"),
            _ => m,
        }
    }
    /// Sets a key of the config; the tensors follow it.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Model {
        self.config.insert(key.into(), value.into());
        self.removed.retain(|k| k != key);
        self
    }
    /// Leaves a key out of the written config; the tensors still follow its value.
    pub fn unset(mut self, key: &str) -> Model {
        self.removed.push(key.into());
        self
    }
    /// Nests the config as `text_config` of a multimodal one with these further keys.
    pub fn nested(mut self, outer: Value) -> Model {
        self.outer = outer.as_object().cloned();
        self
    }
    /// Type of all tensors: `BF16` (default), `F16`, `F32`, ….
    pub fn dtype(mut self, dtype: &str) -> Model {
        self.dtype = dtype.into();
        self
    }
    /// Name prefix of the text stack, `model.` by default.
    pub fn prefix(mut self, prefix: &str) -> Model {
        self.prefix = prefix.into();
        self
    }
    /// Number of files; more than one come with an index.
    pub fn shards(mut self, shards: usize) -> Model {
        self.shards = shards;
        self
    }
    /// Seed of all values.
    pub fn seed(mut self, seed: u64) -> Model {
        self.seed = seed;
        self
    }
    /// Standard deviation of weights, 0.02 by default. Norms are 1 ± 0.1, biases 0 ± 0.1.
    pub fn std(mut self, std: f32) -> Model {
        self.std = std;
        self
    }
    /// Changes the list of tensors before it is written.
    pub fn edit(mut self, f: impl Fn(&mut Vec<Tensor>) + 'static) -> Model {
        self.edits.push(Rc::new(f));
        self
    }
    /// Changes the index's weight map before it is written.
    pub fn weight_map(mut self, f: impl Fn(&mut BTreeMap<String, String>) + 'static) -> Model {
        self.weight_map = Some(Rc::new(f));
        self
    }
    /// Writes this as the index's `total_size`; `None` leaves the metadata object out.
    pub fn total_size(mut self, total: Option<Value>) -> Model {
        self.total_size = Some(total);
        self
    }
    /// With another tokenizer.
    pub fn tokenizer(mut self, tokenizer: Tokenizer) -> Model {
        self.tokenizer = tokenizer;
        self
    }

    /// The config as it is written.
    pub fn config(&self) -> Value {
        let mut inner = self.config.clone();
        inner.retain(|k, _| !self.removed.contains(k));
        match &self.outer {
            None => inner.into(),
            Some(outer) => {
                let mut outer = outer.clone();
                outer.insert("text_config".into(), inner.into());
                outer.into()
            }
        }
    }
    /// The tensors as they are written.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = self.plain_tensors();
        for edit in &self.edits {
            edit(&mut tensors);
        }
        tensors
    }
    /// Values of tensor `name` exactly as the file's bytes decode, row-major.
    pub fn values(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let t = tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no tensor '{name}'"));
        decode(&t.dtype, &self.data(t))
    }
    /// Sum of the bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// Writes the folder `dir`, and returns it.
    pub fn write(&self, dir: &Path) -> PathBuf {
        self.write_small_files(dir);
        for (name, tensors) in self.files() {
            let raw = Raw { seed: self.seed, ..Raw::default() };
            let filled: Vec<Tensor> = tensors.into_iter().map(|t| self.filled(t)).collect();
            put(&dir.join(name), safetensors(&filled, &raw));
        }
        dir.to_path_buf()
    }
    /// Writes the folder `dir` with headers in place of the weights, for planning.
    pub fn write_headers(&self, dir: &Path) -> PathBuf {
        self.write_small_files(dir);
        for (name, tensors) in self.files() {
            let (header, data) = header(&tensors, &Raw::default());
            let size = 8 + header.to_string().len().next_multiple_of(8) as u64 + data;
            put(&dir.join(format!("{name}.header.json")), json!({ "size": size, "header": header }).to_string());
        }
        dir.to_path_buf()
    }
    /// Writes into the hub cache `cache` as `id` at `revision`: blobs, links, `refs/main`. Returns the repository folder.
    pub fn write_hub(&self, cache: &Path, id: &str, revision: &str) -> PathBuf {
        use sha2::{Digest, Sha256};
        let repo = cache.join(format!("models--{}", id.replace('/', "--")));
        let (blobs, snapshot) = (repo.join("blobs"), repo.join("snapshots").join(revision));
        let plain = repo.join("plain");
        self.write(&plain);
        for dir in [&blobs, &snapshot, &repo.join("refs")] {
            std::fs::create_dir_all(dir).expect("create");
        }
        for entry in std::fs::read_dir(&plain).expect("read") {
            let file = entry.expect("entry").path();
            let bytes = std::fs::read(&file).expect("read");
            let sha: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
            put(&blobs.join(&sha), bytes);
            let link = snapshot.join(file.file_name().expect("named"));
            std::os::unix::fs::symlink(Path::new("../../blobs").join(sha), link).expect("link");
        }
        std::fs::remove_dir_all(&plain).expect("remove");
        put(&repo.join("refs/main"), revision);
        repo
    }

    fn write_small_files(&self, dir: &Path) {
        std::fs::create_dir_all(dir).expect("create");
        put(&dir.join("config.json"), format!("{:#}", self.config()));
        self.tokenizer.write(dir);
        if self.shards == 1 {
            return;
        }
        let (mut map, mut total) = (BTreeMap::new(), 0);
        for (name, tensors) in self.files() {
            total += tensors.iter().map(Tensor::bytes).sum::<u64>();
            map.extend(tensors.into_iter().map(|t| (t.name, name.clone())));
        }
        if let Some(edit) = &self.weight_map {
            edit(&mut map);
        }
        let total = self.total_size.clone().unwrap_or_else(|| Some(total.into()));
        let index = match total {
            Some(total) => json!({ "metadata": { "total_size": total }, "weight_map": map }),
            None => json!({ "weight_map": map }),
        };
        put(&dir.join("model.safetensors.index.json"), index.to_string());
    }

    /// File names and their tensors: equal shares of the list, in order.
    fn files(&self) -> Vec<(String, Vec<Tensor>)> {
        let tensors = self.tensors();
        let (n, of) = (tensors.len(), self.shards);
        let name = |s: usize| match of {
            1 => "model.safetensors".to_string(),
            _ => format!("model-{:05}-of-{of:05}.safetensors", s + 1),
        };
        (0..of).map(|s| (name(s), tensors[s * n / of..(s + 1) * n / of].to_vec())).collect()
    }

    fn plain_tensors(&self) -> Vec<Tensor> {
        let c = |key: &str| self.config.get(key).and_then(Value::as_u64);
        let need = |key: &str| c(key).unwrap_or_else(|| panic!("config has no '{key}'"));
        let (hidden, inter, heads, vocab) =
            (need("hidden_size"), need("intermediate_size"), need("num_attention_heads"), need("vocab_size"));
        let d = c("head_dim").unwrap_or(hidden / heads);
        let (q, kv) = (heads * d, c("num_key_value_heads").unwrap_or(heads) * d);
        let family = self.config["model_type"].as_str().unwrap_or("");
        let bias = self.config.get("attention_bias").and_then(Value::as_bool).unwrap_or(false) || family == "qwen2";
        let mut out = Vec::new();
        let mut add = |name: String, shape: &[u64]| out.push(Tensor::new(name, &self.dtype, shape));
        add(format!("{}embed_tokens.weight", self.prefix), &[vocab, hidden]);
        for i in 0..need("num_hidden_layers") {
            let mut part = |name: &str, shape: &[u64]| add(format!("{}layers.{i}.{name}", self.prefix), shape);
            part("self_attn.q_proj.weight", &[q, hidden]);
            part("self_attn.k_proj.weight", &[kv, hidden]);
            part("self_attn.v_proj.weight", &[kv, hidden]);
            part("self_attn.o_proj.weight", &[hidden, q]);
            part("mlp.gate_proj.weight", &[inter, hidden]);
            part("mlp.up_proj.weight", &[inter, hidden]);
            part("mlp.down_proj.weight", &[hidden, inter]);
            part("input_layernorm.weight", &[hidden]);
            part("post_attention_layernorm.weight", &[hidden]);
            if bias {
                part("self_attn.q_proj.bias", &[q]);
                part("self_attn.k_proj.bias", &[kv]);
                part("self_attn.v_proj.bias", &[kv]);
            }
            if family == "qwen3" {
                part("self_attn.q_norm.weight", &[d]);
                part("self_attn.k_norm.weight", &[d]);
            }
        }
        add(format!("{}norm.weight", self.prefix), &[hidden]);
        if !self.config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false) {
            add("lm_head.weight".into(), &[vocab, hidden]);
        }
        out
    }

    fn data(&self, t: &Tensor) -> Vec<u8> {
        t.data.clone().unwrap_or_else(|| made(&t.name, &t.dtype, &t.shape, self.seed, self.std))
    }

    fn filled(&self, t: Tensor) -> Tensor {
        if t.range.is_some() { t } else { Tensor { data: Some(self.data(&t)), ..t } }
    }
}

/// A byte-level tokenizer: a token's id is its byte, then [`SPECIAL`].
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Whether encoding puts `<bos>` in front.
    pub adds_bos: bool,
    /// Chat template; `None` leaves it out.
    pub template: Option<String>,
    /// Further keys of `tokenizer_config.json`.
    pub config: Value,
}

impl Default for Tokenizer {
    fn default() -> Tokenizer {
        Tokenizer { adds_bos: false, template: Some(CHATML.into()), config: json!({}) }
    }
}

impl Tokenizer {
    /// `tokenizer.json`.
    pub fn json(&self) -> Value {
        let added = SPECIAL.iter().zip(256..).map(|(s, id)| {
            json!({ "id": id, "content": s, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
        });
        let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        let of = |id: &str, n: u32| json!({ "Sequence": { "id": id, "type_id": n } });
        let post = json!({
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<bos>", "type_id": 0 } }, of("A", 0)],
            "pair": [of("A", 0), of("B", 1)],
            "special_tokens": { "<bos>": { "id": "<bos>", "ids": [257], "tokens": ["<bos>"] } }
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": null, "pre_tokenizer": level,
            "post_processor": if self.adds_bos { post } else { Value::Null }, "decoder": level,
            "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "vocab": byte_level().iter().zip(0..).map(|(c, b)| (c.to_string(), b.into())).collect::<Map<_, Value>>(),
                "merges": [] }
        })
    }
    /// Writes `tokenizer.json` and `tokenizer_config.json` into `dir`.
    pub fn write(&self, dir: &Path) {
        let mut config = json!({ "bos_token": "<bos>", "eos_token": "<|im_end|>", "pad_token": "<pad>",
            "tokenizer_class": "PreTrainedTokenizerFast" });
        let map = config.as_object_mut().expect("an object");
        map.extend(self.template.iter().map(|t| ("chat_template".to_string(), t.as_str().into())));
        map.extend(self.config.as_object().cloned().unwrap_or_default());
        put(&dir.join("tokenizer.json"), self.json().to_string());
        put(&dir.join("tokenizer_config.json"), config.to_string());
    }
}

/// GPT-2's printable character of every byte, in byte order.
pub fn byte_level() -> Vec<char> {
    let printable = |b: u32| (33..127).contains(&b) || (161..173).contains(&b) || (174..256).contains(&b);
    let mut spare = 256..;
    (0..256u32)
        .map(|b| if printable(b) { b } else { spare.next().expect("endless") })
        .filter_map(char::from_u32)
        .collect()
}
