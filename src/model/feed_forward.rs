//! The SwiGLU half of a block, forward and backward, over all tokens or in token chunks.
//!
//! Its three tensors of the intermediate width are the largest of a block: gradients are written over the activations
//! they belong to, and chunks make all three small.

use super::block::{BlockContext, linear};
use super::delta::Delta;
use super::lora::Group;
use super::weights::{BlockWeights, Weights};
use crate::checkpoint::{Part, Role};
use crate::device::shim::gemm;
use crate::error::Result;
use std::rc::Rc;
use tch::Tensor;

/// The weights of the feed-forward: taken use by use, or once for a loop over chunks.
struct Parts<'a> {
    weights: &'a mut dyn Weights,
    held: Vec<(Part, Rc<BlockWeights>)>,
}

impl<'a> Parts<'a> {
    fn open(weights: &'a mut dyn Weights, tile: usize) -> Result<Parts<'a>> {
        let mut held = Vec::new();
        if tile > 0 {
            for part in [Part::Gate, Part::Up, Part::Down] {
                held.push((part, weights.take(part)?));
            }
        }
        Ok(Parts { weights, held })
    }

    /// Runs one use of `part`.
    fn with<T>(&mut self, part: Part, f: impl FnOnce(&BlockWeights) -> Result<T>) -> Result<T> {
        if let Some((_, held)) = self.held.iter().find(|(p, _)| *p == part) {
            return f(held);
        }
        let taken = self.weights.take(part)?;
        let out = f(&taken)?;
        drop(taken);
        self.weights.done(part)?;
        Ok(out)
    }

    /// Gives back what a loop held, in `order`.
    fn close(mut self, order: [Part; 3]) -> Result<()> {
        let held = !self.held.is_empty();
        self.held.clear();
        if held {
            for part in order {
                self.weights.done(part)?;
            }
        }
        Ok(())
    }
}

/// `(first, length)` of each chunk of `tokens`.
fn chunks(tokens: i64, tile: usize) -> Vec<(i64, i64)> {
    let step = if tile == 0 { tokens } else { (tile as i64).min(tokens) }.max(1);
    (0..tokens).step_by(step as usize).map(|at| (at, step.min(tokens - at))).collect()
}

/// Gate and up of `h` `[T, H]` from token `first` → two `[T, I]`, and the adapter's low activations.
fn gate_up(
    h: &Tensor,
    first: i64,
    parts: &mut Parts<'_>,
    delta: Option<Delta<'_>>,
) -> Result<(Tensor, Tensor, Option<Tensor>)> {
    let low = delta.map(|d| d.squeeze(h, first)).transpose()?;
    let mut project = |part, role, bias| {
        let y = parts.with(part, |w| linear(h, w.must(role), w.get(bias)))?;
        if let (Some(d), Some(low)) = (delta, &low) {
            d.expand(role, low, &y)?;
        }
        Ok::<Tensor, crate::error::Error>(y)
    };
    let gate = project(Part::Gate, Role::Gate, Role::GateBias)?;
    let up = project(Part::Up, Role::Up, Role::UpBias)?;
    Ok((gate, up, low))
}

/// Adds the feed-forward of `h` (the normed `x`) to `x`, in place; both `[T, H]`.
pub(super) fn forward(x: &Tensor, h: &Tensor, weights: &mut dyn Weights, context: &BlockContext<'_>) -> Result<()> {
    let chunks = chunks(x.size()[0], context.tile);
    let mut parts = Parts::open(weights, context.tile)?;
    let (delta, down_delta) = (context.delta(Group::GateUp), context.delta(Group::Down));
    for (at, len) in chunks {
        let (x, h) = (x.narrow(0, at, len), h.narrow(0, at, len));
        let (act, up, _) = gate_up(&h, at, &mut parts, delta)?;
        context.kernels.swiglu(&act, &up)?;
        drop(up);
        parts.with(Part::Down, |w| {
            gemm(&x, &act, &w.must(Role::Down).tr(), 1.0, 1.0)?;
            if let Some(bias) = w.get(Role::DownBias) {
                let _ = x.shallow_clone().f_add_(bias)?;
            }
            Ok(())
        })?;
        if let Some(d) = down_delta {
            d.expand(Role::Down, &d.squeeze(&act, at)?, &x)?;
        }
    }
    parts.close([Part::Gate, Part::Up, Part::Down])
}

/// Recomputes from `h` `[T, H]` and goes back from `dy` `[T, H]`: adds the adapter's gradients to `grads`, and returns
/// the gradient of `h` if `wanted`.
///
/// The output of the down projection is not recomputed: nothing depends on it.
pub(super) fn backward(
    dy: &Tensor,
    h: &Tensor,
    weights: &mut dyn Weights,
    context: &BlockContext<'_>,
    grads: &Tensor,
    wanted: bool,
) -> Result<Option<Tensor>> {
    let chunks = chunks(h.size()[0], context.tile);
    let mut parts = Parts::open(weights, context.tile)?;
    let (delta, down_delta) = (context.delta(Group::GateUp), context.delta(Group::Down));
    let mut dh_all = None;
    for (at, len) in chunks {
        let (dy, h_rows) = (dy.narrow(0, at, len), h.narrow(0, at, len));
        let (gate, up, low) = gate_up(&h_rows, at, &mut parts, delta)?;
        let da = parts.with(Part::Down, |w| Ok(dy.f_mm(w.must(Role::Down))?))?;
        let down_dlow = down_delta.map(|d| -> Result<Tensor> {
            let dlow = d.room(len)?;
            d.low_grad(Role::Down, &dy, &dlow)?;
            d.input_grad(&dlow, &da, at)?;
            Ok(dlow)
        });
        let down_dlow = down_dlow.transpose()?;
        context.kernels.swiglu_backward(&gate, &up, &da, down_dlow.is_some())?;
        let (dgate, dup) = (gate, up);
        if let (Some(d), Some(dlow)) = (down_delta, &down_dlow) {
            // What was the activation's gradient is the activation now.
            d.b_grad(Role::Down, &dy, &d.squeeze(&da, at)?, grads)?;
            d.a_grad(dlow, &da, at, grads)?;
        }
        drop(da);

        if wanted && dh_all.is_none() {
            dh_all = Some(Tensor::f_empty(h.size(), (h.kind(), h.device()))?);
        }
        let dh = dh_all.as_ref().map(|t| t.narrow(0, at, len));
        let dlow = delta.map(|d| d.room(len)).transpose()?;
        let uses = [(Part::Up, Role::Up, &dup, 0.0), (Part::Gate, Role::Gate, &dgate, 1.0)];
        for (part, role, d_out, beta) in uses {
            parts.with(part, |w| match &dh {
                Some(dh) => gemm(dh, d_out, w.must(role), beta, 1.0),
                None => Ok(()),
            })?;
            if let (Some(d), Some(low), Some(dlow)) = (delta, &low, &dlow) {
                d.low_grad(role, d_out, dlow)?;
                d.b_grad(role, d_out, low, grads)?;
            }
        }
        if let (Some(d), Some(dlow)) = (delta, &dlow) {
            if let Some(dh) = &dh {
                d.input_grad(dlow, dh, at)?;
            }
            d.a_grad(dlow, &h_rows, at, grads)?;
        }
    }
    parts.close([Part::Down, Part::Up, Part::Gate])?;
    Ok(dh_all)
}
