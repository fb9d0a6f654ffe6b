//! What a checkpoint is made of: files, tensors, blocks and architecture, read from headers only.
//!
//! Sizes come from safetensors headers (shape × dtype, checked), never from `metadata.total_size`.
//! Headers, indexes and configs are hostile input: every length and name is checked before use.

pub mod adapter;
pub mod arch;
pub mod families;
pub mod files;
pub mod gguf;
pub mod header;
pub mod hub;
pub mod index;
pub mod inventory;
pub mod keys;
pub mod remote;
pub mod types;
pub mod vocab;
pub mod write;

mod find;
mod open;
mod packed;
mod planned;
mod rope;
mod sniff;
mod tie;

pub use vocab::needs_tokenizer;

pub use types::{
    Activation, Arch, Block, BlockTensor, Checkpoint, Dtype, Experts, Family, Part, Role, Rope, RopeScaling,
    SpecialIds, TensorInfo, WeightFile,
};

use crate::engine::ModelEntry;
use crate::error::Result;
use crate::event::Stage;
use std::path::{Path, PathBuf};

/// Opens the checkpoint in `dir`: reads headers and config, checks them, touches no weight.
///
/// `dir` is a model folder, a snapshot folder of the hub cache, or a `models--owner--name` folder (then `refs/main`).
///
/// # Errors
/// Anything missing, malformed, inconsistent or unsupported, by file and tensor name.
pub fn open(dir: &Path) -> Result<Checkpoint> {
    open::open(dir, open::Depth::Whole)
}

/// [`resolve`] and [`open`] in one. With `rebuild_index`, an index that names files which are not there (or is gone) is
/// first written anew, if the other safetensors files hold all that it named; a note says so.
///
/// # Errors
/// Those of [`resolve`] and [`open`].
pub fn open_model(model: &str, rebuild_index: bool) -> Result<Checkpoint> {
    let dir = resolve(model)?;
    let note = if rebuild_index { index::rebuild_stale(&dir)? } else { None };
    let mut checkpoint = open(&dir)?;
    checkpoint.notes.extend(note);
    Ok(checkpoint)
}

/// Turns what the user typed (a folder, a hub cache folder, or `owner/name[@revision]` in the hub cache or among the
/// headers fetched earlier) into a model folder.
///
/// # Errors
/// Nothing is there; says where it looked.
pub fn resolve(model: &str) -> Result<PathBuf> {
    let (models, headers) = (hub::cache_dir(), hub::headers_dir());
    find::resolve_in(model, find::Caches { models: models.as_deref(), headers: headers.as_deref() })
}

/// Checkpoints found in `places` (folders that are or contain model folders), in the hub cache, and those of which the
/// headers were fetched.
///
/// Reads headers and configs only. A folder that can't be used is listed with its problem.
#[must_use]
pub fn list(places: &[PathBuf]) -> Vec<ModelEntry> {
    let (models, headers) = (hub::cache_dir(), hub::headers_dir());
    find::list_in(places, find::Caches { models: models.as_deref(), headers: headers.as_deref() })
}

/// Turns a GGUF file into a Hugging Face folder at `to` (F16 weights, tokenizer, template), atomically.
///
/// # Errors
/// Not a GGUF, an unsupported tensor type or architecture, or `to` exists and isn't empty.
pub fn import_gguf(gguf: &Path, to: &Path, progress: &mut dyn FnMut(Stage)) -> Result<PathBuf> {
    gguf::import(gguf, to, progress)
}

/// Writes a new index over the safetensors files that lie in `dir`, for a model whose index is stale or gone. Only ever
/// at the user's request. Returns the index's path.
///
/// # Errors
/// No safetensors files, a header that can't be read, or one tensor name in two files.
pub fn rebuild_index(dir: &Path) -> Result<PathBuf> {
    index::rebuild(dir)
}
