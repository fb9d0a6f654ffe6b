//! Keeps what benchmarks measured, and says so on stderr; `bench calibrate`.

use super::print;
use crate::bench::{calibrate, keep};
use crate::checkpoint;
use crate::clock;
use crate::device::{calibration, disk, host, probe};
use crate::error::{Error, ExitCode, Result};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

/// `bench calibrate`
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Model folder or hub id whose drive is read; default: the largest weights in the hub cache.
    pub model: Option<String>,
    /// Keep nothing.
    #[arg(long)]
    pub no_save: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Keeps the answers for plans to come. Failing to is said, and no error: the figures are printed all the same.
pub fn keep(answers: &[&Value]) -> Option<PathBuf> {
    let Some(file) = calibration::default_file() else {
        print::progress("not saved: neither XDG_STATE_HOME nor HOME names a folder");
        return None;
    };
    let machine = probe::measure(None, true);
    let whose = keep::Whose { gpu: machine.gpu.as_ref(), cpu: host::cpu(), at: clock::unix_now() };
    let mut kept = Vec::new();
    let saved = calibration::save(&file, |all| {
        for answer in answers {
            match keep::keep(all, answer, &whose) {
                Ok(what) => kept.push(what),
                Err(why) => {
                    let what = answer["what"].as_str().unwrap_or("a part");
                    print::progress(&format!("{what} is not saved: {why}"));
                }
            }
        }
    });
    match saved {
        Ok(notes) => notes.iter().for_each(|n| print::progress(n)),
        Err(e) => {
            print::progress(&format!("not saved: {e}"));
            return None;
        }
    }
    if kept.is_empty() {
        return None;
    }
    print::progress(&format!("saved for later plans in '{}': {}", file.display(), kept.join(", ")));
    Some(file)
}

/// Measures drive, link and products.
///
/// # Errors
/// The model isn't on this machine.
pub fn calibrate(args: &CalibrateArgs) -> Result<ExitCode> {
    let (dir, files) = match &args.model {
        Some(model) => weights(model)?,
        None => match checkpoint::hub::cache_dir().and_then(|d| disk::largest_weights(&d)) {
            Some(file) => (file.parent().map(PathBuf::from).unwrap_or_default(), vec![file]),
            None => (PathBuf::from("."), Vec::new()),
        },
    };
    let gpu = probe::measure(None, true).gpu.and_then(|g| g.uuid);
    let mut value = calibrate::run(&calibrate::Job { files, dir, gpu }, &print::progress);
    let measured = ["disk", "link", "gemm", "overhead"].map(|part| &value[part]);
    let answers: Vec<&Value> = measured.into_iter().filter(|v| v["what"].is_string()).collect();
    let file = if args.no_save || answers.is_empty() { None } else { keep(&answers) };
    value["saved"] = json!(file);
    if args.json { print::json(&value) } else { print::line(calibrate::render(&value).trim_end()) }
}

/// Folder and weight files of a checkpoint.
///
/// # Errors
/// It isn't there, or only its headers are.
pub fn weights(model: &str) -> Result<(PathBuf, Vec<PathBuf>)> {
    let opened = checkpoint::open(&checkpoint::resolve(model)?)?;
    if opened.not_here {
        return Err(Error::checkpoint(format!("the weights of '{}' are not on this machine", opened.name))
            .next("download them first, or give --path"));
    }
    Ok((opened.dir.clone(), opened.files.iter().map(|f| f.path.clone()).collect()))
}
