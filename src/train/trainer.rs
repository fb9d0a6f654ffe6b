//! The training run: prepare, measure, step, save, measure again.

use super::bound::bound;
use super::learned;
use super::optim::{self, AdamW};
use super::retry::{below, with_halves};
use super::save::{self, Tensors, TrainerState};
use super::schedule::Schedule;
use super::telemetry::{Stages, Telemetry};
use super::walk::{BlockWalk, QueuedStep, StepContext, StepLoss};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::adapter::{self, AdapterConfig};
use crate::clock::Clock;
use crate::data::collate::{Batch, micro_batches};
use crate::data::{Dataset, Row, Sampler};
use crate::device::{io, nvml, shim};
use crate::engine::{Control, Engine, EventSink, Job, Outcome, Stop};
use crate::error::{Error, ExitCode, Result};
use crate::event::{
    EvalRecord, EventKind, GRAD_NORM, LEARNING_RATE, Level, Notice, Phase, RunStatus, Saved, StepRecord, StepTrace,
    StreamStats, VramFigures,
};
use crate::model::attention;
use crate::panics;
use crate::units::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tch::{Device, Tensor};

/// Steps in a row that may be skipped for a loss or gradient that is not finite, before the run stops.
const SKIPS_ALLOWED: u32 = 3;

/// Trains a LoRA adapter on a streamed base.
#[derive(Debug, Default)]
pub struct Trainer;

impl Engine for Trainer {
    fn run(&mut self, job: &Job, sink: &Arc<dyn EventSink>, control: &Control) -> Result<Outcome> {
        match Run::open(job, sink.clone(), control.clone()) {
            Ok(mut run) => Ok(run.train()),
            // Nothing was begun: what it was to resume from is all there is.
            Err(e) if e.is_stop() => Ok(Outcome {
                status: RunStatus::Stopped,
                reason: None,
                refused: false,
                step: job.resume.as_ref().and_then(|r| save::step_of(&r.checkpoint)).unwrap_or(0),
                checkpoint: job.resume.as_ref().map(|r| r.checkpoint.clone()),
                vram: VramFigures::default(),
                stats: StreamStats::default(),
                residency_peak: 0,
            }),
            Err(e) => Err(e),
        }
    }
}

pub(super) struct Run<'a> {
    pub(super) job: &'a Job,
    /// The base, opened once.
    pub(super) checkpoint: Checkpoint,
    pub(super) sink: Arc<dyn EventSink>,
    pub(super) control: Control,
    pub(super) clock: Clock,
    pub(super) data: Dataset,
    pub(super) sampler: Sampler,
    pub(super) schedule: Schedule,
    pub(super) walk: BlockWalk,
    pub(super) adam: AdamW,
    pub(super) adapter_config: AdapterConfig,
    pub(super) state: TrainerState,
    pub(super) steps_total: u64,
    pub(super) telemetry: Telemetry,
    pub(super) stats: StreamStats,
    pub(super) residency_peak: usize,
    pub(super) gpu: Option<usize>,
    pub(super) gauges: nvml::Sampler,
    /// NVML's used memory before CUDA started.
    pub(super) vram_before: Option<Bytes>,
    /// Newest checkpoint written by this run or resumed from.
    pub(super) newest: Option<PathBuf>,
    /// The step that `newest` holds.
    pub(super) saved_step: Option<u64>,
    /// Adapter, moments and `state` are of one step: false from the first change of an update to its log.
    pub(super) whole: bool,
    /// The next step, and its micro-batches.
    pub(super) next: Option<(u64, Vec<Batch>)>,
    /// Tokens of the smallest micro-batch that device memory was too small for in this run.
    pub(super) too_large: usize,
    /// Bytes that the workers had written at the last count.
    pub(super) written: Option<Bytes>,
}

impl Run<'_> {
    /// Trains to the end, a stop, an error or a panic, and closes the run.
    fn train(&mut self) -> Outcome {
        let ended = caught(|| self.steps());
        self.close(ended)
    }

    fn steps(&mut self) -> Result<()> {
        let train = &self.job.config.train;
        if self.state.global_step == 0 {
            self.evaluate()?;
        }
        let mut skipped_in_a_row = 0;
        self.written = io::written_by_workers(&io::RECORD_THREADS);
        while self.state.global_step < self.steps_total {
            self.wait_while_paused();
            self.control.check(Stop::AfterStep)?;
            let record = self.step()?;
            skipped_in_a_row = if record.skipped { skipped_in_a_row + 1 } else { 0 };
            self.state.log(&record);
            self.state.optimizer_updates = self.adam.updates;
            self.whole = true;
            let step = record.step;
            self.sink.send(EventKind::Step(record));
            if skipped_in_a_row >= SKIPS_ALLOWED {
                return Err(self.why_skipped(format!(
                    "{skipped_in_a_row} steps in a row had a loss or gradient that is not finite (last: step {step})"
                )));
            }
            let total = self.steps_total;
            let due = |every: u64| every > 0 && step.is_multiple_of(every) && step < total;
            if due(train.eval_steps) {
                self.evaluate()?;
            }
            if due(train.save_steps) || self.control.take_save() {
                self.save()?;
            }
        }
        self.control.check(Stop::AtOnce)?;
        if self.adam.updates == 0 {
            return Err(self.why_skipped(format!("nothing was learned: all {} steps were skipped", self.steps_total)));
        }
        self.save_once()?;
        self.evaluate()
    }

    /// The error of a run whose steps are skipped, `what`. An adapter that changes nothing yet can't be at fault: then
    /// the base is looked through.
    fn why_skipped(&mut self, what: String) -> Error {
        let sink = self.sink.clone();
        let mut stage = Stages::new(sink.as_ref());
        let control = self.control.clone();
        let mut told = |done, total| {
            stage.bytes("looking for weights that are not finite", done, total);
            control.check(Stop::AfterStep)
        };
        let looked = (|| {
            if self.changes_something(&self.walk.adapter.to_host()?) {
                return Ok(None);
            }
            self.walk.abandon()?;
            learned::fault_of_base(&self.checkpoint, self.walk.streamer.reader(), &what, &mut told).map(Some)
        })();
        match looked {
            Ok(Some(fault)) => fault,
            // What keeps it from being looked for is no reason of the run's.
            Ok(None) | Err(_) => Error::run(what).next("lower learning_rate, or check the data near these rows"),
        }
    }

    /// The one end of a run, whatever ended it: saves the last whole step unless that was declined or the state is not
    /// whole, and says what lies in the folder.
    fn close(&mut self, ended: Result<()>) -> Outcome {
        let done = self.state.global_step >= self.steps_total;
        let refused = ended.as_ref().is_err_and(|e| e.exit_code() == ExitCode::Usage);
        let (mut status, mut reason) = match ended {
            Ok(()) => (RunStatus::Finished, None),
            Err(e) if e.is_stop() && self.control.stop() == Stop::AtOnce => (RunStatus::Aborted, None),
            Err(e) if e.is_stop() && done => (RunStatus::Finished, None),
            Err(e) if e.is_stop() => (RunStatus::Stopped, None),
            Err(e) => (RunStatus::Failed, Some(e.to_string())),
        };
        if status != RunStatus::Aborted && self.whole && self.state.global_step > 0 {
            let finished = status == RunStatus::Finished;
            let saved = caught(|| {
                self.save_once()?;
                self.save_adapter(finished)
            });
            match saved {
                Err(e) if e.is_stop() => status = RunStatus::Aborted,
                Err(e) => {
                    let text = format!("step {} could not be saved: {e}", self.state.global_step);
                    // What ended the run may have been this save.
                    let why = reason.filter(|why| *why != e.to_string());
                    reason = Some(why.map_or(text.clone(), |why| format!("{why}; {text}")));
                    status = RunStatus::Failed;
                }
                Ok(()) => {}
            }
        }
        Outcome { reason, refused, ..self.outcome(status) }
    }

    /// One optimizer step. An error before its update, or a stop that drops it, leaves adapter and moments as they were.
    fn step(&mut self) -> Result<StepRecord> {
        let train = &self.job.config.train;
        let index = self.state.global_step;
        let begun = self.clock.now();
        let before = (self.walk.streamer.totals(), self.walk.boundaries.moved());
        let batches = match self.next.take() {
            Some((step, batches)) if step == index => batches,
            _ => self.batches_of(index),
        };
        let due_eval = train.eval_steps > 0 && (index + 1).is_multiple_of(train.eval_steps);
        let more = index + 1 < self.steps_total && !due_eval;
        let context = StepContext { step: index, seed: train.seed, more };
        let queued = self.walk_step(batches, context)?;
        self.walk.streamer.begin(Phase::Update, 0)?;
        let norm = optim::queue_norm(&queued.grad);
        // While the device computes, so that it waits for none of this between steps: what the next step needs from the
        // host, and the count of bytes written, which reads a file for each thread.
        let count = || io::written_by_workers(&io::RECORD_THREADS);
        let mut counted = None;
        if more {
            let next = self.batches_of(index + 1);
            self.walk.prepare(&next)?;
            self.next = Some((index + 1, next));
            counted = Some(count());
        }
        if let Some(why) = attention::refusal() {
            notice(&self.sink, Level::Warn, format!("long rows go through flash attention, which is slower: {why}"));
        }
        let step = queued.read()?;
        let loss = step.loss();
        let StepLoss { mut metrics, trained_tokens, tokens, mut grad } = step;
        let norm = norm.double_value(&[]);
        let rate = self.schedule.rate(index);
        // Before the update: a step over files that changed in its middle counts for nothing.
        self.walk.streamer.check_files()?;
        metrics.extend([(GRAD_NORM, norm), (LEARNING_RATE, rate)]);
        let skipped = trained_tokens == 0 || !loss.is_finite() || !norm.is_finite();
        if skipped {
            let why = if trained_tokens == 0 { "no token carries loss" } else { "loss or gradient is not finite" };
            notice(&self.sink, Level::Warn, format!("step {} skipped: {why}", index + 1));
        } else {
            self.whole = false;
            optim::clip(&mut grad, norm, train.max_grad_norm);
            self.adam.update(&mut self.walk.adapter.flat, &grad, rate)?;
            self.walk.adapter.refresh();
        }
        drop(grad);
        if let Some(gpu) = self.gpu {
            shim::synchronize(gpu)?;
        }
        let snapshot = self.walk.streamer.snapshot()?;
        let written = counted.unwrap_or_else(count);
        let written_before = std::mem::replace(&mut self.written, written);
        let after = (self.walk.streamer.totals(), self.walk.boundaries.moved());
        let seconds = self.clock.now() - begun;
        let bound = bound(&snapshot.times, snapshot.disk_s, seconds);
        let visits = &snapshot.times.visits;
        let (stall_disk_s, compute_s) =
            (visits.iter().map(|v| v.wait_disk_s).sum(), visits.iter().map(|v| v.compute_s).sum());
        self.sink.send(EventKind::Trace(StepTrace { step: index + 1, visits: visits.clone() }));
        self.stats.h2d_s += snapshot.times.h2d_s;
        self.stats.stall_s += snapshot.times.stall_s;
        self.stats.evict_wait_s += snapshot.times.evict_wait_s;
        self.stats.resident_history = snapshot.history;
        self.residency_peak = self.residency_peak.max(snapshot.residency_peak);
        Ok(StepRecord {
            step: index + 1,
            epoch: self.sampler.epoch(index + 1),
            metrics,
            tokens,
            trained_tokens,
            skipped,
            seconds,
            disk_read: after.0.disk_read - before.0.disk_read,
            h2d: after.0.h2d - before.0.h2d + (after.1.1 - before.1.1),
            d2h: after.1.0 - before.1.0,
            model_drive_written: written.unwrap_or_default().saturating_sub(written_before.unwrap_or_default()),
            h2d_s: snapshot.times.h2d_s,
            disk_s: snapshot.disk_s,
            stall_s: snapshot.times.stall_s,
            evict_wait_s: snapshot.times.evict_wait_s,
            stall_disk_s,
            compute_s,
            bound_s: bound.seconds,
            bound_by: bound.by.into(),
            residency_peak: snapshot.residency_peak,
        })
    }

    /// The micro-batches of `step`. Costs a permutation of all rows.
    fn batches_of(&self, step: u64) -> Vec<Batch> {
        let rows: Vec<&Row> = self.sampler.rows(step).into_iter().map(|i| &self.data.train[i]).collect();
        self.batches(&rows)
    }

    /// `rows` in micro-batches, as long as the kernels like them.
    fn batches(&self, rows: &[&Row]) -> Vec<Batch> {
        let (config, walk) = (&self.job.config, &self.walk);
        let batches = micro_batches(rows, config.train.per_device_train_batch_size).into_iter();
        let padded = |b: Batch| {
            let len = walk.row_length(b.len, config.data.max_length);
            b.padded(len)
        };
        below(self.too_large, batches.map(padded).collect())
    }

    /// Loss and gradient of a step, in halves if the device runs out of memory.
    fn walk_step(&mut self, batches: Vec<Batch>, context: StepContext) -> Result<QueuedStep> {
        let (gpu, sink, step) = (self.gpu, self.sink.clone(), context.step + 1);
        let run = std::cell::RefCell::new(self);
        with_halves(
            batches,
            &mut |b| {
                run.borrow_mut().stoppable(Stop::DropStep, step, |walk, observe| walk.queue_step(b, context, observe))
            },
            &mut |rows, failed| {
                if let Some(gpu) = gpu {
                    shim::synchronize(gpu)?;
                }
                let mut run = run.borrow_mut();
                run.walk.abandon()?;
                run.too_large = run.too_large.min(failed);
                shim::empty_cache();
                let text = format!(
                    "step {step}: out of device memory; tried again with {rows} row(s) at a time, and so from here on"
                );
                notice(&sink, Level::Warn, text);
                Ok(())
            },
        )
    }

    /// Runs a walk that a stop of `strength` ends, in a visit too.
    fn stoppable<T>(
        &mut self,
        strength: Stop,
        step: u64,
        f: impl FnOnce(&mut BlockWalk, super::walk::Observer<'_>) -> Result<T>,
    ) -> Result<T> {
        self.walk.streamer.heed(strength);
        let (control, telemetry) = (&self.control, &mut self.telemetry);
        f(&mut self.walk, &mut |visit, streamer| {
            control.check(strength)?;
            telemetry.visit(step, visit, streamer);
            Ok(())
        })
    }

    /// Held-out loss over all held-out rows, in groups that hold no more activations than a training step does.
    fn evaluate(&mut self) -> Result<()> {
        if self.data.eval.is_empty() {
            return Ok(());
        }
        let train = &self.job.config.train;
        let begun = self.clock.now();
        let rows: Vec<&Row> = self.data.eval.iter().collect();
        let batches = self.batches(&rows);
        // With inputs in host memory a training step holds four sets of them.
        let sets = match self.job.plan.modes.lora.stream.offload {
            true => 4,
            false => self.walk.arch.n_layers - self.walk.adapter.layout.lowest,
        };
        let group = (train.gradient_accumulation_steps * sets).max(1);
        let (mut sum, mut tokens) = (0.0, 0);
        for part in batches.chunks(group) {
            let part: &[Batch] = part;
            let step = self.state.global_step;
            let (s, t) = self.stoppable(Stop::AfterStep, step, |walk, observe| walk.evaluate(part, observe))?;
            sum += s;
            tokens += t;
        }
        self.walk.streamer.check_files()?;
        self.walk.streamer.snapshot()?;
        let loss = if tokens == 0 { f64::NAN } else { sum / tokens as f64 };
        let seconds = self.clock.now() - begun;
        self.sink.send(EventKind::Eval(EvalRecord { step: self.state.global_step, loss, tokens, seconds }));
        Ok(())
    }

    /// Saves the last whole step, unless a checkpoint holds it already.
    fn save_once(&mut self) -> Result<()> {
        if self.saved_step == Some(self.state.global_step) { Ok(()) } else { self.save() }
    }

    fn save(&mut self) -> Result<()> {
        let to_host = |t: &Tensor| Ok::<_, Error>(Vec::<f32>::try_from(&t.to_device(Device::Cpu))?);
        let tensors =
            Tensors { params: self.walk.adapter.to_host()?, m: to_host(&self.adam.m)?, v: to_host(&self.adam.v)? };
        let layout = &self.walk.adapter.layout;
        let step = self.state.global_step;
        let (mut stage, control) = (Stages::new(self.sink.as_ref()), &self.control);
        let (name, mut done) = (format!("saving checkpoint-{step}"), 0);
        let total = 4 * (tensors.params.len() + tensors.m.len() + tensors.v.len()) as u64;
        stage.long(&name, 0, total);
        let mut told = |n| {
            done += n;
            // While files are hashed nothing is added: such a piece only asks whether to stop.
            if n > 0 {
                stage.long(&name, done.min(total), total);
            }
            control.check(Stop::AtOnce)
        };
        let (path, bytes) =
            save::save(&self.job.run_dir, &self.adapter_config, layout, &tensors, &self.state, &mut told)?;
        save::prune(&self.job.run_dir, self.job.config.train.save_total_limit, &path);
        (self.newest, self.saved_step) = (Some(path.clone()), Some(self.state.global_step));
        // The run's own files are no bytes of a step.
        self.written = io::written_by_workers(&io::RECORD_THREADS);
        self.saved("checkpoint", path, bytes);
        Ok(())
    }

    fn changes_something(&self, params: &[f32]) -> bool {
        adapter::changes_something(&self.walk.adapter.layout.to_peft(params))
    }

    /// Writes the run's adapter. Of a run that has `finished`, one that changes nothing is worth a warning.
    fn save_adapter(&mut self, finished: bool) -> Result<()> {
        let adapter = &self.walk.adapter;
        let params = adapter.to_host()?;
        let (mut stage, total) = (Stages::new(self.sink.as_ref()), 4 * params.len() as u64);
        stage.long("saving the adapter", 0, total);
        let (path, bytes) = save::save_adapter(&self.job.run_dir, &self.adapter_config, &adapter.layout, &params)?;
        stage.long("saving the adapter", total, total);
        if finished && !self.changes_something(&params) {
            let text =
                "the adapter changes nothing: all of its lora_B is zero; train more steps, or raise learning_rate";
            notice(&self.sink, Level::Warn, text.into());
        }
        self.saved("adapter", path, bytes);
        Ok(())
    }

    fn saved(&self, what: &str, path: PathBuf, bytes: u64) {
        let step = self.state.global_step;
        self.sink.send(EventKind::Saved(Saved { step, what: what.into(), path, bytes: Bytes(bytes) }));
    }

    /// Waits while paused, until a stop comes.
    fn wait_while_paused(&self) {
        if !self.control.paused() {
            return;
        }
        let step = self.state.global_step;
        self.sink.send(EventKind::Paused { step });
        while self.control.paused() && self.control.stop() == Stop::No {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.sink.send(EventKind::Resumed { step });
    }

    fn outcome(&mut self, status: RunStatus) -> Outcome {
        let memory = self.gpu.map(shim::memory).unwrap_or_default();
        // The allocator keeps what it reserved, so the figure at the end is the peak.
        let used = self.gpu.and_then(|_| self.gauges.sample().vram_used);
        let device = used.zip(self.vram_before).map(|(now, before)| now.saturating_sub(before));
        Outcome {
            status,
            reason: None,
            refused: false,
            step: self.state.global_step,
            checkpoint: self.newest.clone().filter(|c| c.join("checkpoint.json").is_file()),
            vram: VramFigures { live: Bytes(memory.allocated_peak), reserved: Bytes(memory.reserved_peak), device },
            stats: self.stats.clone(),
            residency_peak: self.residency_peak,
        }
    }
}

/// Runs `work`; a panic in it is an error.
fn caught(work: impl FnOnce() -> Result<()>) -> Result<()> {
    panics::caught("the trainer", work).flatten()
}

pub(super) fn notice(sink: &Arc<dyn EventSink>, level: Level, text: String) {
    sink.send(EventKind::Notice(Notice { level, text }));
}
