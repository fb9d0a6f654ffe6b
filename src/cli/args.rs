//! What the command line looks like.

use super::ranges;
use crate::config::load::{self, Loaded};
use crate::config::{DeviceChoice, TierChoice, reference};
use crate::device::profile;
use crate::error::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Finetune language models far larger than your GPU and RAM.
#[derive(Debug, Parser)]
#[command(name = "blockstream-tui", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Subcommand; without one the workbench opens.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Drive the workbench from a file instead of a terminal.
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// No colour (NO_COLOR does the same).
    #[arg(long)]
    pub no_color: bool,
    /// Only ASCII characters.
    #[arg(long)]
    pub ascii: bool,
    /// Config of the next run.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// What shapes a config. Precedence: defaults < file < BSTUI_* < flags.
#[derive(Clone, Debug, Default, Args)]
#[command(after_long_help = reference::help())]
pub struct ConfigArgs {
    /// Model folder, hub cache folder, or owner/name in the hub cache.
    #[arg(long, value_name = "DIR|ID")]
    pub model: Option<String>,
    /// Machine profile (profiles/*.toml) or run recipe; may be given once each.
    #[arg(long, value_name = "FILE")]
    pub profile: Vec<PathBuf>,
    /// Run config in TOML.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder for run folders [default: results].
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Set one key, e.g. --set train.max_steps=20. Every key also works as a flag: --max-steps 20.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ConfigArgs {
    /// The config these arguments add up to; `model` is the subcommand's own.
    pub fn loaded(&self, model: Option<&str>) -> Result<Loaded> {
        self.loaded_from(model, None)
    }

    /// As [`ConfigArgs::loaded`], where relative paths in the file start at the folder `base`.
    pub fn loaded_from(&self, model: Option<&str>, base: Option<&Path>) -> Result<Loaded> {
        let (machines, recipes): (Vec<_>, Vec<_>) = self.profile.iter().partition(|p| profile::is_machine(p));
        let file = self.config.as_ref().or_else(|| recipes.first().copied());
        let env: Vec<(String, String)> = std::env::vars().collect();
        let mut loaded = load::load_from(file.map(PathBuf::as_path), base, &env, &self.set)?;
        if let Some(m) = model.or(self.model.as_deref()) {
            loaded.config.model.path = m.to_string();
        }
        if let Some(m) = machines.first() {
            loaded.config.machine = Some((*m).clone());
        }
        if let Some(r) = &self.results {
            loaded.config.results = Some(r.clone());
        }
        Ok(loaded)
    }
}

/// Everything that needs no screen.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say whether it fits, how, how fast and at what cost, before anything is written.
    Plan {
        /// Model folder or hub id; of a model that is not here only the headers are fetched.
        #[arg(value_name = "MODEL")]
        checkpoint: String,
        /// The rest of the config.
        #[command(flatten)]
        config: ConfigArgs,
        /// The whole plan as JSON.
        #[arg(long)]
        json: bool,
        /// Plan for this machine changed: ram=32GB, vram=24GB, disk=2TB (free), tbw=600TB, read=7GB/s, write, link.
        #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
        what_if: Vec<String>,
    },
    /// Fetch a model from the hub into its cache; a download that was stopped goes on where it was.
    Download {
        /// owner/name, or owner/name@revision.
        model: String,
        /// Don't ask.
        #[arg(long)]
        yes: bool,
        /// The result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Train without a screen.
    Train(TrainArgs),
    /// Look at training data.
    #[command(subcommand)]
    Data(DataCommand),
    /// Continue a prompt, with or without an adapter.
    Generate(GenerateArgs),
    /// Turn a GGUF file into a Hugging Face folder.
    Import {
        /// The GGUF file.
        file: PathBuf,
        /// Folder to make.
        #[arg(long)]
        to: PathBuf,
    },
    /// Export a finished run.
    Export {
        /// Run folder.
        run: PathBuf,
        /// peft, peft-compat, axolotl or llamafactory.
        #[arg(long)]
        to: String,
        /// New or empty folder to write to; default: the run's own folder.
        #[arg(long)]
        dest: Option<PathBuf>,
    },
    /// Check a run's files against its report.
    Verify {
        /// Run folder.
        run: PathBuf,
    },
    /// Set runs side by side.
    Compare {
        /// Run folders.
        #[arg(required = true, num_args = 1..)]
        runs: Vec<PathBuf>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say what this machine has and what is missing.
    Doctor {
        /// Also look at drives more closely.
        #[arg(long)]
        disk: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Measure the link, the drive, matrix products, or seconds per step.
    #[command(subcommand)]
    Bench(super::bench::BenchCommand),
    /// List checkpoints on this machine.
    Models {
        /// Folders to look in.
        places: Vec<PathBuf>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a run's events again, at their own pace.
    Replay {
        /// Run folder.
        run: PathBuf,
        /// How many times faster; 0 = at once.
        #[arg(long, default_value_t = 0.0)]
        speed: f64,
    },
}

/// `train`
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The config.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print the resolved config and the plan, and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// The report as JSON on stdout at the end.
    #[arg(long)]
    pub json: bool,
    /// Continue a run: its folder, or one of its checkpoint folders.
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Resume although the rows, or what makes a function of the adapter (alpha, rsLoRA), are others now.
    #[arg(long, requires = "resume")]
    pub force: bool,
}

/// `data …`
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Show one row as the model will see it: rendered template, token ids, loss mask.
    Inspect(InspectArgs),
}

/// `data inspect`
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// JSONL or JSON file.
    pub file: PathBuf,
    /// Model whose tokenizer and template apply.
    #[arg(long)]
    pub model: String,
    /// Row, counted from 1.
    #[arg(long, default_value_t = 1)]
    pub row: u64,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Set a data key, e.g. --set data.train_on=all.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// `generate`
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Model folder or hub id.
    #[arg(long)]
    pub model: String,
    /// PEFT adapter folder, or a run folder.
    #[arg(long)]
    pub adapter: Option<PathBuf>,
    /// The user's turn.
    #[arg(long)]
    pub prompt: String,
    /// File with a chat template [default: the one that the adapter was trained with, else the model's].
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Give the prompt as it is, without the chat template; the texts of control tokens become these tokens.
    #[arg(long)]
    pub raw: bool,
    /// Most tokens to make.
    #[arg(long, default_value_t = 64)]
    pub max_new_tokens: usize,
    /// Always the likeliest token.
    #[arg(long)]
    pub greedy: bool,
    /// Sampling temperature; 0 is greedy [default: the model's, else 0.7].
    #[arg(long, allow_negative_numbers = true, value_parser = ranges::temperature)]
    pub temperature: Option<f64>,
    /// Draw among this many likeliest tokens; 0 = all [default: the model's, else 0].
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Nucleus mass, 0 to 1 [default: the model's, else 0.9].
    #[arg(long, allow_negative_numbers = true, value_parser = ranges::mass)]
    pub top_p: Option<f64>,
    /// Divides the logits of tokens that stand in the text; 1 = off [default: the model's, else 1].
    #[arg(long, allow_negative_numbers = true, value_parser = ranges::penalty)]
    pub repetition_penalty: Option<f64>,
    /// End before this text; may be given more than once.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Sampling seed.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Where blocks wait that do not fit the device.
    #[arg(long, value_parser = one_of::<TierChoice>(TierChoice::NAMES), default_value_t)]
    pub tier: TierChoice,
    /// cpu, cuda or auto.
    #[arg(long, value_parser = one_of::<DeviceChoice>(DeviceChoice::NAMES), default_value_t)]
    pub device: DeviceChoice,
}

/// Reads a choice of the config; help and errors list its names.
fn one_of<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// Flags of our own that an alias of a config key must not swallow.
const OWN_FLAGS: [&str; 5] = ["model", "profile", "config", "results", "set"];

/// Turns `--learning-rate 1e-4` into `--set learning_rate=1e-4` for every key of the config.
///
/// The flags are the kebab-case of the keys, so there is one list of keys and it is the config's.
pub fn expand(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let takes_config = args.get(1).is_none_or(|a| a == "train" || a == "plan" || a.to_string_lossy().starts_with('-'));
    if !takes_config {
        return args;
    }
    let mut args = args.drain(..).peekable();
    let mut out = Vec::new();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let (name, inline) = match text.split_once('=') {
            Some((n, v)) => (n.to_string(), Some(v.to_string())),
            None => (text.to_string(), None),
        };
        let key = name.strip_prefix("--").map(|n| n.replace('-', "_"));
        match key.filter(|k| !OWN_FLAGS.contains(&k.as_str()) && load::is_key(k)) {
            Some(key) => {
                // `--rebuild-index` alone means true; a word of truth behind it is its value.
                let bare = load::is_flag(&key) && args.peek().is_none_or(|a| a != "true" && a != "false");
                let inline = inline.or_else(|| bare.then(|| "true".into()));
                let value =
                    inline.or_else(|| args.next().map(|v| v.to_string_lossy().into_owned())).unwrap_or_default();
                out.push("--set".into());
                out.push(format!("{key}={value}").into());
            }
            None => out.push(arg),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_what_takes_a_config_ends_with_its_keys() {
        use clap::CommandFactory;
        for name in ["plan", "train"] {
            let help = Cli::command().find_subcommand_mut(name).unwrap().render_long_help().to_string();
            for key in crate::config::config_keys() {
                assert!(help.contains(&format!("\n  {}", key.path)), "{name}: {}", key.path);
            }
        }
    }

    #[test]
    fn config_keys_are_flags() {
        let got =
            expand(["x", "train", "--learning-rate", "1e-4", "--max-steps=3", "--config", "c"].map(OsString::from));
        let want = ["x", "train", "--set", "learning_rate=1e-4", "--set", "max_steps=3", "--config", "c"];
        assert_eq!(got, want.map(OsString::from));
        let flags = ["x", "plan", "M", "--rebuild-index", "--deterministic", "false", "--skip-bad-lines=true"];
        let want = [
            "x",
            "plan",
            "M",
            "--set",
            "rebuild_index=true",
            "--set",
            "deterministic=false",
            "--set",
            "skip_bad_lines=true",
        ];
        assert_eq!(expand(flags.map(OsString::from)), want.map(OsString::from));
    }
}
