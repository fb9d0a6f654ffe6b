//! The scripted engine: plausible events, deterministic to the last digit, that obey [`Control`].

use super::trace::{Pace, seconds};
use crate::config::RunConfig;
use crate::engine::{Control, Engine, EventSink, Job, Outcome, Stop};
use crate::error::{Error, Result};
use crate::event::{
    BlockState, DataFacts, EVENT_SCHEMA, EvalRecord, EventKind, GRAD_NORM, LEARNING_RATE, LOSS, Level, Metrics, Notice,
    Phase, Progress, RunStarted, RunStatus, Saved, Stage, StepRecord, StepTrace, StreamStats, TierName, VramFigures,
};
use crate::units::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TOKENS: u64 = 2_048;

/// What goes wrong, and in which step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The engine returns an error.
    Error(u64),
    /// The engine panics.
    Panic(u64),
    /// The loss is not finite and the update is skipped.
    Nan(u64),
    /// A library writes a line to fd 1 and to fd 2, as drivers do.
    Noise(u64),
    /// The desk panics, on the thread of the screen.
    Screen,
    /// From this step on the drive delivers a fifth of its rating, as one that is hot.
    SlowDrive(u64),
}

impl Fault {
    /// The fault of a name: `noise` in the first step, `slow` from the sixth on, `screen` at once, the others in the
    /// second.
    #[must_use]
    pub fn named(name: &str) -> Option<Fault> {
        match name {
            "" => Some(Fault::None),
            "noise" => Some(Fault::Noise(1)),
            "screen" => Some(Fault::Screen),
            "slow" => Some(Fault::SlowDrive(6)),
            "error" => Some(Fault::Error(2)),
            "panic" => Some(Fault::Panic(2)),
            "nan" => Some(Fault::Nan(2)),
            _ => None,
        }
    }
}

/// A trainer that trains nothing.
#[derive(Clone, Debug)]
pub struct FakeEngine {
    /// Decoder blocks.
    pub n_blocks: usize,
    /// Wall-clock time of a visit; zero runs flat out.
    pub visit: Duration,
    /// Steps of a run, whatever its config says.
    pub steps: Option<u64>,
    /// What goes wrong.
    pub fault: Fault,
}

impl Default for FakeEngine {
    fn default() -> Self {
        FakeEngine { n_blocks: 30, visit: Duration::ZERO, steps: None, fault: Fault::None }
    }
}

/// Where each of `n` blocks lives: a third in VRAM, a third in RAM, the rest on disk, spread evenly.
#[must_use]
pub(crate) fn tiers(n: usize) -> Vec<TierName> {
    (0..n).map(|i| [TierName::Vram, TierName::Ram, TierName::Disk][i % 3]).collect()
}

/// The loss of `step`: falls from about 2.9 to 1.1 with a wobble.
fn loss(step: u64) -> f64 {
    let x = step as f64;
    1.1 + 1.8 * (-x / 14.0).exp() + 0.09 * (x * 1.7).sin() * (-x / 60.0).exp()
}

impl Engine for FakeEngine {
    fn run(&mut self, job: &Job, sink: &Arc<dyn EventSink>, control: &Control) -> Result<Outcome> {
        let (mut stopped, mut complete, mut told_at) = (None, 0, 0.0);
        let result = self.narrate(&job.config, &job.run_id, &job.run_dir, &mut |kind, at| {
            let took = at - std::mem::replace(&mut told_at, at);
            let progress = matches!(kind, EventKind::Progress(_));
            let step_over = match &kind {
                EventKind::Step(s) => Some(s.step),
                _ => None,
            };
            sink.send(kind);
            if progress && !self.visit.is_zero() {
                wait(Duration::from_secs_f64(took), control);
            }
            if let Some(step) = step_over {
                complete = step;
                if control.take_save() {
                    sink.send(saved(step, "checkpoint", &job.run_dir));
                }
                if control.paused() && control.stop() == Stop::No {
                    sink.send(EventKind::Paused { step });
                    while control.paused() && control.stop() == Stop::No {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    sink.send(EventKind::Resumed { step });
                }
                if control.stop() == Stop::AfterStep {
                    sink.send(saved(step, "checkpoint", &job.run_dir));
                    stopped = Some((RunStatus::Stopped, step));
                    return false;
                }
            }
            match control.stop() {
                Stop::AtOnce => stopped = Some((RunStatus::Aborted, complete)),
                Stop::DropStep => {
                    sink.send(saved(complete, "checkpoint", &job.run_dir));
                    stopped = Some((RunStatus::Stopped, complete));
                }
                Stop::AfterStep | Stop::No => return true,
            }
            false
        })?;
        let (status, step) = stopped.unwrap_or((RunStatus::Finished, result));
        Ok(Outcome {
            status,
            reason: None,
            refused: false,
            step,
            checkpoint: (status != RunStatus::Aborted).then(|| job.run_dir.join(format!("checkpoint-{step}"))),
            vram: VramFigures {
                live: Bytes(734_003_200),
                reserved: Bytes(905_969_664),
                device: Some(Bytes(1_325_400_064)),
            },
            stats: StreamStats { h2d_s: 0.4 * step as f64, stall_s: 0.02 * step as f64, ..StreamStats::default() },
            residency_peak: 13,
        })
    }
}

/// Waits for `time`, less if a stop is asked for.
fn wait(time: Duration, control: &Control) {
    let mut left = time;
    while left > Duration::ZERO && control.stop() < Stop::DropStep {
        let slice = left.min(Duration::from_millis(5));
        std::thread::sleep(slice);
        left -= slice;
    }
}

/// The whole story of a run of `steps` steps as `(seconds, event)`, for tests that hold the clock themselves.
#[must_use]
pub fn narrate(engine: &FakeEngine, config: &RunConfig) -> Vec<(f64, EventKind)> {
    let mut all = Vec::new();
    let told = engine.narrate(config, "20261129T173106Z-smol-lora", Path::new("results/run"), &mut |kind, at| {
        all.push((at, kind));
        true
    });
    if told.is_err() {
        all.push((all.last().map_or(0.0, |(at, _)| *at), notice(Level::Error, "the scripted fault")));
    }
    all
}

impl FakeEngine {
    /// Tells the run's events to `tell` with the time each would have; stops when `tell` says `false`.
    fn narrate(
        &self,
        config: &RunConfig,
        run_id: &str,
        run_dir: &Path,
        tell: &mut dyn FnMut(EventKind, f64) -> bool,
    ) -> Result<u64> {
        let configured = if config.train.max_steps == 0 { 40 } else { config.train.max_steps };
        let (n, steps) = (self.n_blocks, self.steps.unwrap_or(configured));
        let visit_s = if self.visit.is_zero() { 0.02 } else { self.visit.as_secs_f64() };
        let (mut at, mut moved) = (0.0, (0u64, 0u64));
        macro_rules! tell {
            ($kind:expr, $dt:expr) => {{
                at += $dt;
                if !tell($kind, at) {
                    return Ok(0);
                }
            }};
        }
        tell!(EventKind::Started(started(config, run_id, run_dir, n, steps)), 0.0);
        tell!(notice(Level::Warn, "io_uring is not allowed here: reading with pread, 4 threads"), 0.1);
        for done in [0, 75, 150] {
            tell!(EventKind::Stage(Stage { name: "reading data".into(), done, total: 150, unit: "rows".into() }), 0.1);
        }
        let eval = |step| EvalRecord { step, loss: loss(step) + 0.12, tokens: 9_120, seconds: 0.8 };
        tell!(EventKind::Eval(eval(0)), 0.8);
        let lowest = lowest_trainable(config, n);
        let visits = n + (n - lowest);
        for step in 1..=steps {
            let began = at;
            let pace = Pace { visit_s, slow: matches!(self.fault, Fault::SlowDrive(from) if step >= from) };
            let mut times = Vec::with_capacity(visits + 2);
            for visit in 0..visits {
                let (phase, block) =
                    if visit < n { (Phase::Forward, visit) } else { (Phase::Backward, n - 1 - (visit - n)) };
                if visit == n {
                    times.push(pace.still(Phase::Head, n, 1.0));
                }
                let now = pace.visit(phase, block, tiers(n)[block]);
                moved = (moved.0 + now.disk, moved.1 + now.h2d);
                times.push(now);
                let progress = Progress {
                    step,
                    phase,
                    block,
                    visit,
                    visits,
                    blocks: states(n, block, phase),
                    disk_read: Bytes(moved.0),
                    h2d: Bytes(moved.1),
                    vram_live: Some(Bytes(690_000_000 + 500_000 * step.min(100))),
                };
                tell!(EventKind::Progress(progress), seconds(&now));
            }
            times.push(pace.still(Phase::Update, 0, 0.5));
            at = began + times.iter().map(seconds).sum::<f64>();
            tell!(EventKind::Trace(StepTrace { step, visits: times.clone() }), 0.0);
            match self.fault {
                Fault::Error(s) if s == step => return Err(Error::run("the scripted engine failed as told")),
                Fault::Panic(s) if s == step => panic!("the scripted engine panicked as told"),
                Fault::Noise(s) if s == step => make_noise(),
                _ => {}
            }
            let bad = self.fault == Fault::Nan(step);
            let mut record = StepRecord {
                step,
                epoch: step as f64 / 20.0,
                metrics: Metrics::from([
                    (LOSS, if bad { f64::NAN } else { loss(step) }),
                    (GRAD_NORM, if bad { f64::NAN } else { 0.4 + 1.0 / step as f64 }),
                    (LEARNING_RATE, config.train.learning_rate * (1.0 - step as f64 / (steps + 1) as f64)),
                ]),
                tokens: TOKENS,
                trained_tokens: 900,
                skipped: bad,
                seconds: at - began,
                residency_peak: 13,
                ..StepRecord::default()
            };
            pace.sum_up(&mut record, &times);
            tell!(EventKind::Step(record), 0.0);
            if bad {
                tell!(notice(Level::Error, &format!("loss is not finite at step {step}: update skipped")), 0.0);
            }
            if config.train.save_steps > 0 && step % config.train.save_steps == 0 {
                tell!(saved(step, "checkpoint", run_dir), 0.05);
            }
            if config.train.eval_steps > 0 && step % config.train.eval_steps == 0 && step < steps {
                tell!(EventKind::Eval(eval(step)), 0.8);
            }
        }
        tell!(EventKind::Eval(eval(steps)), 0.8);
        tell!(saved(steps, "adapter", run_dir), 0.05);
        Ok(steps)
    }
}

pub(crate) fn lowest_trainable(config: &RunConfig, n: usize) -> usize {
    let trained = (config.lora.top_fraction.clamp(0.0, 1.0) * n as f64).ceil() as usize;
    n - trained.clamp(1, n.max(1)).min(n)
}

fn started(config: &RunConfig, run_id: &str, run_dir: &Path, n: usize, steps: u64) -> RunStarted {
    let dropped = BTreeMap::from([("no assistant turn".to_owned(), 2)]);
    RunStarted {
        schema: EVENT_SCHEMA,
        run_id: run_id.into(),
        run_dir: run_dir.into(),
        model: "SmolLM2-135M-Instruct".into(),
        mode: config.train.mode.name().into(),
        verdict: "LORA_DISK".into(),
        n_blocks: n,
        lowest_trainable: lowest_trainable(config, n),
        tiers: tiers(n),
        residency_planned: 13,
        steps_total: steps,
        steps_done: 0,
        micro_batches: config.train.gradient_accumulation_steps,
        device: "RTX 5050 laptop".into(),
        compute_dtype: "bf16".into(),
        attention: "sdpa-flash".into(),
        reader: "pread, O_DIRECT, 4 threads".into(),
        trainable_params: 921_600,
        data: DataFacts {
            format: "messages".into(),
            rows_used: 148,
            rows_eval: 16,
            dropped,
            truncated: 3,
            tokens: 41_872,
            trained_tokens: 18_911,
            sha256: "9f2c6a5b41d07e33c1".into(),
            template_date: "2026-11-29".into(),
        },
    }
}

/// The block being visited is active, the next two are on their way, VRAM blocks stay.
fn states(n: usize, block: usize, phase: Phase) -> Vec<BlockState> {
    let ahead = |k: usize| {
        if phase == Phase::Forward { block.checked_add(k) } else { block.checked_sub(k) }
    };
    let mut states: Vec<BlockState> = tiers(n)
        .into_iter()
        .map(|t| if t == TierName::Vram { BlockState::Resident } else { BlockState::Away })
        .collect();
    for (k, state) in [(1, BlockState::Resident), (2, BlockState::Copying), (3, BlockState::Reading)] {
        if let Some(s) = ahead(k).and_then(|i| states.get_mut(i))
            && *s == BlockState::Away
        {
            *s = state;
        }
    }
    states[block] = BlockState::Active;
    states
}

fn notice(level: Level, text: &str) -> EventKind {
    EventKind::Notice(Notice { level, text: text.into() })
}

fn saved(step: u64, what: &str, run_dir: &Path) -> EventKind {
    let name = if what == "adapter" { "adapter".to_owned() } else { format!("checkpoint-{step}") };
    EventKind::Saved(Saved { step, what: what.into(), path: run_dir.join(name), bytes: Bytes(3_690_000) })
}

/// What a driver does: writes to both descriptors without asking.
fn make_noise() {
    use std::io::Write;
    // Lost noise is no loss.
    let _ = rustix::io::write(rustix::stdio::stderr(), b"XXXX from a library on fd 2\n");
    let _ = rustix::io::write(rustix::stdio::stdout(), b"YYYY from a library on fd 1\n");
    let _ = std::io::stderr().flush();
}
