//! What runs wrote, by month, and the budget of the month.

use super::types::{Ledger, LedgerMonth, ModePlan, PlanReport, Verdict};
use crate::config::RunConfig;
use crate::engine::RunEntry;
use crate::units::{Bytes, plural};
use std::collections::BTreeMap;

/// Share of the budget from which a plan warns.
const WARN: f64 = 0.8;

/// The ledger of `runs` in `month` (`2026-11`).
#[must_use]
pub fn ledger(runs: &[RunEntry], month: &str, config: &RunConfig) -> Ledger {
    let mut months: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for run in runs {
        let at = months.entry(run.month.as_str()).or_default();
        (at.0, at.1) = (at.0 + 1, at.1.saturating_add(run.written.0));
    }
    let months = months
        .into_iter()
        .rev()
        .map(|(month, (runs, written))| LedgerMonth { month: month.into(), runs, written: Bytes(written) })
        .collect();
    Ledger { month: month.into(), months, budget: Bytes(config.wear.monthly_budget.0) }
}

impl Ledger {
    /// Bytes written in the month now.
    #[must_use]
    pub fn this_month(&self) -> Bytes {
        self.months.iter().filter(|m| m.month == self.month).map(|m| m.written).sum()
    }

    /// `1.20 TB of 2.00 TB (60 %) written in 2026-11 by 3 runs; …`, for a line.
    #[must_use]
    pub fn line(&self) -> String {
        let of = match self.budget.0 {
            0 => String::new(),
            b => format!(" of {} ({:.0} %)", self.budget, self.this_month().0 as f64 * 100.0 / b as f64),
        };
        let runs: u64 = self.months.iter().filter(|m| m.month == self.month).map(|m| m.runs as u64).sum();
        let mut line = match (runs, self.budget) {
            (0, Bytes::ZERO) => format!("no run has written anything in {}", self.month),
            (0, budget) => format!("no run has written anything in {}; the budget is {budget}", self.month),
            (n, _) => format!("{}{of} written in {} by {}", self.this_month(), self.month, plural(n, "run")),
        };
        let all: Bytes = self.months.iter().map(|m| m.written).sum();
        if all > self.this_month() {
            line.push_str(&format!("; {all} in all months"));
        }
        line
    }
}

/// Puts the ledger into a plan and holds the plan to the month's budget: a warning from 80 % of it, a refusal over it,
/// unless `wear.override` is set, which plan and report then say.
pub fn apply(report: &mut PlanReport, ledger: Ledger, config: &RunConfig) {
    if ledger.budget > Bytes::ZERO {
        for (name, mode) in [("lora", &mut report.modes.lora), ("full", &mut report.modes.full)] {
            hold(name, mode, &ledger, config);
        }
    }
    report.ledger = Some(ledger);
}

fn hold(name: &str, mode: &mut ModePlan, ledger: &Ledger, config: &RunConfig) {
    let so_far = ledger.this_month();
    // Where the run's length is the data's, one step (and what is written once) is the least it writes.
    let least = mode.wear.written_per_step + mode.wear.written_once;
    let run = mode.wear.written_per_run.unwrap_or(least);
    let after = Bytes(so_far.0.saturating_add(run.0));
    let at_least = if mode.wear.written_per_run.is_none() { "at least " } else { "" };
    let words = format!(
        "this run writes {at_least}{run}; {so_far} of this month's {} (wear.monthly_budget) are used",
        ledger.budget
    );
    if after > ledger.budget {
        if config.wear.overridden {
            mode.wear.overridden = true;
            mode.reasons.push(format!("wear.override is set: {words}"));
            return;
        }
        let first = mode.verdict != Verdict::Infeasible;
        mode.verdict = Verdict::Infeasible;
        mode.command.clear();
        if first {
            mode.reasons.insert(0, format!("SSD wear: {words}"));
            let fix = format!("set wear.monthly_budget = {} GB, or run next month", after.0.div_ceil(1_000_000_000));
            (mode.nearest_fix, mode.fix_command) = (Some(fix), None);
        } else {
            mode.reasons.push(format!("SSD wear: {words}"));
        }
    } else if after.0 as f64 > WARN * ledger.budget.0 as f64 && (name == "lora" || run > Bytes::ZERO) {
        mode.reasons.push(format!("SSD wear: {words}: over 80 % then"));
    }
}
