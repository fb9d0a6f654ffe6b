//! The types that describe an opened checkpoint. Nothing here reads a file.

pub use super::arch::{Rope, RopeScaling, SpecialIds};

use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Element type of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dtype {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
    /// Any other name, with its size in bits (0 = unknown): stored, counted, not trainable here.
    Other(String, u32),
}

impl Dtype {
    /// Bytes per element; `None` for sub-byte or unknown types.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        match self {
            Dtype::F64 => Some(8),
            Dtype::F32 => Some(4),
            Dtype::F16 | Dtype::BF16 => Some(2),
            Dtype::Other(_, bits) if *bits >= 8 && bits % 8 == 0 => Some(u64::from(*bits) / 8),
            Dtype::Other(..) => None,
        }
    }
    /// The safetensors name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Dtype::F64 => "F64",
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
            Dtype::Other(n, _) => n,
        }
    }
    /// Whether the engine can compute with it.
    #[must_use]
    pub fn is_trainable(&self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::BF16)
    }
}

/// One tensor as stored: `bytes` at `offset` of file number `file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Full name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// Index into [`Checkpoint::files`].
    pub file: usize,
    /// Absolute byte offset in that file (header included). No alignment is promised.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
    /// Weights it holds: its elements, two per byte of MXFP4 blocks, none for the scales of quantised weights.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        if super::packed::is_scale(self) {
            0
        } else if super::packed::is_mxfp4(self) {
            2 * self.bytes
        } else {
            self.elements()
        }
    }
}

/// A weights file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFile {
    /// Path with symlinks resolved.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
}

/// Decoder families with a block of their own shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Llama 1–3, SmolLM2, TinyLlama and others of the same block.
    Llama,
    /// Llama's block, optionally with a sliding window.
    Mistral,
    /// Llama's block with q/k/v biases.
    Qwen2,
    /// Llama's block with per-head q/k norms.
    Qwen3,
    /// One that can be planned, not trained; [`Checkpoint::plan_only`] names it.
    Planned,
}

/// What a tensor does inside a decoder block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `input_layernorm.weight`, `[hidden]`
    InputNorm,
    /// `self_attn.q_proj.weight`, `[heads*head_dim, hidden]`
    Q,
    /// `self_attn.k_proj.weight`, `[kv_heads*head_dim, hidden]`
    K,
    /// `self_attn.v_proj.weight`, `[kv_heads*head_dim, hidden]`
    V,
    /// `self_attn.o_proj.weight`, `[hidden, heads*head_dim]`
    O,
    /// `self_attn.q_proj.bias`
    QBias,
    /// `self_attn.k_proj.bias`
    KBias,
    /// `self_attn.v_proj.bias`
    VBias,
    /// `self_attn.o_proj.bias`
    OBias,
    /// `self_attn.q_norm.weight`, `[head_dim]`
    QNorm,
    /// `self_attn.k_norm.weight`, `[head_dim]`
    KNorm,
    /// `post_attention_layernorm.weight`, `[hidden]`
    PostNorm,
    /// `mlp.gate_proj.weight`, `[intermediate, hidden]`
    Gate,
    /// `mlp.up_proj.weight`, `[intermediate, hidden]`
    Up,
    /// `mlp.down_proj.weight`, `[hidden, intermediate]`
    Down,
    /// `mlp.gate_proj.bias`
    GateBias,
    /// `mlp.up_proj.bias`
    UpBias,
    /// `mlp.down_proj.bias`
    DownBias,
    /// Another tensor of the attention half or a norm (plan-only families): sinks, fused q/k/v, further norms, scales.
    AttentionOther,
    /// Weights, or their scales, of the routed experts: one expert's, or all of a block in one tensor.
    Expert,
    /// Another tensor of the feed-forward half (plan-only families): router, shared expert, fused gate and up, biases.
    FeedForwardOther,
}

impl Role {
    /// Every role that the engine knows, in the order a block lists them; those of plan-only families follow.
    pub const ALL: [Role; 18] = [
        Role::InputNorm,
        Role::Q,
        Role::K,
        Role::V,
        Role::O,
        Role::QBias,
        Role::KBias,
        Role::VBias,
        Role::OBias,
        Role::QNorm,
        Role::KNorm,
        Role::PostNorm,
        Role::Gate,
        Role::Up,
        Role::Down,
        Role::GateBias,
        Role::UpBias,
        Role::DownBias,
    ];

    /// Name below `layers.N.`, as in every family here; empty for the roles that stand for several names.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Role::InputNorm => "input_layernorm.weight",
            Role::Q => "self_attn.q_proj.weight",
            Role::K => "self_attn.k_proj.weight",
            Role::V => "self_attn.v_proj.weight",
            Role::O => "self_attn.o_proj.weight",
            Role::QBias => "self_attn.q_proj.bias",
            Role::KBias => "self_attn.k_proj.bias",
            Role::VBias => "self_attn.v_proj.bias",
            Role::OBias => "self_attn.o_proj.bias",
            Role::QNorm => "self_attn.q_norm.weight",
            Role::KNorm => "self_attn.k_norm.weight",
            Role::PostNorm => "post_attention_layernorm.weight",
            Role::Gate => "mlp.gate_proj.weight",
            Role::Up => "mlp.up_proj.weight",
            Role::Down => "mlp.down_proj.weight",
            Role::GateBias => "mlp.gate_proj.bias",
            Role::UpBias => "mlp.up_proj.bias",
            Role::DownBias => "mlp.down_proj.bias",
            Role::AttentionOther | Role::Expert | Role::FeedForwardOther => "",
        }
    }

    /// The part of the block it is used in. Which third of the feed-forward the tensors of plan-only families go to, the
    /// planner decides by bytes.
    #[must_use]
    pub fn part(self) -> Part {
        match self {
            Role::Gate | Role::GateBias => Part::Gate,
            Role::Up | Role::UpBias => Part::Up,
            Role::Down | Role::DownBias | Role::Expert | Role::FeedForwardOther => Part::Down,
            _ => Part::Attention,
        }
    }

    /// The bias that belongs to a projection's weight, where a family has it.
    #[must_use]
    pub fn bias(self) -> Option<Role> {
        Some(match self {
            Role::Q => Role::QBias,
            Role::K => Role::KBias,
            Role::V => Role::VBias,
            Role::O => Role::OBias,
            Role::Gate => Role::GateBias,
            Role::Up => Role::UpBias,
            Role::Down => Role::DownBias,
            _ => return None,
        })
    }

    /// `q_proj` … `down_proj` for a projection's weight, else `None`.
    #[must_use]
    pub fn lora_target(self) -> Option<&'static str> {
        Some(match self {
            Role::Q => "q_proj",
            Role::K => "k_proj",
            Role::V => "v_proj",
            Role::O => "o_proj",
            Role::Gate => "gate_proj",
            Role::Up => "up_proj",
            Role::Down => "down_proj",
            _ => return None,
        })
    }
}

/// Tensors of a block that are used together: what streaming moves, and what a step takes and gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Both norms, q, k, v and o with their biases and norms.
    Attention,
    /// Gate projection.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
}

impl Part {
    /// In the order the forward pass uses them.
    pub const ALL: [Part; 4] = [Part::Attention, Part::Gate, Part::Up, Part::Down];
}

/// A tensor of a block and what it does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTensor {
    /// What it does.
    pub role: Role,
    /// Index into [`Checkpoint::tensors`].
    pub tensor: usize,
}

/// One decoder block as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Layer number.
    pub index: usize,
    /// Its tensors, in [`Role::ALL`] order.
    pub tensors: Vec<BlockTensor>,
    /// Sum of their bytes.
    pub bytes: Bytes,
}

/// Feed-forward activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// x·sigmoid(x).
    Silu,
}

/// The numbers of the architecture, checked against the headers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arch {
    /// Family.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward.
    pub intermediate: usize,
    /// Decoder blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of a head; may differ from hidden / heads.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// RMSNorm epsilon.
    pub norm_eps: f64,
    /// Rotary embedding.
    pub rope: Rope,
    /// Head shares the embedding.
    pub tied: bool,
    /// Feed-forward activation.
    pub act: Activation,
    /// Sliding window per layer; `None` = full attention. A key is visible if q − k < window.
    pub windows: Vec<Option<usize>>,
    /// Longest position the config names.
    pub max_positions: usize,
    /// Special ids.
    pub special: SpecialIds,
    /// Its mixture of experts, if it has one.
    pub experts: Option<Experts>,
}

/// A mixture of experts, as a block that has one holds it. The first blocks of some models have a dense feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Routed experts of a block.
    pub count: usize,
    /// Routed experts that a token passes through.
    pub active: usize,
    /// Width of one expert's feed-forward.
    pub intermediate: usize,
    /// Width of the feed-forward that every token passes through beside them; 0 = none.
    pub shared: usize,
}

/// An opened checkpoint: headers and config read, no weight touched.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder (snapshot folder for a hub cache).
    pub dir: PathBuf,
    /// Shown name: hub id or folder name.
    pub name: String,
    /// `owner/name` when it lies in the hub cache.
    pub hub_id: Option<String>,
    /// Commit of the snapshot.
    pub revision: Option<String>,
    /// Architecture.
    pub arch: Arch,
    /// Weights files used.
    pub files: Vec<WeightFile>,
    /// Every tensor in them.
    pub tensors: Vec<TensorInfo>,
    /// Name prefix of the text stack, e.g. `model.` or `model.language_model.`.
    pub prefix: String,
    /// The same in the class that transformers builds of the config, whatever the file's names: adapters are named by it.
    pub class_prefix: String,
    /// Index of the embedding table.
    pub embed: usize,
    /// Index of the final norm.
    pub final_norm: usize,
    /// Index of the head; `None` when tied.
    pub head: Option<usize>,
    /// Decoder blocks, in order.
    pub blocks: Vec<Block>,
    /// Tensors nothing uses.
    pub unused: Vec<usize>,
    /// Facts the user should see: ignored files, wrong totals, fallbacks.
    pub notes: Vec<String>,
    /// Headers only, the weights are not on this machine.
    pub not_here: bool,
    /// Why this version can plan it, not train it; `None` if it can train it.
    pub plan_only: Option<String>,
    /// SHA-256 over config, headers, sizes and samples of the files' contents: the base's fingerprint.
    pub fingerprint: String,
}

impl Checkpoint {
    /// Sum of the bytes of all tensors (headers, not file sizes).
    #[must_use]
    pub fn total_bytes(&self) -> Bytes {
        self.tensors.iter().map(|t| Bytes(t.bytes)).sum()
    }
    /// Parameters of the tensors that the model uses.
    #[must_use]
    pub fn params(&self) -> u64 {
        let total: u64 = self.tensors.iter().map(TensorInfo::parameters).sum();
        let unused: u64 = self.unused.iter().map(|&i| self.tensors[i].parameters()).sum();
        total - unused
    }
    /// The family's name, for showing.
    #[must_use]
    pub fn family(&self) -> String {
        let named = self.plan_only.as_deref().and_then(|why| why.split_once(':')).map(|(name, _)| name);
        match (self.arch.family, named) {
            (Family::Planned, Some(name)) => name.into(),
            (family, _) => format!("{family:?}").to_lowercase(),
        }
    }
    /// Refuses what can be planned, but not run: a plan-only model, or one whose weights are not here.
    ///
    /// # Errors
    /// It can't be trained or generate; says why and what to do.
    pub fn runnable(&self) -> Result<()> {
        if let Some(why) = &self.plan_only {
            return Err(Error::infeasible(format!("'{}' cannot run here: {why}", clean(&self.name)))
                .next("pick a llama, mistral, qwen2 or qwen3 model in 16 bits"));
        }
        super::open::require_weights(self)
    }
    /// Bytes of the largest block.
    #[must_use]
    pub fn largest_block(&self) -> Bytes {
        self.blocks.iter().map(|b| b.bytes).max().unwrap_or(Bytes::ZERO)
    }
    /// The tensor that holds the head: the embedding when tied.
    #[must_use]
    pub fn head_tensor(&self) -> &TensorInfo {
        &self.tensors[self.head.unwrap_or(self.embed)]
    }
    /// The type that blocks compute in on a GPU: that of most of their stored bytes. Packed weights are read as BF16.
    #[must_use]
    pub fn compute_dtype(&self) -> Dtype {
        let (mut bf16, mut f16, mut f32) = (0u64, 0u64, 0u64);
        for t in self.blocks.iter().flat_map(|b| &b.tensors).map(|t| &self.tensors[t.tensor]) {
            match t.dtype {
                Dtype::F16 => f16 += t.bytes,
                Dtype::F32 | Dtype::F64 => f32 += t.bytes,
                _ => bf16 += t.bytes,
            }
        }
        if bf16 >= f16.max(f32) {
            Dtype::BF16
        } else if f16 >= f32 {
            Dtype::F16
        } else {
            Dtype::F32
        }
    }
    /// The path of a projection in the class that transformers builds, e.g. `model.layers.0.self_attn.q_proj`.
    #[must_use]
    pub fn module(&self, block: usize, role: Role) -> String {
        format!("{}layers.{block}.{}", self.class_prefix, role.suffix().trim_end_matches(".weight"))
    }
    /// The tensor of `role` in block `block`, if it has one.
    #[must_use]
    pub fn block_tensor(&self, block: usize, role: Role) -> Option<&TensorInfo> {
        self.blocks[block].tensors.iter().find(|t| t.role == role).map(|t| &self.tensors[t.tensor])
    }
}
