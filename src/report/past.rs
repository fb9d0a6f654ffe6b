//! What earlier runs on a machine took over what was forecast for them: the planner's next range is shifted by it.

use super::record::PLAN_FILE;
use super::stats;
use crate::device::{Machine, Past};
use crate::engine::RunEntry;
use crate::plan::PlanReport;
use std::collections::BTreeMap;

/// Runs that count of each resource, the newest.
const NEWEST: usize = 10;
/// Steps a run must have.
const LEAST_STEPS: u64 = 5;
/// A plan is a few hundred kilobytes at most.
const LARGEST_PLAN: u64 = 16 << 20;

/// The ratios of `runs` (newest first) that ran on `machine`, by the resource that their plan said would bind.
///
/// Only measured machines learn: a profile is not where a run ran.
#[must_use]
pub fn past(runs: &[RunEntry], machine: &Machine) -> BTreeMap<String, Past> {
    let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(|r| r.steps >= LEAST_STEPS) {
        let Some((resource, ratio)) = ratio(run, machine) else { continue };
        let of = ratios.entry(resource).or_default();
        if of.len() < NEWEST {
            of.push(ratio);
        }
    }
    let median = |(resource, ratios): (String, Vec<f64>)| {
        let runs = ratios.len();
        let ratio = stats::median(&stats::sorted(ratios))?;
        Some((resource, Past { ratio, runs }))
    };
    ratios.into_iter().filter_map(median).collect()
}

/// One run's resource, and its seconds a step over the middle of its plan's range as it was before any correction.
fn ratio(run: &RunEntry, machine: &Machine) -> Option<(String, f64)> {
    let path = run.dir.join(PLAN_FILE);
    if std::fs::metadata(&path).ok()?.len() > LARGEST_PLAN {
        return None;
    }
    let plan: PlanReport = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    let there = &plan.machine;
    let same_card = match (&there.gpu, &machine.gpu) {
        (Some(a), Some(b)) => a.uuid == b.uuid && a.name == b.name,
        (None, None) => (there.cpu_flops / machine.cpu_flops - 1.0).abs() < 0.5,
        _ => false,
    };
    let measured = there.source.starts_with("measured") && there.name == machine.name;
    // A plan for a full finetuning is no forecast of a run yet.
    let range = &plan.modes.lora.seconds_per_step;
    let middle = (range.low + range.high) / 2.0 / range.correction.max(0.01);
    let ratio = run.seconds_per_step? / middle;
    (same_card && measured && ratio.is_finite() && ratio > 0.0).then(|| (range.resource.clone(), ratio))
}
