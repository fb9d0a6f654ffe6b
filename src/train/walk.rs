//! One optimizer step as a walk over the blocks: up with no graph, then down with recompute and backward in one visit.
//!
//! All micro-batches of the step run inside each visit, so the weights cross disk and link once per step. The walk
//! stops at the lowest trainable block; blocks below it keep no activation.

use crate::checkpoint::{Arch, Checkpoint, Part};
use crate::data::collate::Batch;
use crate::device::shim;
use crate::error::{Error, Result};
use crate::event::Phase;
use crate::model::lora::BlockAdapter;
use crate::model::norm::rms_norm;
use crate::model::rope::RopeTable;
use crate::model::{Adapter, BlockContext, BlockWeights, Residents, block_forward, head};
use crate::plan::schedule::{Habit, segment};
use crate::stream::Streamer;
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

/// Loss and gradient of a step.
#[derive(Debug)]
pub struct StepLoss {
    /// Token-weighted mean; NaN when no token carried loss.
    pub loss: f64,
    /// Tokens that carried loss.
    pub trained_tokens: u64,
    /// Tokens through the blocks, padding not counted.
    pub tokens: u64,
    /// Gradient of the mean loss with respect to the adapter, flat f32 on the device.
    pub grad: Tensor,
}

/// The model in its streamed form.
pub struct BlockWalk {
    /// Architecture.
    pub arch: Arch,
    /// Adapter under training.
    pub adapter: Adapter,
    /// The stream of blocks.
    pub streamer: Streamer,
    residents: Residents,
    kind: Kind,
    device: Device,
    /// Tokens per chunk of head and loss.
    loss_chunk: usize,
}

impl BlockWalk {
    /// Joins the parts; they must be of one checkpoint and device.
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
        BlockWalk { arch: checkpoint.arch.clone(), adapter, streamer, residents, kind, device, loss_chunk }
    }

    fn lowest(&self) -> usize {
        self.adapter.layout.lowest
    }

    fn order(&self) -> Vec<crate::plan::schedule::Visit> {
        Habit { several: true, ..Habit::default() }.step(self.arch.n_layers, self.lowest(), 0)
    }

    /// Visits of a training step.
    #[must_use]
    pub fn visits(&self) -> usize {
        self.arch.n_layers + self.arch.n_layers - self.lowest()
    }

    /// Rotary tables of each batch's length, and the embedded inputs `[B, S, H]`.
    fn inputs(&self, batches: &[Batch]) -> Result<(Vec<RopeTable>, Vec<Tensor>)> {
        let _no_grad = tch::no_grad_guard();
        let tables = batches.iter().map(|b| RopeTable::new(&self.arch, 0, b.len, self.kind, self.device)).collect();
        let xs = batches
            .iter()
            .map(|b| self.residents.embed(&Tensor::from_slice(&b.ids).view([b.rows as i64, b.len as i64])))
            .collect::<Result<Vec<_>>>()?;
        Ok((tables, xs))
    }

    /// One visit's weights.
    fn acquire(streamer: &mut Streamer, block: usize, kind: Kind, device: Device) -> Result<BlockWeights> {
        let mut weights = BlockWeights::none();
        for part in Part::ALL {
            let (layout, slot) = streamer.take(segment(block, part))?;
            // SAFETY: the slot keeps the part until `done`, which comes after the visit's last kernel is queued and
            // after these views are dropped.
            unsafe { weights.add(layout, slot, kind, device) };
        }
        Ok(weights)
    }

    /// Runs one training step over `batches` (the micro-batches) and returns loss and gradient; updates nothing.
    ///
    /// # Errors
    /// A read, copy or kernel failed, or the observer stopped the walk.
    pub fn step(&mut self, batches: &[Batch], context: StepContext, observe: Observer<'_>) -> Result<StepLoss> {
        let order = self.order();
        let n = self.arch.n_layers;
        if self.streamer.is_idle() {
            self.streamer.extend(order.iter().cloned());
        }
        if context.more {
            self.streamer.extend(order.iter().cloned());
        }
        let trained_tokens: u64 = batches.iter().map(|b| b.trained_tokens() as u64).sum();
        let tokens = batches.iter().map(|b| b.tokens() as u64).sum();
        let (tables, mut xs) = self.inputs(batches)?;
        let mut saved: Vec<Vec<Tensor>> = Vec::with_capacity(n - self.lowest());
        let mut grads = Tensor::zeros([self.adapter.layout.len as i64], (Kind::Float, self.device));

        for block in 0..n {
            if block >= self.lowest() {
                saved.push(xs.iter().map(Tensor::shallow_clone).collect());
            }
            self.forward_visit(block, block, Phase::Forward, &tables, &mut xs, Some(context), observe)?;
        }

        observe(Visit { phase: Phase::Head, block: n - 1, index: n }, &mut self.streamer)?;
        let weight = 1.0 / trained_tokens.max(1) as f64;
        let mut loss_sum = Tensor::zeros([], (Kind::Double, self.device));
        let mut gxs = Vec::with_capacity(xs.len());
        for (x, batch) in xs.iter().zip(batches) {
            let (sum, gx) = self.head(x, batch, Some(weight))?;
            loss_sum += sum;
            gxs.push(gx.expect("asked for"));
            self.streamer.pump()?;
        }
        drop(xs);

        for (index, block) in (self.lowest()..n).rev().enumerate() {
            observe(Visit { phase: Phase::Backward, block, index: n + index }, &mut self.streamer)?;
            let weights = Self::acquire(&mut self.streamer, block, self.kind, self.device)?;
            let inputs = saved.pop().expect("one per trainable block");
            for (m, x) in inputs.into_iter().enumerate() {
                let gx = &gxs[m];
                let gx = self.backward_one(block, m, &x, gx, &weights, &tables[m], context, &mut grads)?;
                if let Some(gx) = gx {
                    gxs[m] = gx;
                }
                self.streamer.pump()?;
            }
            drop(weights);
            for part in Part::ALL.into_iter().rev() {
                self.streamer.done(segment(block, part))?;
            }
        }
        let loss = if trained_tokens == 0 { f64::NAN } else { loss_sum.double_value(&[]) * weight };
        Ok(StepLoss { loss, trained_tokens, tokens, grad: grads })
    }

    /// One block over every micro-batch, forward only.
    #[expect(clippy::too_many_arguments, reason = "a visit is what it is; the walk has no other caller")]
    fn forward_visit(
        &mut self,
        block: usize,
        index: usize,
        phase: Phase,
        tables: &[RopeTable],
        xs: &mut [Tensor],
        train: Option<StepContext>,
        observe: Observer<'_>,
    ) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        observe(Visit { phase, block, index }, &mut self.streamer)?;
        let weights = Self::acquire(&mut self.streamer, block, self.kind, self.device)?;
        let leaves = self.adapter.leaves(block, false);
        for (m, x) in xs.iter_mut().enumerate() {
            let context = BlockContext {
                arch: &self.arch,
                rope: &tables[m],
                block,
                adapter: Some(self.block_adapter(block, &leaves, train, m)),
            };
            *x = block_forward(x, &weights, &context, None)?;
            self.streamer.pump()?;
        }
        drop(weights);
        Part::ALL.into_iter().try_for_each(|part| self.streamer.done(segment(block, part)))
    }

    fn block_adapter<'a>(
        &'a self,
        block: usize,
        leaves: &'a [crate::model::Linear],
        train: Option<StepContext>,
        micro_batch: usize,
    ) -> BlockAdapter<'a> {
        let layout = &self.adapter.layout;
        BlockAdapter {
            targets: &layout.targets[layout.of_block(block)],
            leaves,
            scale: layout.scale,
            dropout: if train.is_some() { layout.dropout } else { 0.0 },
            mask: train.map_or((0, 0, 0), |c| (c.seed, c.step, micro_batch)),
        }
    }

    /// Recompute and backward of one block for one micro-batch; adds the adapter's gradients to `grads`.
    ///
    /// Returns the gradient of the block's input, `None` at the lowest trainable block.
    #[expect(clippy::too_many_arguments, reason = "a visit is what it is; the walk has no other caller")]
    fn backward_one(
        &self,
        block: usize,
        micro_batch: usize,
        x: &Tensor,
        gy: &Tensor,
        weights: &BlockWeights,
        rope: &RopeTable,
        train: StepContext,
        grads: &mut Tensor,
    ) -> Result<Option<Tensor>> {
        let needs_input = block > self.lowest();
        let x = x.detach().set_requires_grad(needs_input);
        let leaves = self.adapter.leaves(block, true);
        let adapter = Some(self.block_adapter(block, &leaves, Some(train), micro_batch));
        let y = block_forward(&x, weights, &BlockContext { arch: &self.arch, rope, block, adapter }, None)?;
        let mut wanted: Vec<&Tensor> = leaves.iter().flat_map(|l| [&l.a, &l.b]).collect();
        if needs_input {
            wanted.push(&x);
        }
        let mut got = shim::grad(&[&y], &[gy], &wanted)?;
        let gx = if needs_input { got.pop().flatten() } else { None };
        let _no_grad = tch::no_grad_guard();
        let layout = &self.adapter.layout;
        let places = layout.targets[layout.of_block(block)].iter().flat_map(|t| [t.a, t.b]);
        for (at, g) in places.zip(got) {
            let g = g.ok_or_else(|| Error::run(format!("block {block}: an adapter tensor got no gradient")))?;
            let mut place = grads.narrow(0, at as i64, g.numel() as i64);
            let _ = place.g_add_(&g.to_kind(Kind::Float).view([-1]));
        }
        if needs_input && gx.is_none() {
            return Err(Error::run(format!("block {block}: its input got no gradient")));
        }
        Ok(gx)
    }

    /// Final norm, head and loss of one micro-batch: sum of token losses (f64 scalar), and the gradient of `x` for the
    /// loss sum times `weight`.
    fn head(&self, x: &Tensor, batch: &Batch, weight: Option<f64>) -> Result<(Tensor, Option<Tensor>)> {
        let hidden = x.size()[2];
        let (places, labels): (Vec<i64>, Vec<i64>) =
            batch.labels.iter().enumerate().filter(|&(_, &l)| l >= 0).map(|(i, &l)| (i as i64, l)).unzip();
        if places.is_empty() {
            return Ok((Tensor::zeros([], (Kind::Double, self.device)), weight.map(|_| x.zeros_like())));
        }
        let place = |v: &[i64]| Tensor::from_slice(v).to_device(self.device);
        let places = place(&places);
        let selected = x.detach().view([-1, hidden]).index_select(0, &places).set_requires_grad(weight.is_some());
        let normed = rms_norm(&selected, &self.residents.norm, self.arch.norm_eps);
        let out = head::head_loss(&normed.detach(), &place(&labels), &self.residents.head, weight, self.loss_chunk);
        let gx = match out.grad {
            None => None,
            Some(g) => {
                let g = shim::grad(&[&normed], &[&g], &[&selected])?.remove(0);
                let g = g.ok_or_else(|| Error::run("the final norm got no gradient"))?;
                let mut gx = x.zeros_like().view([-1, hidden]);
                let _ = gx.index_copy_(0, &places, &g);
                Some(gx.view_as(x))
            }
        };
        Ok((out.loss_sum, gx))
    }

    /// Held-out loss: sum over trained tokens, and their number. Forward only, dropout off.
    ///
    /// # Errors
    /// As [`BlockWalk::step`].
    pub fn evaluate(&mut self, batches: &[Batch], observe: Observer<'_>) -> Result<(f64, u64)> {
        let xs = self.forward(batches, observe)?;
        let mut sum = 0.0;
        for (x, batch) in xs.iter().zip(batches) {
            sum += self.head(x, batch, None)?.0.double_value(&[]);
        }
        Ok((sum, batches.iter().map(|b| b.trained_tokens() as u64).sum()))
    }

    /// Hidden states `[B, S, H]` after the last block, forward only, dropout off.
    fn forward(&mut self, batches: &[Batch], observe: Observer<'_>) -> Result<Vec<Tensor>> {
        self.streamer.forget()?;
        let habit = Habit { several: true, ..Habit::default() };
        self.streamer.extend((0..self.arch.n_layers).map(|b| habit.forward(b)));
        let (tables, mut xs) = self.inputs(batches)?;
        for block in 0..self.arch.n_layers {
            self.forward_visit(block, block, Phase::Eval, &tables, &mut xs, None, observe)?;
        }
        Ok(xs)
    }

    /// Logits `[B, S, V]` in f32 of one batch, whole: for tests and small inputs.
    ///
    /// # Errors
    /// As [`BlockWalk::step`].
    pub fn logits(&mut self, batch: &Batch) -> Result<Tensor> {
        let x = self.forward(std::slice::from_ref(batch), &mut |_, _| Ok(()))?.remove(0);
        let _no_grad = tch::no_grad_guard();
        let normed = rms_norm(&x, &self.residents.norm, self.arch.norm_eps);
        Ok(normed.matmul(&self.residents.head.tr()).to_kind(Kind::Float))
    }
}
