//! The hub: one thread that gives events their number and time, records them, then queues them for the screen.
//!
//! The recorder is served before the screen, so that a hung terminal can't cost a record. `Finished` reaches the
//! screen only after the report is written: who sees it may read the report.

use super::queue::EventQueue;
use super::signals::{Received, Signals};
use crate::clock::Clock;
use crate::engine::{Control, EventSink};
use crate::error::Result;
use crate::event::{Command, Event, EventKind, Level, Notice, RunFinished, RunStatus};
use crate::report::Recorder;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Events between the trainer and the hub. Telemetry beyond it is dropped and counted.
const CHANNEL: usize = 256;
/// How often the hub looks at signals while nothing happens.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// What keeps a run's record; [`Recorder`], or a test's own.
pub trait Record: Send {
    /// Takes one event.
    ///
    /// # Errors
    /// The disk refuses; the run must stop.
    fn record(&mut self, event: &Event) -> Result<()>;
    /// Writes the report.
    ///
    /// # Errors
    /// The disk refuses.
    fn finish(self: Box<Self>) -> Result<PathBuf>;
}

impl Record for Recorder {
    fn record(&mut self, event: &Event) -> Result<()> {
        Recorder::record(self, event)
    }
    fn finish(self: Box<Self>) -> Result<PathBuf> {
        Recorder::finish(*self)
    }
}

/// The trainer's end of the hub.
#[derive(Clone, Debug)]
pub struct HubSink {
    tx: SyncSender<EventKind>,
    dropped: Arc<AtomicU64>,
}

impl EventSink for HubSink {
    fn send(&self, kind: EventKind) {
        if kind.is_telemetry() {
            if let Err(TrySendError::Full(_)) = self.tx.try_send(kind) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            // A hub that is gone has recorded Finished: nothing after it matters.
            let _ = self.tx.send(kind);
        }
    }
    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A hub that has not started to listen.
pub struct Hub {
    rx: Receiver<EventKind>,
    dropped: Arc<AtomicU64>,
    record: Option<Box<dyn Record>>,
    queue: EventQueue,
    control: Control,
    signals: Signals,
    clock: Clock,
    seq: u64,
    /// Signals from before the run (a cancelled prompt): they don't stop it.
    before: Received,
    seen: Seen,
    failed: Option<String>,
}

/// What the hub remembers of a run, to complete a `Finished` whose engine could not say.
#[derive(Debug, Default)]
struct Seen {
    started: bool,
    step: u64,
    checkpoint: Option<PathBuf>,
    residency_peak: usize,
    signals: usize,
}

impl Hub {
    /// A hub that records with `record` and fills `queue`; its sink is the trainer's.
    #[must_use]
    pub fn new(record: Box<dyn Record>, queue: EventQueue, control: Control, signals: Signals) -> (Arc<HubSink>, Hub) {
        let (tx, rx) = sync_channel(CHANNEL);
        let dropped = Arc::new(AtomicU64::new(0));
        let sink = Arc::new(HubSink { tx, dropped: dropped.clone() });
        signals.run_begins();
        let hub = Hub {
            rx,
            dropped,
            record: Some(record),
            queue,
            control,
            before: signals.received(),
            signals,
            clock: Clock::real(),
            seq: 0,
            seen: Seen::default(),
            failed: None,
        };
        (sink, hub)
    }

    /// Listens until `Finished` has been recorded (or every sink is gone).
    pub fn run(self) {
        let signals = self.signals.clone();
        self.listen();
        signals.run_ends();
    }

    fn listen(mut self) {
        loop {
            let received = self.rx.recv_timeout(SIGNAL_POLL);
            self.pass_signals_on();
            match received {
                Ok(EventKind::Finished(finished)) => return self.finish(finished),
                Ok(kind) => self.take(kind),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn received(&self) -> Received {
        self.signals.received().since(self.before)
    }

    fn pass_signals_on(&mut self) {
        let nth = self.received().count();
        if nth > self.seen.signals {
            self.seen.signals = nth;
            if let Some(command) = Signals::command(nth) {
                self.control.send(command);
            }
            let text = match nth {
                1 => "signal received: the run ends after this step and saves it; a second signal drops this step",
                2 => "second signal: this step is dropped, the last whole one is saved; a third leaves without saving",
                _ => "third signal: the run ends now, nothing more is saved",
            };
            self.take(EventKind::Notice(Notice { level: Level::Warn, text: text.into() }));
        }
    }

    fn take(&mut self, kind: EventKind) {
        // Gauges may be read before the engine says what the run is; `Started` comes first.
        if kind.is_telemetry() && !self.seen.started {
            return;
        }
        self.seen.started |= matches!(kind, EventKind::Started(_));
        match &kind {
            EventKind::Started(s) => self.seen.step = s.steps_done,
            EventKind::Step(s) => {
                self.seen.step = s.step;
                self.seen.residency_peak = self.seen.residency_peak.max(s.residency_peak);
            }
            EventKind::Saved(s) if s.what == "checkpoint" => self.seen.checkpoint = Some(s.path.clone()),
            _ => {}
        }
        let event = self.number(kind);
        if let Some(record) = &mut self.record
            && let Err(e) = record.record(&event)
        {
            // A run without a record is worth nothing: save what there is and stop.
            self.control.send(Command::StopAndSave);
            self.record = None;
            let text = format!("the run's record can't be written: {e}");
            self.failed = Some(text.clone());
            self.queue.push(event);
            let notice = self.number(EventKind::Notice(Notice { level: Level::Error, text }));
            self.queue.push(notice);
            return;
        }
        self.queue.push(event);
    }

    fn finish(mut self, finished: RunFinished) {
        // An engine that failed or panicked could not say where it stood; the events did.
        let known = finished.status != RunStatus::Failed;
        let mut finished = RunFinished {
            status: self.received().status(finished.status),
            step: if known { finished.step } else { finished.step.max(self.seen.step) },
            checkpoint: finished.checkpoint.or_else(|| self.seen.checkpoint.take()),
            residency_peak: finished.residency_peak.max(self.seen.residency_peak),
            telemetry_dropped: self.dropped.load(Ordering::Relaxed),
            ..finished
        };
        if let Some(why) = self.failed.take() {
            finished.status = RunStatus::Failed;
            finished.reason = Some(why);
            finished.refused = false;
        }
        let mut event = self.number(EventKind::Finished(finished));
        if let Some(mut record) = self.record.take()
            && let Err(e) = record.record(&event).and_then(|()| record.finish().map(drop))
            && let EventKind::Finished(f) = &mut event.kind
        {
            f.status = RunStatus::Failed;
            f.reason = Some(format!("the report can't be written: {e}"));
        }
        self.queue.push(event);
    }

    fn number(&mut self, kind: EventKind) -> Event {
        let seq = self.seq;
        self.seq += 1;
        Event { seq, at: self.clock.now(), kind }
    }
}
