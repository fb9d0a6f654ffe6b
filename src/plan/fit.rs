//! Fits blocks into tiers: as many on the device as the budget holds beside the ring, as many of the rest in host
//! memory, the others on disk. Where that doesn't fit it is thriftier, step by step; where nothing fits it says what is
//! missing.

use super::memory::Thrift;
use super::placement::Pattern;
use super::room::{Limit, Room};
use super::shape::{Job, Model};
use super::time;
use super::types::{StreamPlan, VramPlan};
use crate::config::{HeadPlace, Offload, RunConfig};
use crate::device::Machine;
use crate::event::TierName;
use crate::units::Bytes;

/// What fits where.
#[derive(Clone, Debug, Default)]
pub struct Fit {
    /// Tier of each block.
    pub tiers: Vec<TierName>,
    /// Device ring slots, in whole blocks.
    pub slots: usize,
    /// The streamer's set-up.
    pub stream: StreamPlan,
    /// Device memory; empty on a CPU machine.
    pub vram: VramPlan,
    /// Host memory.
    pub host: VramPlan,
    /// Why it can't be done; empty when it can.
    pub problems: Vec<String>,
    /// Bytes that are missing for it.
    pub lack: Bytes,
    /// What the user should know about the fit.
    pub notes: Vec<String>,
    /// What limits host memory for weights.
    pub host_limit: Limit,
}

/// Ways to spare device memory that the config leaves open, the fastest first, with this chunk of the feed-forward.
fn thrifts(config: &RunConfig, on_device: bool, mlp_chunk: usize) -> Vec<Thrift> {
    let s = &config.stream;
    let either = if on_device { vec![false, true] } else { vec![false] };
    let heads = match s.head {
        HeadPlace::Auto => either.clone(),
        place => vec![place == HeadPlace::Stream],
    };
    let offloads = match s.activation_offload {
        Offload::Auto => either,
        offload => vec![offload == Offload::On],
    };
    let mut all = Vec::new();
    for &stream_head in &heads {
        for &offload in &offloads {
            all.push(Thrift { stream_head, offload, mlp_chunk: mlp_chunk as u64 });
        }
    }
    all
}

/// How much better a thriftier way's forecast must be: what it moves beside the weights delays them and compute in ways
/// that a forecast by rates doesn't see (on an H200 7 % of a step with offloaded inputs, 5 % with a streamed head).
const GAIN: f64 = 0.9;

/// How much worse a forecast may be for a ring of more slots: forecasts don't see all that jitter does.
const STEADIER: f64 = 1.005;

/// As [`fit`], with what another fit settled: how thrifty, and how long a ring.
pub fn fit_like(like: &Fit, m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    Room::like(like, m, job, machine, config).fit(Pattern::Spread)
}

/// Whether anything fits, some blocks on disk only if `disk` allows it: with the shortest ring, and every way to spare
/// device memory that the config leaves open.
pub fn possible(m: &Model, job: &Job, machine: &Machine, config: &RunConfig, disk: bool) -> bool {
    let slots = config.stream.slots.max(1);
    let mut ways = chunks(config).into_iter().flat_map(|chunk| thrifts(config, machine.gpu.is_some(), chunk));
    ways.any(|thrift| Room::new(m, job, machine, config, thrift, slots).fits(disk))
}

/// Fits `m` for `job` on `machine`: the least thrifty way that fits, unless a thriftier one is clearly faster; of its
/// ring lengths the fastest.
pub fn fit(m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    match ways(m, job, machine, config) {
        Ok(found) => refined(found, m, job, machine, config),
        Err(none) => none,
    }
}

/// As [`fit`], but blocks stay where the usual pattern puts them: enough for a verdict.
pub fn settled(m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    match ways(m, job, machine, config) {
        Ok(found) => fastest(found).1,
        Err(none) => none,
    }
}

/// Whether [`settled`] picks a fit that is `good`; as few steps as that takes are played through.
pub fn settles(m: &Model, job: &Job, machine: &Machine, config: &RunConfig, good: impl Fn(&Fit) -> bool) -> bool {
    let Ok(all) = feasible(m, job, machine, config) else { return false };
    let mut left = all.iter().flatten().map(&good).collect::<Vec<bool>>().into_iter();
    let (mut least, mut picked) = (f64::INFINITY, left.as_slice()[0]);
    for fits in all {
        if left.as_slice().iter().all(|g| *g == picked) {
            break;
        }
        left.by_ref().take(fits.len()).for_each(drop);
        if let Some(found) = faster(fits, least * GAIN, m, job, machine) {
            least = fastest_seconds(&found);
            picked = good(&fastest(found).1);
        }
    }
    picked
}

/// Fits of the best thrift by ring length, longest first, with their seconds; or one that can't be done.
#[expect(clippy::result_large_err, reason = "both are answers")]
fn ways(m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Result<Vec<(f64, Fit)>, Fit> {
    let mut best = Vec::new();
    for fits in feasible(m, job, machine, config)? {
        let below = fastest_seconds(&best) * GAIN;
        best = faster(fits, below, m, job, machine).unwrap_or(best);
    }
    Ok(best)
}

/// Chunks of the feed-forward to try: the config's, and only if nothing fits with it, none. Where a block passes part by
/// part its chunks can't have the three parts they use together.
fn chunks(config: &RunConfig) -> Vec<usize> {
    if config.stream.mlp_chunk > 0 { vec![config.stream.mlp_chunk, 0] } else { vec![0] }
}

/// Fits that can be done, by thrift and in each by ring length, longest first; or one that can't.
#[expect(clippy::result_large_err, reason = "both are answers")]
fn feasible(m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Result<Vec<Vec<Fit>>, Fit> {
    let mut none: Option<Fit> = None;
    for chunk in chunks(config) {
        match feasible_with(chunk, m, job, machine, config) {
            Ok(mut all) => {
                if chunk != config.stream.mlp_chunk {
                    let note = format!(
                        "stream.mlp_chunk = {} is not used: with it nothing fits, since its chunks need three parts of \
                         a layer at once",
                        config.stream.mlp_chunk
                    );
                    all.iter_mut().flatten().for_each(|fit| fit.notes.push(note.clone()));
                }
                return Ok(all);
            }
            Err(fit) if none.as_ref().is_none_or(|least| fit.lack < least.lack) => none = Some(fit),
            Err(_) => {}
        }
    }
    Err(none.expect("there is always one way to try"))
}

/// As [`feasible`], with this chunk of the feed-forward.
#[expect(clippy::result_large_err, reason = "both are answers")]
fn feasible_with(
    chunk: usize,
    m: &Model,
    job: &Job,
    machine: &Machine,
    config: &RunConfig,
) -> Result<Vec<Vec<Fit>>, Fit> {
    let mut all = Vec::new();
    let mut none = None;
    for thrift in thrifts(config, machine.gpu.is_some(), chunk) {
        let mut found: Vec<Fit> = Vec::new();
        for slots in ring_lengths(config, m.blocks.len()) {
            let fit = Room::new(m, job, machine, config, thrift, slots).fit(Pattern::Spread);
            if !fit.problems.is_empty() {
                // Of what can't be done the nearest to what can.
                if none.as_ref().is_none_or(|least: &Fit| fit.lack < least.lack) {
                    none = Some(fit);
                }
                continue;
            }
            // A longer ring may have been cut to this one.
            if found.last().is_none_or(|f| f.slots != fit.slots || f.tiers != fit.tiers) {
                found.push(fit);
            }
            if found.last().is_some_and(|f| f.slots == 0) {
                break;
            }
        }
        if !found.is_empty() {
            all.push(found);
        }
    }
    if all.is_empty() { Err(none.expect("there is always one way to try")) } else { Ok(all) }
}

/// `fits` with their seconds, if one of them takes less than `below`. What the bytes to move rule out isn't played.
fn faster(fits: Vec<Fit>, below: f64, m: &Model, job: &Job, machine: &Machine) -> Option<Vec<(f64, Fit)>> {
    let bounds: Vec<f64> = fits.iter().map(|f| time::bound(m, job, machine, f)).collect();
    let mut order: Vec<usize> = (0..fits.len()).collect();
    order.sort_by(|a, b| bounds[*a].total_cmp(&bounds[*b]));
    let mut seconds = vec![None; fits.len()];
    let mut least = f64::INFINITY;
    for i in order {
        if bounds[i] < below && bounds[i] <= least * STEADIER {
            let s = time::least(m, job, machine, &fits[i]);
            (seconds[i], least) = (Some(s), least.min(s));
        }
    }
    (least < below).then(|| seconds.into_iter().zip(fits).filter_map(|(s, f)| Some((s?, f))).collect())
}

fn fastest_seconds(found: &[(f64, Fit)]) -> f64 {
    found.iter().map(|f| f.0).fold(f64::INFINITY, f64::min)
}

/// The fastest of `found`, its blocks placed by the best pattern and swapped where that helps.
fn refined(mut found: Vec<(f64, Fit)>, m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    // Only now the other patterns: which thrift is best hardly depends on them.
    let mut least = fastest_seconds(&found);
    for i in 0..found.len() {
        let like = found[i].1.clone();
        let mixed = like.tiers.iter().any(|t| *t != like.tiers[0]);
        if !mixed && job.lowest == 0 {
            continue;
        }
        let bound = time::bound(m, job, machine, &like);
        for pattern in &Pattern::ALL[1..] {
            if !improvable(least, bound) {
                break;
            }
            let other = Room::like(&like, m, job, machine, config).fit(*pattern);
            if other.problems.is_empty() {
                let seconds = time::least(m, job, machine, &other);
                least = least.min(seconds);
                found.push((seconds, other));
            }
        }
    }
    polished(fastest(found), m, job, machine, config)
}

/// Whether placing the blocks of a fit with this `bound` otherwise could make a step clearly faster than `seconds`.
fn improvable(seconds: f64, bound: f64) -> bool {
    bound * STEADIER < seconds
}

/// Longer rings and the usual pattern come first, and win unless another is clearly better.
fn fastest(mut found: Vec<(f64, Fit)>) -> (f64, Fit) {
    let mut best = found.remove(0);
    for other in found {
        if other.0 * STEADIER < best.0 {
            best = other;
        }
    }
    best
}

/// Steps played for swaps, times blocks: enough to try every pair of a small model, a few of a large one, where a
/// single block hardly counts.
const POLISH: usize = 600;

/// Swaps tiers of two blocks, near ones first, as long as that is clearly faster.
fn polished(best: (f64, Fit), m: &Model, job: &Job, machine: &Machine, config: &RunConfig) -> Fit {
    let (mut seconds, mut best) = best;
    if !improvable(seconds, time::bound(m, job, machine, &best)) {
        return best;
    }
    let room = Room::like(&best, m, job, machine, config);
    let n = best.tiers.len();
    let mut tries = POLISH / n.max(1);
    let mut again = true;
    while std::mem::take(&mut again) {
        for (i, j) in (1..n).flat_map(|d| (0..n - d).map(move |i| (i, i + d))) {
            if best.tiers[i] == best.tiers[j] {
                continue;
            }
            if tries == 0 {
                return best;
            }
            tries -= 1;
            let mut tiers = best.tiers.clone();
            tiers.swap(i, j);
            let split = room.split_as(tiers, best.slots);
            if !room.holds(&split) {
                continue;
            }
            let fit = room.finish(split, Vec::new(), best.notes.clone());
            let of_fit = time::least(m, job, machine, &fit);
            if of_fit * STEADIER < seconds {
                (seconds, best, again) = (of_fit, fit, true);
            }
        }
    }
    best
}

/// Ring lengths to try, in blocks: what the config asks for, or up to what its prefetch can use.
fn ring_lengths(config: &RunConfig, n_blocks: usize) -> Vec<usize> {
    let most = config.stream.ring_slots().clamp(1, n_blocks.max(1));
    if config.stream.slots > 0 { vec![most] } else { (1..=most).rev().collect() }
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
