//! A drive's temperature from sysfs: NVMe drives have a sensor of their own, SATA drives one with `drivetemp` loaded.

use super::disk;
use std::path::{Path, PathBuf};

/// The sensor of the drive below `path`; `None` where the kernel shows none, or a volume lies on several drives.
#[must_use]
pub fn drive_sensor(path: &Path) -> Option<PathBuf> {
    match disk::describe(path).devices.as_slice() {
        [one] => sensor(Path::new("/sys"), one),
        _ => None,
    }
}

/// `…/device/hwmon2/temp1_input`, or `…/device/hwmon/hwmon2/temp1_input` as older kernels and SATA drives have it.
fn sensor(sys: &Path, device: &str) -> Option<PathBuf> {
    let device = sys.join("class/block").join(device).join("device");
    let inputs = |dir: &Path| {
        let entries = std::fs::read_dir(dir).ok()?;
        entries
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("hwmon"))
            .map(|e| e.path().join("temp1_input"))
            .find(|p| p.exists())
    };
    inputs(&device).or_else(|| inputs(&device.join("hwmon")))
}

/// What a sensor reads now, in whole degrees; `None` where it can't be read or means nothing.
#[must_use]
pub fn celsius(sensor: &Path) -> Option<u32> {
    let thousandths: i64 = std::fs::read_to_string(sensor).ok()?.trim().parse().ok()?;
    u32::try_from(thousandths / 1000).ok().filter(|c| (1..=150).contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_tr_13_a_drives_temperature_is_read_where_the_kernel_shows_it() {
        let sys = tempfile::tempdir().unwrap();
        let write = |place: &str, text: &str| {
            let file = sys.path().join("class/block").join(place);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("nvme0n1/device/hwmon2/temp1_input", "82850\n");
        write("sda/device/hwmon/hwmon5/temp1_input", "-5000\n");
        write("sdb/device/model", "x");
        let read = |device: &str| sensor(sys.path(), device).as_deref().and_then(celsius);
        assert_eq!((read("nvme0n1"), read("sda"), read("sdb"), read("absent")), (Some(82), None, None, None));
        assert!(sensor(sys.path(), "sda").is_some());
    }
}
