//! Opening a model folder: files, headers, config, inventory, tokenizer size and fingerprint, in that order.

use super::files::{SMALL_JSON, clean, parse_json, read_json, read_small, shown};
use super::header::{self, ReadHeader};
use super::index::{self, WeightSet, list, plural};
use super::types::{Checkpoint, TensorInfo, WeightFile};
use super::{families, hub, inventory, vocab};
use crate::error::{Error, Kind, Result};
use crate::units::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Whether the tokenizer's size is checked as well: it is the one slow part for a list of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Headers and config.
    Weights,
    /// Also the highest id in `tokenizer.json`.
    Whole,
}

/// Opens `dir`, a model folder or a `models--owner--name` folder of the hub cache.
pub(super) fn open(dir: &Path, depth: Depth) -> Result<Checkpoint> {
    let mut notes = Vec::new();
    let (dir, snapshot) = enter(dir, &mut notes)?;
    let config_path = dir.join("config.json");
    let config_bytes = read_small(&config_path, SMALL_JSON)?;
    let config: Value = parse_json(&config_path, &config_bytes)?;
    let generation = generation_config(&dir, &mut notes)?;
    // Families first: a model this program can't train should say so before its shards are asked for.
    let read = families::read(&config, generation.as_ref())?;
    notes.extend(read.notes.iter().cloned());
    let mut set = index::weights(&dir)?;
    notes.append(&mut set.notes);

    let mut headers = Vec::with_capacity(set.files.len());
    let mut files = Vec::with_capacity(set.files.len());
    for source in &set.files {
        let (read, path) = match &source.header_only {
            Some(header) => (header::read_header_only(header)?, source.path.clone()),
            None => (header::read(&source.path)?, index::resolved(&source.path)?),
        };
        files.push(WeightFile { path, bytes: read.file_len });
        headers.push(read);
    }
    let tensors = tensors(&set, &headers)?;
    notes.extend(index_notes(&set, &tensors));
    let found = inventory::assemble(&tensors, &read)?;
    notes.extend(found.plan_only.iter().cloned());
    notes.extend(found.notes);
    if depth == Depth::Whole {
        notes.extend(vocab::check(&dir, read.arch.vocab)?);
    }
    let away = set.files.iter().filter(|s| s.header_only.is_some()).count();
    if away > 0 {
        notes.push(format!("{away} of {} weights files are not here, only their headers: for planning", files.len()));
    }
    let name = snapshot.as_ref().map_or_else(|| folder_name(&dir), |s| s.id.clone());
    Ok(Checkpoint {
        name,
        hub_id: snapshot.as_ref().map(|s| s.id.clone()),
        revision: snapshot.map(|s| s.revision),
        arch: read.arch,
        fingerprint: fingerprint(&config_bytes, &set, &headers),
        files,
        tensors,
        prefix: found.prefix,
        embed: found.embed,
        final_norm: found.final_norm,
        head: found.head,
        blocks: found.blocks,
        unused: found.unused,
        notes,
        not_here: away > 0,
        plan_only: found.plan_only,
        dir,
    })
}

/// Refuses a checkpoint of which only the headers are here, and says how to get the rest.
pub(super) fn require_weights(checkpoint: &Checkpoint) -> Result<()> {
    if !checkpoint.not_here {
        return Ok(());
    }
    let repo = checkpoint.dir.parent().and_then(Path::parent);
    let named = repo.map(hub::named_snapshots).unwrap_or_default().into_iter().find(|(_, dir)| *dir == checkpoint.dir);
    let next = match (&checkpoint.hub_id, named) {
        (Some(id), Some((reference, _))) => {
            let at = reference.map_or(String::new(), |r| format!("@{}", clean(&r)));
            format!("fetch them with `blockstream-tui download {id}{at}`")
        }
        _ => "download them first; headers alone are enough only for `plan`".into(),
    };
    Err(Error::checkpoint(format!("the weights of '{}' are not on this machine", checkpoint.name)).next(next))
}

/// Steps from what was given to the folder with `config.json`, and refuses what isn't a model folder.
fn enter(dir: &Path, notes: &mut Vec<String>) -> Result<(PathBuf, Option<hub::Snapshot>)> {
    let meta = std::fs::metadata(dir).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::checkpoint(format!("{} does not exist", shown(dir))),
        _ => Error::io("read", dir, e),
    })?;
    if !meta.is_dir() {
        return Err(not_a_folder(dir));
    }
    let is_model = dir.join("config.json").symlink_metadata().is_ok();
    if !is_model && hub::repo_id(dir).is_some() {
        let snapshot = hub::snapshot(dir, None)?;
        notes.push(format!("revision {} (refs/main)", snapshot.revision));
        return Ok((snapshot.dir.clone(), Some(snapshot)));
    }
    if !is_model && dir.join("adapter_config.json").exists() {
        return Err(Error::checkpoint(format!("{} holds a PEFT adapter, not a model", shown(dir)))
            .next("give the folder of its base model"));
    }
    if !is_model {
        return Err(Error::checkpoint(format!("{} has no config.json", shown(dir)))
            .next("give the folder that holds config.json and the safetensors files"));
    }
    Ok((dir.to_path_buf(), hub::snapshot_of(dir)))
}

/// The error for a file given where a folder is wanted.
pub(super) fn not_a_folder(path: &Path) -> Error {
    let e = Error::checkpoint(format!("{} is a file, not a model folder", shown(path)));
    if path.extension().is_some_and(|x| x.eq_ignore_ascii_case("gguf")) {
        return e.next("turn it into a model folder: blockstream-tui import FILE.gguf --to DIR");
    }
    e.next("give the folder that holds it")
}

/// A broken `generation_config.json` costs only its end tokens, so it is a note; a Git-LFS pointer is a broken clone.
fn generation_config(dir: &Path, notes: &mut Vec<String>) -> Result<Option<Value>> {
    let path = dir.join("generation_config.json");
    if path.symlink_metadata().is_err() {
        return Ok(None);
    }
    match read_json(&path) {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.what().contains("Git-LFS") || e.kind() == Kind::Io => Err(e),
        Err(e) => {
            notes.push(format!("ignored: {}", e.what()));
            Ok(None)
        }
    }
}

/// Every tensor of every file, in file order and by offset; a name in two files is refused.
fn tensors(set: &WeightSet, headers: &[ReadHeader]) -> Result<Vec<TensorInfo>> {
    let mut tensors = Vec::new();
    let mut holder: HashMap<&str, usize> = HashMap::new();
    for (file, read) in headers.iter().enumerate() {
        for t in &read.header.tensors {
            if let Some(other) = holder.insert(&t.name, file) {
                return Err(index::twice(&t.name, &set.files[other].name, &set.files[file].name));
            }
            tensors.push(TensorInfo {
                name: t.name.clone(),
                dtype: t.dtype.clone(),
                shape: t.shape.clone(),
                file,
                offset: read.header.data_start + t.begin,
                bytes: t.end - t.begin,
            });
        }
    }
    Ok(tensors)
}

/// Where the index and the headers disagree. What the model needs and lacks is the inventory's to refuse.
fn index_notes(set: &WeightSet, tensors: &[TensorInfo]) -> Vec<String> {
    let mut notes = Vec::new();
    if !set.expected.is_empty() {
        let place: HashMap<&str, usize> = tensors.iter().map(|t| (t.name.as_str(), t.file)).collect();
        let wrong: Vec<&str> =
            set.expected.iter().filter(|(t, f)| place.get(t.as_str()) != Some(f)).map(|(t, _)| t.as_str()).collect();
        if !wrong.is_empty() {
            let (n, verb) = (wrong.len(), plural(wrong.len(), "tensor is", "tensors are"));
            notes.push(format!("{n} {verb} not in the file the index names: {}", list(wrong.into_iter())));
        }
        let named: std::collections::HashSet<&str> = set.expected.iter().map(|(t, _)| t.as_str()).collect();
        let extra: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).filter(|t| !named.contains(t)).collect();
        if !extra.is_empty() {
            notes.push(format!("tensors the index does not name: {}", list(extra.into_iter())));
        }
    }
    let total: u64 = tensors.iter().map(|t| t.bytes).sum();
    match &set.claimed_total {
        Some(claim) if claim.as_u64() != Some(total) => {
            let claim = clean(&claim.to_string());
            notes.push(format!(
                "the index says total_size {claim}; the headers sum to {total} ({}), which is used",
                Bytes(total)
            ));
        }
        _ => {}
    }
    notes
}

fn folder_name(dir: &Path) -> String {
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    clean(&full.file_name().unwrap_or(full.as_os_str()).to_string_lossy())
}

/// SHA-256 over the config's bytes and each file's name, size, time of change and header bytes, each with its length
/// before it.
fn fingerprint(config: &[u8], set: &WeightSet, headers: &[ReadHeader]) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(config);
    for (source, read) in set.files.iter().zip(headers) {
        part(source.name.as_bytes());
        part(&read.file_len.to_le_bytes());
        part(&read.mtime_ns.to_le_bytes());
        part(&read.json);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
