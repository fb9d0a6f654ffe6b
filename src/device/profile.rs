//! Machine profiles: the planner's machine as a TOML file, with byte counts as numbers or as `"8 GiB"`.

use super::Machine;
use crate::config::{ByteSize, nearest};
use crate::error::{Error, Result};
use crate::text::clean;
use std::path::Path;
use toml::{Table, Value};

/// Keys that hold byte counts, by section.
const BYTE_KEYS: [(&str, &[&str]); 3] = [
    ("gpu", &["vram_total", "vram_free", "overhead"]),
    ("ram", &["total", "available", "pinnable"]),
    ("disk", &["free", "tbw", "slc", "written"]),
];

/// The profiles this program ships, by name: `--profile h200` works from any folder.
const SHIPPED: [(&str, &str); 5] = [
    ("cpu-only", include_str!("../../profiles/cpu-only.toml")),
    ("h200", include_str!("../../profiles/h200.toml")),
    ("rtx3050-laptop-4gb", include_str!("../../profiles/rtx3050-laptop-4gb.toml")),
    ("rtx4090-desktop", include_str!("../../profiles/rtx4090-desktop.toml")),
    ("rtx5050-laptop-8gb", include_str!("../../profiles/rtx5050-laptop-8gb.toml")),
];

/// A profile is a page of text.
const LARGEST_FILE: u64 = 1 << 20;

/// Whether a TOML file describes a machine (it has a `[ram]` section) and not a run.
#[must_use]
pub fn is_machine(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // A shipped profile may be named without its file.
    !path.exists() || toml::from_str::<Table>(&text).is_ok_and(|t| t.contains_key("ram"))
}

/// Reads a profile file, or the shipped profile of that name where there is no such file.
///
/// # Errors
/// The file can't be read, isn't TOML, has an unknown or missing key, or a value that can't be.
pub fn load(path: &Path) -> Result<Machine> {
    if !path.exists() && path.components().count() == 1 {
        let name = path.to_string_lossy();
        let stem = name.strip_suffix(".toml").unwrap_or(&name);
        if let Some((stem, text)) = SHIPPED.iter().find(|(n, _)| *n == stem) {
            return parse(text, &format!("{stem}.toml"));
        }
        let names = SHIPPED.map(|(n, _)| n);
        let next = nearest(stem, names)
            .map_or_else(|| format!("there are {}", names.join(", ")), |near| format!("did you mean '{near}'?"));
        let shown = clean(stem);
        return Err(
            Error::usage(format!("no profile '{shown}': no such file, and none of that name is shipped")).next(next)
        );
    }
    let size = std::fs::metadata(path).map_err(|e| Error::io("read", path, e))?.len();
    let name = path.file_name().map_or_else(|| "profile".into(), |n| n.to_string_lossy().into_owned());
    if size > LARGEST_FILE {
        return Err(Error::usage(format!("'{name}' has {size} bytes: that is no profile")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    parse(&text, &name)
}

/// Reads a profile's text; `name` is the file's, for messages.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, name: &str) -> Result<Machine> {
    let name = clean(name);
    let wrong = |what: String| Error::usage(format!("profile '{name}': {}", clean(what.trim())));
    let mut table: Table = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
        wrong(format!("line {line}: {}", e.message()))
    })?;
    for (section, keys) in BYTE_KEYS {
        let Some(Value::Table(part)) = table.get_mut(section) else {
            continue;
        };
        for key in keys {
            let Some(Value::String(s)) = part.get(*key) else {
                continue;
            };
            let bytes = ByteSize::parse(s).and_then(|b| i64::try_from(b.0).ok()).ok_or_else(|| {
                wrong(format!("'{section}.{key}' = \"{s}\": expected bytes such as \"8 GiB\" or \"330 GB\""))
            })?;
            part.insert((*key).into(), Value::Integer(bytes));
        }
    }
    let mut machine: Machine =
        Value::Table(table).try_into().map_err(|e: toml::de::Error| unknown_key(e.message(), &wrong))?;
    machine.source = if machine.source.is_empty() {
        format!("profile {name}")
    } else {
        format!("profile {name}; {}", machine.source)
    };
    if machine.ram.limited_by.is_empty() {
        machine.ram.limited_by = "profile".into();
    }
    check(&machine).map_err(wrong)?;
    Ok(machine)
}

/// Adds the nearest key to serde's "unknown field `x`, expected one of `a`, `b`".
fn unknown_key(message: &str, wrong: &dyn Fn(String) -> Error) -> Error {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((key, known)) if message.starts_with("unknown field") => {
            let next = nearest(key, known.iter().copied())
                .map_or_else(|| format!("there are {}", known.join(", ")), |near| format!("did you mean '{near}'?"));
            wrong(format!("unknown key '{key}'")).next(next)
        }
        _ => wrong(message.replace('`', "'")),
    }
}

fn check(m: &Machine) -> Result<(), String> {
    let rate = |key: &str, x: f64| {
        if x.is_finite() && x > 0.0 { Ok(()) } else { Err(format!("'{key}' = {x}: expected a rate above 0")) }
    };
    if let Some(g) = &m.gpu {
        rate("gpu.h2d", g.h2d)?;
        rate("gpu.d2h", g.d2h)?;
        rate("gpu.flops", g.flops)?;
        if g.vram_free > g.vram_total {
            return Err(format!("'gpu.vram_free' {} is more than 'gpu.vram_total' {}", g.vram_free, g.vram_total));
        }
    }
    rate("disk.read", m.disk.read)?;
    rate("disk.write", m.disk.write)?;
    rate("cpu_flops", m.cpu_flops)?;
    if m.ram.available > m.ram.total {
        return Err(format!("'ram.available' {} is more than 'ram.total' {}", m.ram.available, m.ram.total));
    }
    if !["nvme", "ssd", "hdd", "unknown"].contains(&m.disk.kind.as_str()) {
        return Err(format!("'disk.kind' = \"{}\": expected nvme, ssd, hdd or unknown", m.disk.kind));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    const GOOD: &str = "name = \"t\"\ncpu_flops = 1e11\n[ram]\ntotal = \"16 GiB\"\navailable = \"12 GiB\"\npinnable = 8589934592\n\
                        [disk]\nkind = \"nvme\"\nread = 1e9\nwrite = 1e9\nfree = \"330.9 GiB\"\ntbw = \"300 TB\"\n";

    #[test]
    fn sizes_may_be_text_or_numbers() {
        let m = parse(GOOD, "t.toml").unwrap();
        assert_eq!(m.ram.total, Bytes(16 << 30));
        assert_eq!(m.ram.pinnable, Bytes(8 << 30));
        assert_eq!(m.disk.tbw, Some(Bytes(300_000_000_000_000)));
        assert_eq!((m.source.as_str(), m.ram.limited_by.as_str()), ("profile t.toml", "profile"));
    }

    #[test]
    fn a_byte_order_mark_changes_nothing() {
        let text = format!("\u{feff}{GOOD}");
        assert_eq!(parse(&text, "t.toml").unwrap(), parse(GOOD, "t.toml").unwrap());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        assert!(is_machine(file.path()));
    }

    #[test]
    fn shipped_profiles_are_found_by_name() {
        assert_eq!(load(Path::new("h200")).unwrap().name, "h200");
        assert_eq!(load(Path::new("cpu-only.toml")).unwrap().gpu, None);
        let e = load(Path::new("rtx5050")).unwrap_err().to_string();
        assert!(e.contains("no profile 'rtx5050'") && e.contains("'rtx5050-laptop-8gb'"), "{e}");
        assert!(load(Path::new("no/such/file.toml")).is_err());
    }

    #[test]
    fn mistakes_name_the_file_and_the_key() {
        for (from, to, want) in [
            ("pinnable", "pinable", "unknown key 'pinable'; did you mean 'pinnable'?"),
            ("\"16 GiB\"", "\"16 gigs\"", "'ram.total' = \"16 gigs\""),
            ("read = 1e9", "read = 0.0", "'disk.read' = 0"),
            ("\"nvme\"", "\"floppy\"", "'disk.kind' = \"floppy\""),
            ("available = \"12 GiB\"", "available = \"17 GiB\"", "more than 'ram.total'"),
            ("total = \"16 GiB\"\n", "", "missing field 'total'"),
            ("name = \"t\"", "name = ", "line 1:"),
        ] {
            let e = parse(&GOOD.replacen(from, to, 1), "t.toml").unwrap_err().to_string();
            assert!(e.starts_with("profile 't.toml': ") && e.contains(want), "{e}");
        }
    }
}
