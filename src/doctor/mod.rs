//! `doctor`: what this machine offers and what is missing, as one JSON object and as text.
//!
//! Fast and read-only: the drive's rate is measured, and its wear asked for, only on demand. A value nobody could read is
//! `null`, shown as `N/A`, never as zero.

mod cards;
mod render;
mod volumes;

pub use render::render;

use crate::checkpoint::hub;
use crate::clock;
use crate::device::calibration::{self, Calibration};
use crate::device::roots::Roots;
use crate::device::{host, probe, uring};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Version of the report's JSON.
pub const DOCTOR_SCHEMA: u32 = 1;

/// Where to look, and how closely.
#[derive(Clone, Debug)]
pub struct Look {
    /// Where the kernel shows its files.
    pub roots: Roots,
    /// Folder of the hub cache.
    pub cache: PathBuf,
    /// Folder for runs.
    pub results: PathBuf,
    /// The working folder.
    pub working: PathBuf,
    /// The file of calibrations.
    pub calibrations: Option<PathBuf>,
    /// Unix seconds.
    pub now: u64,
    /// Also measure reading for two seconds, and ask drives for their wear.
    pub disk: bool,
}

impl Look {
    /// At this machine, from the working folder.
    #[must_use]
    pub fn here(disk: bool) -> Look {
        Look {
            roots: Roots::system(),
            cache: hub::cache_dir().unwrap_or_else(|| PathBuf::from(".")),
            results: "results".into(),
            working: ".".into(),
            calibrations: calibration::default_file(),
            now: clock::unix_now(),
            disk,
        }
    }
}

/// Looks at GPUs, memory, drives, kernel and folders.
#[must_use]
pub fn report(look: &Look) -> Value {
    let roots = &look.roots;
    let memory = host::memory_in(roots);
    let wsl = host::is_wsl_in(roots);
    let (saved, ignored) = look.calibrations.as_deref().map(calibration::load).unwrap_or_default();
    let machine = probe::measure_with(roots, &saved, look.now, Some(&look.cache), true);
    let rung = uring::rung();
    let volumes = volumes::look(look, &saved, &rung);
    let (swap, swap_free) = host::swap();
    let mut notes: Vec<&str> = machine.source.split("; ").collect();
    notes.extend(ignored.iter().map(String::as_str));
    json!({
        "schema": DOCTOR_SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "features": {
            "tui": cfg!(feature = "tui"),
            "torch": cfg!(feature = "torch"),
            "cuda": cfg!(feature = "cuda"),
        },
        "gpu": cards::look(&memory, &saved, wsl),
        "ram": {
            "total": memory.total,
            "available": memory.available,
            "limited_by": memory.limited_by,
            "pinnable": host::pinnable(&memory, wsl),
            "memlock": host::memlock(),
            "swap": swap,
            "swap_free": swap_free,
            "wsl": wsl,
        },
        "cpu": {
            "name": host::cpu().0,
            "threads": host::cpu().1,
            "flops_assumed": host::cpu_flops(),
            "flops": machine.cpu_flops,
        },
        "disk": volumes[0],
        "volumes": volumes,
        "io_uring": { "allowed": rung.name != "none", "rung": rung.name, "why_not": rung.why },
        "hub": {
            "cache": look.cache,
            "exists": look.cache.is_dir(),
            "token": std::env::var_os("HF_TOKEN").is_some(),
            "offline": std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !v.is_empty() && v != "0"),
        },
        "calibration": calibrated(look, &saved),
        "notes": notes,
    })
}

/// What is kept of earlier measurements, by card and volume.
fn calibrated(look: &Look, saved: &Calibration) -> Value {
    json!({
        "file": look.calibrations,
        "exists": look.calibrations.as_deref().is_some_and(std::path::Path::is_file),
        "gpus": saved.gpus,
        "volumes": saved.volumes,
        "cpus": saved.cpus,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::calibration::{Overhead, Read};
    use crate::units::Bytes;

    /// A machine that shows nothing: no `/sys`, no `/proc`, no bus, no calibrations.
    fn nothing(dir: &std::path::Path, disk: bool) -> Look {
        let below = |name: &str| dir.join(name);
        Look {
            roots: Roots::below(dir),
            cache: below("hub"),
            results: below("results"),
            working: dir.into(),
            calibrations: Some(below("calibration.toml")),
            now: 1_796_000_000,
            disk,
        }
    }

    #[test]
    fn case_pl_08_doctor_works_without_a_driver() {
        let r = report(&Look::here(false));
        assert_eq!(r["schema"], DOCTOR_SCHEMA);
        for key in ["features", "gpu", "ram", "disk", "volumes", "io_uring", "hub", "calibration", "notes"] {
            assert!(!r[key].is_null(), "{key}");
        }
        assert!(r["ram"]["available"].as_u64().unwrap() > 0);
        assert!(r["disk"]["read_measured"].is_null() && r["disk"]["wear"].is_null(), "nothing slow unless asked for");
        let text = render(&r);
        if r["gpu"]["driver_present"] == false && r["gpu"]["nvml"] == false {
            assert!(text.contains("no CUDA driver"), "{text}");
        }
        assert!(text.lines().count() > 8 && !text.contains("null"), "{text}");
    }

    #[test]
    fn a_container_that_shows_nothing_gets_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let r = report(&nothing(dir.path(), true));
        let d = &r["disk"];
        assert_eq!(
            (d["kind"].as_str(), d["wear"].clone(), d["link"].clone()),
            (Some("unknown"), json!([]), Value::Null)
        );
        assert!(d["free"].as_u64().is_some_and(|f| f > 0) && d["why"].as_str().unwrap().contains("shows no drives"));
        assert!(d["read_measured"]["why_not"].as_str().unwrap().contains("no weights"), "{d}");
        assert_eq!(r["volumes"].as_array().unwrap().len(), 1, "all three folders are on one volume");
        let text = render(&r);
        assert!(text.contains("hub cache, results, working folder") && !text.contains("null"), "{text}");
    }

    #[test]
    fn calibrations_of_the_volume_are_shown_and_bad_ones_noted() {
        let dir = tempfile::tempdir().unwrap();
        let look = nothing(dir.path(), false);
        let id = report(&look)["disk"]["volume"].as_str().map(String::from);
        let Some(id) = id else { return };
        calibration::save(look.calibrations.as_deref().unwrap(), |all| {
            let (rate, spread) = (2.4e9, [2.1e9, 2.5e9]);
            let read = Read { at: look.now, rate, spread, reader: "io_uring".into(), kind: Some("nvme".into()) };
            all.volume_mut(&id, "/").read = Some(read);
            all.gpu_mut("GPU-1", "Card").overhead = Some(Overhead { at: look.now, bytes: Bytes(5) });
        })
        .unwrap();
        let r = report(&look);
        assert_eq!(r["disk"]["calibrated"]["read"]["rate"], 2.4e9);
        assert_eq!(r["calibration"]["gpus"][0]["uuid"], "GPU-1");
        let text = render(&r);
        assert!(text.contains("reads at 2.10 GB/s to 2.50 GB/s, calibrated 2026-11-30"), "{text}");
        std::fs::write(look.calibrations.as_deref().unwrap(), "rubbish").unwrap();
        assert!(render(&report(&look)).contains("saved calibrations are ignored"));
    }
}
