//! The real demo model, imported from its GGUF by `make`: reference values of an independent numpy forward, and what
//! the tiers cost in memory. Without the model each test says so.

use crate::generation::generator;
use crate::walk::{How, host, open, walk};
use blockstream_tui::config::{LoraSection, RunConfig};
use blockstream_tui::data::collate::Batch;
use blockstream_tui::data::{Chat, Date, collate::IGNORE};
use blockstream_tui::event::TierName;
use blockstream_tui::infer::Choice;
use blockstream_tui::model::AdapterLayout;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use tch::Device;

fn model(test: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".demo/SmolLM2-135M-Instruct");
    if path.join("config.json").is_file() {
        return Some(path);
    }
    println!("{test} did not run: no demo model; `make demo` fetches it");
    None
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn demo_import_meets_the_reference_values() {
    let Some(dir) = model("demo_import_meets_the_reference_values") else { return };
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/demo/golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&text).unwrap();
    let checkpoint = open(&dir);
    let chat = Chat::open((&checkpoint).into(), None, Date::day_of(0)).unwrap();
    let lora = LoraSection { r: 1, ..LoraSection::default() };
    let zero = vec![0.0; AdapterLayout::new(&checkpoint, &lora).unwrap().len];
    let mut walk = walk(&checkpoint, How::streamed(Device::Cpu, TierName::Ram, 2, 1), &lora, Some(zero), 512);
    for case in golden["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let want = ids(&case["ids"]);
        assert_eq!(chat.tokenizer().encode(text).unwrap().ids, want, "{text}");
        let n = want.len();
        let labels = (0..n).map(|i| want.get(i + 1).map_or(IGNORE, |&id| i64::from(id))).collect();
        let ids = want.iter().map(|&i| i64::from(i)).collect();
        let batch = Batch { ids, labels, rows: 1, len: n, lengths: vec![n] };
        let (sum, count) = walk.evaluate(std::slice::from_ref(&batch), &mut |_, _| Ok(())).unwrap();
        let (nll, want_nll) = (sum / count as f64, case["mean_nll"].as_f64().unwrap());
        assert!((nll - want_nll).abs() < 2e-4, "{text}: {nll} {want_nll}");
        let logits = host(&walk.logits(&batch).unwrap());
        let last = &logits[(n - 1) * checkpoint.arch.vocab..];
        for pair in case["last_top5"].as_array().unwrap() {
            let (id, value) = (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap() as f32);
            assert!((last[id] - value).abs() < 5e-3, "{text}: logit {id} is {}, not {value}", last[id]);
        }
    }
    // The first answer has a clear first step; later near ties may fall either way in another kernel.
    let sea = &golden["cases"][2];
    let got = generator(&dir, TierName::Disk, 3)
        .generate(&ids(&sea["ids"]), 8, &[], Choice::Greedy, &mut |_| Ok(ControlFlow::Continue(())))
        .unwrap();
    assert_eq!(got, ids(&sea["greedy_24"])[..8]);
}

/// Trains the demo for four steps as its own process; its report. Small chunks of the loss keep what is sampled once a
/// second from depending on the moment.
fn train(dir: &Path, results: &Path, tier: &str, host_budget: &str) -> Value {
    let out = Command::new(env!("CARGO_BIN_EXE_blockstream-tui"))
        .args(["train", "--config", "assets/demo/demo.toml", "--json", "--results"])
        .arg(results)
        .args([
            "--set",
            &format!("model.path={}", dir.display()),
            "--set",
            "train.max_steps=4",
            "--set",
            "data.eval_files=[]",
        ])
        .args(["--set", "train.gradient_accumulation_steps=1", "--set", "train.per_device_train_batch_size=2"])
        .args(["--set", &format!("stream.tier={tier}"), "--set", &format!("stream.host_budget={host_budget}")])
        .args(["--set", "stream.resident_blocks=0", "--set", "stream.loss_chunk=16", "--set", "train.device=cpu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn demo_from_disk_in_64_mb_needs_130_mb_less_than_from_memory() {
    let Some(dir) = model("demo_from_disk_in_64_mb_needs_130_mb_less_than_from_memory") else { return };
    let results = tempfile::tempdir().unwrap();
    let ram = train(&dir, results.path(), "ram", "0");
    let disk = train(&dir, results.path(), "auto", "64 MB");
    assert_eq!((&ram["verdict"], &disk["verdict"]), (&"RAM".into(), &"LORA_DISK".into()));
    let anon = |report: &Value| report["ram"]["anon_peak"].as_u64().unwrap();
    let (a, b) = (anon(&ram), anon(&disk));
    println!("anonymous memory: RAM tier {a}, disk tier in 64 MB {b}");
    assert!(b + 130_000_000 <= a, "RAM tier {a} bytes, disk tier {b} bytes");
    assert!(disk["bytes"]["per_step"]["disk_read"].as_u64().unwrap() > 300_000_000, "{}", disk["bytes"]);
    // The same numbers from either tier.
    assert_eq!(ram["loss"], disk["loss"]);
}

#[test]
fn the_demos_recipe_loads_and_its_data_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let loaded = blockstream_tui::config::load::load(Some(&root.join("assets/demo/demo.toml")), &[], &[]).unwrap();
    let config: RunConfig = loaded.config;
    assert!(config.train.max_steps >= 20);
    for f in config.data.files.iter().chain(&config.data.eval_files) {
        assert!(root.join(f).is_file(), "{}", f.display());
    }
}
