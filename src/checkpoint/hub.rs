//! The Hugging Face cache: `models--owner--name/{blobs,refs,snapshots}`, where it lies and which snapshot is meant.
//!
//! Layout and variables are those of huggingface_hub; nothing here uses the network. The folder of remote headers has
//! the same layout, so it is read by the same code.

use super::files::{read_small, shown};
use super::index::list;
use crate::error::{Error, Result};
use crate::text::clean;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A model folder inside the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder with `config.json`.
    pub dir: PathBuf,
    /// `owner/name`.
    pub id: String,
    /// Commit.
    pub revision: String,
}

/// The cache folder of this machine and user, whether or not it exists; `None` without a home.
#[must_use]
pub fn cache_dir() -> Option<PathBuf> {
    cache_dir_from(|key| std::env::var_os(key))
}

/// As [`cache_dir`], with the environment passed in.
///
/// `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `$HF_HOME/hub`, `$XDG_CACHE_HOME/huggingface/hub`, `~/.cache/huggingface/hub`.
#[must_use]
pub fn cache_dir_from(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    folder(&env, "HF_HUB_CACHE")
        .or_else(|| folder(&env, "HUGGINGFACE_HUB_CACHE"))
        .or_else(|| Some(home_from(&env)?.join("hub")))
}

/// huggingface_hub's own folder: `HF_HOME`, `$XDG_CACHE_HOME/huggingface`, `~/.cache/huggingface`.
#[must_use]
pub fn home_from(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    folder(&env, "HF_HOME").or_else(|| Some(caches(&env)?.join("huggingface")))
}

/// Where this program keeps the headers of models that are not here, in the same layout as the hub cache.
#[must_use]
pub fn headers_dir() -> Option<PathBuf> {
    headers_dir_from(|key| std::env::var_os(key))
}

/// As [`headers_dir`], with the environment passed in: `$XDG_CACHE_HOME/blockstream-tui/headers`, else under `~/.cache`.
/// Another hub (`HF_ENDPOINT`) has a folder of its own below it: its models may share names with those of the first.
#[must_use]
pub fn headers_dir_from(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let all = caches(&env)?.join("blockstream-tui").join("headers");
    let hub = env("HF_ENDPOINT").and_then(|e| e.into_string().ok());
    Some(match hub.as_deref().map(|e| e.trim().trim_end_matches('/')).filter(|e| !e.is_empty()) {
        None => all,
        Some(hub) => {
            let sum = Sha256::digest(hub.as_bytes());
            all.join(format!("hub-{}", sum.iter().take(8).map(|b| format!("{b:02x}")).collect::<String>()))
        }
    })
}

fn caches(env: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    folder(env, "XDG_CACHE_HOME").or_else(|| Some(user_home(env)?.join(".cache")))
}

fn user_home(env: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    env("HOME").filter(|h| !h.is_empty()).map(PathBuf::from)
}

/// The folder that a variable names, `~` resolved.
fn folder(env: &impl Fn(&str) -> Option<OsString>, key: &str) -> Option<PathBuf> {
    let value = PathBuf::from(env(key).filter(|v| !v.is_empty())?);
    match (value.strip_prefix("~"), user_home(env)) {
        (Ok(rest), Some(home)) => Some(home.join(rest)),
        _ => Some(value),
    }
}

/// Whether `text` could be a hub id: `name` or `owner/name` of letters, digits, `-`, `_`, `.`.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let word = |w: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        !w.is_empty() && !w.starts_with(['.', '-']) && w.len() <= 96 && w.bytes().all(plain) && !w.contains("--")
    };
    match text.split_once('/') {
        Some((owner, name)) => word(owner) && word(name),
        None => word(text),
    }
}

/// The cache's folder name for a hub id.
#[must_use]
pub fn repo_folder(id: &str) -> String {
    format!("models--{}", id.replace('/', "--"))
}

/// The hub id of a `models--owner--name` folder; `None` for any other name.
#[must_use]
pub fn repo_id(dir: &Path) -> Option<String> {
    let id = dir.file_name()?.to_str()?.strip_prefix("models--")?.replacen("--", "/", 1);
    is_id(&id).then_some(id)
}

/// What snapshot folder `dir` is, if its path is `…/models--owner--name/snapshots/<commit>`.
#[must_use]
pub fn snapshot_of(dir: &Path) -> Option<Snapshot> {
    let dir = dir.canonicalize().ok()?;
    let snapshots = dir.parent().filter(|p| p.file_name().is_some_and(|n| n == "snapshots"))?;
    let id = repo_id(snapshots.parent()?)?;
    let revision = clean(dir.file_name()?.to_str()?);
    Some(Snapshot { dir, id, revision })
}

/// The snapshot that `refs/<reference>` of the repository folder `repo` names; `main` unless said otherwise. A full
/// commit works as a reference; without `refs/main`, the only snapshot there is.
///
/// # Errors
/// Not a repository folder, no such reference, or its snapshot isn't there.
pub fn snapshot(repo: &Path, reference: Option<&str>) -> Result<Snapshot> {
    let id = repo_id(repo).ok_or_else(|| Error::checkpoint(format!("{} is not a hub cache folder", shown(repo))))?;
    let name = reference.unwrap_or("main");
    let fetch = "download the model again";
    if !plain(name) {
        return Err(Error::usage(format!("'{}' is not a revision", clean(name))));
    }
    let present = snapshots(repo);
    let at = repo.join("refs").join(name);
    let revision = if at.symlink_metadata().is_ok() {
        let text = read_small(&at, 1024)?;
        let commit = String::from_utf8_lossy(&text).trim().to_string();
        if !plain(&commit) || commit.contains('/') {
            return Err(Error::checkpoint(format!("{} holds no commit", shown(&at))).next(fetch));
        }
        commit
    } else if present.iter().any(|p| p == name) {
        name.to_string()
    } else {
        match (reference, present.as_slice()) {
            (None, [only]) => only.clone(),
            (None, []) => {
                return Err(Error::checkpoint(format!("{} has no snapshot", shown(repo))).next(fetch));
            }
            _ => {
                let what = format!("{} has no revision '{}'", shown(repo), clean(name));
                let there = format!("snapshots there: {}", list(present.iter().map(String::as_str)));
                return Err(Error::checkpoint(what).next(there));
            }
        }
    };
    let dir = repo.join("snapshots").join(&revision);
    if !dir.is_dir() {
        let what = format!("{} names revision {}, whose snapshot is missing", shown(&at), clean(&revision));
        return Err(Error::checkpoint(what).next(fetch));
    }
    Ok(Snapshot { dir, id, revision: clean(&revision) })
}

/// Repository folders of models in the cache, sorted.
#[must_use]
pub fn repos(cache: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(cache) else {
        return Vec::new();
    };
    let mut repos: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| repo_id(p).is_some()).collect();
    repos.sort();
    repos
}

/// The snapshots of a repository folder, each with the name to ask for it by: `None` for `main`, else another
/// reference, else its commit.
#[must_use]
pub fn named_snapshots(repo: &Path) -> Vec<(Option<String>, PathBuf)> {
    let refs = std::fs::read_dir(repo.join("refs")).into_iter().flatten().flatten();
    let mut refs: Vec<(String, String)> = refs
        .filter_map(|e| {
            let name = e.file_name().into_string().ok().filter(|n| plain(n))?;
            let commit = read_small(&e.path(), 1024).ok()?;
            Some((name, String::from_utf8_lossy(&commit).trim().to_string()))
        })
        .collect();
    refs.sort();
    let found = snapshots(repo).into_iter().filter(|commit| plain(commit)).map(|commit| {
        let main = refs.iter().any(|(name, of)| name == "main" && *of == commit);
        let other = refs.iter().find(|(_, of)| *of == commit).map(|(name, _)| name.clone());
        let dir = repo.join("snapshots").join(&commit);
        (if main { None } else { Some(other.unwrap_or(commit)) }, dir)
    });
    found.collect()
}

fn snapshots(repo: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(repo.join("snapshots")) else {
        return Vec::new();
    };
    let dirs = entries.flatten().filter(|e| e.path().is_dir());
    let mut names: Vec<String> = dirs.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A revision that can't leave its folder: `main`, a commit, `refs/pr/1`.
pub(super) fn plain(name: &str) -> bool {
    let word = |w: &str| !w.is_empty() && !w.starts_with('.') && w.bytes().all(|b| b.is_ascii_graphic() && b != b'\\');
    name.len() <= 200 && name.split('/').all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(vars: &[(&str, &str)]) -> Option<PathBuf> {
        cache_dir_from(|k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn the_cache_is_where_huggingface_hub_puts_it() {
        let all = [
            ("HF_HUB_CACHE", "/a"),
            ("HUGGINGFACE_HUB_CACHE", "/b"),
            ("HF_HOME", "~/c"),
            ("XDG_CACHE_HOME", "/d"),
            ("HOME", "/h"),
        ];
        let want = ["/a", "/b", "/h/c/hub", "/d/huggingface/hub", "/h/.cache/huggingface/hub"];
        for (i, want) in want.into_iter().enumerate() {
            assert_eq!(cache(&all[i..]), Some(PathBuf::from(want)));
        }
        assert_eq!(cache(&[("HF_HOME", ""), ("HOME", "/h")]), Some("/h/.cache/huggingface/hub".into()));
        assert_eq!(cache(&[]), None);
    }

    #[test]
    fn ids_and_folders_turn_into_each_other() {
        assert_eq!(repo_folder("a/b-c"), "models--a--b-c");
        assert_eq!(repo_id(Path::new("/x/models--a--b-c")).as_deref(), Some("a/b-c"));
        assert_eq!(repo_id(Path::new("/x/models--gpt2")).as_deref(), Some("gpt2"));
        assert_eq!(repo_id(Path::new("/x/datasets--a--b")), None);
        assert!(is_id("HuggingFaceTB/SmolLM2-135M") && is_id("gpt2"));
        for bad in ["", "a/b/c", "../x", "a/", "/a", "a b", ".hidden", "~/x"] {
            assert!(!is_id(bad), "{bad}");
        }
    }

    #[test]
    fn a_reference_cannot_leave_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join("models--a--b");
        std::fs::create_dir_all(repo.join("snapshots/abc")).unwrap();
        std::fs::create_dir_all(repo.join("refs")).unwrap();
        std::fs::create_dir_all(dir.path().join("evil")).unwrap();
        assert_eq!(snapshot(&repo, None).unwrap().revision, "abc");
        for bad in ["../../evil", "..", "/etc", ""] {
            std::fs::write(repo.join("refs/main"), bad).unwrap();
            assert!(snapshot(&repo, None).is_err(), "{bad}");
            assert!(snapshot(&repo, Some(bad)).is_err(), "{bad}");
        }
    }
}
