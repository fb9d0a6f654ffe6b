//! A head stored beside a config that ties it to the embedding: tied only if both hold the same, as transformers 5 does.

use super::inventory::find_prefix;
use super::types::{Arch, TensorInfo, WeightFile};
use crate::error::{Error, Result};
use crate::text::clean;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes compared at a time.
const CHUNK: u64 = 4 << 20;

/// Makes `arch` untied if a head is stored that differs from the embedding; says so.
///
/// # Errors
/// A file cannot be read, or no decoder is found.
pub(super) fn untie(arch: &mut Arch, tensors: &[TensorInfo], files: &[WeightFile]) -> Result<Option<String>> {
    let (prefix, heads) = find_prefix(tensors)?;
    let find = |name: &str| tensors.iter().find(|t| t.name == name);
    let embed = find(&format!("{prefix}embed_tokens.weight"));
    let (Some(embed), Some(head)) = (embed, heads.iter().find_map(|h| find(h))) else {
        return Ok(None);
    };
    // Other shapes are the inventory's to refuse.
    if embed.shape != head.shape || same(embed, head, files)? {
        return Ok(None);
    }
    arch.tied = false;
    Ok(Some(format!(
        "the stored '{}' differs from the embedding: it is used, though config.json says tie_word_embeddings, as \
         transformers 5 does",
        clean(&head.name)
    )))
}

/// Whether two tensors hold the same bytes.
fn same(a: &TensorInfo, b: &TensorInfo, files: &[WeightFile]) -> Result<bool> {
    if a.dtype != b.dtype || a.bytes != b.bytes {
        return Ok(false);
    }
    let open = |path: &Path| File::open(path).map_err(|e| Error::io("read", path, e));
    let (path_a, path_b) = (&files[a.file].path, &files[b.file].path);
    let (file_a, file_b) = (open(path_a)?, open(path_b)?);
    let size = CHUNK.min(a.bytes) as usize;
    let (mut left, mut right) = (vec![0; size], vec![0; size]);
    let mut at = 0;
    while at < a.bytes {
        let n = CHUNK.min(a.bytes - at) as usize;
        file_a.read_exact_at(&mut left[..n], a.offset + at).map_err(|e| Error::io("read", path_a, e))?;
        file_b.read_exact_at(&mut right[..n], b.offset + at).map_err(|e| Error::io("read", path_b, e))?;
        if left[..n] != right[..n] {
            return Ok(false);
        }
        at += n as u64;
    }
    Ok(true)
}
