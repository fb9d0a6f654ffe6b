//! Rotary embedding parameters: `rope_theta` + `rope_scaling` (transformers 4) and `rope_parameters` (transformers 5).
//!
//! The rules are those of transformers' `modeling_rope_utils.py`; a rule this program doesn't have refuses by name,
//! since training unscaled would silently be another model.

use super::families::{bad, short};
use super::types::{Rope, RopeScaling};
use crate::error::Result;
use crate::text::clean;
use serde_json::{Map, Value};

/// Base when no key names one.
const DEFAULT_THETA: f64 = 10_000.0;

/// Reads the rotary parameters of a text config.
///
/// # Errors
/// An unknown rule, a key the rule needs and doesn't have, or a value out of range.
pub fn read(config: &Map<String, Value>, notes: &mut Vec<String>) -> Result<Rope> {
    let new = object(config, "rope_parameters")?;
    let old = object(config, "rope_scaling")?;
    // transformers takes the block's own base before the one beside it, in either spelling.
    let theta = theta(config.get("rope_theta"), new.or(old).and_then(|p| p.get("rope_theta")), notes)?;
    if let (Some(new), Some(old)) = (new, old) {
        let base = |b: &Map<String, Value>| {
            b.get("rope_theta").or(config.get("rope_theta")).and_then(Value::as_f64).unwrap_or(theta)
        };
        if scaling(new)? != scaling(old)? || base(new) != base(old) {
            return Err(bad("rope_parameters and rope_scaling disagree")
                .next("ask its makers which of the two is right, and remove the other from config.json"));
        }
    }
    let scaling = match new.or(old) {
        Some(block) => scaling(block)?,
        None => RopeScaling::None,
    };
    for block in [Some(config), new, old].into_iter().flatten() {
        if let Some(part) = block.get("partial_rotary_factor").filter(|v| !v.is_null() && v.as_f64() != Some(1.0)) {
            return Err(bad(&format!("partial_rotary_factor {} is not supported", short(part))));
        }
    }
    Ok(Rope { theta, scaling })
}

fn object<'a>(config: &'a Map<String, Value>, key: &str) -> Result<Option<&'a Map<String, Value>>> {
    let block = match config.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(block)) => block,
        Some(other) => return Err(bad(&format!("'{key}' is {}, not an object", short(other)))),
    };
    if block.values().any(Value::is_object) || block.keys().any(|k| k.ends_with("_attention")) {
        return Err(bad(&format!("'{key}' per layer type is not supported")));
    }
    Ok(Some(block))
}

fn theta(old: Option<&Value>, new: Option<&Value>, notes: &mut Vec<String>) -> Result<f64> {
    let positive = |v: &Value| match v.as_f64() {
        Some(x) if x.is_finite() && x > 0.0 => Ok(x),
        _ => Err(bad(&format!("'rope_theta' is {}, not a positive number", short(v)))),
    };
    let given = |v: Option<&Value>| v.filter(|v| !v.is_null()).map(positive).transpose();
    match (given(old)?, given(new)?) {
        (Some(old), Some(new)) if old != new => {
            notes.push(format!("rope_theta is {old}, and {new} in the block of rotary parameters: {new} is used"));
            Ok(new)
        }
        (_, Some(theta)) | (Some(theta), None) => Ok(theta),
        (None, None) => {
            notes.push("config.json has no rope_theta: 10000 taken".into());
            Ok(DEFAULT_THETA)
        }
    }
}

/// The rule's name; `type` is the older spelling.
fn rule(block: &Map<String, Value>) -> Result<&str> {
    let given = |key: &str| block.get(key).filter(|v| !v.is_null());
    match (given("rope_type"), given("type")) {
        (Some(a), Some(b)) if a != b => Err(bad(&format!("rope_type is {} and type is {}", short(a), short(b)))
            .next("ask its makers which of the two is right, and remove the other from config.json")),
        (None, None) => Ok("default"),
        (Some(name), _) | (_, Some(name)) => name.as_str().ok_or_else(|| bad(&format!("rope_type is {}", short(name)))),
    }
}

/// The keys that each rule reads, beside its name, the base and the rotated share. Any other that is not null refuses.
const READ: [(&str, &[&str]); 3] = [
    ("default", &[]),
    ("linear", &["factor"]),
    ("llama3", &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]),
];

/// Refuses a key that the rule does not read: it would mean something to whoever wrote it.
fn check_keys(rule: &str, block: &Map<String, Value>) -> Result<()> {
    let read = READ.iter().find(|(name, _)| *name == rule).map_or(&[][..], |(_, keys)| keys);
    let common = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
    let known = |key: &str| common.contains(&key) || read.contains(&key);
    match block.iter().find(|(key, value)| !value.is_null() && !known(key)) {
        Some((key, value)) => Err(bad(&format!(
            "rope_type '{}' has '{}' = {}, which this program does not read",
            clean(rule),
            clean(key),
            short(value)
        ))
        .next("remove the key from config.json if it has no meaning")),
        None => Ok(()),
    }
}

fn scaling(block: &Map<String, Value>) -> Result<RopeScaling> {
    let rule = rule(block)?;
    if READ.iter().any(|(name, _)| *name == rule) {
        check_keys(rule, block)?;
    }
    let number = |key: &str, least: f64| match block.get(key).and_then(Value::as_f64) {
        Some(x) if x.is_finite() && x >= least => Ok(x),
        _ => Err(bad(&format!(
            "rope_type '{}' needs '{key}', a number of at least {least}; found {}",
            clean(rule),
            block.get(key).map_or("nothing".into(), short)
        ))),
    };
    match rule {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor", 1.0)? }),
        "llama3" => {
            let low = number("low_freq_factor", f64::MIN_POSITIVE)?;
            let high = number("high_freq_factor", f64::MIN_POSITIVE)?;
            if high <= low {
                return Err(bad(&format!("high_freq_factor {high} must be above low_freq_factor {low}")));
            }
            Ok(RopeScaling::Llama3 {
                factor: number("factor", 1.0)?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: number("original_max_position_embeddings", 1.0)?,
            })
        }
        _ => {
            Err(bad(&format!("rope_type '{}' is not supported", clean(rule)))
                .next("supported: default, linear, llama3"))
        }
    }
}
