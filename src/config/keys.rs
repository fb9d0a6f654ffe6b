//! Every key of a run config, the names the ecosystem uses for it, and the nearest key to a wrong one.

/// What a key's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A string.
    Text,
    /// A list of strings; one string stands for a list of one, commas separate in `--set`.
    List,
    /// A whole number ≥ 0.
    Whole,
    /// A finite number.
    Number,
    /// `true` or `false`.
    Flag,
    /// A [`super::ByteSize`].
    Size,
    /// A [`super::Resident`].
    Resident,
    /// TB as a number or as `"600 TB"`: see [`super::terabytes`].
    Terabytes,
}

/// One key: its section (`""` for the top level), name and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

impl Key {
    /// `section.name`, as messages and `--set` spell it.
    pub(super) fn path(self) -> String {
        if self.section.is_empty() { self.name.to_string() } else { format!("{}.{}", self.section, self.name) }
    }
}

const fn key(section: &'static str, name: &'static str, kind: Kind) -> Key {
    Key { section, name, kind }
}

/// Every key there is. A test compares this with what `RunConfig` serialises to.
pub(super) const KEYS: [Key; 56] = [
    key("", "machine", Kind::Text),
    key("", "results", Kind::Text),
    key("model", "path", Kind::Text),
    key("model", "format", Kind::Text),
    key("model", "name", Kind::Text),
    key("model", "rebuild_index", Kind::Flag),
    key("data", "files", Kind::List),
    key("data", "eval_files", Kind::List),
    key("data", "format", Kind::Text),
    key("data", "template", Kind::Text),
    key("data", "max_length", Kind::Whole),
    key("data", "over_long", Kind::Text),
    key("data", "packing", Kind::Flag),
    key("data", "eval_split", Kind::Number),
    key("data", "train_on", Kind::Text),
    key("data", "system_fallback", Kind::Text),
    key("data", "skip_bad_lines", Kind::Flag),
    key("lora", "r", Kind::Whole),
    key("lora", "alpha", Kind::Number),
    key("lora", "dropout", Kind::Number),
    key("lora", "rslora", Kind::Flag),
    key("lora", "targets", Kind::List),
    key("lora", "top_fraction", Kind::Number),
    key("lora", "init_from", Kind::Text),
    key("train", "mode", Kind::Text),
    key("train", "max_steps", Kind::Whole),
    key("train", "num_train_epochs", Kind::Number),
    key("train", "per_device_train_batch_size", Kind::Whole),
    key("train", "gradient_accumulation_steps", Kind::Whole),
    key("train", "learning_rate", Kind::Number),
    key("train", "lr_scheduler_type", Kind::Text),
    key("train", "warmup_steps", Kind::Number),
    key("train", "weight_decay", Kind::Number),
    key("train", "max_grad_norm", Kind::Number),
    key("train", "eval_steps", Kind::Whole),
    key("train", "save_steps", Kind::Whole),
    key("train", "save_total_limit", Kind::Whole),
    key("train", "seed", Kind::Whole),
    key("train", "deterministic", Kind::Flag),
    key("train", "device", Kind::Text),
    key("stream", "tier", Kind::Text),
    key("stream", "prefetch_ahead", Kind::Whole),
    key("stream", "slots", Kind::Whole),
    key("stream", "vram_budget", Kind::Size),
    key("stream", "host_budget", Kind::Size),
    key("stream", "loss_chunk", Kind::Whole),
    key("stream", "resident_blocks", Kind::Resident),
    key("stream", "mlp_chunk", Kind::Whole),
    key("stream", "head", Kind::Text),
    key("stream", "activation_offload", Kind::Text),
    key("stream", "allow_pageable", Kind::Flag),
    key("stream", "allow_hdd", Kind::Flag),
    key("wear", "min_steps", Kind::Whole),
    key("wear", "tbw", Kind::Terabytes),
    key("wear", "monthly_budget", Kind::Size),
    key("wear", "override", Kind::Flag),
];

/// Names other trainers use, and the key they mean here. Accepted anywhere, and said.
const ALIASES: [(&str, &str); 56] = [
    ("model_name_or_path", "model.path"),
    ("base_model", "model.path"),
    ("dataset", "data.files"),
    ("datasets", "data.files"),
    ("train_file", "data.files"),
    ("data_files", "data.files"),
    ("eval_dataset", "data.eval_files"),
    ("validation_file", "data.eval_files"),
    ("val_size", "data.eval_split"),
    ("val_split", "data.eval_split"),
    ("val_set_size", "data.eval_split"),
    ("chat_template", "data.template"),
    ("chat_template_path", "data.template"),
    ("max_seq_length", "data.max_length"),
    ("max_seq_len", "data.max_length"),
    ("cutoff_len", "data.max_length"),
    ("sequence_len", "data.max_length"),
    ("output_dir", "results"),
    ("profile", "machine"),
    ("rank", "lora.r"),
    ("lora_rank", "lora.r"),
    ("lora_r", "lora.r"),
    ("lora_alpha", "lora.alpha"),
    ("lora_dropout", "lora.dropout"),
    ("use_rslora", "lora.rslora"),
    ("lora_target", "lora.targets"),
    ("lora_targets", "lora.targets"),
    ("lora_target_modules", "lora.targets"),
    ("target_modules", "lora.targets"),
    ("lora_fraction", "lora.top_fraction"),
    ("stream.top_fraction", "lora.top_fraction"),
    ("num_epochs", "train.num_train_epochs"),
    ("epochs", "train.num_train_epochs"),
    ("iters", "train.max_steps"),
    ("steps", "train.max_steps"),
    ("micro_batch_size", "train.per_device_train_batch_size"),
    ("batch_size", "train.per_device_train_batch_size"),
    ("train_batch_size", "train.per_device_train_batch_size"),
    ("grad_accumulation_steps", "train.gradient_accumulation_steps"),
    ("gradient_accumulation", "train.gradient_accumulation_steps"),
    ("accumulation_steps", "train.gradient_accumulation_steps"),
    ("lr", "train.learning_rate"),
    ("lr_scheduler", "train.lr_scheduler_type"),
    ("scheduler", "train.lr_scheduler_type"),
    ("warmup_ratio", "train.warmup_steps"),
    ("warmup", "train.warmup_steps"),
    ("grad_clip", "train.max_grad_norm"),
    ("gradient_clipping", "train.max_grad_norm"),
    ("max_norm", "train.max_grad_norm"),
    ("save_limit", "train.save_total_limit"),
    ("pinned_budget", "stream.host_budget"),
    ("ram_budget", "stream.host_budget"),
    ("stream_source", "stream.tier"),
    ("stream_buffers", "stream.slots"),
    ("stream_loss_chunk", "stream.loss_chunk"),
    ("stream_vram_override", "stream.vram_budget"),
];

/// What is said of every key and value that asks for a quantised base.
pub(super) const QUANTISED: &str = "the base streams in the type it is stored in; quantised bases (nf4, fp8, 8-bit) are planned, not trained, in this version";

/// Common keys of other trainers that have no counterpart, and why none is needed.
const NOT_NEEDED: [(&str, &str); 22] = [
    ("load_in_4bit", QUANTISED),
    ("load_in_8bit", QUANTISED),
    ("quantization", QUANTISED),
    ("quantization_bit", QUANTISED),
    ("quantization_config", QUANTISED),
    ("bnb_4bit_quant_type", QUANTISED),
    ("bnb_4bit_compute_dtype", QUANTISED),
    ("bnb_4bit_use_double_quant", QUANTISED),
    ("modules_to_save", "only adapters are trained in this version"),
    ("lora_modules_to_save", "only adapters are trained in this version"),
    ("gradient_checkpointing", "every block is recomputed in backward anyway"),
    ("use_gradient_checkpointing", "every block is recomputed in backward anyway"),
    ("bf16", "blocks compute in the checkpoint's own type"),
    ("fp16", "blocks compute in the checkpoint's own type"),
    ("torch_dtype", "blocks compute in the checkpoint's own type"),
    ("optim", "adapters are trained with AdamW in fp32"),
    ("optimizer", "adapters are trained with AdamW in fp32"),
    ("logging_steps", "every step is recorded"),
    ("report_to", "metrics.jsonl in the run's folder holds TRL's names"),
    ("bias", "biases stay frozen"),
    ("task_type", "it is always causal language modelling"),
    ("stream_layers", "streaming is what this program does"),
];

/// What a written name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The key itself, written in full.
    Key(Key),
    /// Another name for it, or its bare name without a section: worth a note.
    Alias(Key),
    /// A bare name that several sections have.
    Ambiguous(Vec<String>),
    /// Nothing of that name.
    Unknown,
}

/// Looks a written name up: `section.name`, a bare name at the top level, or an alias in any section.
pub(super) fn lookup(section: &str, name: &str) -> Found {
    if let Some(k) = KEYS.iter().find(|k| k.section == section && k.name == name) {
        return Found::Key(*k);
    }
    let full = if section.is_empty() { name.to_string() } else { format!("{section}.{name}") };
    let alias = ALIASES.iter().find(|(a, _)| *a == full).or_else(|| ALIASES.iter().find(|(a, _)| *a == name));
    if let Some(k) = alias.and_then(|(_, path)| KEYS.iter().find(|k| k.path() == *path)) {
        return Found::Alias(*k);
    }
    if section.is_empty() {
        let bare: Vec<&Key> = KEYS.iter().filter(|k| k.name == name).collect();
        match bare[..] {
            [] => {}
            [k] => return Found::Alias(*k),
            _ => return Found::Ambiguous(bare.iter().map(|k| k.path()).collect()),
        }
    }
    Found::Unknown
}

/// The advice for an unknown name: why it isn't needed, or the nearest key.
pub(super) fn advice(section: &str, name: &str) -> String {
    if let Some((_, why)) = NOT_NEEDED.iter().find(|(n, _)| *n == name) {
        return format!("remove it: {why}");
    }
    if let Some(k) = KEYS.iter().find(|k| k.name == name) {
        return format!("'{name}' belongs in [{}]: did you mean '{}'?", k.section, k.path());
    }
    let own: Vec<String> = KEYS.iter().filter(|k| k.section == section).map(|k| k.path()).collect();
    let full = if section.is_empty() { name.to_string() } else { format!("{section}.{name}") };
    // A near miss inside the same section beats an equally near one elsewhere.
    let in_section =
        nearest(&full, own.iter().map(String::as_str)).filter(|k| strsim::damerau_levenshtein(k, &full) <= 3);
    let bare = || {
        let hit = nearest(name, KEYS.iter().map(|k| k.name).chain(ALIASES.iter().map(|(a, _)| *a)))?;
        let target = KEYS.iter().find(|k| k.name == hit).map(|k| k.path());
        target.or_else(|| ALIASES.iter().find(|(a, _)| *a == hit).map(|(_, p)| (*p).to_string()))
    };
    match in_section.map(str::to_string).or_else(bare) {
        Some(hit) => format!("did you mean '{hit}'?"),
        None if SECTIONS.contains(&section) => {
            let names: Vec<&str> = KEYS.iter().filter(|k| k.section == section).map(|k| k.name).collect();
            format!("remove it: [{section}] has {}", names.join(", "))
        }
        None => format!("remove it: the sections are {}", sections()),
    }
}

/// Every key of the config, dotted, in the order of the file.
pub fn config_keys() -> impl Iterator<Item = String> {
    KEYS.iter().map(|k| k.path())
}

/// The candidate most like `word`; `None` where none is like it: no suggestion is better than a wrong one.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.chars().filter(|c| !c.is_control()).collect::<String>().to_ascii_lowercase();
    let likeness = |c: &str| {
        let by_start = strsim::jaro_winkler(&word, c);
        // A beginning of some letters stands for the whole, however much longer that is.
        let begins = word.len() >= BEGINNING && c.starts_with(&word);
        let alike = by_start >= ALIKE[0] && strsim::normalized_damerau_levenshtein(&word, c) >= ALIKE[1];
        (begins || alike).then_some(by_start)
    };
    candidates
        .into_iter()
        .filter_map(|c| Some((likeness(&c.to_ascii_lowercase())?, c)))
        .fold(None, |best: Option<(f64, &str)>, x| if best.is_some_and(|b| b.0 >= x.0) { best } else { Some(x) })
        .map(|(_, c)| c)
}

/// Letters that a beginning of a name has at least.
const BEGINNING: usize = 3;

/// What two names that a person may have mixed up have at least: likeness that weighs the beginning, and the share of
/// letters that stay.
const ALIKE: [f64; 2] = [0.8, 0.5];

/// `[model], [data], …`
pub(super) fn sections() -> String {
    SECTIONS.map(|s| format!("[{s}]")).join(", ")
}

/// Section names, in the order of the file.
pub(super) const SECTIONS: [&str; 6] = ["model", "data", "lora", "train", "stream", "wear"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunConfig;
    use std::path::PathBuf;

    #[test]
    fn the_table_names_exactly_the_keys_of_the_config() {
        let mut full = RunConfig { machine: Some("m".into()), results: Some("r".into()), ..RunConfig::default() };
        full.model.name = Some("n".into());
        full.data.template = Some(PathBuf::from("t"));
        full.lora.init_from = Some(PathBuf::from("i"));
        let toml::Value::Table(table) = toml::Value::try_from(&full).unwrap() else { panic!("not a table") };
        let mut have = Vec::new();
        for (name, value) in &table {
            match value {
                toml::Value::Table(section) => have.extend(section.keys().map(|k| format!("{name}.{k}"))),
                _ => have.push(name.clone()),
            }
        }
        let mut want: Vec<String> = KEYS.iter().map(|k| k.path()).collect();
        have.sort();
        want.sort();
        assert_eq!(have, want);
    }

    #[test]
    fn every_alias_leads_to_a_key_and_hides_none() {
        for (alias, path) in ALIASES {
            assert!(KEYS.iter().any(|k| k.path() == path), "{alias} -> {path}");
            assert!(!KEYS.iter().any(|k| k.path() == alias), "{alias} is a key itself");
        }
        for (name, _) in NOT_NEEDED {
            assert_eq!(lookup("train", name), Found::Unknown, "{name}");
        }
    }

    #[test]
    fn bare_names_work_where_they_are_unambiguous() {
        let is = |name: &str, path: &str| matches!(lookup("", name), Found::Alias(k) if k.path() == path);
        assert!(is("learning_rate", "train.learning_rate"));
        assert!(is("lora_target_modules", "lora.targets"));
        assert!(matches!(lookup("", "format"), Found::Ambiguous(v) if v == ["model.format", "data.format"]));
        assert!(matches!(lookup("train", "lora_rank"), Found::Alias(k) if k.path() == "lora.r"));
    }

    #[test]
    fn the_nearest_key_is_the_one_a_person_meant() {
        for (section, name, want) in [
            ("train", "learnign_rate", "train.learning_rate"),
            ("train", "r", "lora.r"),
            ("lora", "target", "lora.targets"),
            ("stream", "prefetch", "stream.prefetch_ahead"),
            ("", "max_step", "train.max_steps"),
        ] {
            assert!(advice(section, name).contains(&format!("'{want}'")), "{name}: {}", advice(section, name));
        }
        assert!(advice("train", "bf16").starts_with("remove it"));
    }

    #[test]
    fn case_fo_79f_a_name_like_none_gets_no_suggestion() {
        for (section, name) in [
            ("lora", "modules_to_save"),
            ("lora", "layer_replication"),
            ("train", "neftune_noise_alpha"),
            ("", "wandb_project"),
            ("data", "remove_unused_columns"),
            ("", "x"),
        ] {
            let said = advice(section, name);
            assert!(!said.contains("did you mean") && said.starts_with("remove it"), "{name}: {said}");
        }
        assert!(advice("lora", "layer_replication").contains("r, alpha, dropout"), "the section's own keys");
        assert_eq!(nearest("modules_to_save", ["mode", "max_steps"]), None);
        assert_eq!(nearest("", ["mode"]), None);
    }

    #[test]
    fn case_fo_36b_what_asks_for_a_quantised_base_is_told_what_streams() {
        for name in ["load_in_4bit", "bnb_4bit_quant_type", "quantization_bit"] {
            for section in ["", "model", "lora"] {
                let said = advice(section, name);
                assert!(
                    said.contains("streams in the type it is stored in") && !said.contains("did you mean"),
                    "{said}"
                );
            }
        }
    }
}
