//! The GPU engine: the same equalities as on CPU, under deterministic kernels, and agreement with the CPU engine.
//!
//! Without a GPU each test says why it did not run.

use crate::equal::{batches, check, every_depth, every_thrift};
use crate::golden::{Golden, assert_close, dir};
use crate::support::fixture::Model;
use crate::walk::{How, host, open, walk};
use blockstream_tui::config::LoraSection;
use blockstream_tui::data::collate::Batch;
use blockstream_tui::device::shim;
use blockstream_tui::event::TierName;
use blockstream_tui::model::AdapterLayout;
use blockstream_tui::model::dropout::{MaskKey, dropout};
use blockstream_tui::train::StepContext;
use std::sync::Mutex;
use tch::{Device, Kind, Tensor};

/// Deterministic mode is a property of the process.
static ALONE: Mutex<()> = Mutex::new(());

/// The GPU, or a line that says why there is none.
pub fn gpu(test: &str) -> Option<(Device, std::sync::MutexGuard<'static, ()>)> {
    match shim::init() {
        Ok(()) => {
            let guard = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            shim::set_deterministic(true);
            Some((Device::Cuda(0), guard))
        }
        Err(why) => {
            println!("{test} did not run: {why}");
            None
        }
    }
}

fn lora() -> LoraSection {
    LoraSection { r: 8, alpha: 16.0, targets: vec!["all-linear".into()], ..LoraSection::default() }
}

fn model(name: &str, dtype: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    Model::family(name).set("num_hidden_layers", 6).std(0.08).dtype(dtype).shards(3).write(dir.path());
    dir
}

#[test]
fn gpu_stream_equal_at_every_depth_and_tier() {
    let Some((gpu, _alone)) = gpu("gpu_stream_equal_at_every_depth_and_tier") else { return };
    every_depth(model("llama", "BF16").path(), gpu, &lora());
}

#[test]
fn gpu_stream_equal_with_everything_that_spares_memory() {
    let Some((gpu, _alone)) = gpu("gpu_stream_equal_with_everything_that_spares_memory") else { return };
    every_thrift(model("llama", "BF16").path(), gpu, &lora());
}

#[test]
fn gpu_stream_equal_families_dtypes_dropout_and_residents() {
    let Some((gpu, _alone)) = gpu("gpu_stream_equal_families_dtypes_dropout_and_residents") else { return };
    for (family, dtype) in [("mistral", "F16"), ("qwen2", "F32"), ("qwen3", "BF16")] {
        let dir = model(family, dtype);
        for micro in [1, 2, 4] {
            check(dir.path(), How::streamed(gpu, TierName::Disk, 2, 1), &lora(), micro, 3);
        }
    }
    let dir = model("llama", "BF16");
    let dropout = LoraSection { dropout: 0.3, ..lora() };
    check(dir.path(), How::streamed(gpu, TierName::Ram, 2, 1), &dropout, 2, 4);
    check(dir.path(), How { resident: 3, ..How::streamed(gpu, TierName::Disk, 2, 1) }, &lora(), 2, 4);
    let half = LoraSection { top_fraction: 0.5, ..lora() };
    check(dir.path(), How::streamed(gpu, TierName::Ram, 2, 1), &half, 1, 4);
}

#[test]
fn gpu_stream_equal_in_long_rows() {
    let Some((gpu, _alone)) = gpu("gpu_stream_equal_in_long_rows") else { return };
    let dir = model("llama", "BF16");
    let how = |tier| How { row: 1088, ..How::streamed(gpu, tier, 2, 1) };
    check(dir.path(), how(TierName::Ram), &lora(), 2, 4);
    check(dir.path(), How { resident: 3, ..how(TierName::Disk) }, &lora(), 4, 3);
    // And padding changes no number but by rounding.
    let checkpoint = open(dir.path());
    let batch = batches(264, 4).remove(0);
    let loss = |batch: Batch| {
        let mut walk = walk(&checkpoint, How::resident(gpu), &lora(), None, 64);
        let context = StepContext { step: 0, seed: 0, more: false };
        walk.step(&[batch], context, &mut |_, _| Ok(())).unwrap().loss()
    };
    let (short, long) = (loss(batch.clone()), loss(batch.padded(1088)));
    assert!((short - long).abs() < 5e-3, "{short} {long}");
}

#[test]
fn gpu_stream_equal_with_a_sliding_window() {
    let Some((gpu, _alone)) = gpu("gpu_stream_equal_with_a_sliding_window") else { return };
    let dir = tempfile::tempdir().unwrap();
    Model::family("mistral").set("sliding_window", 8).std(0.08).write(dir.path());
    check(dir.path(), How::streamed(gpu, TierName::Disk, 2, 1), &lora(), 2, 3);
    // And the windowed kernel computes what the CPU's mask does.
    let checkpoint = open(dir.path());
    let batch = &batches(264, 1)[0];
    let on = |device| host(&walk(&checkpoint, How::resident(device), &lora(), None, 64).logits(batch).unwrap());
    assert_close("windowed logits", &on(gpu), &on(Device::Cpu), 0.03);
}

#[test]
fn gpu_families_match_transformers_in_f32() {
    let Some((gpu, _alone)) = gpu("gpu_families_match_transformers_in_f32") else { return };
    let section = LoraSection { r: 4, alpha: 8.0, ..lora() };
    for case in ["llama_untied", "llama_rope_llama3", "qwen2_tied", "qwen3_untied", "mistral_untied"] {
        let golden = Golden::load(case, "golden.safetensors");
        let checkpoint = open(&dir(case));
        let layout = AdapterLayout::new(&checkpoint, &section).unwrap();
        let flat = layout.from_peft(&golden.adapter("lora")).unwrap();
        let batch = golden.batch();
        let mut walk = walk(&checkpoint, How::streamed(gpu, TierName::Ram, 2, 1), &section, Some(flat), 9);
        let context = StepContext { step: 0, seed: 0, more: false };
        let step = walk.step(std::slice::from_ref(&batch), context, &mut |_, _| Ok(())).unwrap();
        assert!(
            (step.loss() - golden.scalar("loss")).abs() < 1e-4,
            "{case}: {} {}",
            step.loss(),
            golden.scalar("loss")
        );
        let want = golden.adapter("grad");
        for g in layout.to_peft(&host(&step.grad)) {
            let w = want.iter().find(|w| w.key == g.key).unwrap();
            assert_close(&format!("{case}: {}", g.key), &g.data, &w.data, 5e-4);
        }
    }
}

#[test]
fn gpu_case_fo_08_f16_gradients_match_f32() {
    let Some((gpu, _alone)) = gpu("gpu_case_fo_08_f16_gradients_match_f32") else { return };
    // 131,000 tokens a step.
    crate::half::f16_gradients_match_f32(gpu, 32);
}

#[test]
fn gpu_dropout_masks_equal_the_cpus() {
    let Some((gpu, _alone)) = gpu("gpu_dropout_masks_equal_the_cpus") else { return };
    let key = MaskKey::new(1, 2, 3, 4, 5);
    let on = |device| host(&dropout(&Tensor::ones([1000, 7], (Kind::Float, device)), 0.25, key, 0));
    assert_eq!(on(gpu), on(Device::Cpu));
}
