//! `generate`: continues a prompt with the base, or with an adapter on it.

use super::args::GenerateArgs;
use super::print;
use crate::checkpoint::{self, adapter};
use crate::clock;
use crate::config::{LoraSection, RunConfig};
use crate::data::{Chat, Date};
use crate::device::{self, shim};
use crate::error::{Error, ExitCode, Result};
use crate::infer::{Choice, Generator};
use crate::model::{Adapter, AdapterLayout, Residents, compute_kind};
use crate::store::Reader;
use crate::stream::{StreamSetup, Streamer};
use std::io::Write;
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
    let device = match (args.device.as_str(), shim::init()) {
        ("cpu", _) | ("auto", Err(_)) => Device::Cpu,
        (_, Ok(())) => Device::Cuda(0),
        (_, Err(why)) => return Err(Error::device(format!("no GPU: {why}")).next("use --device cpu")),
    };
    let chat = Chat::open((&opened).into(), None, Date::day_of(clock::unix_now()))?;
    let tokenizer = chat.tokenizer();
    let has_template = chat.template_origin().is_some();
    let prompt = if args.raw || !has_template {
        chat.text_prompt(&args.prompt)?
    } else {
        chat.prompt(&[("user", &args.prompt)])?
    };

    let mut config = RunConfig::default();
    config.model.path = args.model.clone();
    config.stream.tier = args.tier.clone();
    config.train.device = if device.is_cuda() { "cuda" } else { "cpu" }.into();
    let machine = device::machine(&config, Some(&opened.dir))?;
    let plan = crate::plan::plan(&opened, &machine, &config)?.modes.lora;
    if plan.verdict == crate::plan::Verdict::Infeasible {
        return Err(Error::infeasible(format!("it does not fit: {}", plan.reasons.join("; "))));
    }
    let setup = StreamSetup::of(&plan, &config.stream).on(device)?;
    let kind = compute_kind(&opened, device);
    let reader = Reader::open(&opened, Duration::ZERO)?;
    let streamer = Streamer::new(&opened, reader, &setup, &mut |_, _| {})?;
    let residents =
        Residents::load(&opened, streamer.reader(), kind, device, setup.head.is_none(), &mut |_, _| Ok(()))?;
    let adapter = args.adapter.as_deref().map(|dir| open_adapter(dir, &opened, kind, device)).transpose()?;
    let mut generator = Generator::new(opened.arch.clone(), residents, adapter, streamer, kind);

    let choice = if args.greedy {
        Choice::Greedy
    } else {
        Choice::Sample { temperature: args.temperature, top_p: args.top_p, seed: args.seed }
    };
    let mut so_far = Vec::new();
    let mut shown = 0;
    let mut out = std::io::stdout();
    generator.generate(&prompt, args.max_new_tokens, tokenizer.stops(), choice, &mut |id| {
        so_far.push(id);
        // Decoding all so far keeps characters that span tokens whole.
        let text = tokenizer.decode(&so_far, true)?;
        if !text.ends_with('\u{FFFD}') {
            let _ = write!(out, "{}", &text[shown.min(text.len())..]);
            let _ = out.flush();
            shown = text.len();
        }
        Ok(())
    })?;
    print::line("")
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
