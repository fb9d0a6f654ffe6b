//! Settings that can be changed on a screen: one table of keys, each with its values for the arrow keys.

use crate::config::{ByteSize, RunConfig};

/// A setting that a screen can edit. Text goes through `config::load::set`, as `--set` does.
#[derive(Debug)]
pub struct Field {
    /// Config key, e.g. `lora.r`.
    pub key: &'static str,
    /// Short label.
    pub label: &'static str,
    /// Its value, as `set` would take it.
    pub get: fn(&RunConfig) -> String,
    /// Values that the arrow keys walk through.
    pub steps: &'static [&'static str],
}

const ALL_LINEAR: &str = "all-linear";
const ATTENTION: &str = "q_proj,k_proj,v_proj,o_proj";

/// Settings of the Plan screen.
pub const PLAN: &[Field] = &[
    Field { key: "lora.r", label: "rank", get: |c| c.lora.r.to_string(), steps: &["4", "8", "16", "32", "64", "128"] },
    Field { key: "lora.targets", label: "targets", get: targets, steps: &["q_proj,v_proj", ATTENTION, ALL_LINEAR] },
    Field {
        key: "lora.top_fraction",
        label: "layers trained",
        get: |c| c.lora.top_fraction.to_string(),
        steps: &["0.1", "0.25", "0.5", "0.75", "1"],
    },
    Field {
        key: "data.max_length",
        label: "max length",
        get: |c| c.data.max_length.to_string(),
        steps: &["256", "512", "1024", "2048", "4096", "8192"],
    },
    Field {
        key: "train.per_device_train_batch_size",
        label: "batch",
        get: |c| c.train.per_device_train_batch_size.to_string(),
        steps: &["1", "2", "4", "8", "16"],
    },
    Field {
        key: "train.gradient_accumulation_steps",
        label: "accumulation",
        get: |c| c.train.gradient_accumulation_steps.to_string(),
        steps: &["1", "2", "4", "8", "16", "32"],
    },
    Field {
        key: "train.max_steps",
        label: "steps",
        get: |c| {
            if c.train.max_steps == 0 { "0".into() } else { c.train.max_steps.to_string() }
        },
        steps: &["0", "20", "50", "100", "200", "500", "1000"],
    },
    Field {
        key: "train.learning_rate",
        label: "learning rate",
        get: |c| format!("{:e}", c.train.learning_rate),
        steps: &["1e-5", "2e-5", "5e-5", "1e-4", "2e-4", "5e-4", "1e-3"],
    },
    Field {
        key: "stream.tier",
        label: "weights wait in",
        get: |c| c.stream.tier.clone(),
        steps: &["auto", "ram", "disk"],
    },
    Field {
        key: "stream.prefetch_ahead",
        label: "layers ahead",
        get: |c| c.stream.prefetch_ahead.to_string(),
        steps: &["0", "1", "2", "3", "4", "5"],
    },
    Field {
        key: "stream.vram_budget",
        label: "VRAM budget",
        get: |c| size(c.stream.vram_budget),
        steps: &["0", "2 GB", "4 GB", "6 GB", "8 GB", "12 GB", "16 GB", "24 GB"],
    },
    Field {
        key: "stream.host_budget",
        label: "RAM for weights",
        get: |c| size(c.stream.host_budget),
        steps: &["0", "64 MB", "1 GB", "2 GB", "4 GB", "8 GB", "16 GB", "32 GB"],
    },
];

/// Settings of the Data screen.
pub const DATA: &[Field] = &[
    Field {
        key: "data.files",
        label: "files",
        get: |c| c.data.files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(","),
        steps: &[],
    },
    Field {
        key: "data.eval_files",
        label: "evaluation files",
        get: |c| c.data.eval_files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(","),
        steps: &[],
    },
    Field {
        key: "data.eval_split",
        label: "evaluation share",
        get: |c| c.data.eval_split.to_string(),
        steps: &["0", "0.05", "0.1", "0.2"],
    },
    Field {
        key: "data.format",
        label: "format",
        get: |c| c.data.format.clone(),
        steps: &["auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text"],
    },
    Field {
        key: "data.train_on",
        label: "train on",
        get: |c| c.data.train_on.clone(),
        steps: &["assistant", "last_assistant", "all"],
    },
    Field {
        key: "data.max_length",
        label: "max length",
        get: |c| c.data.max_length.to_string(),
        steps: &["256", "512", "1024", "2048", "4096", "8192"],
    },
    Field {
        key: "data.over_long",
        label: "rows over the limit",
        get: |c| c.data.over_long.clone(),
        steps: &["truncate_end", "truncate_start", "drop", "error"],
    },
    Field {
        key: "data.system_fallback",
        label: "system message unsupported",
        get: |c| c.data.system_fallback.clone(),
        steps: &["stop", "fold", "drop"],
    },
];

/// Exactly what `set` would take back: the largest unit that leaves no rest.
fn size(bytes: ByteSize) -> String {
    let units = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    match units.iter().find(|(_, scale)| bytes.0 >= *scale && bytes.0.is_multiple_of(*scale)) {
        Some((unit, scale)) => format!("{} {unit}", bytes.0 / scale),
        None => bytes.0.to_string(),
    }
}

/// The target list; all seven projections by their one name.
fn targets(config: &RunConfig) -> String {
    const ALL: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let targets = &config.lora.targets;
    let all = ALL.iter().all(|t| targets.iter().any(|x| x == t)) && targets.len() == ALL.len();
    if all { ALL_LINEAR.into() } else { targets.join(",") }
}

impl Field {
    /// What the user sees: `0` where it means "decide for me" reads as such.
    #[must_use]
    pub fn shown(&self, config: &RunConfig) -> String {
        let value = (self.get)(config);
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
        let value = (self.get)(config);
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
    fn zero_reads_as_what_it_means() {
        let c = RunConfig::default();
        assert_eq!(field("stream.vram_budget").shown(&c), "all free");
        assert_eq!(field("lora.targets").shown(&c), "q k v o");
        let size = |n| size(ByteSize(n));
        assert_eq!([size(0), size(64_000_000), size(1_500_000_000), size(7)], ["0", "64 MB", "1500 MB", "7"]);
    }
}
