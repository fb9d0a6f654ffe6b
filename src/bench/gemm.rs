//! `bench gemm`: matrix products as a block computes them: bf16 on a GPU, f32 on a CPU.

use super::BENCH_SCHEMA;
use crate::checkpoint::{Checkpoint, Role};
use crate::device::nvml::Sampler;
use crate::device::{Kernels, probe, shim};
use crate::error::{Error, Result};
use crate::units::rate;
use serde_json::{Value, json};
use std::time::Instant;
use tch::{Device, Kind, Tensor};

/// Trials of each shape; the best counts.
const TRIALS: usize = 3;
/// Products of a trial on a GPU: tens of milliseconds, so that launches don't show.
const REPEATS: usize = 50;

/// What to measure.
#[derive(Debug)]
pub struct Job<'a> {
    /// Rows, columns and depth of the square product.
    pub size: i64,
    /// Rows of a block's products.
    pub tokens: i64,
    /// Its block 0 gives further shapes.
    pub model: Option<&'a Checkpoint>,
    /// `auto`, `cpu` or `cuda`.
    pub device: &'a str,
}

/// Runs `job`: one JSON object.
///
/// # Errors
/// A GPU was asked for and isn't there, or it fails.
pub fn run(job: &Job<'_>) -> Result<Value> {
    let device = match (job.device, shim::init()) {
        ("cpu", _) | ("auto", Err(_)) => Device::Cpu,
        (_, Ok(())) => Device::Cuda(0),
        (_, Err(why)) => return Err(Error::device(format!("no GPU: {why}")).next("use --device cpu")),
    };
    let gpu = if device.is_cuda() { probe::measure(None, true).gpu } else { None };
    let mut sampler = Sampler::new(gpu.as_ref().and_then(|g| g.uuid.as_deref()));
    let mut clock = None;
    let kind = if device.is_cuda() { Kind::BFloat16 } else { Kind::Float };
    let mut shapes = vec![("square".to_string(), [job.size, job.size, job.size])];
    if let Some(model) = job.model {
        shapes.extend(block_shapes(model, job.tokens));
    }
    let mut rows = Vec::new();
    let _no_grad = tch::no_grad_guard();
    for (name, [m, n, k]) in shapes {
        let seconds = product(device, kind, [m, n, k], &mut || {
            clock = clock.or_else(|| sampler.sample().sm_clock_mhz);
        })?;
        let flop = 2.0 * m as f64 * n as f64 * k as f64;
        rows.push(json!({ "name": name, "m": m, "n": n, "k": k, "seconds": seconds, "flops": flop / seconds }));
    }
    let kernels = if device.is_cuda() {
        let flops = rows[0]["flops"].as_f64().unwrap_or(f64::NAN);
        Some(super::kernels::run(device, flops)?)
    } else {
        None
    };
    Ok(json!({
        "schema": BENCH_SCHEMA,
        "what": "gemm",
        "device": gpu.as_ref().map_or_else(|| if device.is_cuda() { "cuda" } else { "cpu" }.to_string(), |g| g.name.clone()),
        "dtype": if device.is_cuda() { "bf16" } else { "f32" },
        "trials": TRIALS,
        "sm_clock_mhz": clock,
        "flops": rows[0]["flops"],
        "shapes": rows,
        "kernels": kernels,
    }))
}

/// `run`'s object as a table.
#[must_use]
pub fn render(value: &Value) -> String {
    let kernels = serde_json::from_value::<Option<Kernels>>(value["kernels"].clone()).ok().flatten();
    let clock = value["sm_clock_mhz"].as_u64().map_or("N/A".into(), |c| c.to_string());
    let mut out = format!(
        "{} in {}, SM clock {clock} MHz, best of {}\n",
        value["device"].as_str().unwrap_or("N/A"),
        value["dtype"].as_str().unwrap_or("N/A"),
        value["trials"]
    );
    for s in value["shapes"].as_array().into_iter().flatten() {
        let name = s["name"].as_str().unwrap_or("");
        let (ms, t) = (s["seconds"].as_f64().unwrap_or(f64::NAN) * 1e3, s["flops"].as_f64().unwrap_or(f64::NAN) / 1e12);
        out += &format!("{name:<24} {:>6} x {:>6} x {:>6}  {ms:>9.3} ms  {t:>8.2} TFLOP/s\n", s["m"], s["n"], s["k"]);
    }
    if let Some(k) = kernels {
        out += &format!(
            "elementwise kernels {}, flash attention {:.0} and {:.0} TFLOP/s, {:.1} us to launch a kernel\n\
             a block's visits over what these rates say: forward x{:.2}, backward x{:.2}\n",
            rate(k.memory),
            k.attention[0] / 1e12,
            k.attention_backward[0] / 1e12,
            k.launch * 1e6,
            k.forward,
            k.backward
        );
    }
    out
}

/// The products of block 0 for `tokens` rows, as `[rows, out, in]`.
fn block_shapes(model: &Checkpoint, tokens: i64) -> Vec<(String, [i64; 3])> {
    let weights = Role::ALL.into_iter().filter_map(|role| Some((role, model.block_tensor(0, role)?)));
    let one = |(role, t): (Role, &crate::checkpoint::TensorInfo)| match t.shape[..] {
        [out, width] => Some((role.suffix().to_string(), [tokens, out as i64, width as i64])),
        _ => None,
    };
    weights.filter_map(one).collect()
}

/// Seconds of one product `x·wᵀ`, the best of the trials.
fn product(device: Device, kind: Kind, [m, n, k]: [i64; 3], meanwhile: &mut dyn FnMut()) -> Result<f64> {
    let x = Tensor::f_randn([m, k], (kind, device))?;
    let w = Tensor::f_randn([n, k], (kind, device))?.f_tr()?;
    let repeats = if device.is_cuda() { REPEATS } else { 1 };
    let wait = || if device.is_cuda() { shim::synchronize(0) } else { Ok(()) };
    let mut best = f64::INFINITY;
    // The first trial warms caches and picks kernels, during the last the clock is read: neither counts.
    for trial in 0..TRIALS + 2 {
        wait()?;
        let begun = Instant::now();
        for _ in 0..repeats {
            let _ = x.f_matmul(&w)?;
        }
        if trial > TRIALS {
            meanwhile();
        }
        wait()?;
        let seconds = begun.elapsed().as_secs_f64() / repeats as f64;
        if (1..=TRIALS).contains(&trial) {
            best = best.min(seconds);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::fixture::Model;

    #[test]
    fn a_small_product_and_a_models_shapes_are_timed_on_the_cpu() {
        let dir = tempfile::tempdir().unwrap();
        Model::tiny().write(dir.path());
        let model = crate::checkpoint::open(dir.path()).unwrap();
        let v = run(&Job { size: 64, tokens: 8, model: Some(&model), device: "cpu" }).unwrap();
        assert_eq!(
            (v["schema"].clone(), v["dtype"].clone(), v["sm_clock_mhz"].clone()),
            (json!(1), json!("f32"), Value::Null)
        );
        let shapes = v["shapes"].as_array().unwrap();
        assert_eq!(shapes.len(), 8, "the square and seven weights: {v}");
        assert!(shapes.iter().all(|s| s["flops"].as_f64().unwrap() > 0.0));
        assert!(render(&v).contains("q_proj"), "{}", render(&v));
    }
}
