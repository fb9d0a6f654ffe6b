//! `adapter_config.json` to and from [`AdapterConfig`]: what PEFT calls things, and what is refused.

use super::{AdapterConfig, CONFIG_FILE};
use crate::error::{Error, Result};
use crate::text::{clean, hostile};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// Longest `adapter_config.json` worth reading.
const MAX_CONFIG: u64 = 1 << 20;
/// Ranks above this are a damaged file, not an adapter.
const MAX_RANK: u64 = 1 << 16;

/// Keys of any PEFT version that don't change what a loaded adapter computes here: initialisers of the untrained
/// adapter, bookkeeping, and selectors whose result the tensor names already show.
const HARMLESS: [&str; 14] = [
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "loftq_config",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "runtime_config",
    "layers_pattern",
];
/// Keys that [`AdapterConfig`] holds, or that are checked one by one.
const READ: [&str; 11] = [
    "base_model_name_or_path",
    "bias",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "peft_type",
    "r",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
];
/// Initialisers that also change the base's weights, so that the adapter alone means nothing on the original base.
const MOVES_THE_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// What the config states: targets may be a pattern that only the tensor names resolve.
pub(super) struct Stated {
    pub(super) config: AdapterConfig,
    /// `target_modules` is a list of plain projection names.
    pub(super) plain_targets: bool,
}

/// The JSON of `adapter_config.json`: keys that every PEFT since 0.6 knows, others only when they are used.
#[must_use]
pub fn to_peft(config: &AdapterConfig) -> Value {
    let alpha = config.lora_alpha;
    let whole = alpha.fract() == 0.0 && alpha.abs() < 2f64.powi(53);
    let mut targets = config.target_modules.clone();
    targets.sort();
    targets.dedup();
    let mut map = json!({
        "base_model_name_or_path": config.base_model_name_or_path,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "lora_alpha": if whole { json!(alpha as i64) } else { json!(alpha) },
        "lora_dropout": config.lora_dropout,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": config.r,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
    });
    if let Some(layers) = &config.layers_to_transform {
        map["layers_to_transform"] = json!(layers);
    }
    if let Some(revision) = &config.revision {
        map["revision"] = json!(revision);
    }
    if config.use_rslora {
        map["use_rslora"] = json!(true);
    }
    map
}

/// `config` with a public base name and numbers that JSON can hold.
pub(super) fn publishable(config: &AdapterConfig) -> Result<AdapterConfig> {
    let mut config = config.clone();
    config.base_model_name_or_path = public_name(&config.base_model_name_or_path);
    for (name, x) in [("lora_alpha", config.lora_alpha), ("lora_dropout", config.lora_dropout)] {
        if !x.is_finite() {
            return Err(Error::run(format!("cannot save an adapter with {name} = {x}")));
        }
    }
    Ok(config)
}

/// A name that is safe to publish: a hub id as it is, the last part of anything that is a path.
pub(super) fn public_name(name: &str) -> String {
    let clean: String = name.chars().filter(|c| !hostile(*c)).collect();
    let clean = clean.trim();
    let is_path = clean.starts_with(['/', '.', '~'])
        || clean.contains('\\')
        || clean.contains(':')
        || clean.matches('/').count() > 1
        || clean.ends_with('/');
    if is_path || clean.is_empty() { from_local_path(clean).0 } else { clean.to_string() }
}

/// Name and commit that a local path implies: `models--org--name/snapshots/<commit>` is the hub cache's layout.
pub(super) fn from_local_path(path: &str) -> (String, Option<String>) {
    let parts: Vec<&str> =
        path.split(['/', '\\']).filter(|p| !p.is_empty() && !matches!(*p, "." | ".." | "~")).collect();
    let cached = parts.iter().rposition(|p| p.starts_with("models--"));
    if let Some(at) = cached {
        let id = parts[at].trim_start_matches("models--").replacen("--", "/", 1);
        let commit = match parts.get(at + 1..) {
            Some(["snapshots", commit, ..]) => Some((*commit).to_string()),
            _ => None,
        };
        return (id, commit);
    }
    let last = parts.last().copied().unwrap_or("local-base");
    (last.chars().filter(|c| !hostile(*c)).collect(), None)
}

/// Reads and checks the config of the adapter folder `dir`.
pub(super) fn read_config(dir: &Path) -> Result<Stated> {
    let path = dir.join(CONFIG_FILE);
    let meta = fs::metadata(&path).map_err(|e| {
        let error = Error::checkpoint(format!(
            "'{}' is not a PEFT adapter: it has no readable {CONFIG_FILE} ({e})",
            dir.display()
        ));
        if dir.join("adapters.safetensors").exists() || dir.join("adapters.npz").exists() {
            error.next("it looks like an mlx adapter: convert it to PEFT first")
        } else {
            error.next("give the folder that PEFT's save_pretrained, or a run here, wrote")
        }
    })?;
    if meta.len() > MAX_CONFIG {
        return Err(Error::checkpoint(format!(
            "'{}' is {} bytes long, no adapter config is",
            path.display(),
            meta.len()
        )));
    }
    let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::checkpoint(format!("'{}' is not valid JSON: {e}", path.display())))?;
    from_peft(&value).map_err(|e| {
        let error = Error::checkpoint(format!("'{}': {}", path.display(), e.what));
        match e.next {
            Some(next) => error.next(next),
            None => error,
        }
    })
}

pub(super) struct Refusal {
    what: String,
    next: Option<&'static str>,
}

fn refuse<T>(what: impl Into<String>, next: &'static str) -> std::result::Result<T, Refusal> {
    Err(Refusal { what: what.into(), next: Some(next) })
}

/// Reads the JSON of an adapter config. The format is told by its keys, never by shapes.
pub(super) fn from_peft(value: &Value) -> std::result::Result<Stated, Refusal> {
    let Value::Object(map) = value else {
        return refuse("not a JSON object", "give a PEFT adapter");
    };
    check_format(map)?;
    check_features(map)?;
    let r = match map.get("r").and_then(Value::as_u64) {
        Some(r) if (1..=MAX_RANK).contains(&r) => r as usize,
        _ => {
            return refuse(format!("r = {} is not a rank", shown(map.get("r"))), "give a PEFT LoRA adapter");
        }
    };
    let number = |key: &str, default: f64| match map.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(v) => match v.as_f64() {
            Some(x) if x.is_finite() => Ok(x),
            _ => refuse(format!("{key} = {} is not a number", shown(Some(v))), "give a PEFT LoRA adapter"),
        },
    };
    let (targets, plain_targets) = targets(map)?;
    let base = map.get("base_model_name_or_path").and_then(Value::as_str).unwrap_or_default();
    Ok(Stated {
        config: AdapterConfig {
            base_model_name_or_path: public_name(base),
            revision: map.get("revision").and_then(Value::as_str).map(|s| s.chars().filter(|c| !hostile(*c)).collect()),
            r,
            // PEFT's own default.
            lora_alpha: number("lora_alpha", 8.0)?,
            lora_dropout: number("lora_dropout", 0.0)?,
            use_rslora: match map.get("use_rslora") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(on)) => *on,
                other => {
                    let what = format!("use_rslora = {} is not true or false", shown(other));
                    return refuse(what, "give a PEFT LoRA adapter");
                }
            },
            target_modules: targets,
            layers_to_transform: layers(map)?,
            chat_template: None,
        },
        plain_targets,
    })
}

fn check_format(map: &Map<String, Value>) -> std::result::Result<(), Refusal> {
    let has = |key: &str| map.contains_key(key);
    match map.get("peft_type").and_then(Value::as_str) {
        Some("LORA") => {}
        Some(other) => {
            return refuse(format!("a PEFT adapter of type {}, not LORA", clean(other)), "give a LoRA adapter");
        }
        None if has("lora_parameters") || has("num_layers") || has("lora_layers") || has("fine_tune_type") => {
            return refuse("an mlx adapter, which stores A and B transposed with a scale", "convert it to PEFT first");
        }
        None if has("architectures") || has("model_type") => {
            return refuse(
                "a base model's config, not an adapter's",
                "copy the adapter's own adapter_config.json here",
            );
        }
        None => {
            return refuse("no 'peft_type': the format is not known", "give a PEFT LoRA adapter");
        }
    }
    match map.get("task_type") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(s)) if s == "CAUSAL_LM" => Ok(()),
        other => {
            refuse(format!("task_type {}, not CAUSAL_LM", shown(other)), "give an adapter of a causal language model")
        }
    }
}

fn check_features(map: &Map<String, Value>) -> std::result::Result<(), Refusal> {
    if let Some(init) = map.get("init_lora_weights").and_then(Value::as_str)
        && MOVES_THE_BASE.iter().any(|m| init.to_lowercase().starts_with(m))
    {
        return refuse(
            format!("init_lora_weights '{}' also changed the base's weights", clean(init)),
            "convert it to a plain LoRA with PEFT's path_initial_model_for_weight_conversion",
        );
    }
    match map.get("layers_pattern") {
        None | Some(Value::Null) => {}
        Some(Value::String(s)) if s == "layers" => {}
        Some(Value::Array(a)) if a.iter().all(|s| s == "layers") => {}
        other => {
            return refuse(format!("layers_pattern {} is not supported", shown(other)), "give an adapter on 'layers'");
        }
    }
    match map.get("bias") {
        None | Some(Value::Null) => {}
        Some(Value::String(s)) if s == "none" => {}
        other => {
            return refuse(
                format!("bias {}: trained biases are not supported", shown(other)),
                "train with bias 'none'",
            );
        }
    }
    for (key, value) in map {
        let neutral = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(a) => a.is_empty(),
            Value::Object(o) => o.is_empty(),
            _ => false,
        };
        if !neutral && !READ.contains(&key.as_str()) && !HARMLESS.contains(&key.as_str()) {
            return refuse(
                format!("{} = {} is a feature this version doesn't have", clean(key), shown(Some(value))),
                "give a plain LoRA adapter",
            );
        }
    }
    Ok(())
}

/// Plain projection names, or nothing and `false` where only the tensor names can tell (a pattern, full paths).
fn targets(map: &Map<String, Value>) -> std::result::Result<(Vec<String>, bool), Refusal> {
    match map.get("target_modules") {
        Some(Value::Array(list)) => {
            let names: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
            let Some(names) = names else {
                return refuse("target_modules holds something that is no text", "give a PEFT LoRA adapter");
            };
            let plain = !names.is_empty() && names.iter().all(|n| !n.contains('.'));
            Ok((if plain { names.into_iter().map(String::from).collect() } else { Vec::new() }, plain))
        }
        None | Some(Value::Null | Value::String(_)) => Ok((Vec::new(), false)),
        other => refuse(format!("target_modules = {}", shown(other)), "give a PEFT LoRA adapter"),
    }
}

fn layers(map: &Map<String, Value>) -> std::result::Result<Option<Vec<usize>>, Refusal> {
    let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
    let found = match map.get("layers_to_transform") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        Some(v) => number(v).map(|n| vec![n]),
    };
    match found {
        Some(layers) => Ok(Some(layers)),
        None => refuse("layers_to_transform is not a list of layer numbers", "give a PEFT LoRA adapter"),
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "nothing".into(), |v| clean(&v.to_string()))
}
