//! Safetensors headers, parsed as hostile input.
//!
//! A file is 8 bytes of little-endian header length, that much JSON, then the data; ranges in the header count from
//! the data's start (safetensors' format document). Nothing is allocated from a claimed length before that length is
//! checked against the file's own; every byte of the data must belong to exactly one tensor.

use super::files::{open_regular, shown};
use super::sniff::{HEAD, header_length};
use super::types::Dtype;
use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::Bytes;
use serde::de::{Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Longest header that is read, the safetensors library's own limit.
pub const MAX_HEADER: u64 = 100_000_000;
/// Longest weights file that is believed; sums over 10,000 of them stay below 2^63 bits.
pub const MAX_FILE: u64 = 1 << 46;
/// Most dimensions a tensor may have.
const MAX_RANK: usize = 32;

/// A parsed and checked header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tensors, by offset.
    pub tensors: Vec<HeaderTensor>,
    /// `__metadata__`, empty if absent.
    pub metadata: BTreeMap<String, String>,
    /// Where data starts in the file, in bytes.
    pub data_start: u64,
}

/// One tensor of a header. Its range counts from the data's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost first; the product fits 64 bits.
    pub shape: Vec<u64>,
    /// First byte.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A header read from disk, with what a fingerprint needs.
#[derive(Clone, Debug)]
pub struct ReadHeader {
    /// The header.
    pub header: Header,
    /// Its JSON bytes as stored.
    pub json: Vec<u8>,
    /// Length of the weights file in bytes.
    pub file_len: u64,
    /// Samples of the tensors' bytes: `SAMPLES` parts of `SAMPLE` bytes, evenly spread, the first and the last bytes
    /// among them; empty where the weights are not here.
    pub samples: Vec<u8>,
}

/// Parts of a weights file's tensors that its fingerprint holds.
const SAMPLES: u64 = 8;
/// Bytes of each part.
const SAMPLE: u64 = 4096;

fn samples(file: &mut std::fs::File, begin: u64, end: u64) -> std::io::Result<Vec<u8>> {
    let last = end.saturating_sub(SAMPLE).max(begin);
    let mut bytes = Vec::new();
    for i in 0..SAMPLES {
        // u128: the length of a sparse file may be near 2^63.
        let at = begin + (u128::from(last - begin) * u128::from(i) / u128::from(SAMPLES - 1)) as u64;
        file.seek(SeekFrom::Start(at))?;
        file.by_ref().take(SAMPLE).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Reads the header of the safetensors file at `path`.
///
/// # Errors
/// Not a safetensors file (says what it is instead), truncated, or a header that doesn't hold together.
pub fn read(path: &Path) -> Result<ReadHeader> {
    let (mut file, meta) = open_regular(path)?;
    let len = meta.len();
    let mut head = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut head).map_err(|e| Error::io("read", path, e))?;
    let header_len = header_length(path, &head, len)?;
    file.seek(SeekFrom::Start(8)).map_err(|e| Error::io("read", path, e))?;
    let mut json = Vec::new();
    file.by_ref().take(header_len).read_to_end(&mut json).map_err(|e| Error::io("read", path, e))?;
    let header = parse(path, &json, len)?;
    let samples = samples(&mut file, 8 + header_len, len).map_err(|e| Error::io("read", path, e))?;
    Ok(ReadHeader { header, json, file_len: len, samples })
}

/// Parses the header's JSON for a file of `file_len` bytes.
///
/// # Errors
/// Malformed, duplicate names, sizes past 64 bits, shapes that disagree with their ranges, ranges that overlap, leave
/// holes, or don't end where the file does; each names the tensors and bytes.
pub fn parse(path: &Path, json: &[u8], file_len: u64) -> Result<Header> {
    let raw: RawHeader = serde_json::from_slice(json).map_err(|e| malformed(path, &e))?;
    let data_start = 8 + json.len() as u64;
    check(path, raw, file_len, data_start)
}

/// Reads `<weights>.header.json`, `{"size": bytes of the weights file, "header": {…}}`: a header without its weights.
///
/// # Errors
/// As [`parse`], or the size can't hold header and data.
pub fn read_header_only(path: &Path) -> Result<ReadHeader> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Stored {
        size: u64,
        header: RawHeader,
    }
    let json = super::files::read_small(path, MAX_HEADER + HEAD)?;
    let stored: Stored = serde_json::from_slice(&json).map_err(|e| malformed(path, &e))?;
    let data = stored.header.tensors.iter().map(|(_, t)| t.data_offsets.1).max().unwrap_or(0);
    // The stored text may be laid out in another way than the original header, so its length follows from the size.
    let header_len = stored.size.checked_sub(8).and_then(|n| n.checked_sub(data));
    if stored.size > MAX_FILE || !header_len.is_some_and(|n| (2..=MAX_HEADER).contains(&n)) {
        return Err(Error::checkpoint(format!(
            "{} says the weights file has {} bytes, which does not fit its {data} bytes of data",
            shown(path),
            stored.size
        )));
    }
    let header = check(path, stored.header, stored.size, stored.size - data)?;
    Ok(ReadHeader { header, json, file_len: stored.size, samples: Vec::new() })
}

fn malformed(path: &Path, e: &serde_json::Error) -> Error {
    Error::checkpoint(format!("the header of {} is not valid: {}", shown(path), clean(&e.to_string())))
        .next("fetch the file again")
}

fn check(path: &Path, raw: RawHeader, file_len: u64, data_start: u64) -> Result<Header> {
    let file = shown(path);
    let fail = |what: String| Error::checkpoint(format!("{file}: {what}"));
    if file_len > MAX_FILE {
        return Err(fail(format!("{} is longer than any weights file this program believes", Bytes(file_len))));
    }
    let data_len = file_len
        .checked_sub(data_start)
        .ok_or_else(|| fail(format!("the header ends at byte {data_start} of a file of {file_len} bytes")))?;
    let mut tensors = Vec::with_capacity(raw.tensors.len());
    for (name, t) in raw.tensors {
        tensors.push(check_tensor(name, t).map_err(fail)?);
    }
    refuse_duplicates(&tensors).map_err(fail)?;
    tensors.sort_by_key(|t| (t.begin, t.end));
    check_ranges(&tensors, data_len, file_len).map_err(|(what, next)| {
        let e = fail(what);
        if next.is_empty() { e } else { e.next(next) }
    })?;
    Ok(Header { tensors, metadata: raw.metadata, data_start })
}

/// One tensor by itself: its shape, type and range agree.
fn check_tensor(name: String, t: RawTensor) -> Result<HeaderTensor, String> {
    let (begin, end) = t.data_offsets;
    // Words are made only where they are needed: a header may hold a hundred thousand tensors.
    let shown_name = || clean(&name);
    let range = || format!("bytes [{begin}, {end}]");
    let Some(bytes) = end.checked_sub(begin) else {
        return Err(format!("tensor '{}' ends before it begins: {}", shown_name(), range()));
    };
    if t.shape.len() > MAX_RANK {
        return Err(format!("tensor '{}' has {} dimensions", shown_name(), t.shape.len()));
    }
    let too_big = || format!("tensor '{}' has shape {:?}, whose size passes 64 bits", shown_name(), t.shape);
    let elements = t.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(too_big)?;
    let (dtype, bits) = dtype(&t.dtype);
    match bits {
        // An unknown type has at least one bit an element, which keeps element counts honest.
        None if elements > bytes.saturating_mul(8) => {
            return Err(format!("tensor '{}' of shape {:?} can't lie in {}", shown_name(), t.shape, range()));
        }
        None => {}
        Some(bits) => {
            let need = elements.checked_mul(u64::from(bits)).ok_or_else(too_big)?;
            if need % 8 != 0 || need / 8 != bytes {
                return Err(format!(
                    "tensor '{}' of shape {:?} and type {} takes {} bytes, but its {} hold {bytes}",
                    shown_name(),
                    t.shape,
                    dtype.name(),
                    need.div_ceil(8),
                    range()
                ));
            }
        }
    }
    Ok(HeaderTensor { name, dtype, shape: t.shape, begin, end })
}

/// The type of a header name and its bits per element, `None` where the name is unknown.
fn dtype(name: &str) -> (Dtype, Option<u32>) {
    let deserializer: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    let Ok(known) = safetensors::Dtype::deserialize(deserializer) else {
        return (Dtype::Other(clean(name), 0), None);
    };
    let bits = u32::try_from(known.bitsize()).expect("element sizes are at most 64 bits");
    let dtype = match known {
        safetensors::Dtype::F64 => Dtype::F64,
        safetensors::Dtype::F32 => Dtype::F32,
        safetensors::Dtype::F16 => Dtype::F16,
        safetensors::Dtype::BF16 => Dtype::BF16,
        _ => Dtype::Other(name.to_string(), bits),
    };
    (dtype, Some(bits))
}

fn refuse_duplicates(tensors: &[HeaderTensor]) -> Result<(), String> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(format!("the header names tensor '{}' twice", clean(w[0]))),
        None => Ok(()),
    }
}

/// All tensors together cover the data exactly once. `tensors` are sorted by range.
fn check_ranges(tensors: &[HeaderTensor], data_len: u64, file_len: u64) -> Result<(), (String, &'static str)> {
    let mut last: Option<&HeaderTensor> = None;
    for t in tensors {
        let at = last.map_or(0, |l| l.end);
        let here = || format!("'{}' [{}, {}]", clean(&t.name), t.begin, t.end);
        let before = || {
            last.map_or("the start of the data".into(), |l| format!("'{}' [{}, {}]", clean(&l.name), l.begin, l.end))
        };
        if t.begin < at {
            let both = format!("bytes [{}, {}] belong to both", t.begin, at.min(t.end));
            return Err((format!("tensors {} and {} overlap: {both}", before(), here()), ""));
        }
        if t.begin > at {
            let between = format!("between {} and {}", before(), here());
            return Err((format!("bytes [{at}, {}] {between} belong to no tensor", t.begin), ""));
        }
        last = Some(t);
    }
    let end = last.map_or(0, |l| l.end);
    if end > data_len {
        let expected = (file_len - data_len).saturating_add(end);
        let what = format!(
            "truncated: {file_len} bytes found, {expected} expected ({} missing)",
            expected.saturating_sub(file_len)
        );
        return Err((what, "fetch the file again"));
    }
    if end < data_len {
        let after = last.map_or("the header".into(), |l| format!("'{}' [{}, {}]", clean(&l.name), l.begin, l.end));
        let what = format!(
            "{} trailing bytes [{end}, {data_len}] after {after}: {file_len} bytes found, {} expected",
            data_len - end,
            file_len - (data_len - end)
        );
        return Err((what, ""));
    }
    Ok(())
}

/// The header as JSON has it, duplicates included.
#[derive(Debug)]
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawTensor)>,
}

#[derive(Debug, Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawHeader, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let (mut metadata, mut tensors) = (None, Vec::new());
                while let Some(key) = map.next_key::<String>()? {
                    let named = |e: A::Error| A::Error::custom(format!("'{}': {e}", clean(&key)));
                    if key == "__metadata__" {
                        let value: Option<BTreeMap<String, String>> = map.next_value().map_err(named)?;
                        if metadata.replace(value.unwrap_or_default()).is_some() {
                            return Err(A::Error::custom("'__metadata__' is there twice"));
                        }
                    } else {
                        let tensor = map.next_value().map_err(named)?;
                        tensors.push((key, tensor));
                    }
                }
                Ok(RawHeader { metadata: metadata.unwrap_or_default(), tensors })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
