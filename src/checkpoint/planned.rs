//! Families that can be planned, not trained: blocks by layer number, with every tensor of a layer counted.
//!
//! Known families only: a block of unknown meaning would make a plan of unknown worth. Their attention and feed-forward
//! follow the common names where they have them, so shapes are checked as those of trainable families are.

use super::index::list;
use super::types::{Arch, Block, BlockTensor, Part, Role, TensorInfo};
use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::Bytes;
use std::collections::BTreeMap;

/// A family and the class defaults (transformers' configuration files) of keys that its public configs leave out.
#[derive(Debug)]
pub struct Known {
    /// `model_type`, without the `_text` of a nested config.
    pub name: &'static str,
    /// Keys and their values as JSON.
    pub defaults: &'static [(&'static str, &'static str)],
}

const TIED: (&str, &str) = ("tie_word_embeddings", "true");

/// The families.
const FAMILIES: [Known; 14] = [
    Known { name: "gpt_oss", defaults: &[("head_dim", "64")] },
    Known { name: "qwen3_vl", defaults: &[("head_dim", "128")] },
    Known { name: "qwen3_vl_moe", defaults: &[("head_dim", "128")] },
    Known { name: "qwen3_moe", defaults: &[("head_dim", "128")] },
    Known { name: "qwen2_moe", defaults: &[] },
    Known { name: "qwen2_vl", defaults: &[] },
    Known { name: "qwen2_5_vl", defaults: &[] },
    Known { name: "mixtral", defaults: &[] },
    Known { name: "glm4_moe", defaults: &[("head_dim", "128")] },
    Known { name: "glm4v_moe", defaults: &[("head_dim", "128")] },
    Known { name: "gemma", defaults: &[("head_dim", "256"), TIED] },
    Known { name: "gemma2", defaults: &[("head_dim", "256"), TIED] },
    Known {
        name: "gemma3",
        defaults: &[
            ("num_attention_heads", "8"),
            ("num_key_value_heads", "4"),
            ("head_dim", "256"),
            ("vocab_size", "262208"),
            TIED,
        ],
    },
    Known { name: "phi3", defaults: &[] },
];

/// The family of a `model_type`, with or without `_text`.
pub fn known(model_type: &str) -> Option<&'static Known> {
    let name = model_type.strip_suffix("_text").unwrap_or(model_type);
    FAMILIES.iter().find(|f| f.name == name)
}

/// Why a model of the family is for planning only.
pub fn reason(family: &Known) -> String {
    format!("{}: this version can plan it, not train it", family.name)
}

/// What the tensor named `suffix` below `layers.N.` does.
pub fn role(suffix: &str) -> Role {
    if let Some(role) = Role::ALL.into_iter().find(|r| r.suffix() == suffix) {
        return role;
    }
    if !["mlp.", "block_sparse_moe."].iter().any(|half| suffix.starts_with(half)) {
        return Role::AttentionOther;
    }
    let routed = suffix.split('.').any(|s| s == "experts");
    if routed && !suffix.ends_with("bias") { Role::Expert } else { Role::FeedForwardOther }
}

/// Blocks from what each layer holds: `placed[n]` are the tensors of layer n with their names below `layers.n.`.
///
/// # Errors
/// A layer lacks a half, or a tensor that its like have, or experts are missing.
pub fn blocks(placed: &[Vec<(&str, usize)>], tensors: &[TensorInfo], arch: &Arch) -> Result<Vec<Block>> {
    let mut first_of: BTreeMap<bool, usize> = BTreeMap::new();
    let mut blocks = Vec::with_capacity(placed.len());
    for (index, layer) in placed.iter().enumerate() {
        let listed: Vec<BlockTensor> =
            layer.iter().map(|&(name, tensor)| BlockTensor { role: role(name), tensor }).collect();
        let has_experts = check_experts(index, layer, tensors, arch)?;
        for (half, attention) in [("attention", true), ("feed-forward", false)] {
            let matrix =
                |t: &&BlockTensor| (t.role.part() == Part::Attention) == attention && tensors[t.tensor].shape.len() > 1;
            if !listed.iter().any(|t| matrix(&t)) {
                return Err(Error::checkpoint(format!("layer {index} has no {half} weights")).next(FETCH));
            }
        }
        // Blocks with experts are alike, and so are those without: one that differs is a broken copy.
        let like = *first_of.entry(has_experts).or_insert(index);
        if let Some(name) = placed[like].iter().map(|(n, _)| *n).find(|n| !has(layer, n)) {
            return Err(
                Error::checkpoint(format!("layer {index} lacks '{}', which layer {like} has", clean(name))).next(FETCH)
            );
        }
        if let Some(name) = layer.iter().map(|(n, _)| *n).find(|n| !has(&placed[like], n)) {
            return Err(
                Error::checkpoint(format!("layer {index} has '{}', which layer {like} lacks", clean(name))).next(FETCH)
            );
        }
        let bytes = listed.iter().map(|t| Bytes(tensors[t.tensor].bytes)).sum();
        blocks.push(Block { index, tensors: listed, bytes });
    }
    Ok(blocks)
}

const FETCH: &str = "fetch the whole model, or the config.json that belongs to it";

/// Whether the sorted `layer` has `name`.
fn has(layer: &[(&str, usize)], name: &str) -> bool {
    layer.binary_search_by(|(n, _)| (*n).cmp(name)).is_ok()
}

/// Whether the layer has routed experts; all of them must be there, one by one or in tensors of all.
fn check_experts(index: usize, layer: &[(&str, usize)], tensors: &[TensorInfo], arch: &Arch) -> Result<bool> {
    let experts: Vec<&(&str, usize)> = layer.iter().filter(|(name, _)| role(name) == Role::Expert).collect();
    let Some((first, _)) = experts.first() else {
        return Ok(false);
    };
    let Some(count) = arch.experts.map(|e| e.count) else {
        let what = format!("layer {index} has experts ('{}'), but config.json names no number of them", clean(first));
        return Err(Error::checkpoint(what).next(FETCH));
    };
    let mut of_each = vec![0usize; count];
    for (name, tensor) in experts {
        let number = name.split('.').skip_while(|s| *s != "experts").nth(1).and_then(|s| s.parse::<usize>().ok());
        let t = &tensors[*tensor];
        match number {
            Some(n) if n < count => of_each[n] += 1,
            None if t.shape.first() == Some(&(count as u64)) => of_each.iter_mut().for_each(|n| *n += 1),
            _ => {
                let what = format!("tensor '{}' of shape {:?} is not of {count} experts", clean(&t.name), t.shape);
                return Err(Error::checkpoint(what).next(FETCH));
            }
        }
    }
    let most = of_each.iter().max().copied().unwrap_or(0);
    let short: Vec<String> =
        of_each.iter().enumerate().filter(|(_, n)| **n < most).map(|(e, _)| e.to_string()).collect();
    if !short.is_empty() {
        let what = format!("layer {index}: experts {} are incomplete", list(short.iter().map(String::as_str)));
        return Err(Error::checkpoint(what).next(FETCH));
    }
    Ok(true)
}
