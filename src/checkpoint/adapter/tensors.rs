//! `adapter_model.safetensors`: bytes to and from tensors, and the check that they are one whole adapter.

use super::peft::Stated;
use super::{AdapterConfig, AdapterTensor};
use crate::checkpoint::Role;
use crate::error::{Error, Result};
use crate::text::clean;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, View};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::Path;

/// The safetensors library's own limit on a header.
const MAX_HEADER: u64 = 100_000_000;

impl View for &AdapterTensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.data.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
    fn data_len(&self) -> usize {
        self.data.len() * 4
    }
}

/// The file's bytes: `format = pt`, keys sorted, data start a multiple of 8.
pub(super) fn encode(tensors: &[AdapterTensor]) -> Result<Vec<u8>> {
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::serialize(tensors.iter().map(|t| (t.key.as_str(), t)), Some(metadata))
        .map_err(|e| Error::run(format!("cannot encode the adapter: {e}")))
}

/// Reads the file: every tensor as F32, sorted by key.
pub(super) fn decode(path: &Path) -> Result<Vec<AdapterTensor>> {
    let bad = |what: String| Error::checkpoint(format!("'{}' {what}", path.display()));
    let meta = fs::metadata(path).map_err(|e| Error::io("read", path, e))?;
    if !meta.is_file() {
        return Err(bad("is not a file".into()));
    }
    let bytes = fs::read(path).map_err(|e| Error::io("read", path, e))?;
    parse(&bytes).map_err(|what| bad(what).next("copy it again from where it was made"))
}

/// The tensors in `bytes`, or what is wrong with them. Hostile input: never panics.
pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Vec<AdapterTensor>, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("is only {} bytes long", bytes.len()));
    };
    if rest.starts_with(b"on https://git-lfs") || bytes.starts_with(b"version ") {
        return Err("is a Git-LFS pointer, not the file".into());
    }
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        return Err(format!(
            "states a header of {length} bytes in a file of {}: it is cut off or damaged",
            bytes.len()
        ));
    }
    no_duplicates(&rest[..length as usize])?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| format!("is damaged: {e}"))?;
    let mut tensors = Vec::new();
    for (key, view) in file.iter() {
        let data = match view.dtype() {
            Dtype::F32 => widen(view.data(), |b: [u8; 4]| f32::from_le_bytes(b)),
            Dtype::F16 => widen(view.data(), |b: [u8; 2]| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => widen(view.data(), |b: [u8; 2]| bf16::from_le_bytes(b).to_f32()),
            other => {
                return Err(format!("has '{}' as {other:?}: only F32, F16 and BF16 adapters load", clean(key)));
            }
        };
        tensors.push(AdapterTensor { key: key.to_string(), shape: view.shape().to_vec(), data });
    }
    tensors.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(tensors)
}

fn widen<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<N>().0.iter().map(|c| one(*c)).collect()
}

/// The library keeps the last of two equal keys without a word; here that is an error.
fn no_duplicates(header: &[u8]) -> std::result::Result<(), String> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Option<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a map of tensors")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
            let mut seen = HashSet::new();
            let mut twice = None;
            while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                if seen.contains(&key) {
                    twice = Some(key.clone());
                }
                seen.insert(key);
            }
            Ok(twice)
        }
    }
    let mut json = serde_json::Deserializer::from_slice(header);
    match json.deserialize_map(Keys) {
        Ok(None) => Ok(()),
        Ok(Some(key)) => Err(format!("names '{}' twice", clean(&key))),
        Err(e) => Err(format!("has a damaged header: {e}")),
    }
}

/// Which half of a pair a key is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    A,
    B,
}

/// Module, layer number, projection name and half of a PEFT key.
fn split(key: &str) -> std::result::Result<(&str, usize, &str, Half), String> {
    let strange = || format!("'{}' is not a key of a plain PEFT LoRA adapter", clean(key));
    if key.contains("lora_magnitude_vector") {
        return Err(format!("'{}' belongs to DoRA, which this version doesn't have", clean(key)));
    }
    let rest = key.strip_prefix("base_model.model.").ok_or_else(strange)?;
    let (module, half) = if let Some(m) = rest.strip_suffix(".lora_A.weight") {
        (m, Half::A)
    } else if let Some(m) = rest.strip_suffix(".lora_B.weight") {
        (m, Half::B)
    } else {
        return Err(strange());
    };
    let (head, tail) = module.split_once("layers.").ok_or_else(strange)?;
    let (number, path) = tail.split_once('.').ok_or_else(strange)?;
    let layer: usize = number.parse().map_err(|_| strange())?;
    if layer.to_string() != number || !(head.is_empty() || head.ends_with('.')) {
        return Err(strange());
    }
    let target = path.rsplit('.').next().filter(|t| !t.is_empty()).ok_or_else(strange)?;
    Ok((module, layer, target, half))
}

/// Fills in the targets and layers that a pattern left open, from the tensor names.
pub(super) fn settle_targets(stated: Stated, tensors: &[AdapterTensor]) -> std::result::Result<AdapterConfig, String> {
    let mut config = stated.config;
    if stated.plain_targets {
        // PEFT passes over names that the model has no module for. A projection that every model here has, and the
        // adapter lacks, is a torn adapter.
        let mut found = BTreeSet::new();
        for t in tensors {
            found.insert(split(&t.key)?.2);
        }
        let projection = |name: &str| Role::ALL.iter().any(|r| r.lora_target() == Some(name));
        if config.target_modules.iter().any(|t| found.contains(t.as_str())) {
            config.target_modules.retain(|t| found.contains(t.as_str()) || projection(t));
        }
    } else {
        let (mut targets, mut layers) = (BTreeSet::new(), BTreeSet::new());
        for t in tensors {
            let (_, layer, target, _) = split(&t.key)?;
            targets.insert(target.to_string());
            layers.insert(layer);
        }
        config.target_modules = targets.into_iter().collect();
        config.layers_to_transform.get_or_insert(layers.into_iter().collect());
    }
    Ok(config)
}

/// Whether `tensors` are one whole adapter of `config`: every pair, the same targets in every layer, every shape.
pub(super) fn check(config: &AdapterConfig, tensors: &[AdapterTensor]) -> std::result::Result<(), String> {
    if tensors.is_empty() {
        return Err("it has no tensors".into());
    }
    let mut pairs: BTreeMap<&str, [bool; 2]> = BTreeMap::new();
    let mut layers: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for t in tensors {
        let (module, layer, target, half) = split(&t.key)?;
        check_tensor(config.r, t, half)?;
        let seen = &mut pairs.entry(module).or_default()[half as usize];
        if std::mem::replace(seen, true) {
            return Err(format!("'{}' is there twice", clean(&t.key)));
        }
        layers.entry(layer).or_default().insert(target);
    }
    if let Some((module, has)) = pairs.iter().find(|(_, has)| **has != [true; 2]) {
        let missing = if has[0] { "lora_B" } else { "lora_A" };
        return Err(format!("'{}' has no {missing}", clean(module)));
    }
    let wanted: BTreeSet<&str> = config.target_modules.iter().map(String::as_str).collect();
    for (layer, found) in &layers {
        if let Some(t) = wanted.difference(found).next() {
            return Err(format!("layer {layer} has no '{}', which target_modules names", clean(t)));
        }
        if let Some(t) = found.difference(&wanted).next() {
            return Err(format!("layer {layer} has '{}', which target_modules doesn't name", clean(t)));
        }
    }
    if let Some(stated) = &config.layers_to_transform {
        let stated: BTreeSet<usize> = stated.iter().copied().collect();
        let found: BTreeSet<usize> = layers.keys().copied().collect();
        if let Some(l) = stated.symmetric_difference(&found).next() {
            let what = if stated.contains(l) { "has no tensors" } else { "is not in layers_to_transform" };
            return Err(format!("layer {l} {what}"));
        }
    }
    Ok(())
}

fn check_tensor(r: usize, t: &AdapterTensor, half: Half) -> std::result::Result<(), String> {
    let rank_dim = if half == Half::A { 0 } else { 1 };
    let fits = t.shape.len() == 2 && t.shape[rank_dim] == r && !t.shape.contains(&0);
    if !fits {
        let want = if half == Half::A { format!("[{r}, in]") } else { format!("[out, {r}]") };
        return Err(format!("'{}' has shape {:?}, not {want}", clean(&t.key), t.shape));
    }
    if t.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)) != Some(t.data.len()) {
        return Err(format!("'{}' has {} values for shape {:?}", clean(&t.key), t.data.len(), t.shape));
    }
    match t.data.iter().find(|x| !x.is_finite()) {
        Some(x) => Err(format!("'{}' holds {x}", clean(&t.key))),
        None => Ok(()),
    }
}
