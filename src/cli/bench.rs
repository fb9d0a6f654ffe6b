//! `bench`: what is asked for on the command line, handed to the room of that name.

use super::args::ConfigArgs;
use super::keep::{self, CalibrateArgs, calibrate};
use super::print;
use crate::bench::{disk, forecast, peers, step};
use crate::config::ByteSize;
use crate::error::{Error, ExitCode, Result};
use crate::units::Bytes;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// `bench …`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Copies between pinned host memory and the GPU, by size and direction.
    Link {
        /// Don't keep the rates for later plans.
        #[arg(long)]
        no_save: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Sustained O_DIRECT reads of a drive.
    Disk(DiskArgs),
    /// Matrix products: bf16 on the GPU, f32 on the CPU.
    Gemm(GemmArgs),
    /// Drive, link and products in about ten seconds, kept for later plans.
    Calibrate(CalibrateArgs),
    /// Seconds per training step, ours alone or beside peers.
    Step(Box<StepArgs>),
    /// The planner's VRAM and seconds against measured ones, over a table of jobs.
    Forecast(ForecastArgs),
}

/// `bench forecast`
#[derive(Debug, Args)]
pub struct ForecastArgs {
    /// The table of jobs.
    #[arg(long, value_name = "FILE", default_value = "tests/peers/points.toml")]
    pub points: PathBuf,
    /// Folder of the models that the table names.
    #[arg(long, value_name = "DIR")]
    pub models: PathBuf,
    /// Only points whose name begins with one of these, commas between.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Folder for vram-forecast.json and time-forecast.json.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Seconds for the whole call.
    #[arg(long, default_value_t = 3600)]
    pub time: u64,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench disk`
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// Model folder or hub id whose weights are read.
    pub model: Option<String>,
    /// File, or folder of files, to read.
    #[arg(long, value_name = "PATH", conflicts_with = "model")]
    pub path: Option<PathBuf>,
    /// Seconds of reading.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Also write a temporary file to the drive (it is removed again), and say how much first.
    #[arg(long)]
    pub write: bool,
    /// How much to write.
    #[arg(long, value_name = "SIZE", default_value = "1 GB", requires = "write")]
    pub write_size: String,
    /// Don't keep the rates for later plans.
    #[arg(long)]
    pub no_save: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench gemm`
#[derive(Debug, Args)]
pub struct GemmArgs {
    /// Model whose block shapes are measured too.
    pub model: Option<String>,
    /// Rows, columns and depth of the square product.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(i64).range(1..65536))]
    pub size: i64,
    /// Rows of a block's products.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(i64).range(1..1 << 20))]
    pub tokens: i64,
    /// cpu, cuda or auto.
    #[arg(long, value_parser = ["auto", "cpu", "cuda"], default_value = "auto")]
    pub device: String,
    /// Don't keep the rates for later plans.
    #[arg(long)]
    pub no_save: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `bench step`
#[derive(Debug, Args)]
pub struct StepArgs {
    /// Model folder or hub id.
    #[arg(value_name = "MODEL", conflicts_with = "peers")]
    pub checkpoint: Option<String>,
    /// The config; without data files the rows are random token ids.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Measured steps.
    #[arg(long, default_value_t = 10)]
    pub steps: u64,
    /// Steps before them.
    #[arg(long, default_value_t = 3)]
    pub warmup: u64,
    /// Seconds after which the run is given up; with --peers, time for the whole call.
    #[arg(long, default_value_t = 3600)]
    pub time: u64,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Run the rows of DIR/rows.toml, ours and the peers' programs in DIR in turn; prints JSON.
    #[arg(long, value_name = "DIR")]
    pub peers: Option<PathBuf>,
    /// Only these rows, commas between.
    #[arg(long, value_delimiter = ',', requires = "peers")]
    pub rows: Vec<String>,
    /// Unpacked wheel of a peer: soup=DIR, block_streamer=DIR, hf_best=DIR (Liger), deepspeed=DIR, airllm=DIR.
    #[arg(long, value_name = "NAME=PATH", requires = "peers")]
    pub peer: Vec<String>,
    /// Optional peers to run besides, e.g. fsdp2,accelerate.
    #[arg(long, value_delimiter = ',', requires = "peers")]
    pub with: Vec<String>,
    /// Python of the peers.
    #[arg(long, value_name = "FILE", default_value = "python3", requires = "peers")]
    pub python: PathBuf,
    /// Folder for checkpoints, the peers' shards and logs; kept for the next call.
    #[arg(long, value_name = "DIR", requires = "peers")]
    pub work: Option<PathBuf>,
    /// Write the JSON here, after every row, instead of to stdout.
    #[arg(long, value_name = "FILE", requires = "peers")]
    pub out: Option<PathBuf>,
    /// Results file to put the rows into; others in it stay.
    #[arg(long, value_name = "FILE", requires = "peers")]
    pub merge: Option<PathBuf>,
    /// Remove a peer's shards after its last run in this call.
    #[arg(long, requires = "peers")]
    pub free_shards: bool,
    /// Seconds of each read of the drive around a disk row's runs.
    #[arg(long, default_value_t = 3.0, requires = "peers")]
    pub drive_seconds: f64,
}

/// Runs a benchmark.
///
/// # Errors
/// What was asked for can't be measured here; the text says why.
pub fn bench(command: &BenchCommand) -> Result<ExitCode> {
    match command {
        BenchCommand::Link { no_save, json } => link(*no_save, *json),
        BenchCommand::Disk(args) => bench_disk(args),
        BenchCommand::Gemm(args) => gemm(args),
        BenchCommand::Calibrate(args) => calibrate(args),
        BenchCommand::Step(args) => bench_step(args),
        BenchCommand::Forecast(args) => bench_forecast(args),
    }
}

fn show(value: &Value, json: bool, render: fn(&Value) -> String) -> Result<ExitCode> {
    if json { print::json(value) } else { print::line(render(value).trim_end()) }
}

fn show_and_keep(value: &Value, no_save: bool, json: bool, render: fn(&Value) -> String) -> Result<ExitCode> {
    let shown = show(value, json, render)?;
    if !no_save {
        keep::keep(&[value]);
    }
    Ok(shown)
}

#[cfg(feature = "cuda")]
fn link(no_save: bool, json: bool) -> Result<ExitCode> {
    show_and_keep(&crate::bench::link::run()?, no_save, json, crate::bench::link::render)
}

#[cfg(not(feature = "cuda"))]
fn link(_: bool, _: bool) -> Result<ExitCode> {
    Err(Error::device("this build has no GPU backend (feature 'cuda' is off)").next("build with default features"))
}

#[cfg(feature = "torch")]
fn gemm(args: &GemmArgs) -> Result<ExitCode> {
    use crate::bench::gemm;
    use crate::checkpoint;
    let model = args.model.as_deref().map(|m| checkpoint::open(&checkpoint::resolve(m)?)).transpose()?;
    let job = gemm::Job { size: args.size, tokens: args.tokens, model: model.as_ref(), device: &args.device };
    show_and_keep(&gemm::run(&job)?, args.no_save, args.json, gemm::render)
}

#[cfg(not(feature = "torch"))]
fn gemm(_: &GemmArgs) -> Result<ExitCode> {
    Err(Error::usage("this build has no libtorch (feature 'torch' is off)").next("build with default features"))
}

fn bench_disk(args: &DiskArgs) -> Result<ExitCode> {
    if !(args.seconds.is_finite() && (0.0..=3600.0).contains(&args.seconds)) {
        return Err(Error::usage(format!("'--seconds' = {}: expected 0 to 3600", args.seconds)));
    }
    let (dir, files) = match (&args.model, &args.path) {
        (Some(model), _) => keep::weights(model)?,
        (None, Some(path)) => {
            let folder =
                if path.is_dir() { path.clone() } else { path.parent().map(PathBuf::from).unwrap_or_default() };
            (folder, disk::files(path)?)
        }
        (None, None) => (PathBuf::from("."), Vec::new()),
    };
    let write = if args.write { Some(bytes(&args.write_size)?) } else { None };
    let job = disk::Job { files, dir, seconds: args.seconds, write };
    show_and_keep(&disk::run(&job, &print::progress)?, args.no_save, args.json, disk::render)
}

fn bytes(text: &str) -> Result<Bytes> {
    ByteSize::parse(text).filter(|b| b.0 > 0).map(|b| Bytes(b.0)).ok_or_else(|| {
        Error::usage(format!("'--write-size' = {text}: expected a size such as \"1 GB\" or \"512 MiB\""))
    })
}

fn bench_step(args: &StepArgs) -> Result<ExitCode> {
    let limit = Duration::from_secs(args.time);
    let Some(dir) = &args.peers else {
        let config = args.config.loaded(args.checkpoint.as_deref())?;
        config.notes.iter().for_each(|n| print::progress(n));
        let job = step::Job { config: config.config, steps: args.steps, warmup: args.warmup, limit };
        return show(&step::run(&job, &print::progress)?, args.json, step::render);
    };
    let work = args.work.clone().ok_or_else(|| {
        Error::usage("no folder for the checkpoints")
            .next("name one with room for them: --work DIR (16 GB for 32 layers)")
    })?;
    let options = peers::Options {
        dir: dir.clone(),
        rows: args.rows.clone(),
        wheels: wheels(&args.peer)?,
        with: args.with.clone(),
        python: args.python.clone(),
        work,
        out: args.out.clone(),
        merge: args.merge.clone(),
        free_shards: args.free_shards,
        time: limit,
        drive_seconds: args.drive_seconds.clamp(0.1, 60.0),
        command: command_line(),
    };
    let has_file = options.out.is_some() || options.merge.is_some();
    let value = peers::run(options, &print::progress)?;
    if has_file { Ok(ExitCode::Ok) } else { print::json(&value) }
}

fn bench_forecast(args: &ForecastArgs) -> Result<ExitCode> {
    let options = forecast::Options {
        points: args.points.clone(),
        models: args.models.clone(),
        only: args.only.clone(),
        out: args.out.clone(),
        time: Duration::from_secs(args.time),
        command: command_line(),
    };
    let value = forecast::run(&options, &print::progress)?;
    if args.json { print::json(&value) } else { Ok(ExitCode::Ok) }
}

/// The command line, for the record.
fn command_line() -> String {
    std::env::args().skip(1).fold("blockstream-tui".into(), |all, a| all + " " + &a)
}

/// `NAME=PATH` pairs.
fn wheels(pairs: &[String]) -> Result<BTreeMap<String, PathBuf>> {
    let one = |pair: &String| {
        let (name, path) = pair
            .split_once('=')
            .ok_or_else(|| Error::usage(format!("--peer '{pair}' has no '='")).next("write --peer soup=FOLDER"))?;
        let path = PathBuf::from(path);
        if !path.exists() {
            return Err(Error::usage(format!("--peer {name}: '{}' is not there", path.display()))
                .next("unpack its wheel there first"));
        }
        let path = std::path::absolute(&path).map_err(|e| Error::input("find", &path, e))?;
        Ok((name.to_string(), path))
    };
    pairs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::args::{Cli, Command};
    use super::*;
    use clap::Parser;

    fn parsed(args: &[&str]) -> std::result::Result<BenchCommand, clap::Error> {
        let all = ["blockstream-tui", "bench"].iter().chain(args);
        Cli::try_parse_from(all).map(|cli| match cli.command {
            Some(Command::Bench(b)) => b,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_benchmarks_are_parsed() {
        assert!(matches!(parsed(&["link", "--json"]), Ok(BenchCommand::Link { json: true, no_save: false })));
        let Ok(BenchCommand::Disk(d)) = parsed(&["disk", "--path", "/x", "--seconds", "2"]) else { panic!() };
        assert!(!d.write && d.seconds == 2.0 && d.path == Some(PathBuf::from("/x")));
        assert_eq!(bytes(&d.write_size).unwrap(), Bytes(1_000_000_000));
        assert!(matches!(parsed(&["gemm", "m", "--device", "cpu"]), Ok(BenchCommand::Gemm(_))));
        let Ok(BenchCommand::Calibrate(c)) = parsed(&["calibrate", "m", "--no-save"]) else { panic!() };
        assert!(c.model.as_deref() == Some("m") && c.no_save && !c.json);
        let Ok(BenchCommand::Step(s)) = parsed(&["step", "m", "--set", "lora.r=4", "--steps", "5"]) else { panic!() };
        assert_eq!((s.checkpoint.as_deref(), s.steps, s.warmup, s.config.set.len()), (Some("m"), 5, 3, 1));
    }

    #[test]
    fn peers_take_rows_wheels_and_a_work_folder() {
        let line = ["step", "--peers", "tests/peers", "--rows", "ram-32,zero-write", "--peer", "soup=.", "--work", "w"];
        let Ok(BenchCommand::Step(s)) = parsed(&line) else { panic!() };
        assert_eq!(s.rows, ["ram-32", "zero-write"]);
        assert!(wheels(&s.peer).unwrap()["soup"].is_absolute());
        for bad in [
            &["step", "--rows", "a"][..],
            &["step", "m", "--peers", "d"],
            &["disk", "--write-size", "1 GB"],
            &["crossover"],
        ] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
        assert!(wheels(&["soup".into()]).unwrap_err().to_string().contains("no '='"));
        assert!(wheels(&["soup=not/there".into()]).unwrap_err().to_string().contains("is not there"));
        assert!(bytes("much").unwrap_err().to_string().contains("--write-size"));
    }
}
