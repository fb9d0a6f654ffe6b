//! Puts the measured machine together: what the system says, saved calibrations, and assumptions for the rest.

use super::calibration::{self, Applied, Calibration};
use super::machine::{Disk, Machine, Ram};
use super::roots::Roots;
use super::{Gpu, disk, gpu, host, nvml};
use crate::clock;
use crate::units::Bytes;
use std::path::Path;

/// `source` says this where nobody measured the processor.
pub const CPU_GUESSED: &str = "CPU speed guessed from its cores and clock";

/// Times a few products in place of a guessed rate of the processor.
#[cfg(feature = "torch")]
pub fn look_at_products(machine: &mut Machine) {
    if !machine.source.contains(CPU_GUESSED) {
        return;
    }
    if let Some(flops) = super::products::quick_cpu_flops() {
        machine.cpu_flops = flops;
        machine.source = machine.source.replace(CPU_GUESSED, "CPU speed from a quick look at products");
    }
}

/// Describes this machine: under a second, no benchmark, nothing written. Rates are those of saved calibrations, the
/// others are assumed; `source` says which.
///
/// `use_gpu = false` leaves the GPU out without waking it.
#[must_use]
pub fn measure(model_dir: Option<&Path>, use_gpu: bool) -> Machine {
    let (saved, ignored) = calibration::load_default();
    let mut machine = measure_with(&Roots::system(), &saved, clock::unix_now(), model_dir, use_gpu);
    for note in ignored {
        machine.source += &format!("; {note}");
    }
    machine
}

/// As [`measure`], by the files below `roots` and the calibrations `saved`, at `now` (Unix seconds).
#[must_use]
pub fn measure_with(roots: &Roots, saved: &Calibration, now: u64, model_dir: Option<&Path>, use_gpu: bool) -> Machine {
    let memory = host::memory_in(roots);
    let wsl = host::is_wsl_in(roots);
    let mut notes = Vec::new();
    let mut applied = Applied::default();
    let mut gpu = if use_gpu { choose_gpu(&memory, &mut notes) } else { None };
    if let Some(gpu) = &mut gpu {
        if wsl {
            let margin = gpu::spare_for_windows(gpu);
            notes.push(format!("WSL: {margin} of VRAM is kept free, since Windows moves what is past it to the host"));
        }
        applied.gpu(saved, gpu);
        let measured = |n: &String| gpu::ASSUMED.iter().any(|(part, words)| applied.has(part) && n.starts_with(words));
        notes.retain(|n| !measured(n));
    }
    let disk = describe_disk(roots, saved, model_dir.unwrap_or(Path::new(".")), &mut applied, &mut notes);
    let (name, threads) = host::cpu();
    let cpu_flops = applied.cpu(saved, &name, threads).unwrap_or_else(|| {
        notes.push(CPU_GUESSED.into());
        host::cpu_flops()
    });
    if wsl {
        notes.push("WSL: half of the memory can be pinned".into());
    }
    let all: Vec<String> = ["measured".to_string()].into_iter().chain(applied.notes(now)).chain(notes).collect();
    Machine {
        name: "this machine".into(),
        source: all.join("; "),
        gpu,
        ram: Ram {
            total: memory.total,
            available: memory.available,
            pinnable: host::pinnable(&memory, wsl),
            lacking: Bytes::ZERO,
            limited_by: memory.limited_by.into(),
        },
        results_free: None,
        disk,
        cpu_flops,
        past: Default::default(),
    }
}

fn describe_disk(
    roots: &Roots,
    saved: &Calibration,
    dir: &Path,
    applied: &mut Applied,
    notes: &mut Vec<String>,
) -> Disk {
    let drive = disk::describe_in(roots, dir);
    let (read, write) = disk::assumed_rates(drive.kind);
    // A slower wire counts; how much of it a drive uses is the assumption.
    let read = drive.link_rate.map_or(read, |link| read.min(0.9 * link));
    let mut disk = Disk {
        kind: drive.kind.into(),
        read,
        write,
        free: drive.free().unwrap_or(Bytes::ZERO),
        direct: drive.direct,
        ..Disk::default()
    };
    applied.disk(saved, drive.id.as_deref(), &mut disk);
    let kind = if drive.kind == "unknown" { String::new() } else { format!(" for an {} drive", drive.kind) };
    match (applied.has("disk"), applied.has("write")) {
        (false, false) => notes.push(format!("disk speed guessed{kind}")),
        (true, false) => notes.push(format!("write speed guessed{kind}")),
        (false, true) => notes.push(format!("read speed guessed{kind}")),
        (true, true) => {}
    }
    disk
}

/// The card a run would take, and why; `None` with a reason in `notes`.
fn choose_gpu(memory: &host::Memory, notes: &mut Vec<String>) -> Option<Gpu> {
    if cfg!(all(feature = "torch", not(feature = "cuda"))) {
        notes.push("this build has no CUDA engine (feature 'cuda' is off)".into());
        return None;
    }
    let Some((driver, cards)) = nvml::cards() else {
        notes.push(if gpu::driver_present() { "no NVML library" } else { "no CUDA driver" }.into());
        return None;
    };
    let choice = gpu::choose_here(driver.as_deref(), &cards, (memory.total, memory.available));
    notes.extend(choice.notes);
    choice.gpu
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::calibration::{CpuEntry, Read, Write};

    const NOW: u64 = 1_796_000_000;

    #[test]
    fn case_pl_08_measuring_a_machine_without_a_driver_gives_a_cpu_machine() {
        let dir = tempfile::tempdir().unwrap();
        let none = Calibration::default();
        let m = measure_with(&Roots::system(), &none, NOW, Some(dir.path()), true);
        assert!(m.source.starts_with("measured; ") && m.source.contains("guessed"), "{}", m.source);
        assert!(m.ram.available > Bytes::ZERO && m.disk.free > Bytes::ZERO && m.cpu_flops > 0.0);
        if !gpu::driver_present() {
            assert!(m.gpu.is_none() && m.source.contains("no CUDA driver"), "{}", m.source);
        }
        assert!(measure(Some(dir.path()), false).gpu.is_none());
    }

    #[test]
    fn a_container_that_shows_nothing_is_a_machine_all_the_same() {
        let (dir, nothing) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let m = measure_with(&Roots::below(nothing.path()), &Calibration::default(), NOW, Some(dir.path()), false);
        assert_eq!((m.disk.kind.as_str(), m.ram.limited_by.as_str()), ("unknown", "host"));
        assert!(m.disk.read > 0.0 && m.disk.free > Bytes::ZERO);
    }

    #[test]
    fn saved_rates_are_used_for_the_models_own_volume() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::system();
        let Some(id) = disk::describe_in(&roots, dir.path()).id else { return };
        let mut saved = Calibration::default();
        let volume = saved.volume_mut(&id, "/");
        let spread = [2.1e9, 2.5e9];
        volume.read = Some(Read { at: NOW, rate: 2.4e9, spread, reader: "io_uring".into(), kind: None });
        volume.write = Some(Write { at: NOW, rate: 1.5e9, slc: Some(Bytes(9)), after_slc: Some(3e8) });
        let (name, threads) = host::cpu();
        saved.set_cpu(CpuEntry { name, threads, at: NOW, flops: 3.21e11 });
        let m = measure_with(&roots, &saved, NOW, Some(dir.path()), false);
        assert_eq!((m.disk.read, m.disk.read_spread, m.disk.write), (2.4e9, Some(spread), 1.5e9));
        assert_eq!((m.disk.slc, m.disk.write_after_slc, m.cpu_flops), (Some(Bytes(9)), Some(3e8), 3.21e11));
        let want = format!("calibrated {} (disk 2.10–2.50 GB/s, writing 1.50 GB/s", &clock::utc(NOW)[..10]);
        assert!(m.source.contains(&want), "{}", m.source);
        assert!(!m.source.contains("guessed"), "{}", m.source);
    }
}
