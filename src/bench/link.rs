//! `bench link`: pinned copies between host and device, by size and direction, with the link's state beside them.

use super::BENCH_SCHEMA;
use super::stats::Sample;
use crate::device::link::{Way, Wire};
use crate::device::nvml::{Sampler, link_now};
use crate::device::shim;
use crate::error::{Error, Result};
use crate::units::{Bytes, MIB, rate};
use serde_json::{Value, json};

/// Sizes of a copy in bytes; the last is a Llama-3-8B block in bf16.
pub const SIZES: [usize; 7] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 436_224_000];
/// Trials of each size and direction.
const TRIALS: usize = 5;
/// Bytes of a trial, about: long enough that events and first copies don't show.
const TRIAL: u64 = 256 * MIB;

/// Measures the GPU that a run would take: one JSON object.
///
/// # Errors
/// There is no usable GPU, or it fails.
pub fn run() -> Result<Value> {
    shim::init()
        .as_ref()
        .map_err(|why| Error::device(format!("no GPU: {why}")).next("run this on a machine with one"))?;
    let largest = SIZES[SIZES.len() - 1];
    let mut wire = Wire::open(largest)?;
    let (name, uuid) = wire.gpu.identity();
    let mut sampler = Sampler::new(uuid.as_deref());
    // Clock and link state are read while copies are under way: at rest both sleep.
    let (mut gauges, mut pcie) = (None, None);
    let mut sizes = Vec::new();
    for bytes in SIZES {
        let n = (TRIAL / bytes as u64).clamp(2, 1024) as usize;
        let mut row = json!({ "bytes": bytes, "copies": n });
        for (key, way) in [("h2d", Way::Down), ("d2h", Way::Back), ("both", Way::Both)] {
            wire.seconds(way, bytes, n, &mut || {})?;
            let mut rates = Vec::new();
            for _ in 0..TRIALS {
                let look = bytes == largest && gauges.is_none();
                let seconds = wire.seconds(way, bytes, n, &mut || {
                    if look {
                        gauges = Some(sampler.sample());
                        pcie = uuid.as_deref().and_then(link_now);
                    }
                })?;
                let moved = bytes as u64 * n as u64 * if way == Way::Both { 2 } else { 1 };
                rates.push(moved as f64 / seconds);
            }
            let rates = Sample::of(rates);
            row[key] = json!({ "median": rates.median(), "best": rates.max(), "worst": rates.min() });
        }
        sizes.push(row);
    }
    let gauges = gauges.unwrap_or_default();
    let last = sizes.last().cloned().unwrap_or_default();
    Ok(json!({
        "schema": BENCH_SCHEMA,
        "what": "link",
        "gpu": { "index": wire.gpu.index, "name": name, "uuid": uuid },
        "pcie": pcie.map(|(generation, lanes)| json!({ "generation": generation, "lanes": lanes })),
        "sm_clock_mhz": gauges.sm_clock_mhz,
        "power_w": gauges.power_w,
        "host": "pinned",
        "h2d": last["h2d"]["median"],
        "d2h": last["d2h"]["median"],
        "both": last["both"]["median"],
        "h2d_spread": [last["h2d"]["worst"], last["h2d"]["best"]],
        "sizes": sizes,
    }))
}

/// `run`'s object as a table.
#[must_use]
pub fn render(value: &Value) -> String {
    let text = |v: &Value| if v.is_null() { "N/A".into() } else { v.as_str().map_or(v.to_string(), String::from) };
    let pcie = match &value["pcie"] {
        Value::Null => "N/A".to_string(),
        p => format!("{} x{}", p["generation"], p["lanes"]),
    };
    let mut out = format!(
        "GPU {} {}, PCIe {pcie}, SM clock {} MHz, pinned host memory\n{:>10}  {:>13}  {:>13}  {:>13}\n",
        value["gpu"]["index"],
        text(&value["gpu"]["name"]),
        text(&value["sm_clock_mhz"]),
        "copy of",
        "to device",
        "to host",
        "both together"
    );
    for s in value["sizes"].as_array().into_iter().flatten() {
        let of = |key: &str| rate(s[key]["median"].as_f64().unwrap_or(f64::NAN));
        let bytes = Bytes(s["bytes"].as_u64().unwrap_or(0));
        out += &format!("{bytes:>10}  {:>13}  {:>13}  {:>13}\n", of("h2d"), of("d2h"), of("both"));
    }
    out
}
