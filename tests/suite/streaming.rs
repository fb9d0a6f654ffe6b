//! Streaming never changes a number: streamed = resident, bit for bit, on every path of the CPU engine.

use crate::equal::{batches, check, every_depth, every_thrift, rows, trace};
use crate::support::fixture::Model;
use crate::walk::{How, host, open, walk};
use blockstream_tui::config::LoraSection;
use blockstream_tui::data::Row;
use blockstream_tui::data::collate::{Batch, micro_batches};
use blockstream_tui::event::TierName;
use blockstream_tui::model::AdapterLayout;
use blockstream_tui::train::StepContext;
use tch::Device::Cpu;

fn model(name: &str, dtype: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    Model::family(name).set("num_hidden_layers", 6).std(0.08).dtype(dtype).shards(3).write(dir.path());
    dir
}

fn lora() -> LoraSection {
    LoraSection { r: 4, alpha: 8.0, targets: vec!["all-linear".into()], ..LoraSection::default() }
}

#[test]
fn stream_equal_llama_at_every_depth_and_tier() {
    every_depth(model("llama", "BF16").path(), Cpu, &lora());
}

#[test]
fn stream_equal_with_a_streamed_head_offloaded_inputs_split_blocks_and_a_chunked_feed_forward() {
    every_thrift(model("llama", "BF16").path(), Cpu, &lora());
    // Tied: the head's rows are the embedding's.
    let dir = tempfile::tempdir().unwrap();
    Model::family("qwen2").set("tie_word_embeddings", true).std(0.08).write(dir.path());
    check(dir.path(), How { head: Some(TierName::Disk), ..How::streamed(Cpu, TierName::Disk, 1, 1) }, &lora(), 2, 3);
}

#[test]
fn stream_equal_for_every_micro_batch_count() {
    let dir = model("llama", "BF16");
    for micro in [1, 2, 4] {
        for tier in [TierName::Ram, TierName::Disk] {
            check(dir.path(), How::streamed(Cpu, tier, 2, 1), &lora(), micro, 5);
        }
    }
}

#[test]
fn stream_equal_for_the_other_families_and_dtypes() {
    for (family, dtype) in [("mistral", "F16"), ("qwen2", "F32"), ("qwen3", "BF16")] {
        let dir = model(family, dtype);
        check(dir.path(), How::streamed(Cpu, TierName::Disk, 2, 1), &lora(), 2, 3);
    }
}

#[test]
fn stream_equal_with_mixed_dtypes_in_a_block() {
    let dir = tempfile::tempdir().unwrap();
    Model::tiny()
        .std(0.08)
        .edit(|tensors| {
            for t in tensors {
                if t.name.contains("norm") {
                    t.dtype = "F32".into();
                } else if t.name.contains("o_proj") {
                    t.dtype = "F16".into();
                }
            }
        })
        .write(dir.path());
    check(dir.path(), How::streamed(Cpu, TierName::Disk, 1, 0), &lora(), 1, 2);
}

#[test]
fn stream_equal_with_dropout_replayed() {
    let dir = model("llama", "BF16");
    let lora = LoraSection { dropout: 0.3, ..lora() };
    for micro in [1, 2, 4] {
        check(dir.path(), How::streamed(Cpu, TierName::Disk, 2, 1), &lora, micro, 5);
    }
}

#[test]
fn stream_equal_with_resident_blocks_among_streamed_ones() {
    let dir = model("llama", "BF16");
    for resident in [1, 3, 5] {
        let how = How { resident, ..How::streamed(Cpu, TierName::Disk, 2, 1) };
        check(dir.path(), how, &lora(), 2, 4);
    }
}

#[test]
fn stream_equal_when_only_the_top_trains_and_bytes_really_halve() {
    let dir = model("llama", "BF16");
    let half = LoraSection { top_fraction: 0.5, ..lora() };
    check(dir.path(), How::streamed(Cpu, TierName::Disk, 1, 0), &half, 2, 5);
    let loads = |lora: &LoraSection| {
        let (_, walk) = trace(&open(dir.path()), How::streamed(Cpu, TierName::Ram, 1, 0), lora, 1, 5);
        let block = open(dir.path()).blocks[0].bytes.0;
        walk.streamer.totals().h2d.0 / block
    };
    // One forward for the logits; then per step 6 up and 6 (or 3) down with one slot: the turns reuse the slot.
    // What the forward pass leaves on the device may spare the first step a part.
    assert!((6 + 5 * 10..=6 + 1 + 5 * 10).contains(&loads(&lora())), "{}", loads(&lora()));
    // With the lower half visited once a step, Belady's choice keeps some parts of it besides.
    assert!((6 + 5 * 6..=6 + 5 * 8).contains(&loads(&half)), "{}", loads(&half));
}

#[test]
fn case_nu_13_delays_on_disk_and_copies_change_nothing() {
    let dir = model("llama", "BF16");
    for (ring, read_delay_ms, copy_delay_ms) in [(2, 3, 0), (3, 0, 3), (3, 2, 2)] {
        let how = How { read_delay_ms, copy_delay_ms, ..How::streamed(Cpu, TierName::Disk, ring, ring - 1) };
        check(dir.path(), how, &lora(), 1, 4);
    }
}

#[test]
fn case_nu_13_the_adapter_acts_in_every_mode() {
    let dir = model("llama", "BF16");
    let checkpoint = open(dir.path());
    let layout = AdapterLayout::new(&checkpoint, &lora()).unwrap();
    let batch = &batches(checkpoint.arch.vocab as u32, 1)[0];
    for how in [How::resident(Cpu), How::streamed(Cpu, TierName::Ram, 2, 1), How::streamed(Cpu, TierName::Disk, 3, 2)] {
        let with = host(&walk(&checkpoint, how, &lora(), None, 5).logits(batch).unwrap());
        let without = host(&walk(&checkpoint, how, &lora(), Some(vec![0.0; layout.len]), 5).logits(batch).unwrap());
        assert_ne!(with, without, "{how:?}");
    }
}

#[test]
fn the_disk_tier_reads_each_block_once_per_visit_less_the_ring() {
    let dir = model("llama", "BF16");
    let checkpoint = open(dir.path());
    let mut walk = walk(&checkpoint, How::streamed(Cpu, TierName::Disk, 2, 1), &lora(), None, 5);
    let batches = batches(checkpoint.arch.vocab as u32, 4);
    let step = |walk: &mut blockstream_tui::train::BlockWalk, k| {
        let before = walk.streamer.totals();
        walk.step(&batches, StepContext { step: k, seed: 0, more: true }, &mut |_, _| Ok(())).unwrap();
        let after = walk.streamer.totals();
        (after.h2d.0 - before.h2d.0) / checkpoint.blocks[0].bytes.0
    };
    step(&mut walk, 0);
    // Four micro-batches move what one does: 2(L − C) blocks with C = 2 slots.
    assert_eq!((step(&mut walk, 1), step(&mut walk, 2)), (8, 8));
}

fn loss_and_grad(dir: &std::path::Path, batches: &[Batch], lora: &LoraSection, seed: u64) -> (f64, Vec<f32>) {
    let checkpoint = open(dir);
    let mut walk = walk(&checkpoint, How::streamed(Cpu, TierName::Ram, 2, 1), lora, None, 5);
    let out = walk.step(batches, StepContext { step: 0, seed, more: false }, &mut |_, _| Ok(())).unwrap();
    (out.loss(), host(&out.grad))
}

fn assert_near(a: &[f32], b: &[f32], relative: f32) {
    let scale = a.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0_f32, f32::max);
    assert!(scale > 0.0 && worst <= relative * scale, "off by {worst:e} at scale {scale:e}");
}

#[test]
fn case_nu_01_accumulation_is_a_token_weighted_mean() {
    let dir = model("llama", "F32");
    // Rows with 1 and 9 trained tokens: batch 2 × accumulation 1 against batch 1 × accumulation 2.
    let row = |trained: u32| Row {
        ids: (0..20).map(|i| (i * 31 + trained) % 264).collect(),
        trained: (0..20).map(|i| i >= 20 - trained).collect(),
    };
    let (one, nine) = (row(1), row(9));
    let together = loss_and_grad(dir.path(), &micro_batches(&[&one, &nine], 2), &lora(), 0);
    let apart = loss_and_grad(dir.path(), &micro_batches(&[&one, &nine], 1), &lora(), 0);
    assert!((together.0 / apart.0 - 1.0).abs() < 1e-6, "{} {}", together.0, apart.0);
    assert_near(&together.1, &apart.1, 1e-6);
    let alone = |r: &Row| loss_and_grad(dir.path(), &micro_batches(&[r], 1), &lora(), 0).0;
    let weighted = (alone(&one) + 9.0 * alone(&nine)) / 10.0;
    assert!((together.0 / weighted - 1.0).abs() < 1e-6, "the mean is over tokens, not over rows");
}

#[test]
fn case_nu_06_the_scale_is_alpha_over_r_or_over_its_root() {
    let dir = model("llama", "F32");
    let checkpoint = open(dir.path());
    let scale = |r, alpha, rslora| {
        AdapterLayout::new(&checkpoint, &LoraSection { r, alpha, rslora, ..LoraSection::default() }).unwrap().scale
    };
    assert_eq!((scale(16, 16.0, false), scale(16, 16.0, true)), (1.0, 4.0));
    assert_eq!((scale(64, 32.0, false), scale(64, 32.0, true)), (0.5, 4.0));
    assert!(AdapterLayout::new(&checkpoint, &LoraSection { r: 0, ..LoraSection::default() }).is_err());
    // The factor reaches the forward: a four times larger scale with B a quarter as large gives the same logits.
    let batch = &batches(264, 1)[0];
    let run = |alpha, b_factor: f32| {
        let lora = LoraSection { r: 4, alpha, ..lora() };
        let layout = AdapterLayout::new(&checkpoint, &lora).unwrap();
        let mut flat = crate::walk::random_adapter(&layout);
        for t in &layout.targets {
            flat[t.b..t.b + t.d_out * 4].iter_mut().for_each(|x| *x *= b_factor);
        }
        host(&walk(&checkpoint, How::resident(Cpu), &lora, Some(flat), 5).logits(batch).unwrap())
    };
    assert_near(&run(4.0, 1.0), &run(16.0, 0.25), 1e-6);
    // B starts at zero: step 0 is the base, exactly.
    let layout = AdapterLayout::new(&checkpoint, &lora()).unwrap();
    let fresh = layout.init(42);
    assert!(layout.targets.iter().all(|t| fresh[t.b..t.b + t.d_out * 4].iter().all(|x| *x == 0.0)));
    let zero = vec![0.0; layout.len];
    let logits = |flat| host(&walk(&checkpoint, How::resident(Cpu), &lora(), Some(flat), 5).logits(batch).unwrap());
    assert_eq!(logits(fresh), logits(zero));
}

#[test]
fn case_nu_08_dropout_is_on_as_input_in_training_and_off_in_evaluation() {
    let dir = model("llama", "F32");
    let checkpoint = open(dir.path());
    let heavy = LoraSection { dropout: 0.9, ..lora() };
    let batches = batches(264, 1);
    let eval = |lora: &LoraSection| {
        let mut w = walk(&checkpoint, How::resident(Cpu), lora, None, 5);
        let first = w.evaluate(&batches, &mut |_, _| Ok(())).unwrap().0;
        assert_eq!(first, w.evaluate(&batches, &mut |_, _| Ok(())).unwrap().0);
        first
    };
    assert_eq!(eval(&heavy), eval(&lora()));
    let train = |seed| loss_and_grad(dir.path(), &batches, &heavy, seed).0;
    assert_eq!(train(1), train(1));
    assert_ne!(train(1), train(2));
    // With B = 0 the branch adds nothing, so the rate cannot show.
    let layout = AdapterLayout::new(&checkpoint, &heavy).unwrap();
    let at_zero = |lora: &LoraSection| {
        let mut w = walk(&checkpoint, How::resident(Cpu), lora, Some(layout.init(42)), 5);
        w.step(&batches, StepContext { step: 0, seed: 1, more: false }, &mut |_, _| Ok(())).unwrap().loss()
    };
    assert_eq!(at_zero(&heavy), at_zero(&lora()));
}

#[test]
fn case_nu_10_padding_changes_nothing() {
    let dir = model("llama", "F32");
    let rows = rows(264);
    let short = Row { ids: rows[0].ids[..10].to_vec(), trained: rows[0].trained[..10].to_vec() };
    let long = Row { ids: (0..60).map(|i| (i * 13) % 264).collect(), trained: vec![false; 60] };
    let silent = Row { ids: vec![0; 30], trained: vec![false; 30] };
    let alone = loss_and_grad(dir.path(), &micro_batches(&[&short], 1), &lora(), 0);
    for other in [&long, &silent] {
        let padded = loss_and_grad(dir.path(), &micro_batches(&[&short, other], 2), &lora(), 0);
        assert!(padded.0.is_finite() && padded.1.iter().all(|g| g.is_finite()));
        assert!((padded.0 - alone.0).abs() < 1e-5 * alone.0, "{} {}", padded.0, alone.0);
        assert_near(&alone.1, &padded.1, 1e-5);
    }
    let batch = &micro_batches(&[&short, &long], 2)[0];
    assert_eq!((batch.tokens(), batch.rows * batch.len), (70, 120), "padding is not counted");
}

#[test]
fn case_da_12_a_step_without_trained_tokens_has_no_loss_and_no_gradient() {
    let dir = model("llama", "F32");
    let silent = Row { ids: (0..30).collect(), trained: vec![false; 30] };
    let (loss, grad) = loss_and_grad(dir.path(), &micro_batches(&[&silent, &silent], 1), &lora(), 0);
    assert!(loss.is_nan() && grad.iter().all(|g| *g == 0.0));
}

#[test]
fn case_fo_15d_what_was_read_before_a_step_takes_none_of_its_time() {
    let dir = model("llama", "BF16");
    // Every request takes 40 ms: loading head and embedding takes longer than the step's own reads do.
    let how = How { read_delay_ms: 40, resident: 5, ..How::streamed(Cpu, TierName::Disk, 1, 0) };
    let begun = std::time::Instant::now();
    let mut walk = walk(&open(dir.path()), how, &lora(), None, 512);
    let loaded = begun.elapsed().as_secs_f64();
    let batches = batches(264, 1);
    let step = StepContext { step: 0, seed: 0, more: false };
    let begun = std::time::Instant::now();
    walk.step(&batches, step, &mut |_, _| Ok(())).unwrap();
    let (took, disk_s) = (begun.elapsed().as_secs_f64(), walk.streamer.snapshot().unwrap().disk_s);
    assert!(disk_s > 0.0 && disk_s <= took && loaded > 0.04, "{disk_s} s reading in {took} s, after {loaded} s");
}
