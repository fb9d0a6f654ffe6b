//! The command line: parses it, builds what a command needs, and turns its end into an exit code.
//!
//! Data goes to stdout, progress and errors to stderr.

mod args;
mod bench;
mod desk;
mod download;
#[cfg(feature = "torch")]
mod generate;
mod keep;
mod print;
mod ranges;
#[cfg(feature = "torch")]
mod sampling;
mod train;

pub use desk::MakeServices;

use args::{Cli, Command, ConfigArgs, DataCommand};
use clap::Parser;

use crate::checkpoint;
use crate::config::{RunConfig, load};
use crate::error::{Error, ExitCode, Result};
use crate::{data, device, doctor, export, plan, report};
use std::path::{Path, PathBuf};

/// Runs the program; the code it exits with.
#[must_use]
pub fn main() -> ExitCode {
    main_on(desk::services)
}

/// Runs the program with `services` behind the screen and the script.
#[must_use]
pub fn main_on(services: MakeServices) -> ExitCode {
    crate::panics::install();
    let cli = match Cli::try_parse_from(args::expand(std::env::args_os())) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are answers, not mistakes.
            let code = if e.use_stderr() { ExitCode::Usage } else { ExitCode::Ok };
            // What was typed comes back in the message: a pasted escape sequence must not act on the terminal.
            if e.use_stderr() {
                print::progress(e.to_string().trim_end())
            } else {
                drop(e.print())
            }
            return code;
        }
    };
    #[cfg(feature = "torch")]
    if computes(&cli.command) {
        settle_environment();
    }
    dispatch(cli, services).unwrap_or_else(|e| {
        print::progress(&format!("error: {e}"));
        e.exit_code()
    })
}

/// Whether `command` computes in this process. The others would only start twice, and `bench step` would hand our
/// settings on to the peers.
#[cfg(feature = "torch")]
fn computes(command: &Option<Command>) -> bool {
    use bench::BenchCommand::{Calibrate, Gemm, Link};
    matches!(
        command,
        None | Some(Command::Train(_) | Command::Generate(_) | Command::Bench(Link { .. } | Gemm(_) | Calibrate(_)))
    )
}

/// Starts this program again with an environment that libtorch and CUDA read before `main`, unless it is set.
///
/// `OMP_WAIT_POLICY=passive`: OpenMP threads spin at every barrier by default. Beside our copy thread, the screen, or
/// anything else the user runs, that made a step on two cores five times slower (64 s against 12 s, measured with a
/// compiler running). `CUDA_CACHE_DISABLE=1`, `USE_PYTORCH_KERNEL_CACHE=0`: driver and libtorch would keep
/// compiled kernels in the home folder, and this program writes nothing outside its run folders (and calibrations).
/// And what the cards ask for: see [`device::gpu::environment`].
#[cfg(feature = "torch")]
fn settle_environment() {
    use std::os::unix::process::CommandExt;
    const WANTED: [(&str, &str); 3] =
        [("OMP_WAIT_POLICY", "passive"), ("CUDA_CACHE_DISABLE", "1"), ("USE_PYTORCH_KERNEL_CACHE", "0")];
    let set = |name: &str| std::env::var_os(name).is_some();
    // Started again already: the cards need not be asked twice.
    if WANTED.iter().all(|(name, _)| set(name)) {
        return;
    }
    let wanted = WANTED.into_iter().map(|(name, value)| (name, value.to_string())).chain(device::gpu::environment());
    let missing: Vec<_> = wanted.filter(|(name, _)| !set(name)).collect();
    let mut args = std::env::args_os();
    let mut again = std::process::Command::new("/proc/self/exe");
    if let Some(name) = args.next() {
        again.arg0(name);
    }
    // Only returns when it fails, and then speed is all there is to lose.
    let _ = again.args(args).envs(missing).exec();
}

fn dispatch(cli: Cli, services: MakeServices) -> Result<ExitCode> {
    match cli.command {
        None => workbench(&cli, services),
        Some(Command::Plan { checkpoint, config, json, what_if }) => {
            show_plan(&config.loaded(Some(&checkpoint))?, json, &what_if)
        }
        Some(Command::Download { model, yes, json }) => download::download(&model, yes, json),
        Some(Command::Train(args)) => train::train(&args),
        Some(Command::Data(DataCommand::Inspect(args))) => inspect(&args),
        #[cfg(feature = "torch")]
        Some(Command::Generate(args)) => generate::generate(&args),
        #[cfg(not(feature = "torch"))]
        Some(Command::Generate(_)) => Err(crate::engine::no_engine()),
        Some(Command::Import { file, to }) => import(&file, &to),
        Some(Command::Export { run, to, dest }) => {
            let path = match dest {
                Some(dest) => export::export_to(&run, &to, &dest)?,
                None => export::export(&run, &to)?,
            };
            if export::changes_nothing(&run) {
                print::progress("warning: this run's adapter changes nothing: all of its lora_B is zero");
            }
            print::line(&path.display().to_string())
        }
        Some(Command::Verify { run }) => {
            let verified = report::verify(&run)?;
            for problem in &verified.problems {
                print::progress(problem);
            }
            print::line(if verified.ok {
                "every file is as the report recorded it"
            } else {
                "files differ from the report"
            })?;
            Ok(if verified.ok { ExitCode::Ok } else { ExitCode::Failed })
        }
        Some(Command::Compare { runs, json }) => {
            let comparison = report::compare(&runs)?;
            if json { print::json(&comparison.json) } else { print::line(comparison.text.trim_end()) }
        }
        Some(Command::Doctor { disk, json }) => {
            let value = doctor::report(&doctor::Look::here(disk));
            if json { print::json(&value) } else { print::line(doctor::render(&value).trim_end()) }
        }
        Some(Command::Bench(command)) => bench::bench(&command),
        Some(Command::Models { places, json }) => models(&places, json),
        Some(Command::Replay { run, speed }) => train::replay(&run, speed),
    }
}

#[cfg(feature = "tui")]
fn workbench(cli: &Cli, services: MakeServices) -> Result<ExitCode> {
    use crate::ui::{self, UiOptions};
    use crate::worker::Signals;

    let loaded = cli.config.loaded(None)?;
    let results = loaded.config.results.clone().unwrap_or_else(|| PathBuf::from("results"));
    let options = UiOptions {
        config: loaded.config,
        no_color: cli.no_color,
        ascii: cli.ascii,
        results: results.clone(),
        notes: loaded.notes,
    };
    // On a screen Ctrl-C is a key, and the screen answers signals itself; the run's record names them either way.
    let signals = if cli.script.is_some() { Signals::install()? } else { Signals::observe()? };
    let mut services = services(results, &options.config, signals)?;
    match &cli.script {
        Some(file) => {
            let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
            Ok(crate::script::run(file, services.as_mut(), options, &mut out, &mut err))
        }
        None => ui::run(services.as_mut(), options),
    }
}

#[cfg(not(feature = "tui"))]
fn workbench(_: &Cli, _: MakeServices) -> Result<ExitCode> {
    Err(Error::usage("this build has no screen (feature 'tui' is off)").next("use a subcommand; --help lists them"))
}

fn show_plan(loaded: &load::Loaded, json: bool, what_if: &[String]) -> Result<ExitCode> {
    let config = &loaded.config;
    let edits = what_if.iter().map(|e| plan::Edit::parse(e)).collect::<Result<Vec<_>>>()?;
    // Headers that are nowhere yet are fetched.
    download::folder(&config.model.path)?;
    let opened = checkpoint::open_model(&config.model.path, config.model.rebuild_index)?;
    let results = config.results.clone().unwrap_or_else(|| PathBuf::from("results"));
    let mut machine = device::machine(config, Some(&opened.dir))?;
    machine.results_free = device::results_free(config, &opened.dir, &results);
    let data = crate::worker::desk::lengths(config, &opened);
    let mut report = plan::plan_for(&opened, &machine, config, &edits, data.as_ref())?;
    report::with_ledger(&mut report, config, &report::list(&results));
    loaded.notes.iter().for_each(|n| print::progress(n));
    if json {
        print::json(&serde_json::to_value(&report).map_err(|e| Error::run(format!("the plan as JSON: {e}")))?)?;
    } else {
        print::line(plan::explain(&report).trim_end())?;
    }
    Ok(verdict_code(config, &report))
}

/// 3 when the mode that `config` asks for is infeasible, else 0.
fn verdict_code(config: &RunConfig, report: &plan::PlanReport) -> ExitCode {
    match report.modes.of(config.train.mode).verdict {
        plan::Verdict::Infeasible => ExitCode::Infeasible,
        _ => ExitCode::Ok,
    }
}

fn inspect(args: &args::InspectArgs) -> Result<ExitCode> {
    let mut config = ConfigArgs::default().loaded(Some(&args.model))?.config;
    config.data.files = vec![args.file.clone()];
    for pair in &args.set {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            Error::usage(format!("--set '{pair}' has no '='")).next("write --set data.max_length=512")
        })?;
        load::set(&mut config, key, value)?;
    }
    let opened = checkpoint::open(&checkpoint::resolve(&args.model)?)?;
    let today = data::Date::day_of(crate::clock::unix_now());
    let view = data::inspect(&args.file, args.row, &config, (&opened).into(), today)?;
    if args.json { print::json(&view.to_json()) } else { print::line(view.to_text().trim_end()) }
}

fn import(file: &Path, to: &Path) -> Result<ExitCode> {
    let mut last = String::new();
    let dir = checkpoint::import_gguf(file, to, &mut |stage| print::stage(&stage, &mut last))?;
    print::line(&dir.display().to_string())
}

fn models(places: &[PathBuf], json: bool) -> Result<ExitCode> {
    let found = checkpoint::list(&desk::places(places));
    if json {
        return print::json(&serde_json::json!({ "schema": 1, "models": found }));
    }
    if found.is_empty() {
        print::progress("no checkpoint found here or in the hub cache; give a folder: models DIR");
    }
    for m in found {
        let what = m.problem.unwrap_or_else(|| {
            format!("{}, {} parameters, {}, {} blocks", m.family, crate::units::count(m.params), m.bytes, m.n_blocks)
        });
        print::line(&format!("{}  [{}]  {what}", m.name, m.origin))?;
    }
    Ok(ExitCode::Ok)
}

#[cfg(all(test, feature = "torch"))]
mod tests {
    use super::*;

    #[test]
    fn case_fo_53_every_path_that_can_train_settles_the_environment() {
        let computing = |line: &str| {
            let words = std::iter::once("blockstream-tui").chain(line.split_whitespace());
            let cli = Cli::try_parse_from(args::expand(words.map(std::ffi::OsString::from))).unwrap();
            computes(&cli.command)
        };
        for line in ["", "--config x.toml", "--profile recipe", "--model=dir", "--script x", "train --model x"] {
            assert!(computing(line), "{line}");
        }
        for line in ["plan train", "models train", "doctor"] {
            assert!(!computing(line), "{line}");
        }
    }
}
