//! Downloads into the hub cache: each content under its name with `.incomplete` until it is whole and checked, then its
//! blob; links and reference last, so a snapshot is there as a whole or not at all.
//!
//! A part is never fetched twice: the next attempt, and the next run, ask for the bytes behind it.

use super::headers::{make_dir, write_reference};
use super::http::{Answer, Failure, Hub, Tries, lost};
use super::survey::{blob, incomplete, is_sha256, room, told_apart, whole};
use super::{Piece, Survey};
use crate::checkpoint::files::shown;
use crate::checkpoint::header::MAX_FILE;
use crate::error::{Error, Kind, Result};
use crate::event::Stage;
use crate::files;
use crate::text::clean;
use crate::units::MIB;
use reqwest::Url;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes hashed at a time, between looks at whether to stop.
const HASHED: usize = 4 << 20;
/// How often a file may turn out to be another, or wrong, before the hub is given up on.
const RESTARTS: u32 = 3;
/// Between two reports of progress.
const REPORT: Duration = Duration::from_millis(100);

/// Fetches what `survey` found missing; returns the snapshot's folder.
pub(super) async fn run(hub: &Hub, survey: &Survey, progress: &mut dyn FnMut(Stage)) -> Result<PathBuf> {
    let (plan, model) = (&survey.plan, &survey.id);
    room(plan)?;
    let repo = model.folder(&plan.cache);
    make_dir(&repo.join("blobs"))?;
    let mut told = Told { before: 0, total: plan.total.0, at: Instant::now() - REPORT, progress };
    let mut pieces = survey.pieces.clone();
    for i in 0..pieces.len() {
        if pieces[..i].iter().any(|p| p.etag == pieces[i].etag) {
            continue;
        }
        if !whole(&repo, &plan.commit, &pieces[i]) {
            let url = hub.file(&model.id, &plan.commit, &pieces[i].name)?;
            fetch(hub, &url, &repo, &mut pieces[i], &mut told).await?;
        }
        // The file may have become another on the way.
        told_apart(&pieces)?;
        told.before += pieces[i].size;
        told.say(&pieces[i].name, 0, true);
    }
    let dir = repo.join("snapshots").join(&plan.commit);
    make_dir(&dir)?;
    for piece in &pieces {
        link(&repo, &dir, piece)?;
    }
    files::sync_dir(&repo.join("blobs"))?;
    files::sync_dir(&dir)?;
    write_reference(&repo, model, &plan.commit)?;
    Ok(dir)
}

/// Progress over all files.
struct Told<'a> {
    before: u64,
    total: u64,
    at: Instant,
    progress: &'a mut dyn FnMut(Stage),
}

impl Told<'_> {
    fn say(&mut self, name: &str, done: u64, now: bool) {
        if now || self.at.elapsed() >= REPORT {
            self.at = Instant::now();
            let done = (self.before + done).min(self.total);
            (self.progress)(Stage { name: clean(name), done, total: self.total, unit: "bytes".into() });
        }
    }
}

/// What one attempt came to.
enum Turn {
    /// All bytes are here.
    Whole,
    /// The file is now another: its content name and length.
    Changed(String, u64),
}

/// Fetches one piece, over as many attempts as patience has, and gives it its blob's name.
async fn fetch(hub: &Hub, url: &Url, repo: &Path, piece: &mut Piece, told: &mut Told<'_>) -> Result<()> {
    let mut tries = Tries::new(hub.patience);
    let mut part = Part::open(repo, piece).await?;
    let mut restarts = 0;
    loop {
        let before = part.len;
        match part.attempt(hub, url, piece, told).await {
            Ok(Turn::Whole) => match part.finish(repo, piece)? {
                None => return Ok(()),
                Some(why) if restarts >= RESTARTS => return Err(why),
                Some(_) => part.restart()?,
            },
            Ok(Turn::Changed(..)) if restarts >= RESTARTS => {
                return Err(differs(piece, "changes from one answer to the next"));
            }
            Ok(Turn::Changed(etag, size)) => {
                // What is here belongs to no content that the hub still has.
                let _ = std::fs::remove_file(&part.path);
                (told.total, piece.etag, piece.size) = (told.total - piece.size + size, etag, size);
                part = Part::open(repo, piece).await?;
            }
            Err(failure) => {
                if part.len.saturating_sub(before) >= MIB {
                    tries.progress();
                }
                if let Failure::Again(e) = &failure {
                    told.say(&format!("{}: {}; trying again", piece.name, e.what()), part.len, true);
                }
                tries.wait(failure).await?;
                continue;
            }
        }
        restarts += 1;
    }
}

/// The `.incomplete` file of a piece, locked against other downloads.
struct Part {
    file: File,
    path: PathBuf,
    hash: Sha256,
    len: u64,
}

impl Part {
    /// Opens what is here of `piece` and hashes it, or begins.
    async fn open(repo: &Path, piece: &Piece) -> Result<Part> {
        let path = incomplete(repo, &piece.etag);
        // In a cache that others write to, a link here would lead our bytes into any file; a FIFO would wait for ever.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let open = OpenOptions::new().read(true).append(true).create(true).custom_flags(flags).open(&path);
        let odd = || Error::new(Kind::Io, format!("{} is a link or no plain file", shown(&path))).next("delete it");
        let file = open.map_err(|e| if is_odd(&path) { odd() } else { Error::io("open", &path, e) })?;
        if is_odd(&path) {
            return Err(odd());
        }
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::run(format!("'{}' is being downloaded by another process", clean(&piece.name)))
                .next("wait for it, or stop it"));
        }
        let mut part = Part { file, path, hash: Sha256::new(), len: 0 };
        let long = part.file.metadata().map_err(|e| part.io("read", e))?.len();
        if long > piece.size {
            part.restart()?;
            return Ok(part);
        }
        part.file.seek(SeekFrom::Start(0)).map_err(|e| part.io("read", e))?;
        let mut buffer = vec![0; HASHED.min(long as usize)];
        while part.len < long {
            let n = part.file.read(&mut buffer).map_err(|e| part.io("read", e))?;
            if n == 0 {
                break;
            }
            part.hash.update(&buffer[..n]);
            part.len += n as u64;
            tokio::task::yield_now().await;
        }
        Ok(part)
    }

    /// Throws away what is here.
    fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(|e| self.io("shorten", e))?;
        (self.hash, self.len) = (Sha256::new(), 0);
        Ok(())
    }

    async fn attempt(&mut self, hub: &Hub, url: &Url, piece: &Piece, told: &mut Told<'_>) -> Result<Turn, Failure> {
        if self.len == piece.size {
            return Ok(Turn::Whole);
        }
        let range = (self.len > 0).then_some((self.len, None));
        let mut answer = hub.get(url, range, Some(&piece.etag)).await?;
        if let Some(turn) = self.begin(&answer, url, piece)? {
            return Ok(turn);
        }
        while let Some(chunk) = answer.chunk().await? {
            let chunk = chunk.as_ref();
            if chunk.len() as u64 > piece.size - self.len {
                self.restart().map_err(Failure::Stop)?;
                return Err(Failure::Stop(differs(piece, "is longer than the hub says")));
            }
            self.file.write_all(chunk).map_err(|e| Failure::Stop(self.full(e)))?;
            self.hash.update(chunk);
            self.len += chunk.len() as u64;
            told.say(&piece.name, self.len, false);
        }
        if self.len < piece.size {
            let why = format!("'{}' ended after {} of {} bytes", clean(&piece.name), self.len, piece.size);
            return Err(Failure::Again(lost(url, &why)));
        }
        Ok(Turn::Whole)
    }

    /// Checks an answer's head against what is here and what is expected.
    fn begin(&mut self, answer: &Answer, url: &Url, piece: &Piece) -> Result<Option<Turn>, Failure> {
        if let (Some(etag), Some(size)) = (&answer.etag, answer.size)
            && *etag != piece.etag
            && size <= MAX_FILE
        {
            return Ok(Some(Turn::Changed(etag.clone(), size)));
        }
        match answer.status {
            206 if answer.from != self.len => {
                self.restart().map_err(Failure::Stop)?;
                return Err(Failure::Again(lost(url, "another part came than was asked for")));
            }
            206 => {}
            // A server without ranges, or a part that the hub no longer goes on with.
            200 => self.restart().map_err(Failure::Stop)?,
            _ => {
                self.restart().map_err(Failure::Stop)?;
                return Err(Failure::Again(lost(url, "there is nothing behind the part that is here")));
            }
        }
        match answer.size {
            Some(size) if size != piece.size => Err(Failure::Stop(differs(
                piece,
                &format!("has {size} bytes in one answer and {} in another", piece.size),
            ))),
            _ => Ok(None),
        }
    }

    /// Checks the whole content and names it; an error inside is a content that is not what its name says.
    fn finish(&mut self, repo: &Path, piece: &Piece) -> Result<Option<Error>> {
        let sum: String = self.hash.clone().finalize().iter().map(|b| format!("{b:02x}")).collect();
        if is_sha256(&piece.etag) && !piece.etag.eq_ignore_ascii_case(&sum) {
            return Ok(Some(differs(piece, "does not have the SHA-256 that the hub gives for it")));
        }
        self.file.sync_all().map_err(|e| self.io("write", e))?;
        let to = blob(repo, &piece.etag);
        if !is_sha256(&piece.etag) && std::fs::metadata(&to).is_ok_and(|m| m.len() != piece.size) {
            return Err(differs(piece, "has the content name of another file that is here already"));
        }
        std::fs::rename(&self.path, &to).map_err(|e| Error::io("create", &to, e))?;
        Ok(None)
    }

    fn io(&self, what: &str, e: std::io::Error) -> Error {
        Error::io(what, &self.path, e)
    }

    fn full(&self, e: std::io::Error) -> Error {
        self.io("write", e).next("free space and run the same command again: it goes on where it stopped")
    }
}

/// Whether something lies at `path` that is no plain file of its own.
fn is_odd(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| !m.is_file())
}

fn differs(piece: &Piece, how: &str) -> Error {
    let what = format!("'{}' {how}", clean(&piece.name));
    Error::new(Kind::Io, what).next("try again later, or check HF_ENDPOINT")
}

/// The snapshot's link to a piece's blob, relative, so that the cache can be moved.
fn link(repo: &Path, dir: &Path, piece: &Piece) -> Result<()> {
    let at = dir.join(&piece.name);
    let up = "../".repeat(2 + piece.name.matches('/').count());
    let target = PathBuf::from(format!("{up}blobs/{}", piece.etag));
    make_dir(at.parent().unwrap_or(dir))?;
    match at.symlink_metadata() {
        Ok(meta) if meta.is_symlink() && std::fs::read_link(&at).is_ok_and(|t| t == target) => return Ok(()),
        // A cache copied without links has the file itself.
        Ok(meta) if meta.is_file() && !blob(repo, &piece.etag).exists() => return Ok(()),
        Ok(_) => std::fs::remove_file(&at).map_err(|e| Error::io("replace", &at, e))?,
        Err(_) => {}
    }
    std::os::unix::fs::symlink(&target, &at).map_err(|e| Error::io("link", &at, e))
}
