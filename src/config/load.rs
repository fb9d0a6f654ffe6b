//! Reads a run config from file, environment and `--set`, and explains what is wrong with it.

use super::{ByteSize, Resident, RunConfig};
use crate::error::Result;
use std::path::Path;

/// A loaded config and what the user should know about it (aliases taken, values replaced).
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The config.
    pub config: RunConfig,
    /// One line each.
    pub notes: Vec<String>,
}

/// Defaults < `file` < `env` (pairs like `BSTUI_TRAIN__LEARNING_RATE=1e-4`) < `sets` (`train.learning_rate=1e-4`).
///
/// Relative paths in the file stay relative to the working folder.
///
/// # Errors
/// Unknown keys (names the nearest), wrong types (names key, value and what is expected), impossible values.
pub fn load(file: Option<&Path>, env: &[(String, String)], sets: &[String]) -> Result<Loaded> {
    let _ = (file, env, sets);
    Ok(Loaded::default())
}

/// Sets one key of `config` from text, as `--set key=value` and the script's `set key value` do.
///
/// # Errors
/// As [`load`].
pub fn set(config: &mut RunConfig, key: &str, value: &str) -> Result<Option<String>> {
    let _ = (config, key, value);
    Ok(None)
}

impl serde::Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}
impl<'de> serde::Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        u64::deserialize(d).map(ByteSize)
    }
}
impl serde::Serialize for Resident {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Resident::Auto => s.serialize_str("auto"),
            Resident::AtMost(n) => s.serialize_u64(*n as u64),
        }
    }
}
impl<'de> serde::Deserialize<'de> for Resident {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        u64::deserialize(d).map(|n| Resident::AtMost(n as usize))
    }
}
