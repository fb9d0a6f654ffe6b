//! `env.json`: what a run ran with, so that its numbers can be compared later. No user or host names.

use crate::checkpoint::Checkpoint;
use crate::clock;
use crate::device::Machine;
use serde_json::{Value, json};

/// This program's name and version, as reports state it.
#[must_use]
pub fn tool() -> String {
    format!("{} {}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
}

/// What [`super::summary`] looks up about tool, base and machine. Callers may add keys (`libtorch`: its version).
///
/// `machine` must be the one the run computes on, not a profile's.
#[must_use]
pub fn environment(checkpoint: Option<&Checkpoint>, machine: &Machine) -> Value {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let os = format!("{} {} {}", std::env::consts::OS, kernel.trim(), std::env::consts::ARCH);
    json!({
        "schema": 1,
        "tool": tool(),
        "started": clock::utc(clock::unix_now()),
        "os": os,
        "ram_total": machine.ram.total,
        "disk": machine.disk.kind,
        "gpu": machine.gpu.as_ref().map(|g| json!({
            "name": g.name,
            "uuid": g.uuid,
            "driver": g.driver,
            "vram_total": g.vram_total,
        })),
        "model": checkpoint.map(|c| json!({
            "name": c.name,
            "hub_id": c.hub_id,
            "revision": c.revision,
            "fingerprint": c.fingerprint,
            "params": c.params(),
            "bytes": c.total_bytes(),
        })),
    })
}
