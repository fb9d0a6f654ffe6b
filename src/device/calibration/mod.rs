//! What was measured on this machine, kept between runs: rates of a GPU by its UUID, of a volume by its file system's id,
//! of the processor by its name. `bench` saves them, [`super::probe`] puts them in place of assumed ones.

mod apply;
mod file;

pub use apply::{Applied, OLD_DAYS};
pub use file::{default_file, load, load_default, save};

use super::Kernels;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// Everything that is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Cards.
    pub gpus: Vec<GpuEntry>,
    /// File systems.
    pub volumes: Vec<VolumeEntry>,
    /// Processors: a home folder may be shared between machines.
    pub cpus: Vec<CpuEntry>,
}

/// A GPU's measurements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuEntry {
    /// `GPU-…`.
    pub uuid: String,
    /// Marketing name.
    #[serde(default)]
    pub name: String,
    /// Copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// Matrix products and other kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gemm: Option<Gemm>,
    /// Device memory beyond what is live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Overhead>,
}

/// `bench link`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Unix seconds.
    pub at: u64,
    /// Driver it was measured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Host to device, pinned, bytes per second.
    pub h2d: f64,
    /// Device to host, pinned, bytes per second.
    pub d2h: f64,
    /// Slowest and fastest trial host to device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub h2d_spread: Option<[f64; 2]>,
    /// SM clock meanwhile, MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
}

/// `bench gemm` on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gemm {
    /// Unix seconds.
    pub at: u64,
    /// Driver it was measured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Large bf16 products, FLOP/s.
    pub flops: f64,
    /// SM clock meanwhile, MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<u32>,
    /// Other kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Kernels>,
}

/// Device memory that context and libraries took beyond live tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// Unix seconds.
    pub at: u64,
    /// By how much it was.
    pub bytes: Bytes,
}

/// A volume's measurements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeEntry {
    /// `disk::Drive::id`.
    pub id: String,
    /// Where it was mounted, for people.
    #[serde(default)]
    pub mount: String,
    /// Reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Read>,
    /// Writing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Write>,
    /// SMART.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear: Option<WearEntry>,
}

/// `bench disk`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Unix seconds.
    pub at: u64,
    /// Sustained, as a run reads, bytes per second.
    pub rate: f64,
    /// 10th and 90th percentile of tenths of a second.
    pub spread: [f64; 2],
    /// How it was read.
    #[serde(default)]
    pub reader: String,
    /// What the drive reads like, where the system doesn't tell its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// `bench disk --write`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// Unix seconds.
    pub at: u64,
    /// Bytes per second, before the fast cache is full.
    pub rate: f64,
    /// Bytes that the fast cache took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slc: Option<Bytes>,
    /// Bytes per second once it is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_slc: Option<f64>,
}

/// A drive's wear by SMART.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WearEntry {
    /// Unix seconds.
    pub at: u64,
    /// Bytes written in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Bytes>,
    /// Share of its rated life used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life_used: Option<f64>,
}

/// A processor's measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuEntry {
    /// Model name.
    pub name: String,
    /// Threads that computed.
    pub threads: u64,
    /// Unix seconds.
    pub at: u64,
    /// Large f32 products, FLOP/s.
    pub flops: f64,
}

impl Calibration {
    /// The card's entry, made where there is none.
    pub fn gpu_mut(&mut self, uuid: &str, name: &str) -> &mut GpuEntry {
        let i = self.gpus.iter().position(|g| g.uuid == uuid).unwrap_or_else(|| {
            self.gpus.push(GpuEntry { uuid: uuid.into(), ..GpuEntry::default() });
            self.gpus.len() - 1
        });
        self.gpus[i].name = name.into();
        &mut self.gpus[i]
    }

    /// The volume's entry, made where there is none.
    pub fn volume_mut(&mut self, id: &str, mount: &str) -> &mut VolumeEntry {
        let i = self.volumes.iter().position(|v| v.id == id).unwrap_or_else(|| {
            self.volumes.push(VolumeEntry { id: id.into(), ..VolumeEntry::default() });
            self.volumes.len() - 1
        });
        self.volumes[i].mount = mount.into();
        &mut self.volumes[i]
    }

    /// Keeps the processor's measurement in place of an older one.
    pub fn set_cpu(&mut self, entry: CpuEntry) {
        self.cpus.retain(|c| (&c.name, c.threads) != (&entry.name, entry.threads));
        self.cpus.push(entry);
    }

    /// The card with `uuid`.
    #[must_use]
    pub fn gpu(&self, uuid: Option<&str>) -> Option<&GpuEntry> {
        self.gpus.iter().find(|g| Some(g.uuid.as_str()) == uuid)
    }

    /// The volume with `id`.
    #[must_use]
    pub fn volume(&self, id: Option<&str>) -> Option<&VolumeEntry> {
        self.volumes.iter().find(|v| Some(v.id.as_str()) == id)
    }
}
