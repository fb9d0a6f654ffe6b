//! From what the user typed, or from nothing, to model folders: `resolve` and `list`.

use super::files::{read_json, shown};
use super::open::{Depth, not_a_folder, open};
use super::{families, hub, index};
use crate::engine::ModelEntry;
use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::Bytes;
use serde_json::Value;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Most models a list shows; a folder with more is not a folder of models.
const MAX_LISTED: usize = 500;

/// Where models of the hub are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Caches<'a> {
    /// Whole models: the hub cache.
    pub models: Option<&'a Path>,
    /// Headers of models that are not here, in the same layout.
    pub headers: Option<&'a Path>,
}

/// [`super::resolve`] with the caches passed in.
pub(super) fn resolve_in(model: &str, caches: Caches<'_>) -> Result<PathBuf> {
    let path = Path::new(model);
    if model.is_empty() {
        return Err(Error::usage("no model given").next("give a model folder or a hub id"));
    }
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => return Err(not_a_folder(path)),
        // A snapshot is resolved to its folder here, so that everything later reads the same commit.
        Ok(_) if hub::repo_id(path).is_some() && !path.join("config.json").exists() => {
            return Ok(hub::snapshot(path, None)?.dir);
        }
        Ok(_) => return Ok(path.to_path_buf()),
        Err(_) => {}
    }
    let (id, revision) = model.split_once('@').map_or((model, None), |(id, r)| (id, Some(r)));
    if !hub::is_id(id) {
        return Err(
            Error::checkpoint(format!("{} does not exist", shown(path))).next("give a model folder or a hub id")
        );
    }
    let repo = |cache: &Path| Some(cache.join(hub::repo_folder(id))).filter(|r| r.is_dir());
    let found = caches.models.and_then(repo).map(|repo| hub::snapshot(&repo, revision));
    if let Some(Ok(snapshot)) = &found
        && index::weights(&snapshot.dir).is_ok()
    {
        return Ok(snapshot.dir.clone());
    }
    // A snapshot without its weights is less than the headers of all of them.
    if let Some(repo) = caches.headers.and_then(repo)
        && let Ok(snapshot) = hub::snapshot(&repo, Some(revision.unwrap_or("main")))
    {
        return Ok(snapshot.dir);
    }
    let looked = match (found, caches.models) {
        (Some(snapshot), _) => return Ok(snapshot?.dir),
        (None, Some(cache)) => format!("no such folder, and not in the hub cache {}", shown(cache)),
        (None, None) => "no such folder, and there is no hub cache (no home folder)".into(),
    };
    Err(Error::checkpoint(format!("'{}' is not here: {looked}", clean(model)))
        .next(format!("fetch it with `blockstream-tui download {}`, or give a model folder", clean(model))))
}

/// [`super::list`] with the caches passed in.
pub(super) fn list_in(places: &[PathBuf], caches: Caches<'_>) -> Vec<ModelEntry> {
    let mut found: Vec<(PathBuf, &str)> = Vec::new();
    for place in places {
        let origin = if place.components().any(|c| c.as_os_str() == ".demo") { "demo" } else { "folder" };
        if is_model(place) {
            found.push((place.clone(), origin));
            continue;
        }
        let Ok(entries) = std::fs::read_dir(place) else {
            continue;
        };
        let mut inside: Vec<PathBuf> =
            entries.flatten().take(20 * MAX_LISTED).map(|e| e.path()).filter(|p| is_model(p)).collect();
        inside.sort();
        found.extend(inside.into_iter().map(|p| (p, origin)));
    }
    found.extend(caches.models.map(hub::repos).unwrap_or_default().into_iter().map(|p| (p, "hub cache")));
    let mut seen = HashSet::new();
    found.retain(|(path, _)| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    found.truncate(MAX_LISTED);
    let mut entries: Vec<ModelEntry> = found.into_iter().map(|(path, origin)| entry(path, origin)).collect();
    let away = away(caches);
    // A half-downloaded model is shown once: as one whose headers are here.
    entries.retain(|e| !(e.origin == "hub cache" && e.problem.is_some() && away.iter().any(|a| a.name == e.name)));
    entries.extend(away);
    entries.truncate(MAX_LISTED);
    entries
}

/// Models of which only the headers are here.
fn away(caches: Caches<'_>) -> Vec<ModelEntry> {
    let mut out = Vec::new();
    for repo in caches.headers.map(hub::repos).unwrap_or_default() {
        for (reference, dir) in hub::named_snapshots(&repo) {
            let Some(id) = hub::repo_id(&repo) else { continue };
            let model = reference.map_or(id.clone(), |r| format!("{id}@{r}"));
            // Since then it may have been downloaded.
            if resolve_in(&model, caches).is_ok_and(|found| found == dir) {
                out.push(ModelEntry {
                    path: model.clone().into(),
                    name: model,
                    origin: "hub".into(),
                    ..entry(dir, "hub")
                });
            }
        }
    }
    out
}

/// Whether `dir` looks like a model folder: worth an entry, if only to say what is wrong with it.
fn is_model(dir: &Path) -> bool {
    if !dir.is_dir() {
        return false;
    }
    let has = |name: &str| dir.join(name).symlink_metadata().is_ok();
    (has("config.json") || has(index::SINGLE) || has(index::INDEX) || hub::repo_id(dir).is_some())
        && !has("adapter_config.json")
}

fn entry(path: PathBuf, origin: &str) -> ModelEntry {
    let hub_name = hub::repo_id(&path).or_else(|| hub::snapshot_of(&path).map(|s| s.id));
    let origin = if hub_name.is_some() { "hub cache" } else { origin }.to_string();
    match open(&path, Depth::Weights) {
        Ok(c) => ModelEntry {
            family: c.family(),
            params: c.params(),
            bytes: c.total_bytes(),
            n_blocks: c.blocks.len(),
            not_here: c.not_here,
            problem: c
                .plan_only
                .or_else(|| c.not_here.then(|| "only headers are here: can be planned, not trained".into())),
            name: c.name,
            path,
            origin,
        },
        Err(e) => {
            let inner = hub::repo_id(&path).and_then(|_| hub::snapshot(&path, None).ok()).map(|s| s.dir);
            let dir = inner.as_deref().unwrap_or(&path);
            let config: Option<Value> = read_json(&dir.join("config.json")).ok();
            let file_name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            ModelEntry {
                name: hub_name.unwrap_or_else(|| clean(&file_name)),
                family: config.as_ref().and_then(families::model_type).unwrap_or_else(|| "–".into()),
                params: 0,
                bytes: weight_bytes(dir),
                n_blocks: 0,
                problem: Some(e.to_string()),
                not_here: false,
                path,
                origin,
            }
        }
    }
}

/// Bytes of the safetensors files directly in `dir`, each file once however many links lead to it.
fn weight_bytes(dir: &Path) -> Bytes {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Bytes::ZERO;
    };
    let paths = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "safetensors"));
    let files: HashSet<PathBuf> = paths.filter_map(|p| p.canonicalize().ok()).collect();
    let lengths = files.iter().filter_map(|p| Some(std::fs::metadata(p).ok()?.len()));
    Bytes(lengths.fold(0, u64::saturating_add))
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
