//! The seed's table: real headers of the models it ran and judged, on the laptop it was written for.

use super::{check, machine};
use blockstream_tui::checkpoint;
use blockstream_tui::config::RunConfig;
use blockstream_tui::plan::{ModePlan, PlanReport, Verdict, explain, plan};
use blockstream_tui::units::{Bytes, GIB, MIB};
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/headers").join(name)
}

/// Batch 1, length 128, rank 8 on the top half, as the seed ran.
fn as_the_seed(c: &mut RunConfig) {
    (c.train.per_device_train_batch_size, c.data.max_length, c.lora.r, c.lora.top_fraction) = (1, 128, 8, 0.5);
}

fn of(name: &str) -> PlanReport {
    let mut config = RunConfig::default();
    as_the_seed(&mut config);
    let c = checkpoint::open(&folder(name)).unwrap();
    let p = plan(&c, &machine("rtx5050-laptop-8gb"), &config).unwrap();
    check(&c, &p);
    p
}

fn streamed(m: &ModePlan) -> f64 {
    m.placement.iter().map(|b| b.bytes).sum::<Bytes>().0 as f64 / GIB as f64
}

/// Model, GiB streamed, blocks, MiB of the largest, LoRA's verdict.
const TABLE: [(&str, f64, usize, f64, Verdict); 5] = [
    ("qwen3-vl-8b", 12.94, 36, 368.0, Verdict::LoraDisk),
    ("gpt-oss-120b", 58.61, 36, 1.63 * 1024.0, Verdict::LoraDisk),
    ("qwen3-vl-32b", 58.13, 64, 0.91 * 1024.0, Verdict::LoraDisk),
    // 439 GiB in bf16, 330.9 GiB free.
    ("qwen3-vl-235b-a22b", 435.6, 94, 4.63 * 1024.0, Verdict::Infeasible),
    // Sized by the seed and never run: it fits the drive, and its layers fit the card in parts.
    ("glm-4.6v", 197.75, 46, 4.36 * 1024.0, Verdict::LoraDisk),
];

#[test]
fn the_seeds_table_from_the_headers() {
    for (name, gib, blocks, mib, lora) in TABLE {
        let p = of(name);
        let (l, f) = (&p.modes.lora, &p.modes.full);
        println!(
            "{name:<20} {:6.2} GiB {} x {:.0} MiB",
            streamed(l),
            p.n_blocks,
            p.parts["largest_block"].0 as f64 / MIB as f64
        );
        assert!((streamed(l) - gib).abs() < 0.006 * gib.max(2.0), "{name}: {}", streamed(l));
        assert_eq!(p.n_blocks, blocks, "{name}");
        let largest = p.parts["largest_block"].0 as f64 / MIB as f64;
        assert!((largest - mib).abs() < 0.005 * mib, "{name}: {largest}");
        assert_eq!(l.verdict, lora, "{name}: {}", explain(&p));
        assert!(l.reasons.iter().any(|r| r.contains("plan only")) && l.command.is_empty(), "{name}: {:?}", l.reasons);
        assert_eq!(l.wear.written_per_step, Bytes(0));
        // Full finetuning dies of wear for all of them, as with the seed.
        assert_eq!(f.verdict, Verdict::Infeasible, "{name}");
        assert!(f.reasons.iter().any(|r| r.starts_with("SSD wear: ")), "{name}: {:?}", f.reasons);
        assert!(f.wear.steps_to_tbw.unwrap() < 5000, "{name}");
        assert!(f.nearest_fix.is_some(), "{name}");
    }
}

#[test]
fn wear_steps_of_the_seeds_models() {
    // 300 TB over 12 bytes of each parameter; block-streamer's "a few hundred steps for any model above 8B".
    for (name, steps) in [("qwen3-vl-8b", 3052), ("gpt-oss-120b", 213), ("qwen3-vl-32b", 763)] {
        assert_eq!(of(name).modes.full.wear.steps_to_tbw, Some(steps), "{name}");
    }
}

#[test]
fn what_does_not_fit_says_what_would() {
    let p = of("qwen3-vl-235b-a22b");
    let l = &p.modes.lora;
    assert!(l.reasons[0].contains("471.34 GB") && l.reasons[0].contains("355.30 GB"), "{:?}", l.reasons);
    assert_eq!(l.nearest_fix.as_deref(), Some("117 GB more free disk would do"));
    assert!(l.fix_command.is_none());
    // Packing needs the download too.
    assert!(l.candidates.iter().all(|c| c.verdict == Verdict::Infeasible));
    let p = of("qwen3-vl-8b");
    let fix = p.modes.lora.nearest_fix.unwrap();
    assert!(fix.contains("more RAM would keep the whole model in memory") || fix.contains("GB card"), "{fix}");
    // MXFP4 is smaller than FP8: no candidate.
    let formats: Vec<String> = of("gpt-oss-120b").modes.lora.candidates.into_iter().map(|c| c.format).collect();
    assert_eq!(formats, ["nf4"]);
}

fn binary(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_blockstream-tui"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_binary_plans_headers_as_json_and_refuses_to_train_them() {
    let tmp = tempfile::tempdir().unwrap();
    let results = tmp.path().join("results");
    let results = results.to_str().unwrap();
    let profile = "profiles/rtx5050-laptop-8gb.toml";
    let args = ["--profile", profile, "--results", results, "--max-length", "128"];
    let out = |model: &str, more: &[&str]| binary(&[&["plan", model], &args[..], more].concat());
    let done = out("tests/data/headers/gpt-oss-120b", &["--json"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(json["modes"]["lora"]["verdict"], "LORA_DISK");
    assert_eq!(json["modes"]["full"]["verdict"], "INFEASIBLE");
    assert!(json["ceilings"].as_array().unwrap().iter().any(|c| c["mode"] == "full" && c["limit"] == "wear"));
    assert_eq!(json["what_if"], serde_json::json!([]));
    // What if: the same model in 192 GB of RAM.
    let done = out("tests/data/headers/gpt-oss-120b", &["--json", "--what-if", "ram=192GB,read=7GB/s"]);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(json["modes"]["lora"]["verdict"], "RAM");
    assert_eq!(json["what_if"], serde_json::json!(["ram = 192.00 GB", "read = 7.00 GB/s"]));
    assert!(json["machine"]["source"].as_str().unwrap().starts_with("edited (ram = 192.00 GB"));
    let wrong = out("tests/data/headers/gpt-oss-120b", &["--what-if", "rams=1GB"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("did you mean 'ram'"));
    // Infeasible is exit code 3, with the reason in words.
    let done = out("tests/data/headers/qwen3-vl-235b-a22b", &[]);
    assert_eq!(done.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&done.stdout).contains("117 GB more free disk would do"));
    // Headers can't be trained, and nothing is written in saying so.
    let rows = tmp.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"text\": \"a\"}\n").unwrap();
    let files = format!("data.files={}", rows.display());
    let train = ["train", "--model", "tests/data/headers/qwen3-vl-8b", "--set", &files, "--results", results];
    let refused = binary(&[&train[..], &["--profile", profile]].concat());
    assert_ne!(refused.status.code(), Some(0));
    assert!(!Path::new(results).exists(), "a refusal comes before any folder is made");
}
