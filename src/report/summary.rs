//! Events to [`Report`]: pure, so that the same recording always gives the same report.

use super::stats::{finite, median, median_u64, percentile, sorted, spread};
use super::types::*;
use crate::event::{
    Event, EventKind, Gauges, Level, RunFinished, RunStarted, RunStatus, StepRecord, TierName,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Steps at the start of a session that don't count as measured.
const WARMUP: usize = 2;
/// Warm-up is left out only when at least this many steps remain.
const ENOUGH: usize = 4;

/// The report of the run that `events` tell, in order, over all its sessions.
///
/// `config`, `plan` and `env` are what `config.toml`, `plan.json` and `env.json` hold; a key that isn't there is
/// unknown (`null`), not an error, so that recordings of other versions still read.
#[must_use]
pub fn summary(events: &[Event], config: &Value, plan: &Value, env: &Value) -> Report {
    let told = Told::from(events);
    let start = told
        .sessions
        .last()
        .map(|s| s.started.clone())
        .unwrap_or_default();
    let mode_plan = &plan["modes"][if start.mode.is_empty() {
        "lora"
    } else {
        start.mode.as_str()
    }];
    let (measured, warmup_excluded) = told.measured();
    let times = sorted(measured.iter().map(|s| s.seconds).filter(|s| *s >= 0.0));
    let seconds_per_step = StepTimes {
        median: median(&times),
        p95: percentile(&times, 0.95),
        min: times.first().copied(),
        max: times.last().copied(),
        n: times.len(),
        warmup_excluded,
        list: told
            .effective()
            .map(|s| (s.step, finite(s.seconds).filter(|x| *x >= 0.0)))
            .collect(),
    };
    let (status, reason) = told.ending();
    let losses: Vec<(u64, Option<f64>)> = told
        .steps
        .iter()
        .map(|(n, (_, s))| (*n, finite(s.loss)))
        .collect();
    Report {
        schema: REPORT_SCHEMA,
        tool: text(&env["tool"]).unwrap_or_else(|| "unknown".into()),
        run_id: start.run_id.clone(),
        status,
        reason,
        verdict: start.verdict.clone(),
        mode: start.mode.clone(),
        started: text(&session_env(env, 0)["started"]),
        seconds: told.sessions.iter().map(SessionTold::seconds).sum(),
        model: model(&start, plan, env),
        machine: machine(&start, plan, env),
        setup: setup(&start, config),
        data: DataReport {
            facts: start.data.clone(),
            over_long: text(&config["data"]["over_long"]),
        },
        steps: told.last_step(),
        skipped_steps: told
            .steps
            .iter()
            .filter(|(_, (_, s))| s.skipped)
            .map(|(n, _)| *n)
            .collect(),
        tokens: total(told.effective().map(|s| s.tokens)),
        trained_tokens: total(told.effective().map(|s| s.trained_tokens)),
        loss: LossReport {
            first: losses.first().and_then(|l| l.1),
            last: losses.last().and_then(|l| l.1),
            list: losses,
        },
        eval: told.eval(),
        residency: Residency {
            planned: start.residency_planned,
            peak: told.residency_peak(),
        },
        bytes: BytesReport {
            total: moved(&told.all_steps, total),
            per_step: moved(&measured, median_u64),
            planned_per_step: planned_per_step(&mode_plan["per_step"]),
        },
        tokens_per_second: speed(&measured, warmup_excluded),
        bound: bound(&mode_plan["seconds_per_step"], &seconds_per_step),
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
        gauges: GaugesReport {
            sm_clock_mhz: spread(told.gauges.iter().filter_map(|g| g.sm_clock_mhz).map(f64::from)),
            power_w: spread(told.gauges.iter().filter_map(|g| g.power_w)),
            gpu_temp_c: spread(told.gauges.iter().filter_map(|g| g.gpu_temp_c).map(f64::from)),
        },
        sessions: told
            .sessions
            .iter()
            .enumerate()
            .map(|(i, s)| s.facts(session_env(env, i)))
            .collect(),
        telemetry_dropped: total(
            told.sessions
                .iter()
                .filter_map(|s| s.finished.as_ref())
                .map(|f| f.telemetry_dropped),
        ),
        notices: told.notices,
        config: settings(config),
        files: BTreeMap::new(),
    }
}

/// One session as its events tell it.
struct SessionTold {
    started: RunStarted,
    finished: Option<RunFinished>,
    last_step: u64,
    first_at: f64,
    last_at: f64,
}

impl SessionTold {
    fn seconds(&self) -> f64 {
        finite(self.last_at - self.first_at).unwrap_or(0.0).max(0.0)
    }
    fn facts(&self, env: &Value) -> Session {
        Session {
            started: text(&env["started"]),
            device: self.started.device.clone(),
            from_step: self.started.steps_done,
            to_step: self.last_step,
            status: self.finished.as_ref().map_or(RunStatus::Running, |f| f.status),
            seconds: self.seconds(),
        }
    }
}

/// The events sorted by what they are about.
#[derive(Default)]
struct Told {
    sessions: Vec<SessionTold>,
    /// By step number, with the session it belongs to; steps that a resume repeated count once, the newest.
    steps: BTreeMap<u64, (usize, StepRecord)>,
    /// Everything that ran, repeated steps too.
    all_steps: Vec<StepRecord>,
    evals: Vec<(u64, f64)>,
    gauges: Vec<Gauges>,
    notices: Vec<NoticeLine>,
}

impl Told {
    fn from(events: &[Event]) -> Told {
        let mut told = Told::default();
        for event in events {
            if let EventKind::Started(s) = &event.kind {
                told.steps.retain(|n, _| *n <= s.steps_done);
                told.evals.retain(|(n, _)| *n <= s.steps_done);
                told.sessions.push(SessionTold {
                    started: s.clone(),
                    finished: None,
                    last_step: s.steps_done,
                    first_at: event.at,
                    last_at: event.at,
                });
            }
            if let Some(session) = told.sessions.last_mut() {
                session.last_at = session.last_at.max(event.at);
            }
            told.take(&event.kind);
        }
        told
    }

    fn take(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Step(s) => {
                if let Some(session) = self.sessions.last_mut() {
                    session.last_step = session.last_step.max(s.step);
                }
                self.steps.insert(s.step, (self.sessions.len(), s.clone()));
                self.all_steps.push(s.clone());
            }
            EventKind::Eval(e) => self.evals.push((e.step, e.loss)),
            EventKind::Gauges(g) => self.gauges.push(g.clone()),
            EventKind::Notice(n) if n.level >= Level::Warn && self.notices.len() < MAX_NOTICES => {
                self.notices.push(NoticeLine {
                    level: n.level,
                    text: n.text.clone(),
                });
            }
            EventKind::Finished(f) => {
                if let Some(session) = self.sessions.last_mut() {
                    session.last_step = session.last_step.max(f.step);
                    session.finished = Some(f.clone());
                }
            }
            _ => {}
        }
    }

    fn effective(&self) -> impl Iterator<Item = &StepRecord> {
        self.steps.values().map(|(_, s)| s)
    }

    fn last_step(&self) -> u64 {
        let done = self.sessions.last().map_or(0, |s| s.last_step);
        self.steps.keys().last().copied().unwrap_or(0).max(done)
    }

    fn ending(&self) -> (RunStatus, Option<String>) {
        match self.sessions.last().and_then(|s| s.finished.as_ref()) {
            Some(f) => (f.status, f.reason.clone()),
            None => (RunStatus::Running, None),
        }
    }

    /// The steps that count as measured, and how many were left out as warm-up.
    fn measured(&self) -> (Vec<StepRecord>, usize) {
        let mut place: BTreeMap<usize, usize> = BTreeMap::new();
        let warm = self.steps.values().filter(|(session, _)| {
            let at = place.entry(*session).or_default();
            *at += 1;
            *at > WARMUP
        });
        let warm: Vec<StepRecord> = warm.map(|(_, s)| s.clone()).collect();
        if warm.len() >= ENOUGH {
            let excluded = self.steps.len() - warm.len();
            (warm, excluded)
        } else {
            (self.effective().cloned().collect(), 0)
        }
    }

    fn eval(&self) -> EvalReport {
        let begun_at = self.sessions.first().map_or(0, |s| s.started.steps_done);
        let before = self.evals.first().filter(|(step, _)| *step <= begun_at);
        let after = self.evals.last().filter(|(step, _)| *step > begun_at);
        EvalReport {
            before: before.and_then(|e| finite(e.1)),
            after: after.and_then(|e| finite(e.1)),
            list: self.evals.iter().map(|(n, loss)| (*n, finite(*loss))).collect(),
        }
    }

    fn finished(&self) -> impl Iterator<Item = &RunFinished> {
        self.sessions.iter().filter_map(|s| s.finished.as_ref())
    }

    fn residency_peak(&self) -> usize {
        let steps = self.all_steps.iter().map(|s| s.residency_peak);
        steps
            .chain(self.finished().map(|f| f.residency_peak))
            .max()
            .unwrap_or(0)
    }

    fn stats(&self) -> StatsReport {
        let sum =
            |of: fn(&StepRecord) -> f64| self.all_steps.iter().map(of).filter(|x| *x >= 0.0).sum::<f64>();
        // A session that was killed has no closing figures: then the steps' own are all there is.
        let closed = !self.sessions.is_empty() && self.sessions.iter().all(|s| s.finished.is_some());
        let whole = |of: fn(&RunFinished) -> f64| self.finished().map(of).filter(|x| *x >= 0.0).sum::<f64>();
        let (h2d_s, stall_s, evict_wait_s) = if closed {
            (
                whole(|f| f.stats.h2d_s),
                whole(|f| f.stats.stall_s),
                whole(|f| f.stats.evict_wait_s),
            )
        } else {
            (sum(|s| s.h2d_s), sum(|s| s.stall_s), sum(|s| s.evict_wait_s))
        };
        let history = self.finished().last().map(|f| f.stats.resident_history.clone());
        let finite_or_zero = |x: f64| finite(x).unwrap_or(0.0);
        StatsReport {
            h2d_s: finite_or_zero(h2d_s),
            stall_s: finite_or_zero(stall_s),
            evict_wait_s: finite_or_zero(evict_wait_s),
            disk_s: finite_or_zero(sum(|s| s.disk_s)),
            resident_history: history.unwrap_or_default(),
        }
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

fn planned_per_step(per_step: &Value) -> Option<Moved> {
    let of = |key: &str| per_step[key].as_u64();
    Some(Moved {
        disk_read: of("disk_read")?,
        h2d: of("h2d")?,
        d2h: of("d2h")?,
        model_drive_written: of("written")?,
    })
}

fn speed(measured: &[StepRecord], warmup_excluded: usize) -> Speed {
    let timed: Vec<&StepRecord> = measured
        .iter()
        .filter(|s| s.seconds.is_finite() && s.seconds > 0.0)
        .collect();
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

fn bound(range: &Value, times: &StepTimes) -> Bound {
    let seconds = range["low"].as_f64();
    Bound {
        resource: text(&range["resource"]),
        seconds,
        share: times.median.zip(seconds).and_then(|(m, s)| finite(s / m)),
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
    let mut out = Tiers {
        vram: planned("vram"),
        ram: planned("ram"),
        disk: planned("disk"),
        placement: start.tiers.clone(),
    };
    let Some(places) = mode_plan["placement"]
        .as_array()
        .filter(|p| p.len() == start.tiers.len())
    else {
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
    let planned_here = plan["machine"]["source"]
        .as_str()
        .is_some_and(|s| s.starts_with("measured"));
    let gpu = [&env["gpu"], &plan["machine"]["gpu"]]
        .into_iter()
        .take(if planned_here { 2 } else { 1 });
    let gpu = gpu.filter(|g| g.is_object()).map(|g| GpuFacts {
        name: text(&g["name"]).unwrap_or_default(),
        uuid: text(&g["uuid"]),
        driver: text(&g["driver"]),
        vram_total: g["vram_total"].as_u64(),
    });
    MachineFacts {
        device: start.device.clone(),
        gpu: gpu.filter(|_| start.device != "cpu").next(),
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
        storage: if lora {
            "base as stored; adapter and moments f32"
        } else {
            "weights and moments f32"
        }
        .into(),
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
        out.insert(
            section.into(),
            Value::Object(kept.map(|(k, v)| (k.clone(), v.clone())).collect()),
        );
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
    out.insert(
        "residency".into(),
        json!({ "planned": report["residency"]["planned"] }),
    );
    out.insert("tiers".into(), report["tiers"].clone());
    let moved = ["disk_read", "h2d", "d2h"].map(|k| (k.to_string(), report["bytes"][k].clone()));
    out.insert("bytes".into(), Value::Object(moved.into_iter().collect()));
    out.insert("device".into(), report["machine"]["device"].clone());
    Value::Object(out)
}
