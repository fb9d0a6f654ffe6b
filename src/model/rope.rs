//! Rotary position embedding (Su et al. 2021) in Hugging Face's rotate-half order: the tables. `kernels` rotates.

use crate::checkpoint::Arch;
use tch::{Device, Kind, Tensor};

/// Cosines and sines for a range of positions, one per pair of elements: in the type of what they rotate, or in f32, where
/// products are then not rounded before their sum (olmo2).
#[derive(Debug)]
pub struct RopeTable {
    /// `[S, D/2]`
    pub cos: Tensor,
    /// `[S, D/2]`
    pub sin: Tensor,
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
        let angles = Tensor::from_slice(&angles).reshape([len as i64, half]);
        let place = |t: Tensor| t.to_kind(kind).to_device(device);
        RopeTable { cos: place(angles.cos()), sin: place(angles.sin()) }
    }

    /// Positions in the table.
    #[must_use]
    pub fn len(&self) -> i64 {
        self.cos.size()[0]
    }

    /// Whether it has no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The table from position 0, kept for the greatest length seen: a step makes no table of its own.
#[derive(Debug, Default)]
pub struct RopeCache(Option<RopeTable>);

impl RopeCache {
    /// Positions `0 .. len`, sharing the cache's memory.
    pub fn get(&mut self, arch: &Arch, len: usize, kind: Kind, device: Device) -> RopeTable {
        let table = match self.0.take() {
            Some(t) if t.len() >= len as i64 => t,
            // Powers of two, so that growing lengths make few tables.
            _ => RopeTable::new(arch, 0, len.next_power_of_two(), kind, device),
        };
        let cut = |t: &Tensor| t.narrow(0, 0, len as i64);
        let out = RopeTable { cos: cut(&table.cos), sin: cut(&table.sin) };
        self.0 = Some(table);
        out
    }
}
