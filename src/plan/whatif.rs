//! What if the machine were another: edits to a [`Machine`], from `ram=32GB` on the command line or a key on a screen.

use crate::config::ByteSize;
use crate::device::{Gpu, Machine};
use crate::error::{Error, Result};
use crate::units::{Bytes, rate};

/// A figure of the machine, changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit {
    /// All host memory, bytes; what is in use stays in use, and as large a share may be pinned.
    Ram(u64),
    /// All memory of the card, bytes; what is in use stays in use.
    Vram(u64),
    /// Free space on the drive, bytes.
    Disk(u64),
    /// Rated endurance, bytes.
    Tbw(u64),
    /// Read rate of the drive, bytes per second.
    Read(f64),
    /// Write rate of the drive, bytes per second.
    Write(f64),
    /// Rate of the link to the card, bytes per second.
    Link(f64),
}

/// The names that `--what-if` takes.
pub const WHAT_IF_KEYS: [&str; 7] = ["ram", "vram", "disk", "tbw", "read", "write", "link"];

impl Edit {
    /// Reads `ram=32GB` or `read=7GB/s`.
    ///
    /// # Errors
    /// Not a key or not a value of its kind.
    pub fn parse(text: &str) -> Result<Edit> {
        let shown = crate::text::clean(text);
        let (key, value) = text.split_once('=').ok_or_else(|| {
            Error::usage(format!("what-if '{shown}' has no '='")).next("write it as ram=32GB or read=7GB/s")
        })?;
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        if !WHAT_IF_KEYS.contains(&key.as_str()) {
            let near = crate::config::nearest(&key, WHAT_IF_KEYS);
            let near = near.map_or(String::new(), |near| format!("did you mean '{near}'? "));
            return Err(Error::usage(format!("what-if '{shown}': no such figure"))
                .next(format!("{near}There are {}", WHAT_IF_KEYS.join(", "))));
        }
        let rated = ["read", "write", "link"].contains(&key.as_str());
        let digits = if rated { value.strip_suffix("/s").unwrap_or(value) } else { value };
        // A drive's rating is counted in TB, as `wear.tbw` is.
        let read = if key == "tbw" {
            crate::config::terabytes(digits).map(|t| ByteSize((t * 1e12) as u64))
        } else {
            ByteSize::parse(digits)
        };
        let bytes = read.filter(|b| b.0 > 0 && b.0 < 1 << 56).map(|b| b.0).ok_or_else(|| {
            let like = match key.as_str() {
                "tbw" => "\"600 TB\" or 600",
                _ if rated => "\"7 GB/s\"",
                _ => "\"32 GB\" or \"2 TB\"",
            };
            Error::usage(format!("what-if '{shown}': expected a value such as {like}"))
        })?;
        Ok(match key.as_str() {
            "ram" => Edit::Ram(bytes),
            "vram" => Edit::Vram(bytes),
            "disk" => Edit::Disk(bytes),
            "tbw" => Edit::Tbw(bytes),
            "read" => Edit::Read(bytes as f64),
            "write" => Edit::Write(bytes as f64),
            _ => Edit::Link(bytes as f64),
        })
    }

    /// Makes the change; the link of a card that isn't there changes nothing.
    pub fn change(&self, m: &mut Machine) {
        // What is left of `to` beside what is in use, and what is missing for that.
        let other = |now: Bytes, free: Bytes, lacking: Bytes, to: u64| {
            let used = now.saturating_sub(free) + lacking;
            (Bytes(to).saturating_sub(used), used.saturating_sub(Bytes(to)))
        };
        match *self {
            Edit::Ram(to) => {
                let share = m.ram.pinnable.0 as f64 / m.ram.total.0.max(1) as f64;
                (m.ram.available, m.ram.lacking) = other(m.ram.total, m.ram.available, m.ram.lacking, to);
                m.ram.pinnable = Bytes((to as f64 * share.min(1.0)) as u64);
                m.ram.total = Bytes(to);
            }
            Edit::Vram(to) => match &mut m.gpu {
                Some(g) => {
                    (g.vram_free, g.vram_lacking) = other(g.vram_total, g.vram_free, g.vram_lacking, to);
                    g.vram_total = Bytes(to);
                }
                None => m.gpu = Some(imagined(to)),
            },
            Edit::Disk(to) => m.disk.free = Bytes(to),
            Edit::Tbw(to) => m.disk.tbw = Some(Bytes(to)),
            Edit::Read(to) => (m.disk.read, m.disk.read_spread) = (to, None),
            Edit::Write(to) => {
                (m.disk.write, m.disk.slc, m.disk.write_after_slc) = (to, None, None);
            }
            Edit::Link(to) => {
                if let Some(g) = &mut m.gpu {
                    (g.h2d, g.d2h, g.h2d_spread) = (to, to, None);
                }
            }
        }
    }

    /// `ram = 32.00 GB`, in words for the plan.
    #[must_use]
    pub fn words(&self) -> String {
        match *self {
            Edit::Ram(b) => format!("ram = {}", Bytes(b)),
            Edit::Vram(b) => format!("vram = {}", Bytes(b)),
            Edit::Disk(b) => format!("disk = {} free", Bytes(b)),
            Edit::Tbw(b) => format!("tbw = {}", Bytes(b)),
            Edit::Read(r) => format!("read = {}", rate(r)),
            Edit::Write(r) => format!("write = {}", rate(r)),
            Edit::Link(r) => format!("link = {}", rate(r)),
        }
    }
}

/// A card for a machine that has none: its memory is what is asked about, the rest is that of a middling one of today
/// (PCIe 4 x8, 40 TFLOP/s), and the plan says that its rates are guessed.
fn imagined(vram: u64) -> Gpu {
    Gpu {
        name: "a GPU of the what-if".into(),
        vram_total: Bytes(vram),
        // A desktop and the driver take some of every card.
        vram_free: Bytes(vram - vram / 16),
        overhead: Bytes(450_000_000),
        h2d: 12.5e9,
        d2h: 12.5e9,
        flops: 4e13,
        ..Gpu::default()
    }
}

/// `machine` with `edits` made; its source says that it is edited.
///
/// # Errors
/// An edit is for the link to a card, and there is none.
pub fn edited(machine: &Machine, edits: &[Edit]) -> Result<Machine> {
    let mut m = machine.clone();
    for e in edits {
        if matches!(e, Edit::Link(_)) && m.gpu.is_none() {
            return Err(Error::usage(format!("what-if {}: this machine has no GPU", e.words()))
                .next("add one with vram=16GB before it, or name a machine that has one with --profile"));
        }
        e.change(&mut m);
    }
    if !edits.is_empty() {
        let words: Vec<String> = edits.iter().map(Edit::words).collect();
        m.source = format!("edited ({}); {}", words.join(", "), m.source);
    }
    Ok(m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::profile;
    use crate::units::{GB, GIB};
    use std::path::Path;

    #[test]
    fn figures_are_read_with_their_units() {
        assert_eq!(Edit::parse("ram=32GB").unwrap(), Edit::Ram(32 * GB));
        assert_eq!(Edit::parse(" VRAM = 24 GiB").unwrap(), Edit::Vram(24 * GIB));
        assert_eq!(Edit::parse("disk=2TB").unwrap(), Edit::Disk(2000 * GB));
        assert_eq!(Edit::parse("read=7GB/s").unwrap(), Edit::Read(7e9));
        for (bad, want) in [
            ("ram", "has no '='"),
            ("rams=1GB", "did you mean 'ram'"),
            ("ram=lots", "expected a value"),
            ("ram=0", "expected a value"),
            ("read=7GB/h", "7 GB/s"),
            ("ram=1\u{1b}[2J", "expected a value"),
        ] {
            let e = Edit::parse(bad).unwrap_err().to_string();
            assert!(e.contains(want) && !e.contains('\u{1b}'), "{e}");
        }
    }

    #[test]
    fn what_is_in_use_stays_in_use() {
        let m = profile::load(Path::new("rtx5050-laptop-8gb")).unwrap();
        let edits = [Edit::Ram(32 * GB), Edit::Vram(16 * GIB), Edit::Read(7e9)];
        let e = edited(&m, &edits).unwrap();
        assert_eq!(e.ram.total - e.ram.available, m.ram.total - m.ram.available);
        let (g, was) = (e.gpu.unwrap(), m.gpu.clone().unwrap());
        assert_eq!(g.vram_total - g.vram_free, was.vram_total - was.vram_free);
        // Of 15.7 GiB 8 may be pinned; of 32 GB as large a share.
        assert_eq!(e.ram.pinnable.0, (32e9 * (8.0 * GIB as f64) / m.ram.total.0 as f64) as u64);
        assert!(e.source.starts_with("edited (ram = 32.00 GB, vram = 17.18 GB, read = 7.00 GB/s); profile"));
        let cpu = profile::load(Path::new("cpu-only")).unwrap();
        assert!(edited(&cpu, &[Edit::Link(1e9)]).unwrap_err().to_string().contains("no GPU"));
        let carded = edited(&cpu, &[Edit::Vram(16 * GB), Edit::Link(1e9)]).unwrap().gpu.unwrap();
        assert!(carded.vram_total == Bytes(16 * GB) && carded.vram_free < carded.vram_total && carded.h2d == 1e9);
        assert_eq!(edited(&cpu, &[]).unwrap(), cpu);
    }
}
