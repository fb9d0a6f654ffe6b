//! What a download would fetch: each file's length and content name from the hub, less what the cache holds already.

use super::http::{Failure, Hub, Tries};
use super::id::ModelId;
use super::listing::{FOR_TRAINING, Listing};
use super::{Piece, Survey};
use crate::checkpoint::header::MAX_FILE;
use crate::checkpoint::index::INDEX;
use crate::engine::DownloadPlan;
use crate::error::{Error, Kind, Result};
use crate::event::Stage;
use crate::text::clean;
use crate::units::Bytes;
use reqwest::Url;
use std::path::{Path, PathBuf};
use tokio::task::JoinSet;

/// Files asked about at once.
const AT_ONCE: usize = 8;
/// Left free on the drive: a drive that is full to the last byte stops everything else.
const RESERVE: u64 = 64 << 20;

/// Asks about every file that training needs of `listing`.
pub(super) async fn make(
    hub: &Hub,
    model: &ModelId,
    listing: &Listing,
    cache: &Path,
    progress: &mut dyn FnMut(Stage),
) -> Result<Survey> {
    // Small files first: a download that stops early has them.
    let mut names: Vec<String> = listing.present(&FOR_TRAINING).into_iter().map(String::from).collect();
    names.extend(listing.index.is_some().then(|| INDEX.to_owned()));
    names.extend(listing.weights.iter().cloned());
    let mut pieces: Vec<Option<Piece>> = names.iter().map(|_| None).collect();
    let mut running: JoinSet<Result<(usize, Piece)>> = JoinSet::new();
    let (mut next, mut done) = (0, 0);
    loop {
        while running.len() < AT_ONCE && next < names.len() {
            let url = hub.file(&model.id, &listing.commit, &names[next])?;
            running.spawn(ask(hub.clone(), url, next, names[next].clone()));
            next += 1;
        }
        let name = format!("files of {model}");
        progress(Stage { name, done, total: names.len() as u64, unit: "files".into() });
        let Some(joined) = running.join_next().await else { break };
        let (at, piece) = joined.map_err(|e| Error::run(format!("asking about files failed: {e}")))??;
        pieces[at] = Some(piece);
        done += 1;
    }
    let pieces: Vec<Piece> = pieces.into_iter().flatten().collect();
    plan(model, &listing.commit, cache, pieces)
}

/// Sums the pieces up against the cache and its drive.
fn plan(model: &ModelId, commit: &str, cache: &Path, pieces: Vec<Piece>) -> Result<Survey> {
    told_apart(&pieces)?;
    let repo = model.folder(cache);
    let mut twice = std::collections::HashSet::new();
    // Two names for one content are one file in the cache.
    let single: Vec<&Piece> = pieces.iter().filter(|p| twice.insert(p.etag.clone())).collect();
    let sum = |of: &dyn Fn(&Piece) -> u64| single.iter().map(|p| of(p)).try_fold(0u64, u64::checked_add);
    let too_long = || Error::checkpoint(format!("the files of '{model}' are longer than any drive"));
    let total = sum(&|p| p.size).ok_or_else(too_long)?;
    let here = sum(&|p| here(&repo, commit, p)).ok_or_else(too_long)?;
    let plan = DownloadPlan {
        model: model.to_string(),
        commit: commit.to_owned(),
        files: pieces.len(),
        total: Bytes(total),
        fetch: Bytes(total - here),
        free: free(cache)?,
        cache: cache.to_path_buf(),
    };
    Ok(Survey { plan, id: model.clone(), pieces })
}

/// Refuses two files under one content name that need not be one content: the cache keeps one for both. A SHA-256 is
/// checked when the file has come, and small files are git's; of weights nothing else proves it.
///
/// # Errors
/// They differ in length, or are weights whose name is no SHA-256.
pub(super) fn told_apart(pieces: &[Piece]) -> Result<()> {
    let mut seen: std::collections::HashMap<&str, &Piece> = std::collections::HashMap::new();
    for piece in pieces {
        let Some(other) = seen.insert(&piece.etag, piece) else { continue };
        let weights = piece.name.ends_with(".safetensors") || other.name.ends_with(".safetensors");
        if other.size != piece.size || (weights && !is_sha256(&piece.etag)) {
            let (a, b) = (clean(&other.name), clean(&piece.name));
            let what = format!("the hub gives '{a}' and '{b}' one content name, so they can't be told apart");
            return Err(Error::new(Kind::Io, what).next("try again later, or check HF_ENDPOINT"));
        }
    }
    Ok(())
}

/// Whether a content name is a SHA-256, which can be checked.
pub(super) fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Bytes of a piece that need not come again.
pub(super) fn here(repo: &Path, commit: &str, piece: &Piece) -> u64 {
    let length = |path: PathBuf| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
    if whole(repo, commit, piece) {
        return piece.size;
    }
    // A part that is as long as the whole has still to be checked, but not to be fetched.
    length(incomplete(repo, &piece.etag)).filter(|n| *n <= piece.size).unwrap_or(0)
}

/// Whether the cache has all of a piece: its blob, or (in a copied cache without links) the file itself.
pub(super) fn whole(repo: &Path, commit: &str, piece: &Piece) -> bool {
    let long = |path: PathBuf| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == piece.size);
    let copied = repo.join("snapshots").join(commit).join(&piece.name);
    let linked = copied.symlink_metadata().is_ok_and(|m| m.is_symlink());
    long(blob(repo, &piece.etag)) || (!linked && long(copied))
}

/// Where a content lies in the cache.
pub(super) fn blob(repo: &Path, etag: &str) -> PathBuf {
    repo.join("blobs").join(etag)
}

/// Where a content lies until it is whole.
pub(super) fn incomplete(repo: &Path, etag: &str) -> PathBuf {
    repo.join("blobs").join(format!("{etag}.incomplete"))
}

/// Refuses to begin what the drive has no room for.
///
/// # Errors
/// Less is free than has to be written.
pub(super) fn room(plan: &DownloadPlan) -> Result<()> {
    let free = free(&plan.cache)?;
    if plan.fetch.0.saturating_add(RESERVE) <= free.0 || plan.fetch == Bytes::ZERO {
        return Ok(());
    }
    let what = format!(
        "the download of {} takes {}, the drive of '{}' has {free} free",
        plan.model,
        plan.fetch,
        plan.cache.display()
    );
    Err(Error::new(Kind::Io, what).next("free space, or set HF_HUB_CACHE to a folder on another drive"))
}

/// Bytes free for this user on the drive that `dir` is or will be on.
fn free(dir: &Path) -> Result<Bytes> {
    let there = dir.ancestors().find(|d| d.is_dir()).unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(there).map_err(|e| Error::io("measure", there, e.into()))?;
    Ok(Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)))
}

async fn ask(hub: Hub, url: Url, at: usize, name: String) -> Result<(usize, Piece)> {
    let mut tries = Tries::new(hub.patience);
    loop {
        let failure = match facts(&hub, &url).await {
            Ok((Some(etag), Some(size))) if size <= MAX_FILE => return Ok((at, Piece { name, etag, size })),
            Ok(_) => {
                let what = format!("the hub does not say what '{}' is and how long", clean(&name));
                Failure::Stop(Error::new(Kind::Io, what).next("try again later, or check HF_ENDPOINT"))
            }
            Err(failure) => failure,
        };
        tries.wait(failure).await?;
    }
}

/// Content name and length of a file: by HEAD, and from its first byte where that doesn't say.
async fn facts(hub: &Hub, url: &Url) -> Result<(Option<String>, Option<u64>), Failure> {
    let head = hub.head(url).await?;
    if head.etag.is_some() && head.size.is_some() {
        return Ok((head.etag, head.size));
    }
    let first = hub.get(url, Some((0, Some(0))), None).await?;
    Ok((head.etag.or(first.etag), head.size.or(first.size)))
}
