//! Every key of a run config, once: what a file may hold under it, what a change means to a resumed run, what other
//! trainers call it, what the README and `--help` say, and how a screen edits it.

use super::resume::Class::{self, Batch, Curve, Fixed, Free, Function, Length, Rows};
use super::{
    ControlTokens, DataFormat, DeviceChoice, HeadPlace, Mode, Offload, OverLong, Scheduler, SystemFallback, TierChoice,
    TrainOn,
};
use Kind::{Flag, List, Name, Number, Resident, Size, Terabytes, Text, Whole};
use std::ops::Bound::{self, Excluded, Included, Unbounded};

/// What a key's value looks like, and between which bounds it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// A string.
    Text,
    /// One of these names.
    Name(&'static [&'static str]),
    /// A list of strings; one string stands for a list of one, commas separate in `--set`.
    List,
    /// A whole number from the first to the second, and what a message calls it.
    Whole(u64, u64, &'static str),
    /// A finite number within bounds, and what a message calls it.
    Number((Bound<f64>, Bound<f64>), &'static str),
    /// `true` or `false`.
    Flag,
    /// A [`super::ByteSize`].
    Size,
    /// A [`super::Resident`].
    Resident,
    /// TB as a number or as `"600 TB"`: see [`super::terabytes`].
    Terabytes,
}

/// How a screen edits a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Form {
    /// Short label.
    pub label: &'static str,
    /// Values that the arrow keys walk through.
    pub steps: &'static [&'static str],
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// `section.name`, as messages and `--set` spell it; the name alone at the top level.
    pub path: &'static str,
    pub(super) kind: Kind,
    pub(super) class: Class,
    /// Names other trainers use for it. Accepted in any section, and said; one with a section in that alone.
    pub(super) aliases: &'static [&'static str],
    /// What it does, in a line of Markdown.
    pub doc: &'static str,
    /// How a screen edits it, where one does.
    pub form: Option<Form>,
}

impl Key {
    /// Its section, `""` at the top level, and its name there.
    pub(super) fn parts(self) -> (&'static str, &'static str) {
        self.path.split_once('.').unwrap_or(("", self.path))
    }
}

const ANY: Kind = Whole(0, u64::MAX, "a whole number ≥ 0");
const GE0: (Bound<f64>, Bound<f64>) = (Included(0.0), Unbounded);
const SHARE: (Bound<f64>, Bound<f64>) = (Included(0.0), Excluded(1.0));
const POSITIVE: Kind = Number(GE0, "a number ≥ 0");

const fn at_least(least: u64, expected: &'static str) -> Kind {
    Whole(least, u64::MAX, expected)
}

/// Rows of `path: kind, class, [aliases], doc`, then `form label [steps]` where a screen edits the key.
macro_rules! keys {
    ($($path:literal: $kind:expr, $class:expr, [$($alias:literal),*], $doc:literal $(, form $label:literal $steps:expr)?;)+) => {
        /// Every key there is, in the order of a file. A test compares this with what `RunConfig` serialises to.
        pub(super) const KEYS: &[Key] = &[$(Key {
            path: $path, kind: $kind, class: $class, aliases: &[$($alias),*], doc: $doc, form: keys!(@form $($label $steps)?),
        }),+];
    };
    (@form) => { None };
    (@form $label:literal $steps:expr) => { Some(Form { label: $label, steps: &$steps }) };
}

keys! {
    "machine": Text, Free, ["profile"], "profile of a machine to plan for";
    "results": Text, Free, ["output_dir"], "folder for the runs; `results` unless named";

    // The base is known by its contents, so a resumed run may find it elsewhere.
    "model.path": Text, Free, ["model_name_or_path", "base_model"], "folder, or `owner/name` in the Hugging Face cache";
    "model.name": Text, Free, [], "public name of the base, written to the adapter's config";
    "model.rebuild_index": Flag, Free, [],
        "write the index of weights anew where it names files that are gone, if others hold all of it";

    "data.files": List, Rows, ["dataset", "datasets", "train_file", "data_files"],
        "JSONL or JSON: messages, ShareGPT, Alpaca, prompt-completion, text. Weights, masks, tools and calls of a row are used; images and what can't be trained are refused by their field's name",
        form "files" [];
    "data.eval_files": List, Rows, ["eval_dataset", "validation_file"], "held-out files, in the same formats; they win over `eval_split`",
        form "evaluation files" [];
    "data.format": Name(DataFormat::NAMES), Rows, [],
        "found by the columns unless named; `tokens`: rows of `input_ids` (and `labels`, −100 or the id), never detected",
        form "format" *DataFormat::NAMES;
    "data.template": Text, Rows, ["chat_template", "chat_template_path"],
        "a chat template to use instead of the model's own; any template renders under limits of size, depth, memory and time";
    "data.max_length": at_least(2, "at least 2 tokens"), Rows, ["max_seq_length", "max_seq_len", "cutoff_len", "sequence_len"],
        "longest row in tokens", form "max length" ["256", "512", "1024", "2048", "4096", "8192"];
    "data.over_long": Name(OverLong::NAMES), Rows, [], "what happens to longer rows",
        form "rows over the limit" *OverLong::NAMES;
    "data.eval_split": Number(SHARE, "a share of rows from 0 up to, not including, 1"), Rows, ["val_size", "val_split", "val_set_size"],
        "share of rows kept for evaluation when there are no `eval_files`", form "evaluation share" ["0", "0.05", "0.1", "0.2"];
    "data.train_on": Name(TrainOn::NAMES), Rows, [], "which tokens carry loss", form "train on" *TrainOn::NAMES;
    "data.system_fallback": Name(SystemFallback::NAMES), Rows, [], "a system turn where the template has none",
        form "system message unsupported" *SystemFallback::NAMES;
    "data.control_tokens": Name(ControlTokens::NAMES), Rows, [],
        "control tokens (`<|im_end|>`) that the turns of a row spell out: letters, the tokens themselves, or the row is left out",
        form "typed control tokens" *ControlTokens::NAMES;
    "data.skip_bad_lines": Flag, Rows, [], "skip and count lines that are no JSON, instead of stopping";

    "lora.r": at_least(1, "a rank of at least 1"), Fixed, ["rank", "lora_rank", "lora_r"], "rank",
        form "rank" ["4", "8", "16", "32", "64", "128"];
    // The factor is a 32-bit number on the device.
    "lora.alpha": Number((Included(0.0), Included(f32::MAX as f64)), "a number ≥ 0; twice the rank is usual"), Function, ["lora_alpha"],
        "the update is scaled by alpha / r";
    "lora.dropout": Number(SHARE, "a share from 0 up to, not including, 1"), Curve, ["lora_dropout"], "on the adapter's input";
    "lora.rslora": Flag, Function, ["use_rslora"], "the update is scaled by alpha / √r";
    "lora.targets": List, Fixed, ["lora_target", "lora_targets", "lora_target_modules", "target_modules"],
        "any of `q_proj` … `down_proj`, or `all-linear`", form "targets" ["q_proj,v_proj", "q_proj,k_proj,v_proj,o_proj", "all-linear"];
    "lora.top_fraction": Number((Excluded(0.0), Included(1.0)), "a share of blocks above 0, at most 1"), Fixed, ["lora_fraction", "stream.top_fraction"],
        "share of the blocks, from the top, that get adapters; the walk stops at the lowest of them",
        form "layers trained" ["0.1", "0.25", "0.5", "0.75", "1"];
    // A resumed run goes on from its checkpoint: another adapter to start from is another run.
    "lora.init_from": Text, Fixed, [], "a PEFT adapter to start from; its own alpha and rsLoRA hold";

    "train.mode": Name(Mode::NAMES), Fixed, [], "what trains: adapters, or every weight, which is planned only";
    "train.max_steps": ANY, Length, ["iters", "steps"], "optimizer steps; 0: by epochs",
        form "steps" ["0", "20", "50", "100", "200", "500", "1000"];
    "train.num_train_epochs": POSITIVE, Length, ["num_epochs", "epochs"], "passes over the data when `max_steps` is 0";
    "train.per_device_train_batch_size": at_least(1, "at least 1 row"), Batch, ["micro_batch_size", "batch_size", "train_batch_size"],
        "rows in a micro-batch", form "batch" ["1", "2", "4", "8", "16"];
    "train.gradient_accumulation_steps": at_least(1, "at least 1 micro-batch"), Batch,
        ["grad_accumulation_steps", "gradient_accumulation", "accumulation_steps"],
        "micro-batches in a step; all run inside one visit of a block, so they move no more bytes",
        form "accumulation" ["1", "2", "4", "8", "16", "32"];
    "train.learning_rate": POSITIVE, Curve, ["lr"], "peak of the schedule",
        form "learning rate" ["1e-5", "2e-5", "5e-5", "1e-4", "2e-4", "5e-4", "1e-3"];
    "train.lr_scheduler_type": Name(Scheduler::NAMES), Curve, ["lr_scheduler", "scheduler"], "how the rate goes over the run";
    "train.warmup_steps": POSITIVE, Curve, ["warmup_ratio", "warmup"], "below 1 a share of all steps; the last step never warms up";
    "train.weight_decay": POSITIVE, Curve, [], "decoupled, as AdamW's";
    "train.max_grad_norm": POSITIVE, Curve, ["grad_clip", "gradient_clipping", "max_norm"], "longer gradients are cut to it; 0: never";
    "train.eval_steps": ANY, Free, [], "steps between evaluations; 0: before and after only";
    "train.save_steps": ANY, Free, [], "steps between checkpoints; 0: at the end only";
    "train.save_total_limit": ANY, Free, ["save_limit"], "checkpoints that are kept; 0: all";
    // Under another seed rows that were held out may train.
    "train.seed": ANY, Fixed, [], "of adapters, order of rows, dropout";
    "train.deterministic": Flag, Free, [], "a GPU run repeats bit for bit, slower";
    "train.device": Name(DeviceChoice::NAMES), Free, [], "what computes";

    "stream.tier": Name(TierChoice::NAMES), Free, ["stream_source"], "where streamed blocks wait", form "weights wait in" *TierChoice::NAMES;
    "stream.prefetch_ahead": Whole(0, 64, "at most 64 blocks"), Free, [], "blocks fetched ahead",
        form "layers ahead" ["0", "1", "2", "3", "4", "5"];
    "stream.slots": Whole(0, 65, "at most 65 slots, 0 = prefetch_ahead + 1"), Free, ["stream_buffers"],
        "slots for them on the device; 0: `prefetch_ahead` + 1";
    "stream.vram_budget": Size, Free, ["stream_vram_override"], "most VRAM to use, as `\"6 GB\"`; 0: what is free. More than there is: the plan says so",
        form "VRAM budget" ["0", "2 GB", "4 GB", "6 GB", "8 GB", "12 GB", "16 GB", "24 GB"];
    "stream.host_budget": Size, Free, ["pinned_budget", "ram_budget"], "most RAM for weights; 0: what is free",
        form "RAM for weights" ["0", "64 MB", "1 GB", "2 GB", "4 GB", "8 GB", "16 GB", "32 GB"];
    "stream.loss_chunk": at_least(1, "at least 1 token"), Free, ["stream_loss_chunk"], "tokens at a time in head and loss";
    "stream.resident_blocks": Resident, Free, [], "most blocks that stay on the device; `auto`: as many as fit, none on a CPU";
    "stream.mlp_chunk": ANY, Free, [], "tokens at a time in the feed-forward; 0: all";
    "stream.head": Name(HeadPlace::NAMES), Free, [], "`resident` on the device, or `stream`: its rows cross the link once a step";
    "stream.activation_offload": Name(Offload::NAMES), Free, [], "`on`: block inputs wait for the backward pass in host memory";
    "stream.allow_pageable": Flag, Free, [], "go on with pageable memory when pinning fails";
    "stream.allow_hdd": Flag, Free, [], "stream from a hard disk all the same; without it such a plan is `INFEASIBLE`";

    "wear.min_steps": ANY, Free, [], "steps that the drive's rating must allow for full finetuning";
    "wear.tbw": Terabytes, Free, [], "the drive's rated writes, `600` or `\"600 TB\"`; 0: unknown";
    "wear.monthly_budget": Size, Free, [], "most that all runs of a month may write, as `\"2 TB\"` (told from 80 %); 0: no limit";
    "wear.override": Flag, Free, [], "go past a limit of `[wear]` all the same";
}
