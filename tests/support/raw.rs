//! Safetensors files, good or broken, and the values in them.

use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::path::Path;

/// One tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Full name.
    pub name: String,
    /// safetensors type name.
    pub dtype: String,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// Range to claim in the header; `None` = after the tensor before it.
    pub range: Option<(u64, u64)>,
    /// Bytes to write; `None` = values made from name and seed.
    pub data: Option<Vec<u8>>,
}

impl Tensor {
    /// A tensor with made values.
    pub fn new(name: impl Into<String>, dtype: &str, shape: &[u64]) -> Tensor {
        Tensor { name: name.into(), dtype: dtype.into(), shape: shape.to_vec(), range: None, data: None }
    }
    /// With a claimed range.
    pub fn at(mut self, begin: u64, end: u64) -> Tensor {
        self.range = Some((begin, end));
        self
    }
    /// With these bytes.
    pub fn with_data(mut self, data: Vec<u8>) -> Tensor {
        self.data = Some(data);
        self
    }
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * element_bytes(&self.dtype)
    }
}

/// How a safetensors file departs from a good one.
#[derive(Clone, Debug)]
pub struct Raw {
    /// `__metadata__`; `None` leaves it out.
    pub metadata: Option<Value>,
    /// Replaces the header's JSON.
    pub header: Option<Vec<u8>>,
    /// Bytes after the data.
    pub trailer: Vec<u8>,
    /// Seed of made values.
    pub seed: u64,
}

impl Default for Raw {
    fn default() -> Raw {
        Raw { metadata: Some(json!({ "format": "pt" })), header: None, trailer: Vec::new(), seed: 1 }
    }
}

/// The bytes of a safetensors file, good or broken.
pub fn safetensors(tensors: &[Tensor], raw: &Raw) -> Vec<u8> {
    let (json, data_len) = header(tensors, raw);
    let mut text = raw.header.clone().unwrap_or_else(|| json.to_string().into_bytes());
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut data = vec![0u8; usize::try_from(data_len).expect("a fixture fits memory")];
    for (t, (begin, _)) in tensors.iter().zip(ranges(tensors)) {
        if t.range.is_some() {
            continue;
        }
        let bytes = t.data.clone().unwrap_or_else(|| made(&t.name, &t.dtype, &t.shape, raw.seed, 0.02));
        data[begin as usize..begin as usize + bytes.len()].copy_from_slice(&bytes);
    }
    [&(text.len() as u64).to_le_bytes(), text.as_slice(), &data, &raw.trailer].concat()
}

/// Values of tensor bytes.
pub fn decode(dtype: &str, bytes: &[u8]) -> Vec<f32> {
    let two = |b: &[u8]| [b[0], b[1]];
    match dtype {
        "F32" => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        "F16" => bytes.chunks_exact(2).map(|b| f16::from_le_bytes(two(b)).to_f32()).collect(),
        "BF16" => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(two(b)).to_f32()).collect(),
        other => panic!("no values for {other}"),
    }
}

/// Writes a file, or fails the test.
pub fn put(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::write(path, bytes).unwrap_or_else(|e| panic!("write '{}': {e}", path.display()));
}

pub(super) fn header(tensors: &[Tensor], raw: &Raw) -> (Value, u64) {
    let mut header = Map::new();
    if let Some(metadata) = &raw.metadata {
        header.insert("__metadata__".into(), metadata.clone());
    }
    let mut len = 0;
    for (t, (begin, end)) in tensors.iter().zip(ranges(tensors)) {
        len = len.max(end);
        header.insert(t.name.clone(), json!({ "dtype": t.dtype, "shape": t.shape, "data_offsets": [begin, end] }));
    }
    (header.into(), len)
}

fn ranges(tensors: &[Tensor]) -> Vec<(u64, u64)> {
    let mut at = 0;
    let one = |t: &Tensor| {
        let range = t.range.unwrap_or_else(|| (at, at + t.bytes()));
        at = at.max(range.1);
        range
    };
    tensors.iter().map(one).collect()
}

fn element_bytes(dtype: &str) -> u64 {
    match dtype {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        _ => 1,
    }
}

/// Bytes of a tensor, from its name and `seed`: norms 1 ± 0.1, biases 0 ± 0.1, weights 0 ± `std`, integers 0.
pub(super) fn made(name: &str, dtype: &str, shape: &[u64], seed: u64, std: f32) -> Vec<u8> {
    let n = usize::try_from(shape.iter().product::<u64>()).expect("a fixture fits memory");
    let mut random = Random::new(name, seed);
    let (mean, std) = match name {
        _ if name.contains("norm") => (1.0, 0.1),
        _ if name.ends_with(".bias") => (0.0, 0.1),
        _ => (0.0, std),
    };
    let mut gauss = || mean + std * random.gauss();
    match dtype {
        "F32" => (0..n).flat_map(|_| gauss().to_le_bytes()).collect(),
        "F16" => (0..n).flat_map(|_| f16::from_f32(gauss()).to_le_bytes()).collect(),
        "BF16" => (0..n).flat_map(|_| bf16::from_f32(gauss()).to_le_bytes()).collect(),
        "F64" => (0..n).flat_map(|_| f64::from(gauss()).to_le_bytes()).collect(),
        "F8_E4M3" => (0..n).map(|_| if gauss() < mean { 0xa8 } else { 0x28 }).collect(),
        other => vec![0; n * element_bytes(other) as usize],
    }
}

/// SplitMix64 and Box–Muller.
struct Random(u64);

impl Random {
    fn new(name: &str, seed: u64) -> Random {
        // FNV-1a of the name, so that every tensor has its own values.
        Random(
            name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)),
        )
    }
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    fn gauss(&mut self) -> f32 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }
}
