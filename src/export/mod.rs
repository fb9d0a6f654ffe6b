//! export: see src/ARCHITECTURE.md.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Exports the run in `run_dir` as `kind`; returns what was written.
///
/// # Errors
/// Unknown kind, or the run has no adapter.
pub fn export(run_dir: &Path, kind: &str) -> Result<PathBuf> {
    Err(Error::run(format!("cannot export '{}' as '{kind}'", run_dir.display())))
}

/// stub until the export room is merged.
///
/// # Errors
/// Always.
pub fn export_to(run_dir: &Path, kind: &str, _dest: &Path) -> Result<PathBuf> {
    export(run_dir, kind)
}
