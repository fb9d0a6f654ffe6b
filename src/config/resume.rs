//! What a changed setting means to a run that is resumed: every key has a class.

use super::RunConfig;
use super::paths::{self, same};
use super::table::{KEYS, Key};
use std::collections::BTreeMap;
use toml::Value;

/// Every key that has a value, by its path (`lora.r`).
pub type Settings = BTreeMap<String, Value>;

/// What becomes of a key that a resumed run finds changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// What was saved means something else under another value: refused.
    Fixed,
    /// What was trained so far would compute something else: refused unless forced.
    Function,
    /// Steers the steps to come: taken, with a warning that the curve goes on as another one.
    Curve,
    /// Shapes the rows: refused unless forced where they come out otherwise, else taken and said.
    Rows,
    /// Only rows per step count, the product of these keys: refused where that differs, else taken and said.
    Batch,
    /// Says how long the run is; the run says what becomes of its schedule.
    Length,
    /// Changes nothing that is learned: taken and said.
    Free,
}

/// A key with two values.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its path.
    pub key: &'static str,
    /// What it means to a resume.
    pub class: Class,
    /// Its value in the run, as text.
    pub was: String,
    /// Its value now.
    pub is: String,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} was {} in this run and is {} now", self.key, self.was, self.is)
    }
}

/// The settings of `config`, for the run's checkpoints.
#[must_use]
pub fn settings(config: &RunConfig) -> Settings {
    let mut all = Settings::new();
    // The only values without a TOML form are refused where a config is read.
    if let Ok(Value::Table(table)) = Value::try_from(config) {
        for (name, value) in table {
            match value {
                Value::Table(section) => all.extend(section.into_iter().map(|(k, v)| (format!("{name}.{k}"), v))),
                value => drop(all.insert(name, value)),
            }
        }
    }
    all
}

/// Keys whose value in `is` differs from that in `was`, in the order of the table. A key that an older version did not
/// know had its default then. A path that only names the same place from another folder is no change.
#[must_use]
pub fn changes(was: &Settings, is: &Settings) -> Vec<Change> {
    let defaults = settings(&RunConfig::default());
    let changed = |key: &str| {
        let (a, b) = (was.get(key).or_else(|| defaults.get(key)), is.get(key));
        let alike = a == b || (paths::KEYS.contains(&key) && matches!((a, b), (Some(a), Some(b)) if same(a, b)));
        (!alike).then(|| (shown(a), shown(b)))
    };
    let change =
        |key: &'static Key| changed(key.path).map(|(was, is)| Change { key: key.path, class: key.class, was, is });
    KEYS.iter().filter_map(change).collect()
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "not set".into(),
        Some(Value::Float(x)) => x.to_string(),
        Some(v) => v.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;

    #[test]
    fn case_fo_05a_every_path_is_a_key_and_what_was_saved_means_what_it_meant() {
        assert!(paths::KEYS.iter().all(|p| KEYS.iter().any(|k| k.path == *p)));
        let fixed: Vec<&str> = KEYS.iter().filter(|k| k.class == Class::Fixed).map(|k| k.path).collect();
        let want = ["lora.r", "lora.targets", "lora.top_fraction", "lora.init_from", "train.mode", "train.seed"];
        assert_eq!(fixed, want);
    }

    #[test]
    fn case_fo_05b_a_change_is_told_with_both_values() {
        let mut c = load::load(None, &[], &[]).unwrap().config;
        let was = settings(&c);
        for (key, value) in [("lora.alpha", "1"), ("data.over_long", "drop"), ("data.template", "t.jinja")] {
            load::set(&mut c, key, value).unwrap();
        }
        let told: Vec<String> = changes(&was, &settings(&c)).iter().map(Change::to_string).collect();
        assert_eq!(
            told,
            [
                "data.template was not set in this run and is \"t.jinja\" now",
                "data.over_long was \"truncate_end\" in this run and is \"drop\" now",
                "lora.alpha was 32 in this run and is 1 now",
            ]
        );
        let read: Settings = serde_json::from_slice(&serde_json::to_vec(&settings(&c)).unwrap()).unwrap();
        assert_eq!(changes(&read, &settings(&c)), [], "JSON keeps every value");
        assert_eq!(
            changes(&Settings::new(), &settings(&RunConfig::default())),
            [],
            "an older version had the defaults"
        );
    }

    #[test]
    fn case_fo_37a_another_way_to_the_same_place_is_no_change() {
        let mut c = RunConfig::default();
        c.data.files = vec!["data/a.jsonl".into(), "b.jsonl".into()];
        let was = settings(&c);
        c.data.files = vec!["/somewhere/data/a.jsonl".into(), "/somewhere/b.jsonl".into()];
        assert_eq!(changes(&was, &settings(&c)), []);
        c.data.files[1] = "/somewhere/other/c.jsonl".into();
        assert_eq!(changes(&was, &settings(&c)).len(), 1);
    }
}
