//! NVIDIA's management library: facts once, gauges once a second. Every field may be missing, and missing is not zero.
//!
//! The library is loaded at run time; without it (or with a driver that refuses a field) the value is `None`.
//! A gauge that fails three times in a row is not asked again. Polling wakes a sleeping laptop GPU: only a run does it.

use super::host;
use crate::event::Gauges;
use crate::units::Bytes;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

/// What the library says about one card, in PCI order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardFacts {
    /// Place in PCI order.
    pub index: u32,
    /// Marketing name.
    pub name: Option<String>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// All memory.
    pub total: Option<Bytes>,
    /// Free memory.
    pub free: Option<Bytes>,
    /// Compute capability `(major, minor)`.
    pub capability: Option<(i32, i32)>,
    /// CUDA cores.
    pub cores: Option<u32>,
    /// Highest SM clock, MHz.
    pub max_clock_mhz: Option<u32>,
    /// PCIe generation and lanes this card and slot can do.
    pub pcie: Option<(u32, u32)>,
    /// It has no memory of its own but uses the host's: CUDA says so. Where `total` is missing and this is `false`, nobody
    /// knows its memory.
    pub shared: bool,
    /// Its MIG slices, where it is cut into such.
    pub slices: Vec<Slice>,
}

/// A MIG slice of a card.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slice {
    /// `MIG-…`.
    pub uuid: String,
    /// All memory.
    pub total: Option<Bytes>,
    /// Free memory.
    pub free: Option<Bytes>,
}

/// The cards of this machine and the driver's version; `None` without the library.
#[must_use]
pub fn cards() -> Option<(Option<String>, Vec<CardFacts>)> {
    let nvml = Nvml::init().ok()?;
    let n = nvml.device_count().ok()?;
    let facts = |index| {
        let Ok(d) = nvml.device_by_index(index) else {
            return CardFacts { index, ..CardFacts::default() };
        };
        let memory = d.memory_info().ok().map(|m| (Bytes(m.total), Bytes(m.free)));
        let uuid = d.uuid().ok();
        // Some drivers don't tell (shared memory, no permission, a lost card): CUDA knows, or nobody does.
        let told = if memory.is_none() { super::told::memory(uuid.as_deref()) } else { None };
        let shared = told.as_ref().is_some_and(|t| t.shared);
        let memory = memory.or(told.filter(|t| !t.shared).map(|t| (t.total, t.free)));
        CardFacts {
            index,
            name: d.name().ok(),
            uuid,
            total: memory.map(|m| m.0),
            free: memory.map(|m| m.1),
            shared,
            slices: slices(&d),
            capability: d.cuda_compute_capability().ok().map(|c| (c.major, c.minor)),
            cores: d.num_cores().ok(),
            max_clock_mhz: d.max_clock_info(Clock::SM).ok(),
            pcie: d.max_pcie_link_gen().ok().zip(d.current_pcie_link_width().or_else(|_| d.max_pcie_link_width()).ok()),
        }
    };
    Some((nvml.sys_driver_version().ok(), (0..n).map(facts).collect()))
}

/// The MIG slices of `card`; none where it isn't cut into any.
fn slices(card: &nvml_wrapper::Device<'_>) -> Vec<Slice> {
    let n = card.mig_device_count().unwrap_or(0);
    let one = |i| {
        let d = card.mig_device_by_index(i).ok()?;
        let memory = d.memory_info().ok();
        let (total, free) = memory.map_or((None, None), |m| (Some(Bytes(m.total)), Some(Bytes(m.free))));
        Some(Slice { uuid: d.uuid().ok()?, total, free })
    };
    (0..n).filter_map(one).collect()
}

/// PCIe generation and lanes at which the card with `uuid` runs now: an idle card's link sleeps at generation 1.
#[must_use]
pub fn link_now(uuid: &str) -> Option<(u32, u32)> {
    let nvml = Nvml::init().ok()?;
    let card = nvml.device_by_uuid(uuid).ok()?;
    card.current_pcie_link_gen().ok().zip(card.current_pcie_link_width().ok())
}

/// A gauge of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// MHz.
    SmClock,
    /// Percent.
    Utilisation,
    /// Celsius.
    Temperature,
    /// Milliwatts.
    Power,
    /// Bytes.
    MemoryUsed,
}

impl Field {
    const ALL: [Field; 5] = [Field::SmClock, Field::Utilisation, Field::Temperature, Field::Power, Field::MemoryUsed];
}

/// A card whose gauges can be read; a driver, or a mock of one.
pub trait Card: Send {
    /// The gauge's value; `None` when the driver says not supported, unknown, lost or anything else but a value.
    fn read(&self, field: Field) -> Option<u64>;
}

struct NvmlCard {
    nvml: Nvml,
    index: u32,
}

impl Card for NvmlCard {
    fn read(&self, field: Field) -> Option<u64> {
        let d = self.nvml.device_by_index(self.index).ok()?;
        match field {
            Field::SmClock => d.clock_info(Clock::SM).ok().map(u64::from),
            Field::Utilisation => d.utilization_rates().ok().map(|u| u64::from(u.gpu)),
            Field::Temperature => d.temperature(TemperatureSensor::Gpu).ok().map(u64::from),
            Field::Power => d.power_usage().ok().map(u64::from),
            Field::MemoryUsed => d.memory_info().ok().map(|m| m.used),
        }
    }
}

/// Failures in a row after which a gauge is not asked again.
const GIVE_UP: u8 = 3;

/// Reads the gauges of one card (if any) and of the host.
pub struct Sampler {
    card: Option<Box<dyn Card>>,
    failures: [u8; Field::ALL.len()],
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler").field("card", &self.card.is_some()).field("failures", &self.failures).finish()
    }
}

impl Sampler {
    /// Gauges of the card with `uuid`; of the host alone where that is `None` or the library is missing.
    #[must_use]
    pub fn new(uuid: Option<&str>) -> Sampler {
        let card = uuid.and_then(|uuid| {
            let nvml = Nvml::init().ok()?;
            let index = nvml.device_by_uuid(uuid).ok()?.index().ok()?;
            Some(Box::new(NvmlCard { nvml, index }) as Box<dyn Card>)
        });
        Sampler::with_card(card)
    }

    /// Gauges of `card`.
    #[must_use]
    pub fn with_card(card: Option<Box<dyn Card>>) -> Sampler {
        Sampler { card, failures: [0; Field::ALL.len()] }
    }

    /// Reads every gauge once. A few milliseconds at most.
    pub fn sample(&mut self) -> Gauges {
        let mut read = |field: Field| {
            let failures = &mut self.failures[field as usize];
            if *failures >= GIVE_UP {
                return None;
            }
            let value = self.card.as_ref()?.read(field);
            *failures = if value.is_some() { 0 } else { *failures + 1 };
            value
        };
        let small = |v: Option<u64>| v.and_then(|v| u32::try_from(v).ok());
        Gauges {
            sm_clock_mhz: small(read(Field::SmClock)),
            gpu_util: small(read(Field::Utilisation)),
            gpu_temp_c: small(read(Field::Temperature)),
            drive_temp_c: None,
            power_w: read(Field::Power).map(|mw| mw as f64 / 1e3),
            vram_used: read(Field::MemoryUsed).map(Bytes),
            rss: host::rss(),
            rss_anon: host::rss_anon(),
            ram_available: host::available(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A driver that refuses one field and counts what it is asked.
    struct Mock {
        refuses: Option<Field>,
        asked: Arc<Mutex<Vec<Field>>>,
    }
    impl Card for Mock {
        fn read(&self, field: Field) -> Option<u64> {
            self.asked.lock().unwrap().push(field);
            (Some(field) != self.refuses).then_some(40_000)
        }
    }

    #[test]
    fn case_pl_09_one_refused_field_leaves_the_others() {
        for refused in Field::ALL {
            let asked = Arc::new(Mutex::new(Vec::new()));
            let mut s = Sampler::with_card(Some(Box::new(Mock { refuses: Some(refused), asked: Arc::clone(&asked) })));
            for _ in 0..6 {
                let g = s.sample();
                let have = [
                    g.sm_clock_mhz.is_some(),
                    g.gpu_util.is_some(),
                    g.gpu_temp_c.is_some(),
                    g.power_w.is_some(),
                    g.vram_used.is_some(),
                ];
                let want = Field::ALL.map(|f| f != refused);
                assert_eq!(have, want, "{refused:?}");
            }
            let count = |f: Field| asked.lock().unwrap().iter().filter(|a| **a == f).count();
            assert_eq!(count(refused), 3, "given up after three failures");
            assert!(Field::ALL.iter().filter(|f| **f != refused).all(|f| count(*f) == 6));
        }
    }

    #[test]
    fn case_pl_09_without_the_library_gpu_gauges_are_absent_not_zero() {
        let g = Sampler::with_card(None).sample();
        assert_eq!((g.sm_clock_mhz, g.gpu_util, g.power_w, g.vram_used), (None, None, None, None));
        assert!(g.ram_available.is_some());
    }

    #[test]
    fn power_is_in_watts() {
        let asked = Arc::default();
        let g = Sampler::with_card(Some(Box::new(Mock { refuses: None, asked }))).sample();
        assert_eq!(g.power_w, Some(40.0));
    }
}
