//! Events to [`Report`]: pure, so that the same recording always gives the same report.

use super::stats::{finite, median, median_u64, percentile, sorted, spread};
use super::told::{SessionTold, Told};
use super::trace;
use super::types::*;
use crate::event::{Event, RunStarted, StepRecord, TierName};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The report of the run that `events` tell, in order, over all its sessions.
///
/// `config`, `plan` and `env` are what `config.toml`, `plan.json` and `env.json` hold; a key that isn't there is
/// unknown (`null`), not an error, so that recordings of other versions still read.
#[must_use]
pub fn summary(events: &[Event], config: &Value, plan: &Value, env: &Value) -> Report {
    let told = Told::from(events);
    let start = told.sessions.last().map(|s| s.started.clone()).unwrap_or_default();
    let mode_plan = &plan["modes"][if start.mode.is_empty() { "lora" } else { start.mode.as_str() }];
    let (measured, warmup_excluded) = told.measured();
    let times = sorted(measured.iter().map(|s| s.seconds).filter(|s| *s >= 0.0));
    let seconds_per_step = StepTimes {
        median: median(&times),
        p95: percentile(&times, 0.95),
        min: times.first().copied(),
        max: times.last().copied(),
        n: times.len(),
        warmup_excluded,
        parts: trace::parts(&measured),
        list: told.effective().map(|s| (s.step, finite(s.seconds).filter(|x| *x >= 0.0))).collect(),
    };
    let (status, reason) = told.ending();
    let losses: Vec<(u64, Option<f64>)> = told.steps.iter().map(|(n, (_, s))| (*n, finite(s.loss()))).collect();
    Report {
        schema: REPORT_SCHEMA,
        tool: text(&env["tool"]).unwrap_or_else(|| "unknown".into()),
        run_id: start.run_id.clone(),
        status,
        reason,
        verdict: start.verdict.clone(),
        mode: start.mode.clone(),
        started: text(&session_env(env, 0)["started"]),
        seconds: finite(told.sessions.iter().map(SessionTold::seconds).sum()).unwrap_or(0.0),
        model: model(&start, plan, env),
        machine: machine(&start, plan, env),
        setup: setup(&start, config),
        data: DataReport { facts: start.data.clone(), over_long: text(&config["data"]["over_long"]) },
        steps: told.last_step(),
        skipped_steps: told.steps.iter().filter(|(_, (_, s))| s.skipped).map(|(n, _)| *n).collect(),
        tokens: total(told.effective().map(|s| s.tokens)),
        trained_tokens: total(told.effective().map(|s| s.trained_tokens)),
        loss: LossReport {
            first: losses.first().and_then(|l| l.1),
            last: losses.last().and_then(|l| l.1),
            list: losses,
        },
        eval: told.eval(),
        residency: Residency { planned: start.residency_planned, peak: told.residency_peak() },
        bytes: BytesReport {
            total: moved(&told.all_steps, total),
            per_step: moved(&measured, median_u64),
            planned_per_step: planned_per_step(&mode_plan["per_step"]),
        },
        wear: wear(&told, mode_plan, &plan["machine"], env, config),
        tokens_per_second: speed(&measured, warmup_excluded),
        bound: trace::bound(&measured, &mode_plan["seconds_per_step"], &seconds_per_step),
        forecast: forecast(&mode_plan["seconds_per_step"], &seconds_per_step),
        seconds_per_step,
        vram: vram(&told, mode_plan),
        ram: RamReport {
            planned: mode_plan["host"]["total"].as_u64(),
            anon_peak: told.gauges.iter().filter_map(|g| g.rss_anon).max().map(|b| b.0),
            rss_peak: told.gauges.iter().filter_map(|g| g.rss).max().map(|b| b.0),
        },
        tiers: tiers(&start, mode_plan),
        stats: told.stats(),
        trace: told.trace.as_ref().map(trace::condensed),
        gauges: GaugesReport {
            sm_clock_mhz: spread(told.gauges.iter().filter_map(|g| g.sm_clock_mhz).map(f64::from)),
            power_w: spread(told.gauges.iter().filter_map(|g| g.power_w)),
            gpu_temp_c: spread(told.gauges.iter().filter_map(|g| g.gpu_temp_c).map(f64::from)),
            drive_temp_c: spread(told.gauges.iter().filter_map(|g| g.drive_temp_c).map(f64::from)),
        },
        sessions: told
            .sessions
            .iter()
            .enumerate()
            .map(|(i, s)| s.facts(text(&session_env(env, i)["started"])))
            .collect(),
        telemetry_dropped: total(told.sessions.iter().filter_map(|s| s.finished.as_ref()).map(|f| f.telemetry_dropped)),
        notices: told.notices,
        config: settings(config),
        files: BTreeMap::new(),
    }
}

fn total(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0, u64::saturating_add)
}

fn moved(steps: &[StepRecord], fold: fn(Vec<u64>) -> u64) -> Moved {
    let of = |field: fn(&StepRecord) -> u64| fold(steps.iter().map(field).collect());
    Moved {
        disk_read: of(|s| s.disk_read.0),
        h2d: of(|s| s.h2d.0),
        d2h: of(|s| s.d2h.0),
        model_drive_written: of(|s| s.model_drive_written.0),
    }
}

/// What the run cost the drive, and what SMART said before and after.
fn wear(told: &Told, mode_plan: &Value, machine: &Value, env: &Value, config: &Value) -> WearReport {
    let outside = moved(&told.all_steps, total).model_drive_written;
    let all = outside.saturating_add(told.saved);
    let steps = told.last_step();
    let own = config["wear"]["tbw"].as_f64().filter(|t| *t > 0.0).map(|t| (t * 1e12) as u64);
    // The rating of a profile's drive says nothing about the one the run was on.
    let here = machine["source"].as_str().is_some_and(|s| s.starts_with("measured"));
    let tbw = own.or_else(|| machine["disk"]["tbw"].as_u64().filter(|_| here)).filter(|t| *t > 0);
    let smart = |at: &Value| {
        let figures: SmartFigures = serde_json::from_value(at.clone()).ok()?;
        (figures.written.is_some() || figures.life_used.is_some()).then_some(figures)
    };
    WearReport {
        model_drive_written: outside,
        run_folder_written: told.saved,
        per_step: all.checked_div(steps),
        tbw,
        life: tbw.and_then(|t| finite(all as f64 / t as f64)),
        smart_before: smart(&session_env(env, 0)["drive"]),
        smart_after: smart(&env["drive_after"]),
        overridden: mode_plan["wear"]["overridden"].as_bool().unwrap_or(false),
    }
}

fn planned_per_step(per_step: &Value) -> Option<Moved> {
    let of = |key: &str| per_step[key].as_u64();
    Some(Moved { disk_read: of("disk_read")?, h2d: of("h2d")?, d2h: of("d2h")?, model_drive_written: of("written")? })
}

fn speed(measured: &[StepRecord], warmup_excluded: usize) -> Speed {
    let timed: Vec<&StepRecord> = measured.iter().filter(|s| s.seconds.is_finite() && s.seconds > 0.0).collect();
    let seconds: f64 = timed.iter().map(|s| s.seconds).sum();
    let tokens = total(timed.iter().map(|s| s.tokens));
    Speed {
        value: finite(tokens as f64 / seconds),
        method: format!(
            "tokens through the blocks (padding not counted) / wall-clock seconds of the same {} optimizer steps; \
             {warmup_excluded} warm-up steps, evaluation, saving and preparation not included",
            timed.len()
        ),
    }
}

fn forecast(range: &Value, times: &StepTimes) -> Forecast {
    let (low, high) = (range["low"].as_f64(), range["high"].as_f64());
    let known = times.median.zip(low.zip(high));
    Forecast {
        low,
        high,
        median: times.median,
        p95: times.p95,
        ratio: known.and_then(|(m, (low, high))| finite(m / (low / 2.0 + high / 2.0))),
        inside: known.map(|(m, (low, high))| low <= m && m <= high),
    }
}

fn vram(told: &Told, mode_plan: &Value) -> VramReport {
    VramReport {
        planned: mode_plan["vram"]["total"].as_u64(),
        live: told.finished().map(|f| f.vram.live.0).max().unwrap_or(0),
        reserved: told.finished().map(|f| f.vram.reserved.0).max().unwrap_or(0),
        device: told.finished().filter_map(|f| f.vram.device).max().map(|b| b.0),
    }
}

/// Bytes per tier: by the blocks' real placement, plus what the plan puts on a tier beside blocks (head, norms).
fn tiers(start: &RunStarted, mode_plan: &Value) -> Tiers {
    let planned = |key: &str| mode_plan["tiers"][key].as_u64().unwrap_or(0);
    let mut out =
        Tiers { vram: planned("vram"), ram: planned("ram"), disk: planned("disk"), placement: start.tiers.clone() };
    let Some(places) = mode_plan["placement"].as_array().filter(|p| p.len() == start.tiers.len()) else {
        return out;
    };
    for (place, now) in places.iter().zip(&start.tiers) {
        let (Some(bytes), Some(was)) = (place["bytes"].as_u64(), tier(&place["tier"])) else {
            continue;
        };
        if was != *now {
            let from = out.of(was);
            *from = from.saturating_sub(bytes);
            let to = out.of(*now);
            *to = to.saturating_add(bytes);
        }
    }
    out
}

impl Tiers {
    fn of(&mut self, tier: TierName) -> &mut u64 {
        match tier {
            TierName::Vram => &mut self.vram,
            TierName::Ram => &mut self.ram,
            TierName::Disk => &mut self.disk,
        }
    }
}

fn tier(value: &Value) -> Option<TierName> {
    serde_json::from_value(value.clone()).ok()
}

fn model(start: &RunStarted, plan: &Value, env: &Value) -> ModelFacts {
    let m = &env["model"];
    ModelFacts {
        name: start.model.clone(),
        hub_id: text(&m["hub_id"]),
        revision: text(&m["revision"]),
        fingerprint: text(&m["fingerprint"]),
        params: m["params"].as_u64().or(plan["params"].as_u64()),
        bytes: m["bytes"].as_u64().or(plan["bytes"].as_u64()),
        n_blocks: start.n_blocks,
        lowest_trainable: start.lowest_trainable,
        trainable_params: start.trainable_params,
    }
}

fn machine(start: &RunStarted, plan: &Value, env: &Value) -> MachineFacts {
    // A plan made for a profile describes another machine than the one the run was on.
    let planned_here = plan["machine"]["source"].as_str().is_some_and(|s| s.starts_with("measured"));
    let candidates = [&env["gpu"], &plan["machine"]["gpu"]];
    let known = if planned_here { &candidates[..] } else { &candidates[..1] };
    let gpu = known.iter().find(|g| g.is_object() && start.device != "cpu");
    MachineFacts {
        device: start.device.clone(),
        gpu: gpu.map(|g| GpuFacts {
            name: text(&g["name"]).unwrap_or_default(),
            uuid: text(&g["uuid"]),
            driver: text(&g["driver"]),
            vram_total: g["vram_total"].as_u64(),
        }),
        os: text(&env["os"]),
        ram_total: env["ram_total"].as_u64(),
        disk: text(&env["disk"]),
        libtorch: text(&env["libtorch"]),
    }
}

fn setup(start: &RunStarted, config: &Value) -> Setup {
    let lora = start.mode != "full";
    Setup {
        dtype: start.compute_dtype.clone(),
        storage: if lora { "base as stored; adapter and moments f32" } else { "weights and moments f32" }.into(),
        seq: config["data"]["max_length"].as_u64(),
        batch: config["train"]["per_device_train_batch_size"].as_u64(),
        micro_batches: start.micro_batches,
        seed: config["train"]["seed"].as_u64(),
        deterministic: config["train"]["deterministic"].as_bool(),
        attention: start.attention.clone(),
        reader: start.reader.clone(),
    }
}

/// The config without its paths: those say where things lie on one person's machine.
fn settings(config: &Value) -> Value {
    let mut out = Map::new();
    for section in ["data", "lora", "train", "stream", "wear"] {
        let Some(map) = config[section].as_object() else {
            continue;
        };
        let paths = ["files", "eval_files", "template", "init_from"];
        let kept = map.iter().filter(|(k, _)| !paths.contains(&k.as_str()));
        out.insert(section.into(), Value::Object(kept.map(|(k, v)| (k.clone(), v.clone())).collect()));
    }
    Value::Object(out)
}

/// The environment of session `i`: earlier ones are kept under `earlier`.
fn session_env(env: &Value, i: usize) -> &Value {
    match env["earlier"].get(i) {
        Some(earlier) => earlier,
        None => env,
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(String::from)
}

/// What must be equal when the same job runs again on the same build and machine: no times, no rates, no memory
/// counters, no file hashes.
#[must_use]
pub fn comparable(report: &Value) -> Value {
    let kept = [
        "schema",
        "tool",
        "verdict",
        "mode",
        "status",
        "steps",
        "skipped_steps",
        "tokens",
        "trained_tokens",
        "loss",
        "eval",
        "model",
        "setup",
        "data",
        "config",
    ];
    let mut out = Map::new();
    for key in kept {
        out.insert(key.into(), report[key].clone());
    }
    if let Some(data) = out.get_mut("data").and_then(Value::as_object_mut) {
        data.remove("template_date");
    }
    out.insert("residency".into(), json!({ "planned": report["residency"]["planned"] }));
    out.insert("tiers".into(), report["tiers"].clone());
    let moved = ["disk_read", "h2d", "d2h"].map(|k| (k.to_string(), report["bytes"][k].clone()));
    out.insert("bytes".into(), Value::Object(moved.into_iter().collect()));
    out.insert("device".into(), report["machine"]["device"].clone());
    Value::Object(out)
}
