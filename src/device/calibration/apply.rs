//! Puts saved measurements in place of assumed rates, and says which, of when, and what may have changed since.

use super::{Calibration, CpuEntry};
use crate::clock;
use crate::device::{Disk, Gpu};
use crate::units::rate;

/// Days after which a calibration is said to be old.
pub const OLD_DAYS: u64 = 90;
const DAY: u64 = 86_400;

/// What was put in place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// In words with its figure, and when it was measured.
    items: Vec<(String, u64)>,
    /// What makes it doubtful.
    doubts: Vec<String>,
    /// Parts that need no assumption any more: `link`, `gemm`, `overhead`, `disk`, `write`, `cpu`.
    pub parts: Vec<&'static str>,
}

impl Applied {
    fn add(&mut self, part: &'static str, words: String, at: u64) {
        self.parts.push(part);
        self.items.push((words, at));
    }

    /// Whether `part` was measured.
    #[must_use]
    pub fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }

    /// Takes the measured GPU rates of the card with `gpu.uuid`.
    pub fn gpu(&mut self, saved: &Calibration, gpu: &mut Gpu) {
        let Some(entry) = saved.gpu(gpu.uuid.as_deref()) else { return };
        let mut drivers = Vec::new();
        if let Some(l) = &entry.link {
            (gpu.h2d, gpu.d2h, gpu.h2d_spread) = (l.h2d, l.d2h, l.h2d_spread);
            self.add("link", format!("link {}", rate(l.h2d)), l.at);
            drivers.push(("link", &l.driver));
        }
        if let Some(m) = &entry.gemm {
            (gpu.flops, gpu.kernels) = (m.flops, m.kernels);
            self.add("gemm", format!("products {:.1} TFLOP/s", m.flops / 1e12), m.at);
            drivers.push(("products", &m.driver));
        }
        if let Some(o) = &entry.overhead {
            // A run loads more kernels than a calibration and loses some memory between tensors (up to 0.4 GB seen on an
            // H200): the figure may raise what is assumed, not lower it.
            if o.bytes > gpu.overhead {
                gpu.overhead = o.bytes;
                self.add("overhead", format!("overhead {}", o.bytes), o.at);
            }
        }
        for (what, driver) in drivers {
            if let (Some(then), Some(now)) = (driver, &gpu.driver)
                && then != now
            {
                self.doubts.push(format!("the {what} rate is of driver {then}, now {now}"));
            }
        }
    }

    /// Takes the measured rates of the volume with `id`.
    pub fn disk(&mut self, saved: &Calibration, id: Option<&str>, disk: &mut Disk) {
        let Some(entry) = saved.volume(id) else { return };
        if let Some(r) = &entry.read {
            (disk.read, disk.read_spread) = (r.rate, Some(r.spread));
            self.add("disk", format!("disk {}", between(r.spread)), r.at);
            if let Some(kind) = r.kind.as_deref().filter(|_| disk.kind == "unknown") {
                disk.kind = kind.into();
                self.doubts.push(format!("the system doesn't tell the drive's kind; it reads like {kind}"));
            }
        }
        if let Some(w) = &entry.write {
            (disk.write, disk.slc, disk.write_after_slc) = (w.rate, w.slc, w.after_slc);
            self.add("write", format!("writing {}", rate(w.rate)), w.at);
        }
        if let Some(w) = &entry.wear {
            (disk.written, disk.life_used) = (w.written, w.life_used);
        }
    }

    /// The measured rate of this processor, FLOP/s.
    pub fn cpu(&mut self, saved: &Calibration, name: &str, threads: u64) -> Option<f64> {
        let mine = |c: &&CpuEntry| c.name == name && c.threads == threads;
        let c = saved.cpus.iter().find(mine)?;
        self.add("cpu", format!("processor {:.2} TFLOP/s", c.flops / 1e12), c.at);
        Some(c.flops)
    }

    /// In words, e.g. `calibrated 2026-11-30 (link 55.10 GB/s, disk 2.10–2.50 GB/s)`; nothing where nothing was measured.
    #[must_use]
    pub fn notes(&self, now: u64) -> Vec<String> {
        let day = |at: u64| clock::utc(at)[..10].to_string();
        let Some(oldest) = self.items.iter().map(|i| i.1).min() else { return self.doubts.clone() };
        let same_day = self.items.iter().all(|i| day(i.1) == day(oldest));
        let items: Vec<String> = self
            .items
            .iter()
            .map(|(words, at)| if same_day { words.clone() } else { format!("{words} of {}", day(*at)) })
            .collect();
        let when = if same_day { format!(" {}", day(oldest)) } else { String::new() };
        let mut notes = vec![format!("calibrated{when} ({})", items.join(", "))];
        let age = now.saturating_sub(oldest) / DAY;
        if age > OLD_DAYS {
            notes.push(format!("that is {age} days ago: measure again with `bench calibrate`"));
        }
        notes.extend(self.doubts.iter().cloned());
        notes
    }
}

/// `2.10–2.50 GB/s`.
fn between([low, high]: [f64; 2]) -> String {
    let (low, high) = (rate(low), rate(high));
    match (low.split_once(' '), high.split_once(' ')) {
        _ if low == high => low,
        (Some((figure, unit)), Some((_, other))) if unit == other => format!("{figure}–{high}"),
        _ => format!("{low} – {high}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    const NOW: u64 = 1_796_083_200;

    fn gpu(driver: &str) -> Gpu {
        Gpu {
            uuid: Some("GPU-1".into()),
            driver: Some(driver.into()),
            h2d: 1e9,
            flops: 1e12,
            overhead: Bytes(600),
            ..Gpu::default()
        }
    }

    fn saved() -> Calibration {
        let mut all = Calibration::default();
        let driver = Some("580.1".to_string());
        let card = all.gpu_mut("GPU-1", "Card");
        let h2d_spread = Some([54e9, 55.4e9]);
        card.link =
            Some(Link { at: NOW, driver: driver.clone(), h2d: 55.1e9, d2h: 50e9, h2d_spread, sm_clock_mhz: None });
        card.gemm = Some(Gemm { at: NOW, driver, flops: 6.5e14, sm_clock_mhz: None, kernels: None });
        card.overhead = Some(Overhead { at: NOW, bytes: Bytes(421_000_000) });
        let volume = all.volume_mut("ext4 1", "/");
        volume.read = Some(Read {
            at: NOW,
            rate: 2.4e9,
            spread: [2.1e9, 2.5e9],
            reader: String::new(),
            kind: Some("hdd".into()),
        });
        volume.wear = Some(WearEntry { at: NOW, written: Some(Bytes(9)), life_used: Some(0.5) });
        all
    }

    #[test]
    fn measured_rates_replace_assumed_ones_and_are_said() {
        let (mut a, mut g) = (Applied::default(), gpu("580.1"));
        a.gpu(&saved(), &mut g);
        let mut d = Disk { kind: "nvme".into(), read: 3e9, ..Disk::default() };
        a.disk(&saved(), Some("ext4 1"), &mut d);
        assert_eq!((g.h2d, g.d2h, g.flops, g.overhead), (55.1e9, 50e9, 6.5e14, Bytes(421_000_000)));
        assert_eq!((d.read, d.read_spread, d.kind.as_str()), (2.4e9, Some([2.1e9, 2.5e9]), "nvme"));
        assert_eq!((d.written, d.life_used), (Some(Bytes(9)), Some(0.5)));
        let day = &clock::utc(NOW)[..10];
        let want = format!(
            "calibrated {day} (link 55.10 GB/s, products 650.0 TFLOP/s, overhead 421.0 MB, disk 2.10–2.50 GB/s)"
        );
        assert_eq!(a.notes(NOW + 80 * DAY), [want]);
        assert!(a.has("link") && a.has("disk") && !a.has("write"));
    }

    #[test]
    fn age_and_another_driver_are_said_and_the_rates_still_used() {
        let (mut a, mut g) = (Applied::default(), gpu("590.2"));
        a.gpu(&saved(), &mut g);
        let notes = a.notes(NOW + 91 * DAY).join("; ");
        assert!(notes.contains("91 days ago") && notes.contains("driver 580.1, now 590.2"), "{notes}");
        assert_eq!(g.h2d, 55.1e9);
    }

    #[test]
    fn a_small_overhead_lowers_no_assumption() {
        let (mut a, mut g) = (Applied::default(), Gpu { overhead: Bytes(600_000_000), ..gpu("580.1") });
        a.gpu(&saved(), &mut g);
        assert_eq!((g.overhead, a.has("overhead")), (Bytes(600_000_000), false));
    }

    #[test]
    fn other_cards_and_volumes_keep_what_is_assumed() {
        let (mut a, mut g) = (Applied::default(), Gpu { uuid: None, ..gpu("580.1") });
        a.gpu(&saved(), &mut g);
        let mut d = Disk::default();
        a.disk(&saved(), None, &mut d);
        assert_eq!((g.h2d, d.read), (1e9, 0.0));
        assert!(a.notes(NOW).is_empty() && a.cpu(&saved(), "CPU", 8).is_none());
        // The system doesn't tell the kind: what it reads like counts.
        let mut d = Disk { kind: "unknown".into(), ..Disk::default() };
        a.disk(&saved(), Some("ext4 1"), &mut d);
        assert!(d.kind == "hdd" && a.notes(NOW)[1].contains("reads like hdd"), "{:?}", a.notes(NOW));
    }
}
