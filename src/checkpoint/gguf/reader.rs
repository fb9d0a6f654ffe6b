//! GGUF versions 2 and 3, parsed as hostile input (layout: ggml's `docs/gguf.md`).
//!
//! Every count and length is checked against what is left of the file before anything is read or kept; arrays stay in
//! the file and are walked when asked for.

use super::cursor::Cursor;
pub use super::cursor::{Array, Parsed, Value};
use crate::text::clean;
use std::collections::HashMap;
use std::ops::Range;

/// Most metadata entries and tensors believed.
const MAX_ENTRIES: u64 = 1 << 20;
/// A parsed GGUF over the bytes of its file.
#[derive(Debug)]
pub struct Gguf<'a> {
    bytes: &'a [u8],
    meta: HashMap<String, Value<'a>>,
    /// Tensors in file order of their descriptions.
    pub tensors: Vec<Tensor>,
}

/// One tensor's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// Dimensions as GGUF has them: innermost (row length) first. Never empty; the product fits 64 bits.
    pub dims: Vec<u64>,
    /// ggml type.
    pub kind: Quant,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

/// The ggml tensor types that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quant {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// 32 values in 18 bytes.
    Q4_0,
    /// 32 values in 20 bytes.
    Q4_1,
    /// 32 values in 34 bytes.
    Q8_0,
}

impl Quant {
    fn from_code(code: u32) -> Parsed<Quant> {
        Ok(match code {
            0 => Quant::F32,
            1 => Quant::F16,
            2 => Quant::Q4_0,
            3 => Quant::Q4_1,
            8 => Quant::Q8_0,
            30 => Quant::Bf16,
            _ => return Err(format!("type {}", name_of(code))),
        })
    }
    /// Values and bytes of one block.
    #[must_use]
    pub fn block(self) -> (u64, u64) {
        match self {
            Quant::F32 => (1, 4),
            Quant::F16 | Quant::Bf16 => (1, 2),
            Quant::Q4_0 => (32, 18),
            Quant::Q4_1 => (32, 20),
            Quant::Q8_0 => (32, 34),
        }
    }
}

/// ggml's name of a tensor type.
fn name_of(code: u32) -> String {
    let names = [
        "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
        "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16",
        "I32", "I64", "F64", "IQ1_M", "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0",
    ];
    let other = match code {
        39 => "MXFP4".into(),
        _ => format!("number {code}"),
    };
    names.get(code as usize).map_or(other, |n| (*n).to_string())
}

impl<'a> Gguf<'a> {
    /// Parses the description of the file `bytes`; tensor data is located, not read.
    ///
    /// # Errors
    /// Not a GGUF, another version, or a count, length, type or range that doesn't hold.
    pub fn parse(bytes: &'a [u8]) -> Parsed<Gguf<'a>> {
        let mut at = Cursor { bytes, at: 0 };
        if at.take(4)? != b"GGUF" {
            return Err("not a GGUF file (the first four bytes are not 'GGUF')".into());
        }
        match at.u32()? {
            2 | 3 => {}
            0x0200_0000 | 0x0300_0000 => return Err("a big-endian GGUF, which is not supported".into()),
            v => return Err(format!("GGUF version {v}; versions 2 and 3 are supported")),
        }
        let (n_tensors, n_meta) = (at.u64()?, at.u64()?);
        if n_tensors > MAX_ENTRIES || n_meta > MAX_ENTRIES {
            return Err(format!("it claims {n_tensors} tensors and {n_meta} metadata entries"));
        }
        let mut meta = HashMap::new();
        for _ in 0..n_meta {
            let key = at.name()?;
            let kind = at.u32()?;
            let value = at.value(kind).map_err(|e| format!("metadata '{}': {e}", clean(&key)))?;
            if meta.insert(key.clone(), value).is_some() {
                return Err(format!("metadata '{}' is there twice", clean(&key)));
            }
        }
        let mut gguf = Gguf { bytes, meta, tensors: Vec::new() };
        if gguf.int("split.count")?.is_some_and(|n| n > 1) {
            return Err("one part of a split GGUF; merge the parts first (llama-gguf-split --merge)".into());
        }
        gguf.read_tensors(&mut at, n_tensors)?;
        Ok(gguf)
    }

    fn read_tensors(&mut self, at: &mut Cursor<'a>, count: u64) -> Parsed<()> {
        let mut found = Vec::new();
        for _ in 0..count {
            let name = at.name()?;
            let shown = clean(&name);
            let n_dims = at.u32()?;
            if !(1..=4).contains(&n_dims) {
                return Err(format!("tensor '{shown}' has {n_dims} dimensions"));
            }
            let dims = (0..n_dims).map(|_| at.u64()).collect::<Parsed<Vec<u64>>>()?;
            let kind = Quant::from_code(at.u32()?)
                .map_err(|kind| format!("tensor '{shown}' has {kind}; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1"))?;
            let offset = at.u64()?;
            let (per_block, block_bytes) = kind.block();
            if dims[0] % per_block != 0 {
                return Err(format!("tensor '{shown}' has rows of {}, no multiple of {per_block}", dims[0]));
            }
            let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            let len = elements.and_then(|n| (n / per_block).checked_mul(block_bytes));
            let len = len.ok_or_else(|| format!("tensor '{shown}' has shape {dims:?}, past 64 bits"))?;
            found.push((name, dims, kind, offset, len));
        }
        let align = self.int("general.alignment")?.unwrap_or(32);
        let align = u64::try_from(align).ok().filter(|a| a.is_power_of_two() && *a <= 1 << 20);
        let align = align.ok_or("general.alignment is not a power of two up to 1 MiB")?;
        let data_start = (at.at as u64).next_multiple_of(align);
        let file_len = self.bytes.len() as u64;
        for (name, dims, kind, offset, len) in found {
            let start = data_start.checked_add(offset);
            let end = start.and_then(|s| s.checked_add(len)).filter(|end| *end <= file_len && offset % align == 0);
            let (Some(start), Some(end)) = (start, end) else {
                return Err(format!(
                    "truncated or broken: tensor '{}' takes {len} bytes at {offset} of the data, the file has {file_len}",
                    clean(&name)
                ));
            };
            let range = usize_of(start)?..usize_of(end)?;
            self.tensors.push(Tensor { name, dims, kind, range });
        }
        refuse_overlaps(&self.tensors)
    }

    /// The bytes of a tensor.
    #[must_use]
    pub fn data(&self, t: &Tensor) -> &'a [u8] {
        &self.bytes[t.range.clone()]
    }

    /// A value by key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.meta.get(key)
    }

    /// An integer by key.
    ///
    /// # Errors
    /// It is of another type.
    pub fn int(&self, key: &str) -> Parsed<Option<i128>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Int(n)) => Ok(Some(*n)),
            Some(_) => Err(format!("metadata '{key}' is not an integer")),
        }
    }

    /// A finite number by key.
    ///
    /// # Errors
    /// It is of another type or not finite.
    pub fn float(&self, key: &str) -> Parsed<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) if x.is_finite() => Ok(Some(*x)),
            Some(Value::Int(n)) => Ok(Some(*n as f64)),
            Some(_) => Err(format!("metadata '{key}' is not a number")),
        }
    }

    /// A boolean by key.
    ///
    /// # Errors
    /// It is of another type.
    pub fn flag(&self, key: &str) -> Parsed<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(format!("metadata '{key}' is not true or false")),
        }
    }

    /// A text by key.
    ///
    /// # Errors
    /// It is of another type or not UTF-8.
    pub fn text(&self, key: &str) -> Parsed<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Str(s)) => {
                std::str::from_utf8(s).map(Some).map_err(|_| format!("metadata '{key}' is not UTF-8 text"))
            }
            Some(_) => Err(format!("metadata '{key}' is not a text")),
        }
    }

    /// An array of texts by key.
    ///
    /// # Errors
    /// Absent, of another type, or one of them is not UTF-8.
    pub fn texts(&self, key: &str) -> Parsed<Vec<&'a str>> {
        let array = self.array(key)?;
        let mut out = Vec::new();
        array.each(|i, v| {
            let Value::Str(s) = v else {
                return Err(format!("metadata '{key}' is not a list of texts"));
            };
            out.push(std::str::from_utf8(s).map_err(|_| format!("metadata '{key}': entry {i} is not UTF-8"))?);
            Ok(())
        })?;
        Ok(out)
    }

    /// An array of integers by key.
    ///
    /// # Errors
    /// Absent or of another type.
    pub fn ints(&self, key: &str) -> Parsed<Vec<i64>> {
        let array = self.array(key)?;
        let mut out = Vec::new();
        array.each(|_, v| match v {
            Value::Int(n) => {
                out.push(i64::try_from(n).map_err(|_| format!("metadata '{key}' holds {n}"))?);
                Ok(())
            }
            _ => Err(format!("metadata '{key}' is not a list of integers")),
        })?;
        Ok(out)
    }

    fn array(&self, key: &str) -> Parsed<Array<'a>> {
        match self.get(key) {
            Some(Value::Array(a)) => Ok(*a),
            Some(_) => Err(format!("metadata '{key}' is not a list")),
            None => Err(format!("metadata '{key}' is missing")),
        }
    }
}

fn refuse_overlaps(tensors: &[Tensor]) -> Parsed<()> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    if let Some(w) = names.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("tensor '{}' is there twice", clean(w[0])));
    }
    let mut by_place: Vec<&Tensor> = tensors.iter().collect();
    by_place.sort_by_key(|t| (t.range.start, t.range.end));
    match by_place.windows(2).find(|w| w[0].range.end > w[1].range.start) {
        Some(w) => Err(format!(
            "tensors '{}' {:?} and '{}' {:?} overlap",
            clean(&w[0].name),
            w[0].range,
            clean(&w[1].name),
            w[1].range
        )),
        None => Ok(()),
    }
}

fn usize_of(n: u64) -> Parsed<usize> {
    usize::try_from(n).map_err(|_| format!("length {n} is past this machine's address space"))
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
