//! cli: see src/ARCHITECTURE.md. (A stand-in until the command line is written.)

use crate::config::RunConfig;
use crate::error::ExitCode;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Runs the program; the code it exits with.
#[cfg(feature = "tui")]
#[must_use]
pub fn main() -> ExitCode {
    use crate::ui::UiOptions;
    use crate::worker::Signals;
    use crate::worker::fake::{FakeDesk, FakeEngine, Fault};
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        args.iter()
            .position(|a| a == name)
            .and_then(|i| args.get(i + 1))
            .cloned()
    };
    let results = PathBuf::from(value("--results").unwrap_or_else(|| "results".into()));
    let mut config = RunConfig::default();
    config.model.path = value("--model").unwrap_or_default();
    config.train.max_steps = std::env::var("BSTUI_FAKE_STEPS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let Some(ms) = std::env::var("BSTUI_FAKE_ENGINE")
        .ok()
        .and_then(|s| s.parse().ok())
    else {
        let _ = writeln!(
            std::io::stderr(),
            "only the scripted engine is here yet: set BSTUI_FAKE_ENGINE=1"
        );
        return ExitCode::Usage;
    };
    let fault = match std::env::var("BSTUI_FAKE_FAULT").as_deref() {
        Ok("noise") => Fault::Noise(1),
        Ok("panic") => Fault::Panic(2),
        Ok("error") => Fault::Error(2),
        Ok("nan") => Fault::Nan(2),
        _ => Fault::None,
    };
    let engine = FakeEngine {
        visit: Duration::from_millis(ms),
        fault,
        ..FakeEngine::default()
    };
    let mut options = UiOptions {
        config,
        results: results.clone(),
        ..UiOptions::default()
    };
    options.no_color = args.iter().any(|a| a == "--no-color");
    options.ascii = args.iter().any(|a| a == "--ascii");
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    if let Some(file) = value("--script") {
        let signals = Signals::install().unwrap_or_default();
        let mut desk = FakeDesk::new(engine, results, signals);
        return crate::script::run(file.as_ref(), &mut desk, options, &mut out, &mut err);
    }
    let mut desk = FakeDesk::new(engine, results, Signals::observe().unwrap_or_default());
    match crate::ui::run(&mut desk, options) {
        Ok(code) => code,
        Err(e) => {
            let _ = writeln!(err, "{e}");
            e.exit_code()
        }
    }
}
