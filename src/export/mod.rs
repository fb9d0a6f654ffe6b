//! Takes a finished run to other programs: its PEFT adapter, or a recipe that repeats it elsewhere.

mod recipe;
mod yaml;

use crate::checkpoint::adapter;
use crate::error::{Error, Result};
use crate::files;
use std::fs;
use std::path::{Path, PathBuf};

/// What [`export`] makes, with a line for help and menus.
pub const KINDS: [(&str, &str); 4] = [
    ("peft", "the LoRA adapter, as Python PEFT loads it"),
    ("peft-compat", "the same with the rsLoRA factor baked into alpha, for programs that ignore use_rslora"),
    ("axolotl", "an axolotl config that repeats the run"),
    ("llamafactory", "a LLaMA-Factory config and dataset_info.json that repeat the run"),
];

/// Kinds that people ask for and that this version doesn't make, with the nearest thing that works.
const NOT_YET: [(&str, &str); 5] = [
    ("merged", "export peft, load it with PEFT and call merge_and_unload()"),
    ("gguf", "export peft, then llama.cpp's convert_lora_to_gguf.py makes a GGUF adapter of it"),
    ("ollama", "export peft: a Modelfile takes the adapter's folder after ADAPTER"),
    ("mlx", "export peft, and merge it in Python before converting"),
    ("full", "only LoRA runs exist in this version: export peft"),
];

/// Exports the run in `run_dir` as `kind` (see [`KINDS`]) inside its own folder; returns what to hand on.
///
/// `peft` is the run's own adapter, checked; nothing is copied.
///
/// # Errors
/// Unknown kind (names those that exist), no adapter or config in the run, or the disk refuses.
pub fn export(run_dir: &Path, kind: &str) -> Result<PathBuf> {
    known(kind)?;
    match kind {
        "peft" => {
            let dir = adapter_dir(run_dir)?;
            adapter::read(&dir)?;
            Ok(dir)
        }
        other => make(run_dir, other, &run_dir.join(format!("export-{other}"))),
    }
}

/// As [`export`], into the folder `dest`, which must not exist or be empty.
///
/// # Errors
/// As [`export`], and `dest` holds something.
pub fn export_to(run_dir: &Path, kind: &str, dest: &Path) -> Result<PathBuf> {
    known(kind)?;
    let taken = match fs::read_dir(dest) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => dest.exists(),
    };
    if taken {
        return Err(Error::usage(format!("'{}' holds something already", dest.display()))
            .next("choose a folder that doesn't exist yet"));
    }
    make(run_dir, kind, dest)
}

/// Whether the run has an adapter that adds nothing to its base: every B is zero.
#[must_use]
pub fn changes_nothing(run_dir: &Path) -> bool {
    let read = adapter_dir(run_dir).and_then(|dir| adapter::read(&dir));
    read.is_ok_and(|(_, tensors)| !adapter::changes_something(&tensors))
}

fn known(kind: &str) -> Result<()> {
    if KINDS.iter().any(|(name, _)| *name == kind) {
        return Ok(());
    }
    if let Some((name, instead)) = NOT_YET.iter().find(|(name, _)| *name == kind) {
        return Err(Error::usage(format!("export to '{name}' is not in this version")).next(*instead));
    }
    let names = KINDS.map(|(name, _)| name);
    let shown = crate::text::clean(kind);
    let hint = crate::config::nearest(kind, names).map_or(String::new(), |n| format!(" (did you mean '{n}'?)"));
    Err(Error::usage(format!("there is no export '{shown}'{hint}")).next(format!("choose one of {}", names.join(", "))))
}

fn make(run_dir: &Path, kind: &str, dest: &Path) -> Result<PathBuf> {
    if kind.starts_with("peft") {
        let from = adapter_dir(run_dir)?;
        let (config, tensors) = adapter::read(&from)?;
        if kind == "peft" {
            copy_adapter(&from, dest)?;
            return Ok(dest.to_path_buf());
        }
        let plain = config.without_rslora();
        let note = if config.use_rslora {
            format!(
                "The rsLoRA factor is baked into alpha: {} = {} × sqrt({}). Programs that ignore `use_rslora` \
                 compute the same with it.",
                plain.lora_alpha, config.lora_alpha, config.r
            )
        } else {
            "This run didn't use rsLoRA: the adapter is the same as its PEFT export.".to_string()
        };
        adapter::write_noted(dest, &plain, &tensors, &[&note])?;
        return Ok(dest.to_path_buf());
    }
    let recipe = recipe::Recipe::read(run_dir)?;
    fs::create_dir_all(dest).map_err(|e| Error::io("create", dest, e))?;
    let (name, text) = if kind == "axolotl" {
        ("config.yaml", recipe.axolotl())
    } else {
        files::replace(&dest.join("dataset_info.json"), recipe.dataset_info().as_bytes())?;
        ("train.yaml", recipe.llamafactory())
    };
    let path = dest.join(name);
    files::replace(&path, text.as_bytes())?;
    Ok(path)
}

/// Copies the adapter's files byte for byte, the config last: it makes the folder an adapter.
fn copy_adapter(from: &Path, dest: &Path) -> Result<()> {
    fs::create_dir_all(dest).map_err(|e| Error::io("create", dest, e))?;
    for name in [adapter::CARD_FILE, adapter::TEMPLATE_FILE, adapter::TENSORS_FILE, adapter::CONFIG_FILE] {
        let source = from.join(name);
        match fs::read(&source) {
            Ok(bytes) => files::replace(&dest.join(name), &bytes)?,
            // Adapters of other programs may come without a card; only those of chats have a template.
            Err(_) if matches!(name, adapter::CARD_FILE | adapter::TEMPLATE_FILE) => 0,
            Err(e) => return Err(Error::io("read", &source, e)),
        };
    }
    Ok(())
}

/// The run's final adapter, or that of its newest checkpoint when it stopped before the end.
fn adapter_dir(run_dir: &Path) -> Result<PathBuf> {
    let last = run_dir.join("adapter");
    if is_adapter(&last) {
        return Ok(last);
    }
    let Ok(entries) = fs::read_dir(run_dir) else {
        return Err(
            Error::usage(format!("'{}' is not a run's folder", run_dir.display())).next("give a folder under results/")
        );
    };
    let numbered = entries.flatten().filter_map(|e| {
        let name = e.file_name().into_string().ok()?;
        let step: u64 = name.strip_prefix("checkpoint-")?.parse().ok()?;
        let dir = [e.path(), e.path().join("adapter")].into_iter().find(|d| is_adapter(d))?;
        Some((step, dir))
    });
    numbered.max_by_key(|(step, _)| *step).map(|(_, dir)| dir).ok_or_else(|| {
        Error::run(format!("'{}' has no adapter yet", run_dir.display()))
            .next("a run saves one at its end and at each checkpoint (train.save_steps)")
    })
}

fn is_adapter(dir: &Path) -> bool {
    dir.join(adapter::CONFIG_FILE).is_file()
}

#[cfg(test)]
mod tests;
