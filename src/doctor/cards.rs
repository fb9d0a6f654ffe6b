//! The GPUs: all of them, which one a run would take and why, and what the card takes beside tensors.

use crate::clock;
use crate::device::calibration::Calibration;
use crate::device::{Gpu, gpu, host, nvml};
use serde_json::{Value, json};

pub(super) fn look(memory: &host::Memory, saved: &Calibration, wsl: bool) -> Value {
    match nvml::cards() {
        Some((driver, cards)) => found(driver.as_deref(), &cards, memory, saved, wsl),
        None => json!({
            "driver_present": gpu::driver_present(),
            "nvml": false,
            "driver": null,
            "taken": null,
            "cards": [],
        }),
    }
}

fn found(
    driver: Option<&str>,
    cards: &[nvml::CardFacts],
    memory: &host::Memory,
    saved: &Calibration,
    wsl: bool,
) -> Value {
    let choice = gpu::choose_here(driver, cards, (memory.total, memory.available));
    let one = |c: &nvml::CardFacts| {
        let gauges = nvml::Sampler::new(c.uuid.as_deref()).sample();
        json!({
            "index": c.index,
            "name": c.name,
            "uuid": c.uuid,
            "memory": match (c.total, c.shared) {
                (Some(_), _) => "its own",
                (None, true) => "integrated/shared",
                (None, false) => "unknown",
            },
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
        "taken": choice.gpu.map(|g| taken(g, choice.index, choice.why, saved, wsl)),
        "cards": cards.iter().map(one).collect::<Vec<_>>(),
    })
}

/// The card a run would take: its budget, and what it takes beyond live tensors.
fn taken(mut gpu: Gpu, index: Option<u32>, why: &str, saved: &Calibration, wsl: bool) -> Value {
    let margin = wsl.then(|| gpu::spare_for_windows(&mut gpu));
    let measured = saved.gpu(gpu.uuid.as_deref()).and_then(|g| g.overhead.as_ref());
    // As plans do: a figure below what is assumed is shown, and not used.
    let used = measured.filter(|o| o.bytes > gpu.overhead);
    json!({
        "index": index,
        "uuid": gpu.uuid,
        "why": why,
        "budget": gpu.vram_free,
        "margin": margin,
        "overhead": used.map_or(gpu.overhead, |o| o.bytes),
        "overhead_measured": measured.map(|o| o.bytes),
        "overhead_source": match (used, measured) {
            (Some(o), _) => format!("measured {}", &clock::utc(o.at)[..10]),
            (None, Some(o)) => format!("assumed; a calibration measured {}", o.bytes),
            (None, None) => "assumed".into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::calibration::Overhead;
    use crate::units::Bytes;

    #[test]
    fn case_pl_04_all_cards_are_shown_and_shared_memory_is_labelled() {
        let card = |index, uuid: &str, total| nvml::CardFacts {
            index,
            name: Some(format!("Card {index}")),
            uuid: Some(uuid.into()),
            total,
            free: total,
            shared: total.is_none(),
            ..nvml::CardFacts::default()
        };
        let cards = [card(0, "GPU-shared", None), card(1, "GPU-own", Some(Bytes(8 << 30)))];
        let memory = host::Memory { total: Bytes(16 << 30), available: Bytes(12 << 30), limited_by: "host" };
        let mut saved = Calibration::default();
        saved.gpu_mut("GPU-own", "").overhead = Some(Overhead { at: 1_796_000_000, bytes: Bytes(921_000_000) });
        let v = found(Some("580.1"), &cards, &memory, &saved, false);
        assert_eq!(
            (v["cards"][0]["memory"].as_str(), v["cards"][1]["memory"].as_str()),
            (Some("integrated/shared"), Some("its own"))
        );
        if std::env::var_os("CUDA_VISIBLE_DEVICES").is_none() {
            let t = &v["taken"];
            assert_eq!((t["uuid"].as_str(), t["index"].as_u64()), (Some("GPU-own"), Some(1)));
            assert!(t["why"].as_str().unwrap().contains("memory of its own"), "{t}");
            assert_eq!(
                (t["overhead"].as_u64(), t["overhead_source"].as_str()),
                (Some(921_000_000), Some("measured 2026-11-30"))
            );
            let wsl = found(Some("580.1"), &cards, &memory, &Calibration::default(), true);
            assert_eq!(wsl["taken"]["budget"], (8_u64 << 30) - (512 << 20));
            assert_eq!(wsl["taken"]["overhead_source"], "assumed");
        }
    }
}
