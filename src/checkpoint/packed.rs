//! Weights that are stored quantised: which the planner can count (FP8 and MXFP4, each weight with its scales), and
//! which refuse (GPTQ, AWQ, bitsandbytes, scales or weights alone), by the config and by the tensors themselves.

use super::inventory;
use super::types::{Arch, Dtype, Role, TensorInfo};
use crate::error::{Error, Result};
use crate::text::clean;
use serde_json::Value;
use std::collections::HashMap;

/// How a model's block weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As numbers.
    Plain,
    /// 8-bit floats, a tensor of scales beside each weight.
    Fp8,
    /// 4-bit floats, two a byte, one scale byte per 32 (OCP Microscaling Formats 1.0), in `…_blocks` and `…_scales`.
    Mxfp4,
}

/// Names that scales of quantised weights end with.
const SCALES: [&str; 4] = ["_scale_inv", "_scale", ".scale_weight", ".input_scale"];
/// Values that share a scale byte, as bytes of blocks.
const MXFP4_GROUP: u64 = 16;

/// Whether `t` holds scales of quantised weights, which are no parameters.
pub fn is_scale(t: &TensorInfo) -> bool {
    SCALES.iter().any(|s| t.name.ends_with(s)) || (is_u8(t) && t.name.ends_with("_scales"))
}

/// Whether `t` holds MXFP4 values, two parameters a byte.
pub fn is_mxfp4(t: &TensorInfo) -> bool {
    is_u8(t) && t.name.ends_with("_blocks")
}

fn is_u8(t: &TensorInfo) -> bool {
    t.dtype.name() == "U8"
}

fn is_fp8(t: &TensorInfo) -> bool {
    matches!(t.dtype.name(), "F8_E4M3" | "F8_E5M2")
}

/// What `quantization_config` announces.
///
/// # Errors
/// A method this program can't read: the model is pre-quantised.
pub fn announced(quantization: Option<&Value>) -> Result<Form> {
    let Some(q) = quantization else {
        return Ok(Form::Plain);
    };
    let method = q.get("quant_method").and_then(Value::as_str);
    match method {
        Some("mxfp4") => return Ok(Form::Mxfp4),
        Some(m) if m.contains("fp8") => return Ok(Form::Fp8),
        _ => {}
    }
    let loaded = |key: &str| q.get(key).and_then(Value::as_bool).unwrap_or(false);
    let bits = match q.get("bits").and_then(Value::as_u64) {
        Some(bits) => format!(" {bits}-bit"),
        None if loaded("load_in_4bit") => " 4-bit".into(),
        None if loaded("load_in_8bit") => " 8-bit".into(),
        None => String::new(),
    };
    Err(prequantised(&format!("{}{bits}", clean(method.unwrap_or("unknown method"))), None))
}

/// What a model with packed integers is refused with; `shown_by` names the tensor where the config doesn't say it.
fn prequantised(what: &str, shown_by: Option<&TensorInfo>) -> Error {
    let next = "use the 16-bit original";
    let next = shown_by.map_or(next.into(), |t| format!("{next} (tensor '{}' shows it)", clean(&t.name)));
    Error::checkpoint(format!("Pre-quantised ({what}): not trainable here")).next(next)
}

/// What an FP8 model is refused with.
fn fp8(what: &str) -> Error {
    Error::checkpoint(format!("FP8 not supported: {what}")).next(FP8_NEXT)
}

const FP8_NEXT: &str = "convert to bf16, or use the 16-bit original";

/// Why a model whose weights are in `form` is for planning only; `None` where the form forbids nothing.
pub fn plan_only(form: Form) -> Option<String> {
    (form == Form::Fp8).then(|| format!("FP8 not supported: {FP8_NEXT}; this version can plan it, not train it"))
}

/// How the tensors numbered `blocks` (those below `layers.`) are stored. Every scale must have its weight and every
/// quantised weight its scales.
///
/// # Errors
/// Pre-quantised by any other method, a scale or a weight alone, or not what `announced` says.
pub fn form(tensors: &[TensorInfo], blocks: &[usize], announced: Form, arch: &Arch) -> Result<Form> {
    let by_name: HashMap<&str, &TensorInfo> = blocks.iter().map(|&i| (tensors[i].name.as_str(), &tensors[i])).collect();
    let mut found = Form::Plain;
    for t in blocks.iter().map(|&i| &tensors[i]) {
        if let Some(e) = integers(t, &by_name, arch) {
            return Err(e);
        }
        let name = || clean(&t.name);
        if is_fp8(t) {
            if !scales_of(&t.name).iter().any(|s| by_name.contains_key(s.as_str())) {
                let what = format!("'{}' is {}, and no scale tensor for it is stored", name(), t.dtype.name());
                return Err(fp8(&what));
            }
            found = Form::Fp8;
        } else if is_mxfp4(t) {
            let stem = t.name.strip_suffix("_blocks").unwrap_or_default();
            let scales = by_name.get(format!("{stem}_scales").as_str()).filter(|s| is_u8(s));
            let fits = t
                .shape
                .split_last()
                .is_some_and(|(&group, rest)| group == MXFP4_GROUP && scales.is_some_and(|s| s.shape == rest));
            if !fits {
                return Err(Error::checkpoint(format!(
                    "tensor '{}' of shape {:?} has no scales of its shape without the last {MXFP4_GROUP}",
                    name(),
                    t.shape
                ))
                .next("fetch the whole model"));
            }
            found = Form::Mxfp4;
        } else if is_scale(t) && !weights_of(&t.name).iter().any(|w| by_name.get(w.as_str()).is_some_and(|w| is_fp8(w)))
        {
            let of_blocks = t.name.strip_suffix("_scales").map(|stem| format!("{stem}_blocks"));
            if !of_blocks.is_some_and(|b| by_name.contains_key(b.as_str())) {
                return Err(fp8(&format!(
                    "'{}' is a scale of quantised weights, but the weight it belongs to is not here as FP8",
                    name()
                )));
            }
        }
    }
    if announced == Form::Fp8 && found != Form::Fp8 {
        return Err(fp8("config.json has quantization_config with quant_method fp8, but no weight is stored so"));
    }
    Ok(found)
}

/// Names that the scale of the FP8 weight `name` may have.
fn scales_of(name: &str) -> [String; 3] {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    [format!("{name}_scale_inv"), format!("{name}_scale"), format!("{stem}.scale_weight")]
}

/// Names that the weight of the scale `name` may have.
fn weights_of(name: &str) -> Vec<String> {
    let stem = SCALES.iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
    vec![stem.to_string(), format!("{stem}.weight")]
}

/// The refusal for a tensor that shows that its model was packed into integers, whatever the config says.
fn integers(t: &TensorInfo, by_name: &HashMap<&str, &TensorInfo>, arch: &Arch) -> Option<Error> {
    let ends = |list: &[&str]| list.iter().any(|s| t.name.ends_with(s));
    if ends(&[".qweight", ".qzeros", ".g_idx"]) {
        // A layer's other tensors come in any order; its qweight has the width in it.
        let stem = t.name.rsplit_once('.').map_or("", |(stem, _)| stem);
        let weight = by_name.get(format!("{stem}.qweight").as_str());
        let what = weight.and_then(|w| gptq_or_awq(w, arch)).unwrap_or_else(|| "gptq or awq".into());
        return Some(prequantised(&what, Some(t)));
    }
    if ends(&[".absmax", ".quant_map"]) || t.name.contains(".quant_state.") {
        return Some(prequantised("bitsandbytes", Some(t)));
    }
    let packed = ["U8", "I8", "I32", "U32"].contains(&t.dtype.name());
    if !packed || is_mxfp4(t) || (is_u8(t) && t.name.ends_with("_scales")) {
        return None;
    }
    let bits = usual_shape(&t.name, arch).map(|s| 8 * t.bytes / s.iter().product::<u64>().max(1));
    Some(match bits {
        Some(bits @ (4 | 8)) => prequantised(&format!("bitsandbytes {bits}-bit"), Some(t)),
        _ => prequantised(&format!("stored as {}", t.dtype.name()), Some(t)),
    })
}

/// Method and bits by a packed weight's shape: GPTQ packs the input, `[in · bits / 32, out]`, AWQ the output,
/// `[in, out · bits / 32]`, both transposed.
fn gptq_or_awq(t: &TensorInfo, arch: &Arch) -> Option<String> {
    let plain = usual_shape(&t.name.replace(".qweight", ".weight"), arch)?;
    let (&[out, into], &[rows, columns]) = (plain.as_slice(), t.shape.as_slice()) else {
        return None;
    };
    let bits = |packed: u64, whole: u64| 32 * packed / whole.max(1);
    if columns == out {
        Some(format!("gptq {}-bit", bits(rows, into)))
    } else if rows == into {
        Some(format!("awq {}-bit", bits(columns, out)))
    } else {
        None
    }
}

/// The shape that the projection `name` of a block would have in 16 bits.
fn usual_shape(name: &str, arch: &Arch) -> Option<Vec<u64>> {
    let (_, rest) = name.rsplit_once("layers.")?;
    let (_, suffix) = rest.split_once('.')?;
    let role = Role::ALL.into_iter().find(|r| r.suffix() == suffix)?;
    Some(inventory::shape(role, arch))
}

/// Whether a tensor of `dtype` may be part of a block whose weights are in `form`.
pub fn countable(t: &TensorInfo, form: Form) -> bool {
    match (&t.dtype, form) {
        (dtype, _) if dtype.is_trainable() => true,
        (_, Form::Fp8) => is_fp8(t) || (is_scale(t) && t.dtype == Dtype::Other("F8_E8M0".into(), 8)),
        (_, Form::Mxfp4) => is_mxfp4(t) || is_scale(t),
        (_, Form::Plain) => false,
    }
}
