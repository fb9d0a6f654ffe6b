//! A run in progress: the trainer's thread, its hub and its gauges.

use super::gauges::{GaugeSource, poll};
use super::hub::{Hub, Record};
use super::queue::EventQueue;
use super::signals::Signals;
use crate::engine::{Control, Engine, EventSink, Job, Outcome};
use crate::error::{Error, ExitCode, Result};
use crate::event::{Command, Event, EventKind, RunFinished, RunStatus, StreamStats, VramFigures};
use crate::panics;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A run on its own threads. Dropping it drops the step in progress, saves the last whole one, and waits for the record to be closed.
pub struct RunHandle {
    control: Control,
    queue: EventQueue,
    sink: Arc<dyn EventSink>,
    trainer: Option<JoinHandle<()>>,
    hub: Option<JoinHandle<()>>,
    /// `Finished` has been given out.
    ended: AtomicBool,
    gauges: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl RunHandle {
    /// Starts `engine` on the thread `trainer`. Whatever it does, `Finished` is sent, once and last.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn(
        mut engine: Box<dyn Engine>,
        job: Job,
        record: Box<dyn Record>,
        gauges: GaugeSource,
        signals: Signals,
    ) -> Result<RunHandle> {
        let (control, queue) = (Control::default(), EventQueue::default());
        let (sink, hub) = Hub::new(record, queue.clone(), control.clone(), signals);
        let sink: Arc<dyn EventSink> = sink;
        let hub = thread("hub", move || hub.run())?;
        let (stop, stopped) = sync_channel(1);
        let gauges = {
            let sink = sink.clone();
            thread("gauges", move || poll(gauges, &sink, &stopped))?
        };
        let trainer = {
            let (sink, control) = (sink.clone(), control.clone());
            thread("trainer", move || {
                let result = panics::caught("the trainer", || engine.run(&job, &sink, &control));
                // The engine's memory (pinned ring, device slots) is given back before the run counts as over.
                let result = panics::caught("the trainer", move || drop(engine)).and(result).flatten();
                sink.send(EventKind::Finished(finished(result)));
            })?
        };
        Ok(RunHandle {
            control,
            queue,
            sink,
            trainer: Some(trainer),
            hub: Some(hub),
            ended: AtomicBool::new(false),
            gauges: Some((stop, gauges)),
        })
    }

    /// Passes a command to the trainer.
    pub fn command(&self, command: Command) {
        self.control.send(command);
    }
    /// Events since the last call. Never blocks. Ends with `Finished` even where the thread that should say it died.
    #[must_use]
    pub fn poll(&self) -> Vec<Event> {
        let over = |t: &Option<JoinHandle<()>>| t.as_ref().is_none_or(JoinHandle::is_finished);
        // Asked before the queue is read: what a thread said before it ended comes first.
        let (hub, trainer) = (over(&self.hub), over(&self.trainer));
        let mut events = self.queue.drain();
        if events.iter().any(|e| matches!(e.kind, EventKind::Finished(_))) {
            self.ended.store(true, Ordering::SeqCst);
        }
        if hub && !self.ended.load(Ordering::SeqCst) {
            self.control.send(Command::StopAndSave);
            if trainer {
                self.ended.store(true, Ordering::SeqCst);
                let what = "the thread that keeps the run's record ended early; the run's folder holds what was saved";
                let kind = EventKind::Finished(finished(Err(Error::run(what))));
                events.push(Event { seq: u64::MAX, at: 0.0, kind });
            }
        }
        events
    }
    /// Telemetry dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.sink.dropped() + self.queue.overflowed()
    }
    /// The trainer has not ended yet.
    #[must_use]
    pub fn running(&self) -> bool {
        self.hub.as_ref().is_some_and(|h| !h.is_finished())
    }
}

/// Longest that the end of a run waits for its threads once it has been told of.
const LEAVE: Duration = Duration::from_secs(1);

impl Drop for RunHandle {
    fn drop(&mut self) {
        // Nobody asked to lose anything: what is whole is saved.
        self.control.send(Command::DropStep);
        self.control.send(Command::Resume);
        let since = Instant::now();
        let mut threads: Vec<JoinHandle<()>> = [self.trainer.take(), self.hub.take()].into_iter().flatten().collect();
        if !self.ended.load(Ordering::SeqCst) {
            // Their panics are caught inside or end the hub early; there is nothing to add here.
            threads.drain(..).for_each(|thread| drop(thread.join()));
        }
        if let Some((stop, gauges)) = self.gauges.take() {
            drop(stop);
            threads.push(gauges);
        }
        // All is written: a driver or a drive that doesn't answer must not hold the screen. Such a thread is left behind.
        while threads.iter().any(|t| !t.is_finished()) && since.elapsed() < LEAVE {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(body).map_err(|e| Error::run(format!("cannot start the {name} thread: {e}")))
}

fn finished(result: Result<Outcome>) -> RunFinished {
    match result {
        Ok(o) => RunFinished {
            status: o.status,
            reason: o.reason,
            step: o.step,
            checkpoint: o.checkpoint,
            vram: o.vram,
            stats: o.stats,
            residency_peak: o.residency_peak,
            telemetry_dropped: 0,
            refused: o.refused,
        },
        Err(e) => RunFinished {
            status: RunStatus::Failed,
            reason: Some(e.to_string()),
            step: 0,
            checkpoint: None,
            vram: VramFigures::default(),
            stats: StreamStats::default(),
            residency_peak: 0,
            telemetry_dropped: 0,
            refused: e.exit_code() == ExitCode::Usage,
        },
    }
}
