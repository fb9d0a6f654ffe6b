//! The run config: TOML sections with the ecosystem's names and defaults.
//!
//! Precedence: defaults < file < `BSTUI_*` environment < flags. Unknown keys are errors that name the nearest key.

mod check;
mod choice;
mod keys;
pub mod load;
mod paths;
pub mod reference;
pub mod resume;
pub mod size;
mod table;

pub use choice::{
    ControlTokens, DataFormat, DeviceChoice, HeadPlace, Mode, Offload, OverLong, Scheduler, SystemFallback, TARGETS,
    TierChoice, TrainOn,
};
pub use keys::{config_key, config_keys, nearest};
pub use size::terabytes;
pub use table::{Form, Key};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Everything a run is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// The checkpoint.
    pub model: ModelSection,
    /// The rows.
    pub data: DataSection,
    /// The adapter.
    pub lora: LoraSection,
    /// The optimisation.
    pub train: TrainSection,
    /// Where bytes live and move.
    pub stream: StreamSection,
    /// What the drive may lose.
    pub wear: WearSection,
    /// Profile file of a machine to plan for, instead of this one.
    pub machine: Option<PathBuf>,
    /// Folder that holds run folders.
    pub results: Option<PathBuf>,
}

/// `[model]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// Folder or hub id.
    pub path: String,
    /// Public name written to the adapter's `base_model_name_or_path`, where the path is local.
    pub name: Option<String>,
    /// Write the index of weights anew where it is stale or gone, before opening.
    pub rebuild_index: bool,
}

/// `[data]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSection {
    /// JSONL or JSON files.
    pub files: Vec<PathBuf>,
    /// Held-out files; wins over `eval_split`.
    pub eval_files: Vec<PathBuf>,
    /// `auto`, `messages`, `sharegpt`, `alpaca`, `prompt_completion`, `text`.
    pub format: DataFormat,
    /// File with a Jinja chat template that replaces the checkpoint's own.
    pub template: Option<PathBuf>,
    /// Longest row in tokens.
    pub max_length: usize,
    /// What happens to longer rows: `truncate_end`, `truncate_start`, `drop`, `error`.
    pub over_long: OverLong,
    /// Share of rows held out (0..1) when `eval_files` is empty.
    pub eval_split: f64,
    /// `assistant` (default), `last_assistant` or `all` tokens carry loss.
    pub train_on: TrainOn,
    /// System turn under a template without one: `stop`, `fold`, `drop`.
    pub system_fallback: SystemFallback,
    /// Control tokens that turns spell out: `text`, `tokens`, `drop`.
    pub control_tokens: ControlTokens,
    /// Skip (and count) lines that aren't valid JSON instead of stopping.
    pub skip_bad_lines: bool,
}

impl Default for DataSection {
    fn default() -> Self {
        DataSection {
            files: Vec::new(),
            eval_files: Vec::new(),
            format: DataFormat::default(),
            template: None,
            max_length: 1024,
            over_long: OverLong::default(),
            eval_split: 0.0,
            train_on: TrainOn::default(),
            system_fallback: SystemFallback::default(),
            control_tokens: ControlTokens::default(),
            skip_bad_lines: false,
        }
    }
}

/// `[lora]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraSection {
    /// Rank.
    pub r: usize,
    /// Scaling numerator; the factor is alpha/r, or alpha/sqrt(r) with `rslora`.
    pub alpha: f64,
    /// Dropout on the input of A, 0..1.
    pub dropout: f64,
    /// Rank-stabilised scaling.
    pub rslora: bool,
    /// Projection names: `q_proj`, …, `down_proj`; `all-linear` for all seven.
    pub targets: Vec<String>,
    /// Share of blocks, from the top, that get adapters (0..1].
    pub top_fraction: f64,
    /// Folder with a PEFT adapter to start from instead of random `lora_A`.
    pub init_from: Option<PathBuf>,
}

impl Default for LoraSection {
    fn default() -> Self {
        LoraSection {
            r: 16,
            alpha: 32.0,
            dropout: 0.0,
            rslora: false,
            targets: TARGETS[..4].iter().map(|t| (*t).to_string()).collect(),
            top_fraction: 1.0,
            init_from: None,
        }
    }
}

/// `[train]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSection {
    /// `lora` or `full`.
    pub mode: Mode,
    /// Optimizer steps; 0 means by `num_train_epochs`.
    pub max_steps: u64,
    /// Passes over the data when `max_steps` is 0.
    pub num_train_epochs: f64,
    /// Rows in a micro-batch.
    pub per_device_train_batch_size: usize,
    /// Micro-batches in an optimizer step, all inside one visit of each block.
    pub gradient_accumulation_steps: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// `linear`, `cosine`, `constant`, `constant_with_warmup`.
    pub lr_scheduler_type: Scheduler,
    /// Warm-up steps; below 1 a share of all steps.
    pub warmup_steps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Clips the global gradient norm; 0 turns it off.
    pub max_grad_norm: f64,
    /// Measure held-out loss every so many steps; 0 = only before and after.
    pub eval_steps: u64,
    /// Save a checkpoint every so many steps; 0 = only at the end.
    pub save_steps: u64,
    /// Checkpoints kept; 0 keeps all.
    pub save_total_limit: usize,
    /// Seed of shuffling, `lora_A` and dropout.
    pub seed: u64,
    /// Deterministic kernels: runs repeat bit for bit, slower on a GPU.
    pub deterministic: bool,
    /// `auto`, `cpu`, `cuda`.
    pub device: DeviceChoice,
}

impl Default for TrainSection {
    fn default() -> Self {
        TrainSection {
            mode: Mode::default(),
            max_steps: 0,
            num_train_epochs: 1.0,
            per_device_train_batch_size: 1,
            gradient_accumulation_steps: 1,
            learning_rate: 2e-4,
            lr_scheduler_type: Scheduler::default(),
            warmup_steps: 0.03,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            eval_steps: 0,
            save_steps: 0,
            save_total_limit: 2,
            seed: 42,
            deterministic: false,
            device: DeviceChoice::default(),
        }
    }
}

/// `[stream]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSection {
    /// `auto`, `ram` or `disk`: where blocks that aren't on the device wait.
    pub tier: TierChoice,
    /// Blocks fetched ahead of the one computing.
    pub prefetch_ahead: usize,
    /// Device ring slots; 0 means `prefetch_ahead + 1`.
    pub slots: usize,
    /// Most device memory to use, bytes or `"6 GB"`; 0 = what is free.
    pub vram_budget: ByteSize,
    /// Most host memory for weights (RAM tier + ring), bytes or `"64 MB"`; 0 = what is free less a reserve.
    pub host_budget: ByteSize,
    /// Tokens per chunk of head and loss.
    pub loss_chunk: usize,
    /// Tokens of a micro-batch in the feed-forward at a time; 0 = all.
    pub mlp_chunk: usize,
    /// Blocks that stay on the device, at most; `"auto"` = as many as fit, a number limits it.
    pub resident_blocks: Resident,
    /// Where the head is: `resident` on the device, `stream` (rows cross the link once a step), `auto` = resident if
    /// it fits.
    pub head: HeadPlace,
    /// Whether block inputs wait for the backward pass in host memory: `auto` (when they don't fit), `on`, `off`.
    pub activation_offload: Offload,
    /// Go on with pageable host memory when pinning fails.
    pub allow_pageable: bool,
    /// Stream from a hard disk all the same.
    pub allow_hdd: bool,
}

impl Default for StreamSection {
    fn default() -> Self {
        StreamSection {
            tier: TierChoice::default(),
            prefetch_ahead: 2,
            slots: 0,
            vram_budget: ByteSize(0),
            host_budget: ByteSize(0),
            loss_chunk: 512,
            mlp_chunk: 0,
            resident_blocks: Resident::default(),
            head: HeadPlace::default(),
            activation_offload: Offload::default(),
            allow_pageable: false,
            allow_hdd: false,
        }
    }
}

impl StreamSection {
    /// Ring slots after defaults.
    #[must_use]
    pub fn ring_slots(&self) -> usize {
        if self.slots == 0 { self.prefetch_ahead + 1 } else { self.slots }
    }
}

/// Blocks kept on the device: `"auto"` or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resident {
    /// As many as fit the VRAM budget.
    #[default]
    Auto,
    /// At most this many.
    AtMost(usize),
}

/// A byte count that may be written as a number or as `"64 MB"`, `"1.5 GiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSize(pub u64);

/// `[wear]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WearSection {
    /// Full finetuning from disk is refused when the drive's rating allows fewer steps.
    pub min_steps: u64,
    /// Rated endurance of the drive in TB written; 0 = unknown, or the profile's.
    pub tbw: f64,
    /// Most that all runs of a calendar month may write, bytes or `"2 TB"`; 0 = no budget.
    pub monthly_budget: ByteSize,
    /// Go past `min_steps` and `monthly_budget` all the same; plan and report say so.
    #[serde(rename = "override")]
    pub overridden: bool,
}

impl Default for WearSection {
    fn default() -> Self {
        WearSection { min_steps: 5000, tbw: 0.0, monthly_budget: ByteSize(0), overridden: false }
    }
}
