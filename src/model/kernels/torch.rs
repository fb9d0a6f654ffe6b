//! The operations by libtorch's operators: used on the CPU and where NVRTC is missing, and the reference for the fused
//! kernels.

use super::{AdamStep, OnlineRows, Ops};
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

impl Ops for Torch {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        let x32 = f32(x);
        Ok((weight * (&x32 * rstd(&x32, eps)).to_kind(x.kind())).contiguous())
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        eps: f64,
        dy: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<()> {
        let x32 = f32(x);
        let rstd = rstd(&x32, eps);
        let scaled = f32(weight) * f32(dy);
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

    fn swiglu(&self, gate: &Tensor, up: &Tensor) -> Result<()> {
        let mut gate = gate.shallow_clone();
        let _ = gate.silu_().g_mul_(up);
        Ok(())
    }

    fn swiglu_backward(&self, gate: &Tensor, up: &Tensor, da: &Tensor, keep: bool) -> Result<()> {
        let (g, u, d) = (f32(gate), f32(up), f32(da));
        let s = g.sigmoid();
        let silu = (&g * &s).to_kind(gate.kind());
        let dgate = &d * &u * (&s * (&g * (1.0 - &s) + 1.0));
        let dup = &d * f32(&silu);
        if keep {
            da.shallow_clone().copy_(&(&silu * up));
        }
        gate.shallow_clone().copy_(&dgate);
        up.shallow_clone().copy_(&dup);
        Ok(())
    }

    fn dropout(&self, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<Tensor> {
        Ok(dropout::dropout(x, p, key, first))
    }

    fn dropout_add(&self, out: &Tensor, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<()> {
        let _ = out.shallow_clone().g_add_(&dropout::dropout(x, p, key, first));
        Ok(())
    }

    fn cross_entropy(&self, logits: &Tensor, labels: &Tensor, grad: bool) -> Result<Tensor> {
        let label = labels.unsqueeze(1);
        let mut l32 = f32(logits);
        let lse = l32.logsumexp([1_i64].as_slice(), true);
        let loss = (&lse - l32.gather(1, &label, false)).squeeze_dim(1);
        if grad {
            l32 -= &lse;
            let mut p = l32.exp_();
            let minus_one = Tensor::full(label.size(), -1.0, (Kind::Float, p.device()));
            let _ = p.scatter_add_(1, &label, &minus_one);
            if logits.kind() != Kind::Float {
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
        grad: bool,
    ) -> Result<()> {
        let n = logits.size()[1];
        let l32 = f32(logits);
        let at = labels - first;
        let here = at.ge(0).logical_and(&at.lt(n));
        let mine = l32.gather(1, &at.clamp(0, n - 1).unsqueeze(1), false).squeeze_dim(1);
        rows.picked.shallow_clone().copy_(&mine.where_self(&here, &rows.picked));
        let now = rows.max.maximum(&l32.amax([1_i64].as_slice(), false));
        let p = (l32 - now.unsqueeze(1)).exp();
        let shrink = (&rows.max - &now).exp();
        let sum = &rows.sum * &shrink + p.sum_dim_intlist([1_i64].as_slice(), false, Kind::Float);
        rows.sum.shallow_clone().copy_(&sum);
        rows.max.shallow_clone().copy_(&now);
        rows.scale.shallow_clone().copy_(&shrink);
        if grad {
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
