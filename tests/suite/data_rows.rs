//! The path of a row through the public interface: from a file to the micro-batches of a step.

#![expect(clippy::unwrap_used, reason = "a fixture that can't be written fails its test")]

use blockstream_tui::checkpoint::{Activation, Arch, Checkpoint, Family, Rope, RopeScaling, SpecialIds};
use blockstream_tui::config::RunConfig;
use blockstream_tui::data::{self, Row, Sampler, collate::IGNORE};
use serde_json::json;
use std::path::Path;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A byte-level tokenizer: token id = byte value, 256 `<|im_start|>`, 257 `<|im_end|>`.
fn write_tokenizer(dir: &Path) {
    let mut next = 255u32;
    let vocab: serde_json::Map<_, _> = (0..=255u8)
        .map(|byte| {
            let c = match byte {
                33..=126 | 161..=172 | 174..=255 => char::from(byte),
                _ => {
                    next += 1;
                    char::from_u32(next).unwrap()
                }
            };
            (c.to_string(), byte.into())
        })
        .collect();
    let added = ["<|im_start|>", "<|im_end|>"].iter().enumerate().map(|(i, s)| {
        json!({"id": 256 + i, "content": s, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
    });
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": level, "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}});
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "chat_template": TEMPLATE});
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
}

fn checkpoint(dir: &Path) -> Checkpoint {
    Checkpoint {
        dir: dir.to_path_buf(),
        name: "tiny".into(),
        hub_id: None,
        revision: None,
        arch: Arch {
            family: Family::Llama,
            hidden: 64,
            intermediate: 128,
            n_layers: 1,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            vocab: 258,
            norm_eps: 1e-5,
            rope: Rope { theta: 1e4, scaling: RopeScaling::None },
            tied: true,
            act: Activation::Silu,
            windows: vec![None],
            max_positions: 512,
            special: SpecialIds { bos: None, eos: vec![257], pad: Some(257) },
            experts: None,
        },
        files: Vec::new(),
        tensors: Vec::new(),
        prefix: "model.".into(),
        class_prefix: "model.".into(),
        embed: 0,
        final_norm: 0,
        head: None,
        blocks: Vec::new(),
        unused: Vec::new(),
        notes: Vec::new(),
        not_here: false,
        plan_only: None,
        fingerprint: String::new(),
    }
}

#[test]
fn rows_flow_from_a_file_to_the_batches_of_a_step() {
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path());
    let file = dir.path().join("chat.jsonl");
    let rows: Vec<_> = (0..12)
        .map(|i| {
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a".repeat(i + 1)}]})
                .to_string()
        })
        .collect();
    std::fs::write(&file, rows.join("\n")).unwrap();
    let mut config = RunConfig::default();
    config.data.files = vec![file];
    config.data.eval_split = 0.25;
    let model = checkpoint(dir.path());
    let set = data::prepare(&config, &model, &mut |_| {}).unwrap();
    assert_eq!((set.train.len(), set.eval.len()), (9, 3));

    // Resumed on another day with the recorded date, the rows are the same.
    let again = data::prepare_dated(&config, &model, Some(&set.facts.template_date), &mut |_| {}, &|| Ok(())).unwrap();
    assert_eq!((&again.train, &again.eval, &again.facts), (&set.train, &set.eval, &set.facts));
    assert!(data::prepare_dated(&config, &model, Some("yesterday"), &mut |_| {}, &|| Ok(())).is_err());

    let sampler = Sampler { n_rows: set.train.len(), rows_per_step: 3, seed: 7 };
    let (mut seen, mut trained) = (Vec::new(), 0);
    for step in 0..3 {
        let rows: Vec<&Row> =
            sampler.rows(step).into_iter().inspect(|r| seen.push(*r)).map(|r| &set.train[r]).collect();
        for batch in data::micro_batches(&rows, 2) {
            trained += batch.trained_tokens() as u64;
            assert_eq!(batch.ids.len(), batch.rows * batch.len);
            // pad == eos in this tokenizer; each row's own end token is still a label, its padding is not.
            assert_eq!(batch.labels.iter().filter(|l| **l == 257).count(), batch.rows);
            assert!((0..batch.rows).all(|r| batch.labels[(r + 1) * batch.len - 1] == IGNORE));
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..9).collect::<Vec<_>>());
    assert_eq!(trained, set.facts.trained_tokens);
}

#[test]
fn a_row_can_be_inspected() {
    let dir = tempfile::tempdir().unwrap();
    write_tokenizer(dir.path());
    let file = dir.path().join("rows.json");
    std::fs::write(&file, r#"[{"instruction": "i", "input": "", "output": "o"}]"#).unwrap();
    let model = checkpoint(dir.path());
    let seen = data::inspect(&file, 1, &RunConfig::default(), (&model).into(), data::Date::from_unix(0)).unwrap();
    assert_eq!(seen.rendered, "<|im_start|>user\ni<|im_end|>\n<|im_start|>assistant\no<|im_end|>\n");
    assert_eq!(
        (seen.format.as_str(), seen.trained_tokens, seen.bos.as_str(), seen.eos.as_str()),
        ("alpaca", 2, "none", "template")
    );
    let text = seen.to_text();
    assert!(
        text.lines().any(|l| l.ends_with("+     111  o")) && text.lines().any(|l| l.ends_with(".     105  i")),
        "{text}"
    );
}
