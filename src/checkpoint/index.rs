//! Which weights files make up a model: the index, or the one file, with strays named and absences explained.
//!
//! Shard names are hostile input: every one is checked before any file is touched. `metadata.total_size` is never
//! believed; where it disagrees with the headers, that is one note.

use super::files::{open_regular, parse_json, read_small, shown};
use super::{header, keys};
use crate::error::{Error, Result};
use crate::files;
use crate::text::clean;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Name of the index file.
pub const INDEX: &str = "model.safetensors.index.json";
/// Name of the only weights file of a small model.
pub const SINGLE: &str = "model.safetensors";
/// Largest index that is read; a model of a million tensors stays below it.
pub const MAX_INDEX: u64 = 256 << 20;
/// Most shards a model may have.
const MAX_SHARDS: usize = 10_000;
/// Most tensors that an index may name: the largest public models have some 200,000.
const MAX_TENSORS: usize = 1_000_000;

/// The weights files of a model folder.
#[derive(Debug, Default)]
pub struct WeightSet {
    /// In the order of their names.
    pub files: Vec<Source>,
    /// Tensors the index names, with the file (by number) that should hold each; empty without an index.
    pub expected: Vec<(String, usize)>,
    /// `metadata.total_size` of the index as it is written there.
    pub claimed_total: Option<Value>,
    /// What the user should see: ignored files, files taken without an index.
    pub notes: Vec<String>,
}

/// One weights file, or its header alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name relative to the model folder.
    pub name: String,
    /// The weights file, or where it would be.
    pub path: PathBuf,
    /// `<name>.header.json`, when the weights are not here.
    pub header_only: Option<PathBuf>,
}

/// Finds the weights files of the model folder `dir`.
///
/// # Errors
/// No safetensors files, files that the index names are absent, names that leave the folder, or several files with no
/// index to tell which count.
pub fn weights(dir: &Path) -> Result<WeightSet> {
    if exists(&dir.join(INDEX)) {
        return by_index(dir);
    }
    let present = safetensors_in(dir);
    let mut set = WeightSet::default();
    let name = if let Some(source) = source(dir, SINGLE) {
        set.files.push(source);
        SINGLE.to_string()
    } else {
        let [only] = present.as_slice() else {
            return Err(no_weights(dir, &present));
        };
        set.files.extend(source(dir, only));
        set.notes.push(format!("weights taken from '{}', the only safetensors file", clean(only)));
        only.clone()
    };
    note_ignored(&mut set, &present, |n| n == name, "not part of the model");
    Ok(set)
}

/// Writes a new index over all safetensors files in `dir` (adapters aside), for a model whose index is stale or gone.
///
/// The old index, if any, is kept beside it with `.old` added to its name. Returns the index's path.
///
/// # Errors
/// No safetensors files, a header that can't be read, one tensor name in two files, or the disk refuses.
pub fn rebuild(dir: &Path) -> Result<PathBuf> {
    let present = safetensors_in(dir);
    if present.is_empty() {
        return Err(no_weights(dir, &present));
    }
    let (mut map, mut total) = (BTreeMap::<String, String>::new(), 0u64);
    for name in &present {
        for t in header::read(&dir.join(name))?.header.tensors {
            total += t.end - t.begin;
            if let Some(other) = map.insert(t.name.clone(), name.clone()) {
                return Err(twice(&t.name, &other, name).next("move the file that isn't part of the model away"));
            }
        }
    }
    let path = dir.join(INDEX);
    if exists(&path) {
        let old = dir.join(format!("{INDEX}.old"));
        std::fs::rename(&path, &old).map_err(|e| Error::io("rename", &path, e))?;
    }
    let text = format!("{:#}\n", json!({ "metadata": { "total_size": total }, "weight_map": map }));
    files::replace(&path, text.as_bytes())?;
    Ok(path)
}

/// [`rebuild`], but only where the index is stale or gone and the other files hold every tensor that it named; otherwise
/// nothing is written. Returns what was done.
///
/// # Errors
/// As [`rebuild`]. What an index lacks that the other files lack too, is left for opening to refuse.
pub fn rebuild_stale(dir: &Path) -> Result<Option<String>> {
    let stale = if exists(&dir.join(INDEX)) {
        let path = dir.join(INDEX);
        let index: Index = parse_json(&path, &read_small(&path, MAX_INDEX)?)?;
        let named: BTreeSet<&str> = index.weight_map.iter().map(|(_, file)| file.as_str()).collect();
        for name in &named {
            check_name(name, &path)?;
        }
        let absent: BTreeSet<&str> = named.iter().copied().filter(|name| source(dir, name).is_none()).collect();
        !absent.is_empty() && covered(dir, &index.weight_map, &absent, &named).is_some()
    } else {
        source(dir, SINGLE).is_none() && safetensors_in(dir).len() > 1
    };
    if !stale {
        return Ok(None);
    }
    let old = exists(&dir.join(INDEX));
    rebuild(dir)?;
    let kept = if old { format!("; the old one is '{INDEX}.old'") } else { String::new() };
    Ok(Some(format!("the index was rebuilt from the {} files here, as asked{kept}", safetensors_in(dir).len())))
}

/// The error for a tensor that two files hold.
pub(super) fn twice(tensor: &str, a: &str, b: &str) -> Error {
    Error::checkpoint(format!("tensor '{}' is in both '{}' and '{}'", clean(tensor), clean(a), clean(b)))
        .next("fetch the model again: its index must say which file counts")
}

/// Names of the weights files in the index's `bytes`, each one that stays in the model folder. `path` is for messages.
///
/// # Errors
/// Not an index, one without tensors or with too many files, or a name that leaves the folder.
pub fn shard_names(path: &Path, bytes: &[u8]) -> Result<BTreeSet<String>> {
    let index: Index = parse_json(path, bytes)?;
    Ok(checked_names(path, &index)?.into_iter().map(String::from).collect())
}

fn checked_names<'a>(path: &Path, index: &'a Index) -> Result<BTreeSet<&'a str>> {
    if index.weight_map.is_empty() {
        return Err(Error::checkpoint(format!("{} names no tensors", shown(path))));
    }
    // Every name is checked before any file is looked at.
    let names: BTreeSet<&str> = index.weight_map.iter().map(|(_, file)| file.as_str()).collect();
    for name in &names {
        check_name(name, path)?;
    }
    if names.len() > MAX_SHARDS {
        return Err(Error::checkpoint(format!("{} names {} files", shown(path), names.len())));
    }
    Ok(names)
}

fn by_index(dir: &Path) -> Result<WeightSet> {
    let path = dir.join(INDEX);
    let index: Index = parse_json(&path, &read_small(&path, MAX_INDEX)?)?;
    let names = checked_names(&path, &index)?;
    let mut seen = HashSet::new();
    if let Some((tensor, _)) = index.weight_map.iter().find(|(tensor, _)| !seen.insert(tensor.as_str())) {
        return Err(Error::checkpoint(format!("{} names tensor '{}' twice", shown(&path), clean(tensor))));
    }
    let mut set = WeightSet {
        claimed_total: index.metadata.as_ref().and_then(|m| m.get("total_size").cloned()),
        ..WeightSet::default()
    };
    set.notes.extend(keys::check("the index", keys::INDEX, &index.other)?);
    if let Some(metadata) = &index.metadata {
        set.notes.extend(keys::check("the index's metadata", keys::INDEX_METADATA, metadata)?);
    }
    let mut absent = BTreeSet::new();
    for &name in &names {
        match source(dir, name) {
            Some(source) => set.files.push(source),
            None => drop(absent.insert(name)),
        }
    }
    if !absent.is_empty() {
        return Err(absent_files(dir, &index.weight_map, &absent, &names));
    }
    let number: BTreeMap<&str, usize> = names.iter().enumerate().map(|(i, &n)| (n, i)).collect();
    set.expected = index.weight_map.iter().map(|(t, f)| (t.clone(), number[f.as_str()])).collect();
    note_ignored(&mut set, &safetensors_in(dir), |n| names.contains(n), "the index does not name them");
    Ok(set)
}

/// The weights file `name` of `dir`, or its header alone; `None` when neither is there.
fn source(dir: &Path, name: &str) -> Option<Source> {
    let path = dir.join(name);
    // A dangling link counts as present: reading it says what is wrong with it.
    if path.symlink_metadata().is_ok() {
        return Some(Source { name: name.into(), path, header_only: None });
    }
    let header = dir.join(format!("{name}.header.json"));
    exists(&header).then(|| Source { name: name.into(), path, header_only: Some(header) })
}

/// Refuses a shard name that isn't a plain relative path inside the folder.
fn check_name(name: &str, index: &Path) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::checkpoint(format!("{}: {why}: '{}'", shown(index), clean(name)))
            .next("don't use this model: its index is broken or hostile"))
    };
    if name.is_empty() || name.chars().any(char::is_control) || name.contains('\\') {
        return refuse("not a file name");
    }
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            _ => return refuse("shard name escapes the model folder"),
        }
    }
    // One file has one name: './x', 'a//x' and 'x/' would be links to nowhere in a download.
    if parts.iter().collect::<PathBuf>().as_os_str() != name {
        return refuse("shard name is not a plain path");
    }
    if !name.ends_with(".safetensors") {
        return refuse("shard is not a safetensors file");
    }
    Ok(())
}

/// How many files that the index doesn't name hold every tensor that the `absent` ones should, and how many those are.
fn covered(
    dir: &Path,
    map: &[(String, String)],
    absent: &BTreeSet<&str>,
    named: &BTreeSet<&str>,
) -> Option<(usize, usize)> {
    let lost: BTreeSet<&str> =
        map.iter().filter(|(_, f)| absent.contains(f.as_str())).map(|(t, _)| t.as_str()).collect();
    let others: Vec<String> = safetensors_in(dir).into_iter().filter(|n| !named.contains(n.as_str())).collect();
    let held: HashSet<String> = others
        .iter()
        .filter_map(|n| header::read(&dir.join(n)).ok())
        .flat_map(|h| h.header.tensors.into_iter().map(|t| t.name))
        .collect();
    (!others.is_empty() && lost.iter().all(|t| held.contains(*t))).then_some((others.len(), lost.len()))
}

/// The error for an index whose files are not all here.
fn absent_files(dir: &Path, map: &[(String, String)], absent: &BTreeSet<&str>, named: &BTreeSet<&str>) -> Error {
    if let Some((others, lost)) = covered(dir, map, absent, named) {
        return Error::checkpoint(format!(
            "{}: the index names {} absent {}; {others} other safetensors {} all {lost} expected tensors",
            shown(dir),
            absent.len(),
            plural(absent.len(), "file", "files"),
            plural(others, "file covers", "files cover"),
        ))
        .next("if those files are the model, rebuild the index: --rebuild-index (model.rebuild_index = true)");
    }
    let lost = map.iter().filter(|(_, f)| absent.contains(f.as_str())).count();
    Error::checkpoint(format!(
        "{} lacks {} of {} weights files: {}, with {} of {} tensors (incomplete copy or download?)",
        shown(dir),
        absent.len(),
        named.len(),
        list(absent.iter().copied()),
        lost,
        map.len()
    ))
    .next("fetch the missing files")
}

/// The error for a folder without usable weights: says what lies there instead.
fn no_weights(dir: &Path, present: &[String]) -> Error {
    if !present.is_empty() {
        return Error::checkpoint(format!(
            "{} holds {} safetensors files ({}) but no {INDEX} to say which belong together",
            shown(dir),
            present.len(),
            list(present.iter().map(String::as_str))
        ))
        .next("fetch the index, or rebuild it from these files: --rebuild-index (model.rebuild_index = true)");
    }
    let has = |end: &str| names_in(dir).iter().any(|n| n.ends_with(end));
    let (what, next) = if has(".gguf") {
        ("only a GGUF file", "turn it into a model folder: blockstream-tui import FILE.gguf --to DIR")
    } else if dir.join("adapter_model.safetensors").exists() {
        ("only an adapter's weights", "give the base model's folder; the adapter goes to --adapter or lora.init_from")
    } else if has(".bin") || has(".pth") || has(".pt") {
        (
            "only pickled PyTorch weights",
            "convert them to safetensors, or fetch the safetensors files of the same model",
        )
    } else if has(".incomplete") {
        ("only unfinished downloads", "download the model again")
    } else {
        ("no weights", "give the folder that holds config.json and the safetensors files")
    };
    Error::checkpoint(format!("{} has no safetensors files, {what}", shown(dir))).next(next)
}

/// Names of the safetensors files directly in `dir`, or of those whose header alone is here; adapters aside, sorted.
fn safetensors_in(dir: &Path) -> Vec<String> {
    let names = names_in(dir).into_iter().filter_map(|n| {
        let n = n.strip_suffix(".header.json").unwrap_or(&n).to_string();
        (n.ends_with(".safetensors") && n != "adapter_model.safetensors" && !n.starts_with('.')).then_some(n)
    });
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
}

fn note_ignored(set: &mut WeightSet, present: &[String], used: impl Fn(&str) -> bool, why: &str) {
    let mut ignored: Vec<&str> = present.iter().map(String::as_str).filter(|n| !used(n)).collect();
    let dir = set.files.first().and_then(|f| f.path.parent());
    if dir.is_some_and(|d| exists(&d.join("adapter_model.safetensors"))) {
        ignored.insert(0, "adapter_model.safetensors");
    }
    if !ignored.is_empty() {
        set.notes.push(format!("ignored {}: {why}", list(ignored.into_iter())));
    }
}

/// Whether something readable is there, without caring what.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// At most five names in quotes, then a count.
pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let mut text = names.iter().take(5).map(|n| format!("'{}'", clean(n))).collect::<Vec<_>>().join(", ");
    if names.len() > 5 {
        text += &format!(" and {} more", names.len() - 5);
    }
    text
}

/// `one` for one, else `many`.
pub(super) fn plural<'a>(n: usize, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: Option<serde_json::Map<String, Value>>,
    #[serde(deserialize_with = "pairs")]
    weight_map: Vec<(String, String)>,
    #[serde(flatten)]
    other: serde_json::Map<String, Value>,
}

/// A JSON object of strings as pairs, so that a key given twice is seen.
fn pairs<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(String, String)>, D::Error> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<(String, String)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object from tensor names to file names")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut out = Vec::new();
            while let Some(pair) = map.next_entry()? {
                if out.len() == MAX_TENSORS {
                    return Err(A::Error::custom(format!("it names more than {MAX_TENSORS} tensors")));
                }
                out.push(pair);
            }
            Ok(out)
        }
    }
    d.deserialize_map(Pairs)
}

/// Resolves links in the path of a weights file, after a look that it is one.
pub(super) fn resolved(path: &Path) -> Result<PathBuf> {
    open_regular(path)?;
    path.canonicalize().map_err(|e| Error::io("read", path, e))
}
