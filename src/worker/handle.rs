//! A run in progress: the trainer's thread, its hub and its gauges.

use super::gauges::{GaugeSource, poll};
use super::hub::{Hub, Record};
use super::queue::EventQueue;
use super::signals::Signals;
use crate::engine::{Control, Engine, EventSink, Job, Outcome};
use crate::error::{Error, Result};
use crate::event::{Command, Event, EventKind, RunFinished, RunStatus, StreamStats, VramFigures};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// A run on its own threads. Dropping it asks the trainer to stop now and waits for the record to be closed.
pub struct RunHandle {
    control: Control,
    queue: EventQueue,
    sink: Arc<dyn EventSink>,
    trainer: Option<JoinHandle<()>>,
    hub: Option<JoinHandle<()>>,
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
                let result = catch_unwind(AssertUnwindSafe(|| engine.run(&job, &sink, &control)));
                // The engine's memory (pinned ring, device slots) is given back before the run counts as over.
                let result = catch_unwind(AssertUnwindSafe(move || drop(engine))).and(result);
                sink.send(EventKind::Finished(finished(result)));
            })?
        };
        Ok(RunHandle { control, queue, sink, trainer: Some(trainer), hub: Some(hub), gauges: Some((stop, gauges)) })
    }

    /// Passes a command to the trainer.
    pub fn command(&self, command: Command) {
        self.control.send(command);
    }
    /// Events since the last call. Never blocks.
    #[must_use]
    pub fn poll(&self) -> Vec<Event> {
        self.queue.drain()
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

    fn join(&mut self) {
        for thread in [self.trainer.take(), self.hub.take()].into_iter().flatten() {
            // Their panics are caught inside or end the hub early; there is nothing to add here.
            let _ = thread.join();
        }
        if let Some((stop, gauges)) = self.gauges.take() {
            drop(stop);
            let _ = gauges.join();
        }
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        self.control.send(Command::StopNow);
        self.control.send(Command::Resume);
        self.join();
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(body).map_err(|e| Error::run(format!("cannot start the {name} thread: {e}")))
}

fn finished(result: std::thread::Result<Result<Outcome>>) -> RunFinished {
    let failed = |reason: String| RunFinished {
        status: RunStatus::Failed,
        reason: Some(reason),
        step: 0,
        checkpoint: None,
        vram: VramFigures::default(),
        stats: StreamStats::default(),
        residency_peak: 0,
        telemetry_dropped: 0,
    };
    match result {
        Ok(Ok(o)) => RunFinished {
            status: o.status,
            reason: None,
            step: o.step,
            checkpoint: o.checkpoint,
            vram: o.vram,
            stats: o.stats,
            residency_peak: o.residency_peak,
            telemetry_dropped: 0,
        },
        Ok(Err(e)) => failed(e.to_string()),
        Err(panic) => failed(format!("the trainer panicked: {}", panic_text(&*panic))),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
