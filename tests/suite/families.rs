//! Parity with transformers and PEFT for each family: logits, loss and every LoRA gradient, from golden files.
//!
//! Tolerances are relative to the largest reference value; an independent f64 forward differs from the goldens by
//! up to 5e-6 in logits and 2e-6 in gradients, so 2e-5 leaves room for another kernel and none for another formula.

use crate::golden::{Golden, assert_close, dir};
use crate::walk::{How, host, open, walk};
use blockstream_tui::checkpoint::adapter;
use blockstream_tui::config::LoraSection;
use blockstream_tui::event::TierName;
use blockstream_tui::model::AdapterLayout;
use blockstream_tui::train::StepContext;
use blockstream_tui::train::optim::{self, AdamW};
use std::collections::BTreeSet;
use std::path::Path;
use tch::Device;

const TOLERANCE: f32 = 2e-5;
const STEP: StepContext = StepContext { step: 0, seed: 0, more: false };

fn lora() -> LoraSection {
    LoraSection { r: 4, alpha: 8.0, targets: vec!["all-linear".into()], ..LoraSection::default() }
}

/// Base and adapted logits, both losses, every gradient.
fn check(case: &str) {
    let golden = Golden::load(case, "golden.safetensors");
    let checkpoint = open(&dir(case));
    let layout = AdapterLayout::new(&checkpoint, &lora()).unwrap();
    let batch = golden.batch();
    let vocab = checkpoint.arch.vocab;
    // Logits at padded places are whatever the mask makes them; only real tokens are compared.
    let real = |values: &[f32]| -> Vec<f32> {
        (0..batch.rows * batch.len)
            .filter(|&i| golden.is_real(i))
            .flat_map(|i| values[i * vocab..(i + 1) * vocab].to_vec())
            .collect()
    };

    let zero = vec![0.0; layout.len];
    let how = How::streamed(Device::Cpu, TierName::Disk, 2, 1);
    let mut base = walk(&checkpoint, how, &lora(), Some(zero), 7);
    let logits = host(&base.logits(&batch).unwrap());
    assert_close("logits", &real(&logits), &real(&golden.get("logits").f), TOLERANCE);
    let (sum, n) = base.evaluate(std::slice::from_ref(&batch), &mut |_, _| Ok(())).unwrap();
    assert!((sum / n as f64 - golden.scalar("base_loss")).abs() < 1e-5, "base loss");

    let flat = layout.from_peft(&golden.adapter("lora")).unwrap();
    let mut walk = walk(&checkpoint, how, &lora(), Some(flat), 7);
    let logits = host(&walk.logits(&batch).unwrap());
    assert_close("lora_logits", &real(&logits), &real(&golden.get("lora_logits").f), TOLERANCE);
    let step = walk.step(std::slice::from_ref(&batch), STEP, &mut |_, _| Ok(())).unwrap();
    assert!((step.loss() - golden.scalar("loss")).abs() < 1e-5, "loss {} {}", step.loss(), golden.scalar("loss"));
    let grads = layout.to_peft(&host(&step.grad));
    let want = golden.adapter("grad");
    assert_eq!(grads.len(), want.len(), "one gradient per LoRA tensor");
    for g in &grads {
        let w = want.iter().find(|w| w.key == g.key).unwrap_or_else(|| panic!("no golden gradient {}", g.key));
        assert_close(&format!("{case}: gradient of {}", g.key), &g.data, &w.data, TOLERANCE);
    }
}

#[test]
fn family_llama_untied_matches_transformers() {
    check("llama_untied");
}

#[test]
fn family_llama_tied_matches_transformers() {
    check("llama_tied");
}

#[test]
fn family_llama_rope_llama3_matches_transformers() {
    check("llama_rope_llama3");
}

#[test]
fn family_llama_rope_linear_matches_transformers() {
    check("llama_rope_linear");
}

#[test]
fn family_llama_transformers_4_config_matches() {
    check("llama_tf4_config");
}

#[test]
fn family_llama_stored_in_bf16_matches() {
    check("llama_bf16");
}

#[test]
fn family_mistral_untied_matches_transformers() {
    check("mistral_untied");
}

#[test]
fn family_mistral_window_matches_transformers() {
    check("mistral_window");
}

#[test]
fn family_qwen2_tied_matches_transformers() {
    check("qwen2_tied");
}

#[test]
fn family_qwen2_untied_matches_transformers() {
    check("qwen2_untied");
}

#[test]
fn family_qwen3_tied_matches_transformers() {
    check("qwen3_tied");
}

#[test]
fn family_qwen3_untied_matches_transformers() {
    check("qwen3_untied");
}

#[test]
fn adamw_with_clipping_follows_torch() {
    let golden = Golden::load("llama_untied", "golden.safetensors");
    let trajectory = Golden::load("llama_untied", "trajectory.safetensors");
    let checkpoint = open(&dir("llama_untied"));
    let layout = AdapterLayout::new(&checkpoint, &lora()).unwrap();
    let flat = layout.from_peft(&golden.adapter("lora")).unwrap();
    let batch = golden.batch();
    let mut walk = walk(&checkpoint, How::streamed(Device::Cpu, TierName::Ram, 2, 1), &lora(), Some(flat), 512);
    let mut adam = AdamW::new(&walk.adapter.flat, 0.01);
    let (losses, norms) = (&trajectory.get("loss").f, &trajectory.get("grad_norm").f);
    for (i, (&loss, &want_norm)) in losses.iter().zip(norms).enumerate() {
        let mut step = walk.step(std::slice::from_ref(&batch), STEP, &mut |_, _| Ok(())).unwrap();
        assert!((step.loss() - f64::from(loss)).abs() < 2e-5, "loss of step {i}: {} {loss}", step.loss());
        let norm = optim::grad_norm(&step.grad);
        assert!((norm / f64::from(want_norm) - 1.0).abs() < 1e-4, "norm of step {i}: {norm} {want_norm}");
        optim::clip(&mut step.grad, norm, 1.0);
        adam.update(&mut walk.adapter.flat, &step.grad, 1e-2).unwrap();
        walk.adapter.refresh();
    }
    let last = layout.to_peft(&host(&walk.adapter.flat));
    for want in trajectory.adapter("lora") {
        let got = last.iter().find(|t| t.key == want.key).unwrap();
        assert_close(&want.key, &got.data, &want.data, 1e-4);
    }
}

/// The adapter that PEFT saved in `folder` of `llama_untied`, on the base in `base`, gives PEFT's logits `golden_key`;
/// written again it has PEFT's keys.
fn as_in_peft(base: &Path, folder: &str, golden_key: &str) {
    let golden = Golden::load("llama_untied", "golden.safetensors");
    let checkpoint = open(base);
    let (config, tensors) = adapter::read(&dir("llama_untied").join(folder)).unwrap();
    let section = LoraSection {
        r: config.r,
        alpha: config.lora_alpha,
        rslora: config.use_rslora,
        targets: config.target_modules.clone(),
        ..LoraSection::default()
    };
    let layout = AdapterLayout::new(&checkpoint, &section).unwrap();
    let flat = layout.from_peft(&tensors).unwrap();
    let keys = |of: &[adapter::AdapterTensor]| of.iter().map(|t| t.key.clone()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&layout.to_peft(&flat)), keys(&tensors), "the keys of an export are those that PEFT loads");
    let batch = golden.batch();
    let mut walk = walk(&checkpoint, How::streamed(Device::Cpu, TierName::Ram, 2, 1), &section, Some(flat), 512);
    let got = host(&walk.logits(&batch).unwrap());
    let want = &golden.get(golden_key).f;
    let vocab = checkpoint.arch.vocab;
    for i in (0..batch.rows * batch.len).filter(|&i| golden.is_real(i)) {
        let at = i * vocab..(i + 1) * vocab;
        assert_close(golden_key, &got[at.clone()], &want[at], 5e-5);
    }
}

const PEFTS: [(&str, &str); 2] = [("peft_adapter", "lora_logits"), ("peft_rslora", "rslora_logits")];

#[test]
fn case_ex_01_an_adapter_made_by_peft_gives_pefts_logits() {
    for (folder, golden_key) in PEFTS {
        as_in_peft(&dir("llama_untied"), folder, golden_key);
    }
}

#[test]
fn case_fo_70b_pefts_adapter_fits_a_base_stored_without_its_prefix() {
    // The same class whatever the file calls its tensors: transformers loads both, and PEFT's keys don't change.
    let base = tempfile::tempdir().unwrap();
    std::fs::copy(dir("llama_untied").join("config.json"), base.path().join("config.json")).unwrap();
    let bytes = std::fs::read(dir("llama_untied").join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let renamed = file.tensors().into_iter().map(|(name, view)| {
        let bare = name.strip_prefix("model.").map(String::from).unwrap_or(name);
        (bare, view)
    });
    let renamed = safetensors::serialize(renamed.collect::<Vec<_>>(), None).unwrap();
    std::fs::write(base.path().join("model.safetensors"), renamed).unwrap();
    assert_eq!(open(base.path()).prefix, "");
    for (folder, golden_key) in PEFTS {
        as_in_peft(base.path(), folder, golden_key);
    }
}
