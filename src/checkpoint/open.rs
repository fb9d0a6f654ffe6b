//! Opening a model folder: files, headers, config, inventory, tokenizer size and fingerprint, in that order.

use super::files::{SMALL_JSON, bom_note, parse_json, read_json, read_small, shown};
use super::header::{self, ReadHeader};
use super::index::{self, WeightSet, list, plural};
use super::types::{Checkpoint, TensorInfo, WeightFile};
use super::{families, hub, inventory, tie, vocab};
use crate::error::{Error, Kind, Result};
use crate::text::clean;
use crate::units::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
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
    notes.extend(bom_note("config.json", &config_bytes));
    let generation = generation_config(&dir, &mut notes)?;
    // Families first: a model this program can't train should say so before its shards are asked for.
    let mut read = families::read(&config, generation.as_ref()).map_err(|e| at_path(e, &config_path))?;
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
    notes.extend(links_out(&dir, snapshot.as_ref(), &set, &files));
    let tensors = tensors(&set, &headers, &mut notes)?;
    read.derive_head_dim(&tensors);
    if depth == Depth::Whole && read.arch.tied && set.files.iter().all(|s| s.header_only.is_none()) {
        read.notes.extend(tie::untie(&mut read.arch, &tensors, &files)?);
    }
    notes.extend(read.notes.iter().cloned());
    notes.extend(index_notes(&set, &tensors));
    let found = inventory::assemble(&tensors, &read)?;
    refuse_unheld(&set, &tensors, &found.prefix)?;
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
        class_prefix: read.class_prefix.into(),
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
        let config = read_json::<Value>(&dir.join("adapter_config.json")).ok();
        let base = config.as_ref().and_then(|c| c.get("base_model_name_or_path")).and_then(Value::as_str);
        let next = match base.filter(|b| !b.is_empty()) {
            Some(base) => format!("give the folder or id of its base model, '{}'", clean(base)),
            None => "give the folder of its base model".into(),
        };
        return Err(Error::checkpoint(format!("{} holds a PEFT adapter, not a model", shown(dir))).next(next));
    }
    if !is_model {
        return Err(Error::checkpoint(format!("{} has no config.json", shown(dir)))
            .next("give the folder that holds config.json and the safetensors files"));
    }
    let snapshot = hub::snapshot_of(dir);
    notes.extend(snapshot.as_ref().map(|s| format!("revision {}", s.revision)));
    Ok((dir.to_path_buf(), snapshot))
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

/// Every tensor of every file, in file order and by offset. Of a name in two files the one that the index maps counts.
fn tensors(set: &WeightSet, headers: &[ReadHeader], notes: &mut Vec<String>) -> Result<Vec<TensorInfo>> {
    let mapped: HashMap<&str, usize> = set.expected.iter().map(|(t, f)| (t.as_str(), *f)).collect();
    let mut holders: HashMap<&str, Vec<usize>> = HashMap::new();
    for (file, read) in headers.iter().enumerate() {
        read.header.tensors.iter().for_each(|t| holders.entry(&t.name).or_default().push(file));
    }
    let (mut passed, mut skipped) = (Vec::new(), HashSet::new());
    let mut tensors = Vec::new();
    for (file, read) in headers.iter().enumerate() {
        for t in &read.header.tensors {
            let held = &holders[t.name.as_str()];
            if held.len() > 1 {
                match mapped.get(t.name.as_str()) {
                    Some(right) if *right == file => {}
                    Some(right) if held.contains(right) => {
                        if skipped.insert((t.name.as_str(), file)) {
                            passed.push((t.name.as_str(), file));
                        }
                        continue;
                    }
                    _ => return Err(index::twice(&t.name, &set.files[held[0]].name, &set.files[held[1]].name)),
                }
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
    if let Some((name, file)) = passed.first() {
        let more = if passed.len() > 1 { format!(" (and {} more such)", passed.len() - 1) } else { String::new() };
        notes.push(format!(
            "tensor '{}' is also in '{}'{more}: the one in the file that the index names is used",
            clean(name),
            clean(&set.files[*file].name)
        ));
    }
    Ok(tensors)
}

/// The error with the path of the config that it is about.
fn at_path(e: Error, path: &Path) -> Error {
    let Some(what) = e.what().strip_prefix("config.json: ") else {
        return e;
    };
    let with_path = Error::new(e.kind(), format!("{}: {what}", shown(path)));
    match e.advice() {
        Some(next) => with_path.next(next),
        None => with_path,
    }
}

/// Refuses a tensor of a decoder block that the index names and no file holds: without it this is another model.
fn refuse_unheld(set: &WeightSet, tensors: &[TensorInfo], prefix: &str) -> Result<()> {
    let held: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let of_block = |name: &str| name.strip_prefix(prefix).is_some_and(|n| n.starts_with("layers."));
    let unheld = |t: &str| of_block(t) && !t.ends_with(".rotary_emb.inv_freq") && !held.contains(t);
    let lost: Vec<&str> = set.expected.iter().map(|(t, _)| t.as_str()).filter(|t| unheld(t)).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let what = format!("no file holds {}, which the index names", list(lost.into_iter()));
    Err(Error::checkpoint(what).next("fetch the whole model, or the index that belongs to these files"))
}

/// A note for weights that a link takes from outside the model's folder; the hub cache's own links are its layout.
fn links_out(dir: &Path, snapshot: Option<&hub::Snapshot>, set: &WeightSet, files: &[WeightFile]) -> Option<String> {
    let home = if snapshot.is_some() { dir.parent()?.parent()? } else { dir };
    let home = home.canonicalize().ok()?;
    let mut out = set.files.iter().zip(files).filter(|(s, f)| s.header_only.is_none() && !f.path.starts_with(&home));
    let (source, file) = out.next()?;
    let more = match out.count() {
        0 => String::new(),
        n => format!(" (and {n} more such)"),
    };
    Some(format!("'{}' is a link out of the model's folder, to {}{more}", clean(&source.name), shown(&file.path)))
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

/// SHA-256 over the config's bytes and each file's name, size, header bytes and samples of its tensors, each with its
/// length before it. Contents only: a copied or moved folder is the same base. `c1-` marks that; older fingerprints
/// held times of change.
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
        part(&read.json);
        part(&read.samples);
    }
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    format!("c1-{hex}")
}
