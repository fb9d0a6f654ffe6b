//! Whether a run may go on: what its checkpoint says of its settings, base and rows, against what there is now.

use super::save::TrainerState;
use crate::config::LoraSection;
use crate::config::resume::{Change, Class, changes};
use crate::data::{Dataset, Row};
use crate::error::{Error, Result};
use crate::event::Level;
use sha2::{Digest, Sha256};

/// A line for the log.
pub(super) type Line = (Level, String);

const FROM_ADAPTER: &str = "or start a new run with lora.init_from = the run's adapter";

/// What can be told before any row is read. `new` holds the settings, the base and the rows per step that there are now.
///
/// # Errors
/// The base, rows per step or a setting that what was saved depends on is another; one that makes another function of
/// what was trained is, unless `force`.
pub(super) fn settings(old: &TrainerState, new: &TrainerState, force: bool) -> Result<Vec<Line>> {
    let comparable = old.base_fingerprint.starts_with("c1-");
    if comparable && old.base_fingerprint != new.base_fingerprint {
        return Err(Error::checkpoint("the base checkpoint is not the one this run was started on")
            .next(format!("restore its files, {FROM_ADAPTER}")));
    }
    let mut fixed = Vec::new();
    for (what, was, is) in [
        ("train.seed", old.seed, new.seed),
        (
            "rows per step (per_device_train_batch_size × gradient_accumulation_steps)",
            old.rows_per_step as u64,
            new.rows_per_step as u64,
        ),
    ] {
        if was != is {
            fixed.push(format!("{what} was {was} in this run and is {is} now"));
        }
    }
    let mut lines = Vec::new();
    if !comparable || old.settings.is_empty() {
        let what = if comparable { "its settings are" } else { "base and settings are" };
        let text = format!("this run was started by an older version: whether {what} still the same cannot be told");
        lines.push((Level::Warn, text));
    }
    let changed = changed(old, new);
    fixed.extend(of(&changed, Class::Fixed).filter(|c| c.key != "train.seed").map(Change::to_string));
    if !fixed.is_empty() {
        return Err(Error::usage(fixed.join("; ")).next(format!("set it back, {FROM_ADAPTER}")));
    }
    let function: Vec<String> = of(&changed, Class::Function).map(Change::to_string).collect();
    if !function.is_empty() && !force {
        let next = "set it back, or go on with --force, which makes another function of what was trained";
        return Err(Error::usage(function.join("; ")).next(next));
    }
    let warned = |why: &'static str| move |c: String| (Level::Warn, format!("{c}: {why}"));
    lines.extend(function.into_iter().map(warned("what was trained so far is another function now")));
    let curve = of(&changed, Class::Curve).map(Change::to_string);
    lines.extend(curve.map(warned("the loss curve goes on as another one")));
    let free = of(&changed, Class::Free).chain(of(&changed, Class::Batch));
    lines.extend(free.map(|c| (Level::Info, c.to_string())));
    Ok(lines)
}

/// What can be told once the rows and the number of steps are known.
///
/// # Errors
/// The rows come out otherwise, unless `force`; fewer steps are asked for than are done.
pub(super) fn rows(old: &TrainerState, new: &TrainerState, force: bool) -> Result<Vec<Line>> {
    if new.max_steps < old.global_step {
        return Err(Error::usage(format!(
            "{} steps are asked for, but the run has done {} already",
            new.max_steps, old.global_step
        ))
        .next("ask for more with --max-steps, or resume an earlier checkpoint"));
    }
    let mut lines = Vec::new();
    let changed = changed(old, new);
    let shaping: Vec<String> = of(&changed, Class::Rows).map(Change::to_string).collect();
    if old.rows_sha256.is_empty() {
        if old.data_sha256 != new.data_sha256 {
            let text = "the data files have changed since this run was started: the curve will not continue exactly";
            lines.push((Level::Warn, text.into()));
        }
    } else if old.rows_sha256 == new.rows_sha256 {
        lines.extend(shaping.into_iter().map(|c| (Level::Info, format!("{c}: the rows that train are the same"))));
    } else {
        let why = if !shaping.is_empty() {
            shaping.join("; ")
        } else if old.data_sha256 != new.data_sha256 {
            "the data files have other contents than when this run was started".into()
        } else {
            "the model's chat template or tokenizer has changed since this run was started".into()
        };
        if !force {
            return Err(Error::usage(format!("{why}: its rows would be others"))
                .next("restore them, or go on with other rows by --force"));
        }
        lines.push((Level::Warn, format!("{why}: other rows train from here on")));
    }
    if !old.rows_sha256.is_empty() && old.eval_sha256 != new.eval_sha256 {
        let text = "the held-out rows are others than before: losses on them do not compare with earlier ones";
        lines.push((Level::Info, text.into()));
    }
    if old.max_steps != new.max_steps {
        let text = format!(
            "the run was planned for {} steps and now has {}: the learning-rate schedule is stretched over all {}",
            old.max_steps, new.max_steps, new.max_steps
        );
        lines.push((Level::Warn, text));
    }
    Ok(lines)
}

/// Whether what was trained in `old` is to be another function from here on, as was forced.
pub(super) fn another_function(old: &TrainerState, new: &TrainerState) -> bool {
    of(&changed(old, new), Class::Function).next().is_some()
}

fn changed(old: &TrainerState, new: &TrainerState) -> Vec<Change> {
    if old.settings.is_empty() { Vec::new() } else { changes(&old.settings, &new.settings) }
}

fn of(changed: &[Change], class: Class) -> impl Iterator<Item = &Change> {
    changed.iter().filter(move |c| c.class == class)
}

/// Fills in what `state` says of the rows.
///
/// # Errors
/// What `stop` says.
pub(super) fn know_rows(state: &mut TrainerState, data: &Dataset, stop: &dyn Fn() -> Result<()>) -> Result<()> {
    state.data_sha256 = data.facts.sha256.clone();
    state.template_date = data.facts.template_date.clone();
    (state.rows_sha256, state.eval_sha256) = (hash(&data.train, stop)?, hash(&data.eval, stop)?);
    Ok(())
}

/// SHA-256 over the tokens of `rows`, in order, and which of them train.
fn hash(rows: &[Row], stop: &dyn Fn() -> Result<()>) -> Result<String> {
    let mut all = Sha256::new();
    let mut bytes = Vec::new();
    for row in rows {
        stop()?;
        bytes.clear();
        bytes.extend((row.ids.len() as u64).to_le_bytes());
        bytes.extend(row.ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(row.trained.iter().map(|t| u8::from(*t)));
        all.update(&bytes);
    }
    Ok(all.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// `lora` with the factor (alpha, rsLoRA) of an adapter that is trained further: its tensors mean something else under
/// another. The second value tells what the config asks for instead, if it does.
///
/// # Errors
/// The adapter's factor is none.
pub(super) fn scaled_as(
    lora: &LoraSection,
    trained: &crate::checkpoint::adapter::AdapterConfig,
) -> Result<(LoraSection, Option<String>)> {
    if !(0.0..=f64::from(f32::MAX)).contains(&trained.lora_alpha) {
        return Err(Error::checkpoint(format!("the adapter to go on from has lora_alpha = {}", trained.lora_alpha))
            .next("correct its adapter_config.json; twice the rank is usual"));
    }
    let own = LoraSection { alpha: trained.lora_alpha, rslora: trained.use_rslora, ..lora.clone() };
    let told = |l: &LoraSection| format!("lora.alpha = {} and lora.rslora = {}", l.alpha, l.rslora);
    let other = (told(&own) != told(lora))
        .then(|| format!("was trained with {}, and the config says {}", told(&own), told(lora)));
    Ok((own, other))
}
