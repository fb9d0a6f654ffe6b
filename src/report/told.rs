//! The events of a recording sorted by what they are about: sessions, steps, evaluations, gauges.

use super::stats::finite;
use super::trace::sums;
use super::types::{EvalReport, MAX_NOTICES, NoticeLine, Session, StatsReport};
use crate::event::{Event, EventKind, Gauges, Level, RunFinished, RunStarted, RunStatus, StepRecord, StepTrace};
use std::collections::BTreeMap;

/// Steps at the start of a session that don't count as measured.
const WARMUP: usize = 2;
/// Warm-up is left out only when at least this many steps remain.
const ENOUGH: usize = 4;

/// One session as its events tell it.
pub(super) struct SessionTold {
    pub(super) started: RunStarted,
    pub(super) finished: Option<RunFinished>,
    last_step: u64,
    first_at: f64,
    last_at: f64,
}

impl SessionTold {
    pub(super) fn seconds(&self) -> f64 {
        finite(self.last_at - self.first_at).unwrap_or(0.0).max(0.0)
    }
    pub(super) fn facts(&self, started: Option<String>) -> Session {
        Session {
            started,
            device: self.started.device.clone(),
            from_step: self.started.steps_done,
            to_step: self.last_step,
            status: self.finished.as_ref().map_or(RunStatus::Running, |f| f.status),
            seconds: self.seconds(),
        }
    }
}

/// The events sorted by what they are about.
#[derive(Default)]
pub(super) struct Told {
    pub(super) sessions: Vec<SessionTold>,
    /// The end of a run that never began: it was stopped, or failed, while it was prepared.
    unbegun: Option<RunFinished>,
    /// By step number, with the session it belongs to; steps that a resume repeated count once, the newest.
    pub(super) steps: BTreeMap<u64, (usize, StepRecord)>,
    /// Everything that ran, repeated steps too.
    pub(super) all_steps: Vec<StepRecord>,
    evals: Vec<(u64, f64)>,
    /// Bytes of every checkpoint and adapter saved.
    pub(super) saved: u64,
    pub(super) gauges: Vec<Gauges>,
    /// The newest.
    pub(super) trace: Option<StepTrace>,
    pub(super) notices: Vec<NoticeLine>,
}

impl Told {
    pub(super) fn from(events: &[Event]) -> Told {
        let mut told = Told::default();
        for event in events {
            if let EventKind::Started(s) = &event.kind {
                told.steps.retain(|n, _| *n <= s.steps_done);
                told.evals.retain(|(n, _)| *n <= s.steps_done);
                told.sessions.push(SessionTold {
                    started: s.clone(),
                    finished: None,
                    last_step: s.steps_done,
                    first_at: event.at,
                    last_at: event.at,
                });
            }
            if let Some(session) = told.sessions.last_mut() {
                session.last_at = session.last_at.max(event.at);
            }
            told.take(&event.kind);
        }
        told
    }

    fn take(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Step(s) => {
                if let Some(session) = self.sessions.last_mut() {
                    session.last_step = session.last_step.max(s.step);
                }
                self.steps.insert(s.step, (self.sessions.len(), s.clone()));
                self.all_steps.push(s.clone());
            }
            EventKind::Saved(s) => self.saved = self.saved.saturating_add(s.bytes.0),
            EventKind::Eval(e) => self.evals.push((e.step, e.loss)),
            EventKind::Trace(t) => self.trace = Some(t.clone()),
            EventKind::Gauges(g) => self.gauges.push(g.clone()),
            EventKind::Notice(n) if n.level >= Level::Warn && self.notices.len() < MAX_NOTICES => {
                self.notices.push(NoticeLine { level: n.level, text: n.text.clone() });
            }
            EventKind::Finished(f) => match self.sessions.last_mut() {
                Some(session) => {
                    session.last_step = session.last_step.max(f.step);
                    session.finished = Some(f.clone());
                }
                None => self.unbegun = Some(f.clone()),
            },
            _ => {}
        }
    }

    pub(super) fn effective(&self) -> impl Iterator<Item = &StepRecord> {
        self.steps.values().map(|(_, s)| s)
    }

    pub(super) fn last_step(&self) -> u64 {
        let done = self.sessions.last().map_or(0, |s| s.last_step);
        self.steps.keys().last().copied().unwrap_or(0).max(done)
    }

    pub(super) fn ending(&self) -> (RunStatus, Option<String>) {
        match self.sessions.last().map_or(self.unbegun.as_ref(), |s| s.finished.as_ref()) {
            Some(f) => (f.status, f.reason.clone()),
            None => (RunStatus::Running, None),
        }
    }

    /// The steps that count as measured, and how many were left out as warm-up.
    pub(super) fn measured(&self) -> (Vec<StepRecord>, usize) {
        let mut place: BTreeMap<usize, usize> = BTreeMap::new();
        let warm = self.steps.values().filter(|(session, _)| {
            let at = place.entry(*session).or_default();
            *at += 1;
            *at > WARMUP
        });
        let warm: Vec<StepRecord> = warm.map(|(_, s)| s.clone()).collect();
        if warm.len() >= ENOUGH {
            let excluded = self.steps.len() - warm.len();
            (warm, excluded)
        } else {
            (self.effective().cloned().collect(), 0)
        }
    }

    pub(super) fn eval(&self) -> EvalReport {
        let begun_at = self.sessions.first().map_or(0, |s| s.started.steps_done);
        let before = self.evals.first().filter(|(step, _)| *step <= begun_at);
        let after = self.evals.last().filter(|(step, _)| *step > begun_at);
        EvalReport {
            before: before.and_then(|e| finite(e.1)),
            after: after.and_then(|e| finite(e.1)),
            list: self.evals.iter().map(|(n, loss)| (*n, finite(*loss))).collect(),
        }
    }

    pub(super) fn finished(&self) -> impl Iterator<Item = &RunFinished> {
        self.sessions.iter().filter_map(|s| s.finished.as_ref())
    }

    pub(super) fn residency_peak(&self) -> usize {
        let steps = self.all_steps.iter().map(|s| s.residency_peak);
        steps.chain(self.finished().map(|f| f.residency_peak)).max().unwrap_or(0)
    }

    pub(super) fn stats(&self) -> StatsReport {
        let sum = |of: fn(&StepRecord) -> f64| self.all_steps.iter().map(of).filter(|x| *x >= 0.0).sum::<f64>();
        // A session that was killed has no closing figures: then the steps' own are all there is.
        let closed = !self.sessions.is_empty() && self.sessions.iter().all(|s| s.finished.is_some());
        let whole = |of: fn(&RunFinished) -> f64| self.finished().map(of).filter(|x| *x >= 0.0).sum::<f64>();
        let (h2d_s, stall_s, evict_wait_s) = if closed {
            (whole(|f| f.stats.h2d_s), whole(|f| f.stats.stall_s), whole(|f| f.stats.evict_wait_s))
        } else {
            (sum(|s| s.h2d_s), sum(|s| s.stall_s), sum(|s| s.evict_wait_s))
        };
        let history = self.finished().last().map(|f| f.stats.resident_history.clone());
        let finite_or_zero = |x: f64| finite(x).unwrap_or(0.0);
        let told = sums(&self.all_steps);
        StatsReport {
            h2d_s: finite_or_zero(h2d_s),
            stall_s: finite_or_zero(stall_s),
            evict_wait_s: finite_or_zero(evict_wait_s),
            disk_s: finite_or_zero(sum(|s| s.disk_s)),
            compute_s: told.map(|t| t[0]),
            stall_link_s: told.map(|t| t[1]),
            stall_disk_s: told.map(|t| t[2]),
            resident_history: history.unwrap_or_default(),
        }
    }
}
