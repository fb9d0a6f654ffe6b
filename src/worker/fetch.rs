//! Fetches from the hub on a thread of their own, one at a time: the screen asks, looks in, and may cancel.

use crate::checkpoint::remote::{self, Cancel, ModelId, Settings, Survey};
use crate::engine::Fetched;
use crate::error::{Error, Result};
use crate::event::Stage;
use crate::panics;
use std::sync::{Arc, Mutex, PoisonError};

/// The fetches of one desk.
#[derive(Debug, Default)]
pub struct Fetch {
    /// `None` reads the environment when something is asked for.
    settings: Option<Settings>,
    job: Option<Job>,
    surveyed: Option<Survey>,
}

#[derive(Debug)]
struct Job {
    cancel: Cancel,
    said: Arc<Mutex<Said>>,
}

/// What the thread has said and nobody has heard yet.
#[derive(Debug, Default)]
struct Said {
    progress: Option<Stage>,
    end: Option<Result<End>>,
}

#[derive(Debug)]
enum End {
    Headers(String),
    Survey(Box<Survey>),
    Model(String),
}

impl Fetch {
    /// Fetches with these settings.
    #[must_use]
    pub fn with(settings: Settings) -> Fetch {
        Fetch { settings: Some(settings), job: None, surveyed: None }
    }

    /// Begins to fetch headers.
    ///
    /// # Errors
    /// Not an id, a fetch is going on, or no thread.
    pub fn headers(&mut self, id: &str) -> Result<()> {
        let (id, settings) = (ModelId::parse(id)?, self.settings());
        self.spawn(move |cancel, progress| {
            remote::headers(&settings, &id, cancel, progress)?;
            Ok(End::Headers(id.to_string()))
        })
    }

    /// Begins to ask what a download takes.
    ///
    /// # Errors
    /// As [`Fetch::headers`].
    pub fn survey(&mut self, id: &str) -> Result<()> {
        let (id, settings) = (ModelId::parse(id)?, self.settings());
        self.spawn(move |cancel, progress| Ok(End::Survey(Box::new(remote::survey(&settings, &id, cancel, progress)?))))
    }

    /// Begins the download that was surveyed last.
    ///
    /// # Errors
    /// Nothing was surveyed, a fetch is going on, or no thread.
    pub fn download(&mut self) -> Result<()> {
        let settings = self.settings();
        let Some(survey) = self.surveyed.clone() else {
            return Err(Error::usage("no download was looked into").next("press d on a model that is not here"));
        };
        self.spawn(move |cancel, progress| {
            remote::download(&settings, &survey, cancel, progress)?;
            Ok(End::Model(survey.plan.model))
        })
    }

    /// Asks what is going on to stop.
    pub fn cancel(&self) {
        if let Some(job) = &self.job {
            job.cancel.ask();
        }
    }

    /// What was said since the last call. Never waits for the network.
    pub fn poll(&mut self) -> Vec<Fetched> {
        let Some(job) = &self.job else {
            return Vec::new();
        };
        let said = std::mem::take(&mut *job.said.lock().unwrap_or_else(PoisonError::into_inner));
        let mut out: Vec<Fetched> = said.progress.map(Fetched::Progress).into_iter().collect();
        let Some(end) = said.end else {
            return out;
        };
        out.push(match end {
            Ok(End::Headers(id)) => Fetched::Headers(id),
            Ok(End::Model(id)) => Fetched::Model(id),
            Ok(End::Survey(survey)) => {
                let plan = survey.plan.clone();
                self.surveyed = Some(*survey);
                Fetched::Survey(plan)
            }
            Err(_) if job.cancel.asked() => Fetched::Cancelled,
            Err(e) => Fetched::Failed(e.to_string()),
        });
        self.job = None;
        out
    }

    fn settings(&self) -> Settings {
        self.settings.clone().unwrap_or_else(Settings::from_env)
    }

    fn spawn(
        &mut self,
        work: impl FnOnce(&Cancel, &mut dyn FnMut(Stage)) -> Result<End> + Send + 'static,
    ) -> Result<()> {
        if self.job.is_some() {
            return Err(Error::run("something is being fetched already").next("wait for it, or cancel it"));
        }
        let (cancel, said) = (Cancel::default(), Arc::new(Mutex::new(Said::default())));
        let (stop, heard) = (cancel.clone(), said.clone());
        let body = move || {
            let tell = |change: &mut dyn FnMut(&mut Said)| {
                change(&mut heard.lock().unwrap_or_else(PoisonError::into_inner));
            };
            let mut progress = |stage: Stage| tell(&mut |s| s.progress = Some(stage.clone()));
            // A bug must end the fetch, not leave the screen waiting for it.
            let mut end = Some(panics::caught("the fetch", || work(&stop, &mut progress)).flatten());
            tell(&mut |s| s.end = end.take());
        };
        std::thread::Builder::new()
            .name("fetch".into())
            .spawn(body)
            .map_err(|e| Error::run(format!("cannot start the fetch thread: {e}")))?;
        self.job = Some(Job { cancel, said });
        Ok(())
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
#[cfg(feature = "hub")]
mod tests {
    use super::*;
    use crate::support::fixture::Model;
    use crate::support::hub::TestHub;
    use std::time::{Duration, Instant};

    /// Polls until the fetch has ended; its last word.
    fn end(fetch: &mut Fetch) -> Fetched {
        let begun = Instant::now();
        loop {
            match fetch.poll().pop() {
                Some(Fetched::Progress(_)) | None => std::thread::sleep(Duration::from_millis(2)),
                Some(end) => return end,
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "no end");
        }
    }

    #[test]
    fn headers_survey_and_download_one_after_the_other() {
        let hub = TestHub::of(&Model::tiny());
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::from(|key| match key {
            "HF_ENDPOINT" => Some(hub.url.clone().into()),
            "HF_TOKEN" => Some("hf_test".into()),
            "HF_HUB_CACHE" => Some(dir.path().join("hub").into()),
            "XDG_CACHE_HOME" => Some(dir.path().into()),
            _ => None,
        });
        let mut fetch = Fetch::with(settings);
        assert!(fetch.download().unwrap_err().to_string().contains("no download"));
        assert!(fetch.headers("../x").unwrap_err().to_string().contains("not a hub id"));
        fetch.headers("o/n").unwrap();
        assert!(fetch.survey("o/n").unwrap_err().to_string().contains("already"));
        assert_eq!(end(&mut fetch), Fetched::Headers("o/n".into()));
        fetch.survey("o/n").unwrap();
        let Fetched::Survey(plan) = end(&mut fetch) else { panic!("no survey") };
        assert_eq!((plan.model.as_str(), plan.fetch), ("o/n", plan.total));

        // A download that stands still is cancelled, and goes on where it was.
        hub.rules().stalls = vec![100_000];
        hub.rules().pause = Duration::from_millis(60);
        fetch.download().unwrap();
        let begun = Instant::now();
        while !fetch.poll().iter().any(|f| matches!(f, Fetched::Progress(s) if s.done > 50_000)) {
            assert!(begun.elapsed() < Duration::from_secs(20), "no progress");
        }
        fetch.cancel();
        assert_eq!(end(&mut fetch), Fetched::Cancelled);
        fetch.download().unwrap();
        assert_eq!(end(&mut fetch), Fetched::Model("o/n".into()));
        fetch.headers("o/other").unwrap();
        assert!(matches!(end(&mut fetch), Fetched::Failed(e) if e.contains("the hub has no 'o/other'")));
    }
}
