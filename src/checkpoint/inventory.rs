//! From a list of tensors to decoder blocks: every tensor has a place, every place its tensor, every shape is the one
//! the config implies.
//!
//! Whether a projection has a bias is decided by its presence in the headers. A block tensor without a place is an
//! error: dropping it would train another model.

use super::families::{Read, experts};
use super::index::{list, plural};
use super::packed::{self, Form};
use super::planned;
use super::types::{Arch, Block, BlockTensor, Family, Role, TensorInfo};
use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Where the text stack may lie, and the head's name beside it, likeliest first.
pub const PREFIXES: [(&str, &[&str]); 4] = [
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
    /// Why it can be planned, not trained.
    pub plan_only: Option<String>,
}

/// The blocks of a family that trains: every tensor has its role, every role its tensor. Scales of FP8 weights, which
/// `packed::form` has found to belong to one, stand beside them.
fn trainable_blocks(
    layers: &[Vec<(&str, usize)>],
    tensors: &[TensorInfo],
    mut strays: Vec<usize>,
    prefix: &str,
    arch: &Arch,
) -> Result<Vec<Block>> {
    let mut placed: Vec<BTreeMap<Role, usize>> = vec![BTreeMap::new(); arch.n_layers];
    let mut scales: Vec<Vec<BlockTensor>> = vec![Vec::new(); arch.n_layers];
    for (n, layer) in layers.iter().enumerate() {
        for &(suffix, i) in layer {
            let role = Role::ALL.into_iter().find(|r| r.suffix() == suffix);
            match role.filter(|r| wanted(*r, arch.family).is_some()) {
                Some(role) => {
                    placed[n].insert(role, i);
                }
                None if packed::is_scale(&tensors[i]) => {
                    scales[n].push(BlockTensor { role: planned::role(suffix), tensor: i });
                }
                None => strays.push(i),
            }
        }
    }
    strays.sort_unstable();
    refuse_strays(tensors, &strays, arch)?;
    refuse_missing(prefix, &placed, arch)?;
    let block = |(index, (roles, scales)): (usize, (&BTreeMap<Role, usize>, Vec<BlockTensor>))| {
        let listed = Role::ALL.iter().filter_map(|&role| Some(BlockTensor { role, tensor: *roles.get(&role)? }));
        let listed: Vec<BlockTensor> = listed.chain(scales).collect();
        let bytes = listed.iter().map(|t| Bytes(tensors[t.tensor].bytes)).sum();
        Block { index, tensors: listed, bytes }
    };
    Ok(placed.iter().zip(scales).enumerate().map(block).collect())
}

/// Finds the place of every tensor of a model of architecture `read.arch`.
///
/// # Errors
/// No decoder block found; a tensor missing, of another shape or type than expected, without a place, quantised in a way
/// that can't be planned, or of a mixture of experts that isn't known.
pub fn assemble(tensors: &[TensorInfo], read: &Read) -> Result<Inventory> {
    let arch = &read.arch;
    let by_name: HashMap<&str, usize> = tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let (prefix, heads) = find_prefix(tensors)?;
    let mut notes = Vec::new();
    let mut layers: Vec<Vec<(&str, usize)>> = vec![Vec::new(); arch.n_layers];
    let (mut unused, mut strays, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
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
        match layer(rest) {
            Some((n, suffix)) if n < arch.n_layers => layers[n].push((suffix, i)),
            Some((n, _)) if n < arch.n_layers + read.next_layers => beyond.push(i),
            _ => strays.push(i),
        }
    }
    let in_blocks: Vec<usize> = layers.iter().flatten().map(|(_, i)| *i).chain(strays.iter().copied()).collect();
    let form = packed::form(tensors, &in_blocks, read.announced, arch)?;
    layers.iter_mut().for_each(|l| l.sort_unstable());
    let blocks = if arch.family == Family::Planned {
        refuse_strays(tensors, &strays, arch)?;
        planned::blocks(&layers, tensors, arch)?
    } else {
        trainable_blocks(&layers, tensors, strays, prefix, arch)?
    };
    for t in blocks.iter().flat_map(|b| &b.tensors) {
        check_type(&tensors[t.tensor], form)?;
        if Role::ALL.contains(&t.role) {
            check_shape(&tensors[t.tensor], &shape(t.role, arch))?;
        }
    }
    note_biases(&mut notes, &blocks[0], read);
    if !beyond.is_empty() {
        let bytes = beyond.iter().map(|&i| Bytes(tensors[i].bytes)).sum::<Bytes>();
        notes.push(format!("layers past the last block predict further tokens ({bytes}): they are not loaded"));
    }

    let (hidden, vocab) = (arch.hidden as u64, arch.vocab as u64);
    let find = |name: &str, shape: &[u64]| -> Result<usize> {
        let &i = by_name.get(name).ok_or_else(|| absent(name))?;
        check_shape(&tensors[i], shape)?;
        check_type(&tensors[i], Form::Plain)?;
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
    unused.extend(beyond);
    let plan_only = packed::plan_only(form).or_else(|| read.plan_only.clone());
    Ok(Inventory { prefix: prefix.into(), embed, final_norm, head, blocks, unused, notes, plan_only })
}

/// The shape of `role` in a block of `arch`; empty for the roles that stand for several names.
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
        Role::AttentionOther | Role::Expert | Role::FeedForwardOther => Vec::new(),
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
        Role::AttentionOther | Role::Expert | Role::FeedForwardOther => None,
    }
}

pub(super) fn find_prefix(tensors: &[TensorInfo]) -> Result<(&'static str, &'static [&'static str])> {
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

/// Layer number and the rest of what follows `layers.` in a name.
fn layer(rest: &str) -> Option<(usize, &str)> {
    let (digits, suffix) = rest.split_once('.')?;
    // Written back and compared, so that `+1` and `01` have no place.
    let layer = digits.parse().ok().filter(|n: &usize| n.to_string() == digits)?;
    Some((layer, suffix))
}

/// Refuses tensors below `layers.` that have no place.
fn refuse_strays(tensors: &[TensorInfo], strays: &[usize], arch: &Arch) -> Result<()> {
    let Some(&first) = strays.first() else {
        return Ok(());
    };
    let name = &tensors[first].name;
    let layer = name.split("layers.").nth(1).and_then(|r| r.split('.').next()).and_then(|d| d.parse::<usize>().ok());
    let past = layer.is_some_and(|n| n >= arch.n_layers);
    let expert = |n: &str| n.contains(".experts.") || n.contains("block_sparse_moe") || n.ends_with(".mlp.gate.weight");
    if !past && let Some(&i) = strays.iter().find(|&&i| expert(&tensors[i].name)) {
        return Err(experts(&format!("tensor '{}'", clean(&tensors[i].name))));
    }
    let family = format!("{:?}", arch.family).to_lowercase();
    let why = match past {
        true => format!("config.json has num_hidden_layers {}", arch.n_layers),
        false => format!("a {family} block has no place for it"),
    };
    let more = match strays.len() {
        1 => String::new(),
        n => format!(" (and {} more such)", n - 1),
    };
    Err(Error::checkpoint(format!("tensor '{}': {why}{more}", clean(name)))
        .next("ignoring it would train another model: check that config.json belongs to these weights"))
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
    for (layer, roles) in placed.iter().enumerate() {
        let qkv = [Role::QBias, Role::KBias, Role::VBias];
        let (here, lost): (Vec<Role>, Vec<Role>) = qkv.into_iter().partition(|r| roles.contains_key(r));
        if let (Some(here), Some(lost)) = (here.first(), lost.first()) {
            let name = |role: &Role| format!("{prefix}layers.{layer}.{}", role.suffix());
            return Err(Error::checkpoint(format!("'{}' is missing, though '{}' is here", name(lost), name(here)))
                .next("fetch the whole model: q, k and v have biases together or not at all"));
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

fn check_shape(t: &TensorInfo, shape: &[u64]) -> Result<()> {
    if t.shape == shape {
        return Ok(());
    }
    Err(Error::checkpoint(format!(
        "tensor '{}' has shape {:?}, but config.json implies {shape:?}",
        clean(&t.name),
        t.shape
    ))
    .next("check that config.json (head_dim, hidden_size, heads, vocab_size) belongs to these weights"))
}

fn check_type(t: &TensorInfo, form: Form) -> Result<()> {
    if packed::countable(t, form) {
        return Ok(());
    }
    let (name, dtype) = (clean(&t.name), t.dtype.name());
    Err(Error::checkpoint(format!("tensor '{name}' has type {dtype}, which is not supported"))
        .next("convert the model to BF16, F16 or F32"))
}

fn note_biases(notes: &mut Vec<String>, block: &Block, read: &Read) {
    if read.arch.family == Family::Planned {
        return;
    }
    let attention = read.attention_bias.unwrap_or(read.arch.family == Family::Qwen2);
    for (what, role, expected) in
        [("q/k/v", Role::QBias, attention), ("gate/up/down", Role::GateBias, read.mlp_bias.unwrap_or(false))]
    {
        let has = block.tensors.iter().any(|t| t.role == role);
        if expected && !has {
            notes.push(format!("config.json implies {what} biases, but the file has none: none are used"));
        } else if has && !expected {
            notes.push(format!("the file has {what} biases that config.json does not announce: they are used"));
        }
    }
}

fn note_unused(notes: &mut Vec<String>, tensors: &[TensorInfo], unused: &[usize], head: Option<&str>, read: &Read) {
    let is_tower =
        |name: &str| ["vision", "visual", "audio", "multi_modal", "mm_proj"].iter().any(|w| name.contains(w));
    let (tower, rest): (Vec<usize>, Vec<usize>) = unused.iter().partition(|&&i| is_tower(&tensors[i].name));
    let sum = |list: &[usize]| list.iter().map(|&i| Bytes(tensors[i].bytes)).sum::<Bytes>();
    if !tower.is_empty() {
        notes.push(format!(
            "vision or audio tower: {} {}, {}, carried, frozen, not streamed: it is not loaded, the model is read as \
             text only",
            tower.len(),
            plural(tower.len(), "tensor", "tensors"),
            sum(&tower)
        ));
    } else if let Some(key) = read.tower {
        notes.push(format!("config.json has {key} but no such tensors are here: read as text only"));
    }
    let rest: Vec<usize> = rest.into_iter().filter(|&i| Some(tensors[i].name.as_str()) != head).collect();
    if !rest.is_empty() {
        let names = list(rest.iter().map(|&i| tensors[i].name.as_str()));
        notes.push(format!("unused: {names} ({})", sum(&rest)));
    }
}
