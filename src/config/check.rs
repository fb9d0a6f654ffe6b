//! Values that can't be: one clear message each, with the nearest value where there is a list.

use super::table::{KEYS, Kind};
use super::{RunConfig, TARGETS, keys};
use crate::error::{Error, Result};
use crate::text::clean;
use std::ops::RangeBounds;
use toml::{Table, Value};

/// Checks `config` and returns warnings; the first impossible value is an error.
///
/// # Errors
/// One message for the value, naming the key and what it may be.
pub(super) fn check(config: &mut RunConfig) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    lora(config, &mut notes)?;
    train(config, &mut notes)?;
    Ok(notes)
}

fn bad(key: &str, value: impl std::fmt::Display, expected: &str) -> Error {
    Error::usage(format!("'{key}' = {value}: expected {expected}"))
}

/// Keys of earlier versions that took one value only, and what to say to any other. Files of then go on working.
const RETIRED: [(&str, &[&str], &str); 2] = [
    ("model.format", &["auto", ""], keys::QUANTISED),
    (
        "data.packing",
        &["false"],
        "packing is not in this version yet: rows of a micro-batch are padded to the longest of them",
    ),
];

/// Whether `section.name` is a key of earlier versions with the one value that it took.
///
/// # Errors
/// Such a key has another value.
pub(super) fn retired(section: &str, name: &str, value: &str) -> Result<bool> {
    let key = RETIRED.into_iter().find(|(key, ..)| key.split_once('.') == Some((section, name)));
    let Some((key, took, why)) = key else { return Ok(false) };
    if took.contains(&value) {
        return Ok(true);
    }
    Err(Error::usage(format!("'{key}' = {}: {why}", clean(value))).next("remove it"))
}

/// Refuses the first value of `config`, as a file holds it, that is none of the names its key takes or past its bounds.
///
/// # Errors
/// One message, with the nearest name.
pub(super) fn values(config: &Table) -> Result<()> {
    for k in KEYS {
        let (section, name) = k.parts();
        let within = if section.is_empty() { Some(config) } else { config.get(section).and_then(Value::as_table) };
        match (k.kind, within.and_then(|t| t.get(name))) {
            (Kind::Name(names), Some(Value::String(v))) if !names.contains(&v.as_str()) => {
                return Err(no_such_name(k.path, v, names));
            }
            (Kind::Whole(low, high, expected), Some(Value::Integer(n)))
                if !u64::try_from(*n).is_ok_and(|n| (low..=high).contains(&n)) =>
            {
                return Err(bad(k.path, n, expected));
            }
            (Kind::Number(bounds, expected), Some(Value::Float(x))) if !bounds.contains(x) => {
                return Err(bad(k.path, x, expected));
            }
            (Kind::Terabytes, Some(Value::Float(x))) if *x < 0.0 => {
                return Err(bad(k.path, x, "TB written, 0 = unknown"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn no_such_name(key: &str, value: &str, names: &[&str]) -> Error {
    let wrong = bad(key, format!("\"{}\"", clean(value)), &format!("one of {}", names.join(", ")));
    match keys::nearest(value, names.iter().copied()) {
        Some(near) => wrong.next(format!("did you mean \"{near}\"?")),
        None => wrong,
    }
}

fn lora(config: &mut RunConfig, notes: &mut Vec<String>) -> Result<()> {
    let l = &mut config.lora;
    if l.alpha == 0.0 {
        notes.push("'lora.alpha' = 0 scales every adapter to nothing: the model will not change".into());
    }
    if l.targets.iter().any(|t| t == "all-linear") {
        l.targets = TARGETS.map(String::from).to_vec();
    }
    if l.targets.is_empty() {
        return Err(Error::usage("'lora.targets' is empty: nothing would train")
            .next("name projections such as \"q_proj\", or \"all-linear\""));
    }
    for t in &l.targets {
        if !TARGETS.contains(&t.as_str()) {
            let expected = format!("any of {}, or \"all-linear\"", TARGETS.join(", "));
            let wrong = bad("lora.targets", format!("\"{}\"", clean(t)), &expected);
            return Err(match keys::nearest(t, TARGETS) {
                Some(nearest) => wrong.next(format!("did you mean \"{nearest}\"?")),
                None => wrong,
            });
        }
    }
    // Order and repeats mean nothing: one spelling keeps fingerprints and adapter files equal.
    let given = std::mem::take(&mut l.targets);
    l.targets = TARGETS.iter().filter(|t| given.iter().any(|g| g == *t)).map(|t| (*t).to_string()).collect();
    Ok(())
}

fn train(config: &RunConfig, notes: &mut Vec<String>) -> Result<()> {
    let t = &config.train;
    if t.warmup_steps >= 1.0 && t.warmup_steps.fract() != 0.0 {
        return Err(bad("train.warmup_steps", t.warmup_steps, "whole steps, or a share below 1 of all steps"));
    }
    if t.max_steps == 0 && t.num_train_epochs == 0.0 {
        return Err(Error::usage("'train.max_steps' and 'train.num_train_epochs' are both 0: nothing would train")
            .next("set one of them"));
    }
    if t.learning_rate == 0.0 {
        notes.push("'train.learning_rate' = 0: nothing will change".into());
    }
    Ok(())
}
