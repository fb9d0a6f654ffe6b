//! Half a block: x + op(norm(x)), forward and back. The operation's last product adds into x.

use super::kernels::{Kernels, NormUse};
use super::weights::BlockWeights;
use crate::checkpoint::Role;
use crate::error::Result;
use tch::Tensor;

/// The norm and the sum around an operation.
#[derive(Clone, Copy, Debug)]
pub struct Sub<'a> {
    /// Weight of the norm before it.
    pub before: Role,
    /// How it norms.
    pub norm: NormUse,
    /// The operations.
    pub kernels: &'a Kernels,
}

impl Sub<'_> {
    /// What the operation reads, of `x` `[T, H]`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn enter(&self, x: &Tensor, w: &BlockWeights) -> Result<Tensor> {
        self.kernels.rms_norm(x, w.must(self.before), self.norm)
    }

    /// Turns `dh`, the gradient of what the operation read, into that of `x`, of which `gy` comes past the operation.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn enter_back(&self, x: &Tensor, dh: &Tensor, gy: &Tensor, w: &BlockWeights) -> Result<()> {
        self.kernels.rms_norm_backward(x, w.must(self.before), self.norm, dh, Some(gy))
    }
}
