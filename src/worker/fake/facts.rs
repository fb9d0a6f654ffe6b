//! Facts of the scripted desk: a laptop, four checkpoints, their plans and three past runs.

use super::engine::{lowest_trainable, tiers};
use crate::config::{RunConfig, TierChoice};
use crate::device::{Disk, Gpu, Machine, Ram};
use crate::engine::{ModelEntry, RunEntry};
use crate::error::{Error, Result};
use crate::event::{RunStatus, TierName};
use crate::plan::{
    BlockPlace, Candidate, Ceiling, Edit, ModePlan, Modes, PLAN_SCHEMA, PerStep, PlanReport, SecondsRange, StreamPlan,
    TierBytes, Verdict, VramPlan, Wear, whatif,
};
use crate::units::{Bytes, GB};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The laptop of the tests.
#[must_use]
pub fn machine() -> Machine {
    Machine {
        name: "RTX 5050 laptop".into(),
        source: "profile rtx5050-laptop-8gb".into(),
        gpu: Some(Gpu {
            name: "NVIDIA GeForce RTX 5050 Laptop GPU".into(),
            uuid: None,
            driver: Some("580.95".into()),
            vram_total: Bytes(8 * GB),
            vram_free: Bytes(7_400_000_000),
            overhead: Bytes(420_000_000),
            h2d: 12.5e9,
            d2h: 12.0e9,
            flops: 4.2e13,
            ..Gpu::default()
        }),
        ram: Ram {
            total: Bytes(16 * GB),
            available: Bytes(11_200_000_000),
            pinnable: Bytes(8 * GB),
            lacking: Bytes::ZERO,
            limited_by: "host".into(),
        },
        disk: Disk {
            kind: "nvme".into(),
            read: 3.4e9,
            write: 2.1e9,
            free: Bytes(312 * GB),
            tbw: Some(Bytes(300_000 * GB)),
            ..Disk::default()
        },
        results_free: None,
        cpu_flops: 2.0e11,
        past: Default::default(),
    }
}

/// Four checkpoints: the demo, one that streams, one that never fits, one that can't be used.
#[must_use]
pub fn models() -> Vec<ModelEntry> {
    let entry = |name: &str, origin: &str, family: &str, params, bytes, n_blocks, problem: Option<&str>| ModelEntry {
        name: name.into(),
        path: PathBuf::from(format!("models/{name}")),
        origin: origin.into(),
        family: family.into(),
        params,
        bytes: Bytes(bytes),
        n_blocks,
        problem: problem.map(String::from),
        not_here: false,
    };
    vec![
        entry("SmolLM2-135M-Instruct", "demo", "llama", 134_515_008, 269_060_552, 30, None),
        entry("meta-llama/Llama-3.1-8B-Instruct", "hub cache", "llama", 8_030_261_248, 16_060_522_496, 32, None),
        entry("Qwen/Qwen3-32B", "hub cache", "qwen3", 32_762_123_264, 65_524_246_528, 64, None),
        entry("模型-七十亿-é-👩‍🔬", "folder", "mistral", 7_248_023_552, 14_496_047_104, 32, None),
        entry(
            "Llama-3-broken",
            "folder",
            "llama",
            0,
            0,
            0,
            Some("model.safetensors.index.json names 'model-00002-of-00002.safetensors', which is not there"),
        ),
    ]
}

/// Plans `config` for one of [`models`] by the roughest of formulas, so that edits show.
///
/// # Errors
/// Not one of the models, or one with a problem.
pub fn plan(config: &RunConfig) -> Result<PlanReport> {
    plan_of(config, models(), &[])
}

/// As [`plan`], for one of `models`, on the laptop as edited.
///
/// # Errors
/// As [`plan`].
pub fn plan_of(config: &RunConfig, models: Vec<ModelEntry>, edits: &[Edit]) -> Result<PlanReport> {
    let path = PathBuf::from(&config.model.path);
    let model = models
        .into_iter()
        .find(|m| m.path == path || m.name == config.model.path)
        .ok_or_else(|| Error::checkpoint(format!("no checkpoint at '{}'", path.display())))?;
    if let Some(problem) = model.problem.filter(|_| !model.not_here) {
        return Err(Error::checkpoint(problem).next("fetch the missing file"));
    }
    let machine = whatif::edited(&machine(), edits)?;
    // What the desktop and CUDA take of the card stays taken.
    let free = machine.gpu.as_ref().map_or(0, |g| g.vram_total.0.saturating_sub(GB));
    let vram_budget = pick(config.stream.vram_budget.0, free);
    let block = model.bytes.0 / (model.n_blocks as u64 + 2);
    let tokens = (config.data.max_length * config.train.per_device_train_batch_size) as u64;
    let terms = BTreeMap::from([
        ("block_activations".to_owned(), Bytes(tokens * 400_000)),
        ("adapters".to_owned(), Bytes(config.lora.r as u64 * model.n_blocks as u64 * 260_000)),
        ("embedding".to_owned(), Bytes(2 * block)),
        ("slots".to_owned(), Bytes(config.stream.ring_slots() as u64 * block)),
        ("cublas_workspaces".to_owned(), Bytes(180_000_000)),
        ("resident_blocks".to_owned(), Bytes(if model.bytes.0 > GB { 4 * block } else { 10 * block })),
    ]);
    let total: Bytes = terms.values().copied().sum();
    let fits = total.0 <= vram_budget;
    let tier = |t: TierName| {
        let n = tiers(model.n_blocks).iter().filter(|x| **x == t).count() as u64;
        Bytes(n * block)
    };
    let small = model.bytes.0 < machine.ram.pinnable.0 && config.stream.tier != TierChoice::Disk;
    let verdict = match (fits, small) {
        (false, _) => Verdict::Infeasible,
        (true, true) => Verdict::Ram,
        (true, false) => Verdict::LoraDisk,
    };
    let seconds = 2.0 * tier(TierName::Disk).0 as f64 / machine.disk.read + tokens as f64 * model.params as f64 / 1e13;
    let lora = ModePlan {
        verdict,
        trainable: true,
        reasons: match verdict {
            Verdict::Infeasible => {
                vec![format!("Needs {total} of VRAM, {} free", Bytes(vram_budget))]
            }
            Verdict::Ram => vec![
                format!("all {} of weights fit in RAM and VRAM", model.bytes),
                "nothing is read from disk during a step".into(),
            ],
            _ => vec![
                format!("{} of weights do not fit in {} of RAM", model.bytes, machine.ram.available),
                format!("{} stream from disk, twice a step; nothing is written", tier(TierName::Disk)),
            ],
        },
        nearest_fix: (!fits).then(|| "halve max_length, or lower the rank".to_owned()),
        tiers: TierBytes { vram: tier(TierName::Vram), ram: tier(TierName::Ram), disk: tier(TierName::Disk) },
        per_step: PerStep {
            disk_read: tier(TierName::Disk) * 2,
            h2d: (tier(TierName::Disk) + tier(TierName::Ram)) * 2,
            d2h: Bytes(0),
            written: Bytes(0),
        },
        seconds_per_step: SecondsRange { low: seconds, high: seconds * 1.35, resource: "disk".into(), correction: 1.0 },
        vram: VramPlan { total, budget: Bytes(vram_budget), terms },
        host: VramPlan {
            total: tier(TierName::Ram),
            budget: Bytes(pick(config.stream.host_budget.0, 8 * GB)),
            terms: BTreeMap::from([("ram_tier".to_owned(), tier(TierName::Ram))]),
        },
        wear: Wear::default(),
        space: VramPlan::default(),
        fix_command: None,
        placement: tiers(model.n_blocks)
            .into_iter()
            .enumerate()
            .map(|(b, tier)| BlockPlace { block: b, tier, bytes: Bytes(block) })
            .collect(),
        ring_slots: config.stream.ring_slots(),
        residency: model.n_blocks / 3 + config.stream.ring_slots(),
        stream: StreamPlan::default(),
        sweeps: Default::default(),
        lowest_trainable: lowest_trainable(config, model.n_blocks),
        candidates: vec![Candidate {
            format: "nf4".into(),
            verdict: Verdict::Ram,
            bytes: Bytes(model.bytes.0 / 4),
            seconds_per_step: seconds / 4.0,
            note: "not trainable by this version yet".into(),
            reasons: vec!["every packed layer stays in memory".into()],
            nearest_fix: None,
            tiers: TierBytes::default(),
            range: SecondsRange::default(),
            vram: Bytes(0),
            wear: Wear::default(),
            packing: Bytes(model.bytes.0 / 4),
            command: String::new(),
        }],
        command: format!("blockstream-tui train --model {}", model.path.display()),
    };
    let written = Bytes(model.bytes.0 * 6);
    let full = ModePlan {
        trainable: false,
        verdict: if model.bytes.0 > 8 * GB { Verdict::Infeasible } else { Verdict::FullFtDisk },
        reasons: vec![format!("{written} would be written per step")],
        nearest_fix: Some("train a LoRA".into()),
        per_step: PerStep { written, ..lora.per_step },
        wear: Wear {
            written_per_step: written,
            steps_to_tbw: Some(300_000 * GB / written.0.max(1)),
            ..Wear::default()
        },
        candidates: Vec::new(),
        ..lora.clone()
    };
    Ok(PlanReport {
        data: None,
        schema: PLAN_SCHEMA,
        model: model.name,
        params: model.params,
        bytes: model.bytes,
        n_blocks: model.n_blocks,
        parts: BTreeMap::from([("largest block".to_owned(), Bytes(block))]),
        machine,
        what_if: edits.iter().map(Edit::words).collect(),
        ceilings: vec![Ceiling { mode: "lora".into(), params: 156_000_000_000, limit: "disk space".into() }],
        ledger: None,
        notes: vec!["'adapter_model.safetensors' beside the shards is ignored".into()],
        modes: Modes { lora, full },
    })
}

fn pick(asked: u64, default: u64) -> u64 {
    if asked == 0 { default } else { asked }
}

/// Three past runs, newest first.
#[must_use]
pub fn runs() -> Vec<RunEntry> {
    let entry = |id: &str, verdict: &str, status, steps, loss, eval, seconds| RunEntry {
        run_id: id.into(),
        dir: PathBuf::from("results").join(id),
        model: "SmolLM2-135M-Instruct".into(),
        verdict: verdict.into(),
        status,
        steps,
        loss,
        eval,
        seconds_per_step: seconds,
        tiers: tiers(30),
        month: "2026-11".into(),
        written: Bytes(steps * 1_500_000),
        adapter: (steps > 0).then(|| "models/SmolLM2-135M-Instruct".into()),
    };
    vec![
        entry(
            "20261128T201500Z-smol-lora",
            "RAM",
            RunStatus::Finished,
            40,
            (Some(2.9), Some(1.2)),
            (Some(3.0), Some(1.31)),
            Some(0.412),
        ),
        entry(
            "20261128T190200Z-smol-lora",
            "LORA_DISK",
            RunStatus::Stopped,
            17,
            (Some(2.9), Some(1.7)),
            (Some(3.0), None),
            Some(1.21),
        ),
        entry("20261127T080000Z-qwen3-lora", "LORA_DISK", RunStatus::Failed, 0, (None, None), (None, None), None),
    ]
}
