//! AdamW (Loshchilov & Hutter 2019) in f32 over one flat tensor, in the operation order of `torch.optim.AdamW`.

use crate::error::Result;
use crate::model::kernels::{AdamStep, Kernels};
use tch::{Kind, Tensor};

/// Moments and step count. The parameters are the adapter's flat f32 masters.
#[derive(Debug)]
pub struct AdamW {
    /// First moment.
    pub m: Tensor,
    /// Second moment.
    pub v: Tensor,
    /// Updates done.
    pub updates: u64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f64 = 1e-8;

impl AdamW {
    /// Zero moments for `params`.
    #[must_use]
    pub fn new(params: &Tensor, weight_decay: f64) -> AdamW {
        AdamW { m: params.zeros_like(), v: params.zeros_like(), updates: 0, weight_decay }
    }

    /// One update of `params` `[len]` f32 with `grad` `[len]` f32, in place.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn update(&mut self, params: &mut Tensor, grad: &Tensor, rate: f64) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        self.updates += 1;
        let t = self.updates as f64;
        let step = AdamStep {
            decay: 1.0 - rate * self.weight_decay,
            lerp: 1.0 - BETA1,
            beta2: BETA2,
            correction2: (1.0 - BETA2.powf(t)).sqrt(),
            eps: EPS,
            step: rate / (1.0 - BETA1.powf(t)),
        };
        Kernels::of(params.device()).adamw(params, &self.m, &self.v, grad, step)
    }
}

/// Euclidean norm of `grad`, f64 on the host.
#[must_use]
pub fn grad_norm(grad: &Tensor) -> f64 {
    queue_norm(grad).double_value(&[])
}

/// The same on the device: nothing is waited for.
pub fn queue_norm(grad: &Tensor) -> Tensor {
    grad.norm_scalaropt_dtype(2, Kind::Float)
}

/// Scales `grad` so that its norm is at most `max` (`torch.nn.utils.clip_grad_norm_`); 0 turns it off.
pub fn clip(grad: &mut Tensor, norm: f64, max: f64) {
    if max > 0.0 {
        let _ = grad.g_mul_scalar_((max / (norm + 1e-6)).min(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn case_nu_03_small_updates_are_not_rounded_away() {
        let _ = crate::device::shim::init();
        // Masters are f32: 100 updates of -1e-3 from 1.0 arrive at 0.9, where bf16 would stay at 1.0.
        let mut w = Tensor::ones([1], (Kind::Float, Device::Cpu));
        let mut adam = AdamW::new(&w, 0.0);
        for _ in 0..100 {
            adam.update(&mut w, &Tensor::ones([1], (Kind::Float, Device::Cpu)), 1e-3).unwrap();
        }
        assert!((w.double_value(&[0]) - 0.9).abs() < 1e-5, "{}", w.double_value(&[0]));
        assert_eq!(w.to_kind(Kind::BFloat16).to_kind(Kind::Float).double_value(&[0]), 0.898_437_5);
        let mut bf = Tensor::ones([1], (Kind::BFloat16, Device::Cpu));
        for _ in 0..100 {
            bf -= 1e-3;
        }
        assert_eq!(bf.to_kind(Kind::Float).double_value(&[0]), 1.0);
    }
}
