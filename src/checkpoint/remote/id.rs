//! A model on the hub as the user writes it: `owner/name`, or `owner/name@revision`.

use crate::checkpoint::hub;
use crate::error::{Error, Result};
use crate::text::clean;
use std::fmt;
use std::path::{Path, PathBuf};

/// A model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    /// `owner/name`, or a bare name of the hub's early days.
    pub id: String,
    /// Branch, tag or commit; `None` means `main`.
    pub revision: Option<String>,
}

impl ModelId {
    /// Reads `owner/name[@revision]`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<ModelId> {
        let text = text.trim();
        let (id, revision) = text.split_once('@').map_or((text, None), |(id, r)| (id, Some(r.to_owned())));
        if !hub::is_id(id) || revision.as_deref().is_some_and(|r| !hub::plain(r)) {
            return Err(Error::usage(format!("'{}' is not a hub id", clean(text)))
                .next("write owner/name, or owner/name@revision"));
        }
        Ok(ModelId { id: id.to_owned(), revision })
    }

    /// Whether `text` names a model on the hub rather than a folder: it has an owner, and neither it nor the owner is
    /// a folder here. A mistyped path is not sent to anyone.
    #[must_use]
    pub fn named(text: &str) -> Option<ModelId> {
        let id = ModelId::parse(text).ok()?;
        let (owner, _) = id.id.split_once('/')?;
        (!Path::new(text).exists() && !Path::new(owner).exists()).then_some(id)
    }

    /// The name under `refs/`.
    #[must_use]
    pub fn reference(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// Its folder in a cache.
    #[must_use]
    pub fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(hub::repo_folder(&self.id))
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.revision {
            Some(revision) => write!(f, "{}@{revision}", self.id),
            None => f.write_str(&self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_written() {
        for good in ["a/b", "a/b@v1.0", "a/b@refs/pr/1", "gpt2"] {
            assert_eq!(ModelId::parse(good).unwrap().to_string(), good);
        }
        assert_eq!(ModelId::parse(" a/b ").unwrap().reference(), "main");
        for bad in ["", "../x", "a/b@../x", "a/b@", "a/b/c", "a b", "a/b\u{1b}", "/a", "a/b@x y"] {
            let e = ModelId::parse(bad).unwrap_err().to_string();
            assert!(e.contains("owner/name") && !e.contains('\u{1b}'), "{bad}");
        }
    }

    #[test]
    fn a_path_is_not_taken_for_an_id() {
        assert!(ModelId::named("no-such-owner/name").is_some());
        assert_eq!(ModelId::named("src/no-such-folder"), None, "src is a folder here");
        assert_eq!(ModelId::named("gpt2"), None, "a word may be a mistyped folder");
        assert_eq!(ModelId::named("src"), None);
    }
}
