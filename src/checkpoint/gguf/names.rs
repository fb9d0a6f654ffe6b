//! Which Hugging Face model a GGUF holds: architecture numbers, tensor names, row order.

use super::reader::{Gguf, Parsed, Tensor};
use super::tokenizer::Ids;
use crate::text::clean;
use serde_json::{Map, Value, json};

/// The model of a GGUF, described for Hugging Face.
#[derive(Debug)]
pub struct Model {
    /// Tensors to write, by name.
    pub sources: Vec<Source>,
    /// Longest context.
    pub context: usize,
    arch: String,
    numbers: Numbers,
    rope_scaling: Value,
    tied: bool,
    qkv_bias: bool,
}

/// One tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Hugging Face's name.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// Index into the GGUF's tensors.
    pub tensor: usize,
    /// Rows that are decoded one by one: of a matrix its rows, of a vector one row, of a permuted vector its values.
    pub rows: usize,
    /// Heads whose rows are in interleaved rotary order; 0 = rows stay.
    pub permuted_heads: usize,
}

impl Source {
    /// The stored row that becomes row `row`.
    ///
    /// llama.cpp stores head rows as (pair, half) where rotate-half wants (half, pair): per head, row
    /// `half·(d/2) + pair` comes from `2·pair + half`.
    #[must_use]
    pub fn row(&self, row: usize) -> usize {
        if self.permuted_heads == 0 {
            return row;
        }
        let d = self.rows / self.permuted_heads;
        let (head, within) = (row / d, row % d);
        let (half, pair) = (within / (d / 2), within % (d / 2));
        head * d + 2 * pair + half
    }
}

#[derive(Debug)]
struct Numbers {
    layers: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    eps: f64,
    theta: f64,
    vocab: u64,
}

/// Reads the model of `gguf`.
///
/// # Errors
/// An architecture, tensor or rope rule this program doesn't know, or numbers that don't hold; each by name.
pub fn model(gguf: &Gguf) -> Parsed<Model> {
    let arch = gguf.text("general.architecture")?.unwrap_or("(none)");
    if !["llama", "qwen2", "qwen3"].contains(&arch) {
        return Err(format!("architecture '{}' is not supported; supported: llama, qwen2, qwen3", clean(arch)));
    }
    let key = |k: &str| format!("{arch}.{k}");
    let count = |k: &str| -> Parsed<Option<usize>> {
        let key = key(k);
        let Some(n) = gguf.int(&key)? else { return Ok(None) };
        let n = u32::try_from(n).ok().filter(|n| (1..1 << 30).contains(n));
        n.map(|n| Some(n as usize)).ok_or_else(|| format!("metadata '{key}' is out of range"))
    };
    let need = |k: &str| count(k)?.ok_or_else(|| format!("metadata '{}' is missing", key(k)));
    if gguf.int(&key("expert_count"))?.is_some_and(|n| n > 0) {
        return Err("a mixture of experts, which is not supported yet".into());
    }
    let (hidden, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let head_dim = match count("attention.key_length")? {
        Some(d) => d,
        None if hidden % heads == 0 => hidden / heads,
        None => return Err(format!("{hidden} wide with {heads} heads and no key_length")),
    };
    let kv_heads = count("attention.head_count_kv")?.unwrap_or(heads);
    if head_dim % 2 != 0 {
        return Err(format!("heads of odd width {head_dim}"));
    }
    for (k, whole) in [("rope.dimension_count", head_dim), ("attention.value_length", head_dim)] {
        if count(k)?.is_some_and(|n| n != whole) {
            return Err(format!("metadata '{}' is not the head width {whole}: not supported", key(k)));
        }
    }
    let find = |name: &str| gguf.tensors.iter().position(|t| t.name == name);
    let embed = find("token_embd.weight").ok_or("tensor 'token_embd.weight' is missing")?;
    let numbers = Numbers {
        layers: need("block_count")?,
        hidden,
        intermediate: need("feed_forward_length")?,
        heads,
        kv_heads,
        head_dim,
        // Stored as f32; three digits give back what the model's own config says.
        eps: three_digits(gguf.float(&key("attention.layer_norm_rms_epsilon"))?.unwrap_or(1e-6)),
        theta: gguf.float(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        vocab: gguf.tensors[embed].dims.get(1).copied().unwrap_or(0),
    };
    let mut sources = Vec::new();
    for (i, t) in gguf.tensors.iter().enumerate() {
        if t.name == "rope_freqs.weight" {
            continue;
        }
        sources.push(source(t, i, arch, &numbers)?);
    }
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Model {
        rope_scaling: rope_scaling(gguf, arch, &numbers)?,
        tied: find("output.weight").is_none(),
        qkv_bias: sources.iter().any(|s| s.name.ends_with("q_proj.bias")),
        context: need("context_length")?,
        arch: arch.to_string(),
        sources,
        numbers,
    })
}

impl Model {
    /// `config.json`.
    #[must_use]
    pub fn config(&self, ids: &Ids) -> Value {
        let n = &self.numbers;
        let class = match self.arch.as_str() {
            "qwen2" => "Qwen2ForCausalLM",
            "qwen3" => "Qwen3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        let mut config = Map::from_iter([
            ("architectures".to_string(), json!([class])),
            ("model_type".to_string(), self.arch.as_str().into()),
        ]);
        let mut set = |key: &str, value: Value| {
            config.insert(key.to_string(), value);
        };
        if self.arch != "qwen2" {
            set("attention_bias", self.qkv_bias.into());
        }
        set("attention_dropout", json!(0.0));
        for (key, id) in [("bos_token_id", ids.bos), ("eos_token_id", ids.eos), ("pad_token_id", ids.pad)] {
            if let Some(id) = id {
                set(key, id.into());
            }
        }
        set("head_dim", n.head_dim.into());
        set("hidden_act", "silu".into());
        set("hidden_size", n.hidden.into());
        set("intermediate_size", n.intermediate.into());
        set("max_position_embeddings", self.context.into());
        if self.arch == "llama" {
            set("mlp_bias", false.into());
        }
        set("num_attention_heads", n.heads.into());
        set("num_hidden_layers", n.layers.into());
        set("num_key_value_heads", n.kv_heads.into());
        set("rms_norm_eps", n.eps.into());
        set("rope_scaling", self.rope_scaling.clone());
        set("rope_theta", n.theta.into());
        set("tie_word_embeddings", self.tied.into());
        set("torch_dtype", "float16".into());
        set("use_cache", true.into());
        if self.arch != "llama" {
            set("use_sliding_window", false.into());
        }
        set("vocab_size", n.vocab.into());
        config.into()
    }
}

fn source(t: &Tensor, index: usize, arch: &str, n: &Numbers) -> Parsed<Source> {
    let (name, permuted_heads) = match t.name.as_str() {
        "token_embd.weight" => ("model.embed_tokens.weight".into(), 0),
        "output_norm.weight" => ("model.norm.weight".into(), 0),
        "output.weight" => ("lm_head.weight".into(), 0),
        other => block_name(other, arch, n)
            .ok_or_else(|| format!("tensor '{}' has no place in a {arch} model", clean(other)))?,
    };
    let shape: Vec<u64> = t.dims.iter().rev().copied().collect();
    let rows = match t.dims.as_slice() {
        [len] if permuted_heads > 0 => *len,
        // An empty product, for a vector, is one row.
        dims => dims[1..].iter().product(),
    };
    let splits = rows > 0
        && rows.is_multiple_of((2 * permuted_heads as u64).max(1))
        && (t.dims.len() > 1 || t.kind.block().0 == 1);
    if permuted_heads > 0 && !splits {
        return Err(format!("tensor '{}' has {rows} rows, which {permuted_heads} heads can't share", clean(&t.name)));
    }
    let rows = usize::try_from(rows).map_err(|_| format!("tensor '{}' has {rows} rows", clean(&t.name)))?;
    Ok(Source { name, shape, tensor: index, rows, permuted_heads })
}

/// Hugging Face's name and the permuted heads of `blk.N.part.weight` or `.bias`.
fn block_name(name: &str, arch: &str, n: &Numbers) -> Option<(String, usize)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = rest.split_once('.')?;
    let layer: usize = layer.parse().ok().filter(|l| *l < n.layers)?;
    if kind != "weight" && kind != "bias" {
        return None;
    }
    let (to, heads) = match part {
        "attn_norm" => ("input_layernorm", 0),
        "ffn_norm" => ("post_attention_layernorm", 0),
        "attn_q" => ("self_attn.q_proj", n.heads),
        "attn_k" => ("self_attn.k_proj", n.kv_heads),
        "attn_v" => ("self_attn.v_proj", 0),
        "attn_output" => ("self_attn.o_proj", 0),
        "attn_q_norm" => ("self_attn.q_norm", 0),
        "attn_k_norm" => ("self_attn.k_norm", 0),
        "ffn_gate" => ("mlp.gate_proj", 0),
        "ffn_up" => ("mlp.up_proj", 0),
        "ffn_down" => ("mlp.down_proj", 0),
        _ => return None,
    };
    let heads = if arch == "llama" { heads } else { 0 };
    Some((format!("model.layers.{layer}.{to}.{kind}"), heads))
}

/// Rope scaling from the metadata, or from the factors that llama.cpp stores for Llama 3.1 and later.
fn rope_scaling(gguf: &Gguf, arch: &str, n: &Numbers) -> Parsed<Value> {
    let factor = gguf.float(&format!("{arch}.rope.scaling.factor"))?;
    let rule = match gguf.text(&format!("{arch}.rope.scaling.type"))? {
        None | Some("none") => Value::Null,
        Some("linear") => json!({ "rope_type": "linear", "factor": factor.unwrap_or(1.0) }),
        Some(other) => return Err(format!("rope scaling '{}' is not supported", clean(other))),
    };
    let Some(t) = gguf.tensors.iter().find(|t| t.name == "rope_freqs.weight") else {
        return Ok(rule);
    };
    let mut stored = Vec::new();
    super::dequant::to_f32(t.kind, gguf.data(t), &mut stored);
    let last = stored.last().copied().map_or(1.0, f64::from).round();
    // The file holds only the resulting factors. Llama 3.1 to 3.3 all use these three constants with a factor of 8 or
    // 32; anything they don't reproduce refuses.
    use crate::checkpoint::types::{Rope, RopeScaling};
    let scaling = RopeScaling::Llama3 {
        factor: last,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    let plain = Rope { theta: n.theta, scaling: RopeScaling::None }.inv_freq(n.head_dim);
    let scaled = Rope { theta: n.theta, scaling }.inv_freq(n.head_dim);
    let same = stored.len() == plain.len()
        && stored.iter().zip(plain.iter().zip(&scaled)).all(|(s, (p, q))| (f64::from(*s) * q / p - 1.0).abs() < 1e-3);
    if !same || rule != Value::Null {
        return Err("'rope_freqs.weight' does not hold Llama 3's factors: not supported".into());
    }
    Ok(json!({
        "rope_type": "llama3", "factor": last, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }))
}

fn three_digits(x: f64) -> f64 {
    format!("{x:.2e}").parse().unwrap_or(x)
}
