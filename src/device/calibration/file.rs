//! The file of calibrations: read with suspicion, written whole. What can't be right is left out and said, never an
//! error: a rate that is assumed is better than no plan.

use super::{Calibration, CpuEntry, GpuEntry, VolumeEntry};
use crate::error::{Error, Result};
use crate::files;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Counts up when a key changes meaning.
const SCHEMA: i64 = 1;
/// Entries of a kind: one user's machines and drives are a handful.
const MOST: usize = 64;
/// Largest file that is read.
const LARGEST: u64 = 1 << 20;
/// Longest name, id or path in it.
const LONGEST: usize = 1024;
/// 2100: no measurement is younger.
const LAST_DATE: u64 = 4_102_444_800;

/// `$XDG_STATE_HOME/blockstream-tui/calibration.toml`, by default below `~/.local/state`; `None` without a home.
#[must_use]
pub fn default_file() -> Option<PathBuf> {
    file_from(|key| std::env::var_os(key))
}

fn file_from(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // Relative paths are to be ignored, says the XDG specification.
    let absolute = |key: &str| env(key).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("blockstream-tui/calibration.toml"))
}

/// This user's calibrations, and notes on what was left out.
#[must_use]
pub fn load_default() -> (Calibration, Vec<String>) {
    default_file().map_or_else(Default::default, |f| load(&f))
}

/// The calibrations in `file` (none where there is no such file), and notes on what was left out.
#[must_use]
pub fn load(file: &Path) -> (Calibration, Vec<String>) {
    match read(file) {
        Ok(found) => found,
        Err(why) => (Calibration::default(), vec![format!("saved calibrations are ignored: {why}")]),
    }
}

/// Changes the calibrations in `file` by `change` and writes them back, whole or not at all. What couldn't be read goes;
/// its notes are returned.
///
/// # Errors
/// The folder can't be made or written, or the file is a newer version's.
pub fn save(file: &Path, change: impl FnOnce(&mut Calibration)) -> Result<Vec<String>> {
    if let Ok(Some(schema)) = table(file).map(|t| t.as_ref().and_then(schema_of))
        && schema > SCHEMA
    {
        return Err(Error::run(format!("'{}' was written by a newer version", file.display()))
            .next("use that version, or remove the file"));
    }
    let (mut all, notes) = load(file);
    change(&mut all);
    let text = write(&all).map_err(|e| Error::run(format!("calibrations as TOML: {e}")))?;
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).map_err(|e| Error::io("make", dir, e))?;
    }
    files::replace(file, text.as_bytes())?;
    Ok(notes)
}

fn write(all: &Calibration) -> Result<String, toml::ser::Error> {
    fn entries<T: Serialize>(list: &[T]) -> Result<Value, toml::ser::Error> {
        // The newest are at the end.
        let newest = &list[list.len().saturating_sub(MOST)..];
        newest.iter().map(Value::try_from).collect::<Result<Vec<_>, _>>().map(Value::Array)
    }
    let mut t = Table::new();
    t.insert("schema".into(), Value::Integer(SCHEMA));
    t.insert("gpu".into(), entries(&all.gpus)?);
    t.insert("volume".into(), entries(&all.volumes)?);
    t.insert("cpu".into(), entries(&all.cpus)?);
    Ok(format!("# What `blockstream-tui bench` measured. May be removed.\n{}", toml::to_string(&t)?))
}

fn schema_of(t: &Table) -> Option<i64> {
    t.get("schema")?.as_integer()
}

/// The file as a table; `None` where there is no file.
fn table(file: &Path) -> Result<Option<Table>, String> {
    let open = match std::fs::File::open(file) {
        Ok(open) => open,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    // A FIFO or a device would never end.
    if !open.metadata().is_ok_and(|m| m.is_file()) {
        return Err("it is no file".into());
    }
    let mut text = String::new();
    open.take(LARGEST + 1).read_to_string(&mut text).map_err(|_| "it is no text".to_string())?;
    if text.len() as u64 > LARGEST {
        return Err("it is too large".into());
    }
    toml::from_str::<Table>(&text).map(Some).map_err(|_| "it is no TOML".into())
}

fn read(file: &Path) -> Result<(Calibration, Vec<String>), String> {
    let Some(mut t) = table(file)? else { return Ok(Default::default()) };
    match schema_of(&t) {
        Some(SCHEMA) => {}
        Some(n) if n > SCHEMA => return Err("a newer version wrote them".into()),
        _ => return Err("they have no version".into()),
    }
    t.remove("schema");
    let mut notes = Vec::new();
    let all = Calibration {
        gpus: entries(&mut t, "gpu", check_gpu, &mut notes),
        volumes: entries(&mut t, "volume", check_volume, &mut notes),
        cpus: entries(&mut t, "cpu", check_cpu, &mut notes),
    };
    if !t.is_empty() {
        notes.push(format!("{} unknown parts of the saved calibrations are ignored", t.len()));
    }
    Ok((all, notes))
}

/// The good entries under `key`.
fn entries<T: DeserializeOwned>(t: &mut Table, key: &str, good: fn(&T) -> bool, notes: &mut Vec<String>) -> Vec<T> {
    let list = match t.remove(key) {
        Some(Value::Array(list)) => list,
        None => return Vec::new(),
        Some(_) => vec![Value::Boolean(false)],
    };
    let all = list.len();
    let kept: Vec<T> = list.into_iter().take(MOST).filter_map(|v| v.try_into().ok()).filter(good).collect();
    if kept.len() < all {
        notes.push(format!(
            "{} of {all} saved calibrations of kind '{key}' are ignored: impossible values",
            all - kept.len()
        ));
    }
    kept
}

fn date(at: u64) -> bool {
    at <= LAST_DATE
}

/// A rate that a machine can have, per second.
fn rate(x: f64) -> bool {
    x.is_finite() && (1.0..1e18).contains(&x)
}

fn spread([low, high]: [f64; 2]) -> bool {
    rate(low) && rate(high) && low <= high
}

fn text(t: &str) -> bool {
    t.len() <= LONGEST && !t.chars().any(char::is_control)
}

fn check_gpu(g: &GpuEntry) -> bool {
    let link = g.link.as_ref().is_none_or(|l| {
        date(l.at)
            && rate(l.h2d)
            && rate(l.d2h)
            && l.h2d_spread.is_none_or(spread)
            && l.driver.as_deref().is_none_or(text)
    });
    let gemm = g.gemm.as_ref().is_none_or(|m| {
        let kernels = m.kernels.as_ref().is_none_or(|k| {
            let [(forward, half), (back, half_back)] = [k.attention, k.attention_backward].map(|[r, h]| (r, h));
            let times = [half, half_back, k.each, k.launch].iter().all(|x| x.is_finite() && *x >= 0.0);
            let factors = [k.forward, k.backward].iter().all(|f| (0.1..10.0).contains(f));
            times && factors && [k.memory, forward, back].into_iter().all(rate)
        });
        date(m.at) && rate(m.flops) && kernels && m.driver.as_deref().is_none_or(text)
    });
    let overhead = g.overhead.as_ref().is_none_or(|o| date(o.at) && o.bytes.0 < 1 << 36);
    !g.uuid.is_empty() && text(&g.uuid) && text(&g.name) && link && gemm && overhead
}

fn check_volume(v: &VolumeEntry) -> bool {
    let read = v.read.as_ref().is_none_or(|r| {
        let kind = r.kind.as_deref().is_none_or(|k| ["nvme", "ssd", "hdd", "unknown"].contains(&k));
        date(r.at) && rate(r.rate) && spread(r.spread) && text(&r.reader) && kind
    });
    let write = v.write.as_ref().is_none_or(|w| date(w.at) && rate(w.rate) && w.after_slc.is_none_or(rate));
    let life = |x: f64| x.is_finite() && (0.0..=10.0).contains(&x);
    let wear = v.wear.as_ref().is_none_or(|w| date(w.at) && w.life_used.is_none_or(life));
    !v.id.is_empty() && text(&v.id) && text(&v.mount) && read && write && wear
}

fn check_cpu(c: &CpuEntry) -> bool {
    text(&c.name) && date(c.at) && rate(c.flops)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    fn full() -> Calibration {
        let mut all = Calibration::default();
        let at = 1_795_973_466;
        let gpu = all.gpu_mut("GPU-1234", "Card");
        gpu.link = Some(Link {
            at,
            driver: Some("580.1".into()),
            h2d: 55.1e9,
            d2h: 52e9,
            h2d_spread: Some([54e9, 55.4e9]),
            sm_clock_mhz: Some(1980),
        });
        let kernels = Kernels {
            memory: 3e12,
            attention: [4e14, 100.0],
            attention_backward: [3e14, 100.0],
            launch: 4e-6,
            forward: 0.97,
            ..Kernels::NONE
        };
        gpu.gemm = Some(Gemm { at, driver: None, flops: 6.5e14, sm_clock_mhz: None, kernels: Some(kernels) });
        gpu.overhead = Some(Overhead { at, bytes: Bytes(512_000_000) });
        let volume = all.volume_mut("ext4 0123", "/data");
        volume.read = Some(Read {
            at,
            rate: 2.4e9,
            spread: [2.1e9, 2.5e9],
            reader: "io_uring".into(),
            kind: Some("nvme".into()),
        });
        volume.write = Some(Write { at, rate: 3e9, slc: Some(Bytes(60_000_000_000)), after_slc: Some(5e8) });
        volume.wear = Some(WearEntry { at, written: Some(Bytes(1 << 45)), life_used: Some(0.07) });
        all.set_cpu(CpuEntry { name: "CPU".into(), threads: 8, at, flops: 4e11 });
        all
    }

    #[test]
    fn what_is_saved_comes_back_and_a_second_save_replaces_its_own_entry_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state/blockstream-tui/calibration.toml");
        assert_eq!(load(&file), (Calibration::default(), vec![]));
        assert!(save(&file, |all| *all = full()).unwrap().is_empty());
        assert_eq!(load(&file), (full(), vec![]));
        save(&file, |all| {
            all.gpu_mut("GPU-1234", "Card").overhead = Some(Overhead { at: 5, bytes: Bytes(7) });
            all.gpu_mut("GPU-5678", "Other");
            all.set_cpu(CpuEntry { name: "CPU".into(), threads: 8, at: 9, flops: 5e11 });
        })
        .unwrap();
        let (all, _) = load(&file);
        assert_eq!((all.gpus.len(), all.volumes.len(), all.cpus.len()), (2, 1, 1));
        assert_eq!(all.gpus[0].link, full().gpus[0].link, "the rest stays");
        assert_eq!((all.gpus[0].overhead.as_ref().unwrap().bytes, all.cpus[0].flops), (Bytes(7), 5e11));
        let beside: Vec<_> = std::fs::read_dir(file.parent().unwrap()).unwrap().collect();
        assert_eq!(beside.len(), 1, "no temporary file stays");
    }

    #[test]
    fn hostile_content_is_left_out_and_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        let good = write(&full()).unwrap();
        let ignored = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let (all, notes) = load(&file);
            (all == Calibration::default(), notes.join("; "))
        };
        for (text, want) in [
            ("\u{0}\u{1}", "no TOML"),
            ("a = ", "no TOML"),
            ("", "no version"),
            ("schema = 99\n", "newer version"),
            ("schema = \"1\"\n", "no version"),
            ("schema = 1\ngpu = 3\n", "kind 'gpu'"),
            ("schema = 1\ngpus = []\n", "1 unknown parts"),
        ] {
            let (empty, notes) = ignored(text);
            assert!(empty && notes.contains(want), "{text:?}: {notes}");
        }
        for (from, to, want) in [
            ("h2d = 55100000000.0", "h2d = nan", "kind 'gpu'"),
            ("h2d = 55100000000.0", "h2d = -1.0", "kind 'gpu'"),
            ("uuid = \"GPU-1234\"", "uuid = \"\\u001b[31m\"", "kind 'gpu'"),
            ("rate = 2400000000.0", "rate = \"fast\"", "kind 'volume'"),
            ("rate = 2400000000.0", "rates = 2400000000.0", "kind 'volume'"),
            ("at = 1795973466\nrate = 3", "at = 9223372036854775807\nrate = 3", "kind 'volume'"),
            ("life_used = 0.07", "life_used = 1e300", "kind 'volume'"),
            ("threads = 8", "threads = -8", "kind 'cpu'"),
        ] {
            assert!(good.contains(from), "{from} in {good}");
            std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
            let (all, notes) = load(&file);
            assert!(notes.len() == 1 && notes[0].contains(want), "{to}: {notes:?}");
            assert_eq!(all.gpus.len() + all.volumes.len() + all.cpus.len(), 2, "{to}: the others stay");
        }
        std::fs::write(&file, vec![b'#'; (1 << 20) + 1]).unwrap();
        assert!(load(&file).1[0].contains("too large"));
        assert!(load(dir.path()).1[0].contains("no file"), "a folder");
    }

    #[test]
    fn a_newer_versions_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "schema = 2\n").unwrap();
        let e = save(&file, |_| {}).unwrap_err();
        assert!(e.to_string().contains("newer version"), "{e}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "schema = 2\n");
        std::fs::write(&file, "rubbish").unwrap();
        assert!(save(&file, |_| {}).unwrap()[0].contains("no TOML"), "rubbish goes, and that is said");
        assert_eq!(load(&file), (Calibration::default(), vec![]));
    }

    #[test]
    fn the_file_lies_in_the_state_folder() {
        let env = |pairs: &'static [(&str, &str)]| {
            file_from(move |key| pairs.iter().find(|(k, _)| *k == key).map(|(_, v)| OsString::from(v)))
        };
        let below = |dir: &str| Some(PathBuf::from(dir).join("blockstream-tui/calibration.toml"));
        assert_eq!(env(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]), below("/s"));
        assert_eq!(env(&[("XDG_STATE_HOME", "relative"), ("HOME", "/h")]), below("/h/.local/state"));
        assert_eq!(env(&[]), None);
    }
}
