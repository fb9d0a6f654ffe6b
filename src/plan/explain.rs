//! A plan as text for people: at most 80 columns, signs and words instead of colour.

use super::types::{ModePlan, PlanReport, Verdict, VramPlan};
use crate::units::{Bytes, count, secs};
use std::fmt::Write as _;

/// Widest line.
const WIDTH: usize = 80;

/// Writes the whole plan as lines of at most 80 columns (a command may be longer: it is meant to be copied).
#[must_use]
pub fn explain(plan: &PlanReport) -> String {
    let mut out = Page::default();
    let part = |name: &str| plan.parts.get(name).copied().unwrap_or(Bytes::ZERO);
    out.wrap(
        "",
        &format!(
            "{}: {} parameters, {}; {} blocks, the largest {}",
            plan.model,
            count(plan.params),
            plan.bytes,
            plan.n_blocks,
            part("largest_block")
        ),
    );
    out.wrap("", &format!("on {}: {}", plan.machine.name, machine(plan)));
    out.wrap("  ", &plan.machine.source);
    for (name, mode) in [("lora", &plan.modes.lora), ("full", &plan.modes.full)] {
        out.line("");
        one_mode(&mut out, name, mode);
    }
    if !plan.notes.is_empty() {
        out.line("");
        plan.notes.iter().for_each(|n| out.item("note", n));
    }
    out.text
}

fn machine(plan: &PlanReport) -> String {
    let m = &plan.machine;
    let gpu = match &m.gpu {
        Some(g) if g.integrated => format!("{} (integrated/shared) with {} free", g.name, g.vram_free),
        Some(g) => format!("{} with {} of {} free", g.name, g.vram_free, g.vram_total),
        None => "no GPU".into(),
    };
    format!(
        "{gpu}; {} of {} RAM usable ({}); {} drive with {} free",
        m.ram.available, m.ram.total, m.ram.limited_by, m.disk.kind, m.disk.free
    )
}

fn one_mode(out: &mut Page, name: &str, mode: &ModePlan) {
    let s = &mode.seconds_per_step;
    let pace = if mode.verdict == Verdict::Infeasible {
        String::new()
    } else {
        format!("   {} to {} a step, set by {}", secs(s.low), secs(s.high), s.resource)
    };
    out.line(&format!("{name}  {} {}{pace}", mode.verdict.sign(), mode.verdict.word()));
    mode.reasons.iter().for_each(|r| out.item("why", r));
    if let Some(fix) = &mode.nearest_fix {
        out.item("fix", fix);
    }
    let t = &mode.tiers;
    out.item("tiers", &format!("device {}, host memory {}, disk {}", t.vram, t.ram, t.disk));
    let p = &mode.per_step;
    out.item(
        "per step",
        &format!("read {}, to device {}, from device {}, written {}", p.disk_read, p.h2d, p.d2h, p.written),
    );
    let wear = match (mode.wear.written_per_step, mode.wear.steps_to_tbw) {
        (Bytes::ZERO, _) => "none: nothing is written during a step".to_string(),
        (w, Some(steps)) => format!("{w} a step, {steps} steps to the drive's rated endurance"),
        (w, None) => format!("{w} a step, {:.1} TB per 1000 steps; the drive's rating is not known", w.0 as f64 / 1e9),
    };
    out.item("wear", &wear);
    memory(out, "device", &mode.vram);
    memory(out, "host", &mode.host);
    out.item("blocks", &format!("{} (V device, R host memory, D disk)", letters(mode)));
    for c in &mode.candidates {
        out.item(
            &format!("as {}", c.format),
            &format!(
                "{} {}, {}, from {} a step; {}",
                c.verdict.sign(),
                c.verdict.word(),
                c.bytes,
                secs(c.seconds_per_step),
                c.note
            ),
        );
    }
    if !mode.command.is_empty() {
        out.line(&format!("  {:<9} {}", "run", mode.command));
    }
}

fn letters(mode: &ModePlan) -> String {
    let all: String = mode.placement.iter().map(|p| p.tier.letter()).collect();
    // Groups of ten keep long maps countable, and give the wrapper places to break.
    let chars: Vec<char> = all.chars().collect();
    chars.chunks(10).map(|c| c.iter().collect::<String>()).collect::<Vec<_>>().join(" ")
}

fn memory(out: &mut Page, name: &str, m: &VramPlan) {
    if m.terms.is_empty() {
        return;
    }
    let mut terms: Vec<(&String, &Bytes)> = m.terms.iter().collect();
    terms.sort_by(|a, b| b.1.cmp(a.1));
    let list: Vec<String> = terms.iter().map(|(n, b)| format!("{} {b}", n.replace('_', " "))).collect();
    out.item(name, &format!("{} of {}: {}", m.total, m.budget, list.join(", ")));
}

/// Collects lines.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, line: &str) {
        // Writing to a String can't fail.
        let _ = writeln!(self.text, "{}", line.trim_end());
    }

    fn item(&mut self, label: &str, text: &str) {
        let first = format!("  {label:<9} ");
        self.wrapped(&first, &" ".repeat(first.chars().count()), text);
    }

    fn wrap(&mut self, indent: &str, text: &str) {
        self.wrapped(indent, &format!("{indent}  "), text);
    }

    fn wrapped(&mut self, first: &str, rest: &str, text: &str) {
        let mut line = first.to_string();
        let mut empty = true;
        for word in text.split(' ').filter(|w| !w.is_empty()) {
            let gap = usize::from(!empty);
            if !empty && line.chars().count() + gap + word.chars().count() > WIDTH {
                self.line(&line);
                line = rest.to_string();
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
            empty = false;
        }
        self.line(&line);
    }
}
