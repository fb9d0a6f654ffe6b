//! `generate`: continues a prompt with the base, or with an adapter on it.

use super::args::GenerateArgs;
use super::{print, sampling};
use crate::checkpoint::{self, adapter};
use crate::clock;
use crate::config::{DeviceChoice, LoraSection, RunConfig, load};
use crate::data::{Chat, Date, Spoken};
use crate::device::{self, shim};
use crate::error::{Error, ExitCode, Result};
use crate::infer::Generator;
use crate::model::{Adapter, AdapterLayout, Residents, compute_kind};
use crate::report;
use crate::store::Reader;
use crate::stream::{StreamSetup, Streamer};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tch::Device;

/// Runs `generate`: the text goes to stdout as it comes.
///
/// # Errors
/// The checkpoint, adapter, prompt or device won't do.
pub fn generate(args: &GenerateArgs) -> Result<ExitCode> {
    let opened = checkpoint::open(&checkpoint::resolve(&args.model)?)?;
    opened.runnable()?;
    checkpoint::needs_tokenizer(&opened.dir)?;
    let device = match (args.device, shim::init()) {
        (DeviceChoice::Cpu, _) | (DeviceChoice::Auto, Err(_)) => Device::Cpu,
        (_, Ok(())) => Device::Cuda(0),
        (_, Err(why)) => return Err(Error::device(format!("no GPU: {why}")).next("use --device cpu")),
    };
    let mut said = Vec::new();
    let of_model = sampling::of_model(&opened.dir, &mut said);
    let drawn = sampling::settle(args, &of_model)?;
    said.extend_from_slice(&drawn.said);
    let template = match &args.template {
        Some(file) => Some(file.clone()),
        None => args.adapter.as_deref().map(trained_template).transpose()?.flatten(),
    };
    if let Some(file) = &template {
        said.push(format!("chat template: '{}'", file.display()));
    }
    let chat = Chat::open((&opened).into(), template.as_deref(), Date::day_of(clock::unix_now()))?;
    let tokenizer = chat.tokenizer();
    let prompt = prompt(&chat, args)?;
    let (longest, positions) = (prompt.len().saturating_add(args.max_new_tokens), opened.arch.max_positions);
    if longest > positions {
        said.push(format!("warning: {}", past_positions(longest, positions)));
    }
    said.extend_from_slice(chat.notes());
    said.extend(chat.turn_end_note());
    said.iter().for_each(|line| print::progress(line));

    let mut config = RunConfig::default();
    config.model.path = args.model.clone();
    config.stream.tier = args.tier;
    config.train.device = if device.is_cuda() { DeviceChoice::Cuda } else { DeviceChoice::Cpu };
    let machine = device::machine(&config, Some(&opened.dir))?;
    let plan = crate::plan::plan(&opened, &machine, &config)?.modes.lora;
    if plan.verdict == crate::plan::Verdict::Infeasible {
        return Err(Error::infeasible(format!("it does not fit: {}", plan.reasons.join("; "))));
    }
    let setup = StreamSetup::of(&plan).on(device)?;
    let kind = compute_kind(&opened, device);
    let reader = Reader::open(&opened, Duration::ZERO)?;
    let streamer = Streamer::new(&opened, reader, &setup, &mut |_, _| {})?;
    let residents =
        Residents::load(&opened, streamer.reader(), kind, device, setup.head.is_none(), &mut |_, _| Ok(()))?;
    let adapter = args.adapter.as_deref().map(|dir| open_adapter(dir, &opened, kind, device)).transpose()?;
    let generator = Generator::new(opened.arch.clone(), residents, adapter, streamer, kind);

    let mut spoken = Spoken::new(tokenizer, &drawn.stops);
    generator.with_repetition_penalty(drawn.penalty).generate(
        &prompt,
        args.max_new_tokens,
        &chat.stops(),
        drawn.choice,
        &mut |id| {
            print::piece(&spoken.push(id)?)?;
            Ok(if spoken.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        },
    )?;
    print::line(&spoken.finish()?)
}

/// The ids that `generate` continues.
fn prompt(chat: &Chat, args: &GenerateArgs) -> Result<Vec<u32>> {
    // In a user's turn they would end it, or forge another's.
    if let Some((at, _)) = chat.tokenizer().controls_in(&args.prompt).next().filter(|_| !args.raw) {
        let token = &args.prompt[at];
        return Err(Error::usage(format!("the prompt holds '{token}', which the model reads as a control token"))
            .next("take it out, or give the whole text with --raw"));
    }
    if args.raw || chat.template_origin().is_none() {
        return chat.text_prompt(&args.prompt);
    }
    chat.prompt(&[("user", &args.prompt)])
}

/// The chat template that the adapter in `dir` (a run's folder or an adapter's) was trained with, where it isn't the
/// model's own.
///
/// # Errors
/// The run names one that is gone, or its config can't be read.
fn trained_template(dir: &Path) -> Result<Option<PathBuf>> {
    let beside = ["adapter", ""].map(|inner| dir.join(inner).join(adapter::TEMPLATE_FILE));
    if let Some(file) = beside.into_iter().find(|file| file.is_file()) {
        return Ok(Some(file));
    }
    let absolute = dir.canonicalize().map_err(|e| Error::input("open", dir, e))?;
    let Some(run) = absolute.ancestors().take(2).find(|d| d.join(report::CONFIG_FILE).is_file()) else {
        return Ok(None);
    };
    let config = run.join(report::CONFIG_FILE);
    let loaded = load::load_from(Some(&config), report::started_in(run).as_deref(), &[], &[])?;
    let Some(template) = loaded.config.data.template else { return Ok(None) };
    if !template.is_file() {
        return Err(Error::usage(format!(
            "the adapter was trained with the chat template '{}' ({}), which isn't there",
            template.display(),
            config.display()
        ))
        .next("name it by --template"));
    }
    Ok(Some(template))
}

/// Reads a PEFT adapter (or a run's) for `opened`.
fn open_adapter(dir: &Path, opened: &checkpoint::Checkpoint, kind: tch::Kind, device: Device) -> Result<Adapter> {
    let inner: PathBuf = dir.join("adapter");
    let dir = if dir.join("adapter_config.json").is_file() { dir } else { &inner };
    let (config, tensors) = adapter::read(dir)?;
    let n = opened.blocks.len();
    let lowest = config.layers_to_transform.as_ref().and_then(|l| l.iter().min().copied()).unwrap_or(0);
    let section = LoraSection {
        r: config.r,
        alpha: config.lora_alpha,
        rslora: config.use_rslora,
        targets: config.target_modules,
        top_fraction: (n.saturating_sub(lowest)) as f64 / n as f64,
        ..LoraSection::default()
    };
    let layout = AdapterLayout::new(opened, &section)?;
    let flat = layout.from_peft(&tensors)?;
    Ok(Adapter::new(layout, &flat, kind, device))
}

/// What to know of an answer that may reach past the positions that the model was made for.
fn past_positions(tokens: usize, positions: usize) -> String {
    format!(
        "prompt and answer may take {tokens} tokens, but the model was made for {positions} positions \
         (max_position_embeddings): what it says past them may be poor"
    )
}
