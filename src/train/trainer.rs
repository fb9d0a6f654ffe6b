//! The training run: prepare, measure, step, save, measure again.

use super::bound::bound;
use super::optim::{self, AdamW};
use super::retry::with_halves;
use super::save::{self, Tensors, TrainerState};
use super::schedule::Schedule;
use super::telemetry::Telemetry;
use super::walk::{BlockWalk, QueuedStep, StepContext, StepLoss};
use crate::checkpoint::adapter::{self, AdapterConfig};
use crate::checkpoint::{self, Checkpoint};
use crate::clock::Clock;
use crate::data::collate::{Batch, micro_batches};
use crate::data::{self, Dataset, Row, Sampler};
use crate::device::{io, nvml, shim};
use crate::engine::{Control, Engine, EventSink, Job, Outcome, Stop};
use crate::error::{Error, Result};
use crate::event::{
    EVENT_SCHEMA, EvalRecord, EventKind, Level, Notice, Phase, RunStarted, RunStatus, Saved, Stage, StepRecord,
    StepTrace, StreamStats, VramFigures,
};
use crate::model::{Adapter, AdapterLayout, Kernels, Residents, attention, compute_kind, kind_name};
use crate::plan::{ModePlan, lowest_trainable};
use crate::store::Reader;
use crate::stream::{Boundaries, StreamSetup, Streamer};
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

struct Run<'a> {
    job: &'a Job,
    sink: Arc<dyn EventSink>,
    control: Control,
    clock: Clock,
    data: Dataset,
    sampler: Sampler,
    schedule: Schedule,
    walk: BlockWalk,
    adam: AdamW,
    adapter_config: AdapterConfig,
    state: TrainerState,
    steps_total: u64,
    telemetry: Telemetry,
    stats: StreamStats,
    residency_peak: usize,
    gpu: Option<usize>,
    gauges: nvml::Sampler,
    /// NVML's used memory before CUDA started.
    vram_before: Option<Bytes>,
    /// Newest checkpoint written by this run or resumed from.
    newest: Option<PathBuf>,
}

impl<'a> Run<'a> {
    fn open(job: &'a Job, sink: Arc<dyn EventSink>, control: Control) -> Result<Run<'a>> {
        let config = &job.config;
        let plan = &job.plan.modes.lora;
        let checkpoint = checkpoint::open(&checkpoint::resolve(&config.model.path)?)?;
        if checkpoint.not_here {
            return Err(Error::checkpoint(format!("the weights of '{}' are not on this machine", checkpoint.name))
                .next("download them first; headers alone are enough only for `plan`"));
        }
        let uuid = job.plan.machine.gpu.as_ref().and_then(|g| g.uuid.clone());
        let mut gauges = nvml::Sampler::new(uuid.as_deref());
        let vram_before = gauges.sample().vram_used;
        let device = choose_device(&config.train.device, job.plan.machine.gpu.is_some())?;
        shim::set_deterministic(config.train.deterministic);
        let kind = compute_kind(&checkpoint, device);
        let layout = AdapterLayout::new(&checkpoint, &config.lora)?;

        let to_stage = |s: Stage| sink.send(EventKind::Stage(s));
        let restored = job.resume.as_deref().map(|dir| save::load(dir, &layout)).transpose()?;
        let date = restored.as_ref().map(|(_, old)| old.template_date.as_str()).filter(|d| !d.is_empty());
        let data = match date {
            Some(date) => data::prepare_dated(config, &checkpoint, date, &mut |s| to_stage(s))?,
            None => data::prepare(config, &checkpoint, &mut |s| to_stage(s))?,
        };
        let rows_per_step = config.train.per_device_train_batch_size * config.train.gradient_accumulation_steps;
        let sampler = Sampler { n_rows: data.train.len(), rows_per_step, seed: config.train.seed };
        let steps_total = match config.train.max_steps {
            0 => (data.train.len() as f64 * config.train.num_train_epochs / rows_per_step as f64).ceil() as u64,
            n => n,
        };

        let mut state = TrainerState {
            max_steps: steps_total,
            seed: config.train.seed,
            base_fingerprint: checkpoint.fingerprint.clone(),
            data_sha256: data.facts.sha256.clone(),
            rows_per_step,
            template_date: data.facts.template_date.clone(),
            ..TrainerState::default()
        };
        let params = match (&restored, &config.lora.init_from) {
            (Some((t, _)), _) => t.params.clone(),
            (None, Some(dir)) => layout.from_peft(&adapter::read(dir)?.1)?,
            (None, None) => layout.init(config.train.seed),
        };
        if let Some((_, old)) = &restored {
            for line in check_resume(old, &state)? {
                notice(&sink, Level::Warn, line);
            }
            state = TrainerState { max_steps: steps_total, ..old.clone() };
        }

        let reader = Reader::open(&checkpoint, Duration::ZERO)?;
        let facts = RunFacts { job, checkpoint: &checkpoint, device, kind, layout: &layout, data: &data };
        sink.send(EventKind::Started(facts.started(plan, state.global_step, steps_total, reader.describe())));
        for text in checkpoint.notes.iter().chain(&data.notes) {
            notice(&sink, Level::Info, text.clone());
        }

        #[cfg(feature = "cuda")]
        let cuda = match device {
            Device::Cuda(i) => Some(Arc::new(crate::device::cuda::Gpu::open(i)?)),
            _ => None,
        };
        let setup = StreamSetup {
            #[cfg(feature = "cuda")]
            gpu: cuda.clone(),
            ..StreamSetup::of(plan, &config.stream)
        };
        let mut stage = Stages { sink: sink.as_ref(), last: 0 };
        let streamer =
            Streamer::new(&checkpoint, reader, &setup, &mut |d, t| stage.bytes("loading the RAM tier", d, t))?;
        if device.is_cuda() && !streamer.is_pinned() {
            notice(&sink, Level::Warn, "host memory is pageable: copies are slower than planned".into());
        }
        let with_head = plan.stream.head.is_none();
        let residents = Residents::load(&checkpoint, streamer.reader(), kind, device, with_head, &mut |d, t| {
            stage.bytes("loading head and embedding", d, t);
        })?;
        #[cfg(feature = "cuda")]
        let residents = match &cuda {
            Some(gpu) => residents.with_gpu(gpu.clone()),
            None => residents,
        };
        let adapter_config = adapter_config(job, &checkpoint);
        let adapter = Adapter::new(layout, &params, kind, device);
        let mut adam = AdamW::new(&adapter.flat, config.train.weight_decay);
        if let Some((t, old)) = &restored {
            adam.m = Tensor::from_slice(&t.m).to_device(device);
            adam.v = Tensor::from_slice(&t.v).to_device(device);
            adam.updates = old.optimizer_updates;
        }
        let loss_chunk = config.stream.loss_chunk;
        let gpu = if let Device::Cuda(i) = device { Some(i) } else { None };
        let mut walk = BlockWalk::new(&checkpoint, residents, adapter, streamer, kind, loss_chunk);
        walk.mlp_chunk = plan.stream.mlp_chunk;
        if plan.stream.offload {
            let t = &config.train;
            let (micro, tokens) =
                (t.gradient_accumulation_steps, t.per_device_train_batch_size * config.data.max_length);
            let bytes = (tokens * checkpoint.arch.hidden * kind.elt_size_in_bytes()) as u64;
            let blocks = checkpoint.blocks.len() - walk.adapter.layout.lowest;
            walk.boundaries = {
                #[cfg(feature = "cuda")]
                match &cuda {
                    Some(gpu) => Boundaries::offloaded_from(gpu.clone(), blocks, micro, bytes)?,
                    None => Boundaries::offloaded(blocks, micro, bytes)?,
                }
                #[cfg(not(feature = "cuda"))]
                Boundaries::offloaded(blocks, micro, bytes)?
            };
        }
        if device.is_cuda() && !walk.kernels.is_fused() {
            notice(&sink, Level::Warn, format!("kernels: {}; steps are slower", walk.kernels.describe()));
        }
        Ok(Run {
            telemetry: Telemetry::new(sink.clone(), walk.visits(), walk.arch.n_layers, gpu),
            job,
            sink,
            control,
            clock: Clock::real(),
            data,
            sampler,
            schedule: Schedule::new(&config.train, steps_total)?,
            walk,
            adam,
            adapter_config,
            state,
            steps_total,
            stats: StreamStats::default(),
            residency_peak: 0,
            gpu,
            gauges,
            vram_before,
            newest: job.resume.clone(),
        })
    }

    fn train(&mut self) -> Result<Outcome> {
        let train = &self.job.config.train;
        if self.state.global_step == 0 {
            self.evaluate()?;
        }
        let mut skipped_in_a_row = 0;
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
        let before =
            (self.walk.streamer.totals(), self.walk.boundaries.moved(), io::written_by_workers(&io::RECORD_THREADS));
        let rows: Vec<&Row> = self.sampler.rows(index).into_iter().map(|i| &self.data.train[i]).collect();
        let batches = micro_batches(&rows, train.per_device_train_batch_size);
        let due_eval = train.eval_steps > 0 && (index + 1).is_multiple_of(train.eval_steps);
        let more = index + 1 < self.steps_total && !due_eval;
        let context = StepContext { step: index, seed: train.seed, more };
        let Some(queued) = self.walk_step(batches, context)? else { return Ok(None) };
        self.walk.streamer.begin(Phase::Update, 0)?;
        let norm = optim::queue_norm(&queued.grad);
        if more {
            // While the device computes: what the next step needs from the host.
            let rows: Vec<&Row> = self.sampler.rows(index + 1).into_iter().map(|i| &self.data.train[i]).collect();
            self.walk.prepare(&micro_batches(&rows, train.per_device_train_batch_size))?;
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
        let after =
            (self.walk.streamer.totals(), self.walk.boundaries.moved(), io::written_by_workers(&io::RECORD_THREADS));
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
            model_drive_written: after.2.unwrap_or_default().saturating_sub(before.2.unwrap_or_default()),
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
        let batches = micro_batches(&rows, train.per_device_train_batch_size);
        let trainable = self.walk.arch.n_layers - self.walk.adapter.layout.lowest;
        let group = (train.gradient_accumulation_steps * trainable).max(1);
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

/// Stage events at most every 64 MB, and always the last one.
struct Stages<'a> {
    sink: &'a dyn EventSink,
    last: u64,
}

impl Stages<'_> {
    fn bytes(&mut self, name: &str, done: u64, total: u64) {
        if done >= total || done.saturating_sub(self.last) >= 64_000_000 || done < self.last {
            self.last = done;
            self.sink.send(EventKind::Stage(Stage { name: name.into(), done, total, unit: "bytes".into() }));
        }
    }
}

fn notice(sink: &Arc<dyn EventSink>, level: Level, text: String) {
    sink.send(EventKind::Notice(Notice { level, text }));
}

/// `auto` takes a GPU when libtorch can use one and the plan was made for one.
fn choose_device(wanted: &str, planned_gpu: bool) -> Result<Device> {
    match (wanted, shim::init(), planned_gpu) {
        ("cpu", _, _) | ("auto", _, false) => Ok(Device::Cpu),
        (_, Ok(()), _) => Ok(Device::Cuda(0)),
        (_, Err(why), _) => Err(Error::device(format!("no GPU to train on: {why}"))
            .next("install a driver ≥ 580, or set train.device = \"cpu\"")),
    }
}

/// What may not differ on resume is an error; what may is a line for the log.
fn check_resume(old: &TrainerState, new: &TrainerState) -> Result<Vec<String>> {
    if old.base_fingerprint != new.base_fingerprint {
        return Err(Error::checkpoint("the base checkpoint is not the one this run was started on")
            .next("restore its files, or start a new run with lora.init_from = the run's adapter"));
    }
    if (old.seed, old.rows_per_step) != (new.seed, new.rows_per_step) {
        return Err(Error::usage("seed or batch size differ from the run being resumed; its curve could not continue")
            .next("use the run's own config"));
    }
    let mut lines = Vec::new();
    if old.data_sha256 != new.data_sha256 {
        lines
            .push("the data files have changed since this run was started: the curve will not continue exactly".into());
    }
    if old.max_steps != new.max_steps {
        lines.push(format!(
            "the run was planned for {} steps and now has {}: the learning-rate schedule is stretched over all {}",
            old.max_steps, new.max_steps, new.max_steps
        ));
    }
    Ok(lines)
}

fn adapter_config(job: &Job, checkpoint: &Checkpoint) -> AdapterConfig {
    let (config, lora) = (&job.config, &job.config.lora);
    let n = checkpoint.blocks.len();
    let lowest = lowest_trainable(n, lora.top_fraction);
    let mut targets: Vec<String> = lora.targets.clone();
    if targets.iter().any(|t| t == "all-linear") {
        targets = crate::checkpoint::Role::ALL.iter().filter_map(|r| r.lora_target()).map(String::from).collect();
    }
    let (asked, hub_id, revision) =
        (config.model.name.as_deref(), checkpoint.hub_id.as_deref(), checkpoint.revision.as_deref());
    let (name, revision) = adapter::base_name(asked, hub_id, revision, &checkpoint.dir);
    AdapterConfig {
        base_model_name_or_path: name,
        revision,
        r: lora.r,
        lora_alpha: lora.alpha,
        lora_dropout: lora.dropout,
        use_rslora: lora.rslora,
        target_modules: targets,
        layers_to_transform: (lowest > 0).then(|| (lowest..n).collect()),
    }
}

/// What the start event tells of.
struct RunFacts<'a> {
    job: &'a Job,
    checkpoint: &'a Checkpoint,
    device: Device,
    kind: tch::Kind,
    layout: &'a AdapterLayout,
    data: &'a Dataset,
}

impl RunFacts<'_> {
    fn started(&self, plan: &ModePlan, steps_done: u64, steps_total: u64, reader: String) -> RunStarted {
        let windowed = self.checkpoint.arch.windows.iter().any(Option::is_some);
        let device = match (&self.job.plan.machine.gpu, self.device) {
            (Some(g), Device::Cuda(_)) => g.name.clone(),
            (None, Device::Cuda(_)) => "cuda".into(),
            _ => "cpu".into(),
        };
        RunStarted {
            schema: EVENT_SCHEMA,
            run_id: self.job.run_id.clone(),
            run_dir: self.job.run_dir.clone(),
            model: self.checkpoint.name.clone(),
            mode: self.job.config.train.mode.clone(),
            verdict: plan.verdict.word().into(),
            n_blocks: self.checkpoint.blocks.len(),
            lowest_trainable: self.layout.lowest,
            tiers: plan.placement.iter().map(|p| p.tier).collect(),
            residency_planned: plan.residency,
            steps_total,
            steps_done,
            micro_batches: self.job.config.train.gradient_accumulation_steps,
            device,
            compute_dtype: kind_name(self.kind).into(),
            attention: attention::kernel_name(
                Kernels::of(self.device),
                self.kind,
                self.checkpoint.arch.head_dim,
                self.device.is_cuda(),
                windowed,
            )
            .into(),
            reader,
            trainable_params: self.layout.params(),
            data: self.data.facts.clone(),
        }
    }
}
