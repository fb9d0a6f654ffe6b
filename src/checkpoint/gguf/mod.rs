//! `import`: a GGUF file becomes a Hugging Face folder with F16 weights, written whole or not at all.
//!
//! Weights pass through row by row, so memory stays small whatever the tensor. Llama's q and k rows are stored by
//! llama.cpp in interleaved rotary order and are put back into rotate-half order; Qwen's are not permuted.

pub mod reader;

mod cursor;
mod dequant;
mod names;
mod tokenizer;

use super::files::{open_regular, shown};
use super::types::Dtype;
use super::write::{Declared, SafetensorsFile};
use crate::error::{Error, Result};
use crate::event::Stage;
use crate::files;
use crate::text::clean;
use names::{Model, Source};
use reader::Gguf;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Output bytes gathered before they are written.
const PIECE: usize = 4 << 20;

/// Imports `gguf` into the folder `to`; see [`super::import_gguf`].
///
/// # Errors
/// Not a GGUF, an unsupported tensor type, architecture or tokenizer, `to` is not empty, or the disk refuses. Nothing
/// is left at `to` then.
pub fn import(gguf: &Path, to: &Path, progress: &mut dyn FnMut(Stage)) -> Result<PathBuf> {
    refuse_taken(to)?;
    let (file, meta) = open_regular(gguf)?;
    if meta.len() < 24 {
        return Err(Error::checkpoint(format!("{} is {} bytes long, too short for a GGUF", shown(gguf), meta.len())));
    }
    // SAFETY: the map is read-only and private to this call, and every access is inside the length just read. A file
    // cut short by someone else while it is being imported would raise SIGBUS; the user starts an import on a file
    // that lies still, and the alternative (buffered reads) would copy every tensor once more.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io("map", gguf, e))?;
    let fail = |what: String| Error::checkpoint(format!("{}: {what}", shown(gguf)));
    let parsed = Gguf::parse(&bytes).map_err(fail)?;
    let model = names::model(&parsed).map_err(fail)?;
    let tokenizer = tokenizer::build(&parsed, model.context).map_err(fail)?;

    let temp = TempFolder::create(to)?;
    let json = |name: &str, value: &Value| files::replace(&temp.path.join(name), format!("{value:#}\n").as_bytes());
    json("config.json", &model.config(&tokenizer.ids))?;
    json("generation_config.json", &generation_config(&tokenizer.ids))?;
    json("tokenizer_config.json", &tokenizer.config)?;
    json("special_tokens_map.json", &tokenizer.special_map)?;
    files::replace(&temp.path.join("tokenizer.json"), tokenizer.tokenizer.to_string().as_bytes())?;
    write_weights(&parsed, &model, &temp.path.join(super::index::SINGLE), progress)?;
    // What was written must open: shapes, names, tokenizer size. A bug or a strange file shows here, not in training.
    super::open(&temp.path)?;
    temp.commit(to)?;
    Ok(to.to_path_buf())
}

fn refuse_taken(to: &Path) -> Result<()> {
    let next = "give a folder that doesn't exist yet";
    match std::fs::read_dir(to).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Err(Error::usage(format!("{} exists and is not empty", shown(to))).next(next)),
        Ok(false) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            Err(Error::usage(format!("{} is a file", shown(to))).next(next))
        }
        Err(e) => Err(Error::io("read", to, e)),
    }
}

fn generation_config(ids: &tokenizer::Ids) -> Value {
    let mut config = Map::new();
    if let Some(bos) = ids.bos {
        config.insert("bos_token_id".into(), bos.into());
    }
    match (ids.eos, ids.eot) {
        (Some(eos), Some(eot)) => config.insert("eos_token_id".into(), json!([eos, eot])),
        (Some(one), None) | (None, Some(one)) => config.insert("eos_token_id".into(), one.into()),
        (None, None) => None,
    };
    if let Some(pad) = ids.pad {
        config.insert("pad_token_id".into(), pad.into());
    }
    config.into()
}

fn write_weights(gguf: &Gguf, model: &Model, path: &Path, progress: &mut dyn FnMut(Stage)) -> Result<()> {
    let declared: Vec<Declared> =
        model.sources.iter().map(|s| Declared::new(s.name.as_str(), Dtype::F16, &s.shape)).collect();
    let total: u64 = declared.iter().map(|d| 2 * d.shape.iter().product::<u64>()).sum();
    let mut report = |done: u64| {
        progress(Stage { name: "importing weights".into(), done, total, unit: "bytes".into() });
    };
    let mut out = SafetensorsFile::create(path, &declared, &[])?;
    let mut done = 0;
    report(done);
    for source in &model.sources {
        done += write_tensor(gguf, source, &mut out)?;
        report(done);
    }
    out.finish()?;
    Ok(())
}

/// Writes one tensor, its rows in Hugging Face's order. Returns the bytes written.
fn write_tensor(gguf: &Gguf, source: &Source, out: &mut SafetensorsFile) -> Result<u64> {
    let tensor = &gguf.tensors[source.tensor];
    let data = gguf.data(tensor);
    let rows = source.rows;
    let row_bytes = data.len().checked_div(rows).unwrap_or(0);
    let (mut values, mut halves, mut piece, mut written) = (Vec::new(), Vec::new(), Vec::new(), 0u64);
    for row in 0..rows {
        let from = source.row(row) * row_bytes;
        dequant::to_f32(tensor.kind, &data[from..from + row_bytes], &mut values);
        if let Err(at) = dequant::to_f16(&values, &mut halves, &mut piece) {
            return Err(Error::checkpoint(format!(
                "tensor '{}' holds {} at row {row}, column {at}, which F16 can't hold",
                clean(&tensor.name),
                values[at]
            ))
            .next("use the safetensors files of this model instead"));
        }
        if piece.len() >= PIECE || row + 1 == rows {
            out.append(&piece)?;
            written += piece.len() as u64;
            piece.clear();
        }
    }
    Ok(written)
}

/// A folder under a temporary name beside its own, removed when dropped uncommitted.
struct TempFolder {
    path: PathBuf,
    kept: bool,
}

impl TempFolder {
    fn create(to: &Path) -> Result<TempFolder> {
        let name = to.file_name().ok_or_else(|| Error::usage(format!("{} is not a folder name", shown(to))))?;
        let parent = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
        let prefix = format!(".{}.importing-", name.to_string_lossy());
        sweep(parent, &prefix);
        let path = parent.join(format!("{prefix}{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Error::io("create", &path, e))?;
        Ok(TempFolder { path, kept: false })
    }

    fn commit(mut self, to: &Path) -> Result<()> {
        files::sync_dir(&self.path)?;
        std::fs::rename(&self.path, to).map_err(|e| Error::io("create", to, e))?;
        self.kept = true;
        files::sync_dir(to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing more can be done about a temporary folder that won't go.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes what a killed import of the same folder left: its process is gone.
fn sweep(parent: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(prefix).and_then(|p| p.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
