//! Tests of adapter folders: PEFT's own files, what others can read of ours, and hostile ones.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden/llama_untied").join(name)
}

fn config() -> AdapterConfig {
    AdapterConfig {
        base_model_name_or_path: "org/name".into(),
        revision: None,
        r: 4,
        lora_alpha: 8.0,
        lora_dropout: 0.0,
        use_rslora: false,
        target_modules: vec!["v_proj".into(), "q_proj".into()],
        layers_to_transform: None,
        chat_template: None,
    }
}

/// Two layers of hidden 64 with q_proj and v_proj (2 kv heads of 16), as the case's fixture T0 has them.
fn tensors(r: usize) -> Vec<AdapterTensor> {
    let mut all = Vec::new();
    for layer in 0..2 {
        for (target, out) in [("q_proj", 64), ("v_proj", 32)] {
            for (half, shape) in [("lora_A", vec![r, 64]), ("lora_B", vec![out, r])] {
                let n = shape.iter().product::<usize>();
                let key = format!("base_model.model.model.layers.{layer}.self_attn.{target}.{half}.weight");
                let data = (0..n).map(|i| (i as f32 * 0.37 + layer as f32).sin()).collect();
                all.push(AdapterTensor { key, shape, data });
            }
        }
    }
    all
}

fn written(config: &AdapterConfig, tensors: &[AdapterTensor]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), config, tensors).unwrap();
    dir
}

fn json_of(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join(CONFIG_FILE)).unwrap()).unwrap()
}

/// A copy of a written adapter with its config changed.
fn with_config(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let dir = written(&config(), &tensors(4));
    let mut value = json_of(dir.path());
    change(&mut value);
    fs::write(dir.path().join(CONFIG_FILE), value.to_string()).unwrap();
    dir
}

fn refusal(dir: &Path) -> String {
    read(dir).unwrap_err().to_string()
}

#[test]
fn case_fo_32_an_adapter_keeps_its_chat_template_beside_it_and_no_others() {
    let own = AdapterConfig { chat_template: Some("{{ 'é' }}\n".into()), ..config() };
    let dir = written(&own, &tensors(4));
    assert_eq!(fs::read_to_string(dir.path().join("chat_template.jinja")).unwrap(), "{{ 'é' }}\n");
    assert_eq!(read(dir.path()).unwrap().0.chat_template, own.chat_template);
    assert!(!fs::read_to_string(dir.path().join(CONFIG_FILE)).unwrap().contains("template"));
    write(dir.path(), &config(), &tensors(4)).unwrap();
    assert!(!dir.path().join("chat_template.jinja").exists());
    // A template that can't be read keeps no weights from loading.
    fs::write(dir.path().join("chat_template.jinja"), [0xff, 0xfe]).unwrap();
    assert_eq!(read(dir.path()).unwrap().0.chat_template, None);
}

#[test]
fn case_ex_01_names_shapes_and_files_are_pefts() {
    let dir = written(&config(), &tensors(4));
    let mut names: Vec<String> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["README.md", "adapter_config.json", "adapter_model.safetensors"]);
    let bytes = fs::read(dir.path().join(TENSORS_FILE)).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut keys: Vec<(String, Vec<usize>)> = file.iter().map(|(k, v)| (k.to_string(), v.shape().to_vec())).collect();
    keys.sort();
    let want: Vec<(String, Vec<usize>)> = (0..2)
        .flat_map(|n| {
            let p = format!("base_model.model.model.layers.{n}.self_attn");
            [
                (format!("{p}.q_proj.lora_A.weight"), vec![4, 64]),
                (format!("{p}.q_proj.lora_B.weight"), vec![64, 4]),
                (format!("{p}.v_proj.lora_A.weight"), vec![4, 64]),
                (format!("{p}.v_proj.lora_B.weight"), vec![32, 4]),
            ]
        })
        .collect();
    assert_eq!(keys, want);
    let (back, values) = read(dir.path()).unwrap();
    assert_eq!(back.target_modules, ["q_proj", "v_proj"]);
    let mut sent = tensors(4);
    sent.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(values, sent);
}

#[test]
fn case_ex_01_adapters_that_peft_saved_load_and_rewrite_byte_for_byte() {
    for (name, r, alpha, scale, targets) in [("peft_adapter", 4, 8.0, 2.0, 7), ("peft_rslora", 16, 16.0, 4.0, 2)] {
        let (config, tensors) = read(&golden(name)).unwrap();
        assert_eq!((config.r, config.lora_alpha, config.scale()), (r, alpha, scale), "{name}");
        assert_eq!(config.target_modules.len(), targets);
        assert_eq!(tensors.len(), 2 * 2 * targets);
        assert_eq!(config.base_model_name_or_path, "llama_untied");
        let dir = written(&config, &tensors);
        assert!(
            fs::read(dir.path().join(TENSORS_FILE)).unwrap() == fs::read(golden(name).join(TENSORS_FILE)).unwrap(),
            "{name}: the tensors file changed"
        );
        let theirs = json_of(&golden(name));
        for (key, value) in json_of(dir.path()).as_object().unwrap() {
            assert_eq!(theirs.get(key), Some(value), "{name}: {key}");
        }
    }
}

#[test]
fn case_ex_03_config_holds_only_keys_that_old_and_new_peft_know() {
    let fields: Value = serde_json::from_str(include_str!("../../../tests/reference/lora_config_fields.json")).unwrap();
    let known = |version: &str| -> BTreeSet<&str> {
        fields[version].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect()
    };
    let stable: BTreeSet<&str> = [
        "peft_type",
        "task_type",
        "base_model_name_or_path",
        "r",
        "lora_alpha",
        "lora_dropout",
        "target_modules",
        "bias",
        "fan_in_fan_out",
        "modules_to_save",
        "inference_mode",
    ]
    .into();
    let plain = to_peft(&config());
    let keys: BTreeSet<&str> = plain.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, stable);
    assert_eq!(plain["lora_alpha"].to_string(), "8", "whole alphas are integers for old readers");
    let everything = to_peft(&AdapterConfig {
        revision: Some("abc".into()),
        use_rslora: true,
        lora_alpha: 2.5,
        layers_to_transform: Some(vec![1]),
        chat_template: None,
        ..config()
    });
    assert_eq!(everything["lora_alpha"], json!(2.5));
    for (version, with_rslora) in [("0.6.0", false), ("0.11.1", true), ("0.21.2", true)] {
        let known = known(version);
        for key in everything.as_object().unwrap().keys() {
            assert!(known.contains(key.as_str()) || (key == "use_rslora" && !with_rslora), "{version} rejects {key}");
        }
        assert!(keys.is_subset(&known), "{version}");
    }
    let nan = write(Path::new("unused"), &AdapterConfig { lora_alpha: f64::NAN, ..config() }, &tensors(4));
    assert!(nan.unwrap_err().to_string().contains("lora_alpha"));
}

#[test]
fn case_ex_04_base_name_is_public_and_never_null() {
    let named = |p: &str| base_name(None, None, None, Path::new(p));
    assert_eq!(named("/tmp/T0"), ("T0".into(), None));
    assert_eq!(named("/tmp/mes modèles/T0 é"), ("T0 é".into(), None));
    assert_eq!(named("/data/hub/models--org--name/snapshots/0a1b2c"), ("org/name".into(), Some("0a1b2c".into())));
    assert_eq!(named("/").0, "local-base");
    let hub = base_name(None, Some("org/name"), Some("0a1b2c"), Path::new("/x/y"));
    assert_eq!(hub, ("org/name".into(), Some("0a1b2c".into())));
    assert_eq!(base_name(Some("me/pub"), Some("org/name"), Some("1"), Path::new("/x")), ("me/pub".into(), None));
    // Whatever the caller put there, no local path is written.
    for (given, want) in [
        ("/tmp/T0", "T0"),
        ("/tmp/mes modèles/T0 é", "T0 é"),
        ("", "local-base"),
        ("C:\\models\\T0", "T0"),
        ("~/models/T0", "T0"),
        ("./T0/", "T0"),
        ("org/name", "org/name"),
        ("a\"b: c\n", "a\"b: c"),
    ] {
        let dir = written(&AdapterConfig { base_model_name_or_path: given.into(), ..config() }, &tensors(4));
        assert_eq!(json_of(dir.path())["base_model_name_or_path"], json!(want), "{given}");
        let card = fs::read_to_string(dir.path().join(CARD_FILE)).unwrap();
        assert!(!card.contains("/tmp/") && !card.contains("mes mod"), "{card}");
        assert_eq!(front_matter(&card)["base_model"], json!([want]));
        assert_eq!(front_matter(&card)["library_name"], json!(["peft"]));
    }
}

/// The front matter by the small part of YAML that the card uses; panics on anything else.
fn front_matter(card: &str) -> Value {
    let body = card.strip_prefix("---\n").unwrap();
    let (yaml, _) = body.split_once("\n---\n").unwrap();
    let scalar = |text: &str| -> Value {
        if text.starts_with('"') {
            return serde_json::from_str(text).unwrap();
        }
        assert!(text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'), "unquoted: {text}");
        json!(text)
    };
    let mut out = json!({});
    let mut key = String::new();
    for line in yaml.lines() {
        if let Some(item) = line.strip_prefix("- ") {
            out[&key].as_array_mut().unwrap().push(scalar(item));
        } else {
            let (k, v) = line.split_once(':').unwrap();
            key = k.to_string();
            out[&key] = if v.is_empty() { json!([]) } else { json!([scalar(v.trim())]) };
        }
    }
    out
}

#[test]
fn case_ex_05_format_pt_aligned_sorted_and_readable() {
    let dir = written(&config(), &tensors(4));
    let bytes = fs::read(dir.path().join(TENSORS_FILE)).unwrap();
    let (n, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!((n + 8) % 8, 0);
    assert_eq!(metadata.metadata().as_ref().unwrap().get("format").map(String::as_str), Some("pt"));
    let header: Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    let keys: Vec<&String> = header.as_object().unwrap().keys().filter(|k| *k != "__metadata__").collect();
    let mut by_offset = keys.clone();
    by_offset.sort_by_key(|k| header[k.as_str()]["data_offsets"][0].as_u64());
    assert_eq!(keys, by_offset);
    assert!(keys.is_sorted());
}

#[test]
fn case_ex_06_the_factor_is_recorded_and_can_be_baked_in() {
    let rs = AdapterConfig { r: 16, lora_alpha: 16.0, use_rslora: true, ..config() };
    assert_eq!(rs.scale(), 4.0);
    let dir = written(&rs, &tensors(16));
    assert_eq!(json_of(dir.path())["use_rslora"], json!(true));
    let plain = rs.without_rslora();
    assert_eq!((plain.lora_alpha, plain.use_rslora, plain.scale()), (64.0, false, 4.0));
    assert_eq!(to_peft(&plain).get("use_rslora"), None);
    assert_eq!(config().without_rslora(), config());
}

#[test]
fn case_ex_09_foreign_and_unknown_formats_are_refused_by_their_config() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("adapters.safetensors"), b"x").unwrap();
    assert!(refusal(dir.path()).contains("mlx"));
    // The square case: shapes alone would fit both ways round.
    fs::write(
        dir.path().join(CONFIG_FILE),
        r#"{"fine_tune_type":"lora","num_layers":2,"lora_parameters":{"rank":64,"scale":20.0}}"#,
    )
    .unwrap();
    assert!(refusal(dir.path()).contains("mlx adapter"), "{}", refusal(dir.path()));
    for (json, why) in [
        (r#"{"architectures":["LlamaForCausalLM"],"r":4}"#, "base model's config"),
        (r#"{"r":4,"lora_alpha":8}"#, "format is not known"),
        (r#"{"peft_type":"IA3"}"#, "IA3"),
        ("[1]", "JSON object"),
        (r#"{"peft_type":"LORA","r":4,"lora_alpha":NaN}"#, "not valid JSON"),
    ] {
        fs::write(dir.path().join(CONFIG_FILE), json).unwrap();
        assert!(refusal(dir.path()).contains(why), "{json}: {}", refusal(dir.path()));
    }
}

#[test]
fn peft_features_that_would_be_lost_are_refused_by_name() {
    for (key, value) in [
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("rank_pattern", json!({"q_proj": 8})),
        ("alpha_pattern", json!({"q_proj": 8})),
        ("bias", json!("all")),
        ("fan_in_fan_out", json!(true)),
        ("lora_bias", json!(true)),
        ("target_parameters", json!(["experts.w1"])),
        ("trainable_token_indices", json!([1])),
        ("layers_pattern", json!("h")),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("task_type", json!("SEQ_CLS")),
        ("a_feature_of_2030", json!("on")),
        ("r", json!(0)),
        ("lora_alpha", json!("8")),
        ("layers_to_transform", json!([0])),
        ("target_modules", json!(["q_proj"])),
        ("target_modules", json!(["q_proj", "v_proj", "k_proj"])),
    ] {
        let dir = with_config(|c| c[key] = value.clone());
        let text = refusal(dir.path());
        let shown = if key.starts_with("layers_to") { "layer 1" } else { key };
        assert!(text.contains(shown), "{key} = {value}: {text}");
    }
    // Every default of the newest PEFT is fine, and so are patterns that the tensor names resolve.
    for targets in [json!("all-linear"), json!(["model.layers.0.self_attn.q_proj"]), json!(r".*\.(q|v)_proj")] {
        let dir = with_config(|c| c["target_modules"] = targets.clone());
        let (config, _) = read(dir.path()).unwrap();
        assert_eq!(config.target_modules, ["q_proj", "v_proj"], "{targets}");
        assert_eq!(config.layers_to_transform, Some(vec![0, 1]));
    }
}

/// `LoraConfig().to_dict()` of PEFT 0.21.2, as `save_pretrained` writes it.
#[test]
fn every_default_of_pefts_config_is_read_or_idle() {
    let defaults = json!({"alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": null, "bias": "none", "corda_config": null, "ensure_weight_tying": false,
        "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
        "init_lora_weights": true, "kasa_config": null, "layer_replication": null, "layers_pattern": null,
        "loftq_config": {}, "lora_bias": false, "lora_ga_config": null, "megatron_config": null,
        "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null, "peft_version": "0.21.2",
        "qalora_group_size": 16, "rank_pattern": {}, "revision": null, "runtime_config": {"ephemeral_gpu_offload": false},
        "target_parameters": null, "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
        "use_qalora": false, "use_rslora": false, "velora_config": null});
    let dir = with_config(|c| defaults.as_object().unwrap().iter().for_each(|(k, v)| c[k] = v.clone()));
    assert_eq!(read(dir.path()).unwrap().0.target_modules, ["q_proj", "v_proj"]);
    for key in ["arrow_config", "kasa_config", "velora_config", "monteclora_config", "use_bdlora", "layer_replication"]
    {
        let dir = with_config(|c| c[key] = json!({"on": 1}));
        assert!(refusal(dir.path()).contains(&format!("{key} = ")), "{key}");
    }
}

#[test]
fn damaged_tensor_files_say_what_is_wrong() {
    let dir = written(&config(), &tensors(4));
    let path = dir.path().join(TENSORS_FILE);
    let good = fs::read(&path).unwrap();
    let try_bytes = |bytes: &[u8], why: &str| {
        fs::write(&path, bytes).unwrap();
        let text = refusal(dir.path());
        assert!(text.contains(why), "{why}: {text}");
    };
    try_bytes(b"", "0 bytes long");
    try_bytes(&good[..good.len() - 1], "damaged");
    try_bytes(&u64::MAX.to_le_bytes(), "cut off or damaged");
    try_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git-LFS");
    let twice = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (twice.len() as u64).to_le_bytes().to_vec();
    bytes.extend(twice);
    bytes.extend([0; 4]);
    try_bytes(&bytes, "twice");
    let add_tensor = |change: &dyn Fn(&mut Vec<AdapterTensor>), why: &str| {
        let mut t = tensors(4);
        change(&mut t);
        try_bytes(&tensors::encode(&t).unwrap(), why);
        let other = tempfile::tempdir().unwrap();
        let e = write(other.path(), &config(), &t).unwrap_err().to_string();
        assert!(e.contains(why) && fs::read_dir(other.path()).unwrap().count() == 0, "{e}");
    };
    add_tensor(&|t| t.truncate(7), "has no lora_B");
    add_tensor(&|t| t.clear(), "no tensors");
    add_tensor(&|t| t[0].data[3] = f32::NAN, "holds NaN");
    add_tensor(&|t| t[0].shape = vec![64, 4], "not [4, in]");
    add_tensor(&|t| t[0].key = t[0].key.replace("lora_A.weight", "lora_A.default.weight"), "not a key");
    add_tensor(&|t| t[0].key = t[0].key.replace("base_model.model.model", "base_model.model"), "has no lora");
    add_tensor(&|t| t[0].key = "base_model.model.lm_head.lora_A.weight".into(), "not a key");
    add_tensor(&|t| drop(t.drain(6..)), "layer 1 has no 'v_proj'");
}

#[test]
fn half_precision_adapters_are_upcast() {
    let dir = written(&config(), &tensors(4));
    let as_halves = |name: &str, half: &dyn Fn(f32) -> [u8; 2]| {
        let data: Vec<(String, Vec<usize>, Vec<u8>)> =
            tensors(4).into_iter().map(|t| (t.key, t.shape, t.data.iter().flat_map(|x| half(*x)).collect())).collect();
        let dtype = if name == "F16" { safetensors::Dtype::F16 } else { safetensors::Dtype::BF16 };
        let views: Vec<_> = data
            .iter()
            .map(|(k, s, d)| (k.clone(), safetensors::tensor::TensorView::new(dtype, s.clone(), d).unwrap()))
            .collect();
        safetensors::serialize(views, None).unwrap()
    };
    for (name, half, tolerance) in [
        ("F16", &(|x: f32| half::f16::from_f32(x).to_le_bytes()) as &dyn Fn(f32) -> [u8; 2], 5e-4),
        ("BF16", &|x: f32| half::bf16::from_f32(x).to_le_bytes(), 4e-3),
    ] {
        fs::write(dir.path().join(TENSORS_FILE), as_halves(name, half)).unwrap();
        let (_, got) = read(dir.path()).unwrap();
        let mut want = tensors(4);
        want.sort_by(|a, b| a.key.cmp(&b.key));
        for (g, w) in got.iter().zip(&want) {
            assert_eq!(g.key, w.key);
            assert!(g.data.iter().zip(&w.data).all(|(a, b)| (a - b).abs() <= tolerance), "{name} {}", g.key);
        }
    }
}

#[test]
fn a_new_config_never_stands_beside_old_tensors() {
    let dir = written(&config(), &tensors(4));
    let other = AdapterConfig { lora_alpha: 99.0, ..config() };
    // The tensors' place is taken by a folder, so the write fails half-way.
    fs::remove_file(dir.path().join(TENSORS_FILE)).unwrap();
    fs::create_dir(dir.path().join(TENSORS_FILE)).unwrap();
    assert!(write(dir.path(), &other, &tensors(4)).is_err());
    assert!(!dir.path().join(CONFIG_FILE).exists());
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = tensors::parse(&bytes);
    }

    #[test]
    fn a_damaged_header_never_panics(at in 0usize..900, value in any::<u8>(), cut in 0usize..1200) {
        let mut bytes = tensors::encode(&tensors(4)).unwrap();
        bytes[at] = value;
        let _ = tensors::parse(&bytes).map(|t| tensors::check(&config(), &t));
        bytes.truncate(cut);
        prop_assert!(tensors::parse(&bytes).is_err());
    }

    #[test]
    fn any_base_name_becomes_a_public_one(name in ".{0,60}") {
        let public = peft::public_name(&name);
        prop_assert!(!public.trim().is_empty() && !public.starts_with('/') && !public.contains('\n'));
    }
}
