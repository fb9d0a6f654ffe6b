//! Tests of exports from small run folders.

use super::*;
use crate::checkpoint::adapter::{AdapterConfig, AdapterTensor};
use crate::config::{OverLong, RunConfig, TrainOn};
use serde_json::Value;

fn tensors(r: usize) -> Vec<AdapterTensor> {
    let key = |half: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.{half}.weight");
    let tensor = |half: &str, shape: [usize; 2]| {
        let data = (0..shape[0] * shape[1]).map(|i| i as f32 * 0.25).collect();
        AdapterTensor { key: key(half), shape: shape.to_vec(), data }
    };
    vec![tensor("lora_A", [r, 8]), tensor("lora_B", [8, r])]
}

fn adapter_config(rslora: bool) -> AdapterConfig {
    AdapterConfig {
        base_model_name_or_path: "org/T0".into(),
        revision: None,
        r: 16,
        lora_alpha: 16.0,
        lora_dropout: 0.0,
        use_rslora: rslora,
        target_modules: vec!["q_proj".into()],
        layers_to_transform: None,
        chat_template: None,
    }
}

fn run(change: impl FnOnce(&mut RunConfig)) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run-1");
    fs::create_dir(&dir).unwrap();
    let mut config = RunConfig::default();
    config.model.name = Some("org/T0".into());
    config.data.files = vec!["rows \"é\".jsonl".into()];
    config.train.max_steps = 20;
    change(&mut config);
    fs::write(dir.join("config.toml"), toml::to_string(&config).unwrap()).unwrap();
    (root, dir)
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(String::from).collect()
}

#[test]
fn peft_is_the_checked_adapter_of_the_run_or_of_its_newest_checkpoint() {
    let (root, dir) = run(|_| {});
    assert!(export(&dir, "peft").unwrap_err().to_string().contains("no adapter yet"));
    adapter::write(&dir.join("checkpoint-9"), &adapter_config(false), &tensors(16)).unwrap();
    adapter::write(&dir.join("checkpoint-10/adapter"), &adapter_config(false), &tensors(16)).unwrap();
    assert_eq!(export(&dir, "peft").unwrap(), dir.join("checkpoint-10/adapter"));
    adapter::write(&dir.join("adapter"), &adapter_config(false), &tensors(16)).unwrap();
    assert_eq!(export(&dir, "peft").unwrap(), dir.join("adapter"));
    let dest = root.path().join("out");
    assert_eq!(export_to(&dir, "peft", &dest).unwrap(), dest);
    for name in [adapter::CARD_FILE, adapter::TENSORS_FILE, adapter::CONFIG_FILE] {
        assert_eq!(fs::read(dest.join(name)).unwrap(), fs::read(dir.join("adapter").join(name)).unwrap());
    }
    let again = export_to(&dir, "peft", &dest).unwrap_err();
    assert!(again.to_string().contains("holds something"), "{again}");
    // A damaged adapter is not handed on.
    fs::write(dir.join("adapter").join(adapter::TENSORS_FILE), b"half").unwrap();
    assert!(export(&dir, "peft").is_err());
    assert!(export(&root.path().join("nowhere"), "peft").unwrap_err().to_string().contains("not a run's folder"));
}

#[test]
fn case_ex_06_compat_export_bakes_the_factor_and_says_so() {
    let (_root, dir) = run(|_| {});
    adapter::write(&dir.join("adapter"), &adapter_config(true), &tensors(16)).unwrap();
    let out = export(&dir, "peft-compat").unwrap();
    let (config, got) = adapter::read(&out).unwrap();
    assert_eq!((config.use_rslora, config.lora_alpha), (false, 64.0));
    let (before, want) = adapter::read(&dir.join("adapter")).unwrap();
    assert!((config.scale() - before.scale()).abs() < 1e-12);
    assert_eq!(got, want);
    let card = fs::read_to_string(out.join(adapter::CARD_FILE)).unwrap();
    assert!(card.contains("64 = 16 × sqrt(16)"), "{card}");
}

#[test]
fn kinds_that_do_not_exist_name_those_that_do() {
    let (_root, dir) = run(|_| {});
    let text = |kind: &str| export(&dir, kind).unwrap_err().to_string();
    assert!(text("pefr").contains("did you mean 'peft'") && text("zzz").contains("axolotl, llamafactory"));
    for (kind, _) in NOT_YET {
        assert!(text(kind).contains("not in this version"), "{kind}");
    }
    assert!(text("merged").contains("merge_and_unload"));
    assert_eq!(export(&dir, "gguf").unwrap_err().exit_code() as u8, 2);
}

#[test]
fn the_axolotl_recipe_says_what_the_run_did() {
    let (_root, dir) = run(|c| {
        c.lora.rslora = true;
        c.train.learning_rate = 1e-7;
        c.train.warmup_steps = 0.1;
        c.data.eval_split = 0.05;
        c.data.over_long = OverLong::Drop;
    });
    fs::write(dir.join("report.json"), r#"{"data":{"format":"sharegpt"}}"#).unwrap();
    fs::write(dir.join("plan.json"), r#"{"n_blocks":4,"modes":{"lora":{"lowest_trainable":2}}}"#).unwrap();
    let path = export(&dir, "axolotl").unwrap();
    assert_eq!(path, dir.join("export-axolotl/config.yaml"));
    let yaml = lines(&path);
    for want in [
        "base_model: \"org/T0\"",
        "adapter: \"lora\"",
        "lora_r: 16",
        "lora_alpha: 32",
        "peft_use_rslora: true",
        "  - path: \"rows \\\"é\\\".jsonl\"",
        "    field_messages: \"conversations\"",
        "      role: \"from\"",
        "val_set_size: 0.05",
        "excess_length_strategy: \"drop\"",
        "learning_rate: 1.0e-7",
        "warmup_ratio: 0.1",
        "max_steps: 20",
        "sequence_len: 1024",
        "seed: 42",
    ] {
        assert!(yaml.iter().any(|l| l == want), "{want}:\n{}", yaml.join("\n"));
    }
    let at = yaml.iter().position(|l| l == "peft_layers_to_transform:").unwrap();
    assert_eq!(yaml[at + 1..at + 3], ["  - 2", "  - 3"]);
}

#[test]
fn the_llamafactory_recipe_brings_its_data_sets() {
    let (_root, dir) = run(|c| {
        c.data.eval_files = vec!["held-out.jsonl".into()];
        c.data.train_on = TrainOn::LastAssistant;
        c.train.max_steps = 0;
        c.train.eval_steps = 5;
        c.train.warmup_steps = 3.0;
        c.lora.targets = vec!["all-linear".into()];
    });
    let path = export(&dir, "llamafactory").unwrap();
    let yaml = lines(&path);
    for want in [
        "stage: \"sft\"",
        "finetuning_type: \"lora\"",
        "lora_target: \"q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj\"",
        "dataset: \"files_1\"",
        "eval_dataset: \"eval_files_1\"",
        "eval_strategy: \"steps\"",
        "mask_history: true",
        "num_train_epochs: 1.0",
        "warmup_steps: 3",
    ] {
        assert!(yaml.iter().any(|l| l == want), "{want}:\n{}", yaml.join("\n"));
    }
    let info: Value =
        serde_json::from_slice(&fs::read(dir.join("export-llamafactory/dataset_info.json")).unwrap()).unwrap();
    assert_eq!(info["files_1"]["tags"]["role_tag"], "role");
    assert_eq!(info["eval_files_1"]["file_name"], "held-out.jsonl");
    fs::remove_file(dir.join("config.toml")).unwrap();
    assert!(export(&dir, "axolotl").unwrap_err().to_string().contains("config.toml"));
}
