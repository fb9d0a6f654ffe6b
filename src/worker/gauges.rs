//! The gauges thread: asks the device once a second while a run is on.

use crate::device::hwmon;
use crate::engine::EventSink;
use crate::event::{EventKind, Gauges};
use crate::units::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Reads the gauges now. Made afresh for each run.
pub type GaugeSource = Box<dyn FnMut() -> Gauges + Send>;

const EVERY: Duration = Duration::from_secs(1);

/// Polls `source` until the other end of `stop` is dropped.
pub(crate) fn poll(mut source: GaugeSource, sink: &Arc<dyn EventSink>, stop: &Receiver<()>) {
    loop {
        sink.send(EventKind::Gauges(source()));
        if stop.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// `source` with the temperature of the drive below `path`, where the kernel shows one.
#[must_use]
pub fn with_drive(mut source: GaugeSource, path: &Path) -> GaugeSource {
    let sensor = hwmon::drive_sensor(path);
    Box::new(move || Gauges { drive_temp_c: sensor.as_deref().and_then(hwmon::celsius), ..source() })
}

/// This process's memory from `/proc/self/status` and what the host has left; no GPU figures.
#[must_use]
pub fn host_gauges() -> Gauges {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Gauges {
        rss: kib(&status, "VmRSS:"),
        rss_anon: kib(&status, "RssAnon:"),
        ram_available: kib(&meminfo, "MemAvailable:"),
        ..Gauges::default()
    }
}

/// The value of a `Key:   123 kB` line.
fn kib(text: &str, key: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_figures_are_read_and_absent_ones_are_none() {
        assert_eq!(kib("VmRSS:\t  12 kB\n", "VmRSS:"), Some(Bytes(12_288)));
        assert_eq!(kib("VmRSS:\t  many kB\n", "VmRSS:"), None);
        let g = host_gauges();
        assert!(g.rss >= g.rss_anon && g.rss.is_some());
        assert_eq!(g.sm_clock_mhz, None);
    }
}
