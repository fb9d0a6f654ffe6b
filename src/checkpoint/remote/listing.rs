//! What a model on the hub consists of: its commit, its file names, and which of the files this program needs.
//!
//! hf-hub gives the hub's address and the type of its answer. The question is asked by our own client: hf-hub looks for
//! a token by itself where it is given none, and reads answers of any length.

use super::http::{Failure, Hub, Tries, lost};
use super::id::ModelId;
use super::settings::Settings;
use crate::checkpoint::index::{self, INDEX, SINGLE};
use crate::error::{Error, Kind, Result};
use crate::text::clean;
use hf_hub::HFClient;
use hf_hub::repository::ModelInfo;
use reqwest::Url;
use std::collections::BTreeSet;
use std::path::Path;

/// Files beside the weights that planning reads.
pub(super) const FOR_PLANNING: [&str; 2] = ["config.json", "generation_config.json"];
/// Files beside weights and index that training and generating read.
pub(super) const FOR_TRAINING: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
];
/// Most file names of a repository that are looked at.
const MAX_FILES: usize = 100_000;
/// Longest answer about a model that is read, in bytes: a hundred thousand files, each with a long name.
const MAX_ANSWER: u64 = 32 << 20;

/// A model on the hub at one commit.
pub(super) struct Listing {
    /// Full commit.
    pub commit: String,
    /// Names of its weights files.
    pub weights: Vec<String>,
    /// The index's bytes, where the model has one.
    pub index: Option<Vec<u8>>,
    names: BTreeSet<String>,
}

impl Listing {
    /// Those of `names` that the model has.
    pub fn present<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        names.iter().copied().filter(|n| self.names.contains(*n)).collect()
    }
}

/// The hub's address: `HF_ENDPOINT`, else the one that hf-hub knows.
pub(super) fn endpoint(settings: &Settings) -> Result<String> {
    if let Some(endpoint) = &settings.endpoint {
        return Ok(endpoint.clone());
    }
    // This client asks nothing. It is given a token, and not a real one, so that it doesn't look for one.
    let client = HFClient::builder().cache_enabled(false).token("unused").build();
    let client = client.map_err(|e| Error::new(Kind::Io, format!("no HTTP client: {}", clean(&e.to_string()))))?;
    Ok(client.endpoint().to_owned())
}

/// Asks the hub what `model` is at its revision.
///
/// # Errors
/// No such model or revision, no access, no connection, or it holds no safetensors weights.
pub(super) async fn list(hub: &Hub, model: &ModelId) -> Result<Listing> {
    let answer = whole(hub, &hub.about(model)?, MAX_ANSWER, &model.to_string()).await?;
    let info: ModelInfo = serde_json::from_slice(&answer).map_err(|_| {
        Error::new(Kind::Io, format!("the hub's answer about '{model}' can't be read"))
            .next("try again later, or check HF_ENDPOINT")
    })?;
    let commit = info.sha.filter(|c| (7..=64).contains(&c.len()) && c.bytes().all(|b| b.is_ascii_alphanumeric()));
    let commit = commit.ok_or_else(|| Error::new(Kind::Io, format!("the hub names no commit for '{model}'")))?;
    let siblings = info.siblings.unwrap_or_default();
    if siblings.len() > MAX_FILES {
        return Err(Error::checkpoint(format!("'{model}' has {} files: more than a model has", siblings.len())));
    }
    let names: BTreeSet<String> = siblings.into_iter().map(|s| s.rfilename).collect();
    if !names.contains("config.json") {
        return Err(Error::checkpoint(format!(
            "'{model}' on the hub has no config.json: it is not a model of this kind"
        ))
        .next("pick a model in Hugging Face format with safetensors weights"));
    }
    let index = if names.contains(INDEX) {
        Some(whole(hub, &hub.file(&model.id, &commit, INDEX)?, index::MAX_INDEX, INDEX).await?)
    } else {
        None
    };
    let weights = weights(model, &names, index.as_deref())?;
    Ok(Listing { commit, weights, index, names })
}

/// The weights files of the model: by its index, or the only ones there are.
fn weights(model: &ModelId, names: &BTreeSet<String>, index: Option<&[u8]>) -> Result<Vec<String>> {
    if let Some(bytes) = index {
        let wanted = index::shard_names(Path::new(INDEX), bytes)?;
        return match wanted.iter().find(|w| !names.contains(*w)) {
            Some(lost) => Err(Error::checkpoint(format!(
                "the index of '{model}' names '{}', which is not on the hub",
                clean(lost)
            ))),
            None => Ok(wanted.into_iter().collect()),
        };
    }
    if names.contains(SINGLE) {
        return Ok(vec![SINGLE.to_owned()]);
    }
    let plain =
        |n: &&String| n.ends_with(".safetensors") && !n.contains(['/', '\\']) && !n.starts_with("adapter_model");
    let found: Vec<&String> = names.iter().filter(plain).collect();
    match found.as_slice() {
        [only] if !only.starts_with('.') && !only.chars().any(char::is_control) => Ok(vec![(*only).clone()]),
        [] => Err(Error::checkpoint(format!("'{model}' on the hub has no safetensors weights"))
            .next("pick a repository of the same model that has them: pickled and GGUF files are not fetched")),
        many => Err(Error::checkpoint(format!(
            "'{model}' on the hub has {} safetensors files but no {INDEX} to say which belong together",
            many.len()
        ))),
    }
}

/// A small file as a whole, no longer than `cap`.
pub(super) async fn whole(hub: &Hub, url: &Url, cap: u64, name: &str) -> Result<Vec<u8>> {
    let mut tries = Tries::new(hub.patience);
    loop {
        let failure = match once(hub, url, cap, name).await {
            Ok(bytes) => return Ok(bytes),
            Err(failure) => failure,
        };
        tries.wait(failure).await?;
    }
}

async fn once(hub: &Hub, url: &Url, cap: u64, name: &str) -> Result<Vec<u8>, Failure> {
    let mut answer = hub.get(url, None, None).await?;
    let bytes = answer.up_to(cap + 1).await?;
    if bytes.len() as u64 > cap {
        let what =
            format!("'{}' on the hub is longer than the {} read of such a file", clean(name), crate::units::Bytes(cap));
        return Err(Failure::Stop(Error::checkpoint(what).next("check the id, and HF_ENDPOINT")));
    }
    match answer.size {
        Some(size) if size != bytes.len() as u64 => {
            Err(Failure::Again(lost(url, &format!("{} of {size} bytes of '{}' came", bytes.len(), clean(name)))))
        }
        _ => Ok(bytes),
    }
}
