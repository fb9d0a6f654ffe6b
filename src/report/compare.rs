//! Runs side by side: figures first, then the settings that differ.

use super::load;
use super::write::name_of;
use crate::error::{Error, Result};
use crate::units::{Bytes, secs};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Most columns a line of the table takes.
pub const MAX_WIDTH: usize = 100;
const LABEL: usize = 22;
const CELL: usize = 18;
/// Runs beside each other before a new block begins: 22 + 4 × (1 + 18) ≤ 100.
const PER_BLOCK: usize = 4;

/// A comparison as text and as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// A table, at most [`MAX_WIDTH`] columns wide.
    pub text: String,
    /// `{schema, runs: [{run_id, …}], differing_settings}`.
    pub json: Value,
}

/// How a figure is shown.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Seconds,
    Size,
    Share,
}

/// Label, place in `report.json`, and kind.
const FIGURES: [(&str, &str, Kind); 20] = [
    ("model", "/model/name", Kind::Text),
    ("mode", "/mode", Kind::Text),
    ("verdict", "/verdict", Kind::Text),
    ("status", "/status", Kind::Text),
    ("device", "/machine/device", Kind::Text),
    ("steps", "/steps", Kind::Number),
    ("s/step median", "/seconds_per_step/median", Kind::Seconds),
    ("s/step p95", "/seconds_per_step/p95", Kind::Seconds),
    ("of fastest possible", "/bound/share", Kind::Share),
    ("tokens/s", "/tokens_per_second/value", Kind::Number),
    ("loss first", "/loss/first", Kind::Number),
    ("loss last", "/loss/last", Kind::Number),
    ("eval loss before", "/eval/before", Kind::Number),
    ("eval loss after", "/eval/after", Kind::Number),
    ("disk read / step", "/bytes/per_step/disk_read", Kind::Size),
    ("RAM→GPU / step", "/bytes/per_step/h2d", Kind::Size),
    ("model drive written", "/bytes/model_drive_written", Kind::Size),
    ("VRAM, tensors", "/vram/live", Kind::Size),
    ("VRAM in use", "/vram/device", Kind::Size),
    ("RAM (own)", "/ram/anon_peak", Kind::Size),
];

/// Compares the runs in `dirs`, in that order.
///
/// # Errors
/// Fewer than two runs, or one that can't be read.
pub fn compare(dirs: &[PathBuf]) -> Result<Comparison> {
    if dirs.len() < 2 {
        return Err(Error::usage("there is nothing to compare").next("name two runs or more"));
    }
    let mut runs = Vec::new();
    for dir in dirs {
        runs.push((name_of(dir), load(dir)?));
    }
    let settings: Vec<Map<String, Value>> = runs.iter().map(|(_, r)| flat_settings(r)).collect();
    let keys: BTreeSet<&String> = settings.iter().flat_map(Map::keys).collect();
    let differing: Vec<&String> =
        keys.into_iter().filter(|k| settings.iter().any(|s| s.get(*k) != settings[0].get(*k))).collect();
    let mut text = String::new();
    for (block, at) in runs.chunks(PER_BLOCK).zip((0..).step_by(PER_BLOCK)) {
        push_row(&mut text, "", block.iter().map(|(name, _)| tail(name)));
        for (label, pointer, kind) in FIGURES {
            push_row(&mut text, label, block.iter().map(|(_, r)| show(r.pointer(pointer), kind)));
        }
        for key in &differing {
            let values = settings[at..at + block.len()].iter().map(|s| show(s.get(*key), Kind::Text));
            push_row(&mut text, key, values);
        }
        text.push('\n');
    }
    Ok(Comparison { text: text.trim_end().to_string() + "\n", json: as_json(&runs, &settings, &differing) })
}

fn as_json(runs: &[(String, Value)], settings: &[Map<String, Value>], differing: &[&String]) -> Value {
    let figures = runs.iter().zip(settings).map(|((name, report), settings)| {
        let mut out = Map::new();
        out.insert("run_id".into(), json!(name));
        for (_, pointer, _) in FIGURES {
            let key = pointer.trim_start_matches('/').replace('/', ".");
            out.insert(key, report.pointer(pointer).cloned().unwrap_or_default());
        }
        let own = differing.iter().map(|k| ((*k).clone(), settings.get(*k).cloned().unwrap_or_default()));
        out.insert("settings".into(), Value::Object(own.collect()));
        Value::Object(out)
    });
    json!({ "schema": 1, "runs": figures.collect::<Vec<_>>(), "differing_settings": differing })
}

/// `train.learning_rate` → value, for every setting of a `report.json` and for how the run computed.
#[must_use]
pub fn flat_settings(report: &Value) -> Map<String, Value> {
    let mut out = Map::new();
    let sections = report["config"].as_object().into_iter().flatten();
    for (section, keys) in sections {
        for (key, value) in keys.as_object().into_iter().flatten() {
            out.insert(format!("{section}.{key}"), value.clone());
        }
    }
    for key in ["dtype", "attention", "reader"] {
        out.insert(key.into(), report["setup"][key].clone());
    }
    out.insert("data.sha256".into(), report["data"]["sha256"].clone());
    out.insert("model.fingerprint".into(), report["model"]["fingerprint"].clone());
    out
}

fn show(value: Option<&Value>, kind: Kind) -> String {
    let Some(value) = value.filter(|v| !v.is_null()) else {
        return "–".into();
    };
    match (kind, value.as_f64()) {
        (Kind::Size, _) => value.as_u64().map_or("–".into(), |b| Bytes(b).to_string()),
        (Kind::Seconds, Some(x)) => secs(x),
        (Kind::Share, Some(x)) => format!("{:.0} %", x * 100.0),
        (Kind::Number, Some(x)) if x.fract() == 0.0 && x.abs() < 1e15 => format!("{x:.0}"),
        (Kind::Number, Some(x)) if x.abs() < 1e6 => format!("{x:.4}"),
        (Kind::Number, Some(x)) => format!("{x:.3e}"),
        _ => value.as_str().map_or_else(|| value.to_string(), String::from),
    }
}

fn push_row(text: &mut String, label: &str, cells: impl Iterator<Item = String>) {
    let mut row = fit(label, LABEL);
    for cell in cells {
        row.push(' ');
        row.push_str(&fit(&cell, CELL));
    }
    text.push_str(row.trim_end());
    text.push('\n');
}

/// `text` in exactly `width` columns: cut with an ellipsis, or padded.
fn fit(text: &str, width: usize) -> String {
    let clean: Vec<char> = crate::text::one_line(text).chars().collect();
    let all: usize = clean.iter().map(|c| columns(*c)).sum();
    let limit = if all > width { width - 1 } else { width };
    let (mut out, mut used) = (String::new(), 0);
    for c in clean {
        if used + columns(c) > limit {
            break;
        }
        used += columns(c);
        out.push(c);
    }
    if all > width {
        out.push('…');
        used += 1;
    }
    out + &" ".repeat(width.saturating_sub(used))
}

/// East Asian and emoji characters take two columns; nothing else that a model is named with does.
fn columns(c: char) -> usize {
    match u32::from(c) {
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f => 2,
        0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// The end of a run's name tells it from others of the same day.
fn tail(name: &str) -> String {
    let n = name.chars().count();
    if n <= CELL { name.into() } else { format!("…{}", name.chars().skip(n - CELL + 1).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_their_width_whatever_is_in_them() {
        assert_eq!(fit("abc", 5), "abc  ");
        assert_eq!(fit("abcdef", 5), "abcd…");
        assert_eq!(fit("模型模型", 5), "模型…");
        assert_eq!(fit("a\u{1b}[31m", 5), "a\\u{…");
        assert_eq!(tail("20261129T173106Z-model-lora").chars().count(), CELL);
    }
}
