//! How runs end: whatever ends one, at whatever moment, the folder, the status and the last words agree, and no more
//! than the step in progress is lost.

use super::runs::{agrees, config, copy_folder, file, run_until};
use crate::support::fixture::Model;
use blockstream_tui::checkpoint::{self, adapter};
use blockstream_tui::config::{RunConfig, load};
use blockstream_tui::device::shim;
use blockstream_tui::engine::{Control, Engine, EventSink, Job, Outcome, Services, Stop};
use blockstream_tui::error::{Error, ExitCode, Result};
use blockstream_tui::event::{Command, Event, EventKind, Gauges, Phase, RunFinished, RunStatus};
use blockstream_tui::model::AdapterLayout;
use blockstream_tui::train::{Trainer, save};
use blockstream_tui::worker::{Desk, DeskOptions, Signals};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A moment of a run: the n-th event of a kind, before anyone hears of it. The trainer waits in it.
#[derive(Clone, Copy)]
struct Moment {
    name: &'static str,
    is: fn(&EventKind) -> bool,
    nth: usize,
    /// The strongest stop that finds nothing left to do: the run is finished all the same.
    done: Stop,
}

/// Before the end of a run.
const fn at(name: &'static str, is: fn(&EventKind) -> bool, nth: usize) -> Moment {
    Moment { name, is, nth, done: Stop::No }
}

/// After the last step.
const fn past(name: &'static str, is: fn(&EventKind) -> bool, nth: usize, done: Stop) -> Moment {
    Moment { name, is, nth, done }
}

fn stage(kind: &EventKind, name: &str) -> bool {
    matches!(kind, EventKind::Stage(s) if s.name == name)
}

fn saved(kind: &EventKind, what: &str) -> bool {
    matches!(kind, EventKind::Saved(s) if s.what == what)
}

/// Steps of a run, how often it saves and how often it evaluates.
const STEPS: u64 = 6;
const SAVE: u64 = 3;
const EVAL: u64 = 2;

const READING: fn(&EventKind) -> bool = |k| stage(k, "reading data");
const HEAD: fn(&EventKind) -> bool = |k| stage(k, "loading head and embedding");
const UPDATED: fn(&EventKind) -> bool = |k| matches!(k, EventKind::Trace(_));
const STEP: fn(&EventKind) -> bool = |k| matches!(k, EventKind::Step(_));
const MEASURED: fn(&EventKind) -> bool = |k| matches!(k, EventKind::Eval(_));
const SAVED: fn(&EventKind) -> bool = |k| saved(k, "checkpoint");
const IN_EVAL: fn(&EventKind) -> bool = |k| matches!(k, EventKind::Progress(p) if p.phase == Phase::Eval);
const IN_STEP: fn(&EventKind) -> bool = |k| matches!(k, EventKind::Progress(p) if p.phase != Phase::Eval);

const MOMENTS: [Moment; 20] = [
    at("data is read", READING, 1),
    at("a run begins", |k| matches!(k, EventKind::Started(_)), 1),
    at("a reader is named", |k| matches!(k, EventKind::Notice(_)), 1),
    at("the head is loaded", HEAD, 1),
    at("rows are measured", IN_EVAL, 1),
    at("rows have been measured", MEASURED, 1),
    at("a step goes on", IN_STEP, 1),
    at("another step goes on", IN_STEP, 2),
    at("the first update is made", UPDATED, 1),
    at("the first step is over", STEP, 1),
    at("the second update is made", UPDATED, 2),
    at("the second step is over", STEP, 2),
    at("rows have been measured again", MEASURED, 2),
    at("a save is due", STEP, 3),
    at("a save is made", SAVED, 1),
    at("the update after a save is made", UPDATED, 4),
    past("the last step is over", STEP, STEPS as usize, Stop::DropStep),
    past("the last save is made", SAVED, 2, Stop::DropStep),
    past("rows have been measured at the end", MEASURED, 4, Stop::AtOnce),
    past("the adapter is written", |k| saved(k, "adapter"), 1, Stop::AtOnce),
];

/// Longer than the time between two tellings of where a step is.
const TELLING: Duration = Duration::from_millis(40);

/// What happens at a moment.
type Act = Arc<dyn Fn(&Job, &Control) + Send + Sync>;

/// The trainer, with something that happens at a moment of its run.
#[derive(Clone)]
struct Watched {
    moment: Moment,
    act: Act,
}

struct Tap {
    inner: Arc<dyn EventSink>,
    watched: Watched,
    job: Job,
    control: Control,
    seen: AtomicUsize,
}

impl EventSink for Tap {
    fn send(&self, kind: EventKind) {
        let Moment { is, nth, .. } = self.watched.moment;
        let seen = if is(&kind) { self.seen.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        if seen == nth {
            (self.watched.act)(&self.job, &self.control);
        }
        // Progress is told of now and then only. What comes after an event that is not passed over is told of for certain.
        let last = matches!(kind, EventKind::Step(_) | EventKind::Eval(_));
        self.inner.send(kind);
        if last && self.seen.load(Ordering::SeqCst) < nth {
            std::thread::sleep(TELLING);
        }
    }
    fn dropped(&self) -> u64 {
        self.inner.dropped()
    }
}

impl Engine for Watched {
    fn run(&mut self, job: &Job, sink: &Arc<dyn EventSink>, control: &Control) -> Result<Outcome> {
        let (watched, control) = (self.clone(), control.clone());
        let tap = Tap { inner: sink.clone(), watched, job: job.clone(), control: control.clone(), seen: 0.into() };
        Trainer.run(job, &(Arc::new(tap) as Arc<dyn EventSink>), &control)
    }
}

/// A desk whose runs are watched by what `next` holds.
fn desk(results: &Path, signals: &Signals, next: &Arc<Mutex<Option<Watched>>>) -> Desk {
    let _ = shim::init();
    let next = next.clone();
    Desk::new(DeskOptions {
        engine: Box::new(move || Box::new(next.lock().unwrap().take().expect("a run is about to begin"))),
        gauges: Box::new(|_| Box::new(Gauges::default)),
        env: Box::new(|_, machine| serde_json::json!({ "machine": machine.name })),
        places: Vec::new(),
        results: results.to_path_buf(),
        signals: signals.clone(),
        resume: None,
    })
}

/// Runs `config` and does `act` at `moment`.
fn run_with(
    desk: &mut Desk,
    next: &Mutex<Option<Watched>>,
    config: &RunConfig,
    watched: Watched,
) -> (Vec<Event>, RunFinished) {
    *next.lock().unwrap() = Some(watched);
    desk.start(config).unwrap_or_else(|e| panic!("{e}"));
    let (since, mut all) = (Instant::now(), Vec::new());
    loop {
        all.extend(desk.poll());
        if let Some(EventKind::Finished(f)) = all.last().map(|e| &e.kind) {
            let f = f.clone();
            return (all, f);
        }
        assert!(since.elapsed() < Duration::from_secs(60), "no end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One run alone, `act` at `moment`.
fn alone(config: &RunConfig, results: &Path, moment: Moment, act: Act) -> (Vec<Event>, RunFinished) {
    let next = Arc::new(Mutex::new(None));
    run_with(&mut desk(results, &Signals::none(), &next), &next, config, Watched { moment, act })
}

/// The only folder in `results`.
fn only_run(results: &Path) -> PathBuf {
    let mut all = std::fs::read_dir(results).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir());
    let run = all.next().unwrap();
    assert_eq!(all.next(), None);
    run
}

/// What lies in the folder of a run is what its end says; with `kept` no whole step is lost.
fn consistent(at: &str, run: &Path, events: &[Event], finished: &RunFinished, kept: bool) {
    let whole = events.iter().rev().find_map(|e| if let EventKind::Step(s) = &e.kind { Some(s.step) } else { None });
    let at = format!("{at}: {finished:?}");
    assert_eq!(save::newest(run), (finished.checkpoint.clone(), Vec::new()), "{at}");
    let said = events.iter().rev().find_map(|e| match &e.kind {
        EventKind::Saved(s) if s.what == "checkpoint" => Some(s.step),
        _ => None,
    });
    assert_eq!((finished.saved_step(), finished.step), (said, whole.unwrap_or(0)), "{at}");
    assert!(!kept || said == whole, "a whole step is lost: {at}");
    let words = finished.kept();
    match (said, whole) {
        (Some(n), Some(w)) if n < w => assert!(words.starts_with(&format!("saved at step {n}; ")), "{at}: {words}"),
        (Some(n), _) => assert_eq!(words, format!("saved at step {n}"), "{at}"),
        (None, _) => assert!(words.starts_with("nothing was saved"), "{at}: {words}"),
    }
    let report: Value = serde_json::from_slice(&file(run, "report.json")).unwrap();
    assert_eq!(report["status"], serde_json::to_value(finished.status).unwrap(), "{at}");
    let left: Vec<String> =
        std::fs::read_dir(run).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|n| n.ends_with(".tmp")), "{at}: {left:?}");
    if let (true, Some(checkpoint)) = (kept, &finished.checkpoint) {
        let tensors = "adapter_model.safetensors";
        assert!(file(checkpoint, tensors) == file(&run.join("adapter"), tensors), "the adapter is of that step: {at}");
    }
}

/// The run whose ends are looked at.
fn short(dir: &Path) -> RunConfig {
    let model = Model::tiny().set("num_hidden_layers", 2).write(&dir.join("tiny"));
    let mut c = config(&model, dir);
    (c.train.max_steps, c.train.save_steps, c.train.eval_steps) = (STEPS, SAVE, EVAL);
    c
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Signal {
    Int,
    Term,
    Hup,
}

#[test]
fn case_fo_03d_signals_at_any_moment_lose_no_whole_step() {
    let dir = tempfile::tempdir().unwrap();
    let c = short(dir.path());
    std::thread::scope(|s| {
        for lane in 0..2 {
            let (c, dir) = (&c, dir.path());
            s.spawn(move || {
                let (signals, next) = (Signals::none(), Arc::new(Mutex::new(None)));
                let mut desk = desk(&dir.join("unused"), &signals, &next);
                for (n, moment) in MOMENTS.into_iter().enumerate().filter(|(n, _)| n % 2 == lane) {
                    for signal in [Signal::Int, Signal::Term, Signal::Hup] {
                        for times in 1..=3 {
                            let mut c = c.clone();
                            c.results = Some(dir.join(format!("{n}-{signal:?}-{times}")));
                            let at = format!("{times} × {signal:?} while {}", moment.name);
                            let own = signals.clone();
                            let strength = match (signal, times) {
                                // A terminal hangs up once.
                                (Signal::Hup, _) | (_, 1) => Stop::AfterStep,
                                (_, 2) => Stop::DropStep,
                                _ => Stop::AtOnce,
                            };
                            let act: Act = Arc::new(move |_, control| {
                                (0..times).for_each(|_| match signal {
                                    Signal::Int => own.interrupt(),
                                    Signal::Term => own.terminate(),
                                    Signal::Hup => own.hang_up(),
                                });
                                let since = Instant::now();
                                while control.stop() < strength {
                                    assert!(since.elapsed() < Duration::from_secs(5), "the signal is not passed on");
                                    std::thread::sleep(Duration::from_millis(1));
                                }
                            });
                            let (events, finished) = run_with(&mut desk, &next, &c, Watched { moment, act });
                            let run = only_run(c.results.as_ref().unwrap());
                            consistent(&at, &run, &events, &finished, strength < Stop::AtOnce);
                            let (status, code) = match signal {
                                _ if strength <= moment.done => (RunStatus::Finished, ExitCode::Ok),
                                Signal::Int => (RunStatus::Interrupted, ExitCode::Interrupted),
                                Signal::Term | Signal::Hup => (RunStatus::Terminated, ExitCode::Terminated),
                            };
                            assert_eq!((finished.status, finished.exit_code()), (status, code), "{at}: {finished:?}");
                        }
                    }
                }
            });
        }
    });
}

/// Runs of the whole program that are signalled: each signal, once to three times, over the length of a run.
const PROCESSES: usize = 18;

/// The longest that one may take, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Starts `train`; sends `signal` up to `times` times, the first once `after` lines have come, each further one once the
/// one before has been answered. The exit code, and what was said. Past the deadline it is killed, and the test fails.
fn signalled(config: &Path, results: &Path, signal: &str, times: usize, after: usize) -> (Option<i32>, Vec<String>) {
    let mut child = Process::new(env!("CARGO_BIN_EXE_blockstream-tui"))
        .args(["train", "--config", config.to_str().unwrap(), "--results", results.to_str().unwrap()])
        .env("OMP_NUM_THREADS", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let kill = || drop(Process::new("kill").args([&format!("-{signal}"), &pid]).stderr(Stdio::null()).status());
    let (said, heard) = sync_channel(64);
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || stderr.lines().try_for_each(|line| said.send(line.unwrap())));
    let (mut lines, mut sent, since) = (Vec::new(), 0, Instant::now());
    loop {
        match heard.recv_timeout(DEADLINE.saturating_sub(since.elapsed())) {
            Ok(line) => lines.push(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child.kill().unwrap();
                panic!("{times} × {signal} after line {after}: no end within {DEADLINE:?}\n{}", lines.join("\n"));
            }
        }
        let answered = lines.last().is_some_and(|l| l.contains("signal received") || l.contains("second signal:"));
        if (sent == 0 && lines.len() == after) || (0 < sent && sent < times && answered) {
            kill();
            sent += 1;
        }
    }
    reader.join().unwrap().unwrap();
    (child.wait().unwrap().code(), lines)
}

#[test]
fn case_fo_03e_the_program_ends_by_signals_with_the_code_and_the_words_that_the_folder_proves() {
    let dir = tempfile::tempdir().unwrap();
    let c = short(dir.path());
    let path = dir.path().join("run.toml");
    std::fs::write(&path, load::to_toml(&c).unwrap()).unwrap();
    let (code, whole) = signalled(&path, &dir.path().join("whole"), "INT", 0, usize::MAX);
    assert_eq!(code, Some(0), "{whole:#?}");
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if n >= PROCESSES {
                        return;
                    }
                    let (signal, want) = [("INT", 130), ("TERM", 143), ("HUP", 143)][n % 3];
                    let (times, after) = (n / 3 % 3 + 1, 1 + n * (whole.len() - 1) / PROCESSES);
                    let results = dir.path().join(format!("r{n}"));
                    let (code, lines) = signalled(&path, &results, signal, times, after);
                    let at = format!("{times} × {signal} after line {after}: {code:?}\n{}", lines.join("\n"));
                    let steps = lines
                        .iter()
                        .rev()
                        .find_map(|l| l.strip_prefix("step ")?.split('/').next()?.parse::<u64>().ok());
                    let run = std::fs::read_dir(&results)
                        .into_iter()
                        .flatten()
                        .flatten()
                        .map(|e| e.path())
                        .find(|p| p.is_dir());
                    let newest = run.and_then(|r| save::newest(&r).0).and_then(|c| save::step_of(&c));
                    let Some(code) = code else {
                        // Before a run is on, and once its record is closed, a signal does what it always does.
                        assert!(newest == steps || times == 3, "{at}");
                        continue;
                    };
                    assert!(code == want || code == 0 && newest == Some(STEPS), "{at}");
                    if times < 3 || signal == "HUP" {
                        assert_eq!(newest, steps, "a whole step is lost: {at}");
                    }
                    if code == want {
                        let last = lines.last().unwrap();
                        match newest {
                            Some(k) => {
                                assert!(
                                    last.contains(&format!("saved at step {k}")) && last.contains("train --resume"),
                                    "{at}"
                                );
                            }
                            None => assert!(last.contains("nothing was saved"), "{at}"),
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn case_fo_03h_a_panic_in_a_step_costs_that_step_alone() {
    let dir = tempfile::tempdir().unwrap();
    let c = short(dir.path());
    let act: Act = Arc::new(|_, _| panic!("as told"));
    // Before its update a step leaves everything as the one before left it; in its midst only the last save is whole.
    for (moment, step, kept) in [
        (at("loading", READING, 1), 0, true),
        (at("before", IN_STEP, 2), 1, true),
        (at("within", UPDATED, 5), 4, false),
        (at("first", UPDATED, 1), 0, false),
        (at("measuring", MEASURED, 2), 2, true),
    ] {
        let results = dir.path().join(moment.name);
        let (events, finished) = alone(&c, &results, moment, act.clone());
        let reason = finished.reason.clone().unwrap_or_default();
        assert_eq!((finished.status, finished.exit_code()), (RunStatus::Failed, ExitCode::Failed), "{finished:?}");
        assert!(reason.contains("panicked: as told"), "{reason}");
        assert_eq!(step, finished.step, "{}: {finished:?}", moment.name);
        consistent(moment.name, &only_run(&results), &events, &finished, kept);
    }
}

#[test]
fn case_fo_52b_the_report_of_a_run_that_never_began_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let c = short(dir.path());
    std::fs::write(&c.data.files[0], "{\"x\": 1}\n").unwrap();
    let (_, finished, _) = run_until(&c, &dir.path().join("results"), |_| false, |_| {});
    let report: Value = serde_json::from_slice(&file(&only_run(&dir.path().join("results")), "report.json")).unwrap();
    assert_eq!((finished.status, &report["status"]), (RunStatus::Failed, &Value::from("failed")));
    let why = "is in no known format";
    assert!(finished.reason.is_some_and(|r| r.contains(why)));
    assert!(report["reason"].as_str().is_some_and(|r| r.contains(why)), "{report}");
}

#[test]
fn case_fo_03i_a_save_that_fails_leaves_the_last_checkpoint_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = short(dir.path());
    c.train.save_steps = 2;
    // A file lies where the folder of step 4 is to be made.
    let act: Act = Arc::new(|job, _| std::fs::write(job.run_dir.join("checkpoint-4.tmp"), "in the way").unwrap());
    let results = dir.path().join("results");
    let moment = at("a save is due", STEP, 4);
    let (events, finished) = alone(&c, &results, moment, act);
    assert_eq!(
        (finished.status, finished.step, finished.saved_step()),
        (RunStatus::Failed, 4, Some(2)),
        "{finished:?}"
    );
    let reason = finished.reason.clone().unwrap();
    assert!(reason.contains("step 4 could not be saved") && reason.contains("checkpoint-4.tmp"), "{reason}");
    assert_eq!(reason.matches("checkpoint-4.tmp").count(), 1, "{reason}");
    assert_eq!(finished.kept(), "saved at step 2; 2 steps after it lost");
    agrees(&events, &finished);
    let (events, finished) = {
        let act: Act = Arc::new(|job, _| std::fs::write(job.run_dir.join("checkpoint-2.tmp"), "in the way").unwrap());
        alone(&c, &dir.path().join("first"), at("a save is due", STEP, 2), act)
    };
    assert_eq!((finished.checkpoint.clone(), finished.kept()), (None, "nothing was saved: 2 steps lost".into()));
    agrees(&events, &finished);
}

/// Seconds in which a stop is taken up and told of, on a busy machine; what is stopped would go on for longer, or train.
const SOON: f64 = 3.0;

#[test]
fn case_fo_11b_a_stop_is_heard_inside_a_long_visit_and_while_one_long_row_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    let text = std::fs::read_to_string(&c.data.files[0]).unwrap();
    let begins = |k: &EventKind| matches!(k, EventKind::Progress(p) if p.phase != Phase::Eval);
    let measures = |k: &EventKind| matches!(k, EventKind::Progress(p) if p.phase == Phase::Eval);
    // A visit of thousands of micro-batches takes seconds.
    std::fs::write(&c.data.files[0], text.repeat(400)).unwrap();
    c.train.per_device_train_batch_size = 1;
    (c.train.gradient_accumulation_steps, c.data.eval_split) = (4_000, 0.0);
    let stop = |command| move |d: &mut Desk| d.command(command);
    let (_, finished, seconds) = run_until(&c, &dir.path().join("a"), begins, stop(Command::DropStep));
    assert!(seconds < SOON, "{seconds} s in a step");
    assert_eq!((finished.status, finished.step), (RunStatus::Stopped, 0));
    c.data.eval_split = 0.9;
    let (_, finished, seconds) = run_until(&c, &dir.path().join("b"), measures, stop(Command::StopAndSave));
    assert!(seconds < SOON, "{seconds} s in an evaluation");
    assert_eq!((finished.status, finished.step), (RunStatus::Stopped, 0));

    // A report comes after a hundred rows: the long one is the next.
    let long = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}]}}\n", "word ".repeat(3_000_000));
    std::fs::write(&c.data.files[0], text.repeat(10) + &long).unwrap();
    (c.train.gradient_accumulation_steps, c.data.eval_split) = (2, 0.0);
    let reading = |k: &EventKind| stage(k, "reading data");
    let in_the_row = |d: &mut Desk| {
        std::thread::sleep(Duration::from_millis(20));
        d.command(Command::StopAndSave);
    };
    let (_, finished, seconds) = run_until(&c, &dir.path().join("c"), reading, in_the_row);
    assert!(seconds < SOON, "{seconds} s while a row is read");
    assert_eq!((finished.status, finished.checkpoint), (RunStatus::Stopped, None));
}

#[test]
fn case_fo_03l_a_save_or_a_check_that_is_stopped_at_any_piece_leaves_the_folder_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let c = short(dir.path());
    let (_, finished, _) = run_until(&c, &dir.path().join("results"), |_| false, |_| {});
    let from = finished.checkpoint.unwrap();
    let layout = AdapterLayout::new(&checkpoint::open(Path::new(&c.model.path)).unwrap(), &c.lora).unwrap();
    let (config, _) = adapter::read(&from).unwrap();
    let (tensors, state) = (save::tensors(&from, &layout).unwrap(), save::state(&from, &|| Ok(())).unwrap());

    let run = dir.path().join("run");
    copy_folder(&from, &run.join("checkpoint-6"));
    let mut pieces = 0;
    loop {
        let mut left = pieces;
        let mut told = |_| {
            left -= 1;
            if left < 0 { Err(Error::stopped()) } else { Ok(()) }
        };
        let saved = save::save(&run, &config, &layout, &tensors, &state, &mut told);
        let all: Vec<_> = std::fs::read_dir(&run).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(all, ["checkpoint-6"], "stopped at piece {pieces}");
        assert_eq!(save::newest(&run), (Some(run.join("checkpoint-6")), Vec::new()));
        match saved {
            Err(e) => assert!(e.is_stop(), "{e}"),
            Ok(_) => break,
        }
        pieces += 1;
    }
    assert!(pieces > 10, "{pieces}");

    let asked = AtomicUsize::new(0);
    let stop = || if asked.fetch_add(1, Ordering::SeqCst) < 2 { Ok(()) } else { Err(Error::stopped()) };
    assert!(save::state(&from, &stop).is_err_and(|e| e.is_stop()));
    assert_eq!(asked.into_inner(), 3, "nothing is hashed after a stop");
}

#[test]
fn case_fo_03j_a_long_save_says_that_it_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = short(dir.path());
    // 5.8 M parameters; with both moments 70 MB.
    (c.lora.r, c.train.max_steps, c.train.save_steps, c.data.eval_split) = (6_500, 1, 0, 0.0);
    let path = dir.path().join("run.toml");
    std::fs::write(&path, load::to_toml(&c).unwrap()).unwrap();
    let (code, lines) = signalled(&path, &dir.path().join("results"), "INT", 0, usize::MAX);
    assert_eq!(code, Some(0), "{lines:#?}");
    let at =
        |begin: &str| lines.iter().position(|l| l.starts_with(begin)).unwrap_or_else(|| panic!("{begin}: {lines:#?}"));
    let order =
        ["step 1/1", "saving checkpoint-1: 0 B of 69.9 MB", "saving checkpoint-1: 69.9 MB of", "checkpoint saved"]
            .map(at);
    assert!(order.is_sorted(), "{lines:#?}");
}
