//! LoRA adapters on disk in PEFT's format: `adapter_model.safetensors`, `adapter_config.json`, `README.md`.
//!
//! Keys are `base_model.model.<module>.lora_A.weight` `[r, in]` and `.lora_B.weight` `[out, r]`, F32.

mod card;
mod peft;
mod tensors;

pub use peft::to_peft;

use super::files::read_small;
use crate::error::{Error, Result};
use crate::files;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// File that holds the tensors.
pub const TENSORS_FILE: &str = "adapter_model.safetensors";
/// File that makes a folder an adapter; written last.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The model card.
pub const CARD_FILE: &str = "README.md";
/// The chat template that the adapter was trained with, where transformers looks for one.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// Longest template that is taken with an adapter, in bytes.
const MAX_TEMPLATE: u64 = 512 << 10;

/// `adapter_config.json`: only keys that PEFT has known since 0.6, plus `use_rslora` and `layers_to_transform` when used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterConfig {
    /// Hub id, or the base folder's name; never a local path.
    pub base_model_name_or_path: String,
    /// Hub commit of the base.
    pub revision: Option<String>,
    /// Rank.
    pub r: usize,
    /// Scaling numerator.
    pub lora_alpha: f64,
    /// Dropout used in training.
    pub lora_dropout: f64,
    /// `alpha / sqrt(r)` instead of `alpha / r`.
    pub use_rslora: bool,
    /// `q_proj`, ….
    pub target_modules: Vec<String>,
    /// Layers that carry adapters, when not all do.
    pub layers_to_transform: Option<Vec<usize>>,
    /// The chat template that its rows came through, a file of its own beside the config.
    #[serde(skip)]
    pub chat_template: Option<String>,
}

/// One F32 tensor of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterTensor {
    /// PEFT key, e.g. `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.
    pub key: String,
    /// `[r, in]` or `[out, r]`.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub data: Vec<f32>,
}

/// Whether an adapter of these tensors adds anything: not where every B is zero.
#[must_use]
pub fn changes_something(tensors: &[AdapterTensor]) -> bool {
    tensors.iter().any(|t| t.key.contains(".lora_B.") && t.data.iter().any(|x| *x != 0.0))
}

impl AdapterConfig {
    /// The factor on `B·A`: `alpha / r`, or `alpha / sqrt(r)` with rsLoRA (Kalajdzievski 2023).
    #[must_use]
    pub fn scale(&self) -> f64 {
        let r = self.r as f64;
        self.lora_alpha / if self.use_rslora { r.sqrt() } else { r }
    }

    /// The same adapter for programs that ignore `use_rslora`: `alpha' = alpha·sqrt(r)`, plain scaling.
    #[must_use]
    pub fn without_rslora(&self) -> AdapterConfig {
        let mut plain = self.clone();
        if self.use_rslora {
            plain.use_rslora = false;
            plain.lora_alpha = self.lora_alpha * (self.r as f64).sqrt();
        }
        plain
    }
}

/// The base's public name and commit for [`AdapterConfig`]: the name `asked` for in the config, else the hub id
/// (with the snapshot's `revision`), else the last part of `path`. Never empty, never a local path.
#[must_use]
pub fn base_name(
    asked: Option<&str>,
    hub_id: Option<&str>,
    revision: Option<&str>,
    path: &Path,
) -> (String, Option<String>) {
    if let Some(name) = asked.map(str::trim).filter(|n| !n.is_empty()) {
        return (peft::public_name(name), None);
    }
    if let Some(id) = hub_id {
        return (peft::public_name(id), revision.map(String::from));
    }
    peft::from_local_path(&path.to_string_lossy())
}

/// Writes an adapter folder: each file to a temporary name, synced, then renamed; the config last. Returns the bytes
/// written.
///
/// # Errors
/// The tensors aren't a complete adapter of this config, or the disk refuses.
pub fn write(dir: &Path, config: &AdapterConfig, tensors: &[AdapterTensor]) -> Result<u64> {
    write_noted(dir, config, tensors, &[])
}

/// As [`write()`], with `notes` as paragraphs of the model card.
///
/// # Errors
/// As [`write()`].
pub fn write_noted(dir: &Path, config: &AdapterConfig, tensors: &[AdapterTensor], notes: &[&str]) -> Result<u64> {
    let config = peft::publishable(config)?;
    tensors::check(&config, tensors).map_err(|what| Error::run(format!("the adapter is not complete: {what}")))?;
    fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
    let text = pretty(&to_peft(&config));
    let config_path = dir.join(CONFIG_FILE);
    // Tensors of one config must never stand beside another: without its config a folder is no adapter.
    if fs::read(&config_path).is_ok_and(|old| old != text.as_bytes()) {
        fs::remove_file(&config_path).map_err(|e| Error::io("replace", &config_path, e))?;
    }
    let template = dir.join(TEMPLATE_FILE);
    let template_bytes = match &config.chat_template {
        Some(text) => files::replace(&template, text.as_bytes())?,
        // One of an earlier adapter in this folder would be taken for this one's.
        None if template.exists() => {
            fs::remove_file(&template).map(|()| 0).map_err(|e| Error::io("replace", &template, e))?
        }
        None => 0,
    };
    Ok(template_bytes
        + files::replace(&dir.join(CARD_FILE), card::readme(&config, notes).as_bytes())?
        + files::replace(&dir.join(TENSORS_FILE), &tensors::encode(tensors)?)?
        + files::replace(&config_path, text.as_bytes())?)
}

/// Reads a PEFT adapter folder (F32, F16 or BF16 tensors; upcast to F32).
///
/// # Errors
/// Not a PEFT LoRA adapter, or a feature this program doesn't have (DoRA, modules_to_save, …).
pub fn read(dir: &Path) -> Result<(AdapterConfig, Vec<AdapterTensor>)> {
    let mut stated = peft::read_config(dir)?;
    // Weights load without it, and whoever speaks by it reads it with its faults told.
    stated.config.chat_template =
        read_small(&dir.join(TEMPLATE_FILE), MAX_TEMPLATE).ok().and_then(|t| String::from_utf8(t).ok());
    let path = dir.join(TENSORS_FILE);
    if !path.is_file() && dir.join("adapter_model.bin").is_file() {
        return Err(Error::checkpoint(format!("'{}' holds its tensors as a pickle", dir.display()))
            .next("save it again with PEFT's save_pretrained(safe_serialization=True)"));
    }
    let tensors = tensors::decode(&path)?;
    let bad = |what: String| Error::checkpoint(format!("'{}' doesn't fit its {CONFIG_FILE}: {what}", path.display()));
    let config = tensors::settle_targets(stated, &tensors).map_err(bad)?;
    tensors::check(&config, &tensors).map_err(bad)?;
    Ok((config, tensors))
}

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests;
