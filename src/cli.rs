//! cli: see src/ARCHITECTURE.md. (A stand-in until the command line is written.)

use crate::config::RunConfig;
use crate::error::ExitCode;
use std::io::Write;
use std::path::PathBuf;

/// Runs the program; the code it exits with.
#[cfg(feature = "tui")]
#[must_use]
pub fn main() -> ExitCode {
    use crate::ui::UiOptions;
    use crate::worker::Signals;
    use crate::worker::fake::from_env;
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
    let mut options = UiOptions {
        config,
        results: results.clone(),
        ..UiOptions::default()
    };
    options.no_color = args.iter().any(|a| a == "--no-color");
    options.ascii = args.iter().any(|a| a == "--ascii");
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let script = value("--script");
    let signals = if script.is_some() {
        Signals::install()
    } else {
        Signals::observe()
    };
    let services = signals.and_then(|s| from_env(&results, &s));
    let mut desk = match services {
        Ok(Some(desk)) => desk,
        Ok(None) => {
            let _ = writeln!(
                err,
                "only the scripted engine is here yet: set BSTUI_FAKE_ENGINE=1"
            );
            return ExitCode::Usage;
        }
        Err(e) => {
            let _ = writeln!(err, "{e}");
            return e.exit_code();
        }
    };
    if let Some(file) = script {
        return crate::script::run(file.as_ref(), desk.as_mut(), options, &mut out, &mut err);
    }
    match crate::ui::run(desk.as_mut(), options) {
        Ok(code) => code,
        Err(e) => {
            let _ = writeln!(err, "{e}");
            e.exit_code()
        }
    }
}
