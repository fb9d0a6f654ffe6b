//! The table of keys as text: a value as a screen shows it, the README's table, the end of `--help`.

use super::resume::{Settings, settings};
use super::table::{KEYS, Key, Kind};
use super::{RunConfig, TARGETS};
use toml::Value;

impl Key {
    /// What it does, and the names it takes.
    #[must_use]
    pub fn about(&self) -> String {
        match self.kind {
            Kind::Name(names) if names.len() > 1 => {
                format!("{} ({})", self.doc, names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "))
            }
            _ => self.doc.to_string(),
        }
    }
}

/// The table of keys as the README shows it: key, default and meaning.
#[must_use]
pub fn markdown() -> String {
    let (defaults, mut section, mut out) =
        (settings(&RunConfig::default()), "", String::from("| key | default | |\n|---|---|---|\n"));
    for k in KEYS {
        let (of, name) = k.parts();
        let head = if of == section { String::new() } else { format!("**[{of}]** ") };
        section = of;
        let default = text(&defaults, k);
        let default =
            if default.parse::<f64>().is_ok() || default.is_empty() { default } else { format!("`{default}`") };
        out.push_str(&format!("| {head}`{name}` | {default} | {} |\n", k.about()));
    }
    out
}

/// The keys as `--help` ends with them: one a line, with its default, then what it does.
#[must_use]
pub fn help() -> String {
    let defaults = settings(&RunConfig::default());
    let mut out = String::from("Keys of a config, with their defaults (each also a flag: lora.r as --r):\n");
    for k in KEYS {
        let default = text(&defaults, k);
        let default = if default.is_empty() { default } else { format!(" = {default}") };
        out.push_str(&format!("  {}{default}\n      {}\n", k.path, k.about().replace('`', "")));
    }
    out
}

/// The value of `key` in `config` as `--set` takes it; empty where there is none.
#[must_use]
pub fn value(config: &RunConfig, key: &Key) -> String {
    text(&settings(config), key)
}

fn text(settings: &Settings, key: &Key) -> String {
    match (key.kind, settings.get(key.path)) {
        (_, None) => String::new(),
        (_, Some(Value::String(s))) => s.clone(),
        (Kind::List, Some(Value::Array(items))) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            // A checked list holds each target once: as many as there are is all of them.
            if key.path == "lora.targets" && items.len() == TARGETS.len() {
                "all-linear".into()
            } else {
                items.join(",")
            }
        }
        (Kind::Size, Some(Value::Integer(n))) => bytes(*n),
        (Kind::Number(..), Some(Value::Float(x))) if *x > 0.0 && *x < 0.01 => format!("{x:e}"),
        (_, Some(Value::Float(x))) => x.to_string(),
        (_, Some(value)) => value.to_string(),
    }
}

/// In the largest unit that leaves no rest.
fn bytes(n: i64) -> String {
    let units = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    match units.iter().find(|(_, scale)| n >= *scale && n % scale == 0) {
        Some((unit, scale)) => format!("{} {unit}", n / scale),
        None => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;

    #[test]
    fn a_value_shown_is_taken_back_as_it_was() {
        assert_eq!([0, 64_000_000, 1_500_000_000, 7].map(bytes), ["0", "64 MB", "1500 MB", "7"]);
        let mut c = RunConfig::default();
        for (path, text) in [
            ("lora.targets", "all-linear"),
            ("train.learning_rate", "1e-5"),
            ("stream.host_budget", "64 MB"),
            ("data.files", "a.jsonl,b.jsonl"),
            ("stream.resident_blocks", "3"),
        ] {
            load::set(&mut c, path, text).unwrap();
            assert_eq!(value(&c, super::super::config_key(path).unwrap()), text);
        }
        let mut again = RunConfig::default();
        for key in KEYS {
            let text = value(&c, key);
            if !text.is_empty() {
                load::set(&mut again, key.path, &text).unwrap();
            }
        }
        assert_eq!(again, c);
    }

    #[test]
    fn the_readme_holds_the_table() {
        let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
        assert!(readme.contains(&markdown()), "README.md, section Config, has to hold:\n{}", markdown());
    }

    #[test]
    fn help_says_every_key_with_its_default() {
        let help = help();
        assert!(KEYS.iter().all(|k| help.contains(&format!("\n  {}", k.path))), "{help}");
        assert!(help.contains("  lora.r = 16\n      rank\n") && !help.contains('`'), "{help}");
    }
}
