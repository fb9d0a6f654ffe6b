//! The turn of the walk: final norm, head and objective of every micro-batch, and the gradient that goes down.

use super::objective::{Scored, Sums};
use super::walk::BlockWalk;
use crate::data::collate::Batch;
use crate::error::Result;
use crate::event::Phase;
use crate::model::head::{Asked, HeadLoss, OnlineHead, head_loss};
use crate::model::visit::head_pieces;
use tch::Tensor;

/// The places of a micro-batch that carry loss.
struct Labelled {
    /// Their row numbers among all tokens, Int64 `[N]`.
    places: Tensor,
    /// Int64 `[N]`
    labels: Tensor,
    /// Hidden states before the final norm, `[N, H]`.
    states: Tensor,
    /// The same normed.
    normed: Tensor,
    /// Shape of the whole micro-batch, `[B, S, H]`.
    shape: Vec<i64>,
}

impl Labelled {
    /// What the head is asked of them.
    fn asked(&self, cap: Option<f64>, wanted: bool, tokens: usize) -> Asked<'_> {
        Asked { hidden: &self.normed, labels: &self.labels, cap, wanted, tokens }
    }
}

impl BlockWalk {
    /// Sums of the objective's metrics over all micro-batches, and if `wanted` the gradient of the weighted sum of token
    /// losses for each `x` `[B, S, H]`, without the factor that all tokens share.
    pub(super) fn losses(
        &mut self,
        batches: &[Batch],
        xs: Vec<Tensor>,
        labels: Vec<Option<(Tensor, Tensor)>>,
        wanted: bool,
    ) -> Result<(Sums, Vec<Tensor>)> {
        self.streamer.begin(Phase::Head, self.arch.n_layers - 1)?;
        let mut sums = Sums::default();
        let mut gxs = Vec::new();
        let heard = self.streamer.heard();
        let (cap, tokens) = (self.residents.cap, self.loss_chunk);
        if self.residents.head.is_some() {
            // One micro-batch at a time: only one's states and chunk of logits are there at once.
            for ((batch, x), labels) in batches.iter().zip(xs).zip(labels) {
                let labelled = self.labelled(&x, labels)?;
                let loss = match (&labelled, &self.residents.head) {
                    (Some(l), Some(head)) => Some(head_loss(self.kernels, l.asked(cap, wanted, tokens), head, &heard)?),
                    _ => None,
                };
                gxs.extend(self.collect(batch, labelled, loss, wanted, &x, &mut sums)?);
                self.streamer.pump()?;
            }
        } else {
            // The head's rows come once, for all micro-batches.
            let labelled: Vec<_> = xs.iter().zip(labels).map(|(x, l)| self.labelled(x, l)).collect::<Result<_>>()?;
            let mut online = Vec::new();
            for l in &labelled {
                let start = |l: &Labelled| OnlineHead::new(self.kernels, l.asked(cap, wanted, tokens));
                online.push(l.as_ref().map(start).transpose()?);
            }
            head_pieces(&mut self.streamer, self.arch.n_layers, self.kind, &mut |rows, first| {
                online.iter_mut().flatten().try_for_each(|o| o.chunk(rows, first, &heard))
            })?;
            for (((batch, o), l), x) in batches.iter().zip(online).zip(labelled).zip(&xs) {
                let loss = o.map(OnlineHead::finish).transpose()?;
                gxs.extend(self.collect(batch, l, loss, wanted, x, &mut sums)?);
            }
        }
        Ok((sums, gxs))
    }

    fn labelled(&self, x: &Tensor, labels: Option<(Tensor, Tensor)>) -> Result<Option<Labelled>> {
        let Some((places, labels)) = labels else { return Ok(None) };
        let states = x.view([-1, x.size()[2]]).f_index_select(0, &places)?;
        let normed = self.residents.normed(self.kernels, &states)?;
        Ok(Some(Labelled { places, labels, states, normed, shape: x.size() }))
    }

    /// Adds what the objective makes of a micro-batch, and if `wanted` takes its gradient through the final norm to where
    /// its tokens stand: `[B, S, H]`, zero where there is no label.
    fn collect(
        &self,
        batch: &Batch,
        labelled: Option<Labelled>,
        loss: Option<HeadLoss>,
        wanted: bool,
        x: &Tensor,
        sums: &mut Sums,
    ) -> Result<Option<Tensor>> {
        let (Some(l), Some(loss)) = (labelled, loss) else {
            return Ok(if wanted { Some(x.f_zeros_like()?) } else { None });
        };
        let score = self.objective.score(&Scored { batch, nll: &loss.nll })?;
        sums.add(score.sums);
        let Some(mut g) = loss.grad else { return Ok(None) };
        if let Some(weights) = score.weights {
            let _ = g.f_mul_(&weights.unsqueeze(1))?;
        }
        drop(l.normed);
        self.residents.normed_backward(self.kernels, &l.states, &g)?;
        let mut gx = x.f_zeros_like()?.view([-1, l.shape[2]]);
        let _ = gx.f_index_copy_(0, &l.places, &g)?;
        Ok(Some(gx.view(l.shape.as_slice())))
    }
}
