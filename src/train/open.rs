//! Opening a run: checkpoint, data, plan and device become a walk that can step.

use super::optim::AdamW;
use super::save::{self, TrainerState};
use super::schedule::Schedule;
use super::telemetry::Telemetry;
use super::trainer::{Run, notice};
use super::walk::BlockWalk;
use crate::checkpoint::adapter::{self, AdapterConfig};
use crate::checkpoint::{self, Checkpoint};
use crate::clock::Clock;
use crate::config::LoraSection;
use crate::data::{self, Dataset, Sampler};
use crate::device::{nvml, shim};
use crate::engine::{Control, EventSink, Job, Stop};
use crate::error::{Error, Result};
use crate::event::{EVENT_SCHEMA, EventKind, Level, RunStarted, Stage, StreamStats};
use crate::model::{Adapter, AdapterLayout, Kernels, Residents, attention, compute_kind, kind_name};
use crate::plan::{ModePlan, lowest_trainable, past_positions};
use crate::store::Reader;
use crate::stream::{StreamSetup, Streamer};
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
        let device = choose_device(&config.train.device, job.plan.machine.gpu.is_some())?;
        shim::set_deterministic(config.train.deterministic);
        let kind = compute_kind(&checkpoint, device);
        let lora = scaled_as_trained(job, &sink)?;
        let layout = AdapterLayout::new(&checkpoint, &lora)?;

        let to_stage = |s: Stage| sink.send(EventKind::Stage(s));
        let restored = job.resume.as_deref().map(|dir| save::load(dir, &layout)).transpose()?;
        let date = restored.as_ref().map(|(_, old)| old.template_date.as_str()).filter(|d| !d.is_empty());
        let stop = || control.check(Stop::AfterStep);
        let data = data::prepare_dated(config, &checkpoint, date, &mut |s| to_stage(s), &stop)?;
        stop()?;
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

        let schedule = Schedule::new(&config.train, steps_total)?;
        let reader = Reader::open(&checkpoint, Duration::ZERO)?;
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

        let setup = StreamSetup { control: control.clone(), ..StreamSetup::of(plan, &config.stream).on(device)? };
        let mut stage = Stages { sink: sink.as_ref(), last: 0 };
        let streamer =
            Streamer::new(&checkpoint, reader, &setup, &mut |d, t| stage.bytes("loading the RAM tier", d, t))?;
        if let Some(note) = streamer.pin_note() {
            notice(&sink, Level::Warn, note.into());
        }
        notice(&sink, Level::Info, format!("weights are read by {}", streamer.reader().describe()));
        let with_head = plan.stream.head.is_none();
        let residents = Residents::load(&checkpoint, streamer.reader(), kind, device, with_head, &mut |d, t| {
            stage.bytes("loading head and embedding", d, t);
        })?;
        #[cfg(feature = "cuda")]
        let residents = match &setup.gpu {
            Some(gpu) => residents.with_gpu(gpu.clone()),
            None => residents,
        };
        let adapter_config = adapter_config(job, &lora, &checkpoint);
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
        if restored.is_some()
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
            newest: job.resume.clone(),
            saved_step: restored.as_ref().map(|(_, old)| old.global_step),
            whole: true,
            next: None,
            too_large: usize::MAX,
            written: None,
        })
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
    let comparable = old.base_fingerprint.starts_with("c1-");
    if comparable && old.base_fingerprint != new.base_fingerprint {
        return Err(Error::checkpoint("the base checkpoint is not the one this run was started on")
            .next("restore its files, or start a new run with lora.init_from = the run's adapter"));
    }
    let rows = |s: &TrainerState| s.rows_per_step as u64;
    for (what, was, is) in
        [("train.seed", old.seed, new.seed), ("rows per step (batch size × accumulation)", rows(old), rows(new))]
    {
        if was != is {
            return Err(Error::usage(format!(
                "{what} was {was} in this run and is {is} now; its curve could not continue"
            ))
            .next("use the run's own config"));
        }
    }
    if new.max_steps < old.global_step {
        return Err(Error::usage(format!(
            "{} steps are asked for, but the run has done {} already",
            new.max_steps, old.global_step
        ))
        .next("ask for more with --max-steps, or resume an earlier checkpoint"));
    }
    let mut lines = Vec::new();
    if !comparable {
        lines
            .push("this run was started by an older version: whether the base is still the same cannot be told".into());
    }
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

/// The `[lora]` section with the factor (alpha, rsLoRA) of the adapter that is trained further: its tensors mean
/// something else under another factor.
fn scaled_as_trained(job: &Job, sink: &Arc<dyn EventSink>) -> Result<LoraSection> {
    let mut lora = job.config.lora.clone();
    let Some(dir) = job.resume.as_ref().or(lora.init_from.as_ref()) else { return Ok(lora) };
    let (old, _) = adapter::read(dir)?;
    if !(0.0..=f64::from(f32::MAX)).contains(&old.lora_alpha) {
        return Err(Error::checkpoint(format!(
            "the adapter in '{}' has lora_alpha = {}",
            dir.display(),
            old.lora_alpha
        ))
        .next("correct its adapter_config.json; twice the rank is usual"));
    }
    let asked = (lora.alpha, lora.rslora);
    (lora.alpha, lora.rslora) = (old.lora_alpha, old.use_rslora);
    if asked == (lora.alpha, lora.rslora) {
        return Ok(lora);
    }
    let (was, is) = (
        format!("lora.alpha = {} and lora.rslora = {}", lora.alpha, lora.rslora),
        format!("lora.alpha = {} and lora.rslora = {}", asked.0, asked.1),
    );
    // A run that began with an adapter has that adapter's factor, whatever its config says.
    if lora.init_from.is_some() {
        let dir = dir.display();
        notice(
            sink,
            Level::Warn,
            format!("the adapter in '{dir}' was trained with {was}; the config's {is} are not used"),
        );
        return Ok(lora);
    }
    Err(Error::usage(format!("this run was trained with {was}, and the config now says {is}"))
        .next("set them back, or start a new run with lora.init_from = the run's adapter"))
}

fn adapter_config(job: &Job, lora: &LoraSection, checkpoint: &Checkpoint) -> AdapterConfig {
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
