//! The model hub over the network: headers for a plan, downloads into the hub cache. Only at the user's request.
//!
//! Questions and bytes go by requests of our own: hf-hub's downloads don't resume and its answers have no limit.
//! Names, lengths and texts from the network are hostile: bounded, checked, cleaned. The token goes to the hub's own
//! host and is never shown.

pub mod id;
pub mod settings;

#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod headers;
#[cfg(feature = "hub")]
mod http;
#[cfg(feature = "hub")]
mod listing;
#[cfg(feature = "hub")]
mod survey;

pub use id::ModelId;
pub use settings::{Patience, Settings, Token};

use crate::engine::DownloadPlan;
use crate::error::{Error, Result};
use crate::event::Stage;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a fetch to stop. What has come is kept. Clones share the request.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
    /// Whether that was asked for.
    #[must_use]
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
    /// The request itself, for a signal's handler to set.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

/// One file of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Path inside the model folder.
    pub name: String,
    /// Name of its content: SHA-256 of a large file, git's hash of a small one.
    pub etag: String,
    /// Length in bytes.
    pub size: u64,
}

/// What a download would fetch, file by file.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Its sums.
    pub plan: DownloadPlan,
    /// The model.
    pub id: ModelId,
    /// The files, in the order of the download.
    pub pieces: Vec<Piece>,
}

/// Fetches config, index and shard headers of `model` into the folder of headers, unless that commit's are there.
/// Returns the folder, which opens as a checkpoint that is not here.
///
/// # Errors
/// Offline, no such model, no access, no connection, headers that don't hold together, or cancelled.
pub fn headers(
    settings: &Settings,
    model: &ModelId,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Stage),
) -> Result<PathBuf> {
    settings.online(&model.to_string())?;
    let cache = settings.headers.as_ref().ok_or_else(|| no_home("headers", "XDG_CACHE_HOME"))?;
    net::headers(settings, model, cache, cancel, progress)
}

/// Asks what a download of `model` would fetch and write. Writes nothing.
///
/// # Errors
/// As [`headers`].
pub fn survey(
    settings: &Settings,
    model: &ModelId,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Stage),
) -> Result<Survey> {
    settings.online(&model.to_string())?;
    let cache = settings.cache.as_ref().ok_or_else(|| no_home("models", "HF_HUB_CACHE"))?;
    net::survey(settings, model, cache, cancel, progress)
}

/// Downloads what `survey` found missing into the hub cache. Returns the snapshot's folder.
///
/// Cancelled or failed, it keeps what has come; the same call goes on behind it.
///
/// # Errors
/// As [`headers`]; no room on the drive; or a file is not what the hub says it is.
pub fn download(
    settings: &Settings,
    survey: &Survey,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Stage),
) -> Result<PathBuf> {
    settings.online(&survey.plan.model)?;
    net::download(settings, survey, cancel, progress)
}

fn no_home(what: &str, variable: &str) -> Error {
    Error::usage(format!("there is no folder for {what}: no home folder")).next(format!("set {variable}"))
}

/// The blocking calls over the asynchronous ones, each on a runtime of its own.
#[cfg(feature = "hub")]
mod net {
    use super::http::Hub;
    use super::listing::{endpoint, list};
    use super::survey as surveys;
    use super::{Cancel, Error, ModelId, PathBuf, Result, Settings, Stage, Survey, download as load, headers as heads};
    use std::path::Path;
    use std::time::Duration;

    /// How soon a request to stop is heard.
    const HEARD: Duration = Duration::from_millis(20);

    pub fn headers(
        settings: &Settings,
        model: &ModelId,
        cache: &Path,
        cancel: &Cancel,
        progress: &mut dyn FnMut(Stage),
    ) -> Result<PathBuf> {
        let hub = Hub::new(settings, &endpoint(settings)?)?;
        until(cancel, async {
            let listing = list(&hub, model).await?;
            heads::fetch(&hub, model, &listing, cache, progress).await
        })
    }

    pub fn survey(
        settings: &Settings,
        model: &ModelId,
        cache: &Path,
        cancel: &Cancel,
        progress: &mut dyn FnMut(Stage),
    ) -> Result<Survey> {
        let hub = Hub::new(settings, &endpoint(settings)?)?;
        until(cancel, async {
            let listing = list(&hub, model).await?;
            surveys::make(&hub, model, &listing, cache, progress).await
        })
    }

    pub fn download(
        settings: &Settings,
        survey: &Survey,
        cancel: &Cancel,
        progress: &mut dyn FnMut(Stage),
    ) -> Result<PathBuf> {
        let hub = Hub::new(settings, &endpoint(settings)?)?;
        until(cancel, load::run(&hub, survey, progress))
    }

    /// Runs `work` to its end, or drops it when asked to stop: files stay as they are then.
    fn until<T>(cancel: &Cancel, work: impl Future<Output = Result<T>>) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::device(format!("no runtime for the network: {e}")))?;
        let stop = async {
            while !cancel.asked() {
                tokio::time::sleep(HEARD).await;
            }
        };
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = stop => Err(Error::run("cancelled").next("what has come is kept")),
                done = work => done,
            }
        })
    }
}

/// A build without network access says so.
#[cfg(not(feature = "hub"))]
mod net {
    use super::{Cancel, Error, ModelId, PathBuf, Result, Settings, Stage, Survey};
    use std::path::Path;

    fn none() -> Error {
        Error::usage("this build has no access to the hub (feature 'hub' is off)").next("build with default features")
    }

    pub fn headers(_: &Settings, _: &ModelId, _: &Path, _: &Cancel, _: &mut dyn FnMut(Stage)) -> Result<PathBuf> {
        Err(none())
    }

    pub fn survey(_: &Settings, _: &ModelId, _: &Path, _: &Cancel, _: &mut dyn FnMut(Stage)) -> Result<Survey> {
        Err(none())
    }

    pub fn download(_: &Settings, _: &Survey, _: &Cancel, _: &mut dyn FnMut(Stage)) -> Result<PathBuf> {
        Err(none())
    }
}

#[cfg(test)]
#[cfg(feature = "hub")]
mod tests;
