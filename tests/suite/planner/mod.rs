//! The planner through its public face: tables for known shapes and machines, and properties over random ones.

mod cases;
mod found;
mod headers;
mod properties;
mod seed;
mod verdicts;

use crate::checkpoint::{Checkpoint, Dtype};
use crate::units::{Bytes, GIB};
use blockstream_tui::config::{ByteSize, DeviceChoice, Resident, RunConfig, TierChoice};
use blockstream_tui::device::{Machine, profile};
use blockstream_tui::event::TierName;
use blockstream_tui::plan::made;
use blockstream_tui::plan::{ModePlan, PlanReport, Verdict, explain, plan};
use made::{LLAMA3_8B, QWEN25_32B, SMOL, Shape, TINY, checkpoint as build};
use std::path::Path;

fn machine(profile_name: &str) -> Machine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles").join(format!("{profile_name}.toml"));
    profile::load(&path).expect("a shipped profile")
}

fn config(edit: impl FnOnce(&mut RunConfig)) -> RunConfig {
    let mut c = RunConfig::default();
    c.model.path = "some/model".into();
    edit(&mut c);
    c
}

fn of(shape: Shape, dtype: Dtype, on: &str, edit: impl FnOnce(&mut RunConfig)) -> PlanReport {
    plan(&build(shape, dtype), &machine(on), &config(edit)).expect("a plan")
}

fn count(m: &ModePlan, tier: TierName) -> usize {
    m.placement.iter().filter(|p| p.tier == tier).count()
}

/// What must hold for every plan, feasible or not.
fn check(c: &Checkpoint, p: &PlanReport) {
    for (name, m) in [("lora", &p.modes.lora), ("full", &p.modes.full)] {
        let all: Bytes = c.tensors.iter().map(|t| Bytes(t.bytes)).sum();
        let unused: Bytes = c.unused.iter().map(|t| Bytes(c.tensors[*t].bytes)).sum();
        assert_eq!(m.tiers.vram + m.tiers.ram + m.tiers.disk + unused, all, "{name}: tiers add up to the headers");
        assert_eq!(p.bytes, all);
        assert_eq!(m.placement.iter().map(|b| b.block).collect::<Vec<_>>(), (0..c.blocks.len()).collect::<Vec<_>>());
        let ring = m.stream.ring.iter().sum::<usize>().div_ceil(4).max(if name == "full" { m.ring_slots } else { 0 });
        assert_eq!(m.residency, count(m, TierName::Vram) + ring, "{name}: blocks' worth of parts");
        assert!(m.residency <= c.blocks.len() + usize::from(m.stream.head.is_some()), "{name}: {m:?}");
        for terms in [&m.vram, &m.host] {
            assert_eq!(terms.total, terms.terms.values().copied().sum(), "{name}");
        }
        assert!(m.seconds_per_step.low <= m.seconds_per_step.high && m.seconds_per_step.low.is_finite(), "{name}");
        assert!(!m.reasons.is_empty(), "{name}");
        let streams = count(m, TierName::Ram) + count(m, TierName::Disk) > 0;
        assert_eq!(m.ring_slots > 0 || m.stream.split, streams, "{name}: a ring where blocks stream");
        if m.verdict != Verdict::Infeasible {
            assert!(m.vram.total <= m.vram.budget, "{name}: {:?}", m.vram);
            assert!(m.host.total <= m.host.budget, "{name}: {:?}", m.host);
        }
        if m.verdict == Verdict::Ram {
            assert_eq!((m.per_step.disk_read, m.per_step.written), (Bytes(0), Bytes(0)), "{name}");
        }
    }
    let lora = &p.modes.lora;
    assert_eq!(lora.per_step.written, Bytes(0));
    assert!(lora.per_step.disk_read <= lora.per_step.h2d);
    let text = explain(p);
    assert!(text.lines().filter(|l| !l.trim_start().starts_with("run ")).all(|l| l.chars().count() <= 80), "{text}");
    let back: PlanReport = serde_json::from_str(&serde_json::to_string(p).expect("JSON")).expect("the same JSON");
    assert_eq!(back.modes.lora.placement, p.modes.lora.placement);
}

#[test]
fn known_models_on_known_machines() {
    use Verdict::{FullFtDisk, Infeasible, LoraDisk, Ram};
    for (shape, on, lora, full) in [
        (SMOL, "cpu-only", Ram, Ram),
        (SMOL, "rtx3050-laptop-4gb", Ram, Ram),
        (LLAMA3_8B, "rtx3050-laptop-4gb", LoraDisk, Infeasible),
        (LLAMA3_8B, "rtx5050-laptop-8gb", LoraDisk, Infeasible),
        (LLAMA3_8B, "rtx4090-desktop", Ram, FullFtDisk),
        (LLAMA3_8B, "h200", Ram, Ram),
        (LLAMA3_8B, "cpu-only", LoraDisk, Infeasible),
        (QWEN25_32B, "rtx5050-laptop-8gb", LoraDisk, Infeasible),
        (QWEN25_32B, "rtx4090-desktop", Ram, Infeasible),
        (QWEN25_32B, "h200", Ram, Infeasible),
    ] {
        let c = build(shape, Dtype::BF16);
        let p = plan(&c, &machine(on), &config(|_| {})).unwrap();
        assert_eq!(
            (p.modes.lora.verdict, p.modes.full.verdict),
            (lora, full),
            "{} on {on}\n{}",
            shape.name,
            explain(&p)
        );
        check(&c, &p);
    }
}

#[test]
fn a_plan_holds_what_a_run_asks_of_the_streamer() {
    let stream = of(SMOL, Dtype::BF16, "h200", |c| {
        (c.stream.prefetch_ahead, c.stream.loss_chunk, c.stream.allow_pageable) = (4, 96, true);
    })
    .modes
    .lora
    .stream;
    assert_eq!((stream.prefetch_ahead, stream.loss_chunk, stream.allow_pageable), (4, 96, true));
}

#[test]
fn bytes_per_step_follow_the_formula() {
    let block = 436_224_000u64;
    let step = |resident: usize, ahead: usize, tier: &str| {
        let p = of(LLAMA3_8B, Dtype::BF16, "h200", |c| {
            c.stream.resident_blocks = Resident::AtMost(resident);
            c.stream.prefetch_ahead = ahead;
            c.stream.tier = tier.parse().unwrap();
            c.train.gradient_accumulation_steps = 4;
        });
        (p.modes.lora.per_step.h2d.0, p.modes.lora.per_step.disk_read.0, p.modes.lora.verdict)
    };
    // 2(L - V)b over the link, V = residents + slots, less one attention part that the ring has room for at each turn;
    // once per step for any number of micro-batches.
    let attention = 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 2 * 4096);
    let streamed = |blocks: u64| 2 * (blocks * block - attention);
    assert_eq!(step(0, 1, "ram"), (streamed(30), 0, Verdict::Ram));
    assert_eq!(step(0, 2, "disk"), (streamed(29), streamed(29), Verdict::LoraDisk));
    assert_eq!(step(10, 2, "disk"), (streamed(19), streamed(19), Verdict::LoraDisk));
    assert_eq!(step(32, 2, "auto"), (0, 0, Verdict::Ram));
}

#[test]
fn three_tiers_read_from_disk_only_what_neither_tier_nor_ring_holds() {
    let p = of(LLAMA3_8B, Dtype::BF16, "h200", |c| {
        c.stream.resident_blocks = Resident::AtMost(8);
        c.stream.host_budget = ByteSize(8_000_000_000);
    });
    let m = &p.modes.lora;
    let (v, r, d) = (count(m, TierName::Vram), count(m, TierName::Ram), count(m, TierName::Disk));
    // The ring for reads takes what blocks leave of 8 GB: 17 blocks, 584 MB.
    assert_eq!((v, r, d), (8, 17, 7));
    assert_eq!(m.stream.host_ring.0 + m.host.terms["ram_tier"].0, 8_000_000_000);
    // 2(L - V - R) with V = 8 residents + 3 slots.
    assert_eq!(m.per_step.disk_read.0, 2 * (32 - 11 - 17) * 436_224_000);
    assert_eq!(m.placement[0].tier, TierName::Disk);
    assert_eq!(m.placement[31].tier, TierName::Disk);
}

#[test]
fn half_the_blocks_trained_means_half_the_backward_bytes() {
    let h2d = |f: f64| {
        of(LLAMA3_8B, Dtype::BF16, "h200", |c| {
            c.stream.resident_blocks = Resident::AtMost(0);
            c.lora.top_fraction = f;
        })
        .modes
        .lora
        .per_step
        .h2d
        .0
    };
    // 2(32 - 3) when all train, less an attention part at each turn. Half of them: 32 forward and 16 backward less the
    // top turn's three, and what Belady's choice keeps of the lowest ones besides.
    let (block, attention) = (436_224_000, 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 2 * 4096));
    assert_eq!(h2d(1.0), 2 * (32 - 3) * block - 2 * attention);
    assert!((42 * block..=(32 + 16 - 3) * block).contains(&h2d(0.5)), "{}", h2d(0.5));
}

#[test]
fn the_demo_in_64_mb_runs_from_disk_on_a_cpu() {
    let free = of(SMOL, Dtype::F16, "cpu-only", |_| {});
    assert_eq!(free.modes.lora.verdict, Verdict::Ram);
    let tight = of(SMOL, Dtype::F16, "cpu-only", |c| c.stream.host_budget = ByteSize(64_000_000));
    let m = &tight.modes.lora;
    assert_eq!(m.verdict, Verdict::LoraDisk, "{:?}", m.reasons);
    let weights =
        |m: &ModePlan| ["ram_tier", "ring", "slots"].iter().filter_map(|t| m.host.terms.get(*t)).copied().sum();
    let (tight_weights, free_weights): (Bytes, Bytes) = (weights(m), weights(&free.modes.lora));
    assert!(tight_weights <= Bytes(64_000_000));
    assert!(free_weights.0 - tight_weights.0 >= 130_000_000, "{free_weights} {tight_weights}");
    // In f32 a slot is twice the stored block.
    assert_eq!(tight.parts["ring_slot"], Bytes(2 * 7_080_192));
    assert!(m.vram.terms.is_empty() && m.host.terms.contains_key("slots"));
}

#[test]
fn asking_for_a_tier_gets_it_or_a_reason() {
    let disk = of(SMOL, Dtype::F16, "cpu-only", |c| c.stream.tier = TierChoice::Disk);
    assert_eq!(disk.modes.lora.verdict, Verdict::LoraDisk);
    let ram = of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |c| c.stream.tier = TierChoice::Ram);
    let m = &ram.modes.lora;
    assert_eq!(m.verdict, Verdict::Infeasible);
    assert!(m.reasons[0].contains("stream.tier = ram"), "{:?}", m.reasons);
    assert_eq!(m.nearest_fix.as_deref(), Some("set stream.tier = auto"));
    let cuda = of(SMOL, Dtype::F16, "cpu-only", |c| c.train.device = DeviceChoice::Cuda);
    assert!(cuda.modes.lora.reasons[0].contains("no usable GPU"), "{:?}", cuda.modes.lora.reasons);
    let cpu = of(SMOL, Dtype::F16, "h200", |c| c.train.device = DeviceChoice::Cpu);
    assert!(cpu.machine.gpu.is_none() && cpu.modes.lora.vram.terms.is_empty());
}

#[test]
fn an_infeasible_plan_says_what_would_help() {
    let p = of(LLAMA3_8B, Dtype::BF16, "rtx3050-laptop-4gb", |c| c.data.max_length = 32_768);
    let m = &p.modes.lora;
    assert_eq!(m.verdict, Verdict::Infeasible, "{}", explain(&p));
    assert!(m.reasons[0].contains(" VRAM, "), "{:?}", m.reasons);
    let fix = m.nearest_fix.clone().unwrap();
    assert!(fix.starts_with("set "), "{fix}");
    assert!(m.command.is_empty());
}

#[test]
fn a_checkpoint_that_is_not_here_needs_room_for_its_download() {
    let mut c = build(LLAMA3_8B, Dtype::BF16);
    c.not_here = true;
    let mut m = machine("rtx4090-desktop");
    let p = plan(&c, &m, &config(|_| {})).unwrap();
    assert_eq!(p.modes.lora.verdict, Verdict::Ram);
    assert!(p.notes.iter().any(|n| n.contains("download is 16.06 GB")));
    m.disk.free = Bytes(10_000_000_000);
    let p = plan(&c, &m, &config(|_| {})).unwrap();
    assert_eq!(p.modes.lora.verdict, Verdict::Infeasible);
    assert!(p.modes.lora.reasons[0].contains("download needs 16.06 GB"), "{:?}", p.modes.lora.reasons);
    assert_eq!(p.modes.lora.nearest_fix.as_deref(), Some("7 GB more free disk would do"));
    c.not_here = false;
    assert_eq!(plan(&c, &m, &config(|_| {})).unwrap().modes.lora.verdict, Verdict::Ram);
}

#[test]
fn types_that_cannot_train_are_named() {
    let p = of(TINY, Dtype::Other("F8_E4M3".into(), 8), "cpu-only", |_| {});
    assert_eq!(p.modes.lora.verdict, Verdict::Infeasible);
    assert!(p.modes.lora.reasons[0].contains("F8_E4M3"), "{:?}", p.modes.lora.reasons);
}

#[test]
fn other_formats_are_candidates_with_their_own_bytes() {
    let p = of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |_| {});
    let c = &p.modes.lora.candidates;
    assert_eq!(c.iter().map(|c| c.format.as_str()).collect::<Vec<_>>(), ["fp8", "nf4"]);
    assert!(c[1].bytes < c[0].bytes && c[0].bytes < p.bytes);
    // 6.98 G weights at 0.515869 bytes, and head, embedding and norms as stored.
    assert!((c[1].bytes.gb() - (6.9793 * 0.515_869 + 2.1015)).abs() < 0.01, "{}", c[1].bytes);
    assert!(c.iter().all(|c| c.note.contains("not trainable in this version yet")));
    assert_eq!(c[1].verdict, Verdict::Ram);
    assert!(c[1].seconds_per_step <= p.modes.lora.seconds_per_step.low);
}

#[test]
fn the_json_has_the_keys_that_scripts_rely_on() {
    let json = serde_json::to_value(of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |_| {})).unwrap();
    for key in ["schema", "model", "params", "bytes", "machine/ram/total"] {
        assert!(json.pointer(&format!("/{key}")).is_some(), "{key}");
    }
    for mode in ["lora", "full"] {
        for key in [
            "verdict",
            "reasons/0",
            "nearest_fix",
            "tiers/vram",
            "tiers/ram",
            "tiers/disk",
            "per_step/disk_read",
            "per_step/h2d",
            "per_step/d2h",
            "per_step/written",
            "seconds_per_step/low",
            "seconds_per_step/high",
            "seconds_per_step/resource",
            "vram/total",
            "vram/terms/boundaries",
            "wear/written_per_step",
            "wear/steps_to_tbw",
            "placement/0/tier",
            "candidates",
            "command",
        ] {
            assert!(json.pointer(&format!("/modes/{mode}/{key}")).is_some(), "{mode}/{key}");
        }
    }
    assert_eq!(json.pointer("/modes/lora/verdict").unwrap(), "LORA_DISK");
    assert!(json.pointer("/modes/lora/tiers/disk").unwrap().is_u64(), "bytes are integers");
}

#[test]
fn the_model_of_a_config_may_come_from_a_profile_or_this_machine() {
    let profile = config(|c| c.machine = Some("rtx5050-laptop-8gb".into()));
    let m = blockstream_tui::device::machine(&profile, None).unwrap();
    assert_eq!(m.gpu.unwrap().vram_total, Bytes(8 * GIB));
    let cpu = config(|c| (c.machine, c.train.device) = (Some("h200".into()), DeviceChoice::Cpu));
    assert_eq!(blockstream_tui::device::machine(&cpu, None).unwrap().gpu, None);
    let here = blockstream_tui::device::machine(&config(|_| {}), None).unwrap();
    assert!(plan(&build(TINY, Dtype::BF16), &here, &config(|_| {})).unwrap().modes.lora.verdict == Verdict::Ram);
}

#[test]
fn a_plan_takes_milliseconds_even_where_nothing_fits() {
    let big = build(Shape { layers: 126, ..QWEN25_32B }, Dtype::BF16);
    let mut m = machine("rtx3050-laptop-4gb");
    if let Some(g) = &mut m.gpu {
        g.integrated = true;
    }
    let began = std::time::Instant::now();
    let p = plan(&big, &m, &config(|c| c.data.max_length = 32_768)).unwrap();
    assert_eq!(p.modes.lora.verdict, Verdict::Infeasible);
    assert!(began.elapsed().as_secs_f64() < 2.0, "{:?}", began.elapsed());
}

#[test]
fn a_target_or_fraction_that_cannot_be_is_an_error() {
    let c = build(TINY, Dtype::BF16);
    let m = machine("cpu-only");
    let bad = |edit: &dyn Fn(&mut RunConfig)| plan(&c, &m, &config(|c| edit(c))).unwrap_err().to_string();
    assert!(bad(&|c| c.lora.targets = vec!["c_attn".into()]).contains("has no 'c_attn'"));
    assert!(bad(&|c| c.lora.targets = vec![]).contains("lora.targets"));
    assert!(bad(&|c| c.lora.top_fraction = f64::NAN).contains("lora.top_fraction"));
    assert!(bad(&|c| c.lora.r = 0).contains("lora.r"));
    let mut none = c.clone();
    none.blocks.clear();
    assert!(plan(&none, &m, &config(|_| {})).unwrap_err().to_string().contains("no decoder blocks"));
}
