//! Other formats to hold a frozen base in, each with a verdict and figures of its own.

use super::fit::{Fit, fit_like};
use super::fixes;
use super::time;
use super::types::{Candidate, Verdict};
use super::verdict::{Inputs, judge_fit, judge_soon, tier_bytes, writes};
use super::wear::wear;
use crate::units::{Bytes, GB};

/// NF4 bytes a weight with double quantisation: 4 bits, an 8-bit scale per 64, an f32 per 256 scales.
pub const NF4: f64 = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0);
/// FP8 bytes a weight.
pub const FP8: f64 = 1.0;

/// Formats that would make the base smaller than it is.
///
/// A base that fits is `like` what is packed: as thrifty, with as long a ring.
pub fn lora(x: &Inputs<'_>, like: &Fit) -> Vec<Candidate> {
    [("fp8", FP8), ("nf4", NF4)].into_iter().filter_map(|(name, per)| candidate(x, like, name, per)).collect()
}

/// The same plan with the blocks packed at `per_weight` bytes a weight.
fn candidate(x: &Inputs<'_>, like: &Fit, format: &str, per_weight: f64) -> Option<Candidate> {
    let m = x.model.packed(per_weight);
    if m.block_bytes() >= x.model.block_bytes() {
        return None;
    }
    let packing = m.block_bytes();
    let x = &Inputs { model: &m, ..*x };
    let judged = if like.problems.is_empty() {
        judge_fit(x, fit_like(like, &m, x.job, x.machine, x.config))
    } else {
        judge_soon(x)
    };
    let mut problems = judged.problems;
    // Packed blocks lie beside the base they are made from.
    let download = if x.checkpoint.not_here { x.checkpoint.total_bytes() } else { Bytes::ZERO };
    let (need, free) = (packing + download, x.machine.disk.free);
    let short = need.saturating_sub(free);
    if short > Bytes::ZERO && download <= free {
        let beside = if download > Bytes::ZERO { format!(" with the download of {download}") } else { String::new() };
        problems.push(format!("converting needs {need} of free space{beside}, the drive has {free}"));
    }
    let verdict = if problems.is_empty() { judged.verdict } else { Verdict::Infeasible };
    let range = time::forecast(&m, &x.job.timed(), x.machine, &judged.fit);
    let later = "not trainable in this version yet";
    let note = match problems.first() {
        Some(p) => format!("{p}; {later}"),
        None => format!("{later}; converting would write {packing} once"),
    };
    let on_disk = verdict == Verdict::LoraDisk;
    let nearest_fix = match (verdict, short) {
        (Verdict::Infeasible, Bytes(1..)) => Some(format!("{} GB more free disk would do", short.0.div_ceil(GB))),
        (Verdict::Infeasible, _) => fixes::lora(x, verdict).0,
        _ => None,
    };
    if problems.is_empty() {
        problems.push(match on_disk {
            true => format!(
                "{} of converted layers are read from disk in each step",
                tier_bytes(&m, &judged.fit.tiers, judged.fit.stream.head).disk
            ),
            false => "every converted layer stays in memory".into(),
        });
    }
    Some(Candidate {
        format: format.into(),
        verdict,
        bytes: m.block_bytes() + m.embed + m.head + m.final_norm,
        seconds_per_step: range.low,
        note,
        reasons: problems,
        nearest_fix,
        tiers: tier_bytes(&m, &judged.fit.tiers, judged.fit.stream.head),
        range,
        vram: judged.fit.vram.total,
        wear: wear(writes(x), &x.machine.disk, x.config),
        packing,
        command: String::new(),
    })
}
