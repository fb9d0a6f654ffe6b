//! Small files of the tokenizer, read under a cap: JSON, templates, bytes.

use super::super::template::MAX_TEMPLATE;
use crate::checkpoint::files::{BOM, bom_note, parse_json, read_small};
use crate::error::{Error, Result};
use serde_json::{Map, Value as Json};
use std::path::Path;

/// Largest small JSON file beside `tokenizer.json`, in bytes.
const MAX_CONFIG: u64 = 64 << 20;

/// A template file, length and encoding checked; a byte order mark is taken off and noted.
///
/// # Errors
/// It can't be read, is too long or isn't UTF-8.
pub fn template(path: &Path, notes: &mut Vec<String>) -> Result<String> {
    String::from_utf8(bytes(path, MAX_TEMPLATE, notes)?)
        .map_err(|e| Error::data(format!("'{}' isn't UTF-8 (byte {})", path.display(), e.utf8_error().valid_up_to())))
}

/// A small JSON object; an absent file is an empty one.
///
/// # Errors
/// It can't be read, is too long, or isn't an object.
pub fn object(path: &Path, notes: &mut Vec<String>) -> Result<Map<String, Json>> {
    if path.symlink_metadata().is_err() {
        return Ok(Map::new());
    }
    parse_json(path, &bytes(path, MAX_CONFIG, notes)?)
}

/// Reads a file of at most `limit` bytes. A byte order mark is taken off and noted: in a template it would stand before
/// every text, and JSON knows none.
///
/// # Errors
/// Those of [`read_small`].
pub fn bytes(path: &Path, limit: u64, notes: &mut Vec<String>) -> Result<Vec<u8>> {
    let mut bytes = read_small(path, limit)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    if let Some(note) = bom_note(&name, &bytes) {
        bytes.drain(..BOM.len());
        notes.push(note);
    }
    Ok(bytes)
}
