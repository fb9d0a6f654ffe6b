//! Relative paths of a config, and the folder that they start at.

use super::RunConfig;
use std::path::{Path, PathBuf};
use toml::Value;

/// Keys whose values name files or folders.
pub(super) const KEYS: [&str; 7] =
    ["machine", "results", "model.path", "data.files", "data.eval_files", "data.template", "lora.init_from"];

/// `value` of a path's key with relative paths that lead somewhere from `base` made absolute. What leads nowhere stays
/// (a model's id in the hub cache, or a file that is where this program was started now).
pub(super) fn rebased(value: Value, base: &Path) -> Value {
    match value {
        Value::String(s) => match from(base, Path::new(&s)) {
            Some(path) => Value::String(path.display().to_string()),
            None => Value::String(s),
        },
        Value::Array(all) => Value::Array(all.into_iter().map(|v| rebased(v, base)).collect()),
        other => other,
    }
}

/// `value` of a path's key with each leading `~` resolved to `home`, as a shell does it and a file's text doesn't.
pub(super) fn at_home(value: Value, home: &Path) -> Value {
    match value {
        Value::String(s) => match Path::new(&s).strip_prefix("~") {
            Ok(rest) => Value::String(home.join(rest).display().to_string()),
            Err(_) => Value::String(s),
        },
        Value::Array(all) => Value::Array(all.into_iter().map(|v| at_home(v, home)).collect()),
        other => other,
    }
}

fn from(base: &Path, path: &Path) -> Option<PathBuf> {
    if path.as_os_str().is_empty() || path.is_absolute() {
        return None;
    }
    // Not `canonicalize`: a link has the name that the user knows.
    let path = base.join(path);
    path.exists().then_some(path)
}

/// Whether two values name the same places, one of them perhaps from another folder.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => {
            let (a, b) = (Path::new(a), Path::new(b));
            a.ends_with(b) || b.ends_with(a)
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => false,
    }
}

impl RunConfig {
    /// The same with every relative path that leads somewhere from `base` made absolute.
    #[must_use]
    pub fn from_folder(&self, base: &Path) -> RunConfig {
        let moved = |p: &PathBuf| from(base, p).unwrap_or_else(|| p.clone());
        let mut c = self.clone();
        if let Some(path) = from(base, Path::new(&c.model.path)) {
            c.model.path = path.display().to_string();
        }
        for list in [&mut c.data.files, &mut c.data.eval_files] {
            *list = list.iter().map(moved).collect();
        }
        for one in [&mut c.machine, &mut c.results, &mut c.data.template, &mut c.lora.init_from] {
            *one = one.as_ref().map(moved);
        }
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_fo_44b_a_tilde_is_the_users_home() {
        let at = |path: &str| at_home(Value::String(path.into()), Path::new("/h"));
        assert_eq!(at("~/models/x"), Value::String("/h/models/x".into()));
        for kept in ["models/~x", "~other/x", "/a/~/b", "owner/name", ""] {
            assert_eq!(at(kept), Value::String(kept.into()));
        }
    }
}
