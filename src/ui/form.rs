//! Settings that can be changed on a screen: rows of the table of keys, each with its values for the arrow keys.

use crate::config::{Key, RunConfig, config_key, reference};
use std::sync::LazyLock;

/// A setting that a screen can edit. Text goes through `config::load::set`, as `--set` does.
#[derive(Debug)]
pub struct Field {
    /// Config key, e.g. `lora.r`.
    pub key: &'static str,
    /// Short label.
    pub label: &'static str,
    /// Values that the arrow keys walk through.
    pub steps: &'static [&'static str],
    row: &'static Key,
}

const ATTENTION: &str = "q_proj,k_proj,v_proj,o_proj";

const PLAN_KEYS: [&str; 12] = [
    "lora.r",
    "lora.targets",
    "lora.top_fraction",
    "data.max_length",
    "train.per_device_train_batch_size",
    "train.gradient_accumulation_steps",
    "train.max_steps",
    "train.learning_rate",
    "stream.tier",
    "stream.prefetch_ahead",
    "stream.vram_budget",
    "stream.host_budget",
];

const DATA_KEYS: [&str; 9] = [
    "data.files",
    "data.eval_files",
    "data.eval_split",
    "data.format",
    "data.train_on",
    "data.max_length",
    "data.over_long",
    "data.system_fallback",
    "data.control_tokens",
];

/// Settings of the Plan screen.
pub static PLAN: LazyLock<Vec<Field>> = LazyLock::new(|| fields(&PLAN_KEYS));

/// Settings of the Data screen.
pub static DATA: LazyLock<Vec<Field>> = LazyLock::new(|| fields(&DATA_KEYS));

fn fields(keys: &[&str]) -> Vec<Field> {
    let field =
        |row: &'static Key| row.form.map(|form| Field { key: row.path, label: form.label, steps: form.steps, row });
    keys.iter().filter_map(|k| config_key(k)).filter_map(field).collect()
}

impl Field {
    /// Its value, as `set` would take it.
    #[must_use]
    pub fn get(&self, config: &RunConfig) -> String {
        reference::value(config, self.row)
    }

    /// What the user sees: `0` where it means "decide for me" reads as such.
    #[must_use]
    pub fn shown(&self, config: &RunConfig) -> String {
        let value = self.get(config);
        match (self.key, value.as_str()) {
            ("stream.vram_budget" | "stream.host_budget", "0") => "all free".into(),
            ("train.max_steps", "0") if config.train.num_train_epochs == 1.0 => "1 epoch".into(),
            ("train.max_steps", "0") => format!("{} epochs", config.train.num_train_epochs),
            ("lora.targets", ATTENTION) => "q k v o".into(),
            ("lora.targets", _) => value.replace("_proj", "").replace(',', " "),
            ("lora.top_fraction", "1") => "all".into(),
            ("lora.top_fraction", share) => format!("top {share} of them"),
            (_, "") => "none".into(),
            _ => value,
        }
    }

    /// The value `by` steps along the walk (-1 or 1) from the present one; `None` at the end.
    #[must_use]
    pub fn stepped(&self, config: &RunConfig, by: isize) -> Option<&'static str> {
        let value = self.get(config);
        if let Some(i) = self.steps.iter().position(|s| *s == value) {
            return self.steps.get(i.checked_add_signed(by)?).copied();
        }
        // Between two values of the walk: the neighbour in that direction, by number.
        let now = number(&value)?;
        let mut walk = self.steps.iter().filter_map(|s| number(s).map(|n| (n, *s)));
        if by > 0 {
            walk.find(|(n, _)| *n > now).map(|(_, s)| s)
        } else {
            walk.take_while(|(n, _)| *n < now).last().map(|(_, s)| s)
        }
    }
}

/// `2e-4`, `4 GB`, `64 MB` as a number.
fn number(text: &str) -> Option<f64> {
    let (digits, unit) = text.split_once(' ').unwrap_or((text, ""));
    let scale = match unit {
        "" | "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|n| n * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ByteSize, DataFormat};

    #[test]
    fn every_setting_of_a_screen_is_in_the_table() {
        assert_eq!((PLAN.len(), DATA.len()), (PLAN_KEYS.len(), DATA_KEYS.len()), "a key without a form");
    }

    fn field(key: &str) -> &'static Field {
        PLAN.iter().find(|f| f.key == key).unwrap()
    }

    #[test]
    fn arrows_walk_the_steps_and_find_their_place_between_them() {
        let mut c = RunConfig::default();
        assert_eq!(field("lora.r").stepped(&c, 1), Some("32"));
        c.lora.r = 48;
        assert_eq!((field("lora.r").stepped(&c, 1), field("lora.r").stepped(&c, -1)), (Some("64"), Some("32")));
        c.lora.r = 128;
        assert_eq!(field("lora.r").stepped(&c, 1), None);
        c.train.learning_rate = 2e-4;
        assert_eq!(field("train.learning_rate").stepped(&c, 1), Some("5e-4"));
        c.stream.host_budget = ByteSize(64_000_000);
        assert_eq!(field("stream.host_budget").stepped(&c, -1), Some("0"));
    }

    #[test]
    fn a_key_that_takes_names_steps_through_all_of_them() {
        let format = DATA.iter().find(|f| f.key == "data.format").unwrap();
        let mut c = RunConfig::default();
        let mut walked = vec![c.data.format.name()];
        while let Some(next) = format.stepped(&c, 1) {
            crate::config::load::set(&mut c, "data.format", next).unwrap();
            walked.push(next);
        }
        assert_eq!(walked, DataFormat::NAMES, "`tokens` too");
    }

    #[test]
    fn zero_reads_as_what_it_means() {
        let c = RunConfig::default();
        assert_eq!(field("stream.vram_budget").shown(&c), "all free");
        assert_eq!(field("lora.targets").shown(&c), "q k v o");
    }
}
