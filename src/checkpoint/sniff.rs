//! What a file is, from its first bytes: a safetensors file and how long its header is, or which other thing it is.
//!
//! Every kind of broken download gets its own words.

use super::files::{refuse_lfs_pointer, shown};
use super::header::MAX_HEADER;
use crate::error::{Error, Result};
use crate::units::Bytes;
use std::path::Path;

/// Bytes looked at to tell what a file is.
pub const HEAD: u64 = 1024;

/// The header length that a file of `file_len` bytes claims in `head`, its first bytes (1024 are enough).
///
/// # Errors
/// The file can't be safetensors; the message says what it seems to be.
pub fn header_length(path: &Path, head: &[u8], file_len: u64) -> Result<u64> {
    let name = shown(path);
    let again = "fetch the file again";
    refuse_lfs_pointer(path, head, file_len)?;
    if file_len == 0 {
        return Err(Error::checkpoint(format!("{name} is empty: 0 bytes found, at least 10 expected")).next(again));
    }
    let Some((claimed, rest)) = head.split_first_chunk::<8>() else {
        return Err(Error::checkpoint(format!(
            "{name} is {file_len} bytes long, too short for a safetensors file: at least 10 bytes expected"
        ))
        .next(again));
    };
    if let Some((what, next)) = masquerade(head) {
        return Err(Error::checkpoint(format!("{name} ({}) is {what}, not safetensors", Bytes(file_len))).next(next));
    }
    let claimed = u64::from_le_bytes(*claimed);
    let room = file_len - 8;
    if claimed > room {
        return Err(Error::checkpoint(format!(
            "{name} is truncated or not safetensors: its header claims {claimed} bytes, but the file has {file_len}"
        ))
        .next(again));
    }
    if claimed > MAX_HEADER {
        return Err(Error::checkpoint(format!(
            "{name} has a header of {claimed} bytes, over the format's limit of {MAX_HEADER} (file: {file_len} bytes)"
        ))
        .next("store the model in more shards"));
    }
    if claimed < 2 {
        return Err(Error::checkpoint(format!(
            "{name} has a header of {claimed} bytes where at least 2 ('{{}}') are expected (file: {file_len} bytes)"
        ))
        .next(again));
    }
    if rest.first().is_some_and(|&b| b != b'{') {
        return Err(
            Error::checkpoint(format!("{name} is not safetensors: its header does not begin with '{{'")).next(again)
        );
    }
    Ok(claimed)
}

/// What a file is when its first bytes belong to another format, and what to do about it.
fn masquerade(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let text = head.trim_ascii_start();
    let starts = |tag: &str| text.get(..tag.len()).is_some_and(|t| t.eq_ignore_ascii_case(tag.as_bytes()));
    let convert = "convert it to safetensors, or fetch the safetensors file of the same model";
    Some(if starts("<!doctype") || starts("<html") || starts("<?xml") {
        ("a web page (a saved error page?)", "fetch the file again, logged in if the model asks for it")
    } else if head.starts_with(b"PK\x03\x04") {
        ("a zip archive (a PyTorch pickle checkpoint?)", convert)
    } else if head.starts_with(b"\x80\x02") && head.get(2).is_some_and(|b| b.is_ascii_alphabetic() || *b == 0x8a) {
        ("a Python pickle", convert)
    } else if head.starts_with(b"GGUF") {
        ("a GGUF file", "turn it into a model folder: blockstream-tui import FILE.gguf --to DIR")
    } else if text.starts_with(b"{") && serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok() {
        ("a JSON text (a saved error message?)", "fetch the file again")
    } else {
        return None;
    })
}
