//! "Where a step's time goes", for people: a sentence on the bound, the last step by phase, its visits as a strip.

use super::trace::{PhaseTimes, TraceReport};
use super::types::Report;
use crate::event::{Phase, VisitTimes};
use crate::plan::words;
use crate::units::{Bytes, secs};
use std::fmt::Write;

/// The section's title.
pub(super) const TITLE: &str = "Where a step's time goes";

/// Headings of [`table`].
pub(super) const HEAD: [&str; 8] = [
    "phase",
    "visits",
    "computing",
    "waiting for copies",
    "waiting for the disk",
    "loaded",
    "of it from disk",
    "copying",
];

/// What limited the steps, how near they came to the fastest possible, and what the rest was; `None` where the recording
/// doesn't say.
pub(super) fn sentence(r: &Report) -> Option<String> {
    let parts = r.seconds_per_step.parts?;
    let (bound, median) = (r.bound.seconds?, r.seconds_per_step.median?);
    let by = words::limiting(r.bound.resource.as_deref().unwrap_or("unknown"), &r.machine.device);
    let (took, busy) = (secs(median), secs(bound));
    // No share is told of compute: its floor is taken from the step itself.
    let share = r.bound.share.map_or(String::new(), |share| format!(" ({:.0} %)", share * 100.0));
    let mut text = format!("Bottleneck: {by}, busy for {busy} of a step's {took}{share}");
    if median > bound {
        let _ = write!(text, " and idle for {}", secs(median - bound));
    }
    let _ = write!(
        text,
        ". Computing takes {}; it waits {} for copies and {} for the disk; {} go by between layers.",
        secs(parts.compute_s),
        secs(parts.stall_link_s),
        secs(parts.stall_disk_s),
        secs(parts.other_s)
    );
    Some(text)
}

/// What [`table`] is of.
pub(super) fn caption(t: &TraceReport) -> String {
    format!("Step {} by phase. A layer's copy is counted with its visit; most of it was made before.", t.step)
}

/// A row for each phase of the trace, and their sum.
pub(super) fn table(t: &TraceReport) -> Vec<[String; 8]> {
    let row = |name: &str, p: &PhaseTimes| {
        [
            name.to_string(),
            p.visits.to_string(),
            secs(p.compute_s),
            secs(p.wait_link_s),
            secs(p.wait_disk_s),
            Bytes(p.h2d).to_string(),
            Bytes(p.disk).to_string(),
            secs(p.copy_s),
        ]
    };
    let mut rows: Vec<_> = t.phases.iter().map(|p| row(p.phase.word(), p)).collect();
    if t.phases.len() > 1 {
        let all = t.phases.iter().fold(PhaseTimes::default(), |sum, p| PhaseTimes {
            phase: sum.phase,
            visits: sum.visits + p.visits,
            compute_s: sum.compute_s + p.compute_s,
            wait_link_s: sum.wait_link_s + p.wait_link_s,
            wait_disk_s: sum.wait_disk_s + p.wait_disk_s,
            copy_s: sum.copy_s + p.copy_s,
            h2d: sum.h2d.saturating_add(p.h2d),
            disk: sum.disk.saturating_add(p.disk),
        });
        rows.push(row("all", &all));
    }
    rows
}

const STYLE: &str = "<style>\
.bs-t{font:12px system-ui,sans-serif;fill:#333}\
.bs-vc{fill:#0072b2}.bs-vl{fill:#e69f00}.bs-vd{fill:#cc0033}.bs-g{stroke:#999;stroke-width:1}\
@media(prefers-color-scheme:dark){.bs-t{fill:#ddd}.bs-vc{fill:#56b4e9}.bs-vd{fill:#ff6688}}\
</style>";

const WIDTH: f64 = 760.0;
/// Height of the longest visit, and where the bars stand.
const TALL: f64 = 90.0;
const FLOOR: f64 = 116.0;
/// Columns at most; longer steps share them.
const COLUMNS: usize = 380;

/// The visits as stacked bars, one beside the other: computing below, waiting for link and disk above it.
pub(super) fn strip(t: &TraceReport) -> String {
    let per = t.visits.len().div_ceil(COLUMNS).max(1);
    let bars: Vec<[f64; 3]> = t.visits.chunks(per).map(summed).collect();
    let longest = bars.iter().map(|b| b.iter().sum::<f64>()).fold(0.0, f64::max);
    if longest <= 0.0 {
        return String::new();
    }
    let step = WIDTH / bars.len() as f64;
    let wide = if step > 4.0 { step - 1.0 } else { step };
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} 136\" width=\"100%\" role=\"img\" aria-label=\"visits of step {}\">{STYLE}\
         <text class=\"bs-t\" x=\"0\" y=\"14\">Visits of step {}, the longest {}: <tspan class=\"bs-vc\">■</tspan> computing \
         <tspan class=\"bs-vl\">■</tspan> waiting for copies (above it) \
         <tspan class=\"bs-vd\">■</tspan> for the disk (on top)</text>",
        t.step,
        t.step,
        secs(longest / per as f64)
    );
    for (i, bar) in bars.iter().enumerate() {
        let (x, mut y) = (i as f64 * step, FLOOR);
        for (seconds, class) in bar.iter().zip(["bs-vc", "bs-vl", "bs-vd"]) {
            let height = seconds / longest * TALL;
            if height >= 0.05 {
                y -= height;
                let _ = write!(
                    out,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{height:.1}\"/>"
                );
            }
        }
    }
    let mut last = None;
    for (i, chunk) in t.visits.chunks(per).enumerate() {
        let phase = chunk[0].phase;
        // The head and the update are one visit: their names would lie over the next.
        if last != Some(phase) && matches!(phase, Phase::Forward | Phase::Backward) {
            let x = i as f64 * step;
            let _ = write!(
                out,
                "<path class=\"bs-g\" d=\"M{x:.1} {FLOOR}v16\"/><text class=\"bs-t\" x=\"{:.1}\" y=\"{}\">{}</text>",
                x + 4.0,
                FLOOR + 15.0,
                phase.word()
            );
        }
        last = Some(phase);
    }
    out + "</svg>"
}

fn summed(visits: &[VisitTimes]) -> [f64; 3] {
    visits.iter().fold([0.0; 3], |s, v| [s[0] + v.compute_s, s[1] + v.wait_link_s, s[2] + v.wait_disk_s])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(n: usize) -> TraceReport {
        let visits = (0..n)
            .map(|i| VisitTimes {
                phase: if 2 * i < n { Phase::Forward } else { Phase::Backward },
                compute_s: 0.2,
                wait_disk_s: if i == 1 { 0.4 } else { 0.0 },
                ..VisitTimes::default()
            })
            .collect();
        super::super::trace::condensed(&crate::event::StepTrace { step: 4, visits })
    }

    #[test]
    fn the_strip_has_a_bar_for_each_visit_and_for_each_wait() {
        let svg = strip(&trace(8));
        assert_eq!((svg.matches("<rect").count(), svg.matches("<rect class=\"bs-vd\"").count()), (9, 1));
        assert!(svg.contains(">forward<") && svg.contains(">backward<") && !svg.contains("NaN"));
        assert!(strip(&trace(5_000)).matches("<rect").count() <= COLUMNS + 1);
        assert!(strip(&trace(0)).is_empty() && strip(&TraceReport::default()).is_empty());
    }

    #[test]
    fn the_table_ends_with_the_sum() {
        let rows = table(&trace(8));
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[2][..5], ["all", "8", "1.60 s", "0.0 ms", "400 ms"].map(String::from));
    }
}
