//! Checkpoints made in memory: shapes only, no file. For calibrations, ceilings and tests.

use crate::checkpoint::{
    Activation, Arch, Block, BlockTensor, Checkpoint, Dtype, Family, Role, Rope, RopeScaling, SpecialIds, TensorInfo,
    WeightFile,
};
use crate::units::Bytes;

/// The numbers that make a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Shown name.
    pub name: &'static str,
    /// Decoder blocks.
    pub layers: usize,
    /// Residual width.
    pub hidden: usize,
    /// Feed-forward width.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Vocabulary rows.
    pub vocab: usize,
    /// Head shares the embedding.
    pub tied: bool,
    /// q/k/v biases, as in Qwen2.
    pub biases: bool,
}

/// The fixture of the public cases: 4 blocks, hidden 64, 39 tensors, 363648 bytes.
pub const TINY: Shape = Shape {
    name: "tiny-llama",
    layers: 4,
    hidden: 64,
    intermediate: 128,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    vocab: 264,
    tied: false,
    biases: false,
};
/// SmolLM2-135M.
pub const SMOL: Shape = Shape {
    name: "SmolLM2-135M",
    layers: 30,
    hidden: 576,
    intermediate: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocab: 49_152,
    tied: true,
    biases: false,
};
/// Llama-3-8B: 8030261248 parameters, blocks of 436.2 MB.
pub const LLAMA3_8B: Shape = Shape {
    name: "llama3-8b",
    layers: 32,
    hidden: 4096,
    intermediate: 14_336,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 128_256,
    tied: false,
    biases: false,
};
/// Qwen2.5-32B.
pub const QWEN25_32B: Shape = Shape {
    name: "qwen2.5-32b",
    layers: 64,
    hidden: 5120,
    intermediate: 27_648,
    heads: 40,
    kv_heads: 8,
    head_dim: 128,
    vocab: 152_064,
    tied: false,
    biases: true,
};

/// A checkpoint of `shape` in one file, every tensor of type `dtype`.
pub fn checkpoint(shape: Shape, dtype: Dtype) -> Checkpoint {
    let elem = dtype.size().unwrap_or(1);
    let mut offset = 1024u64;
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut add = |name: String, dims: &[usize]| {
        let dims: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        let bytes = dims.iter().product::<u64>() * elem;
        tensors.push(TensorInfo { name, dtype: dtype.clone(), shape: dims, file: 0, offset, bytes });
        offset += bytes;
        tensors.len() - 1
    };
    let Shape { hidden: h, intermediate: i, vocab, .. } = shape;
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let embed = add("model.embed_tokens.weight".into(), &[vocab, h]);
    let mut parts: Vec<(Role, Vec<usize>)> = vec![
        (Role::InputNorm, vec![h]),
        (Role::Q, vec![q, h]),
        (Role::K, vec![kv, h]),
        (Role::V, vec![kv, h]),
        (Role::O, vec![h, q]),
    ];
    if shape.biases {
        parts.extend([(Role::QBias, vec![q]), (Role::KBias, vec![kv]), (Role::VBias, vec![kv])]);
    }
    parts.extend([
        (Role::PostNorm, vec![h]),
        (Role::Gate, vec![i, h]),
        (Role::Up, vec![i, h]),
        (Role::Down, vec![h, i]),
    ]);
    let mut blocks = Vec::new();
    for index in 0..shape.layers {
        let list: Vec<BlockTensor> = parts
            .iter()
            .map(|(role, dims)| BlockTensor {
                role: *role,
                tensor: add(format!("model.layers.{index}.{}", role.suffix()), dims),
            })
            .collect();
        blocks.push((index, list));
    }
    let final_norm = add("model.norm.weight".into(), &[h]);
    let head = (!shape.tied).then(|| add("lm_head.weight".into(), &[vocab, h]));
    let blocks = blocks
        .into_iter()
        .map(|(index, list)| {
            let bytes = list.iter().map(|t| Bytes(tensors[t.tensor].bytes)).sum();
            Block { index, tensors: list, bytes }
        })
        .collect();
    Checkpoint {
        dir: "model".into(),
        name: shape.name.into(),
        hub_id: None,
        revision: None,
        arch: Arch {
            family: if shape.biases { Family::Qwen2 } else { Family::Llama },
            hidden: h,
            intermediate: i,
            n_layers: shape.layers,
            n_heads: shape.heads,
            n_kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            vocab,
            norm_eps: 1e-5,
            rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
            tied: shape.tied,
            act: Activation::Silu,
            windows: vec![None; shape.layers],
            max_positions: 8192,
            special: SpecialIds::default(),
            experts: None,
        },
        files: vec![WeightFile { path: "model/model.safetensors".into(), bytes: offset }],
        tensors,
        prefix: "model.".into(),
        class_prefix: "model.".into(),
        embed,
        final_norm,
        head,
        blocks,
        unused: vec![],
        notes: vec![],
        not_here: false,
        plan_only: None,
        fingerprint: "test".into(),
    }
}

/// Adds an extra tensor to block `index`, so that block sizes are unequal.
pub fn grow_block(c: &mut Checkpoint, index: usize, bytes: u64) {
    let t = c.tensors.len();
    let offset = c.files[0].bytes;
    c.tensors.push(TensorInfo {
        name: format!("model.layers.{index}.ple.weight"),
        dtype: Dtype::BF16,
        shape: vec![bytes / 2],
        file: 0,
        offset,
        bytes,
    });
    c.files[0].bytes += bytes;
    // No family here has such a tensor; a bias role stands in for it.
    c.blocks[index].tensors.push(BlockTensor { role: Role::DownBias, tensor: t });
    c.blocks[index].bytes += Bytes(bytes);
}
