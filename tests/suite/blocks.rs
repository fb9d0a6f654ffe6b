//! A block's forward and backward by formulas against autograd, and the order in which they ask for weights.

use crate::block_case::{Case, How, Out};
use crate::golden::assert_close;
use crate::support::fixture::Model;
use crate::walk::{host, open};
use blockstream_tui::checkpoint::Part::{self, Attention, Down, Gate, Up};
use blockstream_tui::config::LoraSection;
use blockstream_tui::model::rope::{RopeCache, RopeTable};
use tch::{Device, Kind};

/// As the goldens': room for another kernel, none for another formula.
const TOLERANCE: f32 = 2e-5;

fn lora(targets: &[&str], dropout: f64) -> LoraSection {
    let targets = targets.iter().map(|t| t.to_string()).collect();
    LoraSection { r: 3, alpha: 6.0, dropout, targets, ..LoraSection::default() }
}

fn agree(what: &str, got: &Out, want: &Out) {
    assert_close(&format!("{what}: output"), &got.y, &want.y, TOLERANCE);
    assert_close(&format!("{what}: gradients"), &got.grads, &want.grads, TOLERANCE);
    if !got.gx.is_empty() {
        assert_close(&format!("{what}: gradient of the input"), &got.gx, &want.gx, TOLERANCE);
    }
}

#[test]
fn every_family_and_every_target_with_and_without_dropout() {
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        for dropout in [0.0, 0.3] {
            let model = match family {
                "mistral" => Model::family(family).set("sliding_window", 4),
                _ => Model::family(family),
            };
            let case = Case::new(model, &lora(&["all-linear"], dropout), 2, 11);
            let want = case.autograd();
            assert!(want.grads.iter().filter(|g| **g != 0.0).count() > 1000, "gradients are not all zero");
            for mlp_chunk in [0, 1, 5, 8, 22, 100] {
                let what = format!("{family}, dropout {dropout}, chunk {mlp_chunk}");
                agree(&what, &case.run(How { mlp_chunk, ..How::cpu() }).0, &want);
            }
        }
    }
}

#[test]
fn biases_of_every_projection() {
    let mut case = Case::new(Model::family("llama"), &lora(&["all-linear"], 0.0), 2, 7);
    case.biases = true;
    let want = case.autograd();
    for mlp_chunk in [0, 5] {
        agree("biases", &case.run(How { mlp_chunk, ..How::cpu() }).0, &want);
    }
}

#[test]
fn any_choice_of_targets_with_and_without_the_inputs_gradient() {
    let choices: [&[&str]; 7] = [
        &["q_proj", "k_proj", "v_proj", "o_proj"],
        &["q_proj", "v_proj"],
        &["k_proj"],
        &["o_proj"],
        &["up_proj"],
        &["gate_proj", "down_proj"],
        &["down_proj"],
    ];
    for targets in choices {
        for dropout in [0.0, 0.2] {
            let case = Case::new(Model::family("qwen3"), &lora(targets, dropout), 1, 9);
            let want = case.autograd();
            for needs_input in [true, false] {
                let got = case.run(How { needs_input, ..How::cpu() }).0;
                agree(&format!("{targets:?}, dropout {dropout}"), &got, &want);
            }
        }
    }
}

#[test]
fn parts_are_taken_and_given_back_in_their_order() {
    let each = |parts: &[Part]| -> Vec<_> { parts.iter().flat_map(|&p| [("take", p), ("done", p)]).collect() };
    let case = Case::new(Model::family("qwen2"), &lora(&["all-linear"], 0.0), 1, 9);
    for needs_input in [true, false] {
        let log = case.run(How { needs_input, ..How::cpu() }).1.log;
        let forward = [Attention, Gate, Up, Down];
        let backward = [Attention, Gate, Up, Down, Up, Gate, Attention];
        assert_eq!(log, [each(&forward), each(&backward)].concat());
    }
    let log = case.run(How { mlp_chunk: 4, ..How::cpu() }).1.log;
    let all = |what, parts: [Part; 3]| parts.map(|p| (what, p)).to_vec();
    let attention = each(&[Attention]);
    let taken = all("take", [Gate, Up, Down]);
    let forward = [attention.clone(), taken.clone(), all("done", [Gate, Up, Down])];
    let backward = [attention.clone(), taken, all("done", [Down, Up, Gate]), attention];
    assert_eq!(log, [forward.concat(), backward.concat()].concat());
}

#[test]
fn a_cached_rotary_table_is_a_fresh_ones_beginning() {
    let dir = tempfile::tempdir().unwrap();
    Model::tiny().write(dir.path());
    let arch = open(dir.path()).arch;
    let mut cache = RopeCache::default();
    for len in [5, 3, 100, 17, 100] {
        let (got, want) = (
            cache.get(&arch, len, Kind::BFloat16, Device::Cpu),
            RopeTable::new(&arch, 0, len, Kind::BFloat16, Device::Cpu),
        );
        assert_eq!(got.len(), len as i64);
        assert_eq!((host(&got.cos), host(&got.sin)), (host(&want.cos), host(&want.sin)), "{len} positions");
    }
}
