//! Streamed = resident, bit for bit: the same checks for CPU and GPU.

use super::walk::{How, host, open, random_adapter, walk};
use blockstream_tui::checkpoint::Checkpoint;
use blockstream_tui::config::LoraSection;
use blockstream_tui::data::Row;
use blockstream_tui::data::collate::{Batch, micro_batches};
use blockstream_tui::event::TierName;
use blockstream_tui::model::AdapterLayout;
use blockstream_tui::train::optim::{self, AdamW};
use blockstream_tui::train::{BlockWalk, StepContext};
use tch::Device;

/// Everything a run produces that a number could hide in.
#[derive(Debug, PartialEq)]
pub struct Trace {
    pub logits: Vec<u32>,
    pub losses: Vec<u64>,
    /// Gradients of the first step.
    pub grads: Vec<u32>,
    /// Adapter after the last step.
    pub adapter: Vec<u32>,
}

/// Eight rows of different lengths.
pub fn rows(vocab: u32) -> Vec<Row> {
    (0..8_u32)
        .map(|r| {
            let len = 12 + 3 * r;
            let ids: Vec<u32> = (0..len).map(|i| (i * 37 + r * 101 + 11) % vocab).collect();
            let trained = (0..len).map(|i| i > 3 + r % 3).collect();
            Row { ids, trained }
        })
        .collect()
}

pub fn batches(vocab: u32, micro: usize) -> Vec<Batch> {
    let rows = rows(vocab);
    let refs: Vec<&Row> = rows.iter().collect();
    micro_batches(&refs, rows.len() / micro)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// `steps` optimizer steps from a random adapter.
pub fn trace(checkpoint: &Checkpoint, how: How, lora: &LoraSection, micro: usize, steps: u64) -> (Trace, BlockWalk) {
    let layout = AdapterLayout::new(checkpoint, lora).unwrap();
    let mut walk = walk(checkpoint, how, lora, Some(random_adapter(&layout)), 5);
    let batches = batches(checkpoint.arch.vocab as u32, micro).into_iter().map(|b| b.padded(how.row));
    let batches: Vec<Batch> = batches.collect();
    let logits = bits(&host(&walk.logits(&batches[0]).unwrap()));
    let mut adam = AdamW::new(&walk.adapter.flat, 0.01);
    let (mut losses, mut grads) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let context = StepContext { step, seed: 3, more: step + 1 < steps };
        let mut out = walk.step(&batches, context, &mut |_, _| Ok(())).unwrap();
        losses.push(out.loss().to_bits());
        if step == 0 {
            grads = bits(&host(&out.grad));
        }
        let norm = optim::grad_norm(&out.grad);
        optim::clip(&mut out.grad, norm, 1.0);
        adam.update(&mut walk.adapter.flat, &out.grad, 1e-2).unwrap();
        walk.adapter.refresh();
    }
    let adapter = bits(&host(&walk.adapter.flat));
    (Trace { logits, losses, grads, adapter }, walk)
}

/// Compares one way of streaming with every block resident, and checks the residency bound.
pub fn check(dir: &std::path::Path, how: How, lora: &LoraSection, micro: usize, steps: u64) {
    let checkpoint = open(dir);
    let (want, _) = trace(&checkpoint, how.reference(), lora, micro, steps);
    assert!(want.grads.iter().any(|g| *g & 0x7FFF_FFFF != 0), "gradients are not all zero");
    assert_ne!(want.adapter, bits(&random_adapter(&AdapterLayout::new(&checkpoint, lora).unwrap())), "it learns");
    let (got, mut walk) = trace(&checkpoint, how, lora, micro, steps);
    assert!(got == want, "{how:?}, {micro} micro-batches: streaming changed a number");
    let planned = (how.resident.min(checkpoint.blocks.len()) + how.ring).max(1);
    let peak = walk.streamer.snapshot().unwrap().residency_peak;
    assert!(peak <= planned, "{peak} blocks on the device, {planned} planned");
}

/// Everything that spares device memory, alone and together, for one and several micro-batches.
pub fn every_thrift(dir: &std::path::Path, device: Device, lora: &LoraSection) {
    let base = |tier| How::streamed(device, tier, 2, 1);
    for micro in [1, 2, 4] {
        for tier in [TierName::Ram, TierName::Disk] {
            check(dir, How { head: Some(tier), ..base(tier) }, lora, micro, 3);
            check(dir, How { split: true, ..base(tier) }, lora, micro, 3);
            // Every block stays, only the head passes.
            check(dir, How { resident: usize::MAX, ring: 0, head: Some(tier), ..base(tier) }, lora, micro, 3);
        }
        check(dir, How { offload: true, ..base(TierName::Ram) }, lora, micro, 4);
        check(dir, How { mlp_chunk: 7, ..base(TierName::Disk) }, lora, micro, 3);
        let all = How { head: Some(TierName::Ram), offload: true, mlp_chunk: 16, ring: 1, ..base(TierName::Ram) };
        check(dir, all, lora, micro, 4);
        check(
            dir,
            How { resident: 2, head: Some(TierName::Disk), offload: true, ..base(TierName::Disk) },
            lora,
            micro,
            3,
        );
    }
}

/// RAM and disk tiers, prefetch 0–5, micro-batches 1, 2 and 4.
pub fn every_depth(dir: &std::path::Path, device: Device, lora: &LoraSection) {
    for ahead in 0..=5 {
        for tier in [TierName::Ram, TierName::Disk] {
            let micro = [1, 2, 4][ahead % 3];
            check(dir, How::streamed(device, tier, ahead + 1, ahead), lora, micro, 5);
        }
    }
}
