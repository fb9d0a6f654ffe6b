//! Where the kernel shows its files and where the system bus listens. Tests give folders of their own, and an empty one
//! stands for a container that hides everything.

use std::path::{Path, PathBuf};

/// Most bytes of one of the kernel's small files that are read.
const LARGEST: u64 = 4 << 20;

/// The places that facts are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
    /// The socket of the system's message bus.
    pub bus: PathBuf,
}

impl Roots {
    /// This machine's own.
    #[must_use]
    pub fn system() -> Roots {
        let bus = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok().and_then(|a| socket_of(&a));
        Roots {
            sys: "/sys".into(),
            proc: "/proc".into(),
            dev: "/dev".into(),
            bus: bus.unwrap_or_else(|| "/run/dbus/system_bus_socket".into()),
        }
    }

    /// Folders `sys`, `proc` and `dev` and a socket `bus` below `dir`.
    #[must_use]
    pub fn below(dir: &Path) -> Roots {
        Roots { sys: dir.join("sys"), proc: dir.join("proc"), dev: dir.join("dev"), bus: dir.join("bus") }
    }
}

/// The path of the first `unix:path=…` in a list of D-Bus addresses.
fn socket_of(addresses: &str) -> Option<PathBuf> {
    let one = |a: &str| {
        let path = a.strip_prefix("unix:")?.split(',').find_map(|kv| kv.strip_prefix("path="))?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    addresses.split(';').find_map(one)
}

/// The text of a small file, trimmed; `None` where it can't be read or is no text.
pub(super) fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut out = String::new();
    std::fs::File::open(path).ok()?.take(LARGEST).read_to_string(&mut out).ok()?;
    Some(out.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_address_may_name_another_socket() {
        assert_eq!(socket_of("tcp:host=x;unix:path=/a/bus,guid=12"), Some(PathBuf::from("/a/bus")));
        assert_eq!(socket_of("unix:abstract=/a"), None);
        assert_eq!(socket_of("unix:path=relative"), None);
    }
}
