//! What a drive has written in its life, by three ways in turn: the UDisks daemon over the system bus (as any user), the
//! drive's own log (root only), the kernel's counter since it started (no life at all). Each answer names its source.

mod dbus;
mod log;
mod udisks;

use super::disk::Drive;
use super::roots::{Roots, text};
use crate::units::Bytes;

/// A drive's wear as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wear {
    /// Bytes written in the drive's life.
    pub written: Option<Bytes>,
    /// Share of the rated life used, 0 to 1 and past it.
    pub life_used: Option<f64>,
    /// Share of the spare blocks left, 0 to 1.
    pub spare: Option<f64>,
    /// Bytes written since the kernel started.
    pub since_boot: Option<Bytes>,
    /// Where the figures come from.
    pub source: String,
    /// Why a better source gave none, one line each.
    pub notes: Vec<String>,
}

/// Asks about the whole drive `name` (`nvme0n1`). Takes a second at most where the daemon is silent; changes nothing and
/// starts nothing.
#[must_use]
pub fn wear(roots: &Roots, name: &str) -> Wear {
    let since_boot = text(&roots.sys.join("class/block").join(name).join("stat")).and_then(|s| written_since_boot(&s));
    let mut notes = Vec::new();
    for (source, ask) in [("UDisks", udisks::ask as Ask), ("the drive's log", log::ask)] {
        match ask(roots, name) {
            Ok(found) => return Wear { since_boot, source: source.into(), notes, ..found },
            Err(why) => notes.push(format!("{source}: {why}")),
        }
    }
    let source = if since_boot.is_some() { "the kernel's counter since it started" } else { "nothing readable" };
    Wear { since_boot, source: source.into(), notes, ..Wear::default() }
}

/// As [`wear`], about the drive that `drive` describes; `None` where several are behind it, or none that is known.
#[must_use]
pub fn of_drive(drive: &Drive) -> Option<Wear> {
    match drive.devices.as_slice() {
        [one] => Some(wear(&Roots::system(), one)),
        _ => None,
    }
}

type Ask = fn(&Roots, &str) -> Result<Wear, String>;

/// Sectors written (of 512 bytes, whatever the drive's own), the seventh field of a block device's `stat`.
fn written_since_boot(stat: &str) -> Option<Bytes> {
    stat.split_whitespace().nth(6)?.parse::<u64>().ok()?.checked_mul(512).map(Bytes)
}

/// A percentage as a share; one byte can't be far off.
fn share(percent: u8) -> f64 {
    f64::from(percent) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_daemon_and_device_the_kernels_counter_is_all_and_the_others_say_why() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        let w = wear(&roots, "nvme0n1");
        assert_eq!((w.written, w.since_boot, w.source.as_str()), (None, None, "nothing readable"));
        assert_eq!(w.notes.len(), 2, "{:?}", w.notes);
        let folder = roots.sys.join("class/block/sda");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("stat"), " 1 2 3 4 5 6 2000 8 9 10 11\n").unwrap();
        let w = wear(&roots, "sda");
        assert_eq!((w.written, w.since_boot), (None, Some(Bytes(1_024_000))));
        assert!(w.source.contains("since it started"));
        assert_eq!(written_since_boot("1 2 3"), None);
        assert_eq!(written_since_boot("1 2 3 4 5 6 18446744073709551615"), None, "no overflow");
    }
}
