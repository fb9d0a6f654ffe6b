//! Every family that can be planned, by the tensor names and config keys of its public repositories (FO-75).

use super::parts::config;
use super::{dir, open};
use crate::support::fixture::{Model, Tensor};
use blockstream_tui::checkpoint::{self, Checkpoint};
use blockstream_tui::device::{self, Machine};
use blockstream_tui::plan;
use serde_json::{Value, json};
use std::path::Path;

/// Names below `layers.N.` with their shapes, at the base fixture's widths: hidden 64, heads 4 × 16, 2 key heads, 128.
type Names = Vec<(String, Vec<u64>)>;

fn names(list: &[(&str, &[u64])]) -> Names {
    list.iter().map(|(name, shape)| (format!("{name}.weight"), shape.to_vec())).collect()
}

const NORMS: [(&str, &[u64]); 2] = [("input_layernorm", &[64]), ("post_attention_layernorm", &[64])];
const HEADS_NORMS: [(&str, &[u64]); 2] = [("self_attn.q_norm", &[16]), ("self_attn.k_norm", &[16])];
const FEED_FORWARD: [(&str, &[u64]); 3] =
    [("mlp.gate_proj", &[128, 64]), ("mlp.up_proj", &[128, 64]), ("mlp.down_proj", &[64, 128])];

/// q, k, v, o and the two norms.
fn attention() -> Names {
    let projections: [(&str, &[u64]); 4] = [
        ("self_attn.q_proj", &[64, 64]),
        ("self_attn.k_proj", &[32, 64]),
        ("self_attn.v_proj", &[32, 64]),
        ("self_attn.o_proj", &[64, 64]),
    ];
    [names(&projections), names(&NORMS)].concat()
}

fn biased() -> Names {
    let bias = |p: &str, n: u64| (format!("self_attn.{p}_proj.bias"), vec![n]);
    [attention(), vec![bias("q", 64), bias("k", 32), bias("v", 32)]].concat()
}

/// Four experts below `at`, each with these three matrices of width 32.
fn experts(at: &str, [gate, down, up]: [&str; 3]) -> Names {
    let one = |e: usize, name: &str, shape: &[u64]| (format!("{at}.experts.{e}.{name}.weight"), shape.to_vec());
    (0..4).flat_map(|e| [one(e, gate, &[32, 64]), one(e, down, &[64, 32]), one(e, up, &[32, 64])]).collect()
}

const LLAMA: [&str; 3] = ["gate_proj", "down_proj", "up_proj"];

/// One family: config keys, the names of layer `n`, further tensors.
struct Case {
    name: &'static str,
    keys: Value,
    /// Keys around the text config.
    outer: Option<Value>,
    prefix: &'static str,
    layer: fn(usize) -> Names,
    others: &'static [(&'static str, &'static [u64])],
}

fn cases() -> Vec<Case> {
    let plain = |name, keys, layer| Case { name, keys, outer: None, prefix: "model.", layer, others: &[] };
    let tower: &[(&str, &[u64])] =
        &[("visual.blocks.0.attn.qkv.weight", &[96, 32]), ("visual.merger.mlp.0.bias", &[8])];
    let mrope = json!({ "type": "mrope", "mrope_section": [2, 3, 3] });
    let vl = |name| Case {
        keys: json!({ "rope_scaling": mrope, "vision_config": { "depth": 1 }, "use_sliding_window": false }),
        others: tower,
        ..plain(name, Value::Null, |_| [biased(), names(&FEED_FORWARD)].concat())
    };
    let mixture = json!({ "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32 });
    let with = |more: Value| {
        let mut keys = mixture.clone();
        keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        keys
    };
    let routed = json!({
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 1, "n_group": 1,
    });
    vec![
        plain(
            "phi3",
            json!({ "sliding_window": 2047, "original_max_position_embeddings": 512, "rope_scaling":
                { "type": "longrope", "short_factor": [1.0], "long_factor": [1.1] } }),
            |_| {
                let fused: [(&str, &[u64]); 4] = [
                    ("self_attn.qkv_proj", &[128, 64]),
                    ("self_attn.o_proj", &[64, 64]),
                    ("mlp.gate_up_proj", &[256, 64]),
                    ("mlp.down_proj", &[64, 128]),
                ];
                [names(&fused), names(&NORMS)].concat()
            },
        ),
        plain("gemma", json!({ "hidden_act": "gelu", "tie_word_embeddings": true }), |_| {
            [attention(), names(&FEED_FORWARD)].concat()
        }),
        plain(
            "gemma2",
            json!({ "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096, "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 16, "tie_word_embeddings": true }),
            |_| {
                let more: [(&str, &[u64]); 2] =
                    [("pre_feedforward_layernorm", &[64]), ("post_feedforward_layernorm", &[64])];
                [attention(), names(&FEED_FORWARD), names(&more)].concat()
            },
        ),
        Case {
            outer: Some(json!({ "model_type": "gemma3", "vision_config": { "hidden_size": 8 } })),
            prefix: "language_model.model.",
            others: &[
                ("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", &[8, 8]),
                ("multi_modal_projector.mm_input_projection_weight", &[8, 64]),
            ],
            ..plain(
                "gemma3_text",
                json!({ "sliding_window": 512, "sliding_window_pattern": 6, "tie_word_embeddings": true,
                    "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 16 }),
                |_| {
                    let more: [(&str, &[u64]); 2] =
                        [("pre_feedforward_layernorm", &[64]), ("post_feedforward_layernorm", &[64])];
                    [attention(), names(&HEADS_NORMS), names(&FEED_FORWARD), names(&more)].concat()
                },
            )
        },
        vl("qwen2_vl"),
        vl("qwen2_5_vl"),
        Case {
            outer: Some(json!({ "model_type": "qwen3_vl", "vision_config": { "depth": 1 } })),
            prefix: "model.language_model.",
            others: &[("model.visual.blocks.0.attn.qkv.weight", &[96, 32])],
            ..plain("qwen3_vl_text", json!({}), |_| [attention(), names(&HEADS_NORMS), names(&FEED_FORWARD)].concat())
        },
        plain("qwen3_moe", with(json!({ "decoder_sparse_step": 1, "mlp_only_layers": [] })), |_| {
            [attention(), names(&HEADS_NORMS), names(&[("mlp.gate", &[4, 64])]), experts("mlp", LLAMA)].concat()
        }),
        plain("qwen2_moe", with(json!({ "shared_expert_intermediate_size": 128 })), |_| {
            let shared: [(&str, &[u64]); 5] = [
                ("mlp.gate", &[4, 64]),
                ("mlp.shared_expert.gate_proj", &[128, 64]),
                ("mlp.shared_expert.up_proj", &[128, 64]),
                ("mlp.shared_expert.down_proj", &[64, 128]),
                ("mlp.shared_expert_gate", &[1, 64]),
            ];
            [biased(), names(&shared), experts("mlp", LLAMA)].concat()
        }),
        plain("mixtral", json!({ "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32 }), |_| {
            let gate: [(&str, &[u64]); 1] = [("block_sparse_moe.gate", &[4, 64])];
            [attention(), names(&gate), experts("block_sparse_moe", ["w1", "w2", "w3"])].concat()
        }),
        plain("glm4_moe", routed, |n| match n {
            0 => [biased(), names(&FEED_FORWARD)].concat(),
            _ => {
                let shared: [(&str, &[u64]); 4] = [
                    ("mlp.gate", &[4, 64]),
                    ("mlp.shared_experts.gate_proj", &[32, 64]),
                    ("mlp.shared_experts.up_proj", &[32, 64]),
                    ("mlp.shared_experts.down_proj", &[64, 32]),
                ];
                let bias = vec![("mlp.gate.e_score_correction_bias".to_string(), vec![4])];
                // The layer after the last predicts one more token.
                let next: [(&str, &[u64]); 4] =
                    [("eh_proj", &[64, 128]), ("enorm", &[64]), ("hnorm", &[64]), ("shared_head.norm", &[64])];
                let next = if n == 4 { names(&next) } else { Vec::new() };
                [biased(), names(&shared), bias, experts("mlp", LLAMA), next].concat()
            }
        }),
    ]
}

fn written(case: &Case, dir: &Path) -> Checkpoint {
    let mut model = Model::tiny().set("model_type", case.name).prefix(case.prefix);
    for (key, value) in case.keys.as_object().into_iter().flatten() {
        model = model.set(key, value.clone());
    }
    let next = case.keys["num_nextn_predict_layers"].as_u64().unwrap_or(0) as usize;
    let (layer, prefix, others) = (case.layer, case.prefix, case.others);
    model = model.edit(move |tensors| {
        tensors.retain(|t| !t.name.contains(".layers."));
        for n in 0..4 + next {
            let of_layer = layer(n).into_iter();
            tensors.extend(
                of_layer.map(|(name, shape)| Tensor::new(format!("{prefix}layers.{n}.{name}"), "BF16", &shape)),
            );
        }
        tensors.extend(others.iter().map(|(name, shape)| Tensor::new(*name, "BF16", shape)));
    });
    if let Some(outer) = &case.outer {
        model = model.nested(outer.clone());
    }
    open(&model.write_headers(dir))
}

/// Plans `c` with defaults and with every linear layer: a mixture says that its experts carry none.
fn planned(c: &Checkpoint, machine: &Machine) {
    let of = |settings: &[(&str, &str)]| plan::plan(c, machine, &config(settings));
    let report = of(&[]).unwrap_or_else(|e| panic!("{}: {e}", c.family()));
    let lora = &report.modes.lora;
    assert!(lora.reasons.iter().any(|r| r.contains("plan only")), "{}: {:?}", c.family(), lora.reasons);
    match (of(&[("lora.targets", "all-linear")]), c.arch.experts) {
        (Ok(all), None) => assert!(all.modes.lora.vram.total >= lora.vram.total, "{}", c.family()),
        (Err(e), Some(_)) => {
            let said = format!("{e}; {}", e.advice().unwrap_or_default());
            assert!(said.contains("experts, which carry no adapters") && said.contains("q_proj"), "{said}");
        }
        (Ok(_), Some(_)) => panic!("{}: a plan that counts adapters on experts", c.family()),
        (Err(e), None) => panic!("{}: {e}", c.family()),
    }
}

#[test]
fn case_fo_75_every_plannable_family_is_planned_by_its_public_names() {
    let machine = device::machine(&config(&[("machine", "profiles/h200.toml")]), None).unwrap();
    let cases = cases();
    assert_eq!(cases.len(), 11);
    for case in &cases {
        let d = dir();
        let c = written(case, d.path());
        assert_eq!(c.blocks.len(), 4, "{}", case.name);
        planned(&c, &machine);
    }
    // Real headers of the others: gpt_oss, glm4v_moe, qwen3_vl and qwen3_vl_moe.
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/headers");
    for name in ["gpt-oss-120b", "glm-4.6v", "qwen3-vl-8b", "qwen3-vl-235b-a22b"] {
        planned(&checkpoint::open(&headers.join(name)).unwrap(), &machine);
    }
}
