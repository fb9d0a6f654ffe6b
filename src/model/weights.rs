//! A block's weights as tensors: views of its slot, for one visit.

use crate::checkpoint::{Dtype, Role};
use crate::device::shim;
use crate::store::BlockLayout;
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

/// The tensors of one block, in the compute type.
#[derive(Debug)]
pub struct BlockWeights([Option<Tensor>; Role::ALL.len()]);

impl BlockWeights {
    /// Views `layout`'s tensors in the slot at `slot` on `device`.
    ///
    /// On CPU the slot already holds f32; on a GPU a tensor of another stored type than `kind` is converted (a copy
    /// that lives for the visit).
    ///
    /// # Safety
    /// The slot must hold the block, and keep it until every kernel that reads these tensors has been queued.
    #[must_use]
    pub unsafe fn view(layout: &BlockLayout, slot: *const u8, kind: Kind, device: Device) -> BlockWeights {
        let mut tensors: [Option<Tensor>; Role::ALL.len()] = std::array::from_fn(|_| None);
        for p in &layout.pieces {
            let stored = if device.is_cuda() { kind_of(&p.dtype) } else { Kind::Float };
            // SAFETY: inside the slot by construction of the layout, 256-byte aligned; lifetime is the caller's promise.
            let view = unsafe { shim::view(slot.add(p.slot as usize), &p.shape, stored, device) };
            tensors[p.role as usize] = Some(if stored == kind { view } else { view.to_kind(kind) });
        }
        BlockWeights(tensors)
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
