//! A block's weights as tensors: views of its slot, for one visit.

use crate::checkpoint::{Dtype, Role};
use crate::device::shim;
use crate::store::{Piece, SegmentLayout};
use tch::{Device, Kind, Tensor};

/// libtorch's name of a stored type.
#[must_use]
pub fn kind_of(dtype: &Dtype) -> Kind {
    match dtype {
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F16 => Kind::Half,
        _ => Kind::Float,
    }
}

/// View of one tensor of a slot, in the compute type.
///
/// # Safety
/// As [`BlockWeights::add`].
#[must_use]
pub unsafe fn view(piece: &Piece, slot: *const u8, kind: Kind, device: Device) -> Tensor {
    let stored = if device.is_cuda() { kind_of(&piece.dtype) } else { Kind::Float };
    // SAFETY: inside the slot by construction of the layout, 256-byte aligned; lifetime is the caller's promise.
    let view = unsafe { shim::view(slot.add(piece.slot as usize), &piece.shape, stored, device) };
    if stored == kind { view } else { view.to_kind(kind) }
}

/// The tensors of one block, in the compute type.
#[derive(Debug)]
pub struct BlockWeights([Option<Tensor>; Role::ALL.len()]);

impl BlockWeights {
    /// No tensors yet.
    #[must_use]
    pub fn none() -> BlockWeights {
        BlockWeights(std::array::from_fn(|_| None))
    }

    /// Adds views of `layout`'s tensors in the slot at `slot` on `device`.
    ///
    /// On CPU the slot already holds f32; on a GPU a tensor of another stored type than `kind` is converted (a copy
    /// that lives for the visit).
    ///
    /// # Safety
    /// The slot must hold the segment, and keep it until every kernel that reads these tensors has been queued.
    pub unsafe fn add(&mut self, layout: &SegmentLayout, slot: *const u8, kind: Kind, device: Device) {
        for p in &layout.pieces {
            let Some(role) = p.role else { continue };
            // SAFETY: the caller's promise.
            self.0[role as usize] = Some(unsafe { view(p, slot, kind, device) });
        }
    }

    /// The tensor of `role`, if the block has one.
    #[must_use]
    pub fn get(&self, role: Role) -> Option<&Tensor> {
        self.0[role as usize].as_ref()
    }

    /// The tensor of `role`, which the checkpoint reader has checked to be there.
    pub fn must(&self, role: Role) -> &Tensor {
        self.get(role).expect("the checkpoint was checked for this tensor")
    }
}
