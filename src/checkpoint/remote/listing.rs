//! What a model on the hub consists of: its commit and file names by hf-hub, and which of the files this program needs.

use super::http::{Failure, Hub, Tries, client, denied, lost};
use super::id::ModelId;
use super::settings::Settings;
use crate::checkpoint::files::clean;
use crate::checkpoint::index::{self, INDEX, SINGLE};
use crate::error::{Error, Kind, Result};
use hf_hub::{HFClient, HFError};
use reqwest::Url;
use std::collections::BTreeSet;
use std::path::Path;

/// Files beside the weights that planning reads.
pub(super) const FOR_PLANNING: [&str; 2] = ["config.json", "generation_config.json"];
/// Files beside weights and index that training and generating read.
pub(super) const FOR_TRAINING: [&str; 11] = [
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
];
/// Most file names of a repository that are looked at.
const MAX_FILES: usize = 100_000;

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

/// hf-hub's client with this process's settings; it knows the hub's address where none is set.
pub(super) fn lister(settings: &Settings) -> Result<HFClient> {
    let patience = settings.patience;
    let start = |endpoint: Option<&str>| {
        let mut builder = HFClient::builder().cache_enabled(false).retry_max_attempts(patience.tries as usize - 1);
        builder = builder.retry_base_delay(patience.pause);
        if let Some(endpoint) = endpoint {
            builder = builder.endpoint(endpoint);
        }
        if let Some(token) = &settings.token {
            builder = builder.token(token.secret());
        }
        builder
    };
    let bad = |_| Error::usage("HF_ENDPOINT is not the address of a hub").next("write it as https://host, or unset it");
    let endpoint = settings.endpoint.as_deref();
    let base = start(endpoint).build().map_err(bad)?.endpoint().to_owned();
    let base = Url::parse(&base).map_err(|_| bad(HFError::Other(String::new())))?;
    // Its own client has no limit on time; reqwest drops the token when a redirect changes the host.
    let http = client(&base, &patience)
        .redirect(reqwest::redirect::Policy::limited(5))
        .timeout(patience.stall * 2)
        .build()
        .map_err(|e| Error::new(Kind::Io, format!("no HTTP client: {}", e.without_url())))?;
    start(endpoint).client(http).build().map_err(bad)
}

/// Asks the hub what `model` is at its revision.
///
/// # Errors
/// No such model or revision, no access, no connection, or it holds no safetensors weights.
pub(super) async fn list(lister: &HFClient, hub: &Hub, model: &ModelId, with_token: bool) -> Result<Listing> {
    let (owner, name) = hf_hub::split_id(&model.id);
    let asked = lister.model(owner, name).info().maybe_revision(model.revision.clone()).send().await;
    let info = asked.map_err(|e| explain(&e, lister, model, with_token))?;
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
        return Err(Failure::Stop(Error::checkpoint(what)));
    }
    match answer.size {
        Some(size) if size != bytes.len() as u64 => {
            Err(Failure::Again(lost(url, &format!("{} of {size} bytes of '{}' came", bytes.len(), clean(name)))))
        }
        _ => Ok(bytes),
    }
}

/// hf-hub's error in this program's words: without addresses, which may carry secrets.
fn explain(e: &HFError, lister: &HFClient, model: &ModelId, with_token: bool) -> Error {
    let model = model.to_string();
    match e {
        HFError::AuthRequired { .. } => denied(&model, 401, with_token),
        HFError::Forbidden { .. } => denied(&model, 403, with_token),
        HFError::RepoNotFound { .. } | HFError::RevisionNotFound { .. } => denied(&model, 404, with_token),
        HFError::RateLimited { .. } => denied(&model, 429, with_token),
        HFError::Http { context } => denied(&model, context.status.as_u16(), with_token),
        HFError::Request { source, .. } => {
            let mut inner: &dyn std::error::Error = source;
            while let Some(next) = inner.source() {
                inner = next;
            }
            let why = if source.is_timeout() {
                "no answer in time".to_owned()
            } else if std::ptr::addr_eq(inner, source) {
                "the request failed".to_owned()
            } else {
                inner.to_string()
            };
            match Url::parse(lister.endpoint()) {
                Ok(url) => lost(&url, &why),
                Err(_) => Error::new(Kind::Io, "the hub can't be reached"),
            }
        }
        _ => Error::new(Kind::Io, format!("the hub's answer about '{model}' can't be read"))
            .next("try again later, or check HF_ENDPOINT"),
    }
}
