//! `doctor`: what this machine offers and what is missing, as one JSON object and as text.
//!
//! Fast and read-only: the drive's rate is measured only when asked for. A value nobody could read is `null`, shown as
//! `N/A`, never as zero.

use crate::device::{disk, gpu, host, nvml, probe};
use crate::units::{Bytes, rate};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Version of the report's JSON.
pub const DOCTOR_SCHEMA: u32 = 1;

/// Looks at GPU, memory, drive, kernel and folders; `disk` also times direct reads of the largest cached weights file.
#[must_use]
pub fn report(disk: bool) -> Value {
    let cache = crate::checkpoint::hub::cache_dir().unwrap_or_else(|| PathBuf::from("."));
    let memory = host::memory();
    let drive = disk::describe(&cache);
    let io_uring = crate::device::uring::allowed();
    let machine = probe::measure(Some(&cache), true);
    json!({
        "schema": DOCTOR_SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "features": {
            "tui": cfg!(feature = "tui"),
            "torch": cfg!(feature = "torch"),
            "cuda": cfg!(feature = "cuda"),
        },
        "gpu": gpus(),
        "ram": {
            "total": memory.total,
            "available": memory.available,
            "limited_by": memory.limited_by,
            "memlock": host::memlock(),
            "wsl": host::is_wsl(),
        },
        "cpu": {
            "threads": std::thread::available_parallelism().map_or(1, usize::from),
            "flops_assumed": machine.cpu_flops,
        },
        "disk": {
            "path": cache,
            "kind": drive.kind,
            "devices": drive.devices,
            "free": drive.free(),
            "o_direct": drive.direct,
            "read_assumed": disk::assumed_rates(drive.kind).0,
            "read_measured": if disk { measure(&cache) } else { Value::Null },
        },
        "io_uring": { "allowed": io_uring.is_ok(), "why_not": io_uring.err() },
        "hub": {
            "cache": cache,
            "exists": cache.is_dir(),
            "token": std::env::var_os("HF_TOKEN").is_some(),
            "offline": std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !v.is_empty() && v != "0"),
        },
        "notes": machine.source.split("; ").collect::<Vec<_>>(),
    })
}

fn gpus() -> Value {
    let Some((driver, cards)) = nvml::cards() else {
        return json!({ "driver_present": gpu::driver_present(), "nvml": false, "driver": null, "cards": [] });
    };
    let card = |c: &nvml::CardFacts| {
        let gauges = nvml::Sampler::new(c.uuid.as_deref()).sample();
        json!({
            "index": c.index,
            "name": c.name,
            "uuid": c.uuid,
            "vram_total": c.total,
            "vram_free": c.free,
            "capability": c.capability.map(|(major, minor)| format!("{major}.{minor}")),
            "pcie": c.pcie.map(|(generation, lanes)| format!("{generation} x{lanes}")),
            "sm_clock_mhz": gauges.sm_clock_mhz,
            "sm_clock_max_mhz": c.max_clock_mhz,
            "temperature_c": gauges.gpu_temp_c,
            "power_w": gauges.power_w,
            "utilisation": gauges.gpu_util,
        })
    };
    json!({
        "driver_present": gpu::driver_present(),
        "nvml": true,
        "driver": driver,
        "cards": cards.iter().map(card).collect::<Vec<_>>(),
    })
}

/// Times direct reads of the largest weights file below `cache`.
fn measure(cache: &Path) -> Value {
    match largest_weights(cache) {
        None => json!({ "rate": null, "why_not": "no weights file in the hub cache to read" }),
        Some(file) => match crate::device::pool::read(&[file], 1.0) {
            Ok(moved) => json!({ "rate": moved.mean(), "why_not": null }),
            Err(e) => json!({ "rate": null, "why_not": e.to_string() }),
        },
    }
}

fn largest_weights(cache: &Path) -> Option<PathBuf> {
    let mut best: Option<(u64, PathBuf)> = None;
    let mut folders = vec![cache.to_path_buf()];
    // A hub cache is a few thousand entries; the bound keeps a strange one from taking minutes.
    for _ in 0..20_000 {
        let Some(folder) = folders.pop() else { break };
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(t) if t.is_dir() => folders.push(path),
                Ok(_) if path.extension().is_some_and(|e| e == "safetensors") => {
                    let len = std::fs::metadata(&path).map_or(0, |m| m.len());
                    if best.as_ref().is_none_or(|b| len > b.0) {
                        best = Some((len, path));
                    }
                }
                _ => {}
            }
        }
    }
    best.map(|(_, path)| path)
}

/// Writes a report as lines of text.
#[must_use]
pub fn render(report: &Value) -> String {
    let mut out = String::new();
    let mut line = |label: &str, text: String| {
        // Writing to a String can't fail.
        let _ = writeln!(out, "{label:<10} {}", text.trim_end());
    };
    let flag = |v: &Value| match v.as_bool() {
        Some(true) => "yes".to_string(),
        Some(false) => "no".to_string(),
        None => "N/A".to_string(),
    };
    let f = &report["features"];
    line(
        "version",
        format!(
            "{} (tui {}, torch {}, cuda {})",
            text(&report["version"]),
            flag(&f["tui"]),
            flag(&f["torch"]),
            flag(&f["cuda"])
        ),
    );
    let g = &report["gpu"];
    let cards = g["cards"].as_array().map_or(&[][..], Vec::as_slice);
    match (g["driver_present"].as_bool(), g["nvml"].as_bool()) {
        (Some(false), Some(false)) => line("gpu", "no CUDA driver: blocks compute on the processor".into()),
        (_, Some(false)) => line("gpu", "driver found, but no NVML library".into()),
        _ => line("gpu", format!("driver {}, {} card(s)", text(&g["driver"]), cards.len())),
    }
    for c in cards {
        line("", format!("{} {} ({})", text(&c["index"]), text(&c["name"]), text(&c["uuid"])));
        line(
            "",
            format!(
                "  VRAM {} free of {}, capability {}, PCIe {}",
                bytes(&c["vram_free"]),
                bytes(&c["vram_total"]),
                text(&c["capability"]),
                text(&c["pcie"])
            ),
        );
        line(
            "",
            format!(
                "  SM clock {} of {} MHz, {} C, {} W, {} % busy",
                text(&c["sm_clock_mhz"]),
                text(&c["sm_clock_max_mhz"]),
                text(&c["temperature_c"]),
                text(&c["power_w"]),
                text(&c["utilisation"])
            ),
        );
    }
    let r = &report["ram"];
    line(
        "ram",
        format!("{} usable of {} (limited by {})", bytes(&r["available"]), bytes(&r["total"]), text(&r["limited_by"])),
    );
    let lock = if r["memlock"].is_null() { "no limit".into() } else { bytes(&r["memlock"]) };
    line("memlock", format!("{lock}; io_uring's registered buffers count against it"));
    let d = &report["disk"];
    line("disk", format!("{}, {} free, O_DIRECT {}", text(&d["kind"]), bytes(&d["free"]), flag(&d["o_direct"])));
    line("", format!("reads at {} (assumed)", rate(d["read_assumed"].as_f64().unwrap_or(f64::NAN))));
    if let Some(m) = d["read_measured"].as_object() {
        match m["rate"].as_f64() {
            Some(x) => line("", format!("reads at {} (measured, one request at a time)", rate(x))),
            None => line("", format!("rate not measured: {}", text(&m["why_not"]))),
        }
    }
    let u = &report["io_uring"];
    let why = u["why_not"].as_str().map(|w| format!(": {w}; reads use a pool of threads")).unwrap_or_default();
    line("io_uring", format!("{}{why}", if u["allowed"] == true { "allowed" } else { "not allowed" }));
    let h = &report["hub"];
    line("hub cache", format!("{} ({})", text(&h["cache"]), if h["exists"] == true { "there" } else { "not there" }));
    line("hub", format!("token {}, offline {}", flag(&h["token"]), flag(&h["offline"])));
    for n in report["notes"].as_array().into_iter().flatten() {
        line("note", text(n));
    }
    out
}

/// A value for people: no quotes, `N/A` for null, control characters replaced.
fn text(v: &Value) -> String {
    match v {
        Value::Null => "N/A".into(),
        Value::String(s) => s.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
        v => v.to_string(),
    }
}

fn bytes(v: &Value) -> String {
    v.as_u64().map_or("N/A".into(), |b| Bytes(b).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_pl_08_doctor_works_without_a_driver() {
        let r = report(false);
        assert_eq!(r["schema"], DOCTOR_SCHEMA);
        for key in ["features", "gpu", "ram", "disk", "io_uring", "hub", "notes"] {
            assert!(!r[key].is_null(), "{key}");
        }
        assert!(r["ram"]["available"].as_u64().unwrap() > 0);
        assert!(r["disk"]["read_measured"].is_null(), "no slow probe unless asked for");
        let text = render(&r);
        if r["gpu"]["driver_present"] == false && r["gpu"]["nvml"] == false {
            assert!(text.contains("no CUDA driver"), "{text}");
        }
        assert!(text.lines().count() > 8 && !text.contains("null"), "{text}");
    }

    #[test]
    fn case_pl_09_missing_fields_read_not_available_never_zero() {
        let mut r = report(false);
        r["gpu"] = json!({ "driver_present": true, "nvml": true, "driver": null, "cards": [{
            "index": 0, "name": null, "uuid": null, "vram_total": null, "vram_free": null, "capability": null,
            "pcie": null, "sm_clock_mhz": null, "sm_clock_max_mhz": null, "temperature_c": null, "power_w": null,
            "utilisation": null }] });
        let text = render(&r);
        assert!(text.contains("VRAM N/A free of N/A") && text.contains("SM clock N/A of N/A MHz"), "{text}");
    }

    #[test]
    fn the_drive_test_takes_the_largest_weights_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("m/snapshots")).unwrap();
        std::fs::write(dir.path().join("m/small.safetensors"), [0; 10]).unwrap();
        std::fs::write(dir.path().join("m/snapshots/large.safetensors"), [0; 20]).unwrap();
        std::fs::write(dir.path().join("m/other.bin"), [0; 99]).unwrap();
        assert_eq!(largest_weights(dir.path()), Some(dir.path().join("m/snapshots/large.safetensors")));
        assert!(measure(&dir.path().join("none"))["why_not"].is_string());
    }
}
