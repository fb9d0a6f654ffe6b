//! Rotary position embedding (Su et al. 2021) in Hugging Face's rotate-half order.

use crate::checkpoint::Arch;
use tch::{Device, Kind, Tensor};

/// Cosines and sines for a range of positions.
#[derive(Debug)]
pub struct RopeTable {
    /// `[1, 1, S, D]`
    cos: Tensor,
    /// `[1, 1, S, D]`
    sin: Tensor,
}

impl RopeTable {
    /// The table for positions `start .. start + len`, computed in f32 and rounded to `kind`, as transformers does.
    #[must_use]
    pub fn new(arch: &Arch, start: usize, len: usize, kind: Kind, device: Device) -> RopeTable {
        let inv: Vec<f32> = arch.rope.inv_freq(arch.head_dim).iter().map(|&f| f as f32).collect();
        let half = inv.len() as i64;
        let mut angles = Vec::with_capacity(len * inv.len());
        for p in start..start + len {
            angles.extend(inv.iter().map(|f| p as f32 * f));
        }
        let angles = Tensor::from_slice(&angles).reshape([1, 1, len as i64, half]);
        let angles = Tensor::cat(&[&angles, &angles], -1);
        let place = |t: Tensor| t.to_kind(kind).to_device(device);
        RopeTable { cos: place(angles.cos()), sin: place(angles.sin()) }
    }

    /// Rotates `x` `[B, heads, S, D]`.
    pub fn apply(&self, x: &Tensor) -> Tensor {
        let halves = x.chunk(2, -1);
        let rotated = Tensor::cat(&[&(-&halves[1]), &halves[0]], -1);
        x * &self.cos + rotated * &self.sin
    }
}
