//! Checkpoints from the outside: the public cases CK-* and PL-01 over whole model folders.

mod files;
mod found;
pub mod headers;
mod parts;
mod plannable;
mod refusals;

use crate::support::fixture::{Model, Tensor, put};
use blockstream_tui::checkpoint::{self, Checkpoint, Role};
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;

fn dir() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn open(dir: &Path) -> Checkpoint {
    checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn refused(dir: &Path, words: &[&str]) -> String {
    let e = checkpoint::open(dir).map(|c| c.name).expect_err("should be refused").to_string();
    assert!(!e.contains('\n') && !e.contains('\x1b'), "{e:?}");
    for word in words {
        assert!(e.contains(word), "'{word}' is not in: {e}");
    }
    e
}

#[track_caller]
fn noted(c: &Checkpoint, words: &[&str]) {
    let found = c.notes.iter().any(|n| words.iter().all(|w| n.contains(w)));
    assert!(found, "{words:?} are not in {:?}", c.notes);
}

#[test]
fn the_base_fixture_is_the_one_of_the_cases() {
    let d = dir();
    let c = open(&Model::tiny().write(d.path()));
    assert_eq!((c.tensors.len(), c.total_bytes().0, c.blocks.len()), (39, 363_648, 4));
    assert_eq!((c.prefix.as_str(), c.not_here, c.hub_id.as_deref()), ("model.", false, None));
    assert!(c.notes.is_empty() && c.unused.is_empty(), "{:?}", c.notes);
    let q = c.block_tensor(2, Role::Q).unwrap();
    let bytes = std::fs::read(&c.files[q.file].path).unwrap();
    let data = &bytes[q.offset as usize..(q.offset + q.bytes) as usize];
    assert_eq!(crate::support::fixture::decode("BF16", data), Model::tiny().values(&q.name));
}

#[test]
fn case_pl_01_total_size_is_never_believed() {
    for total in [Some(json!(1)), Some(json!(1_000_000_000_000_000u64)), Some(json!("363648")), None] {
        let d = dir();
        let c = open(&Model::tiny().shards(2).total_size(total.clone()).write(d.path()));
        assert_eq!(c.total_bytes().0, 363_648, "{total:?}");
        let warnings = c.notes.iter().filter(|n| n.contains("total_size")).count();
        assert_eq!(warnings, usize::from(total.is_some()), "{:?}", c.notes);
    }
}

#[test]
fn headers_alone_open_for_planning_with_the_same_sizes() {
    for shards in [1, 3] {
        let (d, full) = (dir(), dir());
        let model = Model::tiny().shards(shards);
        let c = open(&model.write_headers(d.path()));
        let real = open(&model.write(full.path()));
        assert!(c.not_here && !real.not_here);
        assert_eq!((&c.tensors, &c.blocks), (&real.tensors, &real.blocks));
        let sizes = |c: &Checkpoint| c.files.iter().map(|f| f.bytes).collect::<Vec<_>>();
        assert_eq!(sizes(&c), sizes(&real));
        noted(&c, &["only their headers"]);
    }
    let d = dir();
    Model::tiny().write_headers(d.path());
    let path = d.path().join("model.safetensors.header.json");
    let text = std::fs::read_to_string(&path).unwrap().replacen("\"size\":", "\"size\":9999999", 1);
    put(&path, text);
    refused(d.path(), &["header.json", "does not fit"]);
}

#[test]
fn the_fingerprint_follows_what_matters() {
    let d = dir();
    let first = open(&Model::tiny().write(d.path())).fingerprint;
    assert_eq!((first.len(), &first[..3]), (67, "c1-"));
    assert_eq!(open(d.path()).fingerprint, first);
    put(&d.path().join("README.md"), "hello");
    assert_eq!(open(d.path()).fingerprint, first);
    let file = std::fs::File::options().append(true).open(d.path().join("model.safetensors")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(open(d.path()).fingerprint, first, "contents count, not times");
    put(&d.path().join("config.json"), Model::tiny().set("max_position_embeddings", 1024).config().to_string());
    assert_ne!(open(d.path()).fingerprint, first);
}

#[test]
fn all_families_open_with_their_own_blocks() {
    for (family, per_block) in [("llama", 9), ("mistral", 9), ("qwen2", 12), ("qwen3", 11)] {
        let d = dir();
        let c = open(&Model::family(family).shards(2).write(d.path()));
        assert_eq!(format!("{:?}", c.arch.family).to_lowercase(), family);
        assert!(c.blocks.iter().all(|b| b.tensors.len() == per_block), "{family}");
        assert!(c.notes.is_empty(), "{family}: {:?}", c.notes);
    }
}

#[test]
fn a_folder_that_is_no_model_says_what_it_is() {
    let d = dir();
    refused(&d.path().join("none"), &["does not exist"]);
    refused(d.path(), &["no config.json"]);
    put(&d.path().join("adapter_config.json"), "{}");
    refused(d.path(), &["PEFT adapter", "base model"]);
    put(&d.path().join("x.gguf"), "GGUF");
    refused(&d.path().join("x.gguf"), &["is a file", "import"]);
    put(&d.path().join("config.json"), Model::tiny().config().to_string());
    refused(d.path(), &["no safetensors files", "GGUF"]);
    put(&d.path().join("config.json"), r#"{"model_type": "\u001b[31mevil"}"#);
    refused(d.path(), &["evil", "supported: llama, mistral, qwen2, qwen3"]);
}

#[test]
fn tensors_out_of_place_are_named() {
    let d = dir();
    Model::tiny().edit(|t| t.push(Tensor::new("model.layers.4.input_layernorm.weight", "BF16", &[64]))).write(d.path());
    refused(d.path(), &["'model.layers.4.input_layernorm.weight'", "num_hidden_layers 4"]);
    let d = dir();
    Model::tiny().edit(|t| t.retain(|t| !t.name.contains("layers.1.mlp"))).write(d.path());
    refused(d.path(), &["3 tensors are missing", "'model.layers.1.mlp.gate_proj.weight'"]);
    let d = dir();
    Model::tiny().edit(|t| t[1].dtype = "F64".into()).write(d.path());
    refused(d.path(), &["q_proj", "type F64", "convert"]);
    let d = dir();
    // Without an index's word for one of them, a tensor in two files is refused.
    let other = |m: &mut std::collections::BTreeMap<String, String>| drop(m.remove("model.embed_tokens.weight"));
    Model::tiny().shards(2).edit(|t| t.push(t[0].clone())).weight_map(other).write(d.path());
    refused(d.path(), &["'model.embed_tokens.weight' is in both", "00001", "00002", "index"]);
    let d = dir();
    Model::tiny().edit(|t| t[3].name = "model.layers.0.self_attn.v\u{1b}]0;x\u{7}_proj.weight".into()).write(d.path());
    refused(d.path(), &["\\u{1b}"]);
}
