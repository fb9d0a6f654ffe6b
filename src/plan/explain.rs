//! A plan as text for people: at most 80 columns, signs and words instead of colour.

use super::types::{Candidate, ModePlan, PlanReport, Verdict, VramPlan, Wear};
use super::words;
use crate::units::{Bytes, count, plural, secs};
use std::fmt::Write as _;

/// Widest line.
const WIDTH: usize = 80;

/// Writes the whole plan as lines of at most 80 columns (a command may be longer: it is meant to be copied): the answers
/// first, then the figures behind them.
#[must_use]
pub fn explain(plan: &PlanReport) -> String {
    let mut out = Page::default();
    let part = |name: &str| plan.parts.get(name).copied().unwrap_or(Bytes::ZERO);
    out.wrap(
        "",
        &format!(
            "{}: {} parameters, {}, {} layers of up to {}",
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
    let modes = [("lora", "LoRA", &plan.modes.lora), ("full", "full finetuning", &plan.modes.full)];
    for (name, _, mode) in modes {
        out.line("");
        one_mode(&mut out, name, mode);
    }
    out.line("");
    if !plan.ceilings.is_empty() {
        out.item("could do", &words::ceilings(&plan.ceilings));
    }
    if let Some(ledger) = plan.ledger.as_ref().filter(|l| !l.months.is_empty() || l.budget > Bytes::ZERO) {
        out.item("so far", &ledger.line());
    }
    plan.notes.iter().for_each(|n| out.item("note", n));
    for (_, name, mode) in modes {
        out.line("");
        out.line(&format!("figures of {name}"));
        figures(&mut out, mode, plan.machine.gpu.is_some());
    }
    out.text
}

fn machine(plan: &PlanReport) -> String {
    let m = &plan.machine;
    let gpu = match &m.gpu {
        Some(g) if g.integrated => format!("{} (integrated/shared), {} free", g.name, g.vram_free),
        Some(g) => format!("{}, {} of {} VRAM free", g.name, g.vram_free, g.vram_total),
        None => "no GPU".into(),
    };
    let limited = if m.ram.limited_by == "cgroup" { " (limited by a cgroup)" } else { "" };
    let mut text = format!("{gpu}; {} of {} RAM free{limited}; ", m.ram.available, m.ram.total);
    text.push_str(&match m.disk.kind.as_str() {
        "unknown" => format!("{} of disk free (kind of drive unknown)", m.disk.free),
        kind => format!("{} free on the {kind} drive", m.disk.free),
    });
    text
}

/// The answer, why, and what to do.
fn one_mode(out: &mut Page, name: &str, mode: &ModePlan) {
    let s = &mode.seconds_per_step;
    let pace = if mode.verdict == Verdict::Infeasible {
        String::new()
    } else {
        format!("   {} to {} a step; bottleneck: {}", secs(s.low), secs(s.high), words::resource(&s.resource))
    };
    out.line(&format!("{name}  {} {}{pace}", mode.verdict.sign(), mode.verdict.word()));
    mode.reasons.iter().for_each(|r| out.item("why", r));
    if let Some(fix) = &mode.nearest_fix {
        out.item("fix", fix);
    }
    if let Some(command) = &mode.fix_command {
        out.line(&format!("  {:<9} {command}", "run fixed"));
    }
    out.item("SSD wear", &wear_text(&mode.wear));
    if !mode.command.is_empty() {
        out.line(&format!("  {:<9} {}", "run", mode.command));
    }
}

/// What lies behind the answer, a level deeper.
fn figures(out: &mut Page, mode: &ModePlan, gpu: bool) {
    let t = &mode.tiers;
    let p = &mode.per_step;
    let wrote = if p.written > Bytes::ZERO { format!(", written {}", p.written) } else { String::new() };
    if gpu {
        out.item("weights", &format!("VRAM {}, RAM {}, disk {}", t.vram, t.ram, t.disk));
        let step = format!("read from disk {}, RAM→GPU {}, GPU→RAM {}", p.disk_read, p.h2d, p.d2h);
        out.item("per step", &format!("{step}{wrote}"));
    } else {
        out.item("weights", &format!("kept ready {}, loaded from RAM {}, from disk {}", t.vram, t.ram, t.disk));
        out.item("per step", &format!("read from disk {}, loaded {}{wrote}", p.disk_read, p.h2d));
    }
    memory(out, "VRAM", &mode.vram);
    memory(out, "RAM", &mode.host);
    memory(out, "disk", &mode.space);
    let legend = if gpu { "V in VRAM, R from RAM, D from disk" } else { "V kept ready, R from RAM, D from disk" };
    out.item("layers", &format!("{} ({legend})", letters(mode)));
    mode.candidates.iter().for_each(|c| candidate(out, c));
}

fn candidate(out: &mut Page, c: &Candidate) {
    let label = format!("as {}", c.format);
    let pace = if c.range.high > 0.0 {
        let (low, high) = (secs(c.range.low), secs(c.range.high));
        format!("{low} to {high} a step (bottleneck: {})", words::resource(&c.range.resource))
    } else {
        format!("from {} a step", secs(c.seconds_per_step))
    };
    let vram = if c.vram > Bytes::ZERO { format!(", {} VRAM", c.vram) } else { String::new() };
    out.item(&label, &format!("{} {}, {}, {pace}{vram}; {}", c.verdict.sign(), c.verdict.word(), c.bytes, c.note));
    if let Some(fix) = &c.nearest_fix {
        out.item("", fix);
    }
}

/// What a run costs the drive, in a sentence.
#[must_use]
pub fn wear_text(w: &Wear) -> String {
    let share = |life: f64| format!(", {} of the drive's rated life", percent(life));
    let saves = match w.saves {
        Some(n) => format!("{} of {}", plural(n, "checkpoint"), w.written_per_save),
        None => format!("checkpoints of {}", w.written_per_save),
    };
    let mut text = match (w.written_per_step, w.steps_to_tbw) {
        (Bytes::ZERO, _) => match w.written_per_run {
            Some(run) => {
                let saves = if w.saves == Some(1) { String::new() } else { format!(" ({saves})") };
                format!("only saves, {run} in all{saves}{}", w.life_per_run.map(share).unwrap_or_default())
            }
            None if w.written_per_save == Bytes::ZERO => "no SSD writes while training".into(),
            None => format!("only saves: {saves}"),
        },
        (b, Some(steps)) => format!("{b} written each step; the drive is rated for {steps} such steps"),
        (b, None) => {
            format!("{b} written each step, {:.1} TB per 1000 steps; the drive's rating is unknown", b.0 as f64 / 1e9)
        }
    };
    if w.written_per_step > Bytes::ZERO {
        if w.written_per_save > Bytes::ZERO {
            text.push_str(&format!("; {saves}"));
        }
        if let Some(run) = w.written_per_run {
            text.push_str(&format!("; {run} in all{}", w.life_per_run.map(share).unwrap_or_default()));
        }
    }
    if let Some(used) = w.life_used {
        text.push_str(&format!("; {} of its rated life is used already", percent(used)));
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
    let list: Vec<String> = terms.iter().map(|(n, b)| format!("{} {b}", words::term(n))).collect();
    out.item(name, &format!("needs {} of {} free: {}", m.total, m.budget, list.join(", ")));
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
