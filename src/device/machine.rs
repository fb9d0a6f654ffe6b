//! A machine as plain data: measured once, or read from a profile, then passed to the planner.

use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A machine as measured once, or as a profile describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Shown name.
    pub name: String,
    /// Where its numbers come from: `measured`, `profile FILE`, and what was assumed.
    #[serde(default)]
    pub source: String,
    /// The GPU; `None` = CPU only.
    #[serde(default)]
    pub gpu: Option<Gpu>,
    /// Host memory.
    pub ram: Ram,
    /// The drive that holds the checkpoint.
    pub disk: Disk,
    /// Free space where results go, where that is another volume than the checkpoint's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results_free: Option<Bytes>,
    /// CPU compute rate in f32, FLOP/s.
    #[serde(default)]
    pub cpu_flops: f64,
    /// What steps of earlier runs took here over what was forecast, by the resource that bound them.
    #[serde(default)]
    pub past: BTreeMap<String, Past>,
}

fn none(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

/// Earlier runs against their forecasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Past {
    /// Median of measured over forecast seconds a step.
    pub ratio: f64,
    /// Runs.
    pub runs: usize,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Marketing name.
    pub name: String,
    /// UUID, when measured.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Driver version, when measured.
    #[serde(default)]
    pub driver: Option<String>,
    /// Compute capability `(major, minor)`, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<(i32, i32)>,
    /// All of it.
    pub vram_total: Bytes,
    /// Free as the allocator will see it.
    pub vram_free: Bytes,
    /// By how much what is in use is more than all of it: only of a machine that was edited to less.
    #[serde(default, skip_serializing_if = "none")]
    pub vram_lacking: Bytes,
    /// Device memory that a CUDA context and libraries take beyond what is live.
    pub overhead: Bytes,
    /// Host to device, pinned, bytes per second.
    pub h2d: f64,
    /// Device to host, pinned, bytes per second.
    pub d2h: f64,
    /// Sustained bf16 GEMM rate, FLOP/s.
    pub flops: f64,
    /// Shares memory with the host.
    #[serde(default)]
    pub integrated: bool,
    /// Its driver moves what doesn't fit to host memory instead of refusing it (Windows).
    #[serde(default)]
    pub spills: bool,
    /// Slowest and fastest host-to-device rate seen in the calibration, bytes per second.
    #[serde(default)]
    pub h2d_spread: Option<[f64; 2]>,
    /// Rates of kernels; `None` = not calibrated: everything is derived from `flops`.
    #[serde(default)]
    pub kernels: Option<Kernels>,
}

/// Rates of a GPU's kernels, from `bench gemm`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernels {
    /// Elementwise kernels in large bf16 tensors: bytes read and written per second.
    pub memory: f64,
    /// Causal flash attention forward: FLOP/s in long rows, and the length at which half of that is reached.
    pub attention: [f64; 2],
    /// The same backward.
    pub attention_backward: [f64; 2],
    /// Seconds on the device that every kernel takes besides its work.
    pub each: f64,
    /// Seconds of host time to launch one kernel.
    pub launch: f64,
    /// What a block's forward visit took over what these rates say.
    pub forward: f64,
    /// What its backward visit took over that.
    pub backward: f64,
}

impl Kernels {
    /// Kernels that take no time.
    pub const NONE: Kernels = Kernels {
        memory: f64::INFINITY,
        attention: [f64::INFINITY, 0.0],
        attention_backward: [f64::INFINITY, 0.0],
        each: 0.0,
        launch: 0.0,
        forward: 1.0,
        backward: 1.0,
    };
}

/// Host memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ram {
    /// All of it (or the cgroup's limit).
    pub total: Bytes,
    /// Usable now.
    pub available: Bytes,
    /// By how much what is in use is more than all of it: only of a machine that was edited to less.
    #[serde(default, skip_serializing_if = "none")]
    pub lacking: Bytes,
    /// Most that may be pinned.
    pub pinnable: Bytes,
    /// What limits it: `host`, `cgroup`, `profile`.
    #[serde(default)]
    pub limited_by: String,
}

/// A drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// `nvme`, `ssd`, `hdd`, `unknown`.
    pub kind: String,
    /// Sustained O_DIRECT read, bytes per second.
    pub read: f64,
    /// Sustained write, bytes per second.
    pub write: f64,
    /// Free space for an ordinary user.
    pub free: Bytes,
    /// Rated endurance in bytes written; `None` = unknown.
    #[serde(default)]
    pub tbw: Option<Bytes>,
    /// 10th and 90th percentile of the read rate in the calibration, bytes per second; `None` = not measured here.
    #[serde(default)]
    pub read_spread: Option<[f64; 2]>,
    /// Bytes that the drive takes at full speed before its fast cache is full; `None` = unknown.
    #[serde(default)]
    pub slc: Option<Bytes>,
    /// Write rate once that cache is full, bytes per second.
    #[serde(default)]
    pub write_after_slc: Option<f64>,
    /// Bytes written in the drive's life so far, by SMART; `None` = not readable.
    #[serde(default)]
    pub written: Option<Bytes>,
    /// Share of its rated life used, 0 to 1 (above 1 past it), by SMART.
    #[serde(default)]
    pub life_used: Option<f64>,
    /// File systems on it do direct reads; `None` = not tried.
    #[serde(default)]
    pub direct: Option<bool>,
}

impl Disk {
    /// Why blocks may not stream from this drive; `None` where they may. `allow_hdd` is `stream.allow_hdd`.
    ///
    /// Only a drive that is known to be a hard disk is refused: an unknown one may be a virtual drive of any speed.
    #[must_use]
    pub fn refuses_streaming(&self, allow_hdd: bool) -> Option<String> {
        (self.kind == "hdd" && !allow_hdd).then(|| {
            "blocks would stream from a hard disk, which every step waits for; move the model to an SSD, or set \
             stream.allow_hdd = true"
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_hard_disk_refuses_to_stream() {
        let disk = |kind: &str| Disk { kind: kind.into(), ..Disk::default() };
        assert!(disk("hdd").refuses_streaming(false).is_some_and(|why| why.contains("stream.allow_hdd = true")));
        assert_eq!(disk("hdd").refuses_streaming(true), None);
        assert!(["nvme", "ssd", "unknown"].iter().all(|k| disk(k).refuses_streaming(false).is_none()));
    }
}
