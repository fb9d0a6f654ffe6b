//! The report's tables, the same for every format: what was measured beside what was planned.

use super::types::{Report, SmartFigures, Spread};
use crate::event::TierName;
use crate::plan::{percent, words};
use crate::units::{Bytes, count, secs};

/// A table of names and values.
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) rows: Vec<(&'static str, String)>,
}

/// All of them, in the order shown.
pub(super) fn sections(r: &Report) -> Vec<Section> {
    let mut all = vec![
        Section { title: "Result", rows: result(r) },
        Section { title: "Speed", rows: speed(r) },
        Section { title: "Bytes per step", rows: bytes(r) },
        Section { title: "Wear", rows: wear(r) },
        Section { title: "Memory", rows: memory(r) },
        Section { title: "Set-up", rows: setup(r) },
        Section { title: "Data", rows: data(r) },
        Section { title: "Machine", rows: machine(r) },
    ];
    if r.sessions.len() > 1 {
        all.push(Section { title: "Sessions", rows: sessions(r) });
    }
    all
}

fn result(r: &Report) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("training loss", format!("{} → {}", number(r.loss.first), number(r.loss.last))),
        ("eval loss", held_out(r)),
        ("steps", r.steps.to_string()),
        ("tokens", format!("{} ({} trained)", count(r.tokens), count(r.trained_tokens))),
        (
            "trained parameters",
            format!(
                "{}, from layer {} of {} up",
                count(r.model.trainable_params),
                r.model.lowest_trainable,
                r.model.n_blocks
            ),
        ),
    ];
    if !r.skipped_steps.is_empty() {
        let shown: Vec<String> = r.skipped_steps.iter().take(10).map(u64::to_string).collect();
        let more = if r.skipped_steps.len() > 10 { ", …" } else { "" };
        rows.push(("skipped updates", format!("{}: steps {}{more}", r.skipped_steps.len(), shown.join(", "))));
    }
    rows
}

fn held_out(r: &Report) -> String {
    match (r.eval.before, r.eval.after) {
        (Some(b), Some(a)) if b != 0.0 => {
            format!("{} → {} ({:+.1} %)", number(Some(b)), number(Some(a)), (a - b) / b * 100.0)
        }
        (None, None) => "not measured".into(),
        (Some(b), None) => format!("{} before; not measured after", number(Some(b))),
        (b, a) => format!("{} → {}", number(b), number(a)),
    }
}

fn speed(r: &Report) -> Vec<(&'static str, String)> {
    let t = &r.seconds_per_step;
    let f = &r.forecast;
    let inside = match f.inside {
        Some(true) => ": as forecast",
        Some(false) => ": the median is outside",
        None => "",
    };
    let by = words::limiting(r.bound.resource.as_deref().unwrap_or("–"), &r.machine.device);
    vec![
        (
            "seconds per step",
            format!("median {}, p95 {}, fastest {}, slowest {}", time(t.median), time(t.p95), time(t.min), time(t.max)),
        ),
        ("forecast", format!("{} to {}{inside}", time(f.low), time(f.high))),
        (
            "fastest possible",
            format!(
                "{} (bottleneck: {by}, at {} rates)",
                time(r.bound.seconds),
                r.bound.source.as_deref().unwrap_or("unknown")
            ),
        ),
        ("tokens per second", r.tokens_per_second.value.map_or("–".into(), |v| format!("{v:.1}"))),
        (
            "copies / waits",
            format!(
                "{} copying, {} waiting for weights, {} waiting for a free slot",
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
        let planned = plan.as_ref().map_or("no plan".into(), |p| format!("planned {}", Bytes(of(p))));
        format!("{} ({planned})", Bytes(now))
    };
    vec![
        ("read from disk", row(got.disk_read, |p| p.disk_read)),
        ("RAM→GPU", row(got.h2d, |p| p.h2d)),
        ("GPU→RAM", row(got.d2h, |p| p.d2h)),
        ("written outside the run's folder", format!("{} in the whole run", Bytes(r.bytes.total.model_drive_written))),
    ]
}

fn wear(r: &Report) -> Vec<(&'static str, String)> {
    let w = &r.wear;
    let life = match (w.tbw, w.life) {
        (Some(tbw), Some(life)) => format!("{} of {}", percent(life), Bytes(tbw)),
        _ => "the drive's rating is not known".into(),
    };
    let smart = |s: &Option<SmartFigures>| match s {
        Some(s) => {
            let written = s.written.map(|b| format!("{} written", Bytes(b)));
            let used = s.life_used.map(|u| format!("{} of its life used", percent(u)));
            written.into_iter().chain(used).collect::<Vec<_>>().join(", ")
        }
        None => "not readable".into(),
    };
    let mut rows = vec![
        (
            "written by the run",
            format!("{} to its folder, {} elsewhere", Bytes(w.run_folder_written), Bytes(w.model_drive_written)),
        ),
        ("written per step", w.per_step.map_or("–".into(), |b| Bytes(b).to_string())),
        ("share of the drive's life", life),
        ("SMART before / after", format!("{} / {}", smart(&w.smart_before), smart(&w.smart_after))),
    ];
    if w.overridden {
        rows.push(("override", "wear.override was set: a limit of [wear] was passed knowingly".into()));
    }
    rows
}

fn memory(r: &Report) -> Vec<(&'static str, String)> {
    let maybe = |b: Option<u64>| b.map_or("not measured".into(), |b| Bytes(b).to_string());
    let gpu = r.machine.device != "cpu";
    let mut rows = vec![
        ("layers loaded at once", format!("at most {} (planned {})", r.residency.peak, r.residency.planned)),
        (
            "weights in VRAM / RAM / on disk",
            format!("{} / {} / {}", Bytes(r.tiers.vram), Bytes(r.tiers.ram), Bytes(r.tiers.disk)),
        ),
        ("layers by tier", placement(&r.tiers.placement)),
        (
            "RAM",
            format!(
                "own {}, with cached files {} (planned {})",
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
                "VRAM: tensors / reserved / in use",
                format!("{} / {} / {}", Bytes(r.vram.live), Bytes(r.vram.reserved), maybe(r.vram.device)),
            ),
        );
    }
    rows
}

/// `12 V, 4 R, 16 D`.
fn placement(tiers: &[TierName]) -> String {
    let counts =
        [TierName::Vram, TierName::Ram, TierName::Disk].map(|t| (t, tiers.iter().filter(|x| **x == t).count()));
    let shown: Vec<String> = counts
        .iter()
        .filter(|(_, n)| *n > 0)
        .map(|(t, n)| match t {
            TierName::Vram => format!("{n} in VRAM"),
            TierName::Ram => format!("{n} in RAM"),
            TierName::Disk => format!("{n} on disk"),
        })
        .collect();
    if shown.is_empty() { "–".into() } else { shown.join(", ") }
}

fn setup(r: &Report) -> Vec<(&'static str, String)> {
    let (s, lora, train) = (&r.setup, &r.config["lora"], &r.config["train"]);
    let maybe = |x: Option<u64>| x.map_or("–".into(), |x| x.to_string());
    let mut rows = vec![
        ("types", format!("compute {}; {}", or_dash(&s.dtype), s.storage)),
        (
            "shape",
            format!("up to {} tokens × {} rows × {} micro-batches", maybe(s.seq), maybe(s.batch), s.micro_batches),
        ),
        (
            "optimizer",
            format!("AdamW, learning rate {}, {}", train["learning_rate"], plain(&train["lr_scheduler_type"])),
        ),
        (
            "seed",
            format!("{}{}", maybe(s.seed), if s.deterministic == Some(true) { ", deterministic kernels" } else { "" }),
        ),
        ("attention", or_dash(&s.attention).into()),
        ("reader", or_dash(&s.reader).into()),
    ];
    if r.mode == "lora" && lora.is_object() {
        let targets =
            lora["targets"].as_array().map_or(String::new(), |t| t.iter().map(plain).collect::<Vec<_>>().join(", "));
        let rs = if lora["rslora"] == true { ", rsLoRA" } else { "" };
        let layers = match lora["top_fraction"].as_f64() {
            Some(share) if share < 1.0 => format!("the top {:.0} % of the layers", share * 100.0),
            _ => "all layers".into(),
        };
        let text =
            format!("r {}, alpha {}{rs}, dropout {}, {targets}; {layers}", lora["r"], lora["alpha"], lora["dropout"]);
        rows.insert(0, ("LoRA", text));
    }
    rows
}

fn data(r: &Report) -> Vec<(&'static str, String)> {
    let d = &r.data.facts;
    let dropped: Vec<String> = d.dropped.iter().map(|(why, n)| format!("{n} {why}")).collect();
    let dropped = if dropped.is_empty() { "none".into() } else { dropped.join(", ") };
    vec![
        ("format", or_dash(&d.format).into()),
        ("rows", format!("{} to train on, {} for evaluation", d.rows_used, d.rows_eval)),
        ("skipped", dropped),
        ("too long", format!("{} cut ({})", d.truncated, r.data.over_long.as_deref().unwrap_or("–"))),
        ("tokens in the rows", format!("{} ({} trained)", count(d.tokens), count(d.trained_tokens))),
        ("SHA-256", or_dash(&d.sha256).into()),
    ]
}

fn machine(r: &Report) -> Vec<(&'static str, String)> {
    let m = &r.machine;
    let mut rows = vec![
        ("device", or_dash(&m.device).into()),
        ("system", m.os.clone().unwrap_or_else(|| "–".into())),
        ("RAM", m.ram_total.map_or("–".into(), |b| Bytes(b).to_string())),
        ("model fingerprint", r.model.fingerprint.clone().unwrap_or_else(|| "–".into())),
    ];
    if let Some(gpu) = &m.gpu {
        let id = gpu.uuid.as_deref().unwrap_or("no UUID");
        let driver = gpu.driver.as_deref().unwrap_or("unknown");
        rows.insert(1, ("GPU", format!("{}, {id}, driver {driver}", gpu.name)));
        rows.insert(2, ("GPU clock", spread(r.gauges.sm_clock_mhz.as_ref(), "MHz")));
        rows.insert(3, ("power", spread(r.gauges.power_w.as_ref(), "W")));
    }
    if let Some(drive) = &r.gauges.drive_temp_c {
        rows.push(("drive temperature", spread(Some(drive), "°C")));
    }
    if let Some(torch) = &m.libtorch {
        rows.push(("libtorch", torch.clone()));
    }
    rows
}

fn sessions(r: &Report) -> Vec<(&'static str, String)> {
    let line = |s: &super::types::Session| {
        let status = serde_json::to_value(s.status).map_or(String::new(), |v| plain(&v));
        format!("steps {} to {}, {status}, {} on {}", s.from_step, s.to_step, secs(s.seconds), or_dash(&s.device))
    };
    r.sessions.iter().map(|s| ("session", line(s))).collect()
}

fn spread(s: Option<&Spread>, unit: &str) -> String {
    s.map_or("N/A".into(), |s| {
        format!("{:.0} / {:.0} / {:.0} {unit} (min / median / max of {})", s.min, s.median, s.max, s.n)
    })
}

fn number(x: Option<f64>) -> String {
    x.map_or("not finite".into(), |x| format!("{x:.4}"))
}

fn time(x: Option<f64>) -> String {
    x.map_or("–".into(), secs)
}

pub(super) fn plain(v: &serde_json::Value) -> String {
    v.as_str().map_or_else(|| v.to_string(), String::from)
}

pub(super) fn or_dash(text: &str) -> &str {
    if text.is_empty() { "–" } else { text }
}
