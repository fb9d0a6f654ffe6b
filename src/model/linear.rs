//! One projection of a visit's weights: y = x·Wᵀ + b, where the sum goes, and the way back to x.

use super::delta::Tuned;
use super::weights::BlockWeights;
use crate::checkpoint::Role;
use crate::device::shim::gemm;
use crate::error::Result;
use tch::Tensor;

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub enum Sum<'a> {
    /// To a new tensor.
    New,
    /// Over this one, which may be a slice of a wider matrix.
    Over(&'a Tensor),
    /// Added to this one, as a new tensor.
    Onto(&'a Tensor),
    /// Added to this one, in place.
    Into(&'a Tensor),
}

impl Sum<'_> {
    /// a·b by one product.
    fn product(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        match self {
            Sum::New => Ok(a.f_mm(b)?),
            Sum::Onto(x) => Ok(x.f_addmm(a, b)?),
            Sum::Over(out) => gemm(out, a, b, 0.0, 1.0).map(|()| out.shallow_clone()),
            Sum::Into(out) => gemm(out, a, b, 1.0, 1.0).map(|()| out.shallow_clone()),
        }
    }
}

/// A weight `[out, in]` and its bias, borrowed for one use.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    role: Role,
    matrix: &'a Tensor,
    bias: Option<&'a Tensor>,
}

impl<'a> Linear<'a> {
    /// The projection `role` of `w`, with a bias if the block has one.
    pub(super) fn of(w: &'a BlockWeights, role: Role) -> Linear<'a> {
        Linear { role, matrix: w.must(role), bias: role.bias().and_then(|bias| w.get(bias)) }
    }

    /// x `[T, in]` → `[T, out]` where `sum` says, with the tuned part, which has taken `x`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn forward(&self, x: &Tensor, sum: Sum<'_>, tuned: &Tuned<'_>) -> Result<Tensor> {
        let w = self.matrix.tr();
        let y = match (sum, self.bias) {
            (Sum::New, Some(bias)) => bias.f_addmm(x, &w)?,
            (Sum::Over(out), Some(bias)) => bias.f_addmm_out(out, x, &w)?,
            (_, Some(bias)) => sum.product(x, &w)?.f_add_(bias)?,
            (_, None) => sum.product(x, &w)?,
        };
        tuned.add(self.role, &y)?;
        Ok(y)
    }

    /// The gradient of x from that of y, `dy` `[T, out]`, without the tuned part's, which is of all projections of x.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn back(&self, dy: &Tensor, sum: Sum<'_>) -> Result<Tensor> {
        sum.product(dy, self.matrix)
    }
}
