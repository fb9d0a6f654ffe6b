//! The drive below a path: what it is, how it is attached, what is free on it, and whether it reads past the page cache.

mod direct;
mod space;
mod sysfs;

pub use direct::{Alignment, alignment, create_direct, largest_weights, open_direct, reads_direct};
pub use space::Space;
pub use sysfs::Mount;

use super::roots::Roots;
use crate::units::Bytes;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What is known about the drive below a path.
#[derive(Clone, Debug, PartialEq)]
pub struct Drive {
    /// `nvme`, `ssd`, `hdd`, `unknown`: of several drives the slowest.
    pub kind: &'static str,
    /// Why it is taken for that.
    pub why: String,
    /// Kernel names of its devices, the whole drives below partitions, device mapper and md.
    pub devices: Vec<String>,
    /// The file system.
    pub mount: Option<Mount>,
    /// What a calibration of this volume is known by.
    pub id: Option<String>,
    /// How it is attached, of one drive: `SATA 6.0 Gbps`.
    pub link: Option<String>,
    /// Most that the attachment carries, bytes per second.
    pub link_rate: Option<f64>,
    /// Free for an ordinary user, under quotas.
    pub space: Space,
    /// Reads bypass the page cache; `None` where there was no file to try on.
    pub direct: Option<bool>,
    /// What direct reads must be aligned to, where the kernel says.
    pub alignment: Option<Alignment>,
}

impl Drive {
    /// Free for an ordinary user.
    #[must_use]
    pub fn free(&self) -> Option<Bytes> {
        self.space.free
    }
}

/// Describes the drive below `path`, or below its nearest existing parent. Reads one page; measures nothing.
#[must_use]
pub fn describe(path: &Path) -> Drive {
    describe_in(&Roots::system(), path)
}

/// As [`describe`], by the files below `roots`.
#[must_use]
pub fn describe_in(roots: &Roots, path: &Path) -> Drive {
    let Place { real, sample, mount } = place(roots, path);
    let devices = sysfs::drives_of(roots, &real, mount.as_ref());
    let (kind, why) = kind_of(&roots.sys, &devices, mount.as_ref());
    let link = match devices.as_slice() {
        [one] => sysfs::link_of_drive(&roots.sys, one),
        _ => None,
    };
    let (link, link_rate) = link.map_or((None, None), |(text, rate)| (Some(text), rate));
    Drive {
        kind,
        why,
        id: volume_id(&real, mount.as_ref()),
        link,
        link_rate,
        space: space::of(&real),
        direct: sample.as_deref().map(reads_direct),
        alignment: sample.as_deref().and_then(alignment),
        devices,
        mount,
    }
}

/// What stands for a path: the file or folder itself, links followed, a file to try reads on, and the file system.
struct Place {
    real: PathBuf,
    sample: Option<PathBuf>,
    mount: Option<Mount>,
}

fn place(roots: &Roots, path: &Path) -> Place {
    let path = existing(path);
    // Weights in a hub cache are links, and may lie on another drive than their folder.
    let sample = direct::sample_file(&path);
    let real = sample.as_ref().filter(|s| direct::is_weights(s)).unwrap_or(&path);
    let real = real.canonicalize().unwrap_or_else(|_| path.clone());
    let mount = sysfs::mount_of(roots, &real);
    Place { real, sample, mount }
}

/// Free space below `results` where that is another volume than `model`'s; `None` where it is the same. Reads no file:
/// every plan asks.
#[must_use]
pub fn free_elsewhere(model: &Path, results: &Path) -> Option<Bytes> {
    let roots = Roots::system();
    let (model, results) = (place(&roots, model), place(&roots, results));
    let id = |p: &Place| volume_id(&p.real, p.mount.as_ref());
    if id(&model) == id(&results) { None } else { space::of(&results.real).free }
}

/// Sustained rates `(read, write)` in bytes per second to assume for a kind of drive until it is measured.
#[must_use]
pub fn assumed_rates(kind: &str) -> (f64, f64) {
    match kind {
        "nvme" => (3.0e9, 1.0e9),
        "ssd" => (0.5e9, 0.4e9),
        "hdd" => (0.15e9, 0.12e9),
        _ => (1.0e9, 0.5e9),
    }
}

/// Seconds of a small read at a random place from which on a head must have moved.
const SEEK: f64 = 3e-3;
/// Rate from which on a drive is no SATA drive, bytes per second.
const BEYOND_SATA: f64 = 0.75e9;

/// The kind of a drive that sysfs doesn't tell, by how it reads: `rate` in bytes per second, `seek` the median seconds
/// of small reads at random places.
#[must_use]
pub fn kind_by_reading(rate: f64, seek: Option<f64>) -> &'static str {
    match seek {
        // Large reads alone can't tell: an array of hard disks is as fast as an SSD.
        Some(s) if s >= SEEK => "hdd",
        _ if rate >= BEYOND_SATA => "nvme",
        Some(_) => "ssd",
        None => "unknown",
    }
}

fn existing(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/")).to_path_buf()
}

/// The slowest kind among the drives: a volume is as slow as its slowest member.
fn kind_of(sys: &Path, devices: &[String], mount: Option<&Mount>) -> (&'static str, String) {
    const SLOWEST_FIRST: [&str; 4] = ["hdd", "unknown", "ssd", "nvme"];
    let kinds: Vec<(&'static str, String)> = devices.iter().map(|d| sysfs::kind_of_drive(sys, d)).collect();
    let slowest = SLOWEST_FIRST.into_iter().find_map(|k| kinds.iter().find(|(kind, _)| *kind == k));
    match (slowest, mount) {
        (Some((kind, why)), _) if devices.len() > 1 => (kind, format!("the slowest of {}: {why}", devices.join(", "))),
        (Some((kind, why)), _) => (kind, why.clone()),
        (None, Some(m)) => ("unknown", format!("'{}' has no drive of its own here", m.file_system)),
        (None, None) => ("unknown", "this system shows no drives".into()),
    }
}

/// Names a volume so that the same one is known again: its file system's own id, or, where it has none, what is mounted
/// where, or its device's number.
fn volume_id(path: &Path, mount: Option<&Mount>) -> Option<String> {
    let kind = mount.map_or("fs", |m| m.file_system.as_str());
    let stat = rustix::fs::statvfs(path).ok()?;
    if stat.f_fsid != 0 {
        return Some(format!("{kind} {:016x}", stat.f_fsid));
    }
    Some(match mount {
        Some(m) => format!("{kind} {} on {}", m.source, m.point.display()),
        None => format!("{kind} device {}", std::fs::metadata(path).ok()?.dev()),
    })
}

#[cfg(test)]
mod tests {
    use super::sysfs::tests::{PART, SPINS, STILL, fake, join};
    use super::*;

    #[test]
    fn a_volume_is_as_slow_as_its_slowest_member() {
        let (_dir, roots) = fake(&[("nvme0n1", STILL), ("nvme0n1/nvme0n1p1", PART), ("sda", SPINS), ("md1", STILL)]);
        join(&roots, "md1", &["nvme0n1p1", "sda"]);
        let kind = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
            kind_of(&roots.sys, &names, None)
        };
        assert_eq!(kind(&["nvme0n1"]), ("nvme", "nvme0n1 is an NVMe drive".into()));
        assert_eq!(kind(&["nvme0n1", "sda"]), ("hdd", "the slowest of nvme0n1, sda: sda rotates".into()));
        assert_eq!(kind(&[]), ("unknown", "this system shows no drives".into()));
        let overlay = Mount { point: "/".into(), file_system: "overlay".into(), source: "overlay".into() };
        assert_eq!(kind_of(&roots.sys, &[], Some(&overlay)).1, "'overlay' has no drive of its own here");
    }

    #[test]
    fn an_unclear_drive_is_judged_by_how_it_reads() {
        assert_eq!(kind_by_reading(0.2e9, Some(8e-3)), "hdd");
        assert_eq!(kind_by_reading(2e9, Some(12e-3)), "hdd", "an array of hard disks");
        assert_eq!(kind_by_reading(0.5e9, Some(0.2e-3)), "ssd");
        assert_eq!(kind_by_reading(2.4e9, Some(0.1e-3)), "nvme");
        assert_eq!(kind_by_reading(2.4e9, None), "nvme");
        assert_eq!(kind_by_reading(0.3e9, None), "unknown");
    }

    #[test]
    fn a_path_that_is_not_there_yet_has_its_parents_drive() {
        let dir = tempfile::tempdir().unwrap();
        let drive = describe(&dir.path().join("not/yet"));
        assert!(drive.free().is_some_and(|f| f > Bytes::ZERO));
        assert_eq!(drive.direct, None, "no file to try on");
        std::fs::write(dir.path().join("w.safetensors"), vec![7u8; 8192]).unwrap();
        let drive = describe(dir.path());
        assert!(drive.direct.is_some() && drive.id.is_some(), "{drive:?}");
        assert_eq!(drive.id, describe(dir.path()).id);
    }

    #[test]
    fn a_container_that_shows_nothing_still_gets_an_answer() {
        let (dir, nothing) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let drive = describe_in(&Roots::below(nothing.path()), dir.path());
        assert_eq!((drive.kind, drive.mount, drive.link), ("unknown", None, None));
        assert!(drive.devices.is_empty() && drive.space.free.is_some());
    }
}
