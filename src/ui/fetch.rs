//! Fetches from the hub as the workbench knows them: what goes on, how far it is, what a download would take.

use super::app::{App, Effect};
use super::overlay::Overlay;
use crate::engine::{DownloadPlan, Fetched};
use crate::event::{Level, Stage};
use std::collections::VecDeque;

/// Reports of progress that the rate is taken over: some seconds of them.
const MARKS: usize = 40;

/// What is being fetched; each names its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Headers, for a plan.
    Headers(String),
    /// What a download would take.
    Survey(String),
    /// The model.
    Download(String),
}

/// The fetch that goes on, if one does.
#[derive(Clone, Debug, Default)]
pub struct FetchView {
    /// What it is.
    pub work: Option<Work>,
    /// How far it is.
    pub stage: Option<Stage>,
    /// What the download that was looked into takes.
    pub plan: Option<DownloadPlan>,
    /// Cancelling was asked for.
    pub cancelling: bool,
    /// Seconds of the clock and bytes done, newest last.
    marks: VecDeque<(f64, u64)>,
    /// What to select once the list is read again.
    wanted: Option<String>,
    changed: bool,
}

impl FetchView {
    /// The model being downloaded.
    #[must_use]
    pub fn downloading(&self) -> Option<&str> {
        match &self.work {
            Some(Work::Download(model)) => Some(model),
            _ => None,
        }
    }

    /// Bytes per second over the last reports; `None` while nothing comes.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        let ((from, before), (to, done)) = (self.marks.front()?, self.marks.back()?);
        let rate = done.saturating_sub(*before) as f64 / (to - from);
        (rate.is_finite() && rate > 0.0).then_some(rate)
    }

    /// Seconds that are left at that rate.
    #[must_use]
    pub fn left(&self) -> Option<f64> {
        let stage = self.stage.as_ref()?;
        Some(stage.total.saturating_sub(stage.done) as f64 / self.rate()?)
    }

    /// Whether anything was heard since the last call: the screen is drawn again then.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    fn begin(&mut self, work: Work) {
        self.work = Some(work);
        self.stage = None;
        self.cancelling = false;
        self.marks.clear();
    }

    fn end(&mut self) {
        self.work = None;
        self.stage = None;
        self.cancelling = false;
    }

    fn mark(&mut self, now: f64, stage: Stage) {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back((now, stage.done));
        self.stage = Some(stage);
    }
}

impl App {
    /// Takes what the fetch has said.
    pub(super) fn fetched(&mut self, said: Vec<Fetched>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.fetch.changed = true;
        for word in said {
            match word {
                Fetched::Progress(stage) => self.fetch.mark(self.now, stage),
                Fetched::Headers(model) => {
                    self.fetch.end();
                    self.say(Level::Info, format!("the headers of {model} are here: enter plans it"));
                    self.fetch.wanted = Some(model);
                    effects.push(Effect::LoadModels);
                }
                Fetched::Survey(plan) => {
                    self.fetch.end();
                    self.fetch.plan = Some(plan);
                }
                Fetched::Model(model) => {
                    self.fetch.end();
                    self.fetch.plan = None;
                    self.close_download();
                    self.say(Level::Info, format!("{model} is here and can be trained"));
                    effects.push(Effect::LoadModels);
                    if self.config.model.path == model {
                        effects.push(Effect::Plan);
                    }
                    self.fetch.wanted = Some(model);
                }
                Fetched::Cancelled => {
                    self.fetch.end();
                    self.fetch.plan = None;
                    self.close_download();
                    self.say(Level::Warn, "Cancelled. d resumes the download");
                }
                Fetched::Failed(why) => self.fetch_failed(&why),
            }
        }
        effects
    }

    /// A fetch did not begin, or ended in an error.
    pub(super) fn fetch_failed(&mut self, why: &str) {
        self.fetch.end();
        self.fetch.plan = None;
        self.close_download();
        // Whatever else is open is being used.
        if self.overlay.is_none() {
            self.message("The hub could not be asked", why);
        } else {
            self.say(Level::Error, why);
        }
    }

    fn close_download(&mut self) {
        if matches!(self.overlay, Some(Overlay::Download)) {
            self.overlay = None;
        }
    }

    /// Begins to fetch headers of a model that the user has named.
    pub(super) fn fetch_headers(&mut self, id: &str) -> Vec<Effect> {
        if self.fetch_busy() {
            return Vec::new();
        }
        self.fetch.begin(Work::Headers(id.to_owned()));
        vec![Effect::FetchHeaders(id.to_owned())]
    }

    /// Shows the download that goes on, or asks what one of the selected model would take.
    pub(super) fn look_into_download(&mut self) -> Vec<Effect> {
        if self.fetch.downloading().is_some() {
            self.overlay = Some(Overlay::Download);
            return Vec::new();
        }
        let Some(entry) = self.models.list.selected() else {
            return Vec::new();
        };
        let id = entry.path.display().to_string();
        let refusal = match (entry.not_here, entry.origin.as_str()) {
            (true, "hub") => None,
            (true, _) => Some("this folder doesn't say where its weights are: H takes an id on the hub"),
            (false, _) => Some("this model is here already; H takes an id on the hub"),
        };
        if let Some(why) = refusal {
            self.say(Level::Warn, why);
            return Vec::new();
        }
        if self.fetch_busy() {
            return Vec::new();
        }
        self.fetch.plan = None;
        self.fetch.begin(Work::Survey(id.clone()));
        self.overlay = Some(Overlay::Download);
        vec![Effect::Survey(id)]
    }

    /// Begins the download that the dialog shows.
    pub(super) fn start_download(&mut self) -> Vec<Effect> {
        self.overlay = Some(Overlay::Download);
        let Some(plan) = self.fetch.plan.as_ref().filter(|_| self.fetch.work.is_none()) else {
            return Vec::new();
        };
        if plan.fetch > plan.free {
            let why = format!("{} are missing on the drive", plan.fetch.saturating_sub(plan.free));
            self.say(Level::Error, why);
            return Vec::new();
        }
        let model = plan.model.clone();
        self.fetch.begin(Work::Download(model));
        vec![Effect::Download]
    }

    /// Cancels what goes on; without that, closes the dialog.
    pub(super) fn cancel_fetch(&mut self) -> Vec<Effect> {
        if self.fetch.work.is_none() {
            return Vec::new();
        }
        self.fetch.cancelling = true;
        self.overlay = Some(Overlay::Download);
        vec![Effect::CancelFetch]
    }

    /// Selects what was fetched, once the list has it.
    pub(super) fn select_fetched(&mut self) {
        if let Some(model) = self.fetch.wanted.take() {
            self.models.list.select(|m| m.name == model || m.path.as_os_str() == model.as_str());
        }
    }

    fn fetch_busy(&mut self) -> bool {
        let busy = self.fetch.work.is_some();
        if busy {
            self.say(Level::Warn, "something is being fetched already");
        }
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_reports() {
        let mut fetch = FetchView::default();
        let stage = |done| Stage { name: "x".into(), done, total: 10_000, unit: "bytes".into() };
        assert_eq!((fetch.rate(), fetch.left()), (None, None));
        fetch.mark(1.0, stage(1_000));
        assert_eq!(fetch.rate(), None, "one report has no rate");
        fetch.mark(3.0, stage(2_000));
        assert_eq!((fetch.rate(), fetch.left()), (Some(500.0), Some(16.0)));
        for i in 0..2 * MARKS {
            fetch.mark(3.0 + i as f64, stage(2_000));
        }
        assert_eq!(fetch.rate(), None, "nothing comes any more");
    }
}
