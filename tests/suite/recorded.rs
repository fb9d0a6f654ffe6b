//! A plan, a config and the events of small runs, as a trainer would send them.

use blockstream_tui::config::RunConfig;
use blockstream_tui::device::{Disk, Gpu, Machine, Ram};
use blockstream_tui::event::*;
use blockstream_tui::plan::*;
use blockstream_tui::report;
use blockstream_tui::units::{Bytes, GB};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A home folder that must not turn up in what a run publishes.
pub const HOME: &str = "/home/alice";

pub fn mode_plan() -> ModePlan {
    ModePlan {
        verdict: Verdict::LoraDisk,
        trainable: true,
        reasons: vec!["fits".into()],
        nearest_fix: None,
        tiers: TierBytes { vram: Bytes(10), ram: Bytes(20), disk: Bytes(300) },
        per_step: PerStep { disk_read: Bytes(600), h2d: Bytes(700), d2h: Bytes(8), written: Bytes(0) },
        seconds_per_step: SecondsRange { low: 0.4, high: 0.8, resource: "disk".into(), correction: 1.0 },
        vram: VramPlan { total: Bytes(5000), budget: Bytes(8000), terms: BTreeMap::new() },
        host: VramPlan { total: Bytes(900), budget: Bytes(8000), terms: BTreeMap::new() },
        wear: Wear::default(),
        space: Default::default(),
        fix_command: None,
        placement: (0..4).map(|block| BlockPlace { block, tier: TierName::Disk, bytes: Bytes(75) }).collect(),
        ring_slots: 3,
        stream: Default::default(),
        sweeps: Default::default(),
        residency: 3,
        lowest_trainable: 0,
        candidates: Vec::new(),
        command: format!("blockstream-tui train --config {HOME}/c.toml"),
    }
}

pub fn machine() -> Machine {
    Machine {
        name: "test".into(),
        source: "measured".into(),
        gpu: Some(Gpu {
            name: "RTX 5050".into(),
            uuid: Some("GPU-1234".into()),
            driver: Some("580.1".into()),
            vram_total: Bytes(8 * GB),
            vram_free: Bytes(7 * GB),
            overhead: Bytes(GB / 2),
            h2d: 12e9,
            d2h: 12e9,
            flops: 1e13,
            ..Gpu::default()
        }),
        ram: Ram {
            total: Bytes(16 * GB),
            available: Bytes(9 * GB),
            pinnable: Bytes(8 * GB),
            lacking: Bytes::ZERO,
            limited_by: "host".into(),
        },
        disk: Disk { kind: "nvme".into(), read: 3e9, write: 1e9, free: Bytes(GB), ..Disk::default() },
        results_free: None,
        cpu_flops: 1e11,
        past: Default::default(),
    }
}

pub fn plan() -> PlanReport {
    // The other mode is out of reach: its forecast is not a number JSON can hold.
    let mut full = mode_plan();
    full.verdict = Verdict::Infeasible;
    full.seconds_per_step.high = f64::INFINITY;
    PlanReport {
        data: None,
        schema: PLAN_SCHEMA,
        model: "org/T0".into(),
        params: 1_000,
        bytes: Bytes(4_000),
        n_blocks: 4,
        parts: BTreeMap::new(),
        machine: machine(),
        what_if: Vec::new(),
        ceilings: Vec::new(),
        ledger: None,
        notes: Vec::new(),
        modes: Modes { lora: mode_plan(), full },
    }
}

pub fn env() -> Value {
    let mut env = report::environment(None, &machine());
    env["model"] = json!({ "name": "org/T0", "fingerprint": "f00d", "params": 1000, "bytes": 4000 });
    env
}

pub fn config() -> RunConfig {
    let mut config = RunConfig::default();
    config.model.path = format!("{HOME}/models/T0");
    config.data.files = vec![PathBuf::from(format!("{HOME}/rows.jsonl"))];
    config.data.max_length = 64;
    config
}

pub fn started(dir: &Path, done: u64, total: u64) -> EventKind {
    EventKind::Started(RunStarted {
        schema: EVENT_SCHEMA,
        run_id: dir.file_name().unwrap().to_string_lossy().into_owned(),
        run_dir: dir.to_path_buf(),
        model: "org/T0".into(),
        mode: "lora".into(),
        verdict: "LORA_DISK".into(),
        n_blocks: 4,
        tiers: vec![TierName::Ram, TierName::Disk, TierName::Disk, TierName::Disk],
        residency_planned: 3,
        steps_total: total,
        steps_done: done,
        micro_batches: 2,
        device: "RTX 5050".into(),
        compute_dtype: "bf16".into(),
        attention: "sdpa-flash".into(),
        reader: "pread, O_DIRECT, 4 threads".into(),
        trainable_params: 128,
        data: DataFacts {
            format: "messages".into(),
            rows_used: 10,
            rows_eval: 2,
            dropped: BTreeMap::from([("over-long".into(), 3)]),
            truncated: 1,
            tokens: 640,
            trained_tokens: 200,
            sha256: "da7a".into(),
            template_date: "2026-11-29".into(),
        },
        ..RunStarted::default()
    })
}

pub fn step(step: u64, loss: f64, seconds: f64) -> EventKind {
    EventKind::Step(StepRecord {
        step,
        epoch: step as f64 / 10.0,
        metrics: [(LOSS, loss), (GRAD_NORM, 1.0), (LEARNING_RATE, 1e-4)].into(),
        tokens: 64,
        trained_tokens: 20,
        skipped: !loss.is_finite(),
        seconds,
        disk_read: Bytes(600),
        h2d: Bytes(700),
        d2h: Bytes(8),
        h2d_s: 0.1,
        stall_s: 0.2,
        residency_peak: 3,
        ..StepRecord::default()
    })
}

pub fn eval(step: u64, loss: f64) -> EventKind {
    EventKind::Eval(EvalRecord { step, loss, tokens: 40, seconds: 0.1 })
}

pub fn finished(dir: &Path, step: u64, status: RunStatus) -> EventKind {
    EventKind::Finished(RunFinished {
        status,
        reason: None,
        step,
        checkpoint: Some(dir.join(format!("checkpoint-{step}"))),
        vram: VramFigures { live: Bytes(4000), reserved: Bytes(4500), device: Some(Bytes(4900)) },
        stats: StreamStats { h2d_s: 0.5, stall_s: 1.0, evict_wait_s: 0.0, resident_history: vec![(0, 1), (1, 2)] },
        residency_peak: 3,
        telemetry_dropped: 7,
        refused: false,
    })
}

pub fn events(kinds: Vec<EventKind>) -> Vec<Event> {
    kinds.into_iter().enumerate().map(|(i, kind)| Event { seq: i as u64, at: i as f64 * 0.5, kind }).collect()
}

pub fn ten_steps(dir: &Path) -> Vec<EventKind> {
    let mut kinds = vec![started(dir, 0, 10), eval(0, 4.0)];
    let seconds = [9.0, 5.0, 0.5, 0.5, 0.6, 0.5, 0.5, 0.5, 0.5, 1.0];
    kinds.extend(seconds.iter().enumerate().map(|(i, s)| step(i as u64 + 1, 4.0 - i as f64 * 0.1, *s)));
    kinds.extend([eval(10, 3.0), finished(dir, 10, RunStatus::Finished)]);
    kinds
}

/// Any event a hostile or half-finished recording may hold.
pub fn any_kind() -> impl Strategy<Value = EventKind> {
    let float = prop_oneof![any::<f64>(), 0.0..10.0f64];
    let small = 0u64..12;
    prop_oneof![
        (small.clone(), any::<u64>(), 0usize..6).prop_map(|(done, total, n)| {
            EventKind::Started(RunStarted {
                steps_done: done,
                steps_total: total,
                tiers: vec![TierName::Ram; n],
                mode: ["lora", "full", "?"][n % 3].into(),
                ..RunStarted::default()
            })
        }),
        (prop_oneof![any::<u64>(), small.clone()], float.clone(), float.clone(), any::<u64>()).prop_map(
            |(n, loss, seconds, bytes)| {
                EventKind::Step(StepRecord {
                    step: n,
                    metrics: [(LOSS, loss)].into(),
                    seconds,
                    tokens: bytes,
                    disk_read: Bytes(bytes),
                    stall_s: seconds,
                    compute_s: loss,
                    bound_s: seconds,
                    bound_by: ["disk", ""][(n % 2) as usize].into(),
                    ..StepRecord::default()
                })
            }
        ),
        (small.clone(), float.clone(), any::<u64>(), 0usize..5).prop_map(|(step, seconds, bytes, n)| {
            let v = VisitTimes { h2d: bytes, compute_s: seconds, wait_disk_s: seconds, ..VisitTimes::default() };
            EventKind::Trace(StepTrace { step, visits: vec![v; n] })
        }),
        (small, float).prop_map(|(n, loss)| eval(n, loss)),
        any::<u64>().prop_map(|n| finished(Path::new("r"), n, RunStatus::Stopped)),
        any::<Option<u32>>().prop_map(|mhz| EventKind::Gauges(Gauges { sm_clock_mhz: mhz, ..Gauges::default() })),
        ".{0,20}".prop_map(|text| EventKind::Notice(Notice { level: Level::Warn, text })),
    ]
}
