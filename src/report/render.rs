//! The report for people: the same sections as Markdown and as one self-contained HTML page.

use super::sections::{Section, or_dash, plain, sections};
use super::types::{NoticeLine, Report};
use super::{phases, plot};
use crate::error::{Error, Result};
use crate::event::RunStatus;
use crate::units::secs;
use minijinja::{Environment, context};
use std::fmt::Write;

/// `report.md`.
#[must_use]
pub(super) fn markdown(report: &Report) -> String {
    let mut out = format!("# {}\n\n{}\n\n![loss](loss.svg)\n", escape_md(&title(report)), escape_md(&lead(report)));
    for section in sections(report) {
        let _ = write!(out, "\n## {}\n\n| | |\n|---|---|\n", section.title);
        for (name, value) in section.rows {
            let _ = writeln!(out, "| {name} | {} |", escape_md(&value));
        }
    }
    step_md(&mut out, report);
    if !report.notices.is_empty() {
        out.push_str("\n## Warnings\n\n");
        for notice in &report.notices {
            let _ = writeln!(out, "- {}", escape_md(&notice_line(notice)));
        }
    }
    let _ = write!(out, "\n{}\n", escape_md(&method(report)));
    out
}

/// The section on a step's time; nothing where the recording doesn't say.
fn step_md(out: &mut String, report: &Report) {
    let sentence = phases::sentence(report);
    if sentence.is_some() || report.trace.is_some() {
        let _ = write!(out, "\n## {}\n", phases::TITLE);
    }
    if let Some(text) = sentence {
        let _ = write!(out, "\n{}\n", escape_md(&text));
    }
    if let Some(trace) = &report.trace {
        let _ =
            write!(out, "\n{}\n\n| {} |\n|{}\n", phases::caption(trace), phases::HEAD.join(" | "), "---|".repeat(8));
        for row in phases::table(trace) {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
    }
}

/// `report.html`: no script, no link to anywhere, light or dark by the reader's preference.
///
/// # Errors
/// The template fails; a bug.
pub(super) fn html(report: &Report) -> Result<String> {
    let fail = |e: minijinja::Error| Error::run(format!("cannot render the report: {e:#}"));
    let mut env = Environment::new();
    // The name's ending turns escaping on.
    env.add_template("report.html", include_str!("report.html")).map_err(fail)?;
    let page = env.get_template("report.html").map_err(fail)?;
    let table = |s: Section| {
        let rows: Vec<Vec<String>> = s.rows.into_iter().map(|(name, value)| vec![name.into(), value]).collect();
        context! { title => s.title, rows => rows }
    };
    page.render(context! {
        title => title(report),
        lead => lead(report),
        sections => sections(report).into_iter().map(table).collect::<Vec<_>>(),
        step_title => phases::TITLE,
        step_sentence => phases::sentence(report),
        step_caption => report.trace.as_ref().map(phases::caption),
        step_head => phases::HEAD,
        step_rows => report.trace.as_ref().map(phases::table),
        step_strip => report.trace.as_ref().map(phases::strip),
        notices => report.notices.iter().map(notice_line).collect::<Vec<_>>(),
        method => method(report),
        loss => plot::loss(report),
        seconds => plot::seconds(report),
        blocks => report.tiers.placement.iter().map(|t| t.letter()).collect::<String>(),
    })
    .map_err(fail)
}

fn title(r: &Report) -> String {
    let model = if r.model.name.is_empty() { "unknown model" } else { &r.model.name };
    format!("{model} · {} · {}", or_dash(&r.mode), or_dash(&r.verdict))
}

fn lead(r: &Report) -> String {
    let how = match r.status {
        RunStatus::Running => "still running",
        RunStatus::Finished => "finished",
        RunStatus::Stopped => "stopped early",
        RunStatus::Aborted => "stopped at once, nothing more was saved",
        RunStatus::Interrupted => "interrupted (SIGINT)",
        RunStatus::Terminated => "terminated (SIGTERM)",
        RunStatus::Failed => "failed",
    };
    let mut text = format!("{} steps on {}, {how}", r.steps, or_dash(&r.machine.device));
    if let Some(reason) = &r.reason {
        let _ = write!(text, ": {reason}");
    }
    if let Some(started) = &r.started {
        let _ = write!(text, ". Started {started}, ran {}", secs(r.seconds));
    }
    if r.sessions.len() > 1 {
        let _ = write!(text, " in {} sessions", r.sessions.len());
    }
    text + "."
}

/// What the figures are, in two sentences: a number without its method can't be compared.
fn method(r: &Report) -> String {
    format!(
        "Times are wall-clock seconds of whole optimizer steps: {} measured, {} left out as warm-up. Tokens per \
         second: {}. Bytes are counted during optimizer steps. GB = 1e9 bytes. {}",
        r.seconds_per_step.n, r.seconds_per_step.warmup_excluded, r.tokens_per_second.method, r.tool
    )
}

fn notice_line(n: &NoticeLine) -> String {
    let level = serde_json::to_value(n.level).map_or(String::new(), |v| plain(&v));
    format!("{level}: {}", crate::text::one_line(&n.text))
}

/// Text that Markdown shows as it is, on one line.
fn escape_md(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in crate::text::one_line(text).chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
