//! `config.json` of transformers 4 and 5, read into an [`Arch`].
//!
//! Every key is checked where it is read; an unknown family, activation, rope rule or quantisation refuses by name.
//! Defaults are those of transformers' configuration classes, and a default taken is a note.

use super::keys::{CONFIG, check};
use super::packed::{self, Form};
use super::planned::{self, Known};
use super::rope;
use super::types::{Activation, Arch, Experts, Family, Rope, RopeScaling, SpecialIds, TensorInfo};
use crate::error::{Error, Result};
use crate::text::clean;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Largest value believed for a width, a count of heads or of layers.
const MAX_DIM: u64 = 1 << 24;
/// Most decoder blocks.
const MAX_LAYERS: u64 = 4096;

/// What `config.json` says, and what the user should see about it.
#[derive(Clone, Debug)]
pub struct Read {
    /// The architecture.
    pub arch: Arch,
    /// Defaults taken, keys that disagree.
    pub notes: Vec<String>,
    /// Name of a vision or audio config beside the text config, if any.
    pub tower: Option<&'static str>,
    /// `attention_bias` as written.
    pub attention_bias: Option<bool>,
    /// `mlp_bias` as written.
    pub mlp_bias: Option<bool>,
    /// Why the family can be planned, not trained.
    pub plan_only: Option<String>,
    /// How `quantization_config` says the weights are stored.
    pub announced: Form,
    /// Layers behind the last block that predict further tokens.
    pub next_layers: usize,
    /// Where transformers' class of this config holds the decoder, whatever names the file uses.
    pub class_prefix: &'static str,
    /// `head_dim` is a default, not written.
    pub head_dim_taken: bool,
}

impl Read {
    /// Takes `head_dim` from the rows of the first query projection where the config leaves it out.
    pub fn derive_head_dim(&mut self, tensors: &[TensorInfo]) {
        let first = |t: &&TensorInfo| t.name.ends_with("layers.0.self_attn.q_proj.weight");
        let rows = tensors.iter().find(first).and_then(|t| t.shape.first()).copied().unwrap_or(0) as usize;
        let stored = rows / self.arch.n_heads;
        let fits = rows.is_multiple_of(self.arch.n_heads) && stored > 0 && stored.is_multiple_of(2);
        if self.head_dim_taken && fits && stored != self.arch.head_dim {
            self.arch.head_dim = stored;
            self.notes.retain(|n| !n.contains("no head_dim"));
            self.notes.push(format!("config.json has no head_dim: {stored} taken, from the rows of q_proj"));
        }
    }
}

/// Reads the architecture from a parsed `config.json`, and end tokens from `generation_config.json` if it is there.
///
/// # Errors
/// A key that is missing, malformed or contradictory, or anything this program can't train; each by name.
pub fn read(config: &Value, generation: Option<&Value>) -> Result<Read> {
    let outer = config.as_object().ok_or_else(|| bad("it is not a JSON object"))?;
    let inner = outer.get("text_config").and_then(Value::as_object);
    let mut keys = Keys { map: inner.unwrap_or(outer).clone(), outer, notes: Vec::new() };
    let announced = packed::announced(keys.get_any("quantization_config"))?;
    let (family, known) = family(&keys)?;
    match known {
        Some(known) => keys.take_defaults(known)?,
        None => {
            refuse_experts(&keys, announced)?;
            let told = check("config.json", CONFIG, &keys.map)?;
            keys.notes.extend(told.into_iter().chain(other_head(&keys)));
        }
    }
    let experts = mixture(&keys)?;

    let hidden = keys.required("hidden_size", MAX_DIM)?;
    let n_heads = keys.required("num_attention_heads", MAX_DIM)?;
    let n_kv_heads = keys.count("num_key_value_heads", MAX_DIM)?.unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(bad(&format!("num_attention_heads {n_heads} is no multiple of num_key_value_heads {n_kv_heads}"))
            .next("fetch config.json again: no model can have these heads"));
    }
    let head_dim = head_dim(&mut keys, family, hidden, n_heads)?;
    let n_layers = keys.required("num_hidden_layers", MAX_LAYERS)?;
    let max_positions = keys.count("max_position_embeddings", 1 << 40)?.unwrap_or_else(|| {
        keys.notes.push("config.json has no max_position_embeddings: 2048 taken".into());
        2048
    });
    let norm_eps = keys.float("rms_norm_eps")?.unwrap_or_else(|| {
        keys.notes.push("config.json has no rms_norm_eps: 1e-6 taken".into());
        1e-6
    });
    if !(norm_eps > 0.0 && norm_eps < 1.0) {
        return Err(bad(&format!("rms_norm_eps is {norm_eps}")));
    }
    let arch = Arch {
        family,
        hidden,
        intermediate: keys.required("intermediate_size", MAX_DIM)?,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab: keys.required("vocab_size", MAX_DIM)?,
        norm_eps,
        rope: match known {
            None => rope::read(&keys.map, &mut keys.notes)?,
            // No plan depends on the rotary rule, and these families have rules of their own.
            Some(_) => Rope { theta: keys.float("rope_theta")?.unwrap_or(10_000.0), scaling: RopeScaling::None },
        },
        tied: tied(&keys)?,
        act: if known.is_some() { Activation::Silu } else { activation(&keys)? },
        windows: windows(&mut keys, family, n_layers)?,
        max_positions,
        special: special(&mut keys, generation),
        experts,
    };
    let tower = ["vision_config", "audio_config", "speech_config"]
        .into_iter()
        .find(|k| outer.get(*k).is_some_and(|v| !v.is_null()));
    let (attention_bias, mlp_bias) = (keys.flag("attention_bias")?, keys.flag("mlp_bias")?);
    let next_layers = if known.is_some() { keys.count("num_nextn_predict_layers", 16)?.unwrap_or(0) } else { 0 };
    let plan_only = known.map(planned::reason);
    let class_prefix = if inner.is_some() { "model.language_model." } else { "model." };
    let head_dim_taken = keys.get("head_dim").is_none();
    Ok(Read {
        arch,
        notes: keys.notes,
        tower,
        attention_bias,
        mlp_bias,
        plan_only,
        announced,
        next_layers,
        class_prefix,
        head_dim_taken,
    })
}

/// `model_type` of a config, for showing; `None` if it has none.
#[must_use]
pub fn model_type(config: &Value) -> Option<String> {
    let inner = config.get("text_config").and_then(|t| t.get("model_type"));
    inner.or_else(|| config.get("model_type"))?.as_str().map(clean)
}

/// An error about `config.json`.
pub(super) fn bad(what: &str) -> Error {
    Error::checkpoint(format!("config.json: {what}"))
}

struct Keys<'a> {
    /// The text config, with a plan-only family's defaults filled in.
    map: Map<String, Value>,
    /// The whole file; the text config itself for text-only models.
    outer: &'a Map<String, Value>,
    notes: Vec<String>,
}

impl Keys<'_> {
    /// A key of the text config; `null` is absent.
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }
    /// A key of the text config, else of the whole file.
    fn get_any(&self, key: &str) -> Option<&Value> {
        self.get(key).or_else(|| self.outer.get(key).filter(|v| !v.is_null()))
    }
    /// Fills in what a family's public configs leave out.
    fn take_defaults(&mut self, family: &Known) -> Result<()> {
        for (key, value) in family.defaults {
            if self.get_any(key).is_none() {
                let default = serde_json::from_str(value).map_err(|e| bad(&format!("the default of '{key}': {e}")))?;
                self.map.insert((*key).into(), default);
                self.notes.push(format!("config.json has no {key}: {value} taken, {}'s default", family.name));
            }
        }
        Ok(())
    }
    fn required(&self, key: &str, max: u64) -> Result<usize> {
        self.count(key, max)?.ok_or_else(|| bad(&format!("'{key}' is missing")))
    }
    /// A whole number from 1 to `max`.
    fn count(&self, key: &str, max: u64) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.as_u64().filter(|n| (1..=max).contains(n)).and_then(|n| usize::try_from(n).ok());
        number.map(Some).ok_or_else(|| bad(&format!("'{key}' is {}, not a number from 1 to {max}", short(value))))
    }
    fn float(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|x| x.is_finite());
        number.map(Some).ok_or_else(|| bad(&format!("'{key}' is {}, not a number", short(value))))
    }
    fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value.as_bool().map(Some).ok_or_else(|| bad(&format!("'{key}' is {}, not true or false", short(value))))
    }
}

/// A JSON value fit to print.
pub(super) fn short(value: &Value) -> String {
    clean(&value.to_string())
}

/// The family, and what is known of it if it can only be planned.
fn family(keys: &Keys) -> Result<(Family, Option<&'static Known>)> {
    let supported = "supported: llama, mistral, qwen2, qwen3";
    let Some(name) = keys.get("model_type").and_then(Value::as_str) else {
        return Err(bad(&format!("'model_type' is missing; {supported}")));
    };
    let family = match name {
        "llama" => Family::Llama,
        "mistral" => Family::Mistral,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        _ if let Some(known) = planned::known(name) => return Ok((Family::Planned, Some(known))),
        _ if name.contains("moe") || ["deepseek_v2", "deepseek_v3", "dbrx"].contains(&name) => {
            return Err(experts(&format!("model_type '{}'", clean(name))));
        }
        _ => return Err(bad(&format!("model_type '{}' is not supported", clean(name))).next(supported)),
    };
    Ok((family, None))
}

/// What a mixture-of-experts model is refused with.
pub(super) fn experts(what: &str) -> Error {
    Error::checkpoint(format!("mixture of experts is not supported yet: {what}"))
        .next("pick a dense model: llama, mistral, qwen2, qwen3")
}

/// A note for a class with a head of its own, such as one that scores texts: its weights have no part in a language model.
fn other_head(keys: &Keys) -> Option<String> {
    let classes = keys.get_any("architectures")?.as_array()?;
    let language = |c: &Value| {
        let name = c.as_str().unwrap_or_default();
        ["CausalLM", "LMHeadModel", "ConditionalGeneration", "Model"].iter().any(|end| name.ends_with(end))
    };
    let class = classes.first().filter(|_| !classes.iter().any(language))?;
    Some(format!("config.json is of class {}: read as a language model, without that class's own head", short(class)))
}

/// Keys that give the number of routed experts.
const EXPERTS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// Refuses what a family that trains can't have.
fn refuse_experts(keys: &Keys, announced: Form) -> Result<()> {
    if announced == Form::Mxfp4 {
        return Err(bad("quantization_config has quant_method mxfp4, which only gpt_oss is read with")
            .next("use the 16-bit original"));
    }
    match EXPERTS.iter().find(|k| keys.get(k).and_then(Value::as_u64).is_some_and(|n| n > 1)) {
        Some(key) => Err(experts(&format!("config.json has '{key}'"))),
        None => Ok(()),
    }
}

/// The mixture of experts that a plan-only family's config describes.
fn mixture(keys: &Keys) -> Result<Option<Experts>> {
    let first = |names: &[&str], max: u64| -> Result<Option<usize>> {
        let key = names.iter().find(|k| keys.get(k).is_some());
        key.map_or(Ok(None), |k| keys.count(k, max))
    };
    let Some(count) = first(&EXPERTS, 1 << 16)?.filter(|n| *n > 1) else {
        return Ok(None);
    };
    let active = first(&["num_experts_per_tok", "experts_per_token"], count as u64)?
        .ok_or_else(|| bad("'num_experts_per_tok' is missing"))?;
    let intermediate = first(&["moe_intermediate_size", "intermediate_size"], MAX_DIM)?
        .ok_or_else(|| bad("'moe_intermediate_size' is missing"))?;
    // Some configs spell "none" as 0.
    let shared = ["shared_expert_intermediate_size", "n_shared_experts"]
        .into_iter()
        .find(|k| keys.get(k).is_some_and(|v| v.as_u64() != Some(0)));
    let shared = match shared {
        Some(key @ "n_shared_experts") => intermediate * keys.required(key, 1 << 10)?,
        Some(key) => keys.required(key, MAX_DIM)?,
        None => 0,
    };
    Ok(Some(Experts { count, active, intermediate, shared }))
}

fn head_dim(keys: &mut Keys, family: Family, hidden: usize, n_heads: usize) -> Result<usize> {
    let head_dim = match keys.count("head_dim", MAX_DIM)? {
        Some(d) => d,
        None if family == Family::Qwen3 => {
            keys.notes.push("config.json has no head_dim: 128 taken, qwen3's default".into());
            128
        }
        None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
        None => {
            let what =
                format!("hidden_size {hidden} is no multiple of num_attention_heads {n_heads} and head_dim is missing");
            return Err(bad(&what));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(bad(&format!("head_dim {head_dim} is odd, which rotary embeddings can't use")));
    }
    Ok(head_dim)
}

fn activation(keys: &Keys) -> Result<Activation> {
    match keys.get("hidden_act").map_or(Some("silu"), Value::as_str) {
        Some("silu" | "swish") => Ok(Activation::Silu),
        other => {
            Err(bad(&format!("hidden_act '{}' is not supported", clean(other.unwrap_or("?")))).next("supported: silu"))
        }
    }
}

fn tied(keys: &Keys) -> Result<bool> {
    match keys.get_any("tie_word_embeddings") {
        // Every family here has false as its class default.
        None => Ok(false),
        Some(v) => v.as_bool().ok_or_else(|| bad(&format!("'tie_word_embeddings' is {}", short(v)))),
    }
}

/// The window of every layer. 0, null and (qwen) `use_sliding_window: false` mean full attention; `layer_types` overrides
/// which layers are windowed (transformers' `configuration_qwen2.py`, `configuration_mistral.py`).
fn windows(keys: &mut Keys, family: Family, n_layers: usize) -> Result<Vec<Option<usize>>> {
    let window = match keys.map.get("sliding_window") {
        Some(Value::Number(n)) if n.as_u64() == Some(0) => None,
        Some(Value::Null) => None,
        Some(_) => keys.count("sliding_window", 1 << 40)?,
        None if family == Family::Mistral => {
            keys.notes.push("config.json has no sliding_window: 4096 taken, mistral's default".into());
            Some(4096)
        }
        None if matches!(family, Family::Llama | Family::Planned) => None,
        None => Some(4096),
    };
    let (window, first) = match family {
        Family::Llama => {
            if window.is_some() {
                keys.notes.push("sliding_window is ignored: llama attends to every position".into());
            }
            return Ok(vec![None; n_layers]);
        }
        Family::Mistral => (window, 0),
        // Which layers have it, if their list doesn't say, is each family's own rule: full attention asks for more.
        Family::Planned => (window, usize::MAX),
        Family::Qwen2 | Family::Qwen3 => {
            let used = keys.flag("use_sliding_window")?.unwrap_or(false);
            let first = match keys.map.get("max_window_layers") {
                Some(Value::Number(n)) if n.as_u64() == Some(0) => 0,
                _ => keys.count("max_window_layers", 1 << 40)?.unwrap_or(28),
            };
            (window.filter(|_| used), first)
        }
    };
    let Some(types) = keys.get("layer_types") else {
        return Ok((0..n_layers).map(|i| window.filter(|_| i >= first)).collect());
    };
    let types = types.as_array().filter(|t| t.len() == n_layers);
    let types = types.ok_or_else(|| bad(&format!("'layer_types' does not list {n_layers} layers")))?;
    let one = |t: &Value| match t.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => Ok(window),
        _ => Err(bad(&format!("layer type {} is not supported", short(t)))
            .next("supported: full_attention, sliding_attention")),
    };
    types.iter().map(one).collect()
}

fn special(keys: &mut Keys, generation: Option<&Value>) -> SpecialIds {
    // A negative id is an old way of saying "none".
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let ids = |v: &Value| match v {
        Value::Array(all) => all.iter().filter_map(id).collect::<Vec<_>>(),
        one => id(one).into_iter().collect(),
    };
    let mut eos = keys.get_any("eos_token_id").map(ids).unwrap_or_default();
    eos.extend(generation.and_then(|g| g.get("eos_token_id")).map(ids).unwrap_or_default());
    let mut seen = HashSet::new();
    eos.retain(|id| seen.insert(*id));
    if eos.is_empty() {
        keys.notes.push("no eos_token_id: generation stops only at its token limit".into());
    }
    let one = |key| keys.get_any(key).and_then(id);
    SpecialIds { bos: one("bos_token_id"), eos, pad: one("pad_token_id") }
}

#[cfg(test)]
#[path = "families_tests.rs"]
mod tests;
