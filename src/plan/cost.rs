//! What one optimizer step moves in the steady state, sweep by sweep: the schedule's loads, in bytes.

use super::fit::Fit;
use super::schedule::{Habit, PARTS, steady, tile};
use super::shape::{Job, Model};
use super::slots::Slots;
use super::types::PerStep;
use crate::event::TierName;
use crate::units::Bytes;

/// Loads of a step, sweep by sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Up.
    pub forward: PerStep,
    /// A streamed head.
    pub head: PerStep,
    /// Down.
    pub backward: PerStep,
    /// Parts of blocks and pieces of the head.
    pub count: usize,
}

/// Segments as the streamer will have them: parts of blocks, then pieces of a streamed head.
pub struct Layout {
    /// Their slots.
    pub slots: Slots,
    /// How visits use them.
    pub habit: Habit,
    /// Pieces of the head.
    pub pieces: usize,
    /// Bytes of each as stored.
    pub bytes: Vec<Bytes>,
    /// Copies that load each.
    pub copies: Vec<f64>,
    /// Tier of each.
    pub tiers: Vec<TierName>,
}

impl Layout {
    /// The layout of `fit`.
    pub fn of(m: &Model, job: &Job, fit: &Fit) -> Layout {
        let n = m.blocks.len();
        let pieces = if fit.stream.head.is_some() { m.vocab.div_ceil(m.head_rows()) as usize } else { 0 };
        let piece = Bytes(m.head_stored().0.div_ceil(pieces.max(1) as u64));
        let parts = 0..n * PARTS;
        let mut bytes: Vec<Bytes> = parts.clone().map(|s| m.blocks[s / PARTS].parts[s % PARTS]).collect();
        let mut copies: Vec<f64> = parts.clone().map(|s| m.blocks[s / PARTS].tensors[s % PARTS] as f64).collect();
        copies.extend(std::iter::repeat_n(1.0, pieces));
        let mut tiers: Vec<TierName> = parts.map(|s| fit.tiers[s / PARTS]).collect();
        bytes.extend(std::iter::repeat_n(piece, pieces));
        tiers.extend(std::iter::repeat_n(fit.stream.head.unwrap_or(TierName::Vram), pieces));
        let fixed = tiers.iter().enumerate().map(|(s, t)| s < n * PARTS && *t == TierName::Vram).collect();
        let slots = Slots::new(fixed, fit.stream.ring, &m.slot_sizes);
        let (split, micro) = (fit.stream.split, job.micro as usize);
        let habit = Habit::of(micro, tile(job.micro_tokens() as usize, fit.stream.mlp_chunk, split), split);
        Layout { slots, habit, pieces, bytes, copies, tiers }
    }
}

/// Bytes of the inputs of one trained block, all micro-batches, where these leave the device.
pub fn offloaded(m: &Model, job: &Job, fit: &Fit) -> Bytes {
    if fit.stream.offload { Bytes(job.tokens() * m.hidden * m.elem) } else { Bytes::ZERO }
}

/// Loads of one step. Independent of the number of micro-batches: they all run inside one visit.
pub fn loads(m: &Model, job: &Job, fit: &Fit) -> Loads {
    let n = m.blocks.len();
    let Layout { slots, habit, pieces, bytes, tiers, .. } = Layout::of(m, job, fit);
    let found = steady(&slots, habit, n, job.lowest, pieces);
    let sweep = |segments: &[usize]| PerStep {
        disk_read: segments.iter().filter(|s| tiers[**s] == TierName::Disk).map(|s| bytes[*s]).sum(),
        h2d: segments.iter().map(|s| bytes[*s]).sum(),
        ..PerStep::default()
    };
    let [forward, head, backward] = found.each_ref().map(|s| sweep(s));
    let mut loads = Loads { forward, head, backward, count: found.iter().map(Vec::len).sum() };
    let inputs = offloaded(m, job, fit) * (n - job.lowest) as u64;
    loads.forward.d2h += inputs;
    loads.backward.h2d += inputs;
    loads
}

impl Loads {
    /// Bytes of the whole step.
    pub fn per_step(&self) -> PerStep {
        sum(&[self.forward, self.head, self.backward])
    }

    /// Bytes on the way up, and at the turn and on the way down.
    pub fn sweeps(&self) -> [PerStep; 2] {
        [sum(&[self.forward]), sum(&[self.head, self.backward])]
    }
}

fn sum(sweeps: &[PerStep]) -> PerStep {
    PerStep {
        disk_read: sweeps.iter().map(|s| s.disk_read).sum(),
        h2d: sweeps.iter().map(|s| s.h2d).sum(),
        d2h: sweeps.iter().map(|s| s.d2h).sum(),
        written: Bytes::ZERO,
    }
}
