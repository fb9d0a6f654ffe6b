//! Fetches what a plan needs of a model that is not here: config, index, and each shard's header by ranged reads.
//!
//! The result is a folder of headers (`<shard>.header.json`) that opens like any other model folder, kept by commit.

use super::http::{Failure, Hub, Tries, lost};
use super::id::ModelId;
use super::listing::{FOR_PLANNING, Listing, whole};
use crate::checkpoint::files::SMALL_JSON;
use crate::checkpoint::header::{self, MAX_FILE};
use crate::checkpoint::index::INDEX;
use crate::checkpoint::sniff::header_length;
use crate::error::{Error, Kind, Result};
use crate::event::Stage;
use crate::files;
use crate::text::clean;
use reqwest::Url;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinSet;

/// Bytes of a shard asked for at first: most headers are shorter.
const FIRST: u64 = 256 << 10;
/// Shards asked for at once.
const AT_ONCE: usize = 6;

/// Fetches the headers of `listing` into the folder of headers `cache`; returns the folder of its commit.
pub(super) async fn fetch(
    hub: &Hub,
    model: &ModelId,
    listing: &Listing,
    cache: &Path,
    progress: &mut dyn FnMut(Stage),
) -> Result<PathBuf> {
    let repo = model.folder(cache);
    let dir = repo.join("snapshots").join(&listing.commit);
    if !dir.is_dir() {
        let part = Part::create(&repo)?;
        for name in listing.present(&FOR_PLANNING) {
            let url = hub.file(&model.id, &listing.commit, name)?;
            files::replace(&part.0.join(name), &whole(hub, &url, SMALL_JSON, name).await?)?;
        }
        if let Some(index) = &listing.index {
            files::replace(&part.0.join(INDEX), index)?;
        }
        shards(hub, model, listing, &part.0, progress).await?;
        make_dir(&repo.join("snapshots"))?;
        // Another process may have been first: its folder says the same.
        if let Err(e) = std::fs::rename(&part.0, &dir)
            && !dir.is_dir()
        {
            return Err(Error::io("create", &dir, e));
        }
    }
    write_reference(&repo, model, &listing.commit)?;
    Ok(dir)
}

/// Notes in `repo` which commit the reference that `model` was asked for by is at, as huggingface_hub does.
pub(super) fn write_reference(repo: &Path, model: &ModelId, commit: &str) -> Result<()> {
    if model.reference() == commit {
        return Ok(());
    }
    let path = repo.join("refs").join(model.reference());
    make_dir(path.parent().unwrap_or(repo))?;
    files::replace(&path, commit.as_bytes()).map(|_| ())
}

/// Makes a folder and those above it.
pub(super) fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))
}

/// A folder being filled; what is left of it goes when the fetch fails or is cancelled.
struct Part(PathBuf);

impl Part {
    fn create(repo: &Path) -> Result<Part> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = repo.join(format!(".part-{}-{n}", std::process::id()));
        make_dir(&dir)?;
        Ok(Part(dir))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After the rename there is nothing to remove. A model's folder that holds nothing goes with it.
        let _ = std::fs::remove_dir_all(&self.0);
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}

async fn shards(
    hub: &Hub,
    model: &ModelId,
    listing: &Listing,
    dir: &Path,
    progress: &mut dyn FnMut(Stage),
) -> Result<()> {
    let total = listing.weights.len();
    let mut waiting = listing.weights.iter();
    let mut running: JoinSet<Result<(String, Vec<u8>)>> = JoinSet::new();
    let mut done = 0;
    loop {
        while running.len() < AT_ONCE
            && let Some(name) = waiting.next()
        {
            let url = hub.file(&model.id, &listing.commit, name)?;
            running.spawn(shard(hub.clone(), url, name.clone()));
        }
        let stage = Stage { name: format!("headers of {model}"), done, total: total as u64, unit: "files".into() };
        progress(stage);
        let Some(joined) = running.join_next().await else {
            return Ok(());
        };
        let (name, text) = joined.map_err(|e| Error::run(format!("a fetch of headers failed: {e}")))??;
        let path = dir.join(format!("{name}.header.json"));
        make_dir(path.parent().unwrap_or(dir))?;
        files::replace(&path, &text)?;
        done += 1;
    }
}

/// The text of `<name>.header.json` for the shard at `url`.
async fn shard(hub: Hub, url: Url, name: String) -> Result<(String, Vec<u8>)> {
    let mut tries = Tries::new(hub.patience);
    loop {
        let failure = match once(&hub, &url, &name).await {
            Ok(text) => return Ok((name, text)),
            Err(failure) => failure,
        };
        tries.wait(failure).await?;
    }
}

async fn once(hub: &Hub, url: &Url, name: &str) -> Result<Vec<u8>, Failure> {
    let (mut head, size) = part(hub, url, 0, FIRST, name).await?;
    let path = Path::new(name);
    let length = header_length(path, &head[..head.len().min(1024)], size).map_err(broken)?;
    let end = 8 + length;
    if (head.len() as u64) < end {
        let (rest, again) = part(hub, url, head.len() as u64, end, name).await?;
        if again != size {
            return Err(Failure::Stop(changed(name, size, again)));
        }
        head.extend(rest);
    }
    let json = head.get(8..end as usize).ok_or_else(|| Failure::Again(lost(url, "the header came in part")))?;
    header::parse(path, json, size).map_err(broken)?;
    let mut text = format!("{{\"size\": {size}, \"header\": ").into_bytes();
    text.extend_from_slice(json);
    text.push(b'}');
    Ok(text)
}

/// Bytes `from..to` of the file at `url`, fewer where it ends before, and its length.
async fn part(hub: &Hub, url: &Url, from: u64, to: u64, name: &str) -> Result<(Vec<u8>, u64), Failure> {
    let mut answer = hub.get(url, Some((from, Some(to - 1))), None).await?;
    let size = match (answer.status, answer.size) {
        // Nothing lies at byte 0.
        (416, size) if from == 0 => return Ok((Vec::new(), size.unwrap_or(0))),
        (200 | 206, Some(size)) if size <= MAX_FILE => size,
        (200 | 206, Some(size)) => return Err(Failure::Stop(changed(name, MAX_FILE, size))),
        _ => {
            let what = format!("the hub does not say how long '{}' is", clean(name));
            return Err(Failure::Stop(Error::new(Kind::Io, what).next("try again later, or check HF_ENDPOINT")));
        }
    };
    if answer.status == 206 && answer.from != from {
        return Err(Failure::Stop(changed(name, from, answer.from)));
    }
    // A server without ranges sends the file from its start: what lies before is skipped, what lies behind not awaited.
    let skip = if answer.status == 206 { 0 } else { from };
    let wanted = to.min(size).saturating_sub(from);
    let mut bytes = answer.up_to(skip + wanted).await?;
    if (bytes.len() as u64) < skip + wanted {
        return Err(Failure::Again(lost(url, &format!("'{}' ended early", clean(name)))));
    }
    bytes.drain(..skip as usize);
    Ok((bytes, size))
}

/// A header that doesn't hold together won't the next time either.
fn broken(e: Error) -> Failure {
    let advised = e.advice().is_some();
    Failure::Stop(if advised { e } else { e.next("try another revision, or another copy of this model") })
}

fn changed(name: &str, expected: u64, found: u64) -> Error {
    let what = format!("the hub's answers about '{}' don't agree: {expected} expected, {found} said", clean(name));
    Error::new(Kind::Io, what).next("try again later, or check HF_ENDPOINT")
}
