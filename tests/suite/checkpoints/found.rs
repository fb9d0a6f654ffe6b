//! Faults found by trying the program, about checkpoints and adapters: FO-14, 16, 43, 70, 78, 89 (13 is in `parts`, 75 in `plannable`).

use super::parts::config;
use super::{dir, noted, open, refused};
use crate::support::fixture::Raw;
use crate::support::fixture::{Model, Tensor, put, safetensors};
use blockstream_tui::checkpoint::{self, Dtype, adapter};
use blockstream_tui::{device, plan};
use serde_json::json;
use std::os::unix::fs::symlink;

/// An adapter for the base fixture, as PEFT would name it below `base_model.model.`.
fn named(prefix: &str) -> Vec<adapter::AdapterTensor> {
    let one = |layer: usize, half: &str, shape: [usize; 2]| adapter::AdapterTensor {
        key: format!("base_model.model.{prefix}layers.{layer}.self_attn.q_proj.lora_{half}.weight"),
        shape: shape.to_vec(),
        data: vec![0.5; 128],
    };
    (0..4).flat_map(|n| [one(n, "A", [2, 64]), one(n, "B", [64, 2])]).collect()
}

#[cfg(feature = "torch")]
#[test]
fn case_fo_70_adapter_keys_follow_the_class_not_the_files_prefix() {
    use blockstream_tui::config::LoraSection;
    use blockstream_tui::model::AdapterLayout;

    let lora = LoraSection { r: 2, targets: vec!["q_proj".into()], ..LoraSection::default() };
    let nested = json!({ "model_type": "x", "vision_config": {} });
    for (prefix, outer, class) in [
        ("", None, "model."),
        ("model.", None, "model."),
        ("model.language_model.", Some(&nested), "model.language_model."),
        ("language_model.model.", Some(&nested), "model.language_model."),
    ] {
        let d = dir();
        let model = Model::tiny().prefix(prefix);
        let model = outer.map_or(model.clone(), |o| model.nested(o.clone()));
        let c = open(&model.write(d.path()));
        let layout = AdapterLayout::new(&c, &lora).unwrap();
        let flat = layout.init(1);
        let made: Vec<String> = layout.to_peft(&flat).into_iter().map(|t| t.key).collect();
        let want: Vec<String> = named(class).into_iter().map(|t| t.key).collect();
        assert_eq!(made, want, "{prefix}");
        // PEFT's own, and one that was made with another version's class, find the same places.
        for written in [class, prefix] {
            let read = layout.from_peft(&named(written)).unwrap_or_else(|e| panic!("{prefix} {written}: {e}"));
            assert!(layout.to_peft(&read).iter().all(|t| t.data == vec![0.5; 128]));
        }
        let tower = layout.from_peft(&named("model.vision_tower.encoder."));
        assert!(tower.is_err(), "a tower's layers are not the decoder's");
    }
}

#[test]
fn case_fo_43_targets_that_the_model_lacks_are_passed_over() {
    let d = dir();
    let config = adapter::AdapterConfig {
        base_model_name_or_path: "o/n".into(),
        revision: None,
        r: 2,
        lora_alpha: 4.0,
        lora_dropout: 0.0,
        use_rslora: false,
        target_modules: vec!["q_proj".into()],
        layers_to_transform: None,
        chat_template: None,
    };
    adapter::write(d.path(), &config, &named("model.")).unwrap();
    let path = d.path().join(adapter::CONFIG_FILE);
    let edit = |key: &str, value: serde_json::Value| {
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[key] = value;
        put(&path, json.to_string());
    };
    edit("target_modules", json!(["q_proj", "query_key_value", "c_attn"]));
    assert_eq!(adapter::read(d.path()).unwrap().0.target_modules, ["q_proj"]);
    edit("target_modules", json!(["c_attn"]));
    assert!(adapter::read(d.path()).unwrap_err().to_string().contains("c_attn"));
    edit("target_modules", json!(["q_proj"]));
    edit("use_rslora", json!("true"));
    assert!(adapter::read(d.path()).unwrap_err().to_string().contains("use_rslora"), "it changes every number");
}

#[test]
fn case_fo_16b_one_odd_projection_does_not_decide_the_compute_type() {
    let d = dir();
    let odd =
        Model::tiny().edit(|t| t.iter_mut().filter(|t| t.name.contains("q_proj")).for_each(|t| t.dtype = "F32".into()));
    assert_eq!(open(&odd.write(d.path())).compute_dtype(), Dtype::BF16);
    for (name, want) in [("F32", Dtype::F32), ("F16", Dtype::F16), ("BF16", Dtype::BF16)] {
        let d = dir();
        assert_eq!(open(&Model::tiny().dtype(name).write(d.path())).compute_dtype(), want);
    }
}

#[test]
fn case_fo_78a_biases_that_only_the_index_names_are_refused() {
    let d = dir();
    let add = |m: &mut std::collections::BTreeMap<String, String>| {
        let file = m["model.embed_tokens.weight"].clone();
        m.insert("model.layers.0.self_attn.q_proj.bias".into(), file);
    };
    Model::tiny().shards(2).weight_map(add).write(d.path());
    refused(d.path(), &["no file holds 'model.layers.0.self_attn.q_proj.bias'", "the index names", "fetch"]);
}

#[test]
fn case_fo_78b_one_missing_bias_of_three_is_refused() {
    for lost in ["q_proj.bias", "k_proj.bias", "v_proj.bias"] {
        let d = dir();
        Model::family("qwen2").edit(move |t| t.retain(|t| !t.name.ends_with(lost))).write(d.path());
        refused(d.path(), &[lost, "is missing", "fetch the whole model"]);
    }
}

#[test]
fn case_fo_78e_a_shard_linked_from_outside_is_told() {
    let (d, far) = (dir(), dir());
    Model::tiny().write(d.path());
    std::fs::rename(d.path().join("model.safetensors"), far.path().join("far.safetensors")).unwrap();
    symlink(far.path().join("far.safetensors"), d.path().join("model.safetensors")).unwrap();
    noted(&open(d.path()), &["'model.safetensors' is a link out of the model's folder", "far.safetensors"]);
}

#[test]
fn case_fo_78f_an_adapter_in_a_models_place_says_so() {
    let d = dir();
    put(&d.path().join("adapter_config.json"), json!({ "base_model_name_or_path": "org/base" }).to_string());
    refused(d.path(), &["PEFT adapter", "'org/base'"]);
    put(&d.path().join("adapter_model.safetensors"), safetensors(&[], &Raw::default()));
    put(&d.path().join("config.json"), Model::tiny().config().to_string());
    refused(d.path(), &["only an adapter's weights", "base model"]);
}

#[test]
fn case_fo_78g_errors_in_a_config_name_its_path() {
    let d = dir();
    Model::tiny().set("num_key_value_heads", 3).write(d.path());
    refused(d.path(), &[d.path().to_str().unwrap(), "config.json", "no multiple", "fetch config.json again"]);
}

#[test]
fn case_fo_78h_a_missing_head_dim_follows_q_proj() {
    let d = dir();
    let c = open(&Model::tiny().set("head_dim", 32).unset("head_dim").write(d.path()));
    assert_eq!(c.arch.head_dim, 32);
    noted(&c, &["no head_dim: 32", "q_proj"]);
}

#[test]
fn case_fo_78i_of_a_tensor_in_two_shards_the_mapped_one_counts() {
    let d = dir();
    let twin = Tensor::new("model.embed_tokens.weight", "BF16", &[264, 64]);
    let model = Model::tiny().shards(2).edit(move |t| t.push(twin.clone()));
    for want in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        let map = move |m: &mut std::collections::BTreeMap<String, String>| {
            m.insert("model.embed_tokens.weight".into(), want.into());
        };
        let c = open(&model.clone().weight_map(map).write(d.path()));
        assert!(c.files[c.tensors[c.embed].file].path.ends_with(want));
        noted(&c, &["'model.embed_tokens.weight' is also in", "the index names"]);
    }
}

#[test]
fn case_fo_14_a_plan_past_the_models_positions_says_both_numbers() {
    let machine = device::machine(&config(&[("machine", "profiles/h200.toml")]), None).unwrap();
    let d = dir();
    let c = open(&Model::tiny().set("max_position_embeddings", 32).write(d.path()));
    let warned = |length: &str| {
        let report = plan::plan(&c, &machine, &config(&[("data.max_length", length)])).unwrap();
        report.notes.iter().any(|n| n.contains(&format!(" {length} tokens")) && n.contains("made for 32 positions"))
    };
    assert!(warned("33") && warned("1024"));
    assert!(!warned("32"));
}

#[test]
fn case_fo_78d_the_program_shows_the_revision_of_a_hub_folder() {
    let d = dir();
    let repo = Model::tiny().write_hub(d.path(), "a/b", "0123abcd");
    // As every subcommand finds it: resolved, then opened.
    let c = open(&checkpoint::resolve(repo.to_str().unwrap()).unwrap());
    assert_eq!(c.revision.as_deref(), Some("0123abcd"));
    noted(&c, &["revision 0123abcd"]);
    let program = env!("CARGO_BIN_EXE_blockstream-tui");
    let out = std::process::Command::new(program)
        .args(["plan", repo.to_str().unwrap(), "--profile", "h200"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("revision 0123abcd"), "{text}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn case_fo_89_an_index_of_millions_is_refused_in_little_time() {
    use std::fmt::Write;
    let d = dir();
    Model::tiny().write(d.path());
    // So many tensors in ten thousand files that are not there.
    let write_index = |tensors: u32| {
        let mut index = String::from("{\"weight_map\":{\"t\":\"0.safetensors\"");
        (1..tensors).for_each(|i| write!(index, ",\"t{i}\":\"{}.safetensors\"", i % 10_000).unwrap());
        put(&d.path().join("model.safetensors.index.json"), index + "}}");
    };
    write_index(3_000_000);
    let since = std::time::Instant::now();
    refused(d.path(), &["model.safetensors.index.json", "more than 1000000 tensors"]);
    assert!(since.elapsed().as_secs() < 10, "{:?}", since.elapsed());
    // As many as are taken, in files that are not there: looked up, not searched for one by one.
    write_index(1_000_000);
    let since = std::time::Instant::now();
    refused(d.path(), &["lacks 10000 of 10000 weights files", "with 1000000 of 1000000 tensors"]);
    assert!(since.elapsed().as_secs() < 20, "{:?}", since.elapsed());
}

#[test]
fn case_fo_26_a_byte_order_mark_of_the_config_is_told() {
    let d = dir();
    let at = Model::tiny().write(d.path());
    let path = at.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    put(&path, format!("\u{feff}{text}"));
    noted(&open(&at), &["config.json starts with a byte order mark"]);
}

#[test]
fn keys_of_the_index_that_are_not_used_are_told() {
    let d = dir();
    let at = Model::tiny().shards(2).write(d.path());
    let path = at.join("model.safetensors.index.json");
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    index["metadata"]["total_parameters"] = json!(5);
    put(&path, index.to_string());
    assert!(!open(&at).notes.iter().any(|n| n.contains("aren't used")));
    (index["offsets"], index["metadata"]["transpose"]) = (json!([1]), json!(true));
    put(&path, index.to_string());
    let c = open(&at);
    noted(&c, &["the index has keys that aren't used here: 'offsets'"]);
    noted(&c, &["the index's metadata has keys that aren't used here: 'transpose'"]);
}

#[test]
fn biases_of_the_feed_forward_that_only_the_config_names_are_told() {
    let d = dir();
    let c =
        open(&Model::tiny().set("mlp_bias", true).edit(|t| t.retain(|t| !t.name.ends_with("bias"))).write(d.path()));
    noted(&c, &["config.json implies gate/up/down biases, but the file has none"]);
}
