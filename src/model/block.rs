//! One decoder block: pre-norm attention and SwiGLU feed-forward, each added to the residual stream.
//!
//! Source: `LlamaDecoderLayer`, `Qwen2DecoderLayer`, `Qwen3DecoderLayer`, `MistralDecoderLayer` of transformers.

use super::attention::{KvCache, attention};
use super::lora::BlockAdapter;
use super::norm::rms_norm;
use super::rope::RopeTable;
use super::weights::BlockWeights;
use crate::checkpoint::{Arch, Role};
use crate::error::Result;
use tch::Tensor;

/// What a block needs besides its weights and input.
#[derive(Debug)]
pub struct BlockContext<'a> {
    /// Architecture.
    pub arch: &'a Arch,
    /// Rotary table of the positions in the input.
    pub rope: &'a RopeTable,
    /// Block number.
    pub block: usize,
    /// Adapted projections, if the block has any.
    pub adapter: Option<BlockAdapter<'a>>,
}

impl BlockContext<'_> {
    /// Projection `role` with its bias and adapter: x `[.., in]` → `[.., out]`.
    fn project(&self, w: &BlockWeights, role: Role, bias: Role, x: &Tensor) -> Tensor {
        let y = x.linear(w.must(role), w.get(bias));
        match self.adapter.as_ref().and_then(|a| a.delta(role, x)) {
            Some(delta) => y + delta,
            None => y,
        }
    }
}

/// x `[B, S, H]` → `[B, S, H]`.
///
/// # Errors
/// A kernel refuses its inputs, or the device is out of memory.
pub fn block_forward(
    x: &Tensor,
    w: &BlockWeights,
    context: &BlockContext<'_>,
    cache: Option<&mut KvCache>,
) -> Result<Tensor> {
    let arch = context.arch;
    let (rows, s, _) = x.size3()?;
    let heads = |t: Tensor, n: usize| t.view([rows, s, n as i64, arch.head_dim as i64]);

    let h = rms_norm(x, w.must(Role::InputNorm), arch.norm_eps);
    let mut q = heads(context.project(w, Role::Q, Role::QBias, &h), arch.n_heads);
    let mut k = heads(context.project(w, Role::K, Role::KBias, &h), arch.n_kv_heads);
    let v = heads(context.project(w, Role::V, Role::VBias, &h), arch.n_kv_heads).transpose(1, 2);
    if let (Some(q_norm), Some(k_norm)) = (w.get(Role::QNorm), w.get(Role::KNorm)) {
        q = rms_norm(&q, q_norm, arch.norm_eps);
        k = rms_norm(&k, k_norm, arch.norm_eps);
    }
    let q = context.rope.apply(&q.transpose(1, 2));
    let k = context.rope.apply(&k.transpose(1, 2));
    let attended = attention(&q, k, v, arch.windows[context.block], cache)?;
    let x = x + context.project(w, Role::O, Role::OBias, &attended);

    let h = rms_norm(&x, w.must(Role::PostNorm), arch.norm_eps);
    let gate = context.project(w, Role::Gate, Role::GateBias, &h).silu();
    let up = context.project(w, Role::Up, Role::UpBias, &h);
    Ok(&x + context.project(w, Role::Down, Role::DownBias, &(gate * up)))
}
