//! A block's weights as tensors: views of its slot, for one visit.

use crate::checkpoint::{Dtype, Part, Role};
use crate::device::shim;
use crate::error::{Error, Result};
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

/// Which of several parts of one use is given back first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// The one taken first.
    FirstTaken,
    /// The one taken last.
    LastTaken,
}

/// Where a block's weights come from while it computes.
///
/// Weights are seen only inside a use, as a borrow that ends with it, so that no view of a slot is left when the slot is
/// given back. Forward uses attention, gate, up, down. Backward uses attention, gate, up, down, up, gate, attention. A
/// feed-forward in token chunks ([`super::BlockContext::tile`]) uses gate, up and down together around its loop.
pub trait Weights {
    /// Takes `parts`, runs `use_them` on weights that hold these parts at least, and gives the parts back: the last
    /// kernel that reads them has then been queued.
    ///
    /// # Errors
    /// A read or copy failed, the device refuses, or what `use_them` returns.
    fn with(
        &mut self,
        parts: &[Part],
        order: GiveBack,
        use_them: &mut dyn FnMut(&BlockWeights) -> Result<()>,
    ) -> Result<()>;
}

impl dyn Weights + '_ {
    /// One use of `part`, and what it makes.
    ///
    /// # Errors
    /// As [`Weights::with`].
    pub(super) fn using<T>(&mut self, part: Part, make: impl FnOnce(&BlockWeights) -> Result<T>) -> Result<T> {
        let (mut make, mut made) = (Some(make), None);
        self.with(&[part], GiveBack::FirstTaken, &mut |w| {
            made = make.take().map(|make| make(w)).transpose()?;
            Ok(())
        })?;
        made.ok_or_else(|| Error::run("a use of weights did not run"))
    }
}

/// A block that is there as a whole.
impl Weights for &BlockWeights {
    fn with(&mut self, _: &[Part], _: GiveBack, use_them: &mut dyn FnMut(&BlockWeights) -> Result<()>) -> Result<()> {
        use_them(self)
    }
}

/// Tensors of one block, in the compute type.
#[derive(Debug, Default)]
pub struct BlockWeights(Vec<(Role, Tensor)>);

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
        BlockWeights(given.into_iter().collect())
    }

    /// Takes those of another part in.
    pub(super) fn extend(&mut self, other: BlockWeights) {
        self.0.extend(other.0);
    }

    /// Lets go of the tensors of `part`.
    pub(super) fn forget(&mut self, part: Part) {
        self.0.retain(|(role, _)| role.part() != part);
    }

    /// The tensor of `role`, if the block has one. Only [`super::linear`] and [`super::sub`] look at it.
    pub(super) fn get(&self, role: Role) -> Option<&Tensor> {
        self.0.iter().find(|(of, _)| *of == role).map(|(_, tensor)| tensor)
    }

    /// The tensor of `role`, which the checkpoint reader has checked to be there.
    pub(super) fn must(&self, role: Role) -> &Tensor {
        self.get(role).expect("the checkpoint was checked for this tensor")
    }
}
