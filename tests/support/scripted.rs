//! The whole program over the scripted desk, for `tests/terminal.rs`: `SCRIPTED_MS` milliseconds a block,
//! `SCRIPTED_STEPS` steps a run, `SCRIPTED_FAULT` noise, error, panic, nan, slow or screen.

use blockstream_tui::cli;
use blockstream_tui::config::RunConfig;
use blockstream_tui::engine::Services;
use blockstream_tui::error::{Error, Result};
use blockstream_tui::worker::Signals;
use blockstream_tui::worker::fake::{FakeDesk, FakeEngine, Fault};
use std::path::PathBuf;
use std::time::Duration;

fn main() {
    std::process::exit(cli::main_on(scripted) as i32);
}

fn scripted(results: PathBuf, _: &RunConfig, signals: Signals) -> Result<Box<dyn Services>> {
    let set = |name: &str| std::env::var(name).ok();
    let number = |name: &str| {
        let read = |v: String| v.parse::<u64>().map_err(|_| Error::usage(format!("{name}='{v}' is not a number")));
        set(name).map(read).transpose()
    };
    let fault = set("SCRIPTED_FAULT").unwrap_or_default();
    let engine = FakeEngine {
        visit: Duration::from_millis(number("SCRIPTED_MS")?.unwrap_or(0)),
        steps: number("SCRIPTED_STEPS")?,
        fault: Fault::named(&fault).ok_or_else(|| Error::usage(format!("SCRIPTED_FAULT='{fault}' is no fault")))?,
        ..FakeEngine::default()
    };
    Ok(Box::new(FakeDesk::new(engine, results, signals)))
}
