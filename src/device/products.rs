//! How fast this processor multiplies matrices: a moment's look, for plans on a machine that nobody calibrated.

use std::time::Instant;
use tch::{Kind, Tensor};

/// Rows, width and depth of the product: what blocks of small models compute.
const SHAPE: [i64; 3] = [512, 1024, 1024];
/// Seconds that looking takes at most, after the first product (which starts libtorch's threads).
const SECONDS: f64 = 0.15;
/// Products at most.
const MOST: usize = 64;

/// f32 FLOP/s of products as blocks compute them, the best of a few; `None` where libtorch fails, or where a CUDA driver is
/// present: there a CPU product, made before libtorch's CUDA part is loaded, would hide the GPU for good.
#[must_use]
pub fn quick_cpu_flops() -> Option<f64> {
    if super::gpu::driver_present() {
        return None;
    }
    // Sets the threads that runs use.
    let _no_gpu_here = super::shim::init();
    let _no_grad = tch::no_grad_guard();
    let [m, n, k] = SHAPE;
    let x = Tensor::f_ones([m, k], (Kind::Float, tch::Device::Cpu)).ok()?;
    let w = Tensor::f_ones([n, k], (Kind::Float, tch::Device::Cpu)).ok()?;
    let product = || {
        let begun = Instant::now();
        let _product = x.f_matmul(&w.f_tr().ok()?).ok()?;
        Some(begun.elapsed().as_secs_f64())
    };
    product()?;
    let (begun, mut best) = (Instant::now(), f64::INFINITY);
    for i in 0..MOST {
        if i > 1 && begun.elapsed().as_secs_f64() > SECONDS {
            break;
        }
        best = best.min(product()?);
    }
    (best > 0.0).then(|| 2.0 * (m * n * k) as f64 / best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_timed_in_a_moment() {
        if super::super::gpu::driver_present() {
            assert_eq!(quick_cpu_flops(), None);
            return;
        }
        let flops = quick_cpu_flops().expect("a rate");
        // Between a very slow core and the largest servers.
        assert!((1e9..1e14).contains(&flops), "{flops}");
    }
}
