//! A plan as text for people: at most 80 columns, signs and words instead of colour.

use super::types::{Candidate, ModePlan, PlanReport, Verdict, VramPlan, Wear};
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
    if !plan.what_if.is_empty() {
        out.item("what if", &format!("{}: not this machine", plan.what_if.join(", ")));
    }
    for (name, mode) in [("lora", &plan.modes.lora), ("full", &plan.modes.full)] {
        out.line("");
        one_mode(&mut out, name, mode);
    }
    out.line("");
    ceilings(&mut out, plan);
    if let Some(ledger) = plan.ledger.as_ref().filter(|l| !l.months.is_empty() || l.budget > Bytes::ZERO) {
        out.item("ledger", &ledger.line());
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

/// The largest model for each way to train, and what binds.
fn ceilings(out: &mut Page, plan: &PlanReport) {
    if plan.ceilings.is_empty() {
        return;
    }
    let list: Vec<String> = plan
        .ceilings
        .iter()
        .map(|c| format!("{} {} ({})", c.mode.replace('_', " "), count(c.params), c.limit))
        .collect();
    out.item("largest", &format!("{} of blocks like these", list.join(", ")));
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
    if let Some(command) = &mode.fix_command {
        out.line(&format!("  {:<9} {command}", "run fixed"));
    }
    let t = &mode.tiers;
    out.item("tiers", &format!("device {}, host memory {}, disk {}", t.vram, t.ram, t.disk));
    let p = &mode.per_step;
    out.item(
        "per step",
        &format!("read {}, to device {}, from device {}, written {}", p.disk_read, p.h2d, p.d2h, p.written),
    );
    out.item("wear", &wear_text(&mode.wear));
    memory(out, "device", &mode.vram);
    memory(out, "host", &mode.host);
    memory(out, "space", &mode.space);
    out.item("blocks", &format!("{} (V device, R host memory, D disk)", letters(mode)));
    mode.candidates.iter().for_each(|c| candidate(out, c));
    if !mode.command.is_empty() {
        out.line(&format!("  {:<9} {}", "run", mode.command));
    }
}

fn candidate(out: &mut Page, c: &Candidate) {
    let label = format!("as {}", c.format);
    let pace = if c.range.high > 0.0 {
        format!("{} to {} a step, set by {}", secs(c.range.low), secs(c.range.high), c.range.resource)
    } else {
        format!("from {} a step", secs(c.seconds_per_step))
    };
    let head = format!("{} {}, {}, {pace}, device {}; {}", c.verdict.sign(), c.verdict.word(), c.bytes, c.vram, c.note);
    out.item(&label, &head);
    if let Some(fix) = &c.nearest_fix {
        out.item("", fix);
    }
}

/// What a run costs the drive, in a sentence.
#[must_use]
pub fn wear_text(w: &Wear) -> String {
    let mut text = match (w.written_per_step, w.steps_to_tbw) {
        (Bytes::ZERO, _) => "none: nothing is written during a step".to_string(),
        (b, Some(steps)) => format!("{b} a step, {steps} steps to the drive's rated endurance"),
        (b, None) => format!("{b} a step, {:.1} TB per 1000 steps; the drive's rating is not known", b.0 as f64 / 1e9),
    };
    if w.written_per_save > Bytes::ZERO {
        let saves =
            w.saves.map_or("checkpoints".into(), |n| format!("{n} checkpoint{}", if n == 1 { "" } else { "s" }));
        text.push_str(&format!("; {saves} of {}", w.written_per_save));
    }
    if let Some(run) = w.written_per_run {
        text.push_str(&format!("; the run writes {run}"));
        if let Some(life) = w.life_per_run {
            text.push_str(&format!(", {} of the drive's rated life", percent(life)));
        }
    }
    if let Some(used) = w.life_used {
        text.push_str(&format!("; {} of it is used", percent(used)));
    }
    text
}

/// A share in percent, with as many places as it takes to be seen.
#[must_use]
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".into(),
        p if p < 0.0001 => "under 0.0001 %".into(),
        p if p < 0.1 => format!("{p:.4} %"),
        p if p < 10.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
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
