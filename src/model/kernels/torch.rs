//! The operations by libtorch's operators: used on the CPU and where NVRTC is missing, and the reference for the fused
//! kernels.

use super::{AdamStep, NormUse, OnlineRows, Ops, Scoring, Tile, cap_slope, capped, no_act};
use crate::checkpoint::arch::Act;
use crate::error::Result;
use crate::model::dropout::{self, MaskKey};
use crate::model::rope::RopeTable;
use tch::{Kind, Tensor};

/// libtorch's operators.
#[derive(Clone, Copy, Debug)]
pub struct Torch;

fn f32(x: &Tensor) -> Tensor {
    x.to_kind(Kind::Float)
}

/// 1 / rms of each row, f32, `[.., 1]`.
fn rstd(x32: &Tensor, eps: f64) -> Tensor {
    (x32.square().mean_dim([-1_i64].as_slice(), true, Kind::Float) + eps).rsqrt()
}

/// `x` `[T, heads, D]` as `[B, S, heads, D]`.
fn by_position(x: &Tensor, positions: i64) -> Tensor {
    let size = x.size();
    x.view([size[0] / positions, positions, size[1], size[2]])
}

/// An activation's values and slopes at `x`, f32.
fn activation(act: Act, x: &Tensor) -> Result<(Tensor, Tensor)> {
    match act {
        Act::Silu => {
            let s = x.sigmoid();
            Ok((x * &s, &s * (x * (1.0 - &s) + 1.0)))
        }
        Act::GeluTanh => {
            let (root, cubic) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044_715);
            let square = x.square();
            let t = ((&square * cubic + 1.0) * x * root).tanh();
            let steep = (1.0 - t.square()) * (square * (3.0 * cubic) + 1.0) * root;
            Ok((x * 0.5 * (&t + 1.0), (t + 1.0) * 0.5 + steep * x * 0.5))
        }
        Act::SiluClamped { .. } => Err(no_act()),
    }
}

/// The weights of attention for products of queries and keys, and what a score's gradient is multiplied by on the way
/// back to its product; f32.
fn weigh(products: &Tensor, of: Scoring, tile: Tile) -> (Tensor, Tensor) {
    let size = products.size();
    let options = (Kind::Int64, products.device());
    let query = Tensor::arange(size[1], options).floor_divide_scalar(tile.group) + tile.query;
    let distance = query.unsqueeze(1) - (Tensor::arange(size[2], options) + tile.key);
    let mut hidden = distance.lt(0);
    if let Some(window) = of.window {
        hidden = hidden.logical_or(&distance.ge(window as i64));
    }
    let scores = capped(&(f32(products) * of.scale), of.cap);
    let slope = of.cap.map_or_else(|| scores.ones_like(), |cap| cap_slope(&scores, cap)) * of.scale;
    (scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float), slope)
}

impl Ops for Torch {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, of: NormUse) -> Result<Tensor> {
        let (x32, (shift, early)) = (f32(x), of.weighting()?);
        let normed = &x32 * rstd(&x32, of.eps);
        let y = if early { weight * normed.to_kind(x.kind()) } else { (f32(weight) + shift) * normed };
        Ok(y.to_kind(x.kind()).contiguous())
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        of: NormUse,
        dy: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<()> {
        let (x32, (shift, _)) = (f32(x), of.weighting()?);
        let rstd = rstd(&x32, of.eps);
        let scaled = (f32(weight) + shift) * f32(dy);
        let dot = (&scaled * &x32).mean_dim([-1_i64].as_slice(), true, Kind::Float);
        let pull = dot * &rstd * &rstd * &rstd;
        let mut dx = scaled * rstd - x32 * pull;
        if let Some(residual) = residual {
            dx += f32(residual);
        }
        dy.shallow_clone().copy_(&dx);
        Ok(())
    }

    fn rope(&self, q: &Tensor, k: &Tensor, table: &RopeTable, inverse: bool) -> Result<()> {
        let (cos, sin) = (table.cos.unsqueeze(1), table.sin.unsqueeze(1));
        let sin = if inverse { -sin } else { sin };
        for x in [q, k] {
            let x = by_position(x, table.len());
            let half = x.size()[3] / 2;
            let (mut x1, mut x2) = (x.narrow(3, 0, half), x.narrow(3, half, half));
            let first = &x1 * &cos - &x2 * &sin;
            let second = &x2 * &cos + &x1 * &sin;
            x1.copy_(&first);
            x2.copy_(&second);
        }
        Ok(())
    }

    fn glu(&self, act: Act, gate: &Tensor, up: &Tensor) -> Result<()> {
        let mut gate = gate.shallow_clone();
        let mut gate = match act {
            Act::Silu => gate.silu_(),
            Act::GeluTanh => gate.gelu_("tanh"),
            Act::SiluClamped { .. } => return Err(no_act()),
        };
        let _ = gate.g_mul_(up);
        Ok(())
    }

    fn glu_backward(&self, act: Act, gate: &Tensor, up: &Tensor, da: &Tensor, keep: bool) -> Result<()> {
        let (g, u, d) = (f32(gate), f32(up), f32(da));
        let (value, slope) = activation(act, &g)?;
        let value = value.to_kind(gate.kind());
        let dgate = &d * &u * slope;
        let dup = &d * f32(&value);
        if keep {
            da.shallow_clone().copy_(&(&value * up));
        }
        gate.shallow_clone().copy_(&dgate);
        up.shallow_clone().copy_(&dup);
        Ok(())
    }

    fn attend(&self, products: &Tensor, d: Option<&Tensor>, of: Scoring, tile: Tile) -> Result<()> {
        let (weights, slope) = weigh(products, of, tile);
        if let Some(d) = d {
            let pulled = &weights * f32(d);
            let sum = pulled.sum_dim_intlist([-1_i64].as_slice(), true, Kind::Float);
            d.shallow_clone().copy_(&((pulled - &weights * sum) * slope));
        }
        products.shallow_clone().copy_(&weights);
        Ok(())
    }

    fn dropout(&self, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<Tensor> {
        Ok(dropout::dropout(x, p, key, first))
    }

    fn dropout_add(&self, out: &Tensor, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<()> {
        let _ = out.shallow_clone().g_add_(&dropout::dropout(x, p, key, first));
        Ok(())
    }

    fn cross_entropy(&self, logits: &Tensor, labels: &Tensor, cap: Option<f64>, grad: bool) -> Result<Tensor> {
        let label = labels.unsqueeze(1);
        // Without a cap and in f32 these are the logits themselves.
        let mut l32 = capped(logits, cap);
        let lse = l32.logsumexp([1_i64].as_slice(), true);
        let loss = (&lse - l32.gather(1, &label, false)).squeeze_dim(1);
        if grad {
            let slope = cap.map(|cap| cap_slope(&l32, cap));
            l32 -= &lse;
            let mut p = l32.exp_();
            let minus_one = Tensor::full(label.size(), -1.0, (Kind::Float, p.device()));
            let _ = p.scatter_add_(1, &label, &minus_one);
            if let Some(slope) = slope {
                let _ = p.g_mul_(&slope);
            }
            if logits.kind() != Kind::Float || cap.is_some() {
                logits.shallow_clone().copy_(&p);
            }
        }
        Ok(loss)
    }

    fn online_softmax(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        rows: &OnlineRows,
        first: i64,
        cap: Option<f64>,
        grad: bool,
    ) -> Result<()> {
        let n = logits.size()[1];
        let l32 = capped(logits, cap);
        let at = labels - first;
        let here = at.ge(0).logical_and(&at.lt(n));
        let mine = l32.gather(1, &at.clamp(0, n - 1).unsqueeze(1), false).squeeze_dim(1);
        rows.picked.shallow_clone().copy_(&mine.where_self(&here, &rows.picked));
        let now = rows.max.maximum(&l32.amax([1_i64].as_slice(), false));
        let mut p = (&l32 - now.unsqueeze(1)).exp();
        let shrink = (&rows.max - &now).exp();
        let sum = &rows.sum * &shrink + p.sum_dim_intlist([1_i64].as_slice(), false, Kind::Float);
        rows.sum.shallow_clone().copy_(&sum);
        rows.max.shallow_clone().copy_(&now);
        rows.scale.shallow_clone().copy_(&shrink);
        if grad {
            if let Some(cap) = cap {
                let _ = p.g_mul_(&cap_slope(&l32, cap));
            }
            logits.shallow_clone().copy_(&p);
        }
        Ok(())
    }

    fn gather_rows(&self, out: &Tensor, w: &Tensor, labels: &Tensor, first: i64) -> Result<()> {
        let n = w.size()[0];
        let at = labels - first;
        let here = at.ge(0).logical_and(&at.lt(n)).unsqueeze(1);
        let rows = w.index_select(0, &at.clamp(0, n - 1));
        out.shallow_clone().copy_(&rows.where_self(&here, out));
        Ok(())
    }

    fn adamw(&self, p: &Tensor, m: &Tensor, v: &Tensor, g: &Tensor, step: AdamStep) -> Result<()> {
        let (mut p, mut m, mut v) = (p.shallow_clone(), m.shallow_clone(), v.shallow_clone());
        let _ = p.g_mul_scalar_(step.decay);
        let _ = m.lerp_(g, step.lerp);
        let _ = v.g_mul_scalar_(step.beta2);
        // One temporary serves the whole update.
        let mut t = g * g;
        let _ = t.g_mul_scalar_(1.0 - step.beta2);
        let _ = v.g_add_(&t);
        t.copy_(&v);
        let _ = t.sqrt_().g_div_scalar_(step.correction2).g_add_scalar_(step.eps);
        let _ = m.f_div_out(&t.shallow_clone(), &t)?;
        let _ = t.g_mul_scalar_(step.step);
        let _ = p.g_sub_(&t);
        Ok(())
    }
}
