//! A block's weights as tensors: views of its slot, for one visit.

use crate::checkpoint::{Dtype, Part, Role};
use crate::device::shim;
use crate::error::Result;
use crate::store::{Piece, SegmentLayout};
use std::rc::Rc;
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
/// On CPU the slot already holds f32; on a GPU a tensor of another stored type than `kind` is converted (a copy that
/// lives for the visit).
///
/// # Safety
/// The slot must hold the segment, and keep it until every kernel that reads the tensor has been queued.
pub unsafe fn view(piece: &Piece, slot: *const u8, kind: Kind, device: Device) -> Tensor {
    let stored = if device.is_cuda() { kind_of(&piece.dtype) } else { Kind::Float };
    // SAFETY: inside the slot by construction of the layout, 256-byte aligned; lifetime is the caller's promise.
    let view = unsafe { shim::view(slot.add(piece.slot as usize), &piece.shape, stored, device) };
    if stored == kind { view } else { view.to_kind(kind) }
}

/// Where a block's weights come from while it computes.
///
/// Forward asks for attention, gate, up, down, each taken and done in turn. Backward asks for attention, gate, up,
/// down, up, gate, attention. A feed-forward in token chunks ([`super::BlockContext::tile`]) takes gate, up and down
/// once, before its loop, and is done with them after it: forward in that order, backward in the reverse.
pub trait Weights {
    /// Makes `part` readable by compute until `done`. What comes back may hold only the part's tensors.
    ///
    /// # Errors
    /// A read or copy failed.
    fn take(&mut self, part: Part) -> Result<Rc<BlockWeights>>;

    /// Says that the last kernel of this use of `part` has been queued; nothing of it is kept.
    ///
    /// # Errors
    /// The device refuses.
    fn done(&mut self, part: Part) -> Result<()>;
}

/// A block that is there as a whole.
#[derive(Debug)]
pub struct Whole(Rc<BlockWeights>);

impl Whole {
    /// Hands out `weights` for every part.
    #[must_use]
    pub fn new(weights: BlockWeights) -> Whole {
        Whole(Rc::new(weights))
    }
}

impl Weights for Whole {
    fn take(&mut self, _: Part) -> Result<Rc<BlockWeights>> {
        Ok(self.0.clone())
    }

    fn done(&mut self, _: Part) -> Result<()> {
        Ok(())
    }
}

/// The tensors of one block, in the compute type.
#[derive(Debug)]
pub struct BlockWeights([Option<Tensor>; Role::ALL.len()]);

impl BlockWeights {
    /// Views `layout`'s tensors in the slot at `slot` on `device`.
    ///
    /// # Safety
    /// As [`view`].
    #[must_use]
    pub unsafe fn view(layout: &SegmentLayout, slot: *const u8, kind: Kind, device: Device) -> BlockWeights {
        // SAFETY: the caller's promise.
        let one = |p: &Piece| p.role.map(|role| (role, unsafe { view(p, slot, kind, device) }));
        BlockWeights::from_tensors(layout.pieces.iter().filter_map(one))
    }

    /// The given tensors, already on the device in the compute type.
    #[must_use]
    pub fn from_tensors(given: impl IntoIterator<Item = (Role, Tensor)>) -> BlockWeights {
        let mut tensors: [Option<Tensor>; Role::ALL.len()] = std::array::from_fn(|_| None);
        for (role, tensor) in given {
            tensors[role as usize] = Some(tensor);
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
