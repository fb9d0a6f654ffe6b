//! From a path to the drives below it, by mounts and sysfs: partitions lead to their drive, device mapper, md and btrfs
//! to their members. Everything read here is a name or a number of a file that may be missing.

use super::super::roots::{Roots, text};
use crate::text::clean;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Its kind, e.g. `ext4`.
    pub file_system: String,
    /// What is mounted: `/dev/…`, or a word.
    pub source: String,
}

/// The mount that holds `path`.
#[must_use]
pub fn mount_of(roots: &Roots, path: &Path) -> Option<Mount> {
    find_mount(&text(&roots.proc.join("self/mountinfo"))?, path)
}

fn find_mount(mountinfo: &str, path: &Path) -> Option<Mount> {
    let one = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = PathBuf::from(plain(left.split(' ').nth(4)?));
        let mut right = right.split(' ');
        let (file_system, source) = (right.next()?.to_string(), plain(right.next()?));
        path.starts_with(&point).then_some(Mount { point, file_system, source })
    };
    // Of two mounts on one point the later one is seen.
    mountinfo.lines().filter_map(one).max_by_key(|m| m.point.components().count())
}

/// A field of mountinfo with its octal escapes (`\040` for a blank) undone.
fn plain(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        match part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// Kernel names of the whole drives that hold `path`, sorted; none for overlays, network and memory file systems.
#[must_use]
pub fn drives_of(roots: &Roots, path: &Path, mount: Option<&Mount>) -> Vec<String> {
    let Ok(meta) = std::fs::metadata(path) else { return Vec::new() };
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let numbered = roots.sys.join(format!("dev/block/{major}:{minor}")).canonicalize().ok();
    let start = match numbered {
        Some(dir) => vec![dir],
        None => mount.map(|m| of_source(roots, &m.source)).unwrap_or_default(),
    };
    whole_drives(&roots.sys, start)
}

/// The folders in sysfs of what a mount's source names: btrfs has no device number of its own, and maybe more devices
/// than the one named.
fn of_source(roots: &Roots, source: &str) -> Vec<PathBuf> {
    let Some(inside) = source.strip_prefix("/dev/") else { return Vec::new() };
    // `/dev/mapper/…` is a link to the device the kernel knows.
    let device = roots.dev.join(inside);
    let device = device.canonicalize().unwrap_or(device);
    let Some(name) = device.file_name() else { return Vec::new() };
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().take(4096).flatten();
    for volume in entries(&roots.sys.join("fs/btrfs")) {
        let members: Vec<_> = entries(&volume.path().join("devices")).map(|e| e.file_name()).collect();
        if members.iter().any(|m| m == name) {
            return members.iter().filter_map(|m| class_dir(&roots.sys, Path::new(m))).collect();
        }
    }
    class_dir(&roots.sys, Path::new(name)).into_iter().collect()
}

fn class_dir(sys: &Path, name: &Path) -> Option<PathBuf> {
    sys.join("class/block").join(name).canonicalize().ok()
}

fn whole_drives(sys: &Path, mut queue: Vec<PathBuf>) -> Vec<String> {
    let mut found = Vec::new();
    // Stacks are a few layers deep; the bound only guards against a cycle in a broken sysfs.
    for _ in 0..256 {
        let Some(dir) = queue.pop() else { break };
        let members: Vec<PathBuf> = std::fs::read_dir(dir.join("slaves"))
            .map(|entries| entries.flatten().filter_map(|e| class_dir(sys, Path::new(&e.file_name()))).collect())
            .unwrap_or_default();
        if !members.is_empty() {
            queue.extend(members);
        } else if dir.join("partition").exists() {
            queue.extend(dir.parent().map(Path::to_path_buf));
        } else if let Some(name) = dir.file_name() {
            found.push(name.to_string_lossy().into_owned());
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Devices that say what the system below them told them to say.
const VIRTUAL_NAMES: [&str; 10] = ["vd", "xvd", "loop", "zram", "nbd", "ram", "dm-", "md", "drbd", "rbd"];
/// Makers and models of drives that are software.
const VIRTUAL_MODELS: [&str; 8] =
    ["virtual", "qemu", "vbox", "vmware", "msft", "persistentdisk", "elastic block", "lio-org"];

/// `nvme`, `ssd`, `hdd` or `unknown`, and why.
#[must_use]
pub fn kind_of_drive(sys: &Path, name: &str) -> (&'static str, String) {
    let dir = sys.join("class/block").join(name);
    let say = |file: &str| text(&dir.join(file)).unwrap_or_default();
    if VIRTUAL_NAMES.iter().any(|p| name.starts_with(p)) {
        return ("unknown", format!("{name} is a virtual drive"));
    }
    let model = format!("{} {}", say("device/vendor"), say("device/model"));
    if VIRTUAL_MODELS.iter().any(|v| model.to_ascii_lowercase().contains(v)) {
        return ("unknown", format!("{name} is a virtual drive ({})", clean(&model)));
    }
    if name.starts_with("nvme") {
        let transport = say("device/transport");
        return match transport.as_str() {
            "" | "pcie" => ("nvme", format!("{name} is an NVMe drive")),
            other => ("unknown", format!("{name} is an NVMe drive behind {}", clean(other))),
        };
    }
    match text(&dir.join("queue/rotational")).as_deref() {
        Some("0") => ("ssd", format!("{name} does not rotate")),
        // Bridges to USB say so of any drive.
        Some("1") if dir.canonicalize().is_ok_and(|d| d.to_string_lossy().contains("/usb")) => {
            ("unknown", format!("{name} is behind USB, which doesn't tell"))
        }
        Some("1") => ("hdd", format!("{name} rotates")),
        _ => ("unknown", format!("sysfs doesn't tell about {name}")),
    }
}

/// How a drive is attached, as sysfs words it, e.g. `SATA 6.0 Gbps` or `PCIe 8.0 GT/s x4`; and what that carries at
/// most, bytes per second, where it is known.
#[must_use]
pub fn link_of_drive(sys: &Path, name: &str) -> Option<(String, Option<f64>)> {
    let dir = sys.join("class/block").join(name).canonicalize().ok()?;
    if name.starts_with("nvme") {
        let function = dir.join("device/device");
        let speed = text(&function.join("current_link_speed"))?;
        let width = text(&function.join("current_link_width"))?;
        return Some((format!("PCIe {} x{}", clean(speed.trim_end_matches(" PCIe")), clean(&width)), None));
    }
    // …/ata3/host2/target2:0:0/2:0:0:0/block/sda: the port's folder also holds its link.
    let port = dir.ancestors().find(|d| {
        let name = d.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("ata").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    })?;
    let link = format!("link{}", port.file_name()?.to_str()?.strip_prefix("ata")?);
    let speed = text(&port.join(&link).join("ata_link").join(&link).join("sata_spd"))?;
    // Ten bits on the wire for a byte.
    let rate = speed.split(' ').next().and_then(|g| g.parse::<f64>().ok()).map(|g| g * 1e8);
    Some((format!("SATA {}", clean(speed.trim())), rate.filter(|r| r.is_finite() && *r > 0.0)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs below `dir`: `(folder below devices, files)`, each with its link in `class/block`.
    pub fn fake(devices: &[(&str, &[(&str, &str)])]) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        std::fs::create_dir_all(roots.sys.join("class/block")).unwrap();
        for (path, files) in devices {
            let folder = roots.sys.join("devices").join(path);
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in *files {
                let file = folder.join(name);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            symlink(&folder, roots.sys.join("class/block").join(folder.file_name().unwrap())).unwrap();
        }
        (dir, roots)
    }

    /// Makes `members` the slaves of the device at `path` below `devices`.
    pub fn join(roots: &Roots, path: &str, members: &[&str]) {
        let slaves = roots.sys.join("devices").join(path).join("slaves");
        std::fs::create_dir_all(&slaves).unwrap();
        for m in members {
            std::fs::write(slaves.join(m), "").unwrap();
        }
    }

    pub const SPINS: &[(&str, &str)] = &[("queue/rotational", "1\n")];
    pub const STILL: &[(&str, &str)] = &[("queue/rotational", "0\n")];
    pub const PART: &[(&str, &str)] = &[("partition", "1")];

    fn drives(roots: &Roots, name: &str) -> Vec<String> {
        whole_drives(&roots.sys, class_dir(&roots.sys, Path::new(name)).into_iter().collect())
    }

    #[test]
    fn partitions_lead_to_their_drive_and_volumes_to_all_members() {
        let (_dir, roots) = fake(&[
            ("nvme0n1", STILL),
            ("nvme0n1/nvme0n1p2", PART),
            ("sda", SPINS),
            ("sda/sda1", PART),
            ("dm-0", STILL),
            ("md1", STILL),
        ]);
        join(&roots, "dm-0", &["nvme0n1p2"]);
        join(&roots, "md1", &["dm-0", "sda1"]);
        assert_eq!(drives(&roots, "nvme0n1p2"), ["nvme0n1"]);
        assert_eq!(drives(&roots, "md1"), ["nvme0n1", "sda"]);
        assert!(drives(&roots, "absent").is_empty());
        join(&roots, "dm-0", &["dm-0"]);
        assert!(drives(&roots, "dm-0").len() <= 1, "a cycle ends");
    }

    #[test]
    fn a_drive_is_what_sysfs_says_unless_software_says_it() {
        let (_dir, roots) = fake(&[
            ("nvme0n1", STILL),
            ("nvme1n1", &[("device/transport", "tcp\n")]),
            ("sda", SPINS),
            ("sdb", STILL),
            ("sdc", &[("queue/rotational", "1"), ("device/vendor", "Msft    "), ("device/model", "Virtual Disk\n")]),
            ("pci0/usb1/1-1/sdd", SPINS),
            ("vda", SPINS),
            ("loop3", STILL),
            ("sde", &[]),
        ]);
        let kind = |name: &str| kind_of_drive(&roots.sys, name).0;
        let got = ["nvme0n1", "nvme1n1", "sda", "sdb", "sdc", "sdd", "vda", "loop3", "sde", "absent"].map(kind);
        let unknown = "unknown";
        assert_eq!(got, ["nvme", unknown, "hdd", "ssd", unknown, unknown, unknown, unknown, unknown, unknown]);
        assert_eq!(kind_of_drive(&roots.sys, "sdc").1, "sdc is a virtual drive (Msft Virtual Disk)");
    }

    #[test]
    fn links_are_read_where_they_are_shown() {
        let (_dir, roots) = fake(&[
            ("pci0/ata3/host2/target2/2:0:0:0/block/sda", STILL),
            ("pci1/nvme/nvme0/nvme0n1", STILL),
            ("sdb", STILL),
        ]);
        let put = |path: &str, text: &str| {
            let file = roots.sys.join("devices").join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        put("pci0/ata3/link3/ata_link/link3/sata_spd", "6.0 Gbps\n");
        put("pci1/nvme/nvme0/nvme0n1/device/device/current_link_speed", "16.0 GT/s PCIe\n");
        put("pci1/nvme/nvme0/nvme0n1/device/device/current_link_width", "4\n");
        assert_eq!(link_of_drive(&roots.sys, "sda"), Some(("SATA 6.0 Gbps".into(), Some(6e8))));
        assert_eq!(link_of_drive(&roots.sys, "nvme0n1"), Some(("PCIe 16.0 GT/s x4".into(), None)));
        assert_eq!(link_of_drive(&roots.sys, "sdb"), None);
        put("pci0/ata3/link3/ata_link/link3/sata_spd", "<unknown>\n");
        assert_eq!(link_of_drive(&roots.sys, "sda"), Some(("SATA <unknown>".into(), None)));
    }

    #[test]
    fn a_mount_is_the_deepest_one_and_its_escapes_are_undone() {
        let mounts = "29 1 0:26 / / rw - overlay overlay rw\n31 1 0:40 /@home /home rw - btrfs /dev/nvme1n1p3 rw,ssd\n\
                      32 1 8:1 / /mnt/my\\040disk rw - ext4 /dev/sdb1 rw\nnonsense\n";
        let at = |path: &str| find_mount(mounts, Path::new(path)).unwrap();
        assert_eq!(at("/home/u/models").source, "/dev/nvme1n1p3");
        assert_eq!((at("/srv").file_system.as_str(), at("/srv").source.as_str()), ("overlay", "overlay"));
        assert_eq!(at("/mnt/my disk/x").point, PathBuf::from("/mnt/my disk"));
        assert_eq!(plain("a\\134b\\04"), "a\\b\\04");
    }

    #[test]
    fn a_btrfs_volume_has_all_its_devices_and_a_mapped_one_the_device_below() {
        let (_dir, roots) = fake(&[("nvme0n1", STILL), ("nvme0n1/nvme0n1p3", PART), ("sda", SPINS), ("dm-0", STILL)]);
        join(&roots, "dm-0", &["nvme0n1p3"]);
        std::fs::create_dir_all(roots.sys.join("fs/btrfs/uuid/devices/dm-0")).unwrap();
        std::fs::create_dir_all(roots.sys.join("fs/btrfs/uuid/devices/sda")).unwrap();
        std::fs::create_dir_all(roots.dev.join("mapper")).unwrap();
        std::fs::write(roots.dev.join("dm-0"), "").unwrap();
        symlink(roots.dev.join("dm-0"), roots.dev.join("mapper/luks")).unwrap();
        let drives = whole_drives(&roots.sys, of_source(&roots, "/dev/mapper/luks"));
        assert_eq!(drives, ["nvme0n1", "sda"]);
        assert!(of_source(&roots, "overlay").is_empty() && of_source(&roots, "/dev/absent").is_empty());
    }
}
