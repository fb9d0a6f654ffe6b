//! The nearest change, other formats, wear, the month's budget, hard disks and what-if.

use super::made::{LLAMA3_8B, QWEN25_32B, Shape, TINY, checkpoint as build};
use super::{config, machine, of};
use blockstream_tui::checkpoint::{Checkpoint, Dtype};
use blockstream_tui::config::{ByteSize, Offload, RunConfig, TierChoice, load};
use blockstream_tui::device::Machine;
use blockstream_tui::engine::RunEntry;
use blockstream_tui::event::RunStatus;
use blockstream_tui::plan::ledger::{apply, ledger};
use blockstream_tui::plan::{Edit, ModePlan, Verdict, explain, plan, plan_for, whatif};
use blockstream_tui::units::{Bytes, GB};
use std::path::PathBuf;

fn lora(c: &Checkpoint, m: &Machine, edit: &dyn Fn(&mut RunConfig)) -> ModePlan {
    plan(c, m, &config(|c| edit(c))).unwrap().modes.lora
}

/// The number in front of `unit` in a text like `24 GB more RAM would do`.
fn amount(text: &str, unit: &str) -> u64 {
    let before = text.split(unit).next().unwrap();
    before.split_whitespace().last().unwrap().parse().unwrap_or_else(|_| panic!("no number before '{unit}': {text}"))
}

#[test]
fn the_nearest_length_is_the_longest_that_fits() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let m = machine("rtx3050-laptop-4gb");
    let p = lora(&c, &m, &|c| c.data.max_length = 32_768);
    let fix = p.nearest_fix.unwrap();
    let at = fix.strip_prefix("set data.max_length = ").unwrap_or_else(|| panic!("{fix}")).parse::<usize>().unwrap();
    let verdict = |length: usize| lora(&c, &m, &|c| c.data.max_length = length).verdict;
    assert_eq!(verdict(at), Verdict::LoraDisk, "{at}");
    assert_eq!(verdict(at + 64), Verdict::Infeasible, "{at} is the largest multiple of 64");
    // The command makes that change and no other.
    let command = p.fix_command.unwrap();
    assert!(command.contains(&format!("--set data.max_length={at}")), "{command}");
}

#[test]
fn rows_are_first_spread_over_micro_batches() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let m = machine("rtx3050-laptop-4gb");
    let p = lora(&c, &m, &|c| {
        (c.data.max_length, c.train.per_device_train_batch_size, c.stream.activation_offload) = (1024, 32, Offload::On);
    });
    assert_eq!(p.verdict, Verdict::Infeasible, "{:?}", p.reasons);
    let fix = p.nearest_fix.unwrap();
    let (rows, micro) = (amount(&fix, " and train.gradient"), fix.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    assert!(fix.starts_with("set train.per_device_train_batch_size = ") && rows * micro == 32, "{fix}");
}

#[test]
fn more_memory_is_told_to_the_gigabyte() {
    let c = build(QWEN25_32B, Dtype::BF16);
    let m = machine("rtx5050-laptop-8gb");
    let p = lora(&c, &m, &|_| {});
    assert_eq!(p.verdict, Verdict::LoraDisk);
    let fix = p.nearest_fix.unwrap();
    assert!(fix.ends_with("would keep the whole model in memory"), "{fix}");
    let gb = amount(&fix, " GB more RAM");
    let with = |gb: u64| {
        let m = whatif::edited(&m, &[Edit::Ram(m.ram.total.0 + gb * GB)]).unwrap();
        lora(&c, &m, &|_| {}).verdict
    };
    assert_eq!((with(gb), with(gb - 1)), (Verdict::Ram, Verdict::LoraDisk), "{fix}");
}

#[test]
fn a_setting_that_only_lifts_a_limit_comes_before_hardware() {
    let c = build(TINY, Dtype::BF16);
    let m = machine("cpu-only");
    let fix = |edit: &dyn Fn(&mut RunConfig)| lora(&c, &m, edit).nearest_fix;
    assert_eq!(fix(&|_| {}), None);
    assert_eq!(
        fix(&|c| c.stream.tier = TierChoice::Disk).as_deref(),
        Some("set stream.tier = auto to keep the whole model in memory")
    );
    let budget = fix(&|c| c.stream.host_budget = ByteSize(400_000)).unwrap();
    assert!(budget.starts_with("set stream.host_budget = 0"), "{budget}");
}

#[test]
fn a_download_too_large_names_the_missing_space() {
    let mut c = build(LLAMA3_8B, Dtype::BF16);
    c.not_here = true;
    let mut m = machine("rtx4090-desktop");
    m.disk.free = Bytes(10 * GB);
    let p = lora(&c, &m, &|_| {});
    assert_eq!(p.nearest_fix.as_deref(), Some("7 GB more free disk would do"));
    // A packed copy lies beside the download: the candidates need more, each its own.
    for candidate in &p.candidates {
        assert_eq!(candidate.verdict, Verdict::Infeasible);
        assert!(candidate.reasons[0].contains("download"), "{:?}", candidate.reasons);
    }
    m.disk.free = Bytes(17 * GB);
    let p = lora(&c, &m, &|_| {});
    assert_eq!(p.verdict, Verdict::Ram);
    let nf4 = p.candidates.iter().find(|c| c.format == "nf4").unwrap();
    assert!(nf4.reasons[0].contains("converting needs 19.66 GB"), "{:?}", nf4.reasons);
    assert_eq!(nf4.nearest_fix.as_deref(), Some("3 GB more free disk would do"));
}

#[test]
fn candidates_carry_figures_of_their_own() {
    let p = of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |_| {}).modes.lora;
    let [fp8, nf4] = &p.candidates[..] else { panic!("{:?}", p.candidates) };
    assert!(nf4.packing < fp8.packing && fp8.packing < p.tiers.disk + p.tiers.ram + p.tiers.vram);
    assert!(nf4.range.low > 0.0 && nf4.range.low <= nf4.range.high && nf4.range.low == nf4.seconds_per_step);
    assert!(nf4.vram > Bytes(0) && nf4.vram <= p.vram.budget);
    assert_eq!(nf4.wear.written_per_step, Bytes(0));
    assert_eq!(nf4.tiers.disk, Bytes(0));
    assert!(nf4.command.is_empty(), "this version can't train it");
}

#[test]
fn full_finetuning_is_planned_with_its_terms() {
    let p = of(LLAMA3_8B, Dtype::BF16, "rtx4090-desktop", |c| c.train.max_steps = 100).modes.full;
    assert_eq!(p.verdict, Verdict::FullFtDisk, "{:?}", p.reasons);
    for term in ["slots", "block_gradients", "head", "embedding_gradients", "boundaries", "block_activations"] {
        assert!(p.vram.terms.contains_key(term), "{term}: {:?}", p.vram.terms);
    }
    // Three slots with 12 bytes for each of a block's parameters, and 4 for its gradient.
    let block = 436_207_616 / 2;
    assert_eq!(p.vram.terms["block_gradients"].0, 4 * (block + 4 * 1024 + 4096));
    assert!(p.vram.terms["slots"].0 >= 3 * 12 * block, "{}", p.vram.terms["slots"]);
    let params = 8_030_261_248;
    assert_eq!((p.per_step.disk_read, p.per_step.written), (Bytes(14 * params), Bytes(12 * params)));
    // 100 steps, the state laid out once, a 16-bit export.
    assert_eq!(p.wear.written_per_run, Some(Bytes(100 * 12 * params + 12 * params + 2 * params)));
    assert!((p.wear.life_per_run.unwrap() - (101.0 * 12.0 + 2.0) * params as f64 / 1200e12).abs() < 1e-9);
    // One drive shares reads and writes.
    let least = 14.0 * params as f64 / 6.5e9 + 12.0 * params as f64 / 1.5e9;
    assert!((p.seconds_per_step.low - least).abs() < 1e-6 * least && p.seconds_per_step.resource == "disk");
    let eight = &p.candidates[0];
    // At half the size the state finds room in 56 GiB of host memory: no byte is written in a step.
    assert_eq!((eight.format.as_str(), eight.bytes.0), ("8-bit moments", 6 * params + params.div_ceil(256) * 8));
    assert_eq!((eight.verdict, eight.wear.written_per_step), (Verdict::Ram, Bytes(0)));
}

#[test]
fn fewer_steps_than_the_least_are_refused_unless_overridden() {
    let full = |edit: &dyn Fn(&mut RunConfig)| of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |c| edit(c)).modes.full;
    let refused = full(&|_| {});
    assert_eq!(refused.verdict, Verdict::Infeasible);
    assert!(
        refused.reasons[0].contains("3113 such steps") && refused.reasons[0].contains("wear.min_steps = 5000"),
        "{:?}",
        refused.reasons
    );
    let fix = refused.nearest_fix.unwrap();
    assert!(fix.starts_with("set train.mode = lora (LORA_DISK)") && fix.contains("8-bit moments"), "{fix}");
    assert!(!refused.wear.overridden);
    let allowed = full(&|c| c.wear.overridden = true);
    assert_eq!(allowed.verdict, Verdict::FullFtDisk, "{:?}", allowed.reasons);
    assert!(allowed.wear.overridden && allowed.reasons.iter().any(|r| r.contains("wear.override is set")));
    // As a key of the config.
    let set = load::load(None, &[], &["wear.override=true".into(), "wear.monthly_budget=2 TB".into()]).unwrap().config;
    assert!(set.wear.overridden && set.wear.monthly_budget.0 == 2_000 * GB);
}

#[test]
fn the_fast_cache_shows_in_the_forecast() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let mut m = machine("rtx4090-desktop");
    let full = |m: &Machine| plan(&c, m, &config(|_| {})).unwrap().modes.full;
    let before = full(&m);
    (m.disk.slc, m.disk.write_after_slc) = (Some(Bytes(40 * GB)), Some(0.5e9));
    let after = full(&m);
    // 40 GB at 1.5 GB/s, the rest at 0.5 instead of 1.5.
    let rest = (96_363_134_976 - 40 * GB) as f64;
    let more = after.seconds_per_step.low - before.seconds_per_step.low;
    assert!((more - (rest / 0.5e9 - rest / 1.5e9)).abs() < 0.01, "{more}");
    assert!(after.seconds_per_step.high > before.seconds_per_step.high);
    assert!(after.reasons.iter().any(|r| r.contains("fast cache takes 40.00 GB")), "{:?}", after.reasons);
}

#[test]
fn smart_shortens_the_drives_life() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let mut m = machine("rtx4090-desktop");
    m.disk.written = Some(Bytes(900_000 * GB));
    let full = plan(&c, &m, &config(|_| {})).unwrap().modes.full;
    // 300 TB of 1200 are left.
    assert_eq!((full.wear.steps_to_tbw, full.verdict), (Some(3113), Verdict::Infeasible));
    assert_eq!(full.wear.life_used, Some(0.75));
}

#[test]
fn a_lora_run_writes_its_checkpoints_only() {
    let p = of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |c| (c.train.max_steps, c.train.save_steps) = (40, 20));
    let w = p.modes.lora.wear;
    // r 16 on q, k, v, o of 32 blocks: 13.6 M parameters; the adapter and two moments in f32.
    let params = 32 * 16 * ((4096 + 4096) * 2 + (1024 + 4096) * 2);
    assert_eq!((w.written_per_step, w.written_per_save), (Bytes(0), Bytes(12 * params)));
    assert_eq!((w.saves, w.written_per_run), (Some(2), Some(Bytes(2 * 12 * params + 4 * params))));
    assert!(w.life_per_run.unwrap() < 2e-6);
    let text = explain(&p);
    assert!(text.contains("2 checkpoints of 163.6 MB") && text.contains("of the drive's rated life"), "{text}");
}

#[test]
fn a_hard_disk_is_refused_for_streaming_unless_allowed() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let mut m = machine("rtx5050-laptop-8gb");
    (m.disk.kind, m.disk.read) = ("hdd".into(), 0.15e9);
    let p = lora(&c, &m, &|_| {});
    assert_eq!(p.verdict, Verdict::Infeasible);
    assert!(p.reasons[0].contains("hard disk"), "{:?}", p.reasons);
    assert_eq!(p.nearest_fix.as_deref(), Some("set stream.allow_hdd = true"));
    let p = lora(&c, &m, &|c| c.stream.allow_hdd = true);
    assert_eq!(p.verdict, Verdict::LoraDisk);
    assert!(p.reasons.iter().any(|r| r.contains("hard disk: every step waits")), "{:?}", p.reasons);
    // What needs no disk tier is none of its business; a SATA drive counts by its rate.
    assert_eq!(lora(&build(TINY, Dtype::BF16), &m, &|_| {}).verdict, Verdict::Ram);
    (m.disk.kind, m.disk.read) = ("ssd".into(), 0.5e9);
    let p = lora(&c, &m, &|_| {});
    assert_eq!(p.verdict, Verdict::LoraDisk);
    assert!(p.seconds_per_step.low >= p.per_step.disk_read.0 as f64 / 0.5e9);
}

fn run(month: &str, written: u64) -> RunEntry {
    RunEntry {
        run_id: "r".into(),
        dir: PathBuf::from("r"),
        model: "m".into(),
        verdict: "RAM".into(),
        status: RunStatus::Finished,
        steps: 1,
        loss: (None, None),
        eval: (None, None),
        seconds_per_step: None,
        tiers: vec![],
        month: month.into(),
        written: Bytes(written),
        adapter: None,
    }
}

#[test]
fn the_ledger_adds_runs_by_month_and_holds_plans_to_the_budget() {
    let runs = [run("2026-11", 900), run("2026-10", 5_000), run("2026-11", 100), run("", 7)];
    let l = ledger(&runs, "2026-11", &RunConfig::default());
    let months: Vec<_> = l.months.iter().map(|m| (m.month.as_str(), m.runs, m.written.0)).collect();
    assert_eq!(months, [("2026-11", 2, 1_000), ("2026-10", 1, 5_000), ("", 1, 7)]);
    assert_eq!(l.line(), "1.0 kB written in 2026-11 by 2 runs; 6.0 kB in all months");

    let c = build(LLAMA3_8B, Dtype::BF16);
    let held = |budget: u64, written: u64, overridden: bool| {
        let cfg = config(|c| {
            c.train.max_steps = 10;
            (c.wear.monthly_budget, c.wear.overridden) = (ByteSize(budget), overridden);
        });
        let mut p = plan(&c, &machine("rtx4090-desktop"), &cfg).unwrap();
        apply(&mut p, ledger(&[run("2026-11", written)], "2026-11", &cfg), &cfg);
        p
    };
    // 10 steps, the layout of state and an export: 1.076 TB.
    let p = held(1_000 * GB, 0, false);
    let full = &p.modes.full;
    assert_eq!((full.verdict, p.modes.lora.verdict), (Verdict::Infeasible, Verdict::Ram));
    assert!(
        full.reasons[0].contains("1.08 TB") && full.reasons[0].contains("wear.monthly_budget"),
        "{:?}",
        full.reasons
    );
    assert!(full.nearest_fix.as_deref().unwrap().contains("wear.monthly_budget = 1077 GB"), "{:?}", full.nearest_fix);
    let p = held(1_000 * GB, 0, true).modes.full;
    assert!(p.verdict == Verdict::FullFtDisk && p.wear.overridden, "{:?}", p.reasons);
    // Over 80 %: told, not refused.
    let p = held(2_000 * GB, 700 * GB, false).modes.full;
    assert_eq!(p.verdict, Verdict::FullFtDisk);
    assert!(p.reasons.iter().any(|r| r.contains("over 80 %")), "{:?}", p.reasons);
    let p = held(2_000 * GB, 100 * GB, false).modes.full;
    assert!(!p.reasons.iter().any(|r| r.contains("over 80 %")), "{:?}", p.reasons);
    // A month that is used up refuses LoRA's checkpoints too.
    let p = held(1_000 * GB, 1_000 * GB, false).modes.lora;
    assert!(p.verdict == Verdict::Infeasible && p.command.is_empty(), "{:?}", p.reasons);
}

#[test]
fn what_if_plans_for_an_edited_machine_and_says_so() {
    let c = build(QWEN25_32B, Dtype::BF16);
    let m = machine("rtx5050-laptop-8gb");
    let cfg = config(|_| {});
    let p = plan_for(&c, &m, &cfg, &[Edit::Ram(160 * GB)], None).unwrap();
    assert_eq!((p.modes.lora.verdict, p.what_if.as_slice()), (Verdict::Ram, &["ram = 160.00 GB".to_string()][..]));
    assert!(p.machine.source.starts_with("edited (ram = 160.00 GB); profile"), "{}", p.machine.source);
    assert!(explain(&p).contains("what if   ram = 160.00 GB: not this machine"));
    assert_eq!(plan_for(&c, &m, &cfg, &[], None).unwrap(), plan(&c, &m, &cfg).unwrap());
    let faster = plan_for(&c, &m, &cfg, &[Edit::Read(7e9)], None).unwrap().modes.lora;
    assert!(faster.seconds_per_step.low < plan(&c, &m, &cfg).unwrap().modes.lora.seconds_per_step.low / 2.0);
}

#[test]
fn case_pl_06_a_plan_stays_below_free_vram_with_a_margin() {
    let mut m = machine("rtx5050-laptop-8gb");
    if let Some(g) = &mut m.gpu {
        (g.vram_total, g.vram_free, g.overhead) = (Bytes(8 * GB), Bytes(7_400_000_000), Bytes(500_000_000));
    }
    let p = lora(&build(Shape { layers: 80, ..LLAMA3_8B }, Dtype::BF16), &m, &|_| {});
    // Free VRAM less what CUDA itself takes is a hard cap, whatever a driver would accept past it.
    assert_eq!(p.vram.budget, Bytes(6_900_000_000));
    assert!(p.vram.total <= p.vram.budget && p.verdict != Verdict::Infeasible, "{:?}", p.vram);
    let asked = lora(&build(LLAMA3_8B, Dtype::BF16), &m, &|c| c.stream.vram_budget = ByteSize(7_600_000_000));
    assert_eq!(asked.vram.budget, Bytes(6_900_000_000), "a budget past what is free doesn't lift the cap");
}
