//! Cases about what a model is made of: heads, prefixes, biases, types, experts, quantisation, vocabulary.

use super::{dir, noted, open, refused};
use crate::support::fixture::{Model, Raw, Tensor, put, safetensors};
use blockstream_tui::checkpoint::Role;
use blockstream_tui::config::{RunConfig, load};
use blockstream_tui::{device, plan};
use serde_json::json;

/// A config that ties, beside a stored head with the embedding's values of a model of `seed`.
fn tied_with_a_head(seed: u64) -> Model {
    let raw = Raw { seed, ..Raw::default() };
    let data = safetensors(&[Tensor::new("model.embed_tokens.weight", "BF16", &[264, 64])], &raw);
    let data = data[data.len() - 264 * 128..].to_vec();
    let model = Model::tiny().set("tie_word_embeddings", true).edit(move |t| {
        t.push(Tensor::new("lm_head.weight", "BF16", &[264, 64]).with_data(data.clone()));
    });
    assert_eq!(model.values("lm_head.weight"), Model::tiny().seed(seed).values("model.embed_tokens.weight"));
    model
}

#[test]
fn case_ck_15_tied_head_absent_or_stored() {
    let d = dir();
    let c = open(&Model::tiny().set("tie_word_embeddings", true).write(d.path()));
    assert_eq!((c.head, c.tensors.len(), c.unused.len()), (None, 38, 0));
    assert_eq!(c.head_tensor().name, "model.embed_tokens.weight");
    let params = c.params();
    let d = dir();
    let c = open(&tied_with_a_head(1).write(d.path()));
    assert_eq!((c.head, c.params()), (None, params), "the same weights twice are counted once");
    noted(&c, &["'lm_head.weight'", "ignored", "tie_word_embeddings"]);
    let d = dir();
    Model::tiny().edit(|t| t.retain(|t| t.name != "lm_head.weight")).write(d.path());
    refused(d.path(), &["'lm_head.weight' is missing", "tie_word_embeddings"]);
}

#[test]
fn case_fo_13_a_stored_head_that_differs_is_the_head() {
    let d = dir();
    let alone = open(&Model::tiny().set("tie_word_embeddings", true).write(d.path())).params();
    let d = dir();
    // As transformers 5 decides: another head is stored, so nothing is tied.
    let c = open(&tied_with_a_head(9).write(d.path()));
    assert!(!c.arch.tied && c.head_tensor().name == "lm_head.weight");
    assert_eq!(c.params(), alone + 264 * 64, "both tables count");
    noted(&c, &["'lm_head.weight' differs from the embedding", "it is used"]);
}

#[test]
fn case_ck_17_text_stack_below_another_prefix() {
    let outer = json!({ "architectures": ["XForConditionalGeneration"], "model_type": "x", "vision_config": {} });
    for prefix in ["model.language_model.", "language_model.model."] {
        let d = dir();
        let c = open(&Model::tiny().prefix(prefix).nested(outer.clone()).write(d.path()));
        assert_eq!((c.prefix.as_str(), c.blocks.len(), c.unused.len()), (prefix, 4, 0));
        assert!(c.block_tensor(3, Role::Down).unwrap().name.starts_with(prefix));
    }
    let d = dir();
    Model::tiny().prefix("encoder.stack.").write(d.path());
    refused(d.path(), &["no tensor of a decoder block found", "'encoder.stack.embed_tokens.weight'"]);
}

#[test]
fn case_ck_18_vision_tower_absent_or_carried() {
    let outer = json!({ "model_type": "x", "vision_config": { "depth": 1 } });
    let model = Model::tiny().prefix("model.language_model.").nested(outer);
    let d = dir();
    noted(&open(&model.write(d.path())), &["vision_config", "no such tensors are here", "text only"]);
    let d = dir();
    let model = model.edit(|t| t.push(Tensor::new("model.visual.blocks.0.attn.qkv.weight", "BF16", &[192, 64])));
    let c = open(&model.write(d.path()));
    noted(&c, &["1 tensor,", "24.6 kB", "carried, frozen, not streamed", "text only"]);
    assert_eq!(c.unused.len(), 1);
    assert!(c.blocks.iter().all(|b| b.tensors.len() == 9));
    // No adapter target finds it: targets are roles of blocks.
    let attached = c.blocks.iter().flat_map(|b| &b.tensors).filter(|t| t.role.lora_target().is_some());
    assert!(attached.clone().all(|t| t.tensor != c.unused[0]));
    assert_eq!(attached.count(), 4 * 7);
}

#[test]
fn case_ck_19_head_dim_is_the_configs() {
    let d = dir();
    let c = open(&Model::tiny().set("head_dim", 32).write(d.path()));
    assert_eq!(c.block_tensor(0, Role::Q).unwrap().shape, [128, 64]);
    assert_eq!(c.block_tensor(0, Role::O).unwrap().shape, [64, 128]);
    assert_eq!(c.params(), c.tensors.iter().map(|t| t.elements()).sum::<u64>());
    // The same weights with the square head_dim: the headers win the argument.
    let mut config = Model::tiny().config();
    config["head_dim"] = json!(null);
    put(&d.path().join("config.json"), config.to_string());
    let c = open(d.path());
    assert_eq!(c.arch.head_dim, 32);
    noted(&c, &["no head_dim: 32"]);
    config["head_dim"] = json!(16);
    put(&d.path().join("config.json"), config.to_string());
    refused(d.path(), &["[128, 64]", "[64, 64]", "head_dim"]);
}

#[test]
fn case_ck_21_rope_parameters_of_transformers_5() {
    let at = |m: Model| {
        let d = dir();
        open(&m.write(d.path()))
    };
    let a = at(Model::tiny().set("rope_theta", 1_000_000.0));
    let new = |theta: f64| json!({ "rope_type": "default", "rope_theta": theta });
    let b = at(Model::tiny().unset("rope_theta").unset("rope_scaling").set("rope_parameters", new(1e6)));
    assert_eq!(a.arch.rope, b.arch.rope);
    assert_eq!(a.arch.rope.inv_freq(16), b.arch.rope.inv_freq(16));
    assert!((a.arch.rope.inv_freq(16)[1] - 1e6f64.powf(-0.125)).abs() < 1e-12);
    assert!(b.notes.is_empty(), "{:?}", b.notes);
    let c = at(Model::tiny().set("rope_theta", 5e5).set("rope_parameters", new(1e6)));
    assert_eq!(c.arch.rope, a.arch.rope);
    noted(&c, &["500000", "1000000 is used"]);
    let none = at(Model::tiny().unset("rope_theta"));
    assert_eq!(none.arch.rope.theta, 10_000.0);
    noted(&none, &["rope_theta", "10000"]);
}

#[test]
fn case_ck_26_presence_in_the_headers_decides_biases() {
    let d = dir();
    let c = open(&Model::family("qwen2").write(d.path()));
    let roles: Vec<Role> = c.blocks[1].tensors.iter().map(|t| t.role).collect();
    assert!([Role::QBias, Role::KBias, Role::VBias].iter().all(|r| roles.contains(r)), "{roles:?}");
    // 64·64 + 2·32·64 + 64·64 + 3·128·64 + 2·64 + 64 + 2·32 values of two bytes.
    assert_eq!(c.blocks[1].bytes.0, 2 * (4096 + 4096 + 4096 + 24_576 + 128 + 128));
    let d = dir();
    let o_bias = |t: &mut Vec<Tensor>| {
        t.extend((0..4).map(|i| Tensor::new(format!("model.layers.{i}.self_attn.o_proj.bias"), "BF16", &[64])));
    };
    let c = open(&Model::tiny().set("attention_bias", true).edit(o_bias).write(d.path()));
    assert_eq!(c.block_tensor(3, Role::OBias).unwrap().shape, [64]);
    let d = dir();
    Model::family("qwen2").edit(o_bias).write(d.path());
    refused(d.path(), &["'model.layers.0.self_attn.o_proj.bias'", "qwen2 block has no place for it"]);
    let d = dir();
    Model::family("qwen2").edit(|t| t.retain(|t| t.name != "model.layers.2.self_attn.k_proj.bias")).write(d.path());
    refused(d.path(), &["'model.layers.2.self_attn.k_proj.bias'"]);
}

#[test]
fn case_ck_27_fp8_refuses_with_or_without_scale_and_config() {
    let fp8 = |t: &mut Vec<Tensor>| {
        let q = t.iter_mut().find(|t| t.name.ends_with("layers.0.self_attn.q_proj.weight")).unwrap();
        q.dtype = "F8_E4M3".into();
    };
    let scale = |t: &mut Vec<Tensor>| {
        let name = "model.layers.0.self_attn.q_proj.weight_scale_inv";
        t.push(Tensor::new(name, "F32", &[1, 1]).with_data(0.5f32.to_le_bytes().to_vec()));
    };
    let config = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
    let announced = Model::tiny().set("quantization_config", config);
    // A weight with its scale can be counted, so it can be planned; the bytes are those stored.
    for model in [announced.clone().edit(fp8).edit(scale), Model::tiny().edit(fp8).edit(scale)] {
        let d = dir();
        let c = open(&model.write(d.path()));
        assert!(c.plan_only.as_deref().unwrap().starts_with("FP8 not supported: convert to bf16"), "{:?}", c.plan_only);
        assert_eq!((c.blocks[0].bytes.0, c.blocks[1].bytes.0), (73_984 - 4096 + 4, 73_984));
        assert_eq!(c.params(), Model::tiny().bytes() / 2, "a scale is no parameter");
        let e = c.runnable().unwrap_err().to_string();
        assert!(e.contains("FP8 not supported: convert to bf16"), "{e}");
    }
    // A weight or a scale alone would be read as something else.
    let orphan = |t: &mut Vec<Tensor>| {
        let name = "model.layers.0.self_attn.k_proj.weight_scale_inv";
        t.push(Tensor::new(name, "F32", &[1, 1]).with_data(0.5f32.to_le_bytes().to_vec()));
    };
    let all = [
        (announced.clone().edit(fp8), "no scale tensor for it is stored"),
        (Model::tiny().edit(fp8), "no scale tensor for it is stored"),
        (Model::tiny().edit(scale), "is a scale of quantised weights"),
        (Model::tiny().edit(fp8).edit(scale).edit(orphan), "k_proj.weight_scale_inv' is a scale"),
        (announced, "no weight is stored so"),
    ];
    for (model, word) in all {
        let d = dir();
        model.write(d.path());
        refused(d.path(), &["FP8 not supported", "convert to bf16", word]);
    }
    for (dtype, bytes) in [("F4", 2048), ("F6_E2M3", 3072), ("X9", 4096)] {
        let d = dir();
        let odd = move |t: &mut Vec<Tensor>| {
            let begin = t[0].bytes();
            t[1] = Tensor::new(t[1].name.clone(), dtype, &[64, 64]).at(begin, begin + bytes);
        };
        Model::tiny().edit(odd).write(d.path());
        refused(d.path(), &["q_proj.weight", dtype, "not supported"]);
    }
}

#[test]
fn case_ck_28_each_tensor_has_its_own_type() {
    let d = dir();
    let model = Model::tiny().edit(|tensors| {
        for t in tensors {
            if t.name.contains("norm") {
                t.dtype = "F32".into();
            } else if t.name.contains("o_proj") {
                t.dtype = "F16".into();
            }
        }
    });
    let c = open(&model.write(d.path()));
    assert_eq!(c.block_tensor(0, Role::InputNorm).unwrap().dtype.name(), "F32");
    assert_eq!(c.block_tensor(0, Role::O).unwrap().dtype.name(), "F16");
    assert_eq!(c.block_tensor(0, Role::Q).unwrap().dtype.name(), "BF16");
    let sum: u64 = c.blocks[0].tensors.iter().map(|t| c.tensors[t.tensor].bytes).sum();
    assert_eq!((c.blocks[0].bytes.0, sum), (2 * 36_864 + 4 * 128, 2 * 36_864 + 4 * 128));
    assert_eq!(c.total_bytes().0, 363_648 + 2 * 9 * 64);
}

#[test]
fn case_ck_30_vocabulary_rows_against_the_tokenizer() {
    let d = dir();
    let c = open(&Model::tiny().set("vocab_size", 272).write(d.path()));
    assert_eq!((c.arch.vocab, c.tensors[c.embed].shape[0]), (272, 272));
    noted(&c, &["272 rows", "264 token ids", "8 spare rows"]);
    let d = dir();
    Model::tiny().set("vocab_size", 260).write(d.path());
    refused(d.path(), &["highest token id is 263", "260 rows"]);
}

#[test]
fn case_ck_31_experts_refuse_by_name() {
    let d = dir();
    let experts = |t: &mut Vec<Tensor>| {
        t.retain(|t| !t.name.contains(".0.mlp."));
        t.push(Tensor::new("model.layers.0.mlp.experts.gate_up_proj", "BF16", &[4, 256, 64]));
        t.push(Tensor::new("model.layers.0.mlp.experts.down_proj", "BF16", &[4, 64, 128]));
        t.push(Tensor::new("model.layers.0.mlp.gate.weight", "BF16", &[4, 64]));
    };
    Model::tiny().edit(experts).write(d.path());
    refused(d.path(), &["mixture of experts", "'model.layers.0.mlp.experts.gate_up_proj'"]);
    let d = dir();
    Model::tiny().set("model_type", "deepseek_v3").write(d.path());
    refused(d.path(), &["mixture of experts", "deepseek_v3"]);
}

/// The base fixture with 4 experts a block, 2 of them active: in one tensor per projection, or one by one.
fn moe(fused: bool) -> Model {
    Model::tiny()
        .set("model_type", "qwen3_moe")
        .set("num_experts", 4)
        .set("num_experts_per_tok", 2)
        .set("moe_intermediate_size", 128)
        .edit(move |t| {
            t.retain(|t| !t.name.contains(".mlp."));
            for i in 0..4 {
                let mut add = |name: String, shape: &[u64]| {
                    t.push(Tensor::new(format!("model.layers.{i}.mlp.{name}"), "BF16", shape));
                };
                add("gate.weight".into(), &[4, 64]);
                if fused {
                    add("experts.gate_up_proj".into(), &[4, 256, 64]);
                    add("experts.down_proj".into(), &[4, 64, 128]);
                    continue;
                }
                for e in 0..4 {
                    add(format!("experts.{e}.gate_proj.weight"), &[128, 64]);
                    add(format!("experts.{e}.up_proj.weight"), &[128, 64]);
                    add(format!("experts.{e}.down_proj.weight"), &[64, 128]);
                }
            }
        })
}

#[test]
fn case_ck_31_experts_can_be_planned_with_adapters_on_attention_only() {
    let machine = device::machine(&config(&[("machine", "profiles/h200.toml")]), None).unwrap();
    for fused in [true, false] {
        let d = dir();
        let c = open(&moe(fused).write(d.path()));
        assert_eq!(c.blocks[0].bytes.0, 2 * (12_288 + 128 + 4 * 64 + 4 * 3 * 128 * 64));
        let e = plan::plan(&c, &machine, &config(&[("lora.targets", "gate_proj,up_proj,down_proj")])).unwrap_err();
        for word in ["'gate_proj' matches 0 of 4 blocks", "4 experts", "attention only", "q_proj,k_proj,v_proj,o_proj"]
        {
            assert!(e.to_string().contains(word), "'{word}' is not in: {e}");
        }
        let report = plan::plan(&c, &machine, &config(&[("lora.targets", "q_proj,o_proj")])).unwrap();
        assert!(
            report.notes.iter().any(|n| n.contains("LoRA adapters in all layers, on q_proj, o_proj")),
            "{:?}",
            report.notes
        );
        assert_eq!(report.modes.lora.verdict, plan::Verdict::Ram);
    }
    let d = dir();
    moe(false).edit(|t| t.retain(|t| !t.name.contains("layers.2.mlp.experts.3."))).write(d.path());
    refused(d.path(), &["layer 2: experts '3' are incomplete"]);
    let d = dir();
    let dense = |t: &mut Vec<Tensor>| t.retain(|t| !t.name.contains("layers.3.mlp"));
    moe(true).edit(dense).write(d.path());
    refused(d.path(), &["layer 3 has no feed-forward weights"]);
}

pub(super) fn config(pairs: &[(&str, &str)]) -> RunConfig {
    let mut config = RunConfig::default();
    for (key, value) in pairs {
        load::set(&mut config, key, value).unwrap_or_else(|e| panic!("{e}"));
    }
    config
}

#[test]
fn case_ck_32_prequantised_by_config_or_by_tensors() {
    let gptq = |t: &mut Vec<Tensor>| {
        t.retain(|t| t.name != "model.layers.0.self_attn.q_proj.weight");
        for (name, dtype, shape) in
            [("qweight", "I32", [8u64, 64]), ("scales", "F16", [1, 64]), ("qzeros", "I32", [1, 8])]
        {
            t.push(Tensor::new(format!("model.layers.0.self_attn.q_proj.{name}"), dtype, &shape));
        }
    };
    let bnb = |t: &mut Vec<Tensor>| {
        let q = t.iter_mut().find(|t| t.name == "model.layers.0.self_attn.q_proj.weight").unwrap();
        *q = Tensor::new(q.name.clone(), "U8", &[2048, 1]);
        t.push(Tensor::new("model.layers.0.self_attn.q_proj.weight.absmax", "F32", &[64]));
    };
    let awq = |t: &mut Vec<Tensor>| {
        t.retain(|t| t.name != "model.layers.0.self_attn.k_proj.weight");
        t.push(Tensor::new("model.layers.0.self_attn.k_proj.qweight", "I32", &[64, 4]));
        t.push(Tensor::new("model.layers.0.self_attn.k_proj.qzeros", "I32", &[1, 4]));
    };
    let config = json!({ "quant_method": "gptq", "bits": 4 });
    let bnb_config = json!({ "load_in_4bit": true, "quant_method": "bitsandbytes" });
    let all = [
        (Model::tiny().set("quantization_config", config).edit(gptq), "(gptq 4-bit)"),
        (Model::tiny().edit(gptq), "(gptq 4-bit)"),
        (Model::tiny().edit(awq), "(awq 4-bit)"),
        (Model::tiny().edit(bnb), "(bitsandbytes 4-bit)"),
        (Model::tiny().set("quantization_config", bnb_config), "(bitsandbytes 4-bit)"),
    ];
    for (i, (model, word)) in all.into_iter().enumerate() {
        let d = dir();
        model.write(d.path());
        let words = format!("Pre-quantised {word}: not trainable here; use the 16-bit original");
        let e = refused(d.path(), &[&words]);
        assert_eq!(e.contains("0.self_attn."), (1..4).contains(&i), "the tensor that shows it is named: {e}");
    }
}

#[test]
fn case_ck_33_no_tokenizer_still_opens_for_planning() {
    let d = dir();
    Model::tiny().write(d.path());
    std::fs::remove_file(d.path().join("tokenizer.json")).unwrap();
    put(&d.path().join("tokenizer.model"), [7u8, 1, 200, 0]);
    noted(&open(d.path()), &["no tokenizer.json", "'tokenizer.model'", "'tokenizer_config.json'", "training"]);
    let e = blockstream_tui::checkpoint::needs_tokenizer(d.path()).unwrap_err().to_string();
    for word in ["no tokenizer.json", "'tokenizer.model', 'tokenizer_config.json'", "AutoTokenizer", "save_pretrained"]
    {
        assert!(e.contains(word), "'{word}' is not in: {e}");
    }
    std::fs::remove_file(d.path().join("tokenizer.model")).unwrap();
    let e = blockstream_tui::checkpoint::needs_tokenizer(d.path()).unwrap_err().to_string();
    assert!(e.contains("copy the tokenizer.json of the same model"), "{e}");
}
