//! One optimizer step as a walk over the blocks: up, then down with recompute and backward in one visit.
//!
//! All micro-batches of the step run inside each visit, so the weights cross disk and link once per step. The walk
//! stops at the lowest trainable block; blocks below it keep no activation.

use super::inputs::Inputs;
use super::objective::{Objective, Sft, Sums, mean};
use crate::checkpoint::{Arch, Checkpoint};
use crate::data::collate::Batch;
use crate::error::Result;
use crate::event::{LOSS, Metrics, Phase};
use crate::model::rope::{RopeCache, RopeTable};
use crate::model::visit::{Streamed, logits};
use crate::model::{Adapter, BlockContext, Kernels, Residents, block_backward, block_forward};
use crate::plan::schedule::{Habit, Visit as Program, tile};
use crate::stream::{Boundaries, Streamer};
use tch::{Device, Kind, Tensor};

/// Where the walk is, for the observer.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    /// Part of the step.
    pub phase: Phase,
    /// Block being visited.
    pub block: usize,
    /// Visits done in this step.
    pub index: usize,
}

/// Called at every visit; an error ends the walk there (a stop at once).
pub type Observer<'a> = &'a mut dyn FnMut(Visit, &mut Streamer) -> Result<()>;

/// Facts of a step that the walk needs.
#[derive(Clone, Copy, Debug)]
pub struct StepContext {
    /// Step number from 0: seeds dropout.
    pub step: u64,
    /// Run seed.
    pub seed: u64,
    /// Another training step follows: its first blocks are fetched across the border.
    pub more: bool,
}

/// Metrics and gradient of a step.
#[derive(Debug)]
pub struct StepLoss {
    /// What the objective measured: the loss, which is NaN when no token carried loss, and whatever else it names.
    pub metrics: Metrics,
    /// Tokens that carried loss.
    pub trained_tokens: u64,
    /// Tokens through the blocks, padding not counted.
    pub tokens: u64,
    /// Gradient of the mean loss with respect to the adapter, flat f32 on the device.
    pub grad: Tensor,
}

impl StepLoss {
    /// The loss that is minimised; NaN when no token carried loss.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.metrics.get(LOSS).unwrap_or(f64::NAN)
    }
}

/// A step whose kernels are queued.
#[derive(Debug)]
pub struct QueuedStep {
    sums: Sums,
    /// What the loss is a mean over.
    units: u64,
    trained_tokens: u64,
    tokens: u64,
    /// As [`StepLoss::grad`].
    pub grad: Tensor,
}

impl QueuedStep {
    /// Waits for the metrics.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn read(self) -> Result<StepLoss> {
        let QueuedStep { sums, units, trained_tokens, tokens, grad } = self;
        let mut metrics = Metrics::from([(LOSS, f64::NAN)]);
        metrics.extend(sums.read(mean(units))?.iter());
        Ok(StepLoss { metrics, trained_tokens, tokens, grad })
    }
}

/// The model in its streamed form.
pub struct BlockWalk {
    /// Architecture.
    pub arch: Arch,
    /// What a step minimises.
    pub objective: Box<dyn Objective>,
    /// Adapter under training.
    pub adapter: Adapter,
    /// The stream of blocks.
    pub streamer: Streamer,
    /// The operations blocks compute with.
    pub kernels: &'static Kernels,
    /// Most tokens of the feed-forward at a time; 0 = no limit. A split block's goes in one all the same.
    pub mlp_chunk: usize,
    /// Inputs of the trained blocks between the sweeps.
    pub boundaries: Boundaries,
    pub(super) residents: Residents,
    /// Inputs made ahead.
    pub(super) next: Option<Inputs>,
    pub(super) ropes: RopeCache,
    pub(super) kind: Kind,
    pub(super) device: Device,
    /// Tokens per chunk of head and loss.
    pub(super) loss_chunk: usize,
    /// How the program that the streamer has was laid out.
    told: Option<Habit>,
}

impl BlockWalk {
    /// Joins the parts; they must be of one checkpoint and device. It minimises [`Sft`] until told otherwise.
    #[must_use]
    pub fn new(
        checkpoint: &Checkpoint,
        residents: Residents,
        adapter: Adapter,
        streamer: Streamer,
        kind: Kind,
        loss_chunk: usize,
    ) -> BlockWalk {
        let device = streamer.device();
        BlockWalk {
            arch: checkpoint.arch.clone(),
            objective: Box::new(Sft),
            adapter,
            streamer,
            kernels: Kernels::of(device),
            mlp_chunk: 0,
            boundaries: Boundaries::kept(),
            residents,
            next: None,
            ropes: RopeCache::default(),
            kind,
            device,
            loss_chunk,
            told: None,
        }
    }

    fn lowest(&self) -> usize {
        self.adapter.layout.lowest
    }

    /// The length to which rows of `length` tokens are padded, `most` at most.
    #[must_use]
    pub fn row_length(&self, length: usize, most: usize) -> usize {
        if self.arch.windows.iter().any(Option::is_some) {
            return length;
        }
        self.kernels.row_length(self.kind, self.arch.head_dim as i64, length, most)
    }

    /// Tokens of the feed-forward at a time in a micro-batch of `tokens`; 0 = all at once.
    fn tile(&self, tokens: usize) -> usize {
        tile(tokens, self.mlp_chunk, self.streamer.is_split())
    }

    /// How visits use parts with `batches` in each.
    fn habit(&self, batches: &[Batch]) -> Habit {
        let first = batches.first().map_or(0, |b| b.rows * b.len);
        Habit::of(batches.len(), self.tile(first), self.streamer.is_split())
    }

    /// Tells the streamer this step, and the next one if it follows.
    fn tell(&mut self, habit: Habit, more: bool) -> Result<()> {
        let pieces = self.streamer.head_pieces();
        let step: Vec<Program> = habit.step(self.arch.n_layers, self.lowest(), pieces);
        if self.told != Some(habit) {
            self.streamer.forget()?;
        }
        if self.streamer.is_idle() {
            self.streamer.extend(step.iter().cloned());
        }
        if more {
            self.streamer.extend(step);
        }
        self.told = Some(habit);
        Ok(())
    }

    /// Forgets a step that was cut short, so that another can begin.
    ///
    /// # Errors
    /// A read that had begun failed.
    pub fn abandon(&mut self) -> Result<()> {
        self.boundaries.clear();
        self.told = None;
        self.streamer.forget()
    }

    /// Visits of a training step.
    #[must_use]
    pub fn visits(&self) -> usize {
        self.arch.n_layers + self.arch.n_layers - self.lowest()
    }

    /// Runs one training step over `batches` (the micro-batches) and returns loss and gradient; updates nothing.
    ///
    /// After an error, [`BlockWalk::abandon`] before the next step.
    ///
    /// # Errors
    /// A read, copy or kernel failed, or the observer stopped the walk.
    pub fn step(&mut self, batches: &[Batch], context: StepContext, observe: Observer<'_>) -> Result<StepLoss> {
        self.queue_step(batches, context, observe)?.read()
    }

    /// As [`BlockWalk::step`], but leaves the metrics on the device: nothing has been waited for.
    ///
    /// # Errors
    /// As [`BlockWalk::step`].
    pub fn queue_step(&mut self, batches: &[Batch], context: StepContext, observe: Observer<'_>) -> Result<QueuedStep> {
        let _no_grad = tch::no_grad_guard();
        let n = self.arch.n_layers;
        let habit = self.habit(batches);
        self.tell(habit, context.more)?;
        let trained_tokens: u64 = batches.iter().map(|b| b.trained_tokens() as u64).sum();
        let tokens = batches.iter().map(|b| b.tokens() as u64).sum();
        let Inputs { tables, mut xs, labels, .. } = self.inputs(batches)?;
        let grads = Tensor::f_zeros([self.adapter.layout.len as i64], (Kind::Float, self.device))?;

        for block in 0..n {
            if block >= self.lowest() {
                self.boundaries.save(&xs)?;
            }
            self.up(
                Visit { phase: Phase::Forward, block, index: block },
                habit,
                &tables,
                &mut xs,
                Some(context),
                observe,
            )?;
        }

        self.boundaries.prefetch()?;
        observe(Visit { phase: Phase::Head, block: n - 1, index: n }, &mut self.streamer)?;
        let (sums, mut gxs) = self.losses(batches, xs, labels, true)?;

        for (index, block) in (self.lowest()..n).rev().enumerate() {
            let visit = Visit { phase: Phase::Backward, block, index: n + index };
            observe(visit, &mut self.streamer)?;
            let inputs = self.boundaries.take()?;
            self.streamer.begin(visit.phase, block)?;
            let tiles: Vec<usize> = inputs.iter().map(|x| self.tile(tokens_of(x))).collect();
            let mut weights = Streamed::backward(&mut self.streamer, block, self.kind, habit);
            for (m, x) in inputs.iter().enumerate() {
                weights.begin(tiles[m], m + 1 == inputs.len())?;
                let context = BlockContext {
                    adapter: Some(self.adapter.block(block, Some((context.seed, context.step, m)))),
                    needs_input: block > self.adapter.layout.lowest,
                    ..fixed(&self.arch, self.kernels, &tables[m], block, tiles[m])
                };
                if let Some(gx) = block_backward(x, &gxs[m], &mut weights, &context, &grads)? {
                    gxs[m] = gx;
                }
            }
        }
        // Only here, in f32: what went down through the blocks was the sum's gradient, which f16 holds at any number of
        // tokens.
        let units = self.units(batches);
        let grad = grads.shallow_clone().f_mul_scalar_(self.objective.factor(units))?;
        Ok(QueuedStep { sums, units, trained_tokens, tokens, grad })
    }

    /// What the loss over `batches` is a mean over.
    fn units(&self, batches: &[Batch]) -> u64 {
        batches.iter().map(|b| self.objective.units(b)).sum()
    }

    /// One block over every micro-batch, forward only.
    fn up(
        &mut self,
        visit: Visit,
        habit: Habit,
        tables: &[RopeTable],
        xs: &mut [Tensor],
        train: Option<StepContext>,
        observe: Observer<'_>,
    ) -> Result<()> {
        observe(visit, &mut self.streamer)?;
        self.streamer.begin(visit.phase, visit.block)?;
        let tiles: Vec<usize> = xs.iter().map(|x| self.tile(tokens_of(x))).collect();
        let mut weights = Streamed::forward(&mut self.streamer, visit.block, self.kind, habit);
        for (m, x) in xs.iter_mut().enumerate() {
            weights.begin(tiles[m], m + 1 == tiles.len())?;
            let context = BlockContext {
                adapter: Some(self.adapter.block(visit.block, train.map(|c| (c.seed, c.step, m)))),
                ..fixed(&self.arch, self.kernels, &tables[m], visit.block, tiles[m])
            };
            *x = block_forward(x, &mut weights, &context, None)?;
        }
        Ok(())
    }

    /// Held-out loss: its sum, and the number of units (trained tokens, …) that it is a mean over. Forward only, dropout off.
    ///
    /// # Errors
    /// As [`BlockWalk::step`].
    pub fn evaluate(&mut self, batches: &[Batch], observe: Observer<'_>) -> Result<(f64, u64)> {
        let _no_grad = tch::no_grad_guard();
        let Inputs { xs, labels, .. } = self.forward(batches, observe)?;
        let (sums, _) = self.losses(batches, xs, labels, false)?;
        Ok((sums.read(1.0)?.get(LOSS).unwrap_or(0.0), self.units(batches)))
    }

    /// The inputs with hidden states `[B, S, H]` after the last block in their place, forward only, dropout off.
    fn forward(&mut self, batches: &[Batch], observe: Observer<'_>) -> Result<Inputs> {
        let habit = self.habit(batches);
        self.streamer.forget()?;
        self.told = None;
        self.streamer.extend(habit.sweep(self.arch.n_layers, self.streamer.head_pieces()));
        let mut inputs = self.inputs(batches)?;
        for block in 0..self.arch.n_layers {
            let visit = Visit { phase: Phase::Eval, block, index: block };
            self.up(visit, habit, &inputs.tables, &mut inputs.xs, None, observe)?;
        }
        Ok(inputs)
    }

    /// Logits `[B, S, V]` in f32 of one batch, whole: for tests and small inputs.
    ///
    /// # Errors
    /// As [`BlockWalk::step`].
    pub fn logits(&mut self, batch: &Batch) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        let x = self.forward(std::slice::from_ref(batch), &mut |_, _| Ok(()))?.xs.remove(0);
        let (rows, s, hidden) = x.size3()?;
        let x = x.view([rows * s, hidden]);
        let normed = self.residents.normed(self.kernels, &x)?.view([rows, s, hidden]);
        logits(&normed, &self.residents, &mut self.streamer, self.arch.n_layers, self.kind)
    }
}

/// Tokens of a micro-batch's states `[B, S, H]`.
fn tokens_of(x: &Tensor) -> usize {
    x.size()[..2].iter().product::<i64>() as usize
}

/// What a visit of `block` needs besides its adapter.
fn fixed<'a>(arch: &'a Arch, kernels: &'a Kernels, rope: &'a RopeTable, block: usize, tile: usize) -> BlockContext<'a> {
    BlockContext { arch, kernels, rope, block, adapter: None, tile, needs_input: false }
}
