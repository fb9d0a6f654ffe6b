//! What of a benchmark's answer is worth keeping for plans to come, as calibrations.

use crate::device::Gpu;
use crate::device::calibration::{Calibration, CpuEntry, Gemm, Link, Overhead, Read, WearEntry, Write};
use crate::units::{Bytes, rate};
use serde_json::Value;

/// Shorter reading tells a burst, not a rate.
const LEAST_SECONDS: f64 = 1.0;

/// Smaller products tell how fast they start.
const LEAST_SIZE: i64 = 1024;

/// What the answers belong to.
#[derive(Clone, Debug)]
pub struct Whose<'a> {
    /// The card that a run would take.
    pub gpu: Option<&'a Gpu>,
    /// Model name and threads of the processor.
    pub cpu: (String, u64),
    /// Unix seconds.
    pub at: u64,
}

/// Puts the answer of a benchmark into `all`, and says in words what was kept.
///
/// # Errors
/// Why it can't be kept.
pub fn keep(all: &mut Calibration, value: &Value, whose: &Whose<'_>) -> Result<String, String> {
    match value["what"].as_str() {
        Some("link") => link(all, value, whose),
        Some("gemm") => gemm(all, value, whose),
        Some("disk") => disk(all, value, whose),
        Some("overhead") => overhead(all, value, whose),
        _ => Err("this benchmark is not kept".into()),
    }
}

fn number(v: &Value) -> Option<f64> {
    v.as_f64().filter(|x| x.is_finite() && *x > 0.0)
}

fn pair(low: &Value, high: &Value) -> Option<[f64; 2]> {
    number(low).zip(number(high)).filter(|(l, h)| l <= h).map(|(l, h)| [l, h])
}

fn mhz(v: &Value) -> Option<u32> {
    v["sm_clock_mhz"].as_u64().and_then(|m| u32::try_from(m).ok())
}

/// The card's UUID, name and driver; the driver only where it is surely this card's.
fn card(told: Option<&str>, whose: &Whose<'_>) -> Result<(String, String, Option<String>), String> {
    let here = whose.gpu.filter(|g| told.is_none() || g.uuid.as_deref() == told);
    let uuid = told.map(String::from).or_else(|| here?.uuid.clone()).ok_or("the card has no UUID")?;
    let name = here.map(|g| g.name.clone()).unwrap_or_default();
    Ok((uuid, name, here.and_then(|g| g.driver.clone())))
}

fn link(all: &mut Calibration, v: &Value, whose: &Whose<'_>) -> Result<String, String> {
    let (uuid, name, driver) = card(v["gpu"]["uuid"].as_str(), whose)?;
    let (h2d, d2h) = number(&v["h2d"]).zip(number(&v["d2h"])).ok_or("no rate was measured")?;
    let h2d_spread = pair(&v["h2d_spread"][0], &v["h2d_spread"][1]);
    let link = Link { at: whose.at, driver, h2d, d2h, h2d_spread, sm_clock_mhz: mhz(v) };
    all.gpu_mut(&uuid, &name).link = Some(link);
    Ok(format!("link {}", rate(h2d)))
}

fn gemm(all: &mut Calibration, v: &Value, whose: &Whose<'_>) -> Result<String, String> {
    let flops = number(&v["flops"]).ok_or("no rate was measured")?;
    if v["shapes"][0]["m"].as_i64().is_some_and(|m| m < LEAST_SIZE) {
        return Err("the products were too small to tell".into());
    }
    if v["dtype"] != "bf16" {
        let (name, threads) = whose.cpu.clone();
        all.set_cpu(CpuEntry { name, threads, at: whose.at, flops });
        return Ok(format!("processor {:.2} TFLOP/s", flops / 1e12));
    }
    let (uuid, name, driver) = card(None, whose)?;
    let kernels = serde_json::from_value(v["kernels"].clone()).ok();
    let gemm = Gemm { at: whose.at, driver, flops, sm_clock_mhz: mhz(v), kernels };
    all.gpu_mut(&uuid, &name).gemm = Some(gemm);
    Ok(format!("products {:.1} TFLOP/s", flops / 1e12))
}

fn disk(all: &mut Calibration, v: &Value, whose: &Whose<'_>) -> Result<String, String> {
    let id = v["drive"]["volume"].as_str().ok_or("the volume can't be told from others")?;
    let (r, w) = (&v["read"], &v["write"]);
    if r["seconds"].as_f64().is_none_or(|s| s < LEAST_SECONDS) {
        return Err("it was too short to tell a sustained rate".into());
    }
    let mean = number(&r["mean"]).ok_or("no rate was measured")?;
    let spread = pair(&r["p10"], &r["p90"]).unwrap_or([mean, mean]);
    let words = |v: &Value| v.as_str().map(String::from);
    let volume = all.volume_mut(id, v["drive"]["mount"].as_str().unwrap_or(""));
    // A drive that was just written to doesn't show what it can.
    let quiet = v["right_after_write"] != true;
    if quiet {
        volume.read = Some(Read {
            at: whose.at,
            rate: mean,
            spread,
            reader: words(&v["reader"]).unwrap_or_default(),
            kind: words(&v["drive"]["kind_by_reading"]),
        });
    }
    let size = |v: &Value| v.as_u64().map(Bytes);
    if let Some(all) = number(&w["mean"]) {
        let before = number(&w["before_slc"]).unwrap_or(all);
        let (slc, after_slc) = (size(&w["slc"]), number(&w["after_slc"]));
        volume.write = Some(Write { at: whose.at, rate: before, slc, after_slc });
    }
    let (written, life_used) = (size(&v["wear"]["written"]), v["wear"]["life_used"].as_f64());
    if written.is_some() || life_used.is_some() {
        volume.wear = Some(WearEntry { at: whose.at, written, life_used });
    }
    Ok(if quiet { format!("disk {}", rate(mean)) } else { "the rate of writing, not of reading right after".into() })
}

fn overhead(all: &mut Calibration, v: &Value, whose: &Whose<'_>) -> Result<String, String> {
    /// Far beyond what context and libraries take: another program came or went meanwhile.
    const MOST: u64 = 4 << 30;
    let bytes = v["bytes"].as_u64().filter(|b| (1..MOST).contains(b)).ok_or("another program changed it meanwhile")?;
    let (uuid, name, _) = card(v["uuid"].as_str(), whose)?;
    all.gpu_mut(&uuid, &name).overhead = Some(Overhead { at: whose.at, bytes: Bytes(bytes) });
    Ok(format!("overhead {}", Bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Kernels;
    use serde_json::json;

    fn whose(gpu: Option<&Gpu>) -> Whose<'_> {
        Whose { gpu, cpu: ("CPU".into(), 8), at: 1_796_000_000 }
    }

    #[test]
    fn answers_become_the_entries_of_their_card_volume_and_processor() {
        let gpu =
            Gpu { uuid: Some("GPU-1".into()), name: "Card".into(), driver: Some("580.1".into()), ..Gpu::default() };
        let (mut all, whose) = (Calibration::default(), whose(Some(&gpu)));
        let link = json!({ "what": "link", "gpu": { "uuid": "GPU-1" }, "h2d": 5.5e10, "d2h": 5e10,
                           "h2d_spread": [5.4e10, 5.6e10], "sm_clock_mhz": 1980 });
        assert_eq!(keep(&mut all, &link, &whose).unwrap(), "link 55.00 GB/s");
        let kernels =
            json!(Kernels { memory: 3e12, attention: [4e14, 9.0], attention_backward: [3e14, 9.0], ..Kernels::NONE });
        let gemm = json!({ "what": "gemm", "dtype": "bf16", "flops": 6e14, "kernels": kernels });
        keep(&mut all, &gemm, &whose).unwrap();
        keep(&mut all, &json!({ "what": "overhead", "bytes": 400_000_000 }), &whose).unwrap();
        let disk = json!({ "what": "disk", "reader": "io_uring", "drive": { "volume": "ext4 1", "mount": "/data",
            "kind_by_reading": "nvme" }, "read": { "mean": 2.4e9, "p10": 2.1e9, "p90": 2.5e9, "seconds": 4.0 },
            "write": { "mean": 1e9, "slc": 60_000_000_000_u64, "before_slc": 3e9, "after_slc": 5e8 },
            "wear": { "written": 1_u64 << 45, "life_used": 0.0 } });
        keep(&mut all, &disk, &whose).unwrap();
        let just_written = json!({ "what": "disk", "right_after_write": true,
            "drive": { "volume": "ext4 1", "mount": "/data" },
            "read": { "mean": 1e9, "seconds": 4.0 }, "write": { "mean": 3e9, "slc": 60_000_000_000_u64, "after_slc": 5e8 } });
        assert!(keep(&mut all, &just_written, &whose).unwrap().contains("not of reading"));
        keep(&mut all, &json!({ "what": "gemm", "dtype": "f32", "flops": 3e11 }), &whose).unwrap();
        let card = &all.gpus[0];
        assert_eq!((all.gpus.len(), card.uuid.as_str(), card.name.as_str()), (1, "GPU-1", "Card"));
        let (l, g) = (card.link.as_ref().unwrap(), card.gemm.as_ref().unwrap());
        assert_eq!(
            (l.h2d_spread, l.sm_clock_mhz, l.driver.as_deref()),
            (Some([5.4e10, 5.6e10]), Some(1980), Some("580.1"))
        );
        assert_eq!((g.flops, g.kernels.unwrap().attention), (6e14, [4e14, 9.0]));
        assert_eq!(card.overhead.as_ref().unwrap().bytes, Bytes(400_000_000));
        let volume = &all.volumes[0];
        let (r, w) = (volume.read.as_ref().unwrap(), volume.write.as_ref().unwrap());
        assert_eq!(
            (r.rate, r.spread, r.kind.as_deref(), volume.mount.as_str()),
            (2.4e9, [2.1e9, 2.5e9], Some("nvme"), "/data")
        );
        assert_eq!((w.rate, w.slc, w.after_slc), (3e9, Some(Bytes(60_000_000_000)), Some(5e8)));
        assert_eq!(volume.wear.as_ref().unwrap().life_used, Some(0.0));
        assert_eq!((all.cpus[0].threads, all.cpus[0].flops), (8, 3e11));
    }

    #[test]
    fn what_tells_nothing_is_not_kept_and_the_reason_said() {
        let mut all = Calibration::default();
        for (value, want) in [
            (json!({ "what": "link", "h2d": 1e9, "d2h": 1e9 }), "no UUID"),
            (json!({ "what": "link", "gpu": { "uuid": "GPU-1" }, "h2d": null, "d2h": 1e9 }), "no rate"),
            (json!({ "what": "disk", "drive": {}, "read": { "seconds": 9.0 } }), "can't be told"),
            (
                json!({ "what": "disk", "drive": { "volume": "a" }, "read": { "mean": 9e9, "seconds": 0.1 } }),
                "too short",
            ),
            (json!({ "what": "overhead", "bytes": 0, "uuid": "GPU-1" }), "another program"),
            (json!({ "what": "overhead", "bytes": 1_u64 << 40, "uuid": "GPU-1" }), "another program"),
            (json!({ "what": "gemm", "dtype": "f32", "flops": 1e9, "shapes": [{ "m": 64 }] }), "too small"),
            (json!({ "what": "step" }), "not kept"),
        ] {
            let why = keep(&mut all, &value, &whose(None)).unwrap_err();
            assert!(why.contains(want), "{why}: {want}");
        }
        assert_eq!(all, Calibration::default());
    }
}
