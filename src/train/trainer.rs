//! The training run: prepare, measure, step, save, measure again.

use super::bound::bound;
use super::optim::{self, AdamW};
use super::retry::with_halves;
use super::save::{self, Tensors, TrainerState};
use super::schedule::Schedule;
use super::telemetry::Telemetry;
use super::walk::{BlockWalk, QueuedStep, StepContext, StepLoss};
use crate::checkpoint::adapter::AdapterConfig;
use crate::clock::Clock;
use crate::data::collate::{Batch, micro_batches};
use crate::data::{Dataset, Row, Sampler};
use crate::device::{io, nvml, shim};
use crate::engine::{Control, Engine, EventSink, Job, Outcome, Stop};
use crate::error::{Error, Result};
use crate::event::{
    EvalRecord, EventKind, Level, Notice, Phase, RunStatus, Saved, StepRecord, StepTrace, StreamStats, VramFigures,
};
use crate::model::attention;
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
        let mut run = Run::open(job, sink.clone(), control.clone())?;
        run.train()
    }
}

pub(super) struct Run<'a> {
    pub(super) job: &'a Job,
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
    /// The next step, and its micro-batches.
    pub(super) next: Option<(u64, Vec<Batch>)>,
    /// Bytes that the workers had written at the last count.
    pub(super) written: Option<Bytes>,
}

impl Run<'_> {
    fn train(&mut self) -> Result<Outcome> {
        let train = &self.job.config.train;
        if self.state.global_step == 0 {
            self.evaluate()?;
        }
        let mut skipped_in_a_row = 0;
        self.written = io::written_by_workers(&io::RECORD_THREADS);
        while self.state.global_step < self.steps_total {
            if self.control.stop() != Stop::No || self.wait_while_paused() {
                break;
            }
            let record = match self.step() {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(self.outcome(RunStatus::Aborted)),
                // Nothing of this step has touched the adapter: what there is can be saved.
                Err(e) if e.is_out_of_memory() => {
                    self.save()?;
                    return Err(e);
                }
                Err(e) => return Err(e),
            };
            skipped_in_a_row = if record.skipped { skipped_in_a_row + 1 } else { 0 };
            self.state.log(&record);
            self.state.optimizer_updates = self.adam.updates;
            let step = record.step;
            self.sink.send(EventKind::Step(record));
            if skipped_in_a_row >= SKIPS_ALLOWED {
                return Err(Error::run(format!(
                    "{skipped_in_a_row} steps in a row had a loss or gradient that is not finite (last: step {step})"
                ))
                .next("lower learning_rate, or check the data near these rows; the last checkpoint stands"));
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
        if self.control.stop() == Stop::Now {
            return Ok(self.outcome(RunStatus::Aborted));
        }
        let finished = self.state.global_step >= self.steps_total;
        self.save()?;
        if finished {
            self.evaluate()?;
        }
        self.save_adapter()?;
        Ok(self.outcome(if finished { RunStatus::Finished } else { RunStatus::Stopped }))
    }

    /// One optimizer step; `None` when it was stopped at once in its middle.
    fn step(&mut self) -> Result<Option<StepRecord>> {
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
        let Some(queued) = self.walk_step(batches, context)? else { return Ok(None) };
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
        let StepLoss { loss, trained_tokens, tokens, mut grad } = queued.read();
        let norm = norm.double_value(&[]);
        let rate = self.schedule.rate(index);
        let skipped = trained_tokens == 0 || !loss.is_finite() || !norm.is_finite();
        if skipped {
            let why = if trained_tokens == 0 { "no token carries loss" } else { "loss or gradient is not finite" };
            notice(&self.sink, Level::Warn, format!("step {} skipped: {why}", index + 1));
        } else {
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
        let bound = bound(&snapshot.times, snapshot.disk_s);
        let visits = &snapshot.times.visits;
        let (stall_disk_s, compute_s) =
            (visits.iter().map(|v| v.wait_disk_s).sum(), visits.iter().map(|v| v.compute_s).sum());
        self.sink.send(EventKind::Trace(StepTrace { step: index + 1, visits: visits.clone() }));
        self.stats.h2d_s += snapshot.times.h2d_s;
        self.stats.stall_s += snapshot.times.stall_s;
        self.stats.evict_wait_s += snapshot.times.evict_wait_s;
        self.stats.resident_history = snapshot.history;
        self.residency_peak = self.residency_peak.max(snapshot.residency_peak);
        Ok(Some(StepRecord {
            step: index + 1,
            epoch: self.sampler.epoch(index + 1),
            loss,
            grad_norm: norm,
            learning_rate: rate,
            tokens,
            trained_tokens,
            skipped,
            seconds: self.clock.now() - begun,
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
        }))
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
        batches.map(padded).collect()
    }

    /// Loss and gradient of a step, in halves if the device runs out of memory; `None` when it was stopped at once.
    fn walk_step(&mut self, batches: Vec<Batch>, context: StepContext) -> Result<Option<QueuedStep>> {
        let (gpu, sink, step) = (self.gpu, self.sink.clone(), context.step + 1);
        let run = std::cell::RefCell::new(self);
        let (loss, _) = with_halves(
            batches,
            &mut |b| run.borrow_mut().stoppable(step, |walk, observe| walk.queue_step(b, context, observe)),
            &mut |rows| {
                if let Some(gpu) = gpu {
                    shim::synchronize(gpu)?;
                }
                run.borrow_mut().walk.abandon()?;
                shim::empty_cache();
                let text = format!("step {step}: out of device memory; tried again with {rows} row(s) at a time");
                notice(&sink, Level::Warn, text);
                Ok(())
            },
        )?;
        Ok(loss)
    }

    /// Runs a walk that a stop-at-once ends between blocks; `None` when it did.
    fn stoppable<T>(
        &mut self,
        step: u64,
        f: impl FnOnce(&mut BlockWalk, super::walk::Observer<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut aborted = false;
        let (control, telemetry) = (&self.control, &mut self.telemetry);
        let result = f(&mut self.walk, &mut |visit, streamer| {
            if control.stop() == Stop::Now {
                aborted = true;
                return Err(Error::run("stopped at once"));
            }
            telemetry.visit(step, visit, streamer);
            Ok(())
        });
        if aborted { Ok(None) } else { result.map(Some) }
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
            let Some((s, t)) = self.stoppable(step, |walk, observe| walk.evaluate(part, observe))? else {
                return Ok(());
            };
            sum += s;
            tokens += t;
        }
        self.walk.streamer.snapshot()?;
        let loss = if tokens == 0 { f64::NAN } else { sum / tokens as f64 };
        let seconds = self.clock.now() - begun;
        self.sink.send(EventKind::Eval(EvalRecord { step: self.state.global_step, loss, tokens, seconds }));
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        let to_host = |t: &Tensor| Ok::<_, Error>(Vec::<f32>::try_from(&t.to_device(Device::Cpu))?);
        let tensors =
            Tensors { params: self.walk.adapter.to_host()?, m: to_host(&self.adam.m)?, v: to_host(&self.adam.v)? };
        let layout = &self.walk.adapter.layout;
        let (path, bytes) = save::save(&self.job.run_dir, &self.adapter_config, layout, &tensors, &self.state)?;
        save::prune(&self.job.run_dir, self.job.config.train.save_total_limit);
        self.newest = Some(path.clone());
        // The run's own files are no bytes of a step.
        self.written = io::written_by_workers(&io::RECORD_THREADS);
        self.saved("checkpoint", path, bytes);
        Ok(())
    }

    fn save_adapter(&mut self) -> Result<()> {
        let adapter = &self.walk.adapter;
        let (path, bytes) =
            save::save_adapter(&self.job.run_dir, &self.adapter_config, &adapter.layout, &adapter.to_host()?)?;
        self.saved("adapter", path, bytes);
        Ok(())
    }

    fn saved(&self, what: &str, path: PathBuf, bytes: u64) {
        let step = self.state.global_step;
        self.sink.send(EventKind::Saved(Saved { step, what: what.into(), path, bytes: Bytes(bytes) }));
    }

    /// Waits while paused; true when a stop came meanwhile.
    fn wait_while_paused(&self) -> bool {
        if !self.control.paused() {
            return false;
        }
        let step = self.state.global_step;
        self.sink.send(EventKind::Paused { step });
        while self.control.paused() && self.control.stop() == Stop::No {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.sink.send(EventKind::Resumed { step });
        self.control.stop() != Stop::No
    }

    fn outcome(&mut self, status: RunStatus) -> Outcome {
        let memory = self.gpu.map(shim::memory).unwrap_or_default();
        // The allocator keeps what it reserved, so the figure at the end is the peak.
        let used = self.gpu.and_then(|_| self.gauges.sample().vram_used);
        let device = used.zip(self.vram_before).map(|(now, before)| now.saturating_sub(before));
        Outcome {
            status,
            step: self.state.global_step,
            checkpoint: self.newest.clone(),
            vram: VramFigures { live: Bytes(memory.allocated_peak), reserved: Bytes(memory.reserved_peak), device },
            stats: self.stats.clone(),
            residency_peak: self.residency_peak,
        }
    }
}

pub(super) fn notice(sink: &Arc<dyn EventSink>, level: Level, text: String) {
    sink.send(EventKind::Notice(Notice { level, text }));
}
