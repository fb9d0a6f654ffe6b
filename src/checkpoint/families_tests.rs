//! Configs of both transformers generations, key by key.

use super::*;
use crate::checkpoint::types::RopeScaling;
use crate::support::fixture::Model;
use serde_json::json;

fn arch(model: Model) -> Read {
    read(&model.config(), None).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn refused(model: Model, words: &[&str]) {
    let e = read(&model.config(), None).map(|r| r.arch).unwrap_err().to_string();
    for word in words {
        assert!(e.contains(word), "'{word}' is not in: {e}");
    }
}

#[test]
fn numbers_are_read_and_defaults_noted() {
    let r = arch(Model::tiny());
    let a = &r.arch;
    assert_eq!((a.hidden, a.intermediate, a.n_layers, a.n_heads, a.n_kv_heads, a.head_dim), (64, 128, 4, 4, 2, 16));
    assert_eq!((a.vocab, a.norm_eps, a.tied, a.max_positions), (264, 1e-5, false, 512));
    assert_eq!(a.special, SpecialIds { bos: Some(257), eos: vec![258], pad: Some(256) });
    assert!(r.notes.is_empty(), "{:?}", r.notes);
    let r = arch(Model::tiny().unset("head_dim").unset("rms_norm_eps").unset("num_key_value_heads"));
    assert_eq!((r.arch.head_dim, r.arch.norm_eps, r.arch.n_kv_heads), (16, 1e-6, 4));
    assert!(r.notes.iter().any(|n| n.contains("rms_norm_eps")), "{:?}", r.notes);
    assert_eq!(arch(Model::family("qwen3").unset("head_dim")).arch.head_dim, 128);
}

#[test]
fn bad_numbers_are_named() {
    refused(Model::tiny().unset("hidden_size"), &["'hidden_size' is missing"]);
    refused(Model::tiny().set("hidden_size", -1), &["'hidden_size' is -1"]);
    refused(Model::tiny().set("num_hidden_layers", u64::MAX), &["'num_hidden_layers'", "1 to 4096"]);
    refused(Model::tiny().set("vocab_size", "264"), &["'vocab_size' is \"264\""]);
    refused(Model::tiny().set("num_key_value_heads", 3), &["no multiple"]);
    refused(Model::tiny().set("head_dim", 15), &["odd"]);
    refused(Model::tiny().set("num_attention_heads", 6).unset("head_dim"), &["hidden_size 64", "head_dim"]);
    refused(Model::tiny().set("rms_norm_eps", 0), &["rms_norm_eps"]);
    refused(Model::tiny().set("hidden_act", "gelu"), &["hidden_act 'gelu'", "silu"]);
    refused(Model::tiny().set("tie_word_embeddings", "yes"), &["tie_word_embeddings"]);
    assert!(read(&json!([]), None).is_err());
}

#[test]
fn unknown_families_list_what_is_supported() {
    refused(Model::tiny().set("model_type", "mamba"), &["'mamba'", "llama, mistral, qwen2, qwen3"]);
    refused(Model::tiny().unset("model_type"), &["model_type", "supported"]);
    for moe in ["deepseek_v3", "jetmoe", "dbrx"] {
        refused(Model::tiny().set("model_type", moe), &["mixture of experts", moe]);
    }
    refused(Model::tiny().set("num_local_experts", 8), &["mixture of experts", "num_local_experts"]);
}

#[test]
fn families_for_planning_are_read_with_their_defaults() {
    let gemma = |m: Model| arch(m.set("model_type", "gemma3_text").set("hidden_act", "gelu_pytorch_tanh"));
    let r = gemma(Model::tiny().unset("head_dim").unset("vocab_size").unset("tie_word_embeddings"));
    assert_eq!((r.arch.family, r.arch.head_dim, r.arch.vocab, r.arch.tied), (Family::Planned, 256, 262_208, true));
    assert_eq!(r.plan_only.as_deref(), Some("gemma3: this version can plan it, not train it"));
    assert!(r.notes.iter().any(|n| n.contains("no vocab_size: 262208 taken, gemma3's default")), "{:?}", r.notes);
    let r = arch(Model::tiny().set("model_type", "mixtral").set("num_local_experts", 8).set("num_experts_per_tok", 2));
    assert_eq!(r.arch.experts, Some(Experts { count: 8, active: 2, intermediate: 128, shared: 0 }));
    let qwen2 = Model::tiny().set("model_type", "qwen2_moe").set("num_experts", 60).set("moe_intermediate_size", 32);
    refused(qwen2.clone(), &["'num_experts_per_tok' is missing"]);
    refused(qwen2.clone().set("num_experts_per_tok", 61), &["num_experts_per_tok", "1 to 60"]);
    let r = arch(qwen2.set("num_experts_per_tok", 4).set("shared_expert_intermediate_size", 96));
    assert_eq!(r.arch.experts, Some(Experts { count: 60, active: 4, intermediate: 32, shared: 96 }));
    let packed = json!({ "quant_method": "mxfp4" });
    refused(Model::tiny().set("quantization_config", packed), &["mxfp4", "gpt_oss"]);
}

#[test]
fn rope_rules_in_both_spellings() {
    let scaling = |value: Value| arch(Model::tiny().set("rope_scaling", value)).arch.rope.scaling;
    assert_eq!(scaling(json!({ "type": "linear", "factor": 2.0 })), RopeScaling::Linear { factor: 2.0 });
    assert_eq!(scaling(json!({ "rope_type": "default" })), RopeScaling::None);
    let llama3 = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192 });
    let want = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    assert_eq!(scaling(llama3.clone()), want);
    let mut new = llama3.clone();
    new["rope_theta"] = json!(500_000.0);
    let r = arch(Model::tiny().unset("rope_theta").set("rope_parameters", new.clone()));
    assert_eq!((r.arch.rope.scaling, r.arch.rope.theta), (want.clone(), 500_000.0));
    assert!(r.notes.is_empty(), "{:?}", r.notes);
    let both = Model::tiny().set("rope_parameters", new).set("rope_scaling", json!({ "type": "linear", "factor": 2 }));
    refused(both, &["rope_parameters and rope_scaling disagree", "remove the other"]);
}

#[test]
fn case_fo_73_a_rope_block_is_understood_to_the_last_key_or_refused() {
    let own = json!({ "type": "linear", "factor": 2.0, "rope_theta": 500.0 });
    let r = arch(Model::tiny().set("rope_scaling", own.clone()));
    assert_eq!((r.arch.rope.theta, r.arch.rope.scaling), (500.0, RopeScaling::Linear { factor: 2.0 }));
    assert!(r.notes.iter().any(|n| n.contains("500 is used")), "{:?}", r.notes);
    let block = |value: Value| Model::tiny().set("rope_parameters", value);
    let linear = json!({ "rope_type": "linear", "factor": 2.0 });
    for value in [
        json!({ "full_attention": linear, "sliding_attention": null }),
        json!({ "full_attention": null, "sliding_attention": null }),
        json!({ "full_attention": linear, "rope_theta": 10000.0 }),
    ] {
        refused(block(value), &["per layer type"]);
    }
    for key in ["attention_factor", "mrope_section", "beta_fast", "factro", "low_freq_factor"] {
        for rule in [json!({ "rope_type": "default" }), linear.clone()] {
            let mut value = rule;
            value[key] = json!(2);
            refused(block(value.clone()), &[key, "does not read"]);
            value[key] = Value::Null;
            arch(block(value));
        }
    }
    refused(block(json!({ "rope_type": "linear", "type": "default", "factor": 2.0 })), &["rope_type", "type is"]);
    let both = |a: Value, b: Value| Model::tiny().set("rope_parameters", a).set("rope_scaling", b);
    let with = |factor: f64| json!({ "rope_type": "linear", "factor": factor });
    refused(both(with(2.0), with(4.0)), &["disagree"]);
    refused(both(own.clone(), with(2.0)).set("rope_theta", 1000.0), &["disagree"]);
    assert_eq!(arch(both(with(2.0), with(2.0))).arch.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    refused(Model::tiny().set("rope_scaling", json!({ "partial_rotary_factor": 0.5 })), &["partial_rotary_factor"]);
}

#[test]
fn case_fo_89_many_end_tokens_take_no_time_to_read() {
    let ids: Vec<u32> = (0..400_000).collect();
    let begun = std::time::Instant::now();
    let read = read(&Model::tiny().config(), Some(&json!({ "eos_token_id": ids }))).unwrap();
    assert_eq!(read.arch.special.eos.len(), 400_000);
    assert!(begun.elapsed().as_secs() < 20, "{:?}: comparing each with each takes minutes", begun.elapsed());
}

#[test]
fn case_ck_24_a_rope_rule_this_program_lacks_refuses_by_name() {
    for rule in ["yarn", "dynamic", "longrope", "mrope"] {
        let value = json!({ "rope_type": rule, "factor": 4.0 });
        refused(Model::tiny().set("rope_scaling", value), &[rule, "supported: default, linear, llama3"]);
        refused(Model::tiny().set("rope_scaling", json!({ "type": rule })), &[rule]);
    }
    refused(
        Model::tiny().set("rope_scaling", json!({ "rope_type": "linear" })),
        &["'linear' needs 'factor'", "nothing"],
    );
    let reversed = json!({ "rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
        "original_max_position_embeddings": 8192 });
    refused(Model::tiny().set("rope_scaling", reversed), &["high_freq_factor 1", "low_freq_factor 4"]);
    refused(Model::tiny().set("rope_theta", 0), &["rope_theta"]);
    refused(Model::tiny().set("rope_scaling", "linear"), &["rope_scaling", "not an object"]);
    refused(Model::tiny().set("partial_rotary_factor", 0.5), &["partial_rotary_factor 0.5"]);
    let per_layer = json!({ "full_attention": { "rope_theta": 1 }, "sliding_attention": { "rope_theta": 2 } });
    refused(Model::tiny().set("rope_parameters", per_layer), &["per layer type"]);
}

#[test]
fn case_nu_11_which_layers_have_a_window() {
    let windows = |m: Model| arch(m).arch.windows;
    let w = Some(8);
    let mistral = |v: Value| Model::family("mistral").set("sliding_window", v);
    assert_eq!(windows(mistral(json!(8))), [w; 4]);
    assert_eq!(windows(mistral(json!(0))), [None; 4]);
    assert_eq!(windows(mistral(Value::Null)), [None; 4]);
    assert_eq!(windows(Model::family("mistral").unset("sliding_window")), [Some(4096); 4]);
    for family in ["qwen2", "qwen3"] {
        let qwen = Model::family(family).set("sliding_window", 8).set("max_window_layers", 2);
        assert_eq!(windows(qwen.clone()), [None; 4], "use_sliding_window is absent");
        assert_eq!(windows(qwen.clone().set("use_sliding_window", false)), [None; 4]);
        let used = qwen.set("use_sliding_window", true);
        assert_eq!(windows(used.clone()), [None, None, w, w]);
        assert_eq!(windows(used.clone().set("max_window_layers", 0)), [w; 4]);
        let types = json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]);
        assert_eq!(windows(used.clone().set("layer_types", types)), [w, None, None, w]);
        refused(used.clone().set("layer_types", json!(["full_attention"])), &["layer_types", "4 layers"]);
        let odd = json!(["full_attention", "full_attention", "full_attention", "linear_attention"]);
        refused(used.set("layer_types", odd), &["linear_attention"]);
    }
    let r = arch(Model::tiny().set("sliding_window", 8));
    assert_eq!(r.arch.windows, [None; 4]);
    assert!(r.notes.iter().any(|n| n.contains("sliding_window is ignored")), "{:?}", r.notes);
}

#[test]
fn end_tokens_of_both_configs_are_joined() {
    let config = Model::tiny().set("eos_token_id", json!([258, 260])).set("bos_token_id", -1).config();
    let r = read(&config, Some(&json!({ "eos_token_id": [260, 259] }))).unwrap();
    assert_eq!(r.arch.special, SpecialIds { bos: None, eos: vec![258, 260, 259], pad: Some(256) });
    let r = read(&Model::tiny().unset("eos_token_id").config(), None).unwrap();
    assert!(r.notes.iter().any(|n| n.contains("eos_token_id")), "{:?}", r.notes);
}

#[test]
fn a_nested_text_config_is_the_one_that_counts() {
    let outer = json!({ "model_type": "x", "hidden_size": 1, "vision_config": {}, "tie_word_embeddings": true });
    let r = arch(Model::tiny().unset("tie_word_embeddings").nested(outer));
    assert_eq!((r.arch.hidden, r.arch.tied, r.tower), (64, true, Some("vision_config")));
}

/// Every key of the four config classes and their base in transformers 5.19, each at its default or a value like it.
fn all_keys(family: &str) -> Model {
    let mut m = Model::family(family);
    for (key, value) in [
        ("transformers_version", json!("5.19.0")),
        ("architectures", json!(["LlamaForCausalLM"])),
        ("output_hidden_states", json!(true)),
        ("return_dict", json!(true)),
        ("dtype", json!("bfloat16")),
        ("torch_dtype", json!("bfloat16")),
        ("chunk_size_feed_forward", json!(0)),
        ("is_encoder_decoder", json!(false)),
        ("id2label", json!({"0": "LABEL_0"})),
        ("label2id", json!({"LABEL_0": 0})),
        ("problem_type", json!("regression")),
        ("per_layer_config", json!({})),
        ("tie_last_hidden_states", json!(true)),
        ("initializer_range", json!(0.02)),
        ("use_cache", json!(true)),
        ("pretraining_tp", json!(1)),
        ("attention_dropout", json!(0.0)),
        ("mlp_bias", json!(false)),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 10000.0})),
        ("use_sliding_window", json!(false)),
        ("max_window_layers", json!(28)),
        ("_name_or_path", json!("o/n")),
        ("temperature", json!(0.6)),
    ] {
        m = m.set(key, value);
    }
    m
}

#[test]
fn every_known_key_is_used_idle_refused_or_told() {
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        let r = arch(all_keys(family));
        assert!(!r.notes.iter().any(|n| n.contains("aren't used")), "{family}: {:?}", r.notes);
        let r = arch(all_keys(family).set("attention_dropout", 0.1).set("logit_scale", 0.5));
        let told = "config.json has keys that aren't used here: 'attention_dropout', 'logit_scale'";
        assert_eq!(r.notes.iter().filter(|n| *n == told).count(), 1, "{family}: {:?}", r.notes);
    }
    refused(Model::tiny().set("is_encoder_decoder", true), &["'is_encoder_decoder' = true"]);
    refused(Model::tiny().set("per_layer_config", json!({"0": {"hidden_act": "gelu"}})), &["'per_layer_config'"]);
    refused(Model::tiny().set("pruned_heads", json!({"0": [1]})), &["'pruned_heads'"]);
}

#[test]
fn a_class_with_another_head_is_told() {
    let noted = |class: &str| arch(Model::tiny().set("architectures", json!([class]))).notes;
    assert!(noted("LlamaForSequenceClassification").iter().any(|n| n.contains("without that class's own head")));
    for class in ["LlamaForCausalLM", "LlamaModel", "LlavaForConditionalGeneration"] {
        assert!(noted(class).is_empty(), "{class}");
    }
    assert!(arch(Model::tiny().set("architectures", Value::Null)).notes.is_empty());
}
