//! RMSNorm (Zhang & Sennrich 2019; `LlamaRMSNorm` in transformers): normalise in f32, round, then scale.

use tch::{Kind, Tensor};

/// `weight * (x / rms(x))` over the last dimension; same shape and type as `x`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let kind = x.kind();
    let x32 = x.to_kind(Kind::Float);
    let variance = x32.square().mean_dim([-1_i64].as_slice(), true, Kind::Float);
    weight * (x32 * (variance + eps).rsqrt()).to_kind(kind)
}
