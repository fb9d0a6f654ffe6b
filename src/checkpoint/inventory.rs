//! From a list of tensors to decoder blocks: every tensor has a place, every place its tensor, every shape is the one
//! the config implies.
//!
//! Whether a projection has a bias is decided by its presence in the headers. A block tensor without a place is an
//! error: dropping it would train another model.

use super::families::{Read, experts, fp8, prequantised};
use super::files::clean;
use super::index::{list, plural};
use super::types::{Arch, Block, BlockTensor, Dtype, Family, Role, TensorInfo};
use crate::error::{Error, Result};
use crate::units::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Where the text stack may lie, and the head's name beside it, likeliest first.
const PREFIXES: [(&str, &[&str]); 4] = [
    ("model.", &["lm_head.weight"]),
    ("model.language_model.", &["lm_head.weight", "model.lm_head.weight"]),
    ("language_model.model.", &["language_model.lm_head.weight", "lm_head.weight"]),
    ("", &["lm_head.weight"]),
];

/// The parts of a model, as indexes into the list of tensors.
#[derive(Debug)]
pub struct Inventory {
    /// Name prefix of the text stack.
    pub prefix: String,
    /// Embedding table.
    pub embed: usize,
    /// Final norm.
    pub final_norm: usize,
    /// Head, `None` when tied.
    pub head: Option<usize>,
    /// Decoder blocks, in order.
    pub blocks: Vec<Block>,
    /// Tensors nothing uses.
    pub unused: Vec<usize>,
    /// What the user should see.
    pub notes: Vec<String>,
}

/// Finds the place of every tensor of a model of architecture `read.arch`.
///
/// # Errors
/// No decoder block found; a tensor missing, of another shape or type than expected, without a place, quantised, or of a
/// mixture of experts.
pub fn assemble(tensors: &[TensorInfo], read: &Read) -> Result<Inventory> {
    let arch = &read.arch;
    let by_name: HashMap<&str, usize> = tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let (prefix, heads) = find_prefix(tensors)?;
    let mut notes = Vec::new();
    let mut placed: Vec<BTreeMap<Role, usize>> = vec![BTreeMap::new(); arch.n_layers];
    let (mut unused, mut strays) = (Vec::new(), Vec::new());
    for (i, t) in tensors.iter().enumerate() {
        let Some(rest) = t.name.strip_prefix(prefix).and_then(|n| n.strip_prefix("layers.")) else {
            unused.push(i);
            continue;
        };
        if rest.ends_with(".rotary_emb.inv_freq") {
            // Old exports store a buffer that the config already determines; transformers ignores it too.
            unused.push(i);
            continue;
        }
        match place(rest, arch) {
            Some((layer, role)) => {
                placed[layer].insert(role, i);
            }
            None => strays.push(i),
        }
    }
    refuse_strays(tensors, &strays, &placed, arch)?;
    refuse_missing(prefix, &placed, arch)?;

    let mut blocks = Vec::with_capacity(arch.n_layers);
    for (index, roles) in placed.iter().enumerate() {
        for (&role, &tensor) in roles {
            check(&tensors[tensor], &shape(role, arch))?;
        }
        let listed = Role::ALL.iter().filter_map(|&role| Some(BlockTensor { role, tensor: *roles.get(&role)? }));
        let bytes = roles.values().map(|&i| Bytes(tensors[i].bytes)).sum();
        blocks.push(Block { index, tensors: listed.collect(), bytes });
    }
    note_biases(&mut notes, &placed[0], read);

    let (hidden, vocab) = (arch.hidden as u64, arch.vocab as u64);
    let find = |name: &str, shape: &[u64]| -> Result<usize> {
        let &i = by_name.get(name).ok_or_else(|| absent(name))?;
        check(&tensors[i], shape)?;
        Ok(i)
    };
    let embed = find(&format!("{prefix}embed_tokens.weight"), &[vocab, hidden])?;
    let final_norm = find(&format!("{prefix}norm.weight"), &[hidden])?;
    let stored_head = heads.iter().copied().find(|h| by_name.contains_key(h));
    let head = match stored_head {
        Some(name) if arch.tied => {
            notes.push(format!("the stored '{name}' is ignored: tie_word_embeddings makes the embedding the head"));
            None
        }
        None if arch.tied => None,
        Some(name) => Some(find(name, &[vocab, hidden])?),
        None => {
            let advice =
                "fetch the whole model; if the head is the embedding, config.json must say tie_word_embeddings: true";
            return Err(absent(heads[0]).next(advice));
        }
    };
    unused.retain(|&i| i != embed && i != final_norm && Some(i) != head);
    note_unused(&mut notes, tensors, &unused, stored_head.filter(|_| arch.tied), read);
    Ok(Inventory { prefix: prefix.into(), embed, final_norm, head, blocks, unused, notes })
}

/// The shape of `role` in a block of `arch`.
#[must_use]
pub fn shape(role: Role, arch: &Arch) -> Vec<u64> {
    let (hidden, inter, d) = (arch.hidden as u64, arch.intermediate as u64, arch.head_dim as u64);
    let (q, kv) = (arch.n_heads as u64 * d, arch.n_kv_heads as u64 * d);
    match role {
        Role::InputNorm | Role::PostNorm | Role::OBias | Role::DownBias => vec![hidden],
        Role::Q => vec![q, hidden],
        Role::K | Role::V => vec![kv, hidden],
        Role::O => vec![hidden, q],
        Role::QBias => vec![q],
        Role::KBias | Role::VBias => vec![kv],
        Role::QNorm | Role::KNorm => vec![d],
        Role::Gate | Role::Up => vec![inter, hidden],
        Role::Down => vec![hidden, inter],
        Role::GateBias | Role::UpBias => vec![inter],
    }
}

/// Whether a block of `family` must have `role` (`Some(true)`), may have it, or has no place for it (`None`).
fn wanted(role: Role, family: Family) -> Option<bool> {
    match role {
        Role::InputNorm | Role::PostNorm | Role::Q | Role::K | Role::V | Role::O => Some(true),
        Role::Gate | Role::Up | Role::Down => Some(true),
        Role::QNorm | Role::KNorm => (family == Family::Qwen3).then_some(true),
        Role::QBias | Role::KBias | Role::VBias => (family != Family::Mistral).then_some(false),
        Role::OBias => matches!(family, Family::Llama | Family::Qwen3).then_some(false),
        Role::GateBias | Role::UpBias | Role::DownBias => (family == Family::Llama).then_some(false),
    }
}

fn find_prefix(tensors: &[TensorInfo]) -> Result<(&'static str, &'static [&'static str])> {
    let is_block = |name: &str| {
        let suffix = name.strip_prefix("layers.").and_then(|r| r.split_once('.')).map(|(_, s)| s);
        suffix.is_some_and(|s| Role::ALL.iter().any(|r| s.starts_with(r.suffix().trim_end_matches(".weight"))))
    };
    let found = |prefix: &str| tensors.iter().any(|t| t.name.strip_prefix(prefix).is_some_and(is_block));
    if let Some(hit) = PREFIXES.into_iter().find(|(prefix, _)| found(prefix)) {
        return Ok(hit);
    }
    let first = list(tensors.iter().map(|t| t.name.as_str()).take(3));
    Err(Error::checkpoint(format!(
        "no tensor of a decoder block found among {} (first: {first}); looked for 'model.layers.N.…', \
         'model.language_model.layers.N.…', 'language_model.model.layers.N.…' and 'layers.N.…'",
        tensors.len()
    )))
}

/// Layer and role of what follows `layers.` in a name.
fn place(rest: &str, arch: &Arch) -> Option<(usize, Role)> {
    let (digits, suffix) = rest.split_once('.')?;
    // Written back and compared, so that `+1` and `01` have no place.
    let layer: usize = digits.parse().ok().filter(|n: &usize| *n < arch.n_layers && n.to_string() == digits)?;
    let role = Role::ALL.into_iter().find(|r| r.suffix() == suffix)?;
    wanted(role, arch.family).map(|_| (layer, role))
}

/// Refuses tensors below `layers.` that have no place, and quantised ones that only look as if they had.
fn refuse_strays(
    tensors: &[TensorInfo],
    strays: &[usize],
    placed: &[BTreeMap<Role, usize>],
    arch: &Arch,
) -> Result<()> {
    let all = strays.iter().chain(placed.iter().flat_map(BTreeMap::values));
    for t in all.map(|&i| &tensors[i]) {
        if let Some(e) = quantised(t, tensors) {
            return Err(e);
        }
    }
    let Some(&first) = strays.first() else {
        return Ok(());
    };
    let name = &tensors[first].name;
    let expert = |n: &str| n.contains(".experts.") || n.contains("block_sparse_moe") || n.ends_with(".mlp.gate.weight");
    if let Some(&i) = strays.iter().find(|&&i| expert(&tensors[i].name)) {
        return Err(experts(&format!("tensor '{}'", clean(&tensors[i].name))));
    }
    let layer = name.split("layers.").nth(1).and_then(|r| r.split('.').next()).and_then(|d| d.parse::<usize>().ok());
    let family = format!("{:?}", arch.family).to_lowercase();
    let why = match layer {
        Some(n) if n >= arch.n_layers => format!("config.json has num_hidden_layers {}", arch.n_layers),
        _ => format!("a {family} block has no place for it"),
    };
    let more = match strays.len() {
        1 => String::new(),
        n => format!(" (and {} more such)", n - 1),
    };
    Err(Error::checkpoint(format!("tensor '{}': {why}{more}", clean(name)))
        .next("ignoring it would train another model: check that config.json belongs to these weights"))
}

/// The refusal for a tensor that shows its model was quantised, whatever the config says.
fn quantised(t: &TensorInfo, all: &[TensorInfo]) -> Option<Error> {
    let name = clean(&t.name);
    let ends = |list: &[&str]| list.iter().any(|s| t.name.ends_with(s));
    if ends(&[".qweight", ".qzeros", ".g_idx"]) {
        return Some(prequantised(&format!("gptq or awq: tensor '{name}'")));
    }
    if ends(&[".absmax", ".quant_map"]) || t.name.contains(".quant_state.") {
        return Some(prequantised(&format!("bnb: tensor '{name}'")));
    }
    let Dtype::Other(dtype, _) = &t.dtype else {
        let scale = ends(&["weight_scale_inv", "weight_scale", "scale_weight", "input_scale"]);
        return scale.then(|| fp8(&format!("'{name}' is a scale of quantised weights")));
    };
    if dtype.starts_with("F8_") {
        let stem = t.name.trim_end_matches(".weight");
        let scaled = all.iter().any(|o| o.name != t.name && o.name.starts_with(stem) && o.name.contains("scale"));
        let scale = if scaled { "" } else { ", and no scale tensor for it is stored" };
        return Some(fp8(&format!("'{name}' is {dtype}{scale}")));
    }
    if ["U8", "I8", "I32", "U32"].contains(&dtype.as_str()) {
        return Some(prequantised(&format!("tensor '{name}' is {dtype}")));
    }
    None
}

fn refuse_missing(prefix: &str, placed: &[BTreeMap<Role, usize>], arch: &Arch) -> Result<()> {
    let mut missing = Vec::new();
    for (layer, roles) in placed.iter().enumerate() {
        for role in Role::ALL {
            let needed = wanted(role, arch.family) == Some(true) || placed[0].contains_key(&role);
            if needed && !roles.contains_key(&role) {
                missing.push(format!("{prefix}layers.{layer}.{}", role.suffix()));
            }
        }
    }
    // A bias that only later blocks have is as much a sign of a broken copy as one that only the first has.
    for (layer, roles) in placed.iter().enumerate() {
        if let Some(role) = roles.keys().find(|r| !placed[0].contains_key(r) && wanted(**r, arch.family) == Some(false))
        {
            let (here, there) = (role.suffix(), format!("{prefix}layers.0.{}", role.suffix()));
            return Err(Error::checkpoint(format!("block {layer} has '{here}' but block 0 has no '{there}'"))
                .next("fetch the whole model"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::checkpoint(format!(
        "{} {} missing: {}",
        missing.len(),
        plural(missing.len(), "tensor is", "tensors are"),
        list(missing.iter().map(String::as_str))
    ))
    .next("fetch the whole model, or the config.json that belongs to it"))
}

fn absent(name: &str) -> Error {
    Error::checkpoint(format!("tensor '{}' is missing", clean(name))).next("fetch the whole model")
}

fn check(t: &TensorInfo, shape: &[u64]) -> Result<()> {
    let name = clean(&t.name);
    if t.shape != shape {
        return Err(Error::checkpoint(format!(
            "tensor '{name}' has shape {:?}, but config.json implies {shape:?}",
            t.shape
        ))
        .next("check that config.json (head_dim, hidden_size, heads, vocab_size) belongs to these weights"));
    }
    if !t.dtype.is_trainable() {
        return Err(Error::checkpoint(format!("tensor '{name}' has type {}, which is not supported", t.dtype.name()))
            .next("convert the model to BF16, F16 or F32"));
    }
    Ok(())
}

fn note_biases(notes: &mut Vec<String>, block: &BTreeMap<Role, usize>, read: &Read) {
    let has = block.contains_key(&Role::QBias);
    let expected = read.attention_bias.unwrap_or(read.arch.family == Family::Qwen2);
    if expected && !has {
        notes.push("config.json implies q/k/v biases, but the file has none: none are used".into());
    } else if has && !expected {
        notes.push("the file has q/k/v biases that config.json does not announce: they are used".into());
    }
}

fn note_unused(notes: &mut Vec<String>, tensors: &[TensorInfo], unused: &[usize], head: Option<&str>, read: &Read) {
    let is_tower =
        |name: &str| ["vision", "visual", "audio", "multi_modal", "mm_proj"].iter().any(|w| name.contains(w));
    let (tower, rest): (Vec<usize>, Vec<usize>) = unused.iter().partition(|&&i| is_tower(&tensors[i].name));
    let sum = |list: &[usize]| list.iter().map(|&i| Bytes(tensors[i].bytes)).sum::<Bytes>();
    if !tower.is_empty() {
        notes.push(format!(
            "vision or audio tower: {} tensors, {}, carried, frozen, not streamed",
            tower.len(),
            sum(&tower)
        ));
    } else if let Some(key) = read.tower {
        notes.push(format!("config.json has {key} but no such tensors are here: read as a text-only model"));
    }
    let rest: Vec<usize> = rest.into_iter().filter(|&i| Some(tensors[i].name.as_str()) != head).collect();
    if !rest.is_empty() {
        let names = list(rest.iter().map(|&i| tensors[i].name.as_str()));
        notes.push(format!("unused: {names} ({})", sum(&rest)));
    }
}
