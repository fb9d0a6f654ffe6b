//! What can be planned but not run is refused by the program itself, early, by name and with its exit code.

use super::headers::fixture;
use super::{dir, open};
use crate::support::fixture::{Model, put};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program on `model` with one row of data, on the CPU's profile; results go below `dir`.
fn program(dir: &Path, command: &str, model: &Path, more: &[&str]) -> Output {
    let rows = dir.join("rows.jsonl");
    put(&rows, "{\"text\": \"a\"}\n");
    let root = env!("CARGO_MANIFEST_DIR");
    let mut run = Command::new(env!("CARGO_BIN_EXE_blockstream-tui"));
    run.arg(command).current_dir(root);
    match command {
        "plan" => run.arg(model),
        _ => run.arg("--model").arg(model).arg("--set").arg(format!("data.files={}", rows.display())),
    };
    let results = dir.join("results");
    run.args(["--profile", "profiles/cpu-only.toml", "--results"]).arg(results).args(more).output().unwrap()
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn training_a_plan_only_model_is_refused_by_name_with_exit_code_three() {
    for (name, family) in [("gpt-oss-120b", "gpt_oss"), ("qwen3-vl-8b", "qwen3_vl"), ("glm-4.6v", "glm4v_moe")] {
        let d = dir();
        let out = program(d.path(), "train", &fixture(name), &[]);
        let why = format!("{family}: this version can plan it, not train it");
        assert_eq!(out.status.code(), Some(3), "{}", said(&out));
        assert!(said(&out).contains(&why) && said(&out).contains(name), "{}", said(&out));
        assert!(!d.path().join("results").exists(), "no run folder is made for it");
    }
}

#[test]
fn case_ck_33_training_without_a_tokenizer_is_refused_with_how_to_make_it() {
    let d = dir();
    let model = Model::tiny().write(&d.path().join("tiny"));
    std::fs::remove_file(model.join("tokenizer.json")).unwrap();
    put(&model.join("tokenizer.model"), [7u8, 1, 200, 0]);
    let out = program(d.path(), "plan", &model, &[]);
    assert_eq!(out.status.code(), Some(0), "weights need no tokenizer: {}", said(&out));
    let out = program(d.path(), "train", &model, &[]);
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
    for word in ["no tokenizer.json (found: 'tokenizer.model', 'tokenizer_config.json')", "AutoTokenizer"] {
        assert!(said(&out).contains(word), "'{word}' is not in: {}", said(&out));
    }
    assert!(!d.path().join("results").exists());
}

#[test]
fn case_ck_05_the_program_rebuilds_an_index_only_by_its_flag() {
    let d = dir();
    let model = Model::tiny().shards(2).write(&d.path().join("tiny"));
    for n in 1..=2 {
        let from = model.join(format!("model-0000{n}-of-00002.safetensors"));
        std::fs::rename(from, model.join(format!("part-{n}.safetensors"))).unwrap();
    }
    let index = model.join("model.safetensors.index.json");
    let before = std::fs::read(&index).unwrap();
    let out = program(d.path(), "plan", &model, &[]);
    assert_eq!(out.status.code(), Some(2));
    assert!(said(&out).contains("2 other safetensors files cover all 39 expected tensors"), "{}", said(&out));
    assert_eq!(std::fs::read(&index).unwrap(), before);
    let out = program(d.path(), "plan", &model, &["--rebuild-index"]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    let text = String::from_utf8(out.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("the index was rebuilt from the 2 files here, as asked"), "{text}");
    assert_eq!(open(&model).total_bytes().0, 363_648);
}
