//! What the UDisks daemon last heard from a drive. Any user may ask; a daemon that isn't running is not started.
//!
//! `Block.Drive` of the block device leads to the drive, whose `NVMe.Controller` (since UDisks 2.10) gives the figures of
//! the SMART log; `total_data_written` is in bytes there.

use super::dbus::{Bus, Value};
use super::{Roots, Wear, share};
use crate::units::Bytes;
use std::sync::mpsc;
use std::time::Duration;

const SERVICE: &str = "org.freedesktop.UDisks2";
/// For the whole conversation.
const LIMIT: Duration = Duration::from_secs(1);

/// Asks the daemon about `name`.
///
/// # Errors
/// In words, why there is no answer.
pub(super) fn ask(roots: &Roots, name: &str) -> Result<Wear, String> {
    let (socket, name) = (roots.bus.clone(), name.to_string());
    let (told, answer) = mpsc::sync_channel(1);
    // A thread, since a bus with a full backlog lets even connecting wait without end.
    std::thread::Builder::new()
        .name("udisks".into())
        .spawn(move || {
            let found = Bus::connect(&socket, LIMIT).and_then(|mut bus| attributes(&mut bus, &name));
            // Nobody listens any more after the limit.
            let _ = told.send(found);
        })
        .map_err(|e| e.to_string())?;
    let found = answer.recv_timeout(LIMIT + LIMIT / 4).map_err(|_| "no answer within a second".to_string())??;
    wear(&found).ok_or_else(|| "it knows no wear of this drive".into())
}

fn attributes(bus: &mut Bus, name: &str) -> Result<Value, String> {
    let block = format!("/org/freedesktop/UDisks2/block_devices/{}", escaped(name));
    let args = [Value::Text("org.freedesktop.UDisks2.Block".into()), Value::Text("Drive".into())];
    let drive = match bus.call(SERVICE, &block, "org.freedesktop.DBus.Properties", "Get", &args)? {
        Value::Path(path) if path != "/" => path,
        _ => return Err("it knows no drive below this device".into()),
    };
    bus.call(SERVICE, &drive, "org.freedesktop.UDisks2.NVMe.Controller", "SmartGetAttributes", &[Value::no_options()])
}

/// As UDisks names its objects: all but letters and digits as `_` and two hex digits.
fn escaped(name: &str) -> String {
    name.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("_{b:02x}") })
        .collect()
}

fn wear(attributes: &Value) -> Option<Wear> {
    let byte = |key: &str| match attributes.get(key) {
        Some(Value::Whole(n)) => u8::try_from(*n).ok(),
        _ => None,
    };
    let written = match attributes.get("total_data_written") {
        Some(Value::Whole(n)) if *n > 0 => Some(Bytes(*n)),
        _ => None,
    };
    let life_used = byte("percent_used").map(share);
    (written.is_some() || life_used.is_some()).then(|| Wear {
        written,
        life_used,
        spare: byte("avail_spare").map(share),
        ..Wear::default()
    })
}

#[cfg(test)]
mod tests {
    use super::super::dbus::tests::{Answer, serve};
    use super::*;

    const DRIVE: &str = "/org/freedesktop/UDisks2/drives/Some_SSD";

    fn attributes(pairs: &[(&str, Value)]) -> Value {
        Value::Dict(pairs.iter().map(|(k, v)| (k.to_string(), v.clone())).collect())
    }

    #[test]
    fn the_daemons_figures_of_a_drive_are_asked_in_two_calls() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        let figures = attributes(&[
            ("avail_spare", Value::Byte(100)),
            ("percent_used", Value::Byte(7)),
            ("total_data_written", Value::Whole(27_723_431_936_000)),
            ("wctemp", Value::Byte(1)),
        ]);
        let asked = serve(&roots.bus, move |call| match call.member.as_str() {
            "Get" => Answer::Reply(Value::Variant(Box::new(Value::Path(DRIVE.into())))),
            "SmartGetAttributes" => Answer::Reply(figures.clone()),
            _ => Answer::Error("org.freedesktop.DBus.Error.UnknownMethod".into()),
        });
        let w = ask(&roots, "nvme0n1").unwrap();
        assert_eq!((w.written, w.life_used, w.spare), (Some(Bytes(27_723_431_936_000)), Some(0.07), Some(1.0)));
        let asked = asked.join().unwrap();
        let seen: Vec<(&str, &str)> = asked.iter().map(|c| (c.path.as_str(), c.member.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("/org/freedesktop/DBus", "Hello"),
                ("/org/freedesktop/UDisks2/block_devices/nvme0n1", "Get"),
                (DRIVE, "SmartGetAttributes")
            ]
        );
        assert!(asked[1..].iter().all(|c| c.starts_nothing), "a daemon is not started");
    }

    #[test]
    fn errors_silence_and_nonsense_are_reasons() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        let why = |roots: &Roots| ask(roots, "nvme0n1").unwrap_err();
        assert!(!why(&roots).is_empty(), "no socket");
        let answers: [(Answer, &str); 4] = [
            (Answer::Error("org.freedesktop.DBus.Error.ServiceUnknown".into()), "not running"),
            (Answer::Silence, "second"),
            (
                Answer::Bytes(vec![b'l', 2, 0, 1, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
                "too long",
            ),
            (Answer::Bytes(vec![0xff; 64]), "no D-Bus"),
        ];
        for (i, (answer, want)) in answers.into_iter().enumerate() {
            let roots = Roots { bus: dir.path().join(format!("bus{i}")), ..roots.clone() };
            let server = serve(&roots.bus, move |_| answer.clone());
            let said = why(&roots);
            assert!(said.contains(want), "{said}: {want}");
            drop(server);
        }
        assert_eq!(wear(&attributes(&[("percent_used", Value::Whole(700))])), None);
        assert_eq!(wear(&Value::Whole(3)), None);
        assert_eq!(escaped("dm-0"), "dm_2d0");
    }
}
