//! What a checkpoint is made of: files, tensors, blocks and architecture, read from headers only.
//!
//! Sizes come from safetensors headers (shape × dtype, checked), never from `metadata.total_size`.
//! Headers, indexes and configs are hostile input: every length and name is checked before use.

pub mod adapter;
pub mod types;

pub use types::{
    Activation, Arch, Block, BlockTensor, Checkpoint, Dtype, Family, Role, Rope, RopeScaling, SpecialIds, TensorInfo,
    WeightFile,
};

use crate::engine::ModelEntry;
use crate::error::{Error, Result};
use crate::event::Stage;
use std::path::{Path, PathBuf};

/// Opens the checkpoint in `dir`: reads headers and config, checks them, touches no weight.
///
/// # Errors
/// Anything missing, malformed, inconsistent or unsupported, by file and tensor name.
pub fn open(dir: &Path) -> Result<Checkpoint> {
    Err(Error::checkpoint(format!("cannot open '{}'", dir.display())))
}

/// Turns what the user typed (a folder, a hub cache folder, or `owner/name` in the hub cache) into a model folder.
///
/// # Errors
/// Nothing is there; says where it looked.
pub fn resolve(model: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(model))
}

/// Checkpoints found in `places` (folders that are or contain model folders) and in the hub cache.
#[must_use]
pub fn list(places: &[PathBuf]) -> Vec<ModelEntry> {
    let _ = places;
    Vec::new()
}

/// Turns a GGUF file into a Hugging Face folder at `to` (F16 weights, tokenizer, template), atomically.
///
/// # Errors
/// Not a GGUF, an unsupported tensor type or architecture, or `to` exists and isn't empty.
pub fn import_gguf(gguf: &Path, to: &Path, progress: &mut dyn FnMut(Stage)) -> Result<PathBuf> {
    let _ = (to, progress);
    Err(Error::checkpoint(format!("cannot import '{}'", gguf.display())))
}
