//! Checkpoints of a run: everything a resume needs, written whole or not at all.
//!
//! `checkpoint-N/` holds the adapter (PEFT's format), `optimizer.safetensors` (moments, no pickle), `trainer_state.json`
//! (transformers' names), and `checkpoint.json` with the size and SHA-256 of each file, written last. The folder is made
//! under a temporary name, synced, then renamed: a half-written checkpoint never carries the final name.

use crate::checkpoint::Dtype;
use crate::checkpoint::adapter::{self, AdapterConfig};
use crate::checkpoint::write::{Declared, SafetensorsFile};
use crate::config::resume::Settings;
use crate::error::{Error, Result};
use crate::event::StepRecord;
use crate::files;
use crate::model::AdapterLayout;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
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
    /// `step`, `epoch` and the metrics of every step, and of a long run of fewer and fewer:
    /// `metrics.jsonl` has them all.
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
    /// SHA-256 of the training rows as tokens, and of the held-out ones. Empty in older checkpoints.
    #[serde(default)]
    pub rows_sha256: String,
    /// As `rows_sha256`.
    #[serde(default)]
    pub eval_sha256: String,
    /// Every setting of the run. Empty in older checkpoints.
    #[serde(default)]
    pub settings: Settings,
}

/// Entries of [`TrainerState::log_history`] at most: the memory of a run and the size of a checkpoint don't grow with
/// its steps. Past that every second one goes.
const LOGGED: usize = 2_000;

impl TrainerState {
    /// The same, after the steps that `old` has done.
    #[must_use]
    pub fn going_on_from(self, old: &TrainerState) -> TrainerState {
        TrainerState {
            epoch: old.epoch,
            global_step: old.global_step,
            num_input_tokens_seen: old.num_input_tokens_seen,
            log_history: old.log_history.clone(),
            optimizer_updates: old.optimizer_updates,
            ..self
        }
    }

    /// Adds a finished step.
    pub fn log(&mut self, s: &StepRecord) {
        self.global_step = s.step;
        self.epoch = s.epoch;
        self.num_input_tokens_seen += s.tokens;
        if self.log_history.len() >= LOGGED {
            let mut n = 0;
            self.log_history.retain(|_| {
                n += 1;
                n % 2 == 1
            });
        }
        let mut entry = serde_json::json!({ "step": s.step, "epoch": s.epoch });
        if let (Some(entry), serde_json::Value::Object(metrics)) = (entry.as_object_mut(), serde_json::json!(s.metrics))
        {
            entry.extend(metrics);
        }
        self.log_history.push(entry);
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

/// Told how many bytes more are written; an error ends the work.
pub type Told<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// Writes `checkpoint-<step>` under `run_dir`; returns its path and bytes.
///
/// # Errors
/// The disk refuses, or what `told` says; an earlier checkpoint is untouched and the temporary folder is removed.
pub fn save(
    run_dir: &Path,
    config: &AdapterConfig,
    layout: &AdapterLayout,
    tensors: &Tensors,
    state: &TrainerState,
    told: Told<'_>,
) -> Result<(PathBuf, u64)> {
    let name = format!("checkpoint-{}", state.global_step);
    let (tmp, path) = (run_dir.join(format!("{name}.tmp")), run_dir.join(name));
    let _ = std::fs::remove_dir_all(&tmp);
    std::fs::create_dir(&tmp).map_err(|e| Error::io("create", &tmp, e))?;
    let written = fill(&tmp, config, layout, tensors, state, told).and_then(|bytes| {
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
    told: Told<'_>,
) -> Result<u64> {
    told(adapter::write(dir, config, &layout.to_peft(&tensors.params))?)?;
    write_moments(&dir.join("optimizer.safetensors"), layout, tensors, told)?;
    let json = |v: &TrainerState| serde_json::to_vec_pretty(v).map_err(|e| Error::run(format!("trainer state: {e}")));
    files::replace(&dir.join("trainer_state.json"), &json(state)?)?;
    let mut manifest = Manifest { schema: SCHEMA, step: state.global_step, files: BTreeMap::new() };
    let mut total = 0;
    let template = config.chat_template.is_some().then_some(adapter::TEMPLATE_FILE);
    let names = ["adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "trainer_state.json"];
    for file in names.into_iter().chain(template) {
        let facts = facts(&dir.join(file), &mut || told(0))?;
        total += facts.bytes;
        manifest.files.insert(file.into(), facts);
    }
    let text = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::run(format!("manifest: {e}")))?;
    files::replace(&dir.join("checkpoint.json"), &text)?;
    files::sync_dir(dir)?;
    Ok(total + text.len() as u64)
}

/// Size and hash of a file; `stop` is asked before each piece.
fn facts(path: &Path, stop: &mut dyn FnMut() -> Result<()>) -> Result<FileFacts> {
    let failed = |e| Error::io("read back", path, e);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 4 << 20]);
    loop {
        stop()?;
        let n = file.read(&mut piece).map_err(failed)?;
        if n == 0 {
            let sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
            return Ok(FileFacts { bytes, sha256 });
        }
        hash.update(&piece[..n]);
        bytes += n as u64;
    }
}

fn le_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn write_moments(path: &Path, layout: &AdapterLayout, tensors: &Tensors, told: Told<'_>) -> Result<()> {
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
        let bytes = le_bytes(&t.data);
        file.tensor(name, &bytes)?;
        told(bytes.len() as u64)?;
    }
    file.finish()?;
    Ok(())
}

/// What a checkpoint says of its run, after checking every file against its manifest; `stop` is asked meanwhile.
///
/// # Errors
/// Anything is missing, cut or changed; what `stop` says.
pub fn state(dir: &Path, stop: &dyn Fn() -> Result<()>) -> Result<TrainerState> {
    check_while(dir, stop)?;
    let path = dir.join("trainer_state.json");
    let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    serde_json::from_slice(&text).map_err(|e| Error::checkpoint(format!("'{}': {e}", path.display())))
}

/// The tensors of a checkpoint that has been checked, in `layout`.
///
/// # Errors
/// A file can't be read; the adapter has another shape.
pub fn tensors(dir: &Path, layout: &AdapterLayout) -> Result<Tensors> {
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
    Ok(Tensors { params: layout.from_peft(&params)?, m: moments("exp_avg")?, v: moments("exp_avg_sq")? })
}

/// Checks a checkpoint folder against its manifest.
///
/// # Errors
/// What is missing, cut or changed.
pub fn check(dir: &Path) -> Result<u64> {
    check_while(dir, &|| Ok(()))
}

fn check_while(dir: &Path, stop: &dyn Fn() -> Result<()>) -> Result<u64> {
    let path = dir.join("checkpoint.json");
    let text = std::fs::read(&path)
        .map_err(|e| Error::io("read", &path, e).next("the checkpoint is incomplete; use an earlier one"))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| {
        Error::checkpoint(format!("'{}' is damaged: {e}", path.display())).next("use an earlier checkpoint")
    })?;
    for (name, want) in &manifest.files {
        let got = facts(&dir.join(name), &mut || stop())?;
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

/// Clears away what a killed process left half-written in `run_dir`. A whole folder that was only moved out of the way of
/// its successor gets its name back where that never came.
pub fn sweep(run_dir: &Path) {
    for entry in std::fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(stem) = name.to_str().and_then(|n| n.strip_suffix(".tmp")) else { continue };
        let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
        // What can't be cleared away costs space, not correctness.
        let _ = match stem.strip_suffix(".old") {
            Some(whole) if is_dir && !run_dir.join(whole).exists() => std::fs::rename(&path, run_dir.join(whole)),
            _ if is_dir && (stem.starts_with("checkpoint-") || stem.starts_with("adapter")) => {
                std::fs::remove_dir_all(&path)
            }
            _ if !is_dir && stem.starts_with('.') => std::fs::remove_file(&path),
            _ => Ok(()),
        };
    }
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
    fn case_fo_61_the_history_of_a_checkpoint_does_not_grow_with_the_steps() {
        let mut state = TrainerState::default();
        for step in 1..=20_000 {
            state.log(&StepRecord { step, ..StepRecord::default() });
            assert!(state.log_history.len() <= LOGGED);
        }
        let steps: Vec<u64> = state.log_history.iter().filter_map(|s| s["step"].as_u64()).collect();
        assert!(steps.len() > LOGGED / 3 && steps.is_sorted());
        assert_eq!((steps.first(), steps.last()), (Some(&1), Some(&20_000)));
        assert_eq!(state.global_step, 20_000);
    }

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

    #[test]
    fn case_fo_37b_what_a_kill_left_half_written_is_swept_and_what_is_whole_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for folder in [
            "checkpoint-4",
            "checkpoint-4.old.tmp",
            "checkpoint-6.old.tmp",
            "checkpoint-8.tmp",
            "adapter.tmp",
            "my.tmp",
        ] {
            std::fs::create_dir(at(folder)).unwrap();
            std::fs::write(at(folder).join("file"), folder).unwrap();
        }
        for file in [".report.json.77-3.tmp", "notes.tmp", "metrics.jsonl"] {
            std::fs::write(at(file), "").unwrap();
        }
        sweep(dir.path());
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["checkpoint-4", "checkpoint-6", "metrics.jsonl", "my.tmp", "notes.tmp"]);
        let text = |name: &str| std::fs::read_to_string(at(name).join("file")).unwrap();
        assert_eq!(
            (text("checkpoint-4"), text("checkpoint-6")),
            ("checkpoint-4".into(), "checkpoint-6.old.tmp".into())
        );
    }
}
