//! What one optimizer step moves in the steady state, sweep by sweep: the schedule's loads, in bytes.

use super::fit::Fit;
use super::schedule::{Habit, PARTS, Slots, steady};
use super::shape::{Job, Model};
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

/// Slots and habit as the streamer will have them.
fn slots(m: &Model, job: &Job, fit: &Fit) -> (Slots, Habit, usize) {
    let n = m.blocks.len();
    let pieces = if fit.stream.head.is_some() { m.vocab.div_ceil(m.head_rows()) as usize } else { 0 };
    let resident = |s: usize| s < n * PARTS && fit.tiers[s / PARTS] == TierName::Vram;
    let slots = Slots::new(n, (0..n * PARTS + pieces).map(resident).collect(), fit.stream.ring);
    let habit = Habit { tiled: fit.stream.mlp_chunk > 0, split: fit.stream.split, micro: job.micro as usize };
    (slots, habit, pieces)
}

/// Loads of one step. Independent of the number of micro-batches: they all run inside one visit.
pub fn loads(m: &Model, job: &Job, fit: &Fit) -> Loads {
    let n = m.blocks.len();
    let (slots, habit, pieces) = slots(m, job, fit);
    let piece = Bytes(m.head_stored().0.div_ceil(pieces.max(1) as u64));
    let bytes = |s: usize| if s < n * PARTS { m.blocks[s / PARTS].parts[s % PARTS] } else { piece };
    let tier = |s: usize| if s < n * PARTS { Some(fit.tiers[s / PARTS]) } else { fit.stream.head };
    let found = steady(&slots, habit, n, job.lowest, pieces);
    let sweep = |segments: &[usize]| PerStep {
        disk_read: segments.iter().filter(|s| tier(**s) == Some(TierName::Disk)).map(|s| bytes(*s)).sum(),
        h2d: segments.iter().map(|s| bytes(*s)).sum(),
        ..PerStep::default()
    };
    let [forward, head, backward] = found.each_ref().map(|s| sweep(s));
    let mut loads = Loads { forward, head, backward, count: found.iter().map(Vec::len).sum() };
    if fit.stream.offload {
        let inputs = Bytes(job.tokens() * m.hidden * m.elem * (n - job.lowest) as u64);
        loads.forward.d2h += inputs;
        loads.backward.h2d += inputs;
    }
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
