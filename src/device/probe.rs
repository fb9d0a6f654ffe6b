//! Puts the measured machine together, and asks the kernel what it allows.

use super::machine::{Disk, Machine, Ram};
use super::{disk, gpu, host, nvml};
use crate::units::Bytes;
use std::path::Path;

/// Measures this machine: under a second, no benchmark, nothing written. Rates are assumed and said to be.
///
/// `use_gpu = false` leaves the GPU out without waking it.
#[must_use]
pub fn measure(model_dir: Option<&Path>, use_gpu: bool) -> Machine {
    let memory = host::memory();
    let mut notes = Vec::new();
    let gpu = if use_gpu { choose_gpu(&memory, &mut notes) } else { None };
    let drive = disk::describe(model_dir.unwrap_or(Path::new(".")));
    let (read, write) = disk::assumed_rates(drive.kind);
    notes.push(format!("disk rates assumed for kind '{}'", drive.kind));
    notes.push("CPU rate assumed from cores, clock and vector width".into());
    let pinnable = if host::is_wsl() {
        notes.push("WSL: half of the memory can be pinned".into());
        memory.available.min(Bytes(memory.total.0 / 2))
    } else {
        memory.available
    };
    Machine {
        name: "this machine".into(),
        source: format!("measured; {}", notes.join("; ")),
        gpu,
        ram: Ram { total: memory.total, available: memory.available, pinnable, limited_by: memory.limited_by.into() },
        disk: Disk { kind: drive.kind.into(), read, write, free: drive.free.unwrap_or(Bytes::ZERO), ..Disk::default() },
        cpu_flops: host::cpu_flops(),
        past: Default::default(),
    }
}

fn choose_gpu(memory: &host::Memory, notes: &mut Vec<String>) -> Option<super::Gpu> {
    if cfg!(all(feature = "torch", not(feature = "cuda"))) {
        notes.push("this build has no CUDA engine (feature 'cuda' is off)".into());
        return None;
    }
    let Some((driver, cards)) = nvml::cards() else {
        notes.push(if gpu::driver_present() { "no NVML library" } else { "no CUDA driver" }.into());
        return None;
    };
    let env = |name: &str| std::env::var(name).ok();
    let (visible, order) = (env("CUDA_VISIBLE_DEVICES"), env("CUDA_DEVICE_ORDER"));
    let choice =
        gpu::choose(driver.as_deref(), &cards, visible.as_deref(), order.as_deref(), (memory.total, memory.available));
    notes.extend(choice.notes);
    choice.gpu
}

/// Whether the kernel lets this process use io_uring.
///
/// # Errors
/// It doesn't; the text says why.
pub fn io_uring() -> Result<(), &'static str> {
    match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
        Ok("2") => return Err("kernel.io_uring_disabled = 2"),
        Ok("1") => return Err("kernel.io_uring_disabled = 1: only for a privileged group"),
        _ => {}
    }
    // A setting can't tell what a seccomp filter of a container does; only asking can. Zero entries are refused
    // before anything is created.
    // SAFETY: io_uring_setup(0, NULL) reads no memory for entries = 0 or faults in the kernel's own copy (EFAULT);
    // it can't succeed, so no descriptor leaks.
    let rc = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0u32, std::ptr::null_mut::<u8>()) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    match (rc, errno) {
        (-1, Some(libc::ENOSYS)) => Err("this kernel has none, or a sandbox hides it"),
        (-1, Some(libc::EPERM | libc::EACCES)) => Err("a sandbox forbids it"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_pl_08_measuring_a_machine_without_a_driver_gives_a_cpu_machine() {
        let dir = tempfile::tempdir().unwrap();
        let m = measure(Some(dir.path()), true);
        assert!(m.source.starts_with("measured; ") && m.source.contains("assumed"), "{}", m.source);
        assert!(m.ram.available > Bytes::ZERO && m.disk.free > Bytes::ZERO && m.cpu_flops > 0.0);
        if !gpu::driver_present() {
            assert!(m.gpu.is_none() && m.source.contains("no CUDA driver"), "{}", m.source);
        }
        assert!(measure(Some(dir.path()), false).gpu.is_none());
    }

    #[test]
    fn asking_for_io_uring_never_fails_badly() {
        if let Err(why) = io_uring() {
            assert!(!why.is_empty());
        }
    }
}
