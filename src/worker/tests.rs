//! The trainer's threads: what arrives, in which order, and how every kind of ending is told.

use super::fake::{FakeEngine, Fault};
use super::*;
use crate::config::RunConfig;
use crate::engine::{Control, Engine, EventSink, Job, Outcome};
use crate::error::{Error, Result};
use crate::event::{Command, Event, EventKind, Gauges, RunFinished, RunStarted, RunStatus, StreamStats, VramFigures};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A record that tests look into, and that can be told to fail.
#[derive(Clone, Default)]
struct Notes {
    events: Arc<Mutex<Vec<Event>>>,
    finished: Arc<Mutex<bool>>,
    fail_at: Option<usize>,
}

impl Record for Notes {
    fn record(&mut self, event: &Event) -> Result<()> {
        let mut events = self.events.lock().unwrap();
        if self.fail_at == Some(events.len()) {
            return Err(Error::run("disk full"));
        }
        events.push(event.clone());
        Ok(())
    }
    fn finish(self: Box<Self>) -> Result<PathBuf> {
        *self.finished.lock().unwrap() = true;
        Ok(PathBuf::from("report.json"))
    }
}

fn job(steps: u64) -> Job {
    let mut config = RunConfig::default();
    config.train.max_steps = steps;
    let plan = super::fake::plan(&{
        let mut c = config.clone();
        c.model.path = "models/SmolLM2-135M-Instruct".into();
        c
    })
    .unwrap();
    Job { config, run_dir: PathBuf::from("run"), run_id: "run".into(), plan, resume: None }
}

fn spawn(engine: impl Engine + 'static, steps: u64, notes: &Notes, signals: &Signals) -> RunHandle {
    let gauges = Box::new(Gauges::default);
    RunHandle::spawn(Box::new(engine), job(steps), Box::new(notes.clone()), gauges, signals.clone()).unwrap()
}

/// Polls until `Finished`; a hang is a failure.
fn until_finished(run: &RunHandle, mut each: impl FnMut(&Event)) -> RunFinished {
    let since = Instant::now();
    loop {
        for event in run.poll() {
            each(&event);
            if let EventKind::Finished(f) = event.kind {
                return f;
            }
        }
        assert!(since.elapsed() < Duration::from_secs(10), "no Finished");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn slow() -> FakeEngine {
    FakeEngine { n_blocks: 4, visit: Duration::from_millis(2), ..FakeEngine::default() }
}

#[test]
fn case_fo_82b_a_driver_that_does_not_answer_holds_no_screen_at_the_end() {
    let hanging = Box::new(|| {
        std::thread::sleep(Duration::from_secs(60));
        Gauges::default()
    });
    let (notes, engine) = (Box::new(Notes::default()), Box::new(FakeEngine::default()));
    let run = RunHandle::spawn(engine, job(3), notes, hanging, Signals::none()).unwrap();
    until_finished(&run, |_| {});
    let since = Instant::now();
    drop(run);
    let took = since.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(5)).contains(&took), "{took:?}");
}

#[test]
fn every_lifecycle_event_is_recorded_and_seen_and_finished_is_the_last() {
    let notes = Notes::default();
    let run = spawn(FakeEngine::default(), 50, &notes, &Signals::none());
    let mut seen = Vec::new();
    let finished = until_finished(&run, |e| seen.push(e.clone()));
    assert_eq!((finished.status, finished.step), (RunStatus::Finished, 50));
    assert!(*notes.finished.lock().unwrap(), "the report is written before Finished is seen");
    let recorded = notes.events.lock().unwrap();
    let lifecycle = |events: &[Event]| events.iter().filter(|e| !e.kind.is_telemetry()).cloned().collect::<Vec<_>>();
    assert_eq!(lifecycle(&seen), lifecycle(&recorded));
    assert_eq!(lifecycle(&seen).iter().filter(|e| matches!(e.kind, EventKind::Step(_))).count(), 50);
    assert!(recorded.iter().enumerate().all(|(i, e)| e.seq == i as u64), "numbered without gaps");
    assert!(recorded.windows(2).all(|w| w[0].at <= w[1].at));
    assert!(matches!(recorded[0].kind, EventKind::Started(_)));
    assert!(matches!(recorded.last().unwrap().kind, EventKind::Finished(_)));
}

#[test]
fn a_screen_that_never_reads_does_not_stop_the_run() {
    let notes = Notes::default();
    let run = spawn(FakeEngine::default(), 2_000, &notes, &Signals::none());
    let since = Instant::now();
    while run.running() {
        assert!(since.elapsed() < Duration::from_secs(20), "the run waits for its screen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let steps = |e: &Event| matches!(e.kind, EventKind::Step(_));
    assert_eq!(notes.events.lock().unwrap().iter().filter(|e| steps(e)).count(), 2_000);
    let queued = run.poll();
    assert_eq!(queued.iter().filter(|e| steps(e)).count(), 2_000, "lifecycle events wait for their reader");
    assert!(queued.iter().filter(|e| e.kind.is_telemetry()).count() <= 3, "of each kind of telemetry the latest");
}

/// Floods telemetry at a hub whose record is slow.
struct Flood;
impl Engine for Flood {
    fn run(&mut self, _: &Job, sink: &Arc<dyn EventSink>, _: &Control) -> Result<Outcome> {
        sink.send(EventKind::Started(RunStarted::default()));
        for _ in 0..200_000 {
            sink.send(EventKind::Gauges(Gauges::default()));
        }
        Ok(outcome(RunStatus::Finished))
    }
}

fn outcome(status: RunStatus) -> Outcome {
    Outcome {
        status,
        reason: None,
        refused: false,
        step: 1,
        checkpoint: None,
        vram: VramFigures::default(),
        stats: StreamStats::default(),
        residency_peak: 0,
    }
}

#[test]
fn telemetry_beyond_the_bound_is_dropped_and_the_drops_are_reported() {
    let notes = Notes::default();
    let run = spawn(Flood, 1, &notes, &Signals::none());
    let finished = until_finished(&run, |_| {});
    let arrived = notes.events.lock().unwrap().iter().filter(|e| e.kind.is_telemetry()).count() as u64;
    // One poll of the gauges thread may have come on top.
    let all = arrived + finished.telemetry_dropped;
    assert!((200_000..=200_002).contains(&all), "{arrived} + {}", finished.telemetry_dropped);
    assert_eq!(run.dropped(), finished.telemetry_dropped);
}

#[test]
fn a_panic_becomes_a_failed_run_that_says_where_it_stood() {
    let notes = Notes::default();
    let run = spawn(FakeEngine { fault: Fault::Panic(3), ..FakeEngine::default() }, 9, &notes, &Signals::none());
    let finished = until_finished(&run, |_| {});
    assert_eq!((finished.status, finished.step, finished.residency_peak), (RunStatus::Failed, 2, 13));
    assert_eq!(finished.reason.as_deref(), Some("the trainer panicked: the scripted engine panicked as told"));
    assert!(*notes.finished.lock().unwrap(), "a failed run has a report too");
}

#[test]
fn an_error_is_the_reason_and_the_last_checkpoint_stands() {
    let notes = Notes::default();
    let mut job = job(9);
    job.config.train.save_steps = 2;
    let engine = FakeEngine { fault: Fault::Error(5), ..FakeEngine::default() };
    let gauges = Box::new(Gauges::default);
    let run = RunHandle::spawn(Box::new(engine), job, Box::new(notes.clone()), gauges, Signals::none()).unwrap();
    let finished = until_finished(&run, |_| {});
    assert_eq!((finished.status, finished.step), (RunStatus::Failed, 4));
    assert_eq!(finished.checkpoint, Some(PathBuf::from("run/checkpoint-4")));
    assert_eq!(finished.reason.as_deref(), Some("the scripted engine failed as told"));
}

#[test]
fn all_stops_but_discard_save() {
    let asked = [
        (Command::StopAndSave, RunStatus::Stopped),
        (Command::DropStep, RunStatus::Stopped),
        (Command::Discard, RunStatus::Aborted),
    ];
    for (command, status) in asked {
        let notes = Notes::default();
        let run = spawn(slow(), 1_000, &notes, &Signals::none());
        let mut saved = 0;
        let finished = until_finished(&run, |e| match &e.kind {
            EventKind::Step(s) if s.step == 2 => run.command(command),
            EventKind::Saved(_) => saved += 1,
            _ => {}
        });
        assert_eq!(finished.status, status);
        assert_eq!(saved, u32::from(command != Command::Discard));
    }
}

#[test]
fn pause_and_resume_are_answered_by_events() {
    let run = spawn(slow(), 6, &Notes::default(), &Signals::none());
    run.command(Command::Pause);
    let mut told = Vec::new();
    until_finished(&run, |e| match e.kind {
        EventKind::Paused { step } => {
            told.push(("paused", step));
            run.command(Command::Resume);
        }
        EventKind::Resumed { step } => told.push(("resumed", step)),
        _ => {}
    });
    assert_eq!(told, [("paused", 1), ("resumed", 1)]);
}

#[test]
fn case_tr_09_a_signal_saves_and_is_named_a_second_drops_the_step() {
    for (term, twice, status) in [
        (false, false, RunStatus::Interrupted),
        (true, false, RunStatus::Terminated),
        (false, true, RunStatus::Interrupted),
    ] {
        let (notes, signals) = (Notes::default(), Signals::none());
        // A signal from before the run does not count.
        signals.interrupt();
        let long = if twice { Duration::from_secs(3_600) } else { Duration::from_millis(2) };
        let engine = FakeEngine { n_blocks: 4, visit: long, ..FakeEngine::default() };
        let run = spawn(engine, 1_000, &notes, &signals);
        let (mut saved, mut warned) = (0, 0);
        let mut sent = false;
        let finished = until_finished(&run, |e| match &e.kind {
            EventKind::Progress(_) if !sent => {
                sent = true;
                if term {
                    signals.terminate()
                } else {
                    signals.interrupt()
                }
                if twice {
                    signals.interrupt();
                }
            }
            EventKind::Saved(_) => saved += 1,
            EventKind::Notice(n) if n.text.contains("signal") => warned += 1,
            _ => {}
        });
        assert_eq!((finished.status, warned), (status, 1), "{term} {twice}");
        assert_eq!(saved, 1, "both kinds of stop save");
    }
}

#[test]
fn a_run_that_ends_by_itself_is_not_called_interrupted() {
    let signals = Signals::none();
    signals.interrupt();
    let run = spawn(FakeEngine::default(), 3, &Notes::default(), &signals);
    assert_eq!(until_finished(&run, |_| {}).status, RunStatus::Finished);
}

#[test]
fn a_record_that_can_not_be_written_stops_the_run_loudly() {
    let notes = Notes { fail_at: Some(8), ..Notes::default() };
    let run = spawn(slow(), 1_000, &notes, &Signals::none());
    let mut errors = 0;
    let finished = until_finished(&run, |e| {
        if let EventKind::Notice(n) = &e.kind {
            errors += u32::from(n.text.contains("record can't be written: disk full"));
        }
    });
    assert_eq!((finished.status, errors), (RunStatus::Failed, 1));
    assert!(finished.reason.unwrap().contains("disk full"));
    assert!(finished.step < 1_000);
}

#[test]
fn dropping_a_run_stops_it_within_a_block() {
    let engine = FakeEngine { n_blocks: 4, visit: Duration::from_secs(3_600), ..FakeEngine::default() };
    let run = spawn(engine, 5, &Notes::default(), &Signals::none());
    let since = Instant::now();
    drop(run);
    assert!(since.elapsed() < Duration::from_secs(5));
}

/// A record that panics at the third event, as a fault in the recorder would.
struct Dies(u32);

impl Record for Dies {
    fn record(&mut self, _: &Event) -> crate::error::Result<()> {
        self.0 += 1;
        assert!(self.0 < 3, "the record dies as told");
        Ok(())
    }
    fn finish(self: Box<Self>) -> crate::error::Result<PathBuf> {
        Ok(PathBuf::new())
    }
}

#[test]
fn case_fo_18a_a_hub_that_dies_ends_the_run_for_its_reader() {
    let run =
        RunHandle::spawn(Box::new(slow()), job(100_000), Box::new(Dies(0)), Box::new(Gauges::default), Signals::none());
    let finished = until_finished(&run.unwrap(), |_| {});
    assert_eq!(finished.status, RunStatus::Failed);
    assert!(finished.reason.is_some_and(|r| r.contains("the run's folder holds what was saved")));
}

#[test]
fn case_fo_50_hang_ups_of_one_terminal_count_once() {
    let signals = Signals::none();
    signals.hang_up();
    signals.hang_up();
    let count = signals.received().count();
    assert_eq!((count, Signals::command(count)), (1, Some(Command::StopAndSave)));
    assert_eq!((Signals::command(2), Signals::command(3)), (Some(Command::DropStep), Some(Command::Discard)));
}
