//! The volumes that a run touches: hub cache, results, working folder; folders on one volume are one entry.

use super::Look;
use crate::device::calibration::Calibration;
use crate::device::disk::{self, Drive};
use crate::device::pool::{self, Moved};
use crate::device::smart;
use crate::device::uring::Rung;
use crate::error::Result;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Seconds of reading, where asked for.
const SECONDS: f64 = 2.0;

/// One entry a volume, the hub cache's first.
pub(super) fn look(look: &Look, saved: &Calibration, rung: &Rung) -> Vec<Value> {
    let mut found: Vec<(Vec<&str>, PathBuf, Drive)> = Vec::new();
    for (what, path) in [("hub cache", &look.cache), ("results", &look.results), ("working folder", &look.working)] {
        let drive = disk::describe_in(&look.roots, path);
        let same = |d: &Drive| d.id.is_some() && d.id == drive.id && d.devices == drive.devices;
        match found.iter_mut().find(|(_, _, d)| same(d)) {
            Some((uses, _, known)) => {
                uses.push(what);
                known.direct = known.direct.or(drive.direct);
                known.alignment = known.alignment.or(drive.alignment);
            }
            None => found.push((vec![what], path.clone(), drive)),
        }
    }
    let one = |(uses, path, drive): &(Vec<&str>, PathBuf, Drive)| entry(look, saved, rung, uses, path, drive);
    found.iter().map(one).collect()
}

fn entry(look: &Look, saved: &Calibration, rung: &Rung, uses: &[&str], path: &Path, drive: &Drive) -> Value {
    let mut v = json!({
        "uses": uses,
        "path": path,
        "kind": drive.kind,
        "why": drive.why,
        "devices": drive.devices,
        "volume": drive.id,
        "mount": drive.mount.as_ref().map(|m| &m.point),
        "file_system": drive.mount.as_ref().map(|m| &m.file_system),
        "link": drive.link,
        "link_rate": drive.link_rate,
        "free": drive.space.free,
        "quota_left": drive.space.quota_left,
        "why_no_quota": drive.space.why_no_quota,
        "o_direct": drive.direct,
        "alignment": drive.alignment.map(|a| json!({ "memory": a.memory, "offset": a.offset })),
        "reader": rung.name,
        "read_assumed": disk::assumed_rates(drive.kind).0,
        "read_measured": null,
        "kind_by_reading": null,
        "wear": null,
        "calibrated": saved.volume(drive.id.as_deref()),
    });
    if look.disk {
        v["wear"] = drive.devices.iter().map(|d| wear(look, d)).collect();
        measure(look, uses, drive, &mut v);
    }
    v
}

fn wear(look: &Look, device: &str) -> Value {
    let w = smart::wear(&look.roots, device);
    json!({
        "device": device,
        "written": w.written,
        "life_used": w.life_used,
        "spare": w.spare,
        "since_boot": w.since_boot,
        "source": w.source,
        "notes": w.notes,
    })
}

/// Reads the largest weights on the volume, as far as they lie where weights usually do, for a moment.
fn measure(look: &Look, uses: &[&str], drive: &Drive, v: &mut Value) {
    let below = |used: &str, dir: PathBuf| uses.contains(&used).then(|| disk::largest_weights(&dir)).flatten();
    // A project's folder is large and full of other things; the demo's model lies at a known place.
    let file = below("hub cache", look.cache.clone()).or_else(|| below("working folder", look.working.join(".demo")));
    let Some(file) = file else {
        v["read_measured"] = json!({ "rate": null, "why_not": "no weights there to read" });
        return;
    };
    match read(std::slice::from_ref(&file)) {
        Ok(moved) => {
            let seek = pool::seek_seconds(&file);
            v["read_measured"] = json!({ "rate": moved.mean(), "reader": moved.how, "seek": seek, "why_not": null });
            if drive.kind == "unknown" {
                v["kind_by_reading"] = json!(disk::kind_by_reading(moved.mean(), seek));
            }
        }
        Err(e) => v["read_measured"] = json!({ "rate": null, "why_not": e.to_string() }),
    }
}

#[cfg(feature = "torch")]
fn read(files: &[PathBuf]) -> Result<Moved> {
    crate::store::rate::read(files, SECONDS)
}

#[cfg(not(feature = "torch"))]
fn read(files: &[PathBuf]) -> Result<Moved> {
    pool::read(files, SECONDS)
}
