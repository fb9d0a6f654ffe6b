//! The gated feed-forward as an operation on the residual stream, forward and back, over all tokens or in token chunks.
//!
//! Its three tensors of the intermediate width are the largest of a block: gradients are written over the activations
//! they belong to, and chunks make all three small.

use super::block::BlockContext;
use super::delta::Tuned;
use super::linear::{Linear, Sum};
use super::lora::Group;
use super::weights::{GiveBack, Weights};
use crate::checkpoint::arch::Act;
use crate::checkpoint::{Part, Role};
use crate::error::Result;
use tch::Tensor;

/// The activation of every family that trains.
const ACT: Act = Act::Silu;

/// Runs `run(first, length, weights)` on the tokens of a chunk each, `tile` at a time (0 = all in one). Parts are taken use
/// by use; around a loop over chunks, once and together.
fn by_chunks(
    tokens: i64,
    tile: usize,
    weights: &mut dyn Weights,
    order: GiveBack,
    run: &mut dyn FnMut(i64, i64, &mut dyn Weights) -> Result<()>,
) -> Result<()> {
    if tile == 0 {
        return run(0, tokens, weights);
    }
    let step = (tile as i64).min(tokens).max(1);
    weights.with(&[Part::Gate, Part::Up, Part::Down], order, &mut |mut held| {
        (0..tokens).step_by(step as usize).try_for_each(|at| run(at, step.min(tokens - at), &mut held))
    })
}

/// Gate and up of `h` `[T, H]` → two `[T, I]`.
fn gate_up(h: &Tensor, weights: &mut dyn Weights, tuned: &mut Tuned<'_>) -> Result<[Tensor; 2]> {
    tuned.enter(h)?;
    let mut project = |part, role| weights.using(part, |w| Linear::of(w, role).forward(h, Sum::New, tuned));
    Ok([project(Part::Gate, Role::Gate)?, project(Part::Up, Role::Up)?])
}

/// Adds the feed-forward of `h` (the normed `x`) to `x`, in place; both `[T, H]`.
pub(super) fn forward(x: &Tensor, h: &Tensor, weights: &mut dyn Weights, context: &BlockContext<'_>) -> Result<()> {
    by_chunks(x.size()[0], context.tile, weights, GiveBack::FirstTaken, &mut |at, len, weights| {
        let (x, h) = (x.narrow(0, at, len), h.narrow(0, at, len));
        let [act, up] = gate_up(&h, weights, &mut context.tuned(Group::GateUp, at))?;
        context.kernels.glu(ACT, &act, &up)?;
        drop(up);
        let mut tuned = context.tuned(Group::Down, at);
        tuned.enter(&act)?;
        weights.using(Part::Down, |w| Linear::of(w, Role::Down).forward(&act, Sum::Into(&x), &tuned).map(drop))
    })
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
    let mut dh_all = None;
    by_chunks(h.size()[0], context.tile, weights, GiveBack::LastTaken, &mut |at, len, weights| {
        let (dy, h_rows) = (dy.narrow(0, at, len), h.narrow(0, at, len));
        let mut tuned = context.tuned(Group::GateUp, at);
        let [gate, up] = gate_up(&h_rows, weights, &mut tuned)?;
        let mut down = context.tuned(Group::Down, at);
        let d_out = [(Role::Down, &dy)];
        let da = weights.using(Part::Down, |w| Linear::of(w, Role::Down).back(&dy, Sum::New))?;
        down.pull(&d_out)?;
        down.input_grad(&da)?;
        context.kernels.glu_backward(ACT, &gate, &up, &da, down.is_any())?;
        // What was the activation's gradient is the activation now, and gate and up are their gradients.
        down.grads(&d_out, &da, grads)?;
        drop((da, down));

        if wanted && dh_all.is_none() {
            dh_all = Some(Tensor::f_empty(h.size(), (h.kind(), h.device()))?);
        }
        let dh = dh_all.as_ref().map(|t: &Tensor| t.narrow(0, at, len));
        let d_outs = [(Role::Up, &up), (Role::Gate, &gate)];
        tuned.pull(&d_outs)?;
        for (part, (role, d_out)) in [Part::Up, Part::Gate].into_iter().zip(d_outs) {
            weights.using(part, |w| match &dh {
                Some(dh) => {
                    let sum = if part == Part::Up { Sum::Over(dh) } else { Sum::Into(dh) };
                    Linear::of(w, role).back(d_out, sum).map(drop)
                }
                None => Ok(()),
            })?;
        }
        if let Some(dh) = &dh {
            tuned.input_grad(dh)?;
        }
        tuned.grads(&d_outs, &h_rows, grads)
    })?;
    Ok(dh_all)
}
