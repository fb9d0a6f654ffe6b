//! Small GGUF files, written by hand.

use std::path::Path;

/// A GGUF to be written (version 3, alignment 32).
#[derive(Clone, Debug, Default)]
pub struct Gguf {
    meta: Vec<(String, Vec<u8>)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    /// Innermost first, as GGUF has it.
    dims: Vec<u64>,
    kind: u32,
    data: Vec<u8>,
}

impl Gguf {
    /// Nothing in it yet.
    pub fn new() -> Gguf {
        Gguf::default()
    }
    /// An unsigned 32-bit value.
    pub fn int(self, key: &str, value: u32) -> Gguf {
        self.raw(key, 4, value.to_le_bytes().to_vec())
    }
    /// A 32-bit float.
    pub fn float(self, key: &str, value: f32) -> Gguf {
        self.raw(key, 6, value.to_le_bytes().to_vec())
    }
    /// A boolean.
    pub fn flag(self, key: &str, value: bool) -> Gguf {
        self.raw(key, 7, vec![u8::from(value)])
    }
    /// A text.
    pub fn text(self, key: &str, value: &str) -> Gguf {
        self.raw(key, 8, string(value))
    }
    /// A list of texts.
    pub fn texts(self, key: &str, values: &[&str]) -> Gguf {
        let mut bytes = [8u32.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()].concat();
        bytes.extend(values.iter().flat_map(|v| string(v)));
        self.raw(key, 9, bytes)
    }
    /// A list of signed 32-bit values.
    pub fn ints(self, key: &str, values: &[i32]) -> Gguf {
        let mut bytes = [5u32.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()].concat();
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.raw(key, 9, bytes)
    }
    /// A value of type `kind` with these bytes; replaces one of the same key.
    pub fn raw(mut self, key: &str, kind: u32, value: Vec<u8>) -> Gguf {
        self.meta.retain(|(k, _)| k != key);
        self.meta.push((key.into(), [kind.to_le_bytes().to_vec(), value].concat()));
        self
    }
    /// Takes a value out.
    pub fn without(mut self, key: &str) -> Gguf {
        self.meta.retain(|(k, _)| k != key);
        self
    }
    /// A tensor of ggml type `kind`; `shape` outermost first. Replaces one of the same name.
    pub fn tensor(mut self, name: &str, kind: u32, shape: &[u64], data: Vec<u8>) -> Gguf {
        self.tensors.retain(|t| t.name != name);
        let dims = shape.iter().rev().copied().collect();
        self.tensors.push(Tensor { name: name.into(), dims, kind, data });
        self
    }
    /// An F32 tensor.
    pub fn f32(self, name: &str, shape: &[u64], values: &[f32]) -> Gguf {
        self.tensor(name, 0, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }
    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\x00\x00\x00".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            out.extend(string(key));
            out.extend(value);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            out.extend(string(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            out.extend(t.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + t.data.len() as u64).next_multiple_of(32);
        }
        for t in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&t.data);
        }
        out
    }
    /// Writes the file.
    pub fn write(&self, path: &Path) {
        super::fixture::put(path, self.bytes());
    }

    /// A whole tiny model of architecture `arch` with F32 weights: 1 block, hidden 32, 2 heads / 1 kv head of 16, vocab
    /// of the byte-level alphabet, one merge (`h` `e`) and three special tokens. Every weight is its row number / 64.
    pub fn tiny(arch: &str) -> Gguf {
        let key = |k: &str| format!("{arch}.{k}");
        let alphabet: Vec<String> = super::fixture::byte_level().iter().map(char::to_string).collect();
        let mut tokens: Vec<&str> = alphabet.iter().map(String::as_str).collect();
        tokens.extend(["he", "<|im_start|>", "<|im_end|>", "<think>"]);
        let types: Vec<i32> = (0..260).map(|i| [1, 3, 3, 4][(i.max(256) - 256) as usize]).collect();
        let mut g = Gguf::new()
            .text("general.architecture", arch)
            .int(&key("block_count"), 1)
            .int(&key("context_length"), 128)
            .int(&key("embedding_length"), 32)
            .int(&key("feed_forward_length"), 64)
            .int(&key("attention.head_count"), 2)
            .int(&key("attention.head_count_kv"), 1)
            .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .float(&key("rope.freq_base"), 100_000.0)
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "smollm")
            .texts("tokenizer.ggml.tokens", &tokens)
            .ints("tokenizer.ggml.token_type", &types)
            .texts("tokenizer.ggml.merges", &["h e"])
            .int("tokenizer.ggml.bos_token_id", 257)
            .int("tokenizer.ggml.eos_token_id", 258)
            .int("tokenizer.ggml.padding_token_id", 258)
            .text("tokenizer.chat_template", super::fixture::CHATML);
        for (name, shape) in tiny_shapes(arch) {
            let cols = shape[1..].iter().product::<u64>() as usize;
            let n = shape.iter().product::<u64>() as usize;
            let values: Vec<f32> = (0..n).map(|i| (i / cols) as f32 / 64.0).collect();
            g = g.f32(&name, &shape, &values);
        }
        g
    }
}

fn tiny_shapes(arch: &str) -> Vec<(String, Vec<u64>)> {
    let mut all: Vec<(String, Vec<u64>)> =
        vec![("token_embd.weight".into(), vec![260, 32]), ("output_norm.weight".into(), vec![32])];
    let mut block = |name: &str, shape: &[u64]| all.push((format!("blk.0.{name}"), shape.to_vec()));
    block("attn_norm.weight", &[32]);
    block("ffn_norm.weight", &[32]);
    block("attn_q.weight", &[32, 32]);
    block("attn_k.weight", &[16, 32]);
    block("attn_v.weight", &[16, 32]);
    block("attn_output.weight", &[32, 32]);
    block("ffn_gate.weight", &[64, 32]);
    block("ffn_up.weight", &[64, 32]);
    block("ffn_down.weight", &[32, 64]);
    if arch == "qwen2" {
        block("attn_q.bias", &[32]);
        block("attn_k.bias", &[16]);
        block("attn_v.bias", &[16]);
    }
    if arch == "qwen3" {
        block("attn_q_norm.weight", &[16]);
        block("attn_k_norm.weight", &[16]);
    }
    all
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}
