//! The report for people: the same sections as Markdown and as one self-contained HTML page.

use super::plot;
use super::types::{NoticeLine, Report, Spread};
use crate::error::{Error, Result};
use crate::event::{RunStatus, TierName};
use crate::units::{Bytes, count, secs};
use minijinja::{Environment, context};
use std::fmt::Write;

/// A table of names and values.
struct Section {
    title: &'static str,
    rows: Vec<(&'static str, String)>,
}

/// `report.md`.
#[must_use]
pub(super) fn markdown(report: &Report) -> String {
    let mut out = format!(
        "# {}\n\n{}\n\n![loss](loss.svg)\n",
        escape_md(&title(report)),
        escape_md(&lead(report))
    );
    for section in sections(report) {
        let _ = write!(out, "\n## {}\n\n| | |\n|---|---|\n", section.title);
        for (name, value) in section.rows {
            let _ = writeln!(out, "| {name} | {} |", escape_md(&value));
        }
    }
    if !report.notices.is_empty() {
        out.push_str("\n## Warnings\n\n");
        for notice in &report.notices {
            let _ = writeln!(out, "- {}", escape_md(&notice_line(notice)));
        }
    }
    let _ = write!(out, "\n{}\n", escape_md(&method(report)));
    out
}

/// `report.html`: no script, no link to anywhere, light or dark by the reader's preference.
///
/// # Errors
/// The template fails; a bug.
pub(super) fn html(report: &Report) -> Result<String> {
    let fail = |e: minijinja::Error| Error::run(format!("cannot render the report: {e:#}"));
    let mut env = Environment::new();
    // The name's ending turns escaping on.
    env.add_template("report.html", include_str!("report.html"))
        .map_err(fail)?;
    let page = env.get_template("report.html").map_err(fail)?;
    let table = |s: Section| {
        let rows: Vec<Vec<String>> = s
            .rows
            .into_iter()
            .map(|(name, value)| vec![name.into(), value])
            .collect();
        context! { title => s.title, rows => rows }
    };
    page.render(context! {
        title => title(report),
        lead => lead(report),
        sections => sections(report).into_iter().map(table).collect::<Vec<_>>(),
        notices => report.notices.iter().map(notice_line).collect::<Vec<_>>(),
        method => method(report),
        loss => plot::loss(report),
        seconds => plot::seconds(report),
        blocks => report.tiers.placement.iter().map(|t| t.letter()).collect::<String>(),
    })
    .map_err(fail)
}

fn title(r: &Report) -> String {
    let model = if r.model.name.is_empty() {
        "unknown model"
    } else {
        &r.model.name
    };
    format!("{model} · {} · {}", or_dash(&r.mode), or_dash(&r.verdict))
}

fn lead(r: &Report) -> String {
    let how = match r.status {
        RunStatus::Running => "still running",
        RunStatus::Finished => "finished",
        RunStatus::Stopped => "stopped early and saved",
        RunStatus::Aborted => "stopped at once; the last checkpoint stands",
        RunStatus::Interrupted => "interrupted (SIGINT) and saved",
        RunStatus::Terminated => "terminated (SIGTERM) and saved",
        RunStatus::Failed => "failed; the last checkpoint stands",
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

fn sections(r: &Report) -> Vec<Section> {
    let mut all = vec![
        Section {
            title: "Result",
            rows: result(r),
        },
        Section {
            title: "Speed",
            rows: speed(r),
        },
        Section {
            title: "Bytes per step",
            rows: bytes(r),
        },
        Section {
            title: "Memory",
            rows: memory(r),
        },
        Section {
            title: "Set-up",
            rows: setup(r),
        },
        Section {
            title: "Data",
            rows: data(r),
        },
        Section {
            title: "Machine",
            rows: machine(r),
        },
    ];
    if r.sessions.len() > 1 {
        all.push(Section {
            title: "Sessions",
            rows: sessions(r),
        });
    }
    all
}

fn result(r: &Report) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        (
            "training loss",
            format!("{} → {}", number(r.loss.first), number(r.loss.last)),
        ),
        ("held-out loss", held_out(r)),
        ("steps", r.steps.to_string()),
        (
            "tokens",
            format!("{} ({} carried loss)", count(r.tokens), count(r.trained_tokens)),
        ),
        (
            "trained parameters",
            format!(
                "{}, from block {} of {} up",
                count(r.model.trainable_params),
                r.model.lowest_trainable,
                r.model.n_blocks
            ),
        ),
    ];
    if !r.skipped_steps.is_empty() {
        let shown: Vec<String> = r.skipped_steps.iter().take(10).map(u64::to_string).collect();
        let more = if r.skipped_steps.len() > 10 { ", …" } else { "" };
        rows.push((
            "skipped updates",
            format!("{}: steps {}{more}", r.skipped_steps.len(), shown.join(", ")),
        ));
    }
    rows
}

fn held_out(r: &Report) -> String {
    match (r.eval.before, r.eval.after) {
        (Some(b), Some(a)) if b != 0.0 => {
            format!(
                "{} → {} ({:+.1} %)",
                number(Some(b)),
                number(Some(a)),
                (a - b) / b * 100.0
            )
        }
        (None, None) => "not measured".into(),
        (b, a) => format!("{} → {}", number(b), number(a)),
    }
}

fn speed(r: &Report) -> Vec<(&'static str, String)> {
    let t = &r.seconds_per_step;
    let f = &r.forecast;
    let inside = match f.inside {
        Some(true) => ", the median is inside",
        Some(false) => ", the median is OUTSIDE",
        None => "",
    };
    let share = r
        .bound
        .share
        .map_or(String::new(), |s| format!(", {:.0} % of it reached", s * 100.0));
    vec![
        (
            "seconds per step",
            format!(
                "median {}, p95 {}, fastest {}, slowest {}",
                time(t.median),
                time(t.p95),
                time(t.min),
                time(t.max)
            ),
        ),
        ("forecast", format!("{} to {}{inside}", time(f.low), time(f.high))),
        (
            "bound",
            format!(
                "{} ({}){share}",
                time(r.bound.seconds),
                r.bound.resource.as_deref().unwrap_or("–")
            ),
        ),
        (
            "tokens per second",
            r.tokens_per_second
                .value
                .map_or("–".into(), |v| format!("{v:.1}")),
        ),
        (
            "copies / waits",
            format!(
                "{} copying, {} waiting for weights, {} waiting for a slot",
                secs(r.stats.h2d_s),
                secs(r.stats.stall_s),
                secs(r.stats.evict_wait_s)
            ),
        ),
    ]
}

fn bytes(r: &Report) -> Vec<(&'static str, String)> {
    let (got, plan) = (&r.bytes.per_step, &r.bytes.planned_per_step);
    let row = |now: u64, of: fn(&super::types::Moved) -> u64| {
        let planned = plan
            .as_ref()
            .map_or("no plan".into(), |p| format!("planned {}", Bytes(of(p))));
        format!("{} ({planned})", Bytes(now))
    };
    vec![
        ("read from disk", row(got.disk_read, |p| p.disk_read)),
        ("host to device", row(got.h2d, |p| p.h2d)),
        ("device to host", row(got.d2h, |p| p.d2h)),
        (
            "written outside the run's folder",
            format!("{} in the whole run", Bytes(r.bytes.total.model_drive_written)),
        ),
    ]
}

fn memory(r: &Report) -> Vec<(&'static str, String)> {
    let maybe = |b: Option<u64>| b.map_or("not measured".into(), |b| Bytes(b).to_string());
    let gpu = r.machine.device != "cpu";
    let mut rows = vec![
        (
            "blocks on the device",
            format!("at most {} (planned {})", r.residency.peak, r.residency.planned),
        ),
        (
            "weights in VRAM / RAM / on disk",
            format!(
                "{} / {} / {}",
                Bytes(r.tiers.vram),
                Bytes(r.tiers.ram),
                Bytes(r.tiers.disk)
            ),
        ),
        ("blocks by tier", placement(&r.tiers.placement)),
        (
            "host memory",
            format!(
                "anonymous {}, resident {} (planned {})",
                maybe(r.ram.anon_peak),
                maybe(r.ram.rss_peak),
                maybe(r.ram.planned)
            ),
        ),
    ];
    if gpu {
        rows.insert(0, ("VRAM planned", maybe(r.vram.planned)));
        rows.insert(
            1,
            (
                "VRAM live / reserved / device",
                format!(
                    "{} / {} / {}",
                    Bytes(r.vram.live),
                    Bytes(r.vram.reserved),
                    maybe(r.vram.device)
                ),
            ),
        );
    }
    rows
}

/// `12 V, 4 R, 16 D`.
fn placement(tiers: &[TierName]) -> String {
    let counts = [TierName::Vram, TierName::Ram, TierName::Disk]
        .map(|t| (t, tiers.iter().filter(|x| **x == t).count()));
    let shown: Vec<String> = counts
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(t, n)| match t {
            TierName::Vram => format!("{n} in VRAM"),
            TierName::Ram => format!("{n} in RAM"),
            TierName::Disk => format!("{n} on disk"),
        })
        .collect();
    if shown.is_empty() {
        "–".into()
    } else {
        shown.join(", ")
    }
}

fn setup(r: &Report) -> Vec<(&'static str, String)> {
    let (s, lora, train) = (&r.setup, &r.config["lora"], &r.config["train"]);
    let maybe = |x: Option<u64>| x.map_or("–".into(), |x| x.to_string());
    let mut rows = vec![
        ("types", format!("compute {}; {}", or_dash(&s.dtype), s.storage)),
        (
            "shape",
            format!(
                "up to {} tokens × {} rows × {} micro-batches",
                maybe(s.seq),
                maybe(s.batch),
                s.micro_batches
            ),
        ),
        (
            "optimizer",
            format!(
                "AdamW, learning rate {}, {}",
                train["learning_rate"],
                plain(&train["lr_scheduler_type"])
            ),
        ),
        (
            "seed",
            format!(
                "{}{}",
                maybe(s.seed),
                if s.deterministic == Some(true) {
                    ", deterministic kernels"
                } else {
                    ""
                }
            ),
        ),
        ("attention", or_dash(&s.attention).into()),
        ("reader", or_dash(&s.reader).into()),
    ];
    if r.mode == "lora" && lora.is_object() {
        let targets = lora["targets"].as_array().map_or(String::new(), |t| {
            t.iter().map(plain).collect::<Vec<_>>().join(", ")
        });
        let rs = if lora["rslora"] == true { ", rsLoRA" } else { "" };
        let text = format!(
            "r {}, alpha {}{rs}, dropout {}, {targets}; top fraction {}",
            lora["r"], lora["alpha"], lora["dropout"], lora["top_fraction"]
        );
        rows.insert(0, ("LoRA", text));
    }
    rows
}

fn data(r: &Report) -> Vec<(&'static str, String)> {
    let d = &r.data.facts;
    let dropped: Vec<String> = d.dropped.iter().map(|(why, n)| format!("{n} {why}")).collect();
    let dropped = if dropped.is_empty() {
        "none".into()
    } else {
        dropped.join(", ")
    };
    vec![
        ("format", or_dash(&d.format).into()),
        ("rows", format!("{} train, {} held out", d.rows_used, d.rows_eval)),
        ("dropped", dropped),
        (
            "too long",
            format!(
                "{} cut ({})",
                d.truncated,
                r.data.over_long.as_deref().unwrap_or("–")
            ),
        ),
        (
            "tokens in the rows",
            format!("{} ({} carry loss)", count(d.tokens), count(d.trained_tokens)),
        ),
        ("SHA-256", or_dash(&d.sha256).into()),
    ]
}

fn machine(r: &Report) -> Vec<(&'static str, String)> {
    let m = &r.machine;
    let mut rows = vec![
        ("device", or_dash(&m.device).into()),
        ("system", m.os.clone().unwrap_or_else(|| "–".into())),
        (
            "host memory",
            m.ram_total.map_or("–".into(), |b| Bytes(b).to_string()),
        ),
        (
            "model fingerprint",
            r.model.fingerprint.clone().unwrap_or_else(|| "–".into()),
        ),
    ];
    if let Some(gpu) = &m.gpu {
        let id = gpu.uuid.as_deref().unwrap_or("no UUID");
        let driver = gpu.driver.as_deref().unwrap_or("unknown");
        rows.insert(1, ("GPU", format!("{}, {id}, driver {driver}", gpu.name)));
        rows.insert(2, ("SM clock", spread(r.gauges.sm_clock_mhz.as_ref(), "MHz")));
        rows.insert(3, ("power", spread(r.gauges.power_w.as_ref(), "W")));
    }
    if let Some(torch) = &m.libtorch {
        rows.push(("libtorch", torch.clone()));
    }
    rows
}

fn sessions(r: &Report) -> Vec<(&'static str, String)> {
    let line = |s: &super::types::Session| {
        let status = serde_json::to_value(s.status).map_or(String::new(), |v| plain(&v));
        format!(
            "steps {} to {}, {status}, {} on {}",
            s.from_step,
            s.to_step,
            secs(s.seconds),
            or_dash(&s.device)
        )
    };
    r.sessions.iter().map(|s| ("session", line(s))).collect()
}

fn notice_line(n: &NoticeLine) -> String {
    let level = serde_json::to_value(n.level).map_or(String::new(), |v| plain(&v));
    format!(
        "{level}: {}",
        n.text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect::<String>()
    )
}

fn spread(s: Option<&Spread>, unit: &str) -> String {
    s.map_or("N/A".into(), |s| {
        format!(
            "{:.0} / {:.0} / {:.0} {unit} (min / median / max of {})",
            s.min, s.median, s.max, s.n
        )
    })
}

fn number(x: Option<f64>) -> String {
    x.map_or("not finite".into(), |x| format!("{x:.4}"))
}

fn time(x: Option<f64>) -> String {
    x.map_or("–".into(), secs)
}

fn plain(v: &serde_json::Value) -> String {
    v.as_str().map_or_else(|| v.to_string(), String::from)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "–" } else { text }
}

/// Text that Markdown shows as it is, on one line.
fn escape_md(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
