//! One optimizer step as a walk over the blocks: up, then down with recompute and backward in one visit.
//!
//! All micro-batches of the step run inside each visit, so the weights cross disk and link once per step. The walk
//! stops at the lowest trainable block; blocks below it keep no activation.

use crate::checkpoint::{Arch, Checkpoint};
use crate::data::collate::Batch;
use crate::error::Result;
use crate::event::Phase;
use crate::model::rope::{RopeCache, RopeTable};
use crate::model::{
    Adapter, BlockContext, BlockWeights, Kernels, Residents, Whole, block_backward, block_forward, head,
};
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
    /// The operations blocks compute with.
    pub kernels: &'static Kernels,
    /// Tokens of the feed-forward at a time; 0 = all.
    pub mlp_chunk: usize,
    residents: Residents,
    ropes: RopeCache,
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
        BlockWalk {
            arch: checkpoint.arch.clone(),
            adapter,
            streamer,
            kernels: Kernels::of(device),
            mlp_chunk: 0,
            residents,
            ropes: RopeCache::default(),
            kind,
            device,
            loss_chunk,
        }
    }

    fn lowest(&self) -> usize {
        self.adapter.layout.lowest
    }

    fn order(&self) -> Vec<usize> {
        let n = self.arch.n_layers;
        (0..n).chain((self.lowest()..n).rev()).collect()
    }

    /// Visits of a training step.
    #[must_use]
    pub fn visits(&self) -> usize {
        self.arch.n_layers + self.arch.n_layers - self.lowest()
    }

    /// Rotary tables of each batch's length, and the embedded inputs `[B, S, H]`.
    fn inputs(&mut self, batches: &[Batch]) -> Result<(Vec<RopeTable>, Vec<Tensor>)> {
        let _no_grad = tch::no_grad_guard();
        let tables = batches.iter().map(|b| self.ropes.get(&self.arch, b.len, self.kind, self.device)).collect();
        let xs = batches
            .iter()
            .map(|b| self.residents.embed(&Tensor::from_slice(&b.ids).view([b.rows as i64, b.len as i64])))
            .collect::<Result<Vec<_>>>()?;
        Ok((tables, xs))
    }

    /// One visit's weights.
    fn acquire(streamer: &mut Streamer, kind: Kind, device: Device) -> Result<Whole> {
        let (layout, slot) = streamer.acquire()?;
        // SAFETY: the slot keeps the block until `release`, which comes after the visit's last kernel is queued and
        // after these views are dropped.
        Ok(Whole::new(unsafe { BlockWeights::view(layout, slot, kind, device) }))
    }

    /// Runs one training step over `batches` (the micro-batches) and returns loss and gradient; updates nothing.
    ///
    /// # Errors
    /// A read, copy or kernel failed, or the observer stopped the walk.
    pub fn step(&mut self, batches: &[Batch], context: StepContext, observe: Observer<'_>) -> Result<StepLoss> {
        let order = self.order();
        let n = self.arch.n_layers;
        if self.streamer.left() == 0 {
            self.streamer.extend(order.iter().copied());
        }
        if context.more {
            self.streamer.extend(order.iter().copied());
        }
        let trained_tokens: u64 = batches.iter().map(|b| b.trained_tokens() as u64).sum();
        let tokens = batches.iter().map(|b| b.tokens() as u64).sum();
        let (tables, mut xs) = self.inputs(batches)?;
        let mut saved: Vec<Vec<Tensor>> = Vec::with_capacity(n - self.lowest());
        let grads = Tensor::zeros([self.adapter.layout.len as i64], (Kind::Float, self.device));

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
            let mut weights = Self::acquire(&mut self.streamer, self.kind, self.device)?;
            let inputs = saved.pop().expect("one per trainable block");
            for (m, x) in inputs.into_iter().enumerate() {
                let context = self.context(block, &tables[m], Some((context.seed, context.step, m)));
                if let Some(gx) = block_backward(&x, &gxs[m], &mut weights, &context, &grads)? {
                    gxs[m] = gx;
                }
                self.streamer.pump()?;
            }
            drop(weights);
            self.streamer.release()?;
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
        let mut weights = Self::acquire(&mut self.streamer, self.kind, self.device)?;
        for (m, x) in xs.iter_mut().enumerate() {
            let context = self.context(block, &tables[m], train.map(|c| (c.seed, c.step, m)));
            *x = block_forward(x, &mut weights, &context, None)?;
            self.streamer.pump()?;
        }
        drop(weights);
        self.streamer.release()
    }

    /// What `block` needs; `mask` is seed, step and micro-batch of dropout in training.
    fn context<'a>(&'a self, block: usize, rope: &'a RopeTable, mask: Option<(u64, u64, usize)>) -> BlockContext<'a> {
        BlockContext {
            arch: &self.arch,
            kernels: self.kernels,
            rope,
            block,
            adapter: Some(self.adapter.block(block, mask)),
            mlp_chunk: self.mlp_chunk,
            needs_input: block > self.lowest(),
        }
    }

    /// Final norm, head and loss of one micro-batch: sum of token losses (f64 scalar), and the gradient of `x` for the
    /// loss sum times `weight`.
    fn head(&self, x: &Tensor, batch: &Batch, weight: Option<f64>) -> Result<(Tensor, Option<Tensor>)> {
        let _no_grad = tch::no_grad_guard();
        let hidden = x.size()[2];
        let (places, labels): (Vec<i64>, Vec<i64>) =
            batch.labels.iter().enumerate().filter(|&(_, &l)| l >= 0).map(|(i, &l)| (i as i64, l)).unzip();
        if places.is_empty() {
            return Ok((Tensor::zeros([], (Kind::Double, self.device)), weight.map(|_| x.zeros_like())));
        }
        let place = |v: &[i64]| Tensor::from_slice(v).to_device(self.device);
        let places = place(&places);
        let (norm, eps) = (&self.residents.norm, self.arch.norm_eps);
        let selected = x.detach().view([-1, hidden]).index_select(0, &places);
        let normed = self.kernels.rms_norm(&selected, norm, eps)?;
        let (labels, head) = (place(&labels), &self.residents.head);
        let out = head::head_loss(self.kernels, &normed, &labels, head, weight, self.loss_chunk)?;
        drop(normed);
        let gx = match out.grad {
            None => None,
            Some(g) => {
                self.kernels.rms_norm_backward(&selected, norm, eps, &g, None)?;
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
        self.streamer.forget();
        self.streamer.extend(0..self.arch.n_layers);
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
        let (rows, s, hidden) = x.size3()?;
        let x = x.view([rows * s, hidden]);
        let normed = self.kernels.rms_norm(&x, &self.residents.norm, self.arch.norm_eps)?.view([rows, s, hidden]);
        Ok(normed.matmul(&self.residents.head.tr()).to_kind(Kind::Float))
    }
}
