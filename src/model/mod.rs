//! One decoder in parts, as functions over tensors: the weights are borrowed from a slot for one visit.
//!
//! All families here share the pre-norm block of Llama; biases, q/k norms and windows are there or not by what the
//! checkpoint holds. Shapes: B rows, S positions, H hidden, D head width. Checked against transformers by golden files.

pub mod attention;
pub mod block;
pub mod delta;
pub mod dropout;
mod feed_forward;
mod grouped;
pub mod head;
pub mod kernels;
pub mod linear;
pub mod lora;
pub mod resident;
pub mod rope;
pub mod sub;
mod tiled;
pub mod visit;
pub mod weights;

pub use block::{BlockContext, backward as block_backward, forward as block_forward};
pub use kernels::Kernels;
pub use lora::{Adapter, AdapterLayout};
pub use resident::Residents;
pub use weights::{BlockWeights, GiveBack, Weights, kind_of};

use crate::checkpoint::Checkpoint;
use tch::{Device, Kind};

/// The type blocks compute in: f32 on CPU; on a GPU [`Checkpoint::compute_dtype`].
#[must_use]
pub fn compute_kind(checkpoint: &Checkpoint, device: Device) -> Kind {
    if !device.is_cuda() {
        return Kind::Float;
    }
    kind_of(&checkpoint.compute_dtype())
}

/// `f32`, `bf16`, `f16`.
#[must_use]
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::BFloat16 => "bf16",
        Kind::Half => "f16",
        _ => "f32",
    }
}
