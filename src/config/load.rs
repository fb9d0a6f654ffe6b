//! Reads a run config from file, environment and `--set`, and explains what is wrong with it.
//!
//! Environment: `BSTUI_<SECTION>__<KEY>` with a double underscore, e.g. `BSTUI_TRAIN__LEARNING_RATE=1e-4`,
//! or `BSTUI_<KEY>` where only one section has that key. Text values are read by the key's kind: `64 MB` for a
//! size, commas between list items. A flat file with the Hugging Face names and no sections works too.

use super::check::{check, retired, values};
use super::keys::{self, Found, SECTIONS};
use super::size::{BYTES_EXPECTED, RESIDENT_EXPECTED, TERABYTES_EXPECTED, terabytes};
use super::table::{Key, Kind};
use super::{ByteSize, Resident, RunConfig, paths};
use crate::error::{Error, Result};
use crate::text::clean;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// A loaded config and what the user should know about it (aliases taken, values replaced).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// The config.
    pub config: RunConfig,
    /// One line each.
    pub notes: Vec<String>,
}

/// Prefix of the environment variables that set keys.
const ENV_PREFIX: &str = "BSTUI_";
/// Keys whose limit other trainers lift with -1, and ours with 0.
const UNLIMITED: [&str; 4] = ["train.max_steps", "train.eval_steps", "train.save_steps", "train.save_total_limit"];
/// A config is a page of text; anything longer is the wrong file.
const LARGEST_FILE: u64 = 1 << 20;

/// Defaults < `file` < `env` (pairs like `BSTUI_TRAIN__LEARNING_RATE=1e-4`) < `sets` (`train.learning_rate=1e-4`).
///
/// `env` may be the whole environment: only names that begin with `BSTUI_` count. Relative paths in the file stay
/// relative to the working folder.
///
/// # Errors
/// Unknown keys (names the nearest), wrong types (names key, value and what is expected), impossible values.
pub fn load(file: Option<&Path>, env: &[(String, String)], sets: &[String]) -> Result<Loaded> {
    load_from(file, None, env, sets)
}

/// [`load`], for a file whose relative paths start at the folder `base`: those that lead somewhere from there are made
/// absolute.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    file: Option<&Path>,
    base: Option<&Path>,
    env: &[(String, String)],
    sets: &[String],
) -> Result<Loaded> {
    let mut layers = Layers { base: base.map(Path::to_path_buf), ..Layers::default() };
    if let Some(path) = file {
        layers.file(path)?;
    }
    let mut env: Vec<&(String, String)> = env.iter().filter(|(name, _)| name.starts_with(ENV_PREFIX)).collect();
    env.sort();
    layers.begin();
    for (name, value) in env {
        let rest = name[ENV_PREFIX.len()..].to_ascii_lowercase();
        let (section, key) = rest.split_once("__").unwrap_or(("", &rest));
        layers.text(section, key, value, name)?;
    }
    layers.begin();
    for set in sets {
        let (key, value) = set.split_once('=').ok_or_else(|| {
            Error::usage(format!("'{}' sets nothing", clean(set))).next("write it as section.key=value")
        })?;
        let (section, name) = split_path(key.trim());
        // The same key may be set twice on a command line: the last one wins.
        layers.begin();
        layers.text(section, name, value.trim(), "--set")?;
    }
    layers.finish(RunConfig::default())
}

/// Whether `name` is a key of the config: bare (`learning_rate`), dotted, or an alias of one.
#[must_use]
pub fn is_key(name: &str) -> bool {
    let (section, bare) = name.split_once('.').unwrap_or(("", name));
    matches!(keys::lookup(section, bare), keys::Found::Key(_) | keys::Found::Alias(_))
}

/// Whether `name` is a key (or an alias of one) that is either true or false.
#[must_use]
pub fn is_flag(name: &str) -> bool {
    let (section, bare) = split_path(name);
    matches!(keys::lookup(section, bare), keys::Found::Key(k) | keys::Found::Alias(k) if k.kind == Kind::Flag)
}

/// Sets one key of `config` from text, as `--set key=value` and the script's `set key value` do.
///
/// Returns a line to show when the key was written by another name or the value deserves a warning.
///
/// # Errors
/// As [`load`]; `config` is unchanged then.
pub fn set(config: &mut RunConfig, key: &str, value: &str) -> Result<Option<String>> {
    let mut layers = Layers::default();
    let (section, name) = split_path(key.trim());
    layers.text(section, name, value.trim(), "set")?;
    let loaded = layers.finish(config.clone())?;
    *config = loaded.config;
    Ok((!loaded.notes.is_empty()).then(|| loaded.notes.join("; ")))
}

/// Writes `config` as TOML with every key that has a value; [`load`] reads it back unchanged.
///
/// # Errors
/// A number is past what TOML holds (`load` refuses those).
pub fn to_toml(config: &RunConfig) -> Result<String> {
    toml::to_string_pretty(config).map_err(|e| Error::usage(format!("cannot write the config: {e}")))
}

fn split_path(key: &str) -> (&str, &str) {
    key.split_once('.').unwrap_or(("", key))
}

/// Values by canonical key, later layers over earlier ones.
#[derive(Default)]
struct Layers {
    values: BTreeMap<(usize, &'static str), (Key, Value)>,
    /// Keys of the layer being read, and how they were written: twice in one layer is a mistake.
    seen: BTreeMap<&'static str, String>,
    notes: Vec<String>,
    /// Where relative paths of the file start, unless in the working folder.
    base: Option<PathBuf>,
}

impl Layers {
    fn begin(&mut self) {
        self.seen.clear();
    }

    fn file(&mut self, path: &Path) -> Result<()> {
        let size = std::fs::metadata(path).map_err(|e| Error::input("read", path, e))?.len();
        let name = clean(&path.display().to_string());
        if size > LARGEST_FILE {
            return Err(Error::usage(format!("'{name}' has {size} bytes: that is no run config")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| Error::input("read", path, e))?;
        let table: Table = toml::from_str(&text).map_err(|e| {
            let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            Error::usage(format!("{name}:{line}: {}", clean(e.message().trim())))
        })?;
        let at = |e: Error| {
            let named = Error::usage(format!("{name}: {}", e.what()));
            match e.advice() {
                Some(next) => named.next(next),
                None => named,
            }
        };
        for (key, value) in table {
            match value {
                Value::Table(section) if SECTIONS.contains(&key.as_str()) => {
                    for (k, v) in section {
                        self.value(&key, &k, v).map_err(at)?;
                    }
                }
                Value::Table(_) => {
                    let next = keys::nearest(&key, SECTIONS).map_or_else(
                        || format!("the sections are {}", keys::sections()),
                        |near| format!("did you mean [{near}]?"),
                    );
                    return Err(at(Error::usage(format!("unknown section [{}]", clean(&key))).next(next)));
                }
                value => self.value("", &key, value).map_err(at)?,
            }
        }
        Ok(())
    }

    /// A typed value from a file.
    fn value(&mut self, section: &str, name: &str, value: Value) -> Result<()> {
        if retired(section, name, value.as_str().unwrap_or(&value.to_string()))? {
            return Ok(());
        }
        let key = self.resolve(section, name, "")?;
        let value = self.ours(key, value);
        let mut value = coerce(key, value)?;
        if let Some(base) = self.base.as_ref().filter(|_| paths::KEYS.contains(&key.path)) {
            value = paths::rebased(value, base);
        }
        self.put(key, name, value)
    }

    /// A text value from `source`: the environment or a flag.
    fn text(&mut self, section: &str, name: &str, text: &str, source: &str) -> Result<()> {
        if retired(section, name, text)? {
            return Ok(());
        }
        let key = self.resolve(section, name, source)?;
        let value = match text.parse::<i64>() {
            Ok(n) if matches!(key.kind, Kind::Whole(..)) => coerce(key, self.ours(key, Value::Integer(n)))?,
            _ => self.ours(key, from_text(key, text)?),
        };
        self.put(key, name, value)
    }

    /// A value as other trainers write it, as ours: -1 for no such limit, `all` for every linear layer, commas in one
    /// text of projections.
    fn ours(&mut self, key: Key, value: Value) -> Value {
        match (key.path, value) {
            (path, Value::Integer(-1)) if UNLIMITED.contains(&path) => {
                self.notes.push(format!("'{path}' = -1 is read as 0"));
                Value::Integer(0)
            }
            ("lora.targets", Value::String(s)) => self.ours(key, Value::Array(vec![Value::String(s)])),
            ("lora.targets", Value::Array(items)) => {
                let one = |item: Value| match item {
                    Value::String(s) => s.split(',').map(|t| Value::String(t.trim().into())).collect(),
                    other => vec![other],
                };
                let mut items: Vec<Value> = items.into_iter().flat_map(one).collect();
                for item in items.iter_mut().filter(|i| i.as_str() == Some("all")) {
                    self.notes.push("'lora.targets' = \"all\" is read as \"all-linear\"".into());
                    *item = Value::String("all-linear".into());
                }
                Value::Array(items)
            }
            (_, value) => value,
        }
    }

    fn resolve(&mut self, section: &str, name: &str, source: &str) -> Result<Key> {
        let written = if section.is_empty() { clean(name) } else { format!("{}.{}", clean(section), clean(name)) };
        let from = if source.starts_with(ENV_PREFIX) { format!(" (from {})", clean(source)) } else { String::new() };
        let key = match keys::lookup(section, name) {
            Found::Key(k) => k,
            Found::Alias(k) => {
                if source != "set" || written != k.parts().1 {
                    self.notes.push(format!("'{written}' is read as '{}'{from}", k.path));
                }
                k
            }
            Found::Unknown => {
                return Err(Error::usage(format!("unknown key '{written}'{from}")).next(keys::advice(section, name)));
            }
        };
        if let Some(before) = self.seen.insert(key.path, written.clone()) {
            return Err(Error::usage(format!("'{}' is given twice, as '{before}' and as '{written}'", key.path))
                .next("keep one of them"));
        }
        Ok(key)
    }

    fn put(&mut self, key: Key, written: &str, value: Value) -> Result<()> {
        if written == "warmup_ratio" && number(&value).is_some_and(|x| x >= 1.0) {
            return Err(Error::usage(format!("'warmup_ratio' = {value}: expected a share below 1 of all steps"))
                .next("write train.warmup_steps for a number of steps"));
        }
        let home = std::env::var_os("HOME").filter(|h| !h.is_empty() && paths::KEYS.contains(&key.path));
        let value = match home {
            Some(home) => paths::at_home(value, Path::new(&home)),
            None => value,
        };
        let (section, name) = key.parts();
        let order = SECTIONS.iter().position(|s| *s == section).map_or(0, |i| i + 1);
        self.values.insert((order, name), (key, value));
        Ok(())
    }

    /// Lays the values over `base`, and checks the whole.
    fn finish(self, base: RunConfig) -> Result<Loaded> {
        let invalid = |e: &dyn std::fmt::Display| Error::usage(format!("config: {}", clean(&e.to_string())));
        let Value::Table(mut table) = Value::try_from(&base).map_err(|e| invalid(&e))? else {
            return Err(Error::usage("config: not a table"));
        };
        for (key, value) in self.values.into_values() {
            let (section, name) = key.parts();
            if section.is_empty() {
                table.insert(name.into(), value);
            } else if let Some(Value::Table(section)) = table.get_mut(section) {
                section.insert(name.into(), value);
            }
        }
        values(&table)?;
        let mut config: RunConfig =
            Value::Table(table).try_into().map_err(|e: toml::de::Error| invalid(&e.message()))?;
        let mut notes = self.notes;
        notes.extend(check(&mut config)?);
        Ok(Loaded { config, notes })
    }
}

fn number(v: &Value) -> Option<f64> {
    match v {
        Value::Float(x) => Some(*x),
        Value::Integer(n) => Some(*n as f64),
        _ => None,
    }
}

fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Text | Kind::Name(_) => "text in quotes",
        Kind::List => "a list of texts",
        Kind::Whole(..) => "a whole number ≥ 0",
        Kind::Number(..) => "a finite number",
        Kind::Flag => "true or false",
        Kind::Size => BYTES_EXPECTED,
        Kind::Resident => RESIDENT_EXPECTED,
        Kind::Terabytes => TERABYTES_EXPECTED,
    }
}

fn wrong(key: Key, shown: &str) -> Error {
    let wrong = Error::usage(format!("'{}' = {}: expected {}", key.path, clean(shown), expected(key.kind)));
    let is_share = shown.parse::<f64>().is_ok_and(|x| x > 0.0 && x < 1.0);
    if matches!(key.kind, Kind::Whole(..)) && key.path.ends_with("_steps") && is_share {
        return wrong
            .next("a share of all steps, as transformers takes it, is not understood: write the number of steps");
    }
    wrong
}

/// Brings a value of a file to the key's kind.
fn coerce(key: Key, value: Value) -> Result<Value> {
    let shown = value.to_string();
    let fits = match (key.kind, value) {
        (Kind::Text | Kind::Name(_), v @ Value::String(_)) | (Kind::Flag, v @ Value::Boolean(_)) => Some(v),
        (Kind::List, Value::String(s)) => Some(Value::Array(vec![Value::String(s)])),
        (Kind::List, Value::Array(a)) => a.iter().all(Value::is_str).then_some(Value::Array(a)),
        (Kind::Whole(..) | Kind::Size | Kind::Resident, Value::Integer(n)) => (n >= 0).then_some(Value::Integer(n)),
        (Kind::Terabytes, Value::String(s)) => terabytes(&s).map(Value::Float),
        (Kind::Number(..) | Kind::Terabytes, v) => number(&v).filter(|x| x.is_finite()).map(Value::Float),
        (Kind::Size, Value::String(s)) => return size(key, &s),
        (Kind::Resident, Value::String(s)) => Resident::parse(&s).map(|_| resident_value(&s)),
        _ => None,
    };
    fits.ok_or_else(|| wrong(key, &shown))
}

/// Reads text from the environment or a flag by the key's kind.
fn from_text(key: Key, text: &str) -> Result<Value> {
    let fits = match key.kind {
        Kind::Text | Kind::Name(_) => Some(Value::String(text.to_string())),
        Kind::List => {
            let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
            let items = inner.split(',').map(|t| t.trim().trim_matches('"')).filter(|t| !t.is_empty());
            Some(Value::Array(items.map(|t| Value::String(t.to_string())).collect()))
        }
        Kind::Whole(..) => text.parse::<i64>().ok().filter(|n| *n >= 0).map(Value::Integer),
        Kind::Number(..) => text.parse::<f64>().ok().filter(|x| x.is_finite()).map(Value::Float),
        Kind::Flag => text.parse::<bool>().ok().map(Value::Boolean),
        Kind::Size => return size(key, text),
        Kind::Resident => Resident::parse(text).map(|_| resident_value(text)),
        Kind::Terabytes => terabytes(text).map(Value::Float),
    };
    fits.ok_or_else(|| wrong(key, text))
}

fn size(key: Key, text: &str) -> Result<Value> {
    let bytes = ByteSize::parse(text).ok_or_else(|| wrong(key, text))?;
    i64::try_from(bytes.0).map(Value::Integer).map_err(|_| wrong(key, text))
}

fn resident_value(text: &str) -> Value {
    text.trim().parse::<i64>().map_or_else(|_| Value::String("auto".into()), Value::Integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Result<Loaded> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, text).unwrap();
        load(Some(&path), &[], &[])
    }

    #[test]
    fn later_layers_win() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "[train]\nlearning_rate = 1e-3\nseed = 1\nmax_steps = 5").unwrap();
        let env = [
            ("BSTUI_TRAIN__LEARNING_RATE".into(), "2e-3".into()),
            ("BSTUI_SEED".into(), "2".into()),
            ("HOME".into(), "/nowhere".into()),
        ];
        let sets =
            ["train.seed=3".to_string(), "stream.host_budget=64 MB".into(), "lora.targets=q_proj, v_proj".into()];
        let c = load(Some(&path), &env, &sets).unwrap().config;
        assert_eq!((c.train.learning_rate, c.train.seed, c.train.max_steps), (2e-3, 3, 5));
        assert_eq!(c.stream.host_budget, ByteSize(64_000_000));
        assert_eq!(c.lora.targets, ["q_proj", "v_proj"]);
        assert_eq!(load(None, &[], &[]).unwrap().config.train.seed, 42);
    }

    #[test]
    fn flat_hugging_face_names_are_taken_and_said() {
        let l = from(
            "learning_rate = 3e-4\nmodel_name_or_path = \"m\"\noutput_dir = \"out\"\nwarmup_ratio = 0.1\nlora_r = 4",
        )
        .unwrap();
        assert_eq!(l.config.train.learning_rate, 3e-4);
        assert_eq!(l.config.model.path, "m");
        assert_eq!(l.config.results.as_deref(), Some(Path::new("out")));
        assert_eq!((l.config.train.warmup_steps, l.config.lora.r), (0.1, 4));
        assert!(l.notes.iter().any(|n| n == "'lora_r' is read as 'lora.r'"), "{:?}", l.notes);
    }

    #[test]
    fn a_key_written_twice_under_two_names_is_refused() {
        let e = from("[lora]\nr = 8\nlora_rank = 16").unwrap_err().to_string();
        assert!(e.contains("'lora.r' is given twice") && e.contains("lora_rank"), "{e}");
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let e = from("[train]\nseed = = 3\n").unwrap_err().to_string();
        assert!(e.contains("run.toml:2:"), "{e}");
    }

    #[test]
    fn hostile_text_reaches_no_terminal() {
        let e = from("[train]\n\"see\\u001b[2Jd\" = 1").unwrap_err().to_string();
        assert!(!e.contains('\u{1b}') && e.contains("train.seed"), "{e}");
    }

    #[test]
    fn set_changes_one_key_or_nothing() {
        let mut c = RunConfig::default();
        assert_eq!(set(&mut c, "train.max_steps", "20").unwrap(), None);
        assert_eq!(set(&mut c, "stream.resident_blocks", "3").unwrap(), None);
        assert_eq!(set(&mut c, "max_length", "64").unwrap(), None);
        assert!(set(&mut c, "lora_rank", "4").unwrap().unwrap().contains("lora.r"));
        assert_eq!((c.train.max_steps, c.lora.r, c.data.max_length), (20, 4, 64));
        assert_eq!(c.stream.resident_blocks, Resident::AtMost(3));
        let before = c.clone();
        assert!(set(&mut c, "lora.r", "0").is_err());
        assert!(set(&mut c, "lora.r", "many").is_err());
        assert_eq!(c, before);
    }

    #[test]
    fn the_resolved_config_reads_back_unchanged() {
        let mut c = RunConfig { results: Some("out dir".into()), ..RunConfig::default() };
        c.model.path = "a \"quoted\" name".into();
        c.data.files = vec!["a.jsonl".into()];
        c.stream.resident_blocks = Resident::AtMost(2);
        c.stream.host_budget = ByteSize(64_000_000);
        let text = to_toml(&c).unwrap();
        let l = from(&text).unwrap();
        assert_eq!(l.config, c, "{text}");
        assert!(l.notes.is_empty());
    }

    #[test]
    fn a_byte_order_mark_changes_nothing() {
        let text = "[train]\nseed = 7\n";
        assert_eq!(from(&format!("\u{feff}{text}")).unwrap().config, from(text).unwrap().config);
        let e = from("\u{feff}[train]\nseed = = 3\n").unwrap_err().to_string();
        assert!(e.contains("run.toml:2:"), "{e}");
    }

    #[test]
    fn what_an_earlier_version_wrote_is_read() {
        for text in ["[model]\nformat = \"\"", "[model]\nformat = \"auto\"\n[data]\npacking = false"] {
            assert_eq!(from(text).unwrap(), Loaded::default(), "{text}");
        }
        assert!(set(&mut RunConfig::default(), "model.format", "auto").is_ok());
        for (key, value) in [("model.format", "nf4"), ("data.packing", "true")] {
            let e = set(&mut RunConfig::default(), key, value).unwrap_err();
            assert!(e.to_string().contains(&format!("'{key}' = {value}: ")), "{e}");
        }
    }

    #[test]
    fn all_linear_and_repeats_become_one_list() {
        let c = from("[lora]\ntargets = [\"v_proj\", \"q_proj\", \"v_proj\"]").unwrap().config;
        assert_eq!(c.lora.targets, ["q_proj", "v_proj"]);
        assert_eq!(from("[lora]\ntargets = \"all-linear\"").unwrap().config.lora.targets.len(), 7);
    }

    #[test]
    fn case_fo_44_values_of_other_trainers_are_understood_or_answered_with_ours() {
        for (text, targets) in [
            ("lora_target = \"all\"", 7),
            ("lora_target = \"q_proj,v_proj\"", 2),
            ("[lora]\ntargets = [\"q_proj, k_proj\", \"v_proj\"]", 3),
            ("[lora]\ntarget_modules = [\"all\"]", 7),
        ] {
            assert_eq!(from(text).unwrap().config.lora.targets.len(), targets, "{text}");
        }
        assert!(from("lora_target = \"all\"").unwrap().notes.iter().any(|n| n.contains("\"all-linear\"")));
        for key in ["max_steps", "save_steps", "eval_steps", "save_total_limit"] {
            let l = from(&format!("[train]\n{key} = -1")).unwrap();
            assert!(l.notes.iter().any(|n| n == &format!("'train.{key}' = -1 is read as 0")), "{:?}", l.notes);
            let set = load(None, &[("BSTUI_SEED".into(), "1".into())], &[format!("train.{key}=-1")]).unwrap();
            assert_eq!((l.config.train.max_steps, set.config.train.save_total_limit == 0), (0, key.ends_with("limit")));
            let e = load(None, &[], &[format!("train.{key}=-2")]).unwrap_err().to_string();
            assert!(e.contains("expected a whole number ≥ 0"), "{e}");
        }
        for e in [from("[train]\nsave_steps = 0.5"), load(None, &[], &["train.eval_steps=0.25".into()])] {
            let e = e.unwrap_err();
            assert!(e.advice().is_some_and(|a| a.contains("write the number of steps")), "{e}");
        }
    }

    #[test]
    fn case_fo_44c_a_files_paths_may_begin_with_a_tilde() {
        let Some(home) = std::env::var_os("HOME").map(PathBuf::from) else { return };
        let c = from("model_name_or_path = \"~/m\"\noutput_dir = \"~/r\"\ntrain_file = \"~/a.jsonl\"").unwrap().config;
        assert_eq!(Path::new(&c.model.path), home.join("m"));
        assert_eq!((c.results, c.data.files), (Some(home.join("r")), vec![home.join("a.jsonl")]));
    }
}
