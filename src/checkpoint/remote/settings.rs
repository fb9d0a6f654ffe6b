//! Where the hub is, who asks, and what may be asked: the environment of huggingface_hub, read once.

use crate::checkpoint::hub;
use crate::error::{Error, Result};
use crate::text::clean;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest token file that is read, in bytes.
const MAX_TOKEN: u64 = 4096;

/// An access token. It is sent to the hub's own host, and shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The secret itself, for the one header that carries it.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    fn from_text(text: &str) -> Option<Token> {
        let text = text.trim();
        // A header can't carry anything else, and an error about it would show it.
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        plain.then(|| Token(text.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// How long to wait for the hub, and how often to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// Without a byte, before the connection counts as dead.
    pub stall: Duration,
    /// Attempts in a row that bring nothing.
    pub tries: u32,
    /// Before the second attempt; doubles each time.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            tries: 5,
            pause: Duration::from_millis(500),
        }
    }
}

/// What a fetch from the hub needs to know.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `HF_ENDPOINT`; `None` means hf-hub's own.
    pub endpoint: Option<String>,
    /// `HF_TOKEN`, else the file `HF_TOKEN_PATH` or `$HF_HOME/token`.
    pub token: Option<Token>,
    /// `HF_HUB_OFFLINE`: nothing is asked.
    pub offline: bool,
    /// The hub cache; `None` without a home folder.
    pub cache: Option<PathBuf>,
    /// Where remote headers are kept; `None` without a home folder.
    pub headers: Option<PathBuf>,
    /// Waits and attempts.
    pub patience: Patience,
}

impl Settings {
    /// Those of this process.
    #[must_use]
    pub fn from_env() -> Settings {
        Settings::from(|key| std::env::var_os(key))
    }

    /// As [`Settings::from_env`], with the environment passed in.
    #[must_use]
    pub fn from(env: impl Fn(&str) -> Option<OsString>) -> Settings {
        let text = |key: &str| env(key).and_then(|v| v.into_string().ok()).filter(|v| !v.trim().is_empty());
        let implicit = !truthy(text("HF_HUB_DISABLE_IMPLICIT_TOKEN").as_deref());
        let files = [env("HF_TOKEN_PATH").map(PathBuf::from), hub::home_from(&env).map(|h| h.join("token"))];
        let stored = || files.iter().flatten().find_map(|path| stored_token(path));
        Settings {
            endpoint: text("HF_ENDPOINT").map(|e| e.trim().trim_end_matches('/').to_owned()),
            // A token that can't be sent is no reason to send another in its place.
            token: implicit.then(|| text("HF_TOKEN").map_or_else(stored, |t| Token::from_text(&t))).flatten(),
            offline: truthy(text("HF_HUB_OFFLINE").as_deref()),
            cache: hub::cache_dir_from(&env),
            headers: hub::headers_dir_from(&env),
            patience: Patience::default(),
        }
    }

    /// Refuses to go on where the user has said that nothing may be asked.
    ///
    /// # Errors
    /// `HF_HUB_OFFLINE` is set.
    pub fn online(&self, what: &str) -> Result<()> {
        if !self.offline {
            return Ok(());
        }
        Err(Error::checkpoint(format!("HF_HUB_OFFLINE is set, so the hub is not asked for '{}'", clean(what)))
            .next("unset HF_HUB_OFFLINE, or give a folder or a model of the hub cache"))
    }
}

/// Yes and no as huggingface_hub reads them.
fn truthy(value: Option<&str>) -> bool {
    value.is_some_and(|v| ["1", "ON", "YES", "TRUE"].contains(&v.trim().to_uppercase().as_str()))
}

fn stored_token(path: &Path) -> Option<Token> {
    let meta = std::fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > MAX_TOKEN {
        return None;
    }
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_TOKEN).read_to_string(&mut text).ok()?;
    Token::from_text(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Settings {
        Settings::from(|k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn the_variables_of_huggingface_hub_are_read() {
        let s = settings(&[("HF_ENDPOINT", "http://mirror/ "), ("HF_HUB_OFFLINE", "yes"), ("HOME", "/h")]);
        assert_eq!(s.endpoint.as_deref(), Some("http://mirror"));
        assert!(s.offline && s.token.is_none());
        assert_eq!(s.cache, Some("/h/.cache/huggingface/hub".into()));
        // Another hub has a folder of its own.
        assert_eq!(s.headers.unwrap().parent(), Some(Path::new("/h/.cache/blockstream-tui/headers")));
        let s = settings(&[("XDG_CACHE_HOME", "/x"), ("HF_HUB_OFFLINE", "0"), ("HOME", "/h")]);
        assert_eq!(s.headers, Some("/x/blockstream-tui/headers".into()));
        assert!(!s.offline && s.online("a/b").is_ok());
        let e = settings(&[("HF_HUB_OFFLINE", "TRUE")]).online("a/b\u{1b}").unwrap_err().to_string();
        assert!(e.contains("HF_HUB_OFFLINE is set") && e.contains("unset") && !e.contains('\u{1b}'), "{e}");
    }

    #[test]
    fn the_token_comes_from_variable_or_file_unless_it_is_switched_off() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name).display().to_string()
        };
        let (other, home) = (at("other", "hf_file\n"), dir.path().display().to_string());
        at("token", "hf_home");
        let token = |vars: &[(&str, &str)]| settings(vars).token.map(|t| t.secret().to_owned());
        assert_eq!(token(&[("HF_TOKEN", " hf_env "), ("HF_TOKEN_PATH", &other)]).as_deref(), Some("hf_env"));
        assert_eq!(token(&[("HF_TOKEN_PATH", &other), ("HF_HOME", &home)]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_HOME", &home)]).as_deref(), Some("hf_home"));
        let all = [("HF_TOKEN", "hf_env"), ("HF_HOME", home.as_str()), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")];
        assert_eq!(token(&all), None);
        assert_eq!(token(&[("HF_TOKEN", "two\nlines")]), None, "can't be sent");
        assert_eq!(token(&[("HF_TOKEN", "two\nlines"), ("HF_HOME", &home)]), None, "nor is the stored one sent for it");
        assert_eq!(token(&[("HF_HOME", "/no/such")]), None);
    }

    #[test]
    fn a_token_is_not_shown_by_debug() {
        let s = settings(&[("HF_TOKEN", "hf_SECRET")]);
        assert!(s.token.is_some() && !format!("{s:?}").contains("SECRET"));
    }
}
