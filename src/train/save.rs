//! Checkpoints of a run: everything a resume needs, written whole or not at all.
//!
//! `checkpoint-N/` holds the adapter (PEFT's format), `optimizer.safetensors` (moments, no pickle), `trainer_state.json`
//! (transformers' names), and `checkpoint.json` with the size and SHA-256 of each file, written last. The folder is made
//! under a temporary name, synced, then renamed: a half-written checkpoint never carries the final name.

use crate::checkpoint::Dtype;
use crate::checkpoint::adapter::{self, AdapterConfig};
use crate::checkpoint::write::{Declared, SafetensorsFile};
use crate::error::{Error, Result};
use crate::event::StepRecord;
use crate::files;
use crate::model::AdapterLayout;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Version of `checkpoint.json`.
const SCHEMA: u32 = 1;

/// What a resume must find again besides tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Passes over the data.
    pub epoch: f64,
    /// Steps complete.
    pub global_step: u64,
    /// Steps the run was to have.
    pub max_steps: u64,
    /// Tokens seen.
    pub num_input_tokens_seen: u64,
    /// One entry per step: `step, epoch, loss, grad_norm, learning_rate`.
    pub log_history: Vec<serde_json::Value>,
    /// Updates of the optimizer (skipped steps don't count).
    pub optimizer_updates: u64,
    /// Run seed.
    pub seed: u64,
    /// The base's fingerprint.
    pub base_fingerprint: String,
    /// SHA-256 of the training data.
    pub data_sha256: String,
    /// Rows per optimizer step.
    pub rows_per_step: usize,
    /// Date the chat template saw: a resume on another day must see the same.
    pub template_date: String,
}

impl TrainerState {
    /// Adds a finished step.
    pub fn log(&mut self, s: &StepRecord) {
        let finite = |x: f64| if x.is_finite() { serde_json::json!(x) } else { serde_json::Value::Null };
        self.global_step = s.step;
        self.epoch = s.epoch;
        self.num_input_tokens_seen += s.tokens;
        self.log_history.push(serde_json::json!({
            "step": s.step, "epoch": s.epoch, "loss": finite(s.loss), "grad_norm": finite(s.grad_norm),
            "learning_rate": s.learning_rate,
        }));
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    schema: u32,
    step: u64,
    files: BTreeMap<String, FileFacts>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct FileFacts {
    bytes: u64,
    sha256: String,
}

/// Tensors of a checkpoint, flat in the adapter's layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensors {
    /// Adapter masters.
    pub params: Vec<f32>,
    /// First moments.
    pub m: Vec<f32>,
    /// Second moments.
    pub v: Vec<f32>,
}

/// Writes `checkpoint-<step>` under `run_dir`; returns its path and bytes.
///
/// # Errors
/// The disk refuses; an earlier checkpoint is untouched and the temporary folder is removed.
pub fn save(
    run_dir: &Path,
    config: &AdapterConfig,
    layout: &AdapterLayout,
    tensors: &Tensors,
    state: &TrainerState,
) -> Result<(PathBuf, u64)> {
    let name = format!("checkpoint-{}", state.global_step);
    let (tmp, path) = (run_dir.join(format!("{name}.tmp")), run_dir.join(name));
    let _ = std::fs::remove_dir_all(&tmp);
    std::fs::create_dir(&tmp).map_err(|e| Error::io("create", &tmp, e))?;
    let written = fill(&tmp, config, layout, tensors, state).and_then(|bytes| {
        put(&tmp, &path, run_dir)?;
        Ok(bytes)
    });
    if written.is_err() {
        let _ = std::fs::remove_dir_all(&tmp);
    }
    written.map(|bytes| (path, bytes))
}

/// Gives the whole folder `tmp` its name `path`. One that has the name is exchanged for it in one step and deleted after.
fn put(tmp: &Path, path: &Path, parent: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if path.exists() && renameat_with(CWD, tmp, CWD, path, RenameFlags::EXCHANGE).is_ok() {
        files::sync_dir(parent)?;
        let _ = std::fs::remove_dir_all(tmp);
        return Ok(());
    }
    if path.exists() {
        // A file system that can't exchange: the old folder is moved aside, so that one of the two always stands.
        let old = path.with_extension("old.tmp");
        let _ = std::fs::remove_dir_all(&old);
        std::fs::rename(path, &old).map_err(|e| Error::io("replace", path, e))?;
        if let Err(e) = std::fs::rename(tmp, path) {
            let _ = std::fs::rename(&old, path);
            return Err(Error::io("rename", tmp, e));
        }
        let _ = std::fs::remove_dir_all(&old);
    } else {
        std::fs::rename(tmp, path).map_err(|e| Error::io("rename", tmp, e))?;
    }
    files::sync_dir(parent)
}

/// The step that a checkpoint's folder name tells.
#[must_use]
pub fn step_of(checkpoint: &Path) -> Option<u64> {
    checkpoint.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok()
}

fn fill(
    dir: &Path,
    config: &AdapterConfig,
    layout: &AdapterLayout,
    tensors: &Tensors,
    state: &TrainerState,
) -> Result<u64> {
    adapter::write(dir, config, &layout.to_peft(&tensors.params))?;
    write_moments(&dir.join("optimizer.safetensors"), layout, tensors)?;
    let json = |v: &TrainerState| serde_json::to_vec_pretty(v).map_err(|e| Error::run(format!("trainer state: {e}")));
    files::replace(&dir.join("trainer_state.json"), &json(state)?)?;
    let mut manifest = Manifest { schema: SCHEMA, step: state.global_step, files: BTreeMap::new() };
    let mut total = 0;
    for file in ["adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "trainer_state.json"] {
        let facts = facts(&dir.join(file))?;
        total += facts.bytes;
        manifest.files.insert(file.into(), facts);
    }
    let text = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::run(format!("manifest: {e}")))?;
    files::replace(&dir.join("checkpoint.json"), &text)?;
    files::sync_dir(dir)?;
    Ok(total + text.len() as u64)
}

fn facts(path: &Path) -> Result<FileFacts> {
    let bytes = std::fs::read(path).map_err(|e| Error::io("read back", path, e))?;
    let hash: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    Ok(FileFacts { bytes: bytes.len() as u64, sha256: hash })
}

fn le_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn write_moments(path: &Path, layout: &AdapterLayout, tensors: &Tensors) -> Result<()> {
    let (m, v) = (layout.to_peft(&tensors.m), layout.to_peft(&tensors.v));
    let named: Vec<_> = m
        .iter()
        .map(|t| (format!("exp_avg.{}", t.key), t))
        .chain(v.iter().map(|t| (format!("exp_avg_sq.{}", t.key), t)))
        .collect();
    let declared: Vec<_> = named
        .iter()
        .map(|(name, t)| {
            let shape: Vec<u64> = t.shape.iter().map(|&d| d as u64).collect();
            Declared::new(name.clone(), Dtype::F32, &shape)
        })
        .collect();
    let mut file = SafetensorsFile::create(path, &declared, &[])?;
    for (name, t) in &named {
        file.tensor(name, &le_bytes(&t.data))?;
    }
    file.finish()?;
    Ok(())
}

/// Reads a checkpoint back after checking every file against its manifest.
///
/// # Errors
/// Anything is missing, cut or changed; the adapter has another shape.
pub fn load(dir: &Path, layout: &AdapterLayout) -> Result<(Tensors, TrainerState)> {
    check(dir)?;
    let (_, params) = adapter::read(dir)?;
    let path = dir.join("optimizer.safetensors");
    let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let file = safetensors::SafeTensors::deserialize(&bytes)
        .map_err(|e| Error::checkpoint(format!("'{}': {e}", path.display())))?;
    let moments = |prefix: &str| {
        let tensors = layout
            .to_peft(&vec![0.0; layout.len])
            .into_iter()
            .map(|mut t| {
                let view = file
                    .tensor(&format!("{prefix}.{}", t.key))
                    .map_err(|_| Error::checkpoint(format!("'{}' has no '{prefix}.{}'", path.display(), t.key)))?;
                if view.shape() != t.shape {
                    return Err(Error::checkpoint(format!("'{prefix}.{}' has another shape", t.key)));
                }
                t.data = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                Ok(t)
            })
            .collect::<Result<Vec<_>>>()?;
        layout.from_peft(&tensors)
    };
    let tensors = Tensors { params: layout.from_peft(&params)?, m: moments("exp_avg")?, v: moments("exp_avg_sq")? };
    let path = dir.join("trainer_state.json");
    let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let state = serde_json::from_slice(&text).map_err(|e| Error::checkpoint(format!("'{}': {e}", path.display())))?;
    Ok((tensors, state))
}

/// Checks a checkpoint folder against its manifest.
///
/// # Errors
/// What is missing, cut or changed.
pub fn check(dir: &Path) -> Result<u64> {
    let path = dir.join("checkpoint.json");
    let text = std::fs::read(&path)
        .map_err(|e| Error::io("read", &path, e).next("the checkpoint is incomplete; use an earlier one"))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| {
        Error::checkpoint(format!("'{}' is damaged: {e}", path.display())).next("use an earlier checkpoint")
    })?;
    for (name, want) in &manifest.files {
        let got = facts(&dir.join(name))?;
        if got != *want {
            return Err(Error::checkpoint(format!(
                "'{}' is damaged: {} bytes, {} expected, or other content",
                dir.join(name).display(),
                got.bytes,
                want.bytes
            ))
            .next("use an earlier checkpoint"));
        }
    }
    Ok(manifest.step)
}

/// Checkpoints of a run, oldest first, by step.
#[must_use]
pub fn list(run_dir: &Path) -> Vec<(u64, PathBuf)> {
    let mut found: Vec<(u64, PathBuf)> = std::fs::read_dir(run_dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| {
            let path = e.path();
            Some((step_of(&path)?, path))
        })
        .collect();
    found.sort();
    found
}

/// The newest whole checkpoint of a run, and why newer ones were passed over. Nothing is deleted.
#[must_use]
pub fn newest(run_dir: &Path) -> (Option<PathBuf>, Vec<String>) {
    let mut skipped = Vec::new();
    for (_, path) in list(run_dir).into_iter().rev() {
        match check(&path) {
            Ok(_) => return (Some(path), skipped),
            Err(e) => skipped.push(e.to_string()),
        }
    }
    (None, skipped)
}

/// Moves checkpoints later than `step` into a folder of their own under `run_dir`: the run goes on from `step` by
/// another branch. Returns that folder, if there was anything to move.
///
/// # Errors
/// The disk refuses.
pub fn set_aside_later(run_dir: &Path, step: u64) -> Result<Option<PathBuf>> {
    let later: Vec<_> = list(run_dir).into_iter().filter(|(s, _)| *s > step).collect();
    if later.is_empty() {
        return Ok(None);
    }
    let name = |n: u32| run_dir.join(format!("set-aside-{n}-after-step-{step}"));
    let aside = (1..).map(name).find(|p| !p.exists()).unwrap_or_else(|| name(0));
    std::fs::create_dir(&aside).map_err(|e| Error::io("create", &aside, e))?;
    for (s, path) in later {
        std::fs::rename(&path, aside.join(format!("checkpoint-{s}"))).map_err(|e| Error::io("move", &path, e))?;
    }
    files::sync_dir(run_dir)?;
    Ok(Some(aside))
}

/// Deletes the oldest checkpoints beyond `keep` (0 keeps all), never `written`, the one just completed.
pub fn prune(run_dir: &Path, keep: usize, written: &Path) {
    let mut all = list(run_dir);
    all.retain(|(_, path)| path != written);
    if keep > 0 && all.len() >= keep {
        for (_, path) in &all[..all.len() + 1 - keep] {
            // A checkpoint that can't be deleted costs space, not correctness.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// Writes the run's final `adapter/` folder, replacing an earlier one; returns its path and bytes.
///
/// # Errors
/// The disk refuses.
pub fn save_adapter(
    run_dir: &Path,
    config: &AdapterConfig,
    layout: &AdapterLayout,
    params: &[f32],
) -> Result<(PathBuf, u64)> {
    let (tmp, path) = (run_dir.join("adapter.tmp"), run_dir.join("adapter"));
    let _ = std::fs::remove_dir_all(&tmp);
    std::fs::create_dir(&tmp).map_err(|e| Error::io("create", &tmp, e))?;
    let written = adapter::write(&tmp, config, &layout.to_peft(params)).and_then(|bytes| {
        put(&tmp, &path, run_dir)?;
        Ok(bytes)
    });
    if written.is_err() {
        let _ = std::fs::remove_dir_all(&tmp);
    }
    written.map(|bytes| (path, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_fo_18b_a_folder_that_exists_is_exchanged_and_no_leftover_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (tmp, path) = (dir.path().join("checkpoint-2.tmp"), dir.path().join("checkpoint-2"));
        for (folder, text) in [(&tmp, "new"), (&path, "old")] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("file"), text).unwrap();
        }
        put(&tmp, &path, dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
