//! Public failures of planners, each with the right values.

use super::made::{LLAMA3_8B, Shape, TINY, checkpoint as build, grow_block};
use super::{check, config, machine, of};
use blockstream_tui::checkpoint::{Checkpoint, Dtype};
use blockstream_tui::config::{ByteSize, Resident, RunConfig};
use blockstream_tui::device::{Machine, profile};
use blockstream_tui::plan::{Verdict, explain, plan};
use blockstream_tui::units::{Bytes, GIB};

#[test]
fn case_pl_01_the_plan_counts_the_bytes_of_the_headers() {
    let c = build(TINY, Dtype::BF16);
    let p = plan(&c, &machine("cpu-only"), &config(|_| {})).unwrap();
    assert_eq!(p.bytes, Bytes(363_648));
    check(&c, &p);
}

#[test]
fn case_pl_02_a_cgroup_limit_turns_ram_into_disk_and_is_named() {
    let mut m = machine("cpu-only");
    let c = build(LLAMA3_8B, Dtype::BF16);
    m.ram.total = Bytes(200 * GIB);
    m.ram.available = Bytes(200 * GIB);
    m.ram.pinnable = m.ram.available;
    let lora = |m: &Machine| plan(&c, m, &config(|c| c.data.max_length = 128)).unwrap().modes.lora;
    assert_eq!(lora(&m).verdict, Verdict::Ram);
    m.ram.available = Bytes(12 * GIB);
    m.ram.limited_by = "cgroup".into();
    let limited = lora(&m);
    assert_eq!(limited.verdict, Verdict::LoraDisk);
    assert!(limited.reasons.iter().any(|r| r.contains("cgroup")), "{:?}", limited.reasons);
}

#[test]
fn case_pl_04_shared_memory_is_one_budget() {
    let mut m = machine("rtx5050-laptop-8gb");
    let shape = Shape { layers: 22, ..LLAMA3_8B };
    let c = build(shape, Dtype::BF16);
    let total = c.total_bytes();
    assert!(total > Bytes(10_000_000_000) && total < Bytes(12 * GIB), "{total}");
    if let Some(g) = &mut m.gpu {
        (g.integrated, g.vram_total, g.vram_free) = (true, Bytes(16 * GIB), Bytes(16 * GIB));
    }
    (m.ram.total, m.ram.available, m.ram.pinnable) = (Bytes(16 * GIB), Bytes(16 * GIB), Bytes(16 * GIB));
    let cfg = config(|c| c.data.max_length = 256);
    let shared = plan(&c, &m, &cfg).unwrap();
    let lora = &shared.modes.lora;
    assert!(lora.vram.total + lora.host.total <= Bytes(15 * GIB), "{} + {}", lora.vram.total, lora.host.total);
    assert!(lora.reasons.iter().any(|r| r.contains("integrated/shared")), "{:?}", lora.reasons);
    assert!(explain(&shared).contains("integrated/shared"));
    // The same sizes as two pools: a model of 1.5 times the memory would seem to fit.
    let big = build(Shape { layers: 40, ..LLAMA3_8B }, Dtype::BF16);
    let disk = |m: &Machine| plan(&big, m, &cfg).unwrap().modes.lora.verdict;
    assert_eq!(disk(&m), Verdict::LoraDisk);
    if let Some(g) = &mut m.gpu {
        g.integrated = false;
    }
    assert_eq!(disk(&m), Verdict::Ram);
}

#[test]
fn case_pl_05_pinnable_memory_limits_the_ram_tier_and_is_not_called_vram() {
    let mut m = machine("rtx5050-laptop-8gb");
    m.ram.pinnable = Bytes(500_000_000);
    let p = plan(&build(LLAMA3_8B, Dtype::BF16), &m, &config(|_| {})).unwrap();
    let lora = &p.modes.lora;
    // A smaller ring, and the limit that made it small by its name.
    assert_eq!(lora.verdict, Verdict::LoraDisk);
    assert_eq!(lora.host.terms["ring"], Bytes(500_000_000));
    assert!(
        lora.reasons.iter().any(|r| r.contains("RAM may hold 500.0 MB of weights: as much as")),
        "{:?}",
        lora.reasons
    );
    m.ram.pinnable = Bytes(100_000);
    let none = plan(&build(LLAMA3_8B, Dtype::BF16), &m, &config(|_| {})).unwrap().modes.lora;
    assert_eq!(none.verdict, Verdict::Infeasible);
    let why = &none.reasons[0];
    assert!(
        why.contains("RAM for weights") && why.contains("locked in place for the GPU") && !why.contains("VRAM"),
        "{why}"
    );
}

#[test]
fn case_pl_08_a_hand_typed_gpu_plans_without_a_driver() {
    let text = "name = \"typed\"\ncpu_flops = 1e11\n[gpu]\nname = \"8 GB card\"\nvram_total = \"8 GB\"\nvram_free = \"7 GB\"\n\
                overhead = 0\nh2d = 12e9\nd2h = 12e9\nflops = 15e12\n[ram]\ntotal = \"16 GB\"\navailable = \"12 GB\"\n\
                pinnable = \"8 GB\"\n[disk]\nkind = \"nvme\"\nread = 2e9\nwrite = 1e9\nfree = \"100 GB\"\n";
    let m = profile::parse(text, "typed.toml").unwrap();
    let p = plan(&build(LLAMA3_8B, Dtype::BF16), &m, &config(|_| {})).unwrap();
    assert_eq!(p.modes.lora.verdict, Verdict::LoraDisk);
}

#[test]
fn case_pl_13_wear_counts_steps_and_names_no_percentage_without_a_rating() {
    let mut m = machine("rtx4090-desktop");
    m.disk.tbw = Some(Bytes(600_000_000_000_000));
    let c = build(LLAMA3_8B, Dtype::BF16);
    let full = |m: &Machine, edit: &dyn Fn(&mut RunConfig)| plan(&c, m, &config(|c| edit(c))).unwrap().modes.full;
    let p = full(&m, &|_| {});
    assert_eq!((p.wear.written_per_step, p.wear.steps_to_tbw), (Bytes(96_363_134_976), Some(6226)));
    assert_eq!(p.verdict, Verdict::FullFtDisk);
    // Micro-batches don't add writes.
    let four = full(&m, &|c| c.train.gradient_accumulation_steps = 4);
    assert_eq!(four.wear, p.wear);
    let strict = full(&m, &|c| c.wear.min_steps = 7000);
    assert_eq!(strict.verdict, Verdict::Infeasible);
    assert!(
        strict.reasons[0].contains("6226 such steps") && strict.reasons[0].contains("7000"),
        "{:?}",
        strict.reasons
    );
    let own = full(&m, &|c| c.wear.tbw = 1200.0);
    assert_eq!(own.wear.steps_to_tbw, Some(12452));
    m.disk.tbw = None;
    let report = plan(&c, &m, &config(|_| {})).unwrap();
    assert_eq!(report.modes.full.wear.steps_to_tbw, None);
    let text = explain(&report);
    assert!(text.contains("96.4 TB per 1000 steps") && !text.contains("% of"), "{text}");
    assert_eq!(report.modes.lora.wear.written_per_step, Bytes(0));
}

#[test]
fn case_pl_16_unequal_blocks_are_named() {
    let mut c = build(TINY, Dtype::BF16);
    grow_block(&mut c, 2, 100_000 * 64 * 2);
    let p = plan(&c, &machine("cpu-only"), &config(|_| {})).unwrap();
    check(&c, &p);
    assert_eq!(p.parts["largest_block"].0 - p.parts["second_largest_block"].0, 12_800_000);
    assert!(p.notes.iter().any(|n| n.contains("model.layers.2.ple.weight")), "{:?}", p.notes);
    let small = plan(&c, &machine("cpu-only"), &config(|c| c.stream.host_budget = ByteSize(10_000_000))).unwrap();
    assert!(small.modes.lora.reasons[0].contains("model.layers.2.ple.weight"), "{:?}", small.modes.lora.reasons);
    // A vocabulary that dwarfs the blocks has parts of its own.
    let wide = build(Shape { vocab: 200_000, ..TINY }, Dtype::BF16);
    let p = plan(&wide, &machine("cpu-only"), &config(|_| {})).unwrap();
    assert_eq!((p.parts["embedding"], p.parts["head"]), (Bytes(25_600_000), Bytes(25_600_000)));
    check(&wide, &p);
    // The ring of two holds the worst two neighbours, block 2 beside another: never twice the largest.
    let one = c.blocks[2].bytes;
    assert_eq!(one, Bytes(73_984 + 12_800_000));
    let equal = build(TINY, Dtype::BF16);
    for slots in [1, 2] {
        let of = |c: &Checkpoint| {
            let p = plan(
                c,
                &machine("rtx4090-desktop"),
                &config(|x| {
                    (x.stream.slots, x.stream.resident_blocks) = (slots, Resident::AtMost(0));
                }),
            );
            p.unwrap().modes.lora.vram.terms["slots"].0
        };
        // One slot of the large part's size beside the ring of the others.
        let more = of(&c) - of(&equal);
        assert!((12_800_000..12_800_000 + 73_984).contains(&more), "{slots} slots: {more}");
    }
}

#[test]
fn case_pl_19_space_for_an_export_is_itemised() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let mut m = machine("rtx4090-desktop");
    let full = |m: &Machine| plan(&c, m, &config(|_| {})).unwrap().modes.full;
    // Two extents of state fit, one more 16-bit copy doesn't.
    m.disk.free = Bytes(200_000_000_000);
    let p = full(&m);
    assert_eq!(p.verdict, Verdict::FullFtDisk);
    assert!(p.reasons.iter().any(|r| r.contains("in-place export only") && r.contains("16.06 GB")), "{:?}", p.reasons);
    assert_eq!(p.space.terms["state_in_two_extents"], Bytes(2 * 96_363_134_976));
    assert!(!p.space.terms.contains_key("export_16_bit"));
    // With room for it, it is one of the needs.
    m.disk.free = Bytes(300_000_000_000);
    let p = full(&m);
    assert_eq!(p.space.terms["export_16_bit"], Bytes(16_060_522_496));
    assert_eq!(p.space.total, p.space.terms.values().copied().sum());
    assert!(!p.reasons.iter().any(|r| r.contains("in-place")), "{:?}", p.reasons);
    // Too small for the state: every need is named, with the download of a checkpoint that isn't here.
    m.disk.free = Bytes(100_000_000_000);
    let mut away = c.clone();
    away.not_here = true;
    let p = plan(&away, &m, &config(|_| {})).unwrap().modes.full;
    assert_eq!(p.verdict, Verdict::Infeasible);
    let why = &p.reasons[0];
    assert!(
        why.contains("208.79 GB")
            && why.contains("16.06 GB download")
            && why.contains("192.73 GB weights and optimizer state, two copies"),
        "{why}"
    );
    m.disk.free = Bytes(10_000_000_000);
    let p = plan(&c, &m, &config(|_| {})).unwrap();
    assert!(p.notes.iter().any(|n| n.contains("merged 16-bit export")), "{:?}", p.notes);
    assert_eq!(p.modes.full.verdict, Verdict::Infeasible);
}

#[test]
fn case_ui_13_verdicts_differ_by_word_and_by_sign() {
    use Verdict::{FullFtDisk, Infeasible, LoraDisk, Ram};
    let all = [Ram, LoraDisk, FullFtDisk, Infeasible];
    for (i, a) in all.iter().enumerate() {
        for b in &all[i + 1..] {
            assert!(a.word() != b.word() && a.sign() != b.sign());
        }
    }
    let text = explain(&of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |_| {}));
    assert!(text.contains("lora  ~ LORA_DISK") && text.contains("full  ✗ INFEASIBLE"), "{text}");
    assert!(!text.contains('\u{1b}'));
}
