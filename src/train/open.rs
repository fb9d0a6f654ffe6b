//! Opening a run: checkpoint, data, plan and device become a walk that can step.

use super::apart::apart;
use super::objective;
use super::optim::AdamW;
use super::resume;
use super::save::{self, Tensors, TrainerState};
use super::schedule::Schedule;
use super::telemetry::{Stages, Telemetry};
use super::trainer::{Run, notice};
use super::walk::BlockWalk;
use crate::checkpoint::adapter::{self, AdapterConfig};
use crate::checkpoint::{self, Checkpoint};
use crate::clock::Clock;
use crate::config::resume::settings;
use crate::config::{DeviceChoice, LoraSection};
use crate::data::{self, Dataset, Sampler};
use crate::device::{nvml, shim};
use crate::engine::{Control, EventSink, Job, Stop};
use crate::error::{Error, Result};
use crate::event::{EVENT_SCHEMA, EventKind, Level, RunStarted, StreamStats};
use crate::model::{Adapter, AdapterLayout, Kernels, Residents, compute_kind, kind_name};
use crate::plan::{ModePlan, lowest_trainable, past_positions};
use crate::store::Reader;
use crate::stream::{StreamSetup, Streamer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tch::{Device, Tensor};

impl<'a> Run<'a> {
    pub(super) fn open(job: &'a Job, sink: Arc<dyn EventSink>, control: Control) -> Result<Run<'a>> {
        let config = &job.config;
        let plan = &job.plan.modes.lora;
        let checkpoint = checkpoint::open(&checkpoint::resolve(&config.model.path)?)?;
        checkpoint.runnable()?;
        let uuid = job.plan.machine.gpu.as_ref().and_then(|g| g.uuid.clone());
        let mut gauges = nvml::Sampler::new(uuid.as_deref());
        let vram_before = gauges.sample().vram_used;
        let device = choose_device(config.train.device, job.plan.machine.gpu.is_some())?;
        shim::set_deterministic(config.train.deterministic);
        let kind = compute_kind(&checkpoint, device);
        let stop = || control.check(Stop::AfterStep);
        let rows_per_step = config.train.per_device_train_batch_size * config.train.gradient_accumulation_steps;
        let mut state = TrainerState {
            seed: config.train.seed,
            base_fingerprint: checkpoint.fingerprint.clone(),
            rows_per_step,
            settings: settings(config),
            ..TrainerState::default()
        };
        let old = job.resume.as_ref().map(|r| save::state(&r.checkpoint, &stop)).transpose()?;
        let force = job.resume.as_ref().is_some_and(|r| r.force);
        let told = |lines: Vec<resume::Line>| lines.into_iter().for_each(|(level, text)| notice(&sink, level, text));
        if let Some(old) = &old {
            told(resume::settings(old, &state, force)?);
        }
        let lora = scaled_as_trained(job, old.as_ref(), &state, &sink)?;
        let layout = AdapterLayout::new(&checkpoint, &lora)?;
        let restored = job.resume.as_ref().map(|r| read_tensors(&r.checkpoint, &layout, &stop)).transpose()?;

        let date = old.as_ref().map(|old| old.template_date.clone()).filter(|d| !d.is_empty());
        let data = read_data(job, &checkpoint, date, &sink, &control)?;
        let sampler = Sampler { n_rows: data.train.len(), rows_per_step, seed: config.train.seed };
        let steps_total = match config.train.max_steps {
            0 => sampler.steps(config.train.num_train_epochs),
            n => n,
        };
        state.max_steps = steps_total;
        resume::know_rows(&mut state, &data, &stop)?;
        let params = match (&restored, &config.lora.init_from) {
            (Some(t), _) => t.params.clone(),
            (None, Some(dir)) => layout.from_peft(&adapter::read(dir)?.1)?,
            (None, None) => layout.init(config.train.seed),
        };
        if let Some(old) = &old {
            told(resume::rows(old, &state, force)?);
            if old.settings.is_empty() && !sampler.n_rows.is_multiple_of(rows_per_step) {
                let text = "this run was started by a version whose steps went over the ends of epochs; now an epoch's \
                            last step is short, so some rows of this epoch may come twice or not at all";
                notice(&sink, Level::Warn, text.into());
            }
            state = state.going_on_from(old);
        }
        if rows_per_step > sampler.n_rows {
            let text = format!(
                "a step takes {rows_per_step} rows and there are {} to train: each epoch is one step over all of them",
                sampler.n_rows
            );
            notice(&sink, Level::Warn, text);
        }

        let schedule = Schedule::new(&config.train, steps_total);
        let reader = Reader::open(&checkpoint, Duration::ZERO)?;
        // From `Started` on the folder changes; before it nothing of this process's own lies there.
        if old.is_some() {
            save::sweep(&job.run_dir);
        }
        let facts = RunFacts { job, checkpoint: &checkpoint, device, kind, layout: &layout, data: &data };
        sink.send(EventKind::Started(facts.started(plan, state.global_step, steps_total, reader.describe())));
        // What was taken, ignored or passed over of the model belongs in the report, which keeps warnings.
        for text in &checkpoint.notes {
            notice(&sink, Level::Warn, text.clone());
        }
        let longest = data.train.iter().chain(&data.eval).map(|r| r.ids.len()).max().unwrap_or(0);
        if longest > checkpoint.arch.max_positions {
            let positions = checkpoint.arch.max_positions;
            notice(&sink, Level::Warn, past_positions("the longest row has", longest as u64, positions));
        }
        for text in &data.notes {
            notice(&sink, Level::Info, text.clone());
        }

        let setup = StreamSetup { control: control.clone(), ..StreamSetup::of(plan).on(device)? };
        let mut stage = Stages::new(sink.as_ref());
        let streamer =
            Streamer::new(&checkpoint, reader, &setup, &mut |d, t| stage.bytes("loading the RAM tier", d, t))?;
        if let Some(note) = streamer.pin_note() {
            notice(&sink, Level::Warn, note.into());
        }
        notice(&sink, Level::Info, format!("weights are read by {}", streamer.reader().describe()));
        let with_head = plan.stream.head.is_none();
        let residents = Residents::load(&checkpoint, streamer.reader(), kind, device, with_head, &mut |d, t| {
            stage.bytes("loading head and embedding", d, t);
            stop()
        })?;
        #[cfg(feature = "cuda")]
        let residents = match &setup.gpu {
            Some(gpu) => residents.with_gpu(gpu.clone(), control.clone()),
            None => residents,
        };
        let adapter_config = adapter_config(job, &lora, &checkpoint, data.template.clone());
        let adapter = Adapter::new(layout, &params, kind, device);
        let mut adam = AdamW::new(&adapter.flat, config.train.weight_decay);
        if let (Some(t), Some(old)) = (&restored, &old) {
            adam.m = Tensor::from_slice(&t.m).to_device(device);
            adam.v = Tensor::from_slice(&t.v).to_device(device);
            adam.updates = old.optimizer_updates;
        }
        let loss_chunk = plan.stream.loss_chunk;
        let gpu = if let Device::Cuda(i) = device { Some(i) } else { None };
        let mut walk = BlockWalk::new(&checkpoint, residents, adapter, streamer, kind, loss_chunk);
        walk.objective = objective::named("sft")?;
        walk.mlp_chunk = plan.stream.mlp_chunk;
        if plan.stream.offload {
            let t = &config.train;
            // Row by row, as after halvings.
            let rows = t.gradient_accumulation_steps * t.per_device_train_batch_size;
            let bytes = (config.data.max_length * checkpoint.arch.hidden * kind.elt_size_in_bytes()) as u64;
            let blocks = checkpoint.blocks.len() - walk.adapter.layout.lowest;
            walk.boundaries = setup.offload(blocks, rows, bytes)?;
        }
        if device.is_cuda() && !walk.kernels.is_fused() {
            notice(&sink, Level::Warn, format!("kernels: {}; steps are slower", walk.kernels.describe()));
        }
        // Nothing can refuse any more: the folder may change.
        if old.is_some()
            && let Some(aside) = save::set_aside_later(&job.run_dir, state.global_step)?
        {
            let (step, aside) = (state.global_step, aside.display());
            notice(
                &sink,
                Level::Warn,
                format!("the run goes on from step {step}; its later checkpoints are now in '{aside}'"),
            );
        }
        Ok(Run {
            telemetry: Telemetry::new(sink.clone(), walk.visits(), walk.arch.n_layers, gpu),
            job,
            checkpoint,
            sink,
            control,
            clock: Clock::real(),
            data,
            sampler,
            schedule,
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
            newest: job.resume.as_ref().map(|r| r.checkpoint.clone()),
            saved_step: old.as_ref().map(|old| old.global_step),
            whole: true,
            next: None,
            too_large: usize::MAX,
            written: None,
        })
    }
}

/// Reads a checkpoint's tensors on a thread of their own: gigabytes of a large adapter must not keep a stop waiting.
fn read_tensors(dir: &Path, layout: &AdapterLayout, stop: &dyn Fn() -> Result<()>) -> Result<Tensors> {
    let (dir, layout) = (dir.to_path_buf(), layout.clone());
    apart("checkpoint", stop, &mut |_| {}, move |_| save::tensors(&dir, &layout))
}

/// Reads the data on a thread of its own: a long row's tokens, or a drive that hangs, must not keep a stop waiting.
fn read_data(
    job: &Job,
    checkpoint: &Checkpoint,
    date: Option<String>,
    sink: &Arc<dyn EventSink>,
    control: &Control,
) -> Result<Dataset> {
    let (config, checkpoint, heard) = (job.config.clone(), checkpoint.clone(), control.clone());
    let stop = || control.check(Stop::AfterStep);
    let data = apart("data", &stop, &mut |s| sink.send(EventKind::Stage(s)), move |stage| {
        data::prepare_dated(&config, &checkpoint, date.as_deref(), stage, &|| heard.check(Stop::AfterStep))
    })?;
    stop()?;
    Ok(data)
}

/// `auto` takes a GPU when libtorch can use one and the plan was made for one.
fn choose_device(wanted: DeviceChoice, planned_gpu: bool) -> Result<Device> {
    match (wanted, shim::init(), planned_gpu) {
        (DeviceChoice::Cpu, _, _) | (DeviceChoice::Auto, _, false) => Ok(Device::Cpu),
        (_, Ok(()), _) => Ok(Device::Cuda(0)),
        (_, Err(why), _) => Err(Error::device(format!("no GPU to train on: {why}"))
            .next("install a driver ≥ 580, or set train.device = \"cpu\"")),
    }
}

/// The `[lora]` section with the factor (alpha, rsLoRA) of the adapter that is trained further, unless another was forced.
fn scaled_as_trained(
    job: &Job,
    old: Option<&TrainerState>,
    new: &TrainerState,
    sink: &Arc<dyn EventSink>,
) -> Result<LoraSection> {
    let lora = &job.config.lora;
    if old.is_some_and(|old| resume::another_function(old, new)) {
        return Ok(lora.clone());
    }
    let Some(dir) = job.resume.as_ref().map(|r| &r.checkpoint).or(lora.init_from.as_ref()) else {
        return Ok(lora.clone());
    };
    let (own, other) = resume::scaled_as(lora, &adapter::read(dir)?.0)?;
    let Some(other) = other else { return Ok(own) };
    // A run that began with an adapter has that adapter's factor, whatever its config says.
    if lora.init_from.is_some() {
        notice(sink, Level::Warn, format!("the adapter in '{}' {other}, which is not used", dir.display()));
    } else if old.is_some_and(|old| old.settings.is_empty()) {
        return Err(Error::usage(format!("this run {other}")).next("set them back, or start a new run"));
    }
    Ok(own)
}

fn adapter_config(
    job: &Job,
    lora: &LoraSection,
    checkpoint: &Checkpoint,
    chat_template: Option<String>,
) -> AdapterConfig {
    let config = &job.config;
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
        chat_template,
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
    /// The kernels that attention goes through in this run, in words.
    fn attention(&self) -> String {
        let (kernels, head_dim) = (Kernels::of(self.device), self.checkpoint.arch.head_dim as i64);
        let config = &self.job.config;
        let mut lengths: Vec<usize> = self.data.train.iter().map(|r| r.ids.len()).collect();
        lengths.sort_unstable();
        // A micro-batch is as long as its longest row: the shortest one has the shortest rows, and an epoch's last one
        // what is left of them.
        let batch = config.train.per_device_train_batch_size.max(1);
        let least = match lengths.len() % batch {
            0 => batch,
            left => left,
        };
        let shortest = least.min(lengths.len()).saturating_sub(1);
        let padded = |l: &usize| kernels.row_length(self.kind, head_dim, *l, config.data.max_length);
        let lengths = lengths.iter().skip(shortest).map(padded).collect();
        kernels.attention(self.kind, head_dim).words(&lengths, &self.checkpoint.arch.windows)
    }

    fn started(&self, plan: &ModePlan, steps_done: u64, steps_total: u64, reader: String) -> RunStarted {
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
            mode: self.job.config.train.mode.name().into(),
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
            attention: self.attention(),
            reader,
            trainable_params: self.layout.params(),
            data: self.data.facts.clone(),
        }
    }
}
