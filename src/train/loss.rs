//! The turn of the walk: final norm, head and loss of every micro-batch, and the gradient that goes down.

use super::walk::BlockWalk;
use crate::error::Result;
use crate::event::Phase;
use crate::model::head::{HeadLoss, OnlineHead, head_loss};
use crate::model::visit::head_pieces;
use tch::{Kind, Tensor};

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

impl BlockWalk {
    /// Sum of token losses (f64 scalar) over all micro-batches, and its gradient for each `x` `[B, S, H]` if `wanted`.
    pub(super) fn losses(
        &mut self,
        xs: Vec<Tensor>,
        labels: Vec<Option<(Tensor, Tensor)>>,
        wanted: bool,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        self.streamer.begin(Phase::Head, self.arch.n_layers - 1)?;
        let mut sum = Tensor::f_zeros([], (Kind::Double, self.device))?;
        let mut gxs = Vec::new();
        let heard = self.streamer.heard();
        if self.residents.head.is_some() {
            // One micro-batch at a time: only one's states and chunk of logits are there at once.
            for (x, labels) in xs.into_iter().zip(labels) {
                let labelled = self.labelled(&x, labels)?;
                let loss = match (&labelled, &self.residents.head) {
                    (Some(l), Some(head)) => {
                        Some(head_loss(self.kernels, &l.normed, &l.labels, head, wanted, self.loss_chunk, &heard)?)
                    }
                    _ => None,
                };
                self.collect(labelled, loss, wanted, &x, &mut sum, &mut gxs)?;
                self.streamer.pump()?;
            }
        } else {
            // The head's rows come once, for all micro-batches.
            let labelled: Vec<_> = xs.iter().zip(labels).map(|(x, l)| self.labelled(x, l)).collect::<Result<_>>()?;
            let mut online = Vec::new();
            for l in &labelled {
                let start = |l: &Labelled| OnlineHead::new(self.kernels, &l.normed, &l.labels, wanted, self.loss_chunk);
                online.push(l.as_ref().map(start).transpose()?);
            }
            head_pieces(&mut self.streamer, self.arch.n_layers, self.kind, &mut |rows, first| {
                online.iter_mut().flatten().try_for_each(|o| o.chunk(rows, first, &heard))
            })?;
            for ((o, l), x) in online.into_iter().zip(labelled).zip(&xs) {
                let loss = o.map(OnlineHead::finish).transpose()?;
                self.collect(l, loss, wanted, x, &mut sum, &mut gxs)?;
            }
        }
        Ok((sum, gxs))
    }

    fn labelled(&self, x: &Tensor, labels: Option<(Tensor, Tensor)>) -> Result<Option<Labelled>> {
        let Some((places, labels)) = labels else { return Ok(None) };
        let states = x.view([-1, x.size()[2]]).f_index_select(0, &places)?;
        let normed = self.kernels.rms_norm(&states, &self.residents.norm, self.arch.norm_eps)?;
        Ok(Some(Labelled { places, labels, states, normed, shape: x.size() }))
    }

    /// Adds a micro-batch's loss, and takes its gradient through the final norm to where its tokens stand.
    fn collect(
        &self,
        labelled: Option<Labelled>,
        loss: Option<HeadLoss>,
        wanted: bool,
        x: &Tensor,
        sum: &mut Tensor,
        gxs: &mut Vec<Tensor>,
    ) -> Result<()> {
        let (Some(l), Some(loss)) = (labelled, loss) else {
            if wanted {
                gxs.push(x.f_zeros_like()?);
            }
            return Ok(());
        };
        *sum += loss.loss_sum;
        if let Some(g) = loss.grad {
            drop(l.normed);
            self.kernels.rms_norm_backward(&l.states, &self.residents.norm, self.arch.norm_eps, &g, None)?;
            let mut gx = x.f_zeros_like()?.view([-1, l.shape[2]]);
            let _ = gx.f_index_copy_(0, &l.places, &g)?;
            gxs.push(gx.view(l.shape.as_slice()));
        }
        Ok(())
    }
}
