//! The drive below a path: its kind, its free space, and whether it reads past the page cache.

use crate::units::Bytes;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What is known about the drive below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// `nvme`, `ssd`, `hdd`, `unknown`.
    pub kind: &'static str,
    /// Kernel names of its devices, the whole drives below partitions, device mapper and md.
    pub devices: Vec<String>,
    /// Free for an ordinary user (reserved blocks not counted).
    pub free: Option<Bytes>,
    /// Reads bypass the page cache; `None` where there was no file to try on.
    pub direct: Option<bool>,
}

/// Describes the drive below `path`, or below its nearest existing parent.
#[must_use]
pub fn describe(path: &Path) -> Drive {
    let path = existing(path);
    let devices = std::fs::metadata(&path)
        .map(|m| whole_drives(Path::new("/sys"), &block_dir(Path::new("/sys"), m.dev(), &path)))
        .unwrap_or_default();
    let kind = kind_of(Path::new("/sys"), &devices);
    let free = rustix::fs::statvfs(&path).ok().map(|s| Bytes(s.f_bavail.saturating_mul(s.f_frsize)));
    Drive { kind, devices, free, direct: sample_file(&path).map(|f| reads_direct(&f)) }
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

fn existing(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/")).to_path_buf()
}

/// The folder in sysfs of the block device with number `dev`; btrfs and overlays have none of their own number,
/// so there the mount's source counts.
fn block_dir(sys: &Path, dev: u64, path: &Path) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let by_number = sys.join(format!("dev/block/{major}:{minor}"));
    if let Ok(dir) = by_number.canonicalize() {
        return Some(dir);
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let source = mount_source(&mounts, path)?;
    sys.join("class/block").join(source.file_name()?).canonicalize().ok()
}

/// The `/dev/…` source of the mount that holds `path`, from `/proc/self/mountinfo`.
fn mount_source(mounts: &str, path: &Path) -> Option<PathBuf> {
    mounts
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let point = PathBuf::from(left.split(' ').nth(4)?.replace("\\040", " "));
            let source = right.split(' ').nth(1)?;
            path.starts_with(&point).then(|| (point.components().count(), PathBuf::from(source)))
        })
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, source)| source)
        .filter(|s| s.starts_with("/dev"))
}

/// Kernel names of the whole drives below a device folder: partitions lead to their parent, dm and md to their members.
fn whole_drives(sys: &Path, dir: &Option<PathBuf>) -> Vec<String> {
    let mut found = Vec::new();
    let mut queue: Vec<PathBuf> = dir.iter().cloned().collect();
    // Stacks are a few layers deep; the bound only guards against a cycle in a broken sysfs.
    for _ in 0..64 {
        let Some(dir) = queue.pop() else { break };
        let members: Vec<PathBuf> = std::fs::read_dir(dir.join("slaves"))
            .map(|entries| {
                entries.flatten().filter_map(|e| sys.join("class/block").join(e.file_name()).canonicalize().ok())
            })
            .map(Iterator::collect)
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

/// The slowest kind among the drives: a volume is as slow as its slowest member.
fn kind_of(sys: &Path, devices: &[String]) -> &'static str {
    const SLOWEST_FIRST: [&str; 4] = ["hdd", "unknown", "ssd", "nvme"];
    let one = |name: &String| {
        if name.starts_with("nvme") {
            return "nvme";
        }
        // Virtual and loop devices say "rotational" whatever lies below them.
        if ["vd", "xvd", "loop", "zram", "nbd"].iter().any(|p| name.starts_with(p)) {
            return "unknown";
        }
        match std::fs::read_to_string(sys.join("class/block").join(name).join("queue/rotational"))
            .as_deref()
            .map(str::trim)
        {
            Ok("0") => "ssd",
            Ok("1") => "hdd",
            _ => "unknown",
        }
    };
    let kinds: Vec<&str> = devices.iter().map(one).collect();
    SLOWEST_FIRST.into_iter().find(|k| kinds.contains(k)).unwrap_or("unknown")
}

/// A regular file of at least one page in `path` (or `path` itself) to try a direct read on.
fn sample_file(path: &Path) -> Option<PathBuf> {
    let usable = |p: &Path| std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.len() >= 4096);
    if usable(path) {
        return Some(path.to_path_buf());
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(path).ok()?.take(4096).flatten().map(|e| e.path()).collect();
    files.sort_by_key(|p| p.extension().is_none_or(|e| e != "safetensors"));
    files.into_iter().find(|p| usable(p))
}

/// Opens for reading past the page cache.
///
/// # Errors
/// The file can't be opened, or its file system refuses O_DIRECT (some do so only at the first read).
pub fn open_direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Makes the new file `path` for writing past the page cache.
///
/// # Errors
/// It exists already, the folder can't be written, or its file system refuses O_DIRECT.
pub fn create_direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Whether one aligned page can be read with O_DIRECT. Some file systems refuse at open, others only at the read.
#[must_use]
pub fn reads_direct(path: &Path) -> bool {
    let mut buffer = vec![0u8; 8192];
    let start = buffer.as_ptr().align_offset(4096);
    open_direct(path).and_then(|f| f.read_at(&mut buffer[start..start + 4096], 0)).is_ok_and(|n| n > 0)
}

/// Reads up to `most` bytes of `path` past the page cache in 4 MiB pieces and returns bytes per second.
///
/// One request at a time: a floor of what the drive gives, not its ceiling.
///
/// # Errors
/// O_DIRECT is refused or the drive fails.
pub fn read_rate(path: &Path, most: Bytes) -> std::io::Result<f64> {
    const PIECE: usize = 4 << 20;
    let file = open_direct(path)?;
    let mut buffer = vec![0u8; PIECE + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let began = std::time::Instant::now();
    let mut done = 0u64;
    while done < most.0 {
        let n = file.read_at(&mut buffer[start..start + PIECE], done)?;
        if n == 0 {
            break;
        }
        done += n as u64;
    }
    Ok(done as f64 / began.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake sysfs: real folders below `devices/`, links in `class/block`.
    fn fake(devices: &[(&str, Option<&str>)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(sys.path().join("class/block")).unwrap();
        for (path, rotational) in devices {
            let dir = sys.path().join("devices").join(path);
            std::fs::create_dir_all(&dir).unwrap();
            match rotational {
                Some(r) => {
                    std::fs::create_dir_all(dir.join("queue")).unwrap();
                    std::fs::write(dir.join("queue/rotational"), r).unwrap();
                }
                None => std::fs::write(dir.join("partition"), "1").unwrap(),
            }
            let link = sys.path().join("class/block").join(dir.file_name().unwrap());
            std::os::unix::fs::symlink(&dir, link).unwrap();
        }
        sys
    }

    fn kind(sys: &Path, name: &str) -> (&'static str, Vec<String>) {
        let dir = sys.join("class/block").join(name).canonicalize().ok();
        let drives = whole_drives(sys, &dir);
        (kind_of(sys, &drives), drives)
    }

    #[test]
    fn a_partition_is_as_fast_as_its_drive() {
        let sys =
            fake(&[("nvme0n1", Some("0\n")), ("nvme0n1/nvme0n1p2", None), ("sda", Some("1\n")), ("sda/sda1", None)]);
        assert_eq!(kind(sys.path(), "nvme0n1p2"), ("nvme", vec!["nvme0n1".to_string()]));
        assert_eq!(kind(sys.path(), "sda1").0, "hdd");
    }

    #[test]
    fn a_volume_is_as_slow_as_its_slowest_member() {
        let sys = fake(&[
            ("nvme0n1", Some("0")),
            ("sdb", Some("0")),
            ("sdc", Some("1")),
            ("dm-0", Some("0")),
            ("md1", Some("0")),
        ]);
        for (volume, members) in [("dm-0", &["nvme0n1", "sdb"][..]), ("md1", &["dm-0", "sdc"])] {
            for m in members {
                let slaves = sys.path().join("devices").join(volume).join("slaves");
                std::fs::create_dir_all(&slaves).unwrap();
                std::fs::write(slaves.join(m), "").unwrap();
            }
        }
        assert_eq!(kind(sys.path(), "dm-0").0, "ssd");
        assert_eq!(kind(sys.path(), "md1").0, "hdd");
    }

    #[test]
    fn without_an_entry_the_kind_is_unknown() {
        let sys = fake(&[("vda", Some("1"))]);
        assert_eq!(kind(sys.path(), "vda").0, "unknown");
        assert_eq!(kind(sys.path(), "absent"), ("unknown", vec![]));
    }

    #[test]
    fn a_btrfs_mount_is_found_by_its_source() {
        let mounts = "29 1 0:26 / / rw - overlay overlay rw\n31 1 0:40 /@home /home rw - btrfs /dev/nvme1n1p3 rw,ssd\n";
        assert_eq!(mount_source(mounts, Path::new("/home/u/models")), Some(PathBuf::from("/dev/nvme1n1p3")));
        assert_eq!(mount_source(mounts, Path::new("/srv")), None);
    }

    #[test]
    fn a_path_that_is_not_there_yet_has_its_parents_drive() {
        let dir = tempfile::tempdir().unwrap();
        let drive = describe(&dir.path().join("not/yet"));
        assert!(drive.free.is_some_and(|f| f > Bytes::ZERO));
        assert_eq!(drive.direct, None, "no file to try on");
        std::fs::write(dir.path().join("w.safetensors"), vec![7u8; 8192]).unwrap();
        assert!(describe(dir.path()).direct.is_some());
    }
}
