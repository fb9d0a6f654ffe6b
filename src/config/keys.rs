//! Names of keys as they are written, other trainers' names among them, and the nearest key to a wrong one.

use super::table::{KEYS, Key};

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
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    /// The key itself, written in full.
    Key(Key),
    /// Another name for it, or its bare name without a section: worth a note.
    Alias(Key),
    /// Nothing of that name.
    Unknown,
}

/// Looks a written name up: `section.name`, a bare name at the top level, or an alias in any section.
pub(super) fn lookup(section: &str, name: &str) -> Found {
    let full = full(section, name);
    if let Some(k) = KEYS.iter().find(|k| k.path == full) {
        return Found::Key(*k);
    }
    let also = |alias: &str| KEYS.iter().find(|k| k.aliases.contains(&alias));
    if let Some(k) = also(&full).or_else(|| also(name)) {
        return Found::Alias(*k);
    }
    if section.is_empty() {
        let bare = KEYS.iter().find(|k| k.parts().1 == name);
        return bare.map_or(Found::Unknown, |k| Found::Alias(*k));
    }
    Found::Unknown
}

/// The advice for an unknown name: why it isn't needed, or the nearest key.
pub(super) fn advice(section: &str, name: &str) -> String {
    if let Some((_, why)) = NOT_NEEDED.iter().find(|(n, _)| *n == name) {
        return format!("remove it: {why}");
    }
    if let Some(k) = KEYS.iter().find(|k| k.parts().1 == name) {
        return format!("'{name}' belongs in [{}]: did you mean '{}'?", k.parts().0, k.path);
    }
    let own = || KEYS.iter().filter(|k| k.parts().0 == section);
    let full = full(section, name);
    // A near miss inside the same section beats an equally near one elsewhere.
    let in_section = nearest(&full, own().map(|k| k.path)).filter(|k| strsim::damerau_levenshtein(k, &full) <= 3);
    let bare = || {
        let names = |k: &'static Key| std::iter::once(k.parts().1).chain(k.aliases.iter().copied());
        let hit =
            nearest(name, KEYS.iter().map(|k| k.parts().1).chain(KEYS.iter().flat_map(|k| k.aliases.iter().copied())))?;
        KEYS.iter().find(|k| names(k).any(|n| n == hit)).map(|k| k.path)
    };
    match in_section.or_else(bare) {
        Some(hit) => format!("did you mean '{hit}'?"),
        None if SECTIONS.contains(&section) => {
            let names: Vec<&str> = own().map(|k| k.parts().1).collect();
            format!("remove it: [{section}] has {}", names.join(", "))
        }
        None => format!("remove it: the sections are {}", sections()),
    }
}

fn full(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_string() } else { format!("{section}.{name}") }
}

/// Every key of the config, in the order of the file.
pub fn config_keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter()
}

/// The key of that path.
#[must_use]
pub fn config_key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.path == path)
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
        let mut want: Vec<String> = KEYS.iter().map(|k| k.path.to_string()).collect();
        have.sort();
        want.sort();
        assert_eq!(have, want);
    }

    #[test]
    fn every_alias_leads_to_a_key_and_hides_none() {
        let mut seen = std::collections::BTreeSet::new();
        for (k, alias) in KEYS.iter().flat_map(|k| k.aliases.iter().map(move |a| (k, *a))) {
            assert!(config_key(alias).is_none(), "{alias} is a key itself");
            assert!(seen.insert(alias), "{alias} leads to two keys");
            assert_eq!(lookup("", alias), Found::Alias(*k), "{alias}");
        }
        for (name, _) in NOT_NEEDED {
            assert_eq!(lookup("train", name), Found::Unknown, "{name}");
        }
    }

    #[test]
    fn bare_names_work_where_they_are_unambiguous() {
        let is = |name: &str, path: &str| matches!(lookup("", name), Found::Alias(k) if k.path == path);
        assert!(is("learning_rate", "train.learning_rate"));
        assert!(is("lora_target_modules", "lora.targets"));
        let mut names: Vec<&str> = KEYS.iter().map(|k| k.parts().1).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KEYS.len(), "no name stands in two sections");
        assert!(matches!(lookup("train", "lora_rank"), Found::Alias(k) if k.path == "lora.r"));
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
