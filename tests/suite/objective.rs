//! The seam of objectives: one that is not part of the program, over pairs of rows, must get the gradient that its formula
//! says, whatever the head does and however the rows are cut into micro-batches.

use crate::equal::rows;
use crate::support::fixture::Model;
use crate::walk::{How, host, open, walk};
use blockstream_tui::checkpoint::Checkpoint;
use blockstream_tui::config::LoraSection;
use blockstream_tui::data::Row;
use blockstream_tui::data::collate::{Batch, IGNORE, micro_batches};
use blockstream_tui::error::Result;
use blockstream_tui::event::{LOSS, Metrics, TierName};
use blockstream_tui::train::objective::{Objective, Score, Scored};
use blockstream_tui::train::{StepContext, StepLoss};
use tch::{Device::Cpu, Tensor};

const BETA: f64 = 0.02;

fn lora() -> LoraSection {
    LoraSection { r: 4, alpha: 8.0, targets: vec!["all-linear".into()], ..LoraSection::default() }
}

/// Rows come in pairs, a chosen one and a rejected one: −log σ(h), h = β·(log p(chosen) − log p(rejected)), mean over pairs.
#[derive(Debug)]
struct Pairs;

/// Labelled tokens of each row.
fn labelled(batch: &Batch) -> Vec<i64> {
    batch.labels.chunks(batch.len).map(|row| row.iter().filter(|l| **l != IGNORE).count() as i64).collect()
}

impl Objective for Pairs {
    fn units(&self, batch: &Batch) -> u64 {
        batch.rows as u64 / 2
    }

    fn factor(&self, units: u64) -> f64 {
        BETA / units as f64
    }

    fn score(&self, tokens: &Scored<'_>) -> Result<Score> {
        let (mut loss, mut won, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        let counts = labelled(tokens.batch);
        let rows = tokens.nll.split_with_sizes(&counts[..], 0);
        let sums: Vec<Tensor> = rows.iter().map(|r| r.sum(tch::Kind::Double)).collect();
        for (pair, n) in sums.chunks(2).zip(counts.chunks(2)) {
            let h: Tensor = (&pair[1] - &pair[0]) * BETA;
            loss.push(-h.log_sigmoid());
            won.push(h.gt(0.0).to_kind(tch::Kind::Double));
            // d loss / d nll = ±β·σ(−h).
            let weight = (-&h).sigmoid().to_kind(tch::Kind::Float);
            weights.extend([weight.repeat([n[0]]), (-weight).repeat([n[1]])]);
        }
        let sum = |x: &[Tensor]| Tensor::stack(x, 0).sum(tch::Kind::Double);
        let sums = vec![(LOSS, sum(&loss)), ("rewards/accuracies", sum(&won))];
        Ok(Score { sums, weights: Some(Tensor::cat(&weights, 0)) })
    }
}

fn step(checkpoint: &Checkpoint, how: How, objective: Option<Pairs>, batches: &[Batch]) -> (StepLoss, Vec<f32>) {
    let mut walk = walk(checkpoint, how, &lora(), None, 5);
    if let Some(pairs) = objective {
        walk.objective = Box::new(pairs);
    }
    let context = StepContext { step: 0, seed: 0, more: false };
    let out = walk.step(batches, context, &mut |_, _| Ok(())).unwrap();
    let grad = host(&out.grad);
    (out, grad)
}

/// Metrics and gradient of [`Pairs`], from each row's own loss and gradient.
fn by_formula(checkpoint: &Checkpoint, rows: &[Row]) -> (Metrics, Vec<f64>) {
    let of_row = |row: &Row| {
        let batch = Batch::new(&[row]);
        let tokens = batch.trained_tokens() as f64;
        let (out, grad) = step(checkpoint, How::resident(Cpu), None, &[batch]);
        (out.loss() * tokens, grad.into_iter().map(|g| f64::from(g) * tokens).collect::<Vec<f64>>())
    };
    let (mut loss, mut won, pairs) = (0.0, 0.0, rows.len() as f64 / 2.0);
    let mut grad = Vec::new();
    for pair in rows.chunks(2) {
        let ((chosen, up), (rejected, down)) = (of_row(&pair[0]), of_row(&pair[1]));
        let h = BETA * (rejected - chosen);
        loss += (1.0 + (-h).exp()).ln() / pairs;
        won += f64::from(u8::from(h > 0.0)) / pairs;
        let weight = BETA / (1.0 + h.exp()) / pairs;
        grad.resize(up.len(), 0.0);
        grad.iter_mut().zip(up.iter().zip(&down)).for_each(|(g, (u, d))| *g += weight * (u - d));
    }
    (Metrics::from([(LOSS, loss), ("rewards/accuracies", won)]), grad)
}

#[test]
fn an_objective_over_pairs_gets_its_own_gradient_and_metrics() {
    let dir = tempfile::tempdir().unwrap();
    Model::family("qwen2").set("num_hidden_layers", 3).std(0.08).write(dir.path());
    let checkpoint = open(dir.path());
    let rows = rows(checkpoint.arch.vocab as u32);
    let (metrics, want) = by_formula(&checkpoint, &rows);
    let scale = want.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    assert!(scale > 1e-6, "the gradient is not zero");
    let streamed = How::streamed(Cpu, TierName::Ram, 2, 1);
    for how in [How::resident(Cpu), streamed, How { head: Some(TierName::Disk), ..streamed }] {
        for per in [2, 4, 8] {
            let batches = micro_batches(&rows.iter().collect::<Vec<_>>(), per);
            let (out, grad) = step(&checkpoint, how, Some(Pairs), &batches);
            let names: Vec<&str> = out.metrics.iter().map(|(name, _)| name).collect();
            assert_eq!(names, [LOSS, "rewards/accuracies"]);
            for (name, x) in metrics.iter() {
                let got = out.metrics.get(name).unwrap();
                assert!((got - x).abs() < 1e-5, "{how:?}, {per} rows: {name} is {got}, {x} expected");
            }
            let worst = grad.iter().zip(&want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max);
            assert!(worst < 2e-5 * scale, "{how:?}, {per} rows: off by {worst:e} of {scale:e}");
        }
    }
}
