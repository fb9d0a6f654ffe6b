//! Hashes of a run's files, taken when the report is written and checked again later.

use super::load;
use super::types::FileFacts;
use super::write::REPORT_FILE;
use crate::error::{Error, Result};
use crate::units::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path};

/// Folders inside a run's folder are shallow; deeper ones aren't ours.
const MAX_DEPTH: usize = 4;

/// What a check of a run's files found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Version of this object.
    pub schema: u32,
    /// Every file is as it was.
    pub ok: bool,
    /// Files looked at.
    pub checked: usize,
    /// One line for each file that isn't as it was.
    pub problems: Vec<String>,
}

/// Re-hashes the files that the run's report names.
///
/// # Errors
/// The run has no report yet, or it can't be read.
pub fn verify(run_dir: &Path) -> Result<Verified> {
    if !run_dir.join(REPORT_FILE).is_file() {
        return Err(Error::run(format!("'{}' has no report.json to check against", run_dir.display()))
            .next("only a run that has ended can be verified"));
    }
    let report = load(run_dir)?;
    let files: BTreeMap<String, FileFacts> = serde_json::from_value(report["files"].clone())
        .map_err(|e| Error::run(format!("'{}' lists no files: {e}", run_dir.join(REPORT_FILE).display())))?;
    let problems: Vec<String> = files.iter().filter_map(|(name, facts)| problem(run_dir, name, facts)).collect();
    Ok(Verified { schema: 1, ok: problems.is_empty(), checked: files.len(), problems })
}

fn problem(run_dir: &Path, name: &str, facts: &FileFacts) -> Option<String> {
    let shown = crate::text::clean(name);
    let path = Path::new(name);
    if path.components().any(|c| !matches!(c, Component::Normal(_))) {
        return Some(format!("{shown}: not a name inside the run's folder"));
    }
    match hash(&run_dir.join(path)) {
        Err(e) => Some(format!("{shown}: cannot be read ({e})")),
        Ok(now) if now.bytes != facts.bytes => Some(format!("{shown}: {} bytes, was {}", now.bytes.0, facts.bytes.0)),
        Ok(now) if now.sha256 != facts.sha256 => Some(format!("{shown}: its content has changed")),
        Ok(_) => None,
    }
}

/// Every file of the run but the report itself, temporary files and exports, by its path inside `dir`.
pub(super) fn hash_files(dir: &Path) -> Result<BTreeMap<String, FileFacts>> {
    let mut out = BTreeMap::new();
    let mut open = vec![(dir.to_path_buf(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = open.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| Error::io("read", &folder, e))? {
            let entry = entry.map_err(|e| Error::io("read", &folder, e))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = entry.file_type().map_err(|e| Error::io("read", &entry.path(), e))?;
            let key = format!("{prefix}{name}");
            if name.starts_with('.') || key == REPORT_FILE || key.starts_with("export-") {
                continue;
            }
            if kind.is_dir() && depth < MAX_DEPTH {
                open.push((entry.path(), format!("{key}/"), depth + 1));
            } else if kind.is_file() {
                out.insert(key, hash(&entry.path()).map_err(|e| Error::io("read", &entry.path(), e))?);
            }
        }
    }
    Ok(out)
}

fn hash(path: &Path) -> std::io::Result<FileFacts> {
    let mut file = File::open(path)?;
    let (mut digest, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        digest.update(&buffer[..n]);
        bytes += n as u64;
    }
    let sha256 = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(FileFacts { bytes: Bytes(bytes), sha256 })
}
