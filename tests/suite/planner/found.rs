//! Faults that were found by trying the planner (FO-57, 71, 76, 79): each with its smallest witness and its kind.

use super::made::{LLAMA3_8B, SMOL, Shape, TINY, checkpoint as build};
use super::{config, machine, of};
use blockstream_tui::checkpoint::{Checkpoint, Dtype};
use blockstream_tui::config::{ByteSize, DeviceChoice, HeadPlace, RunConfig, TierChoice, load};
use blockstream_tui::device::Machine;
use blockstream_tui::plan::{Edit, Lengths, ModePlan, PlanReport, Verdict, plan, plan_for, whatif};
use blockstream_tui::units::{Bytes, GB};
use proptest::prelude::*;

fn lora(c: &Checkpoint, m: &Machine, cfg: &RunConfig) -> ModePlan {
    plan(c, m, cfg).expect("a plan").modes.lora
}

#[test]
fn case_fo_57_weights_that_wait_in_host_memory_are_not_counted_as_vram() {
    let p = of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |c| c.stream.head = HeadPlace::Stream).modes.lora;
    assert!(p.tiers.vram <= p.vram.total, "{} of weights in {}", p.tiers.vram, p.vram.total);
    assert!(p.tiers.ram >= Bytes(2 * 128_256 * 4096 * 2), "embedding and output layer: {}", p.tiers.ram);
    let disk = of(LLAMA3_8B, Dtype::BF16, "rtx5050-laptop-8gb", |c| {
        (c.stream.head, c.stream.tier) = (HeadPlace::Stream, TierChoice::Disk);
    });
    assert_eq!(disk.modes.lora.tiers.ram, Bytes(128_256 * 4096 * 2), "the embedding alone waits in RAM");
    // Full finetuning keeps the output layer with the state.
    for on in ["rtx5050-laptop-8gb", "rtx4090-desktop", "h200"] {
        let full = of(LLAMA3_8B, Dtype::BF16, on, |_| {}).modes.full;
        assert!(full.tiers.vram <= full.vram.total, "{on}: {} in {}", full.tiers.vram, full.vram.total);
    }
}

#[test]
fn case_fo_71_what_a_run_leaves_must_find_room() {
    let c = build(SMOL, Dtype::F16);
    let mut m = machine("cpu-only");
    let cfg = config(|_| {});
    assert_eq!(lora(&c, &m, &cfg).verdict, Verdict::Ram);
    // Results go to another volume, of 64 kB.
    m.results_free = Some(Bytes(64_000));
    let p = lora(&c, &m, &cfg);
    assert_eq!((p.verdict, p.space.budget), (Verdict::Infeasible, Bytes(64_000)));
    assert!(p.reasons[0].contains("of disk where results go") && p.reasons[0].contains("64.0 kB"), "{:?}", p.reasons);
    assert!(p.nearest_fix.as_deref().is_some_and(|f| f.contains("--results DIR")), "{:?}", p.nearest_fix);
    // The model's own drive being full is then nobody's business.
    (m.results_free, m.disk.free) = (Some(Bytes(GB)), Bytes(0));
    assert_eq!(lora(&c, &m, &cfg).verdict, Verdict::Ram);
    // 8B, rank 512 on all, what if 17 GB were free: the download would fit, the checkpoints don't.
    let mut c = build(LLAMA3_8B, Dtype::BF16);
    c.not_here = true;
    let all = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let cfg = config(|c| (c.lora.r, c.lora.targets) = (512, all.map(String::from).to_vec()));
    let p = plan_for(&c, &machine("h200"), &cfg, &[Edit::Disk(17 * GB)], None).unwrap().modes.lora;
    assert_eq!(p.verdict, Verdict::Infeasible, "{:?}", p.reasons);
    assert!(p.space.total > p.space.budget && p.reasons[0].contains("of disk"), "{:?}", p.reasons);
    let fix = p.nearest_fix.expect("a fix");
    let more: u64 = fix.split(' ').next().and_then(|n| n.parse().ok()).expect("GB");
    for (gb, want) in [(more, Verdict::Ram), (more - 1, Verdict::Infeasible)] {
        let p = plan_for(&c, &machine("h200"), &cfg, &[Edit::Disk((17 + gb) * GB)], None).unwrap().modes.lora;
        assert_eq!(p.verdict, want, "{fix}: {gb}");
    }
}

#[test]
fn case_fo_76a_the_need_that_is_told_is_the_least_that_suffices() {
    // 300 MB of VRAM: with the output layer kept there it would need more, streamed less.
    let c = build(Shape { layers: 8, ..SMOL }, Dtype::BF16);
    let m = machine("rtx5050-laptop-8gb");
    let with = |mb: u64| lora(&c, &m, &config(|c| c.stream.vram_budget = ByteSize(mb * 1_000_000)));
    let least = (20..2000).step_by(5).find(|mb| with(*mb).verdict != Verdict::Infeasible).expect("something fits");
    let refused = with(least - 5);
    let why = &refused.reasons[0];
    let need = why.strip_prefix("needs ").and_then(|w| w.split(" MB VRAM").next()?.parse::<f64>().ok());
    let need = need.unwrap_or_else(|| panic!("{why}"));
    assert!(need <= least as f64 && need > (least - 5) as f64, "{why}: {least} MB suffice");
}

#[test]
fn case_fo_76b_more_ram_beside_an_edit_is_as_much_as_the_edit_then_needs() {
    let c = build(TINY, Dtype::BF16);
    let m = machine("rtx5050-laptop-8gb");
    let cfg = config(|_| {});
    let at = |gb: u64| plan_for(&c, &m, &cfg, &[Edit::Ram(gb * GB)], None).unwrap().modes.lora;
    // Nearly 4 GB are in use on that machine.
    let p = at(2);
    assert_eq!(p.verdict, Verdict::Infeasible, "{:?}", p.reasons);
    let fix = p.nearest_fix.expect("a fix");
    let more: u64 = fix.split(' ').next().and_then(|n| n.parse().ok()).expect("GB");
    assert_ne!(at(2 + more).verdict, Verdict::Infeasible, "{fix}");
    assert_eq!(at(1 + more).verdict, Verdict::Infeasible, "{fix}");
    // Edits one after the other are as the last one alone.
    let twice = whatif::edited(&m, &[Edit::Ram(GB), Edit::Ram(32 * GB), Edit::Vram(1), Edit::Vram(8 * GB)]).unwrap();
    let once = whatif::edited(&m, &[Edit::Ram(32 * GB), Edit::Vram(8 * GB)]).unwrap();
    assert_eq!((twice.ram.available, twice.gpu.unwrap().vram_free), (once.ram.available, once.gpu.unwrap().vram_free));
}

#[test]
fn case_fo_76c_a_budget_that_is_not_what_was_asked_for_is_told() {
    let c = build(SMOL, Dtype::F16);
    let told = |m: &Machine, edit: &dyn Fn(&mut RunConfig)| lora(&c, m, &config(|c| edit(c))).reasons.join("\n");
    let (gpu, cpu) = (machine("rtx5050-laptop-8gb"), machine("cpu-only"));
    let big = |c: &mut RunConfig| c.stream.vram_budget = ByteSize(100 * GB);
    assert!(told(&gpu, &big).contains("stream.vram_budget = 100.00 GB is more than there is"), "{}", told(&gpu, &big));
    assert!(told(&cpu, &big).contains("stream.vram_budget = 100.00 GB is not used: there is no GPU"));
    assert!(!told(&gpu, &|c| c.stream.vram_budget = ByteSize(4 * GB)).contains("vram_budget"));
    let host = |c: &mut RunConfig| c.stream.host_budget = ByteSize(1000 * GB);
    assert!(told(&cpu, &host).contains("stream.host_budget = 1.00 TB is more than there is"), "{}", told(&cpu, &host));
    assert!(!told(&cpu, &|_| {}).contains("host_budget"));
}

#[test]
fn case_fo_76d_a_gpu_that_is_asked_for_and_missing_is_the_only_reason_and_has_a_next_step() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let mut m = machine("cpu-only");
    let cuda = config(|c| c.train.device = DeviceChoice::Cuda);
    let p = lora(&c, &m, &cuda);
    assert!(p.reasons[0].contains("no usable GPU") && p.verdict == Verdict::Infeasible, "{:?}", p.reasons);
    assert_eq!(p.nearest_fix.as_deref(), Some("set train.device = auto"));
    // Not even where the CPU would lack memory.
    m.ram.available = Bytes(100_000_000);
    let p = lora(&c, &m, &cuda);
    assert!(!p.reasons.iter().any(|r| r.contains("RAM,")), "{:?}", p.reasons);
}

#[test]
fn case_fo_79b_a_rating_is_read_alike_by_the_config_and_by_what_if() {
    for text in ["600 TB", "600TB", "600", "0.6 PB"] {
        let set = load::load(None, &[], &[format!("wear.tbw={text}")]).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(set.config.wear.tbw, 600.0, "{text}");
        assert_eq!(Edit::parse(&format!("tbw={text}")).unwrap(), Edit::Tbw(600_000 * GB), "{text}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    for text in ["\"600 TB\"", "600", "600.0"] {
        std::fs::write(&file, format!("[wear]\ntbw = {text}\n")).unwrap();
        let loaded = load::load(Some(&file), &[], &[]).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(loaded.config.wear.tbw, 600.0, "{text}");
    }
    let wrong = load::load(None, &[], &["wear.tbw=lots".into()]).unwrap_err().to_string();
    assert!(wrong.contains("600 TB"), "{wrong}");
}

#[test]
fn case_fo_79c_absurd_sizes_are_planned_at_once() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    for edit in [
        |c: &mut RunConfig| c.train.per_device_train_batch_size = 1 << 31,
        |c: &mut RunConfig| c.train.gradient_accumulation_steps = 1 << 40,
        |c: &mut RunConfig| c.data.max_length = 1 << 40,
        |c: &mut RunConfig| (c.stream.slots, c.stream.vram_budget) = (usize::MAX >> 1, ByteSize(1)),
    ] {
        let began = std::time::Instant::now();
        let p = lora(&c, &machine("rtx5050-laptop-8gb"), &config(edit));
        assert_eq!(p.verdict, Verdict::Infeasible, "{:?}", p.reasons);
        assert!(began.elapsed().as_secs_f64() < 5.0, "{:?}", began.elapsed());
    }
}

/// Machines and configs that mostly don't fit.
fn tight() -> impl Strategy<Value = (Machine, RunConfig)> {
    let memory = (any::<bool>(), 0u64..4, 420u64..900, 30u64..400);
    let job = (1usize..7, 1usize..5, 64usize..3000, 0usize..5, prop_oneof![Just("auto"), Just("ram"), Just("disk")]);
    (memory, job).prop_map(|((gpu, used, host, vram), (rows, micro, length, slots, tier))| {
        let mut m = machine("rtx5050-laptop-8gb");
        (m.ram.total, m.ram.available) = (Bytes(used * GB + host * 1_000_000), Bytes(host * 1_000_000));
        m.ram.pinnable = m.ram.available;
        match &mut m.gpu {
            Some(g) if gpu => {
                (g.vram_total, g.vram_free, g.overhead) = (Bytes(vram * 1_000_000), Bytes(vram * 1_000_000), Bytes(0));
            }
            _ => m.gpu = None,
        }
        let mut c = config(|_| {});
        (c.train.per_device_train_batch_size, c.train.gradient_accumulation_steps) = (rows, micro);
        (c.data.max_length, c.stream.slots, c.stream.tier) = (length, slots, tier.parse().unwrap());
        (m, c)
    })
}

/// The config with the `--set`s of a command, which may be quoted.
fn with_sets(command: &str) -> RunConfig {
    let sets: Vec<String> = command.split(" --set ").skip(1).map(|s| s.trim_matches('\'').to_string()).collect();
    load::load(None, &[], &sets).unwrap_or_else(|e| panic!("{command}: {e}")).config
}

/// Keys that differ, as `section.key`.
fn changed(a: &RunConfig, b: &RunConfig) -> Vec<String> {
    let table = |c: &RunConfig| toml::Table::try_from(c).expect("a config is a table");
    let (a, b) = (table(a), table(b));
    let of = |(section, keys): (&String, &toml::Value)| {
        let (keys, section) = (keys.as_table().cloned().unwrap_or_default(), section.clone());
        let then = b.get(&section).and_then(toml::Value::as_table).cloned().unwrap_or_default();
        keys.into_iter().filter(move |(k, v)| then.get(k) != Some(v)).map(move |(k, _)| format!("{section}.{k}"))
    };
    a.iter().flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// The kind of FO-76: each printed fix, applied alone, changes the verdict; the next smaller amount doesn't.
    #[test]
    fn case_fo_76e_every_printed_fix_holds_and_is_the_least((m, cfg) in tight()) {
        let c = build(Shape { layers: 6, ..SMOL }, Dtype::BF16);
        let p = lora(&c, &m, &cfg);
        let goal = match p.verdict {
            Verdict::Infeasible => Verdict::LoraDisk,
            _ => Verdict::Ram,
        };
        let Some(fix) = p.nearest_fix.clone() else { return Ok(()) };
        let reaches = |m: &Machine, cfg: &RunConfig| lora(&c, m, cfg).verdict <= goal;
        if let Some(command) = &p.fix_command {
            let fixed = with_sets(command);
            prop_assert!(reaches(&m, &fixed), "{fix}: {command}");
            // What the command changes is what the words say.
            let said = fix.trim_start_matches("set ");
            for key in changed(&cfg, &fixed) {
                prop_assert!(said.contains(&format!("{key} = ")), "{fix}: {command} also changes {key}");
            }
            let mut less = fixed.clone();
            if said.starts_with("data.max_length") {
                less.data.max_length += 64;
                if less.data.max_length < cfg.data.max_length {
                    prop_assert!(!reaches(&m, &less), "{fix}: a longer row suffices");
                }
            } else if said.starts_with("train.gradient_accumulation_steps") {
                less.train.gradient_accumulation_steps += 1;
                prop_assert!(!reaches(&m, &less), "{fix}: more micro-batches suffice");
            } else if said.starts_with("stream.slots") && fixed.stream.slots > 0 {
                less.stream.slots += 1;
                prop_assert!(!reaches(&m, &less), "{fix}: more slots suffice");
            }
        } else if let Some(more) = fix.split(" GB more RAM").next().and_then(|n| n.parse::<u64>().ok())
            && !fix.contains(" and ")
        {
            let with = |gb: u64| whatif::edited(&m, &[Edit::Ram(m.ram.total.0 + gb * GB)]).unwrap();
            prop_assert!(reaches(&with(more), &cfg), "{fix}");
            prop_assert!(!reaches(&with(more - 1), &cfg), "{fix}: less suffices");
        }
    }

    /// The kind of FO-57: what is said to lie in VRAM fits what is said to be used of it.
    #[test]
    fn case_fo_57_weights_in_vram_never_exceed_what_is_planned_there((m, cfg) in tight()) {
        let p = plan(&build(Shape { tied: false, layers: 6, ..SMOL }, Dtype::BF16), &m, &cfg).unwrap();
        for mode in [&p.modes.lora, &p.modes.full] {
            if m.gpu.is_some() && mode.verdict != Verdict::Infeasible {
                prop_assert!(mode.tiers.vram <= mode.vram.total, "{:?} {:?}", mode.tiers, mode.vram);
            }
        }
    }
}

#[test]
fn case_fo_77a_seconds_follow_the_rows_of_the_data_and_memory_the_limit() {
    let c = build(SMOL, Dtype::F16);
    let (m, cfg) = (machine("cpu-only"), config(|c| c.train.per_device_train_batch_size = 4));
    let with = |rows: Vec<usize>| plan_for(&c, &m, &cfg, &[], Lengths::of(rows).as_ref()).unwrap();
    let (without, short) = (plan(&c, &m, &cfg).unwrap(), with(vec![30; 90]));
    let seconds = |p: &PlanReport| p.modes.lora.seconds_per_step.high;
    assert!(seconds(&short) * 10.0 < seconds(&without), "{} and {}", seconds(&short), seconds(&without));
    assert_eq!(
        (&short.modes.lora.host, &short.modes.lora.placement),
        (&without.modes.lora.host, &without.modes.lora.placement)
    );
    assert_eq!(short.data.as_ref().map(|d| (d.rows, d.max, d.p99)), Some((90, 30, 30)));
    assert!(short.notes.iter().any(|n| n.starts_with("your data: 90 rows, 30 tokens on average")), "{:?}", short.notes);
    // Rows as long as the limit are what a plan without data thinks of; longer ones are cut.
    assert_eq!(seconds(&with(vec![1024; 9])), seconds(&without));
    assert_eq!(seconds(&with(vec![9999; 9])), seconds(&without));
    assert!(!without.notes.iter().any(|n| n.contains("your data")));
}

#[test]
fn case_fo_77b_a_plan_reads_the_data_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("rows.jsonl");
    let row = |n: usize| format!("{{\"input_ids\":{:?}}}\n", vec![5; n]);
    std::fs::write(&data, [3, 7, 20].map(row).concat()).unwrap();
    let plan = |files: &str| -> serde_json::Value {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/headers/qwen3-vl-8b");
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_blockstream-tui"));
        program.args(["plan", model, "--profile", "h200", "--set", "data.format=tokens", "--json"]);
        let out = program.arg("--set").arg(format!("data.files={files}")).current_dir(dir.path()).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)))
    };
    let p = plan("rows.jsonl");
    assert_eq!((p["data"]["rows"].as_u64(), p["data"]["max"].as_u64()), (Some(3), Some(20)), "{}", p["data"]);
    assert!((p["data"]["mean"].as_f64().unwrap() - 10.0).abs() < 1e-9);
    // Data that can't be read is the run's business, not the plan's.
    assert!(plan("nowhere.jsonl")["data"].is_null());
}

/// The first plan on a machine that nobody calibrated knows the processor by a few products, not by its data sheet.
#[cfg(feature = "torch")]
#[test]
fn case_fo_16d_an_unmeasured_processor_is_looked_at_before_planning() {
    let dir = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/headers/qwen3-vl-8b");
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_blockstream-tui"))
        .args(["plan", model, "--set", "train.device=cpu", "--json"])
        .env("XDG_STATE_HOME", dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let p: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a plan");
    let source = p["machine"]["source"].as_str().unwrap();
    if blockstream_tui::device::gpu::driver_present() {
        assert!(source.contains("CPU speed guessed"), "{source}");
    } else {
        assert!(source.contains("CPU speed from a quick look at products"), "{source}");
        assert!(p["machine"]["cpu_flops"].as_f64().is_some_and(|f| (1e9..1e14).contains(&f)));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a plan keeps nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Chunks of the feed-forward use its three parts at once: a plan that passes blocks part by part has none, and
    /// counts for that.
    #[test]
    fn case_fo_02_a_plan_with_chunks_has_the_slots_they_use(
        chunk in 1..2000_usize, mb in 250..1400_u64, length in 64..1500_usize, micro in 1..3_usize,
    ) {
        let c = build(LLAMA3_8B, Dtype::BF16);
        let mut m = machine("rtx3050-laptop-4gb");
        m.gpu.as_mut().expect("a GPU").vram_free = Bytes(mb << 20);
        let with = |chunk: usize| config(|c| {
            c.stream.mlp_chunk = chunk;
            c.data.max_length = length;
            c.train.gradient_accumulation_steps = micro;
        });
        let p = lora(&c, &m, &with(chunk));
        let whole = lora(&c, &m, &with(0));
        if p.verdict != Verdict::Infeasible {
            let tiled = p.stream.mlp_chunk > 0 && p.stream.mlp_chunk < length;
            prop_assert!(!(p.stream.split && tiled), "{:?}", p.stream);
            prop_assert!(p.vram.total <= p.vram.budget);
            if p.stream.split {
                prop_assert_eq!(&p.vram.terms["block_activations"], &whole.vram.terms["block_activations"]);
            }
        }
        // Asking for chunks never rules out what runs without.
        prop_assert!(p.verdict <= whole.verdict, "{:?} {:?}", p.reasons, whole.reasons);
    }
}

#[test]
fn case_fo_02_a_chunk_that_rules_nothing_in_is_said_not_to_be_used() {
    // 700 MB: a whole layer doesn't fit beside anything, its parts do.
    let c = build(LLAMA3_8B, Dtype::BF16);
    let mut seen = 0;
    for mb in (300..1200).step_by(50) {
        let mut m = machine("rtx3050-laptop-4gb");
        m.gpu.as_mut().expect("a GPU").vram_free = Bytes(mb << 20);
        let p = lora(&c, &m, &config(|c| c.stream.mlp_chunk = 256));
        if p.verdict != Verdict::Infeasible && p.stream.split {
            seen += 1;
            let said = p.reasons.iter().any(|r| r.contains("stream.mlp_chunk = 256 is not used"));
            assert!(said && p.stream.mlp_chunk == 0, "{:?}", p.reasons);
        }
    }
    assert!(seen > 0, "some card is that small");
}
