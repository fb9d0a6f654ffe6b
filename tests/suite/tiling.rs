//! The feed-forward in token chunks (FO-02): whatever rows come, the walk follows the program it told the streamer, and
//! streaming changes no number.

use crate::support::fixture::Model;
use crate::walk::{How, host, open, walk};
use blockstream_tui::checkpoint::Checkpoint;
use blockstream_tui::config::LoraSection;
use blockstream_tui::data::Row;
use blockstream_tui::data::collate::{Batch, micro_batches};
use blockstream_tui::error::Error;
use blockstream_tui::event::TierName;
use blockstream_tui::train::StepContext;
use blockstream_tui::train::optim::{self, AdamW};
use proptest::prelude::*;
use tch::Device::Cpu;

fn lora() -> LoraSection {
    LoraSection { r: 3, alpha: 6.0, targets: vec!["all-linear".into()], ..LoraSection::default() }
}

fn model(layers: usize) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    Model::family("llama").set("num_hidden_layers", layers).std(0.08).write(dir.path());
    let checkpoint = open(dir.path());
    (dir, checkpoint)
}

/// One row of each length, `per` rows in a micro-batch.
fn batches(lengths: &[usize], per: usize) -> Vec<Batch> {
    let row = |(r, &len): (usize, &usize)| Row {
        ids: (0..len).map(|i| ((i * 37 + r * 101 + 11) % 250) as u32).collect(),
        trained: (0..len).map(|i| i > r % 3).collect(),
    };
    let rows: Vec<Row> = lengths.iter().enumerate().map(row).collect();
    micro_batches(&rows.iter().collect::<Vec<_>>(), per)
}

/// Every micro-batch row by row: what is left of it after device memory ran out.
fn row_by_row(batches: &[Batch]) -> Vec<Batch> {
    let one = |b: &Batch, r: usize| Batch {
        rows: 1,
        len: b.len,
        ids: b.ids[r * b.len..(r + 1) * b.len].to_vec(),
        labels: b.labels[r * b.len..(r + 1) * b.len].to_vec(),
        lengths: vec![b.lengths[r]],
    };
    batches.iter().flat_map(|b| (0..b.rows).map(move |r| one(b, r))).collect()
}

/// What is done, in order.
#[derive(Clone, Debug)]
enum Act {
    /// A step over rows of these lengths, so many in a micro-batch; out of memory at a visit first, if one is named.
    Step(Vec<usize>, usize, Option<usize>),
    /// The held-out loss of such rows.
    Eval(Vec<usize>, usize),
}

/// The bits of every loss and gradient of `acts`, and of the adapter after them.
fn play(checkpoint: &Checkpoint, how: How, acts: &[Act]) -> Vec<u64> {
    let mut walk = walk(checkpoint, how, &lora(), None, 5);
    let mut adam = AdamW::new(&walk.adapter.flat, 0.01);
    let mut seen = Vec::new();
    let bits = |t: &tch::Tensor| host(t).into_iter().map(|x| u64::from(x.to_bits())).collect::<Vec<_>>();
    for (at, act) in acts.iter().enumerate() {
        let more = matches!(acts.get(at + 1), Some(Act::Step(..)));
        match act {
            Act::Eval(lengths, per) => {
                let (sum, tokens) = walk.evaluate(&batches(lengths, *per), &mut |_, _| Ok(())).unwrap();
                seen.extend([sum.to_bits(), tokens]);
            }
            Act::Step(lengths, per, cut) => {
                let mut batches = batches(lengths, *per);
                let context = StepContext { step: at as u64, seed: 3, more };
                if let Some(cut) = cut {
                    let cut = cut % walk.visits();
                    let ended = walk.step(&batches, context, &mut |visit, _| {
                        if visit.index == cut { Err(Error::run("out of memory")) } else { Ok(()) }
                    });
                    assert!(ended.is_err());
                    walk.abandon().unwrap();
                    batches = row_by_row(&batches);
                }
                let mut out = walk.step(&batches, context, &mut |_, _| Ok(())).unwrap();
                seen.push(out.loss().to_bits());
                seen.extend(bits(&out.grad));
                let norm = optim::grad_norm(&out.grad);
                optim::clip(&mut out.grad, norm, 1.0);
                adam.update(&mut walk.adapter.flat, &out.grad, 1e-2).unwrap();
                walk.adapter.refresh();
            }
        }
    }
    seen.extend(bits(&walk.adapter.flat));
    seen
}

/// A split block's feed-forward goes in one.
fn resident(how: How) -> How {
    How { mlp_chunk: if how.split { 0 } else { how.mlp_chunk }, ..how.reference() }
}

fn act() -> impl Strategy<Value = Act> {
    let lengths = || prop::collection::vec(3..40_usize, 1..5);
    prop_oneof![
        4 => (lengths(), 1..3_usize, prop::option::weighted(0.2, 0..9_usize)).prop_map(|(l, p, c)| Act::Step(l, p, c)),
        1 => (lengths(), 1..3_usize).prop_map(|(l, p)| Act::Eval(l, p)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn case_fo_02_any_rows_chunks_slots_and_halves_walk_their_program_and_equal_the_resident_run(
        acts in prop::collection::vec(act(), 1..5),
        chunk in 0..50_usize,
        ring in 1..4_usize,
        ahead in 0..3_usize,
        split in any::<bool>(),
        disk in any::<bool>(),
        offload in any::<bool>(),
        layers in 1..4_usize,
    ) {
        let (_dir, checkpoint) = model(layers);
        let tier = if disk { TierName::Disk } else { TierName::Ram };
        let how = How { split, offload, mlp_chunk: chunk, ..How::streamed(Cpu, tier, ring, ahead) };
        prop_assert!(play(&checkpoint, how, &acts) == play(&checkpoint, resident(how), &acts), "{how:?} {acts:?}");
    }
}

#[test]
fn case_fo_02_a_chunk_of_at_least_the_rows_is_no_chunk() {
    let (_dir, checkpoint) = model(3);
    let of = |chunk, acts: &[Act]| {
        play(&checkpoint, How { mlp_chunk: chunk, ..How::streamed(Cpu, TierName::Ram, 2, 1) }, acts)
    };
    // One short row; a short last micro-batch; a short held-out row.
    for acts in [
        vec![Act::Step(vec![9], 1, None)],
        vec![Act::Step(vec![17, 40, 9, 33], 1, None), Act::Step(vec![40, 17, 33, 9], 1, None)],
        vec![Act::Step(vec![40], 1, None), Act::Eval(vec![9], 1), Act::Step(vec![9], 1, None)],
    ] {
        assert!(of(64, &acts) == of(0, &acts), "{acts:?}");
        // In chunks the same to rounding: the loss of the first step.
        let (tiled, whole) = (f64::from_bits(of(16, &acts)[0]), f64::from_bits(of(0, &acts)[0]));
        assert!((tiled - whole).abs() < 1e-5 * whole, "{tiled} {whole}");
    }
}
