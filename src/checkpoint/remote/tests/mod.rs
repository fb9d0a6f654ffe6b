//! Fetches from a hub of our own, on this machine.

mod downloads;
mod heads;
mod hostile;

use super::*;
use crate::support::fixture::Model;
use crate::support::hub::{Asked, COMMIT, TestHub, etag};
use std::path::Path;
use std::time::{Duration, Instant};

const SECRET: &str = "hf_SECRETSECRET";

/// A user of `hub`: caches in a folder of their own, a token, little patience.
struct User {
    dir: tempfile::TempDir,
    settings: Settings,
}

impl User {
    fn of(hub: &TestHub) -> User {
        let dir = tempfile::tempdir().unwrap();
        let env = |key: &str| {
            let at = |name: &str| dir.path().join(name).into_os_string();
            match key {
                "HF_ENDPOINT" => Some(hub.url.clone().into()),
                "HF_TOKEN" => Some(SECRET.into()),
                "HF_HUB_CACHE" => Some(at("hub")),
                "XDG_CACHE_HOME" => Some(at("cache")),
                _ => None,
            }
        };
        let mut settings = Settings::from(env);
        settings.patience = Patience {
            connect: Duration::from_secs(5),
            stall: Duration::from_millis(400),
            tries: 3,
            pause: Duration::from_millis(5),
        };
        User { dir, settings }
    }

    fn headers(&self, model: &str) -> Result<PathBuf> {
        headers(&self.settings, &id(model), &Cancel::default(), &mut |_| {})
    }

    fn survey(&self) -> Result<Survey> {
        survey(&self.settings, &id("o/n"), &Cancel::default(), &mut |_| {})
    }

    fn download(&self) -> Result<PathBuf> {
        self.fetch(&self.survey()?)
    }

    fn fetch(&self, survey: &Survey) -> Result<PathBuf> {
        download(&self.settings, survey, &Cancel::default(), &mut |_| {})
    }

    fn repo(&self) -> PathBuf {
        self.dir.path().join("hub/models--o--n")
    }

    /// The part of `name` that is here, where `hub` has it.
    fn part(&self, hub: &TestHub, name: &str) -> PathBuf {
        let tag = etag(name, &hub.rules().files[name]);
        self.repo().join("blobs").join(format!("{tag}.incomplete"))
    }

    /// Every file that the user's folder holds has none of the secret.
    fn keeps_the_secret(&self) {
        let mut open = vec![self.dir.path().to_path_buf()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                assert!(!entry.path().to_string_lossy().contains(SECRET));
                if entry.path().is_dir() {
                    open.push(entry.path());
                } else if let Ok(bytes) = std::fs::read(entry.path()) {
                    assert!(!bytes.windows(SECRET.len()).any(|w| w == SECRET.as_bytes()), "{:?}", entry.path());
                }
            }
        }
    }
}

fn id(model: &str) -> ModelId {
    ModelId::parse(model).unwrap()
}

/// The error's text, which never shows the token, an address's path or a control character.
fn refusal<T>(result: Result<T>) -> String {
    let e = result.err().expect("refused");
    let text = format!("{e}\n{e:?}");
    assert!(!text.contains(SECRET), "{text}");
    assert!(!e.to_string().chars().any(char::is_control), "{text}");
    assert!(e.advice().is_some(), "says what to do: {e}");
    e.to_string()
}

/// Names of files in `dir` and below, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            out.extend(names(&entry.path()));
        } else {
            out.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    out.sort();
    out
}
