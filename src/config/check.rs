//! Values that can't be: one clear message each, with the nearest value where there is a list.

use super::{RunConfig, keys};
use crate::error::{Error, Result};
use crate::text::clean;

/// Values a key may take.
const CHOICES: [(&str, &[&str]); 11] = [
    ("data.format", &["auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text", "tokens"]),
    ("data.over_long", &["truncate_end", "truncate_start", "drop", "error"]),
    ("data.train_on", &["assistant", "last_assistant", "all"]),
    ("data.system_fallback", &["stop", "fold", "drop"]),
    ("train.mode", &["lora", "full"]),
    ("train.lr_scheduler_type", &["linear", "cosine", "constant", "constant_with_warmup"]),
    ("train.device", &["auto", "cpu", "cuda"]),
    ("stream.tier", &["auto", "ram", "disk"]),
    ("stream.head", &["auto", "resident", "stream"]),
    ("stream.activation_offload", &["auto", "on", "off"]),
    ("model.format", &["auto"]),
];

/// Projections that can carry an adapter.
pub(super) const TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Checks `config` and returns warnings; the first impossible value is an error.
///
/// # Errors
/// One message for the value, naming the key and what it may be.
pub(super) fn check(config: &mut RunConfig) -> Result<Vec<String>> {
    choices(config)?;
    let mut notes = Vec::new();
    data(config)?;
    lora(config, &mut notes)?;
    train(config, &mut notes)?;
    stream(config)?;
    if !(config.wear.tbw.is_finite() && config.wear.tbw >= 0.0) {
        return Err(bad("wear.tbw", config.wear.tbw, "TB written, 0 = unknown"));
    }
    if i64::try_from(config.wear.monthly_budget.0).is_err() {
        return Err(Error::usage("'wear.monthly_budget' is past 2^63 bytes").next("use 0 for no budget"));
    }
    Ok(notes)
}

fn bad(key: &str, value: impl std::fmt::Display, expected: &str) -> Error {
    Error::usage(format!("'{key}' = {value}: expected {expected}"))
}

fn choices(config: &mut RunConfig) -> Result<()> {
    // An empty format is what `RunConfig::default()` holds: it means "as stored".
    if config.model.format.is_empty() {
        config.model.format = "auto".into();
    }
    let value = |key: &str| match key {
        "data.format" => &config.data.format,
        "data.over_long" => &config.data.over_long,
        "data.train_on" => &config.data.train_on,
        "data.system_fallback" => &config.data.system_fallback,
        "train.mode" => &config.train.mode,
        "train.lr_scheduler_type" => &config.train.lr_scheduler_type,
        "train.device" => &config.train.device,
        "stream.tier" => &config.stream.tier,
        "stream.head" => &config.stream.head,
        "stream.activation_offload" => &config.stream.activation_offload,
        _ => &config.model.format,
    };
    for (key, allowed) in CHOICES {
        let v = value(key);
        if !allowed.contains(&v.as_str()) {
            let wrong = bad(key, format!("\"{}\"", clean(v)), &format!("one of {}", allowed.join(", ")));
            let nearest = keys::nearest(v, allowed.iter().copied()).map(|n| format!("did you mean \"{n}\"?"));
            let advice = if key == "model.format" { Some(keys::QUANTISED.to_string()) } else { nearest };
            return Err(match advice {
                Some(next) => wrong.next(next),
                None => wrong,
            });
        }
    }
    Ok(())
}

fn data(config: &RunConfig) -> Result<()> {
    let d = &config.data;
    if d.max_length < 2 {
        return Err(bad("data.max_length", d.max_length, "at least 2 tokens"));
    }
    if d.packing {
        return Err(Error::usage("'data.packing' = true: packing is not in this version yet")
            .next("remove it; rows of a micro-batch are padded to the longest of them"));
    }
    if !(d.eval_split.is_finite() && (0.0..1.0).contains(&d.eval_split)) {
        return Err(bad("data.eval_split", d.eval_split, "a share of rows from 0 up to, not including, 1"));
    }
    Ok(())
}

fn lora(config: &mut RunConfig, notes: &mut Vec<String>) -> Result<()> {
    let l = &mut config.lora;
    if l.r < 1 {
        return Err(bad("lora.r", l.r, "a rank of at least 1"));
    }
    // The factor is a 32-bit number on the device.
    if !(0.0..=f64::from(f32::MAX)).contains(&l.alpha) {
        return Err(bad("lora.alpha", l.alpha, "a number ≥ 0; twice the rank is usual"));
    }
    if l.alpha == 0.0 {
        notes.push("'lora.alpha' = 0 scales every adapter to nothing: the model will not change".into());
    }
    if !(0.0..1.0).contains(&l.dropout) {
        return Err(bad("lora.dropout", l.dropout, "a share from 0 up to, not including, 1"));
    }
    if !(l.top_fraction > 0.0 && l.top_fraction <= 1.0) {
        return Err(bad("lora.top_fraction", l.top_fraction, "a share of blocks above 0, at most 1"));
    }
    if l.targets.iter().any(|t| t == "all-linear") {
        l.targets = TARGETS.map(String::from).to_vec();
    }
    if l.targets.is_empty() {
        return Err(Error::usage("'lora.targets' is empty: nothing would train")
            .next("name projections such as \"q_proj\", or \"all-linear\""));
    }
    for t in &l.targets {
        if !TARGETS.contains(&t.as_str()) {
            let expected = format!("any of {}, or \"all-linear\"", TARGETS.join(", "));
            let wrong = bad("lora.targets", format!("\"{}\"", clean(t)), &expected);
            return Err(match keys::nearest(t, TARGETS) {
                Some(nearest) => wrong.next(format!("did you mean \"{nearest}\"?")),
                None => wrong,
            });
        }
    }
    // Order and repeats mean nothing: one spelling keeps fingerprints and adapter files equal.
    let given = std::mem::take(&mut l.targets);
    l.targets = TARGETS.iter().filter(|t| given.iter().any(|g| g == *t)).map(|t| (*t).to_string()).collect();
    Ok(())
}

fn train(config: &RunConfig, notes: &mut Vec<String>) -> Result<()> {
    let t = &config.train;
    let ge0 = |key: &str, x: f64| {
        if x.is_finite() && x >= 0.0 { Ok(()) } else { Err(bad(key, x, "a number ≥ 0")) }
    };
    if t.per_device_train_batch_size < 1 {
        return Err(bad("train.per_device_train_batch_size", t.per_device_train_batch_size, "at least 1 row"));
    }
    if t.gradient_accumulation_steps < 1 {
        return Err(bad("train.gradient_accumulation_steps", t.gradient_accumulation_steps, "at least 1 micro-batch"));
    }
    ge0("train.learning_rate", t.learning_rate)?;
    ge0("train.num_train_epochs", t.num_train_epochs)?;
    ge0("train.warmup_steps", t.warmup_steps)?;
    ge0("train.weight_decay", t.weight_decay)?;
    ge0("train.max_grad_norm", t.max_grad_norm)?;
    if t.warmup_steps >= 1.0 && t.warmup_steps.fract() != 0.0 {
        return Err(bad("train.warmup_steps", t.warmup_steps, "whole steps, or a share below 1 of all steps"));
    }
    if t.max_steps == 0 && t.num_train_epochs == 0.0 {
        return Err(Error::usage("'train.max_steps' and 'train.num_train_epochs' are both 0: nothing would train")
            .next("set one of them"));
    }
    if t.learning_rate == 0.0 {
        notes.push("'train.learning_rate' = 0: nothing will change".into());
    }
    if i64::try_from(t.seed).is_err() {
        return Err(bad("train.seed", t.seed, "a number below 2^63"));
    }
    Ok(())
}

fn stream(config: &RunConfig) -> Result<()> {
    let s = &config.stream;
    if s.loss_chunk < 1 {
        return Err(bad("stream.loss_chunk", s.loss_chunk, "at least 1 token"));
    }
    if s.prefetch_ahead > 64 {
        return Err(bad("stream.prefetch_ahead", s.prefetch_ahead, "at most 64 blocks"));
    }
    if s.slots > 65 {
        return Err(bad("stream.slots", s.slots, "at most 65 slots, 0 = prefetch_ahead + 1"));
    }
    if i64::try_from(s.vram_budget.0.max(s.host_budget.0)).is_err() {
        return Err(Error::usage("a budget in [stream] is past 2^63 bytes").next("use 0 for what is free"));
    }
    Ok(())
}
