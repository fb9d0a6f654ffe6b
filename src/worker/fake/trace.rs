//! The scripted engine's clock: what each visit computes, copies and waits for, on a drive that may be slow.
//!
//! Bytes scale with the time of a visit, so that every pace has the same shape: blocks on disk come every third visit
//! and take the drive about two; on a slow drive they take nine, and compute waits for the rest.

use super::facts::machine;
use crate::event::{Phase, StepRecord, TierName, VisitTimes};
use crate::units::Bytes;

/// Bytes of a block per second of a visit.
const BLOCK_PER_SECOND: f64 = 6.1e9;
/// Share of its rating that a well drive delivers.
const WELL: f64 = 0.94;

/// The machine of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Seconds of a visit without waits.
    pub visit_s: f64,
    /// The drive delivers a fifth of its rating.
    pub slow: bool,
}

impl Pace {
    pub(super) fn block(self) -> u64 {
        (self.visit_s * BLOCK_PER_SECOND) as u64
    }

    /// Bytes per second that the drive delivers.
    fn drive(self) -> f64 {
        machine().disk.read * if self.slow { 0.2 } else { WELL }
    }

    /// The visit of a block that lives on `tier`.
    pub(super) fn visit(self, phase: Phase, block: usize, tier: TierName) -> VisitTimes {
        let bytes = self.block();
        let (h2d, disk) = match tier {
            TierName::Vram => (0, 0),
            TierName::Ram => (bytes, 0),
            TierName::Disk => (bytes, bytes),
        };
        // Two other visits pass while the drive reads; on a well drive a little is left to wait for.
        let behind = (disk as f64 / self.drive() - 3.0 * self.visit_s).max(0.0);
        let wait = |tier_here: TierName, share: f64| if tier == tier_here { share * self.visit_s } else { 0.0 };
        let (wait_link_s, wait_disk_s) = (wait(TierName::Ram, 0.12), wait(TierName::Disk, 0.06));
        let link = machine().gpu.map_or(1.0, |g| g.h2d);
        VisitTimes {
            phase,
            block,
            h2d,
            disk,
            copy_s: h2d as f64 / link,
            wait_link_s,
            wait_disk_s: wait_disk_s + behind,
            compute_s: self.visit_s - wait_link_s - wait_disk_s,
        }
    }

    /// A visit that moves nothing: the head, the update.
    pub(super) fn still(self, phase: Phase, block: usize, visits: f64) -> VisitTimes {
        VisitTimes { phase, block, compute_s: visits * self.visit_s, ..VisitTimes::default() }
    }

    /// What a step says of its own time.
    pub(super) fn sum_up(self, record: &mut StepRecord, visits: &[VisitTimes]) {
        let sum = |f: fn(&VisitTimes) -> f64| visits.iter().map(f).sum::<f64>();
        record.disk_read = Bytes(visits.iter().map(|v| v.disk).sum());
        record.h2d = Bytes(visits.iter().map(|v| v.h2d).sum());
        record.h2d_s = sum(|v| v.copy_s);
        record.disk_s = record.disk_read.0 as f64 / self.drive();
        record.stall_s = sum(|v| v.wait_link_s + v.wait_disk_s);
        record.stall_disk_s = sum(|v| v.wait_disk_s);
        record.compute_s = sum(|v| v.compute_s);
        // Forward and backward are alike here: one maximum stands for two.
        let queues = [("disk", record.disk_s), ("link", record.h2d_s), ("compute", record.compute_s)];
        let slowest = queues.into_iter().fold(("compute", 0.0), |a, b| if b.1 > a.1 { b } else { a });
        (record.bound_by, record.bound_s) = (slowest.0.into(), slowest.1);
    }
}

pub(super) fn seconds(v: &VisitTimes) -> f64 {
    v.compute_s + v.wait_link_s + v.wait_disk_s
}
