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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;
    use crate::config::RunConfig;
    use crate::device::profile;
    use crate::event::RunStatus;
    use crate::plan::made::{SMOL, checkpoint};
    use crate::plan::plan;
    use crate::units::Bytes;
    use std::path::Path;

    /// A card whose plans were made on it.
    fn measured(uuid: &str) -> Machine {
        let mut m = profile::load(Path::new("rtx4090-desktop")).unwrap();
        (m.name, m.source) = ("this machine".into(), "measured".into());
        m.gpu.as_mut().unwrap().uuid = Some(uuid.into());
        m
    }

    /// Runs that were planned on `machine` and took `ratio` times the middle of their forecasts.
    fn runs(dir: &Path, machine: &Machine, ratios: &[f64]) -> Vec<RunEntry> {
        let report = plan(&checkpoint(SMOL, Dtype::BF16), machine, &RunConfig::default()).unwrap();
        let range = &report.modes.lora.seconds_per_step;
        let middle = (range.low + range.high) / 2.0 / range.correction;
        let run = |(i, ratio): (usize, &f64)| {
            let dir = dir.join(format!("{}-{i}", machine.gpu.as_ref().unwrap().uuid.as_deref().unwrap()));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join(PLAN_FILE), serde_json::to_string(&report).unwrap()).unwrap();
            RunEntry {
                run_id: String::new(),
                dir,
                model: String::new(),
                verdict: "RAM".into(),
                status: RunStatus::Finished,
                steps: 20,
                loss: (None, None),
                eval: (None, None),
                seconds_per_step: Some(middle * ratio),
                tiers: Vec::new(),
                month: String::new(),
                written: Bytes::ZERO,
                adapter: None,
            }
        };
        ratios.iter().enumerate().map(run).collect()
    }

    #[test]
    fn the_median_of_this_cards_runs_shifts_the_next_forecast() {
        let (dir, machine) = (tempfile::tempdir().unwrap(), measured("GPU-1"));
        let mut all = runs(dir.path(), &machine, &[1.2, 1.3, 1.6]);
        // Another card's, a short one, one without a figure, and one whose plan is lost teach nothing.
        all.extend(runs(dir.path(), &measured("GPU-2"), &[9.0, 9.0, 9.0, 9.0]));
        all.push(RunEntry { steps: LEAST_STEPS - 1, ..all[0].clone() });
        all.push(RunEntry { seconds_per_step: None, ..all[0].clone() });
        all.push(RunEntry { dir: dir.path().join("gone"), ..all[0].clone() });
        let past = past(&all, &machine);
        let (resource, learned) = past.iter().next().unwrap();
        assert_eq!((past.len(), learned.runs), (1, 3));
        assert!((learned.ratio - 1.3).abs() < 1e-9, "{learned:?}");

        let c = checkpoint(SMOL, Dtype::BF16);
        let before = plan(&c, &machine, &RunConfig::default()).unwrap().modes.lora.seconds_per_step;
        let taught = Machine { past: past.clone(), ..machine };
        let after = plan(&c, &taught, &RunConfig::default()).unwrap().modes.lora.seconds_per_step;
        assert_eq!(&before.resource, resource);
        assert!((after.low / before.low - 1.3).abs() < 1e-9 && (after.high / before.high - 1.3).abs() < 1e-9);
        assert!((after.correction - 1.3).abs() < 1e-9);
        // A corrected plan of a later run is no second correction: its ratio is over the forecast before it.
        let later = runs(dir.path(), &taught, &[1.3]);
        assert!((super::past(&later, &taught)[resource].ratio - 1.3).abs() < 1e-9);
    }

    #[test]
    fn a_profile_teaches_nothing_and_only_the_newest_count() {
        let (dir, machine) = (tempfile::tempdir().unwrap(), measured("GPU-1"));
        let profile = Machine { source: "a profile".into(), ..machine.clone() };
        assert!(past(&runs(dir.path(), &profile, &[2.0]), &machine).is_empty());
        let ratios: Vec<f64> = [1.5; NEWEST].into_iter().chain([9.0; 20]).collect();
        let learned = past(&runs(dir.path(), &machine, &ratios), &machine);
        let learned = learned.values().next().unwrap();
        assert_eq!(learned.runs, NEWEST);
        assert!((learned.ratio - 1.5).abs() < 1e-9);
    }
}
