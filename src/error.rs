//! One error type for the whole program: what happened, to what, and what to do next.
//!
//! The kind decides the exit code; the text is written for the person at the keyboard.

use std::fmt;
use std::path::Path;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Process exit codes, as documented in the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// Everything asked for was done.
    Ok = 0,
    /// The run, or an expectation of a script, failed.
    Failed = 1,
    /// Bad command line, config, script or input file.
    Usage = 2,
    /// The plan says it can't be done on this machine.
    Infeasible = 3,
    /// Stopped before the last step, with everything saved.
    StoppedEarly = 4,
    /// SIGINT.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
}

/// What sort of thing went wrong; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Command line, config or script.
    Usage,
    /// A checkpoint folder or one of its files.
    Checkpoint,
    /// A data file or one of its rows.
    Data,
    /// The plan is infeasible.
    Infeasible,
    /// GPU, driver or library.
    Device,
    /// The operating system refused a read or a write.
    Io,
    /// Training or generation failed while running.
    Run,
    /// The device has no memory left.
    OutOfMemory,
    /// Somebody asked for a stop: no fault, but what was going on ends here.
    Stopped,
}

/// What happened, and what to do next.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    what: String,
    next: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` that says `what` happened (to which file or value).
    pub fn new(kind: Kind, what: impl Into<String>) -> Error {
        Error { kind, what: what.into(), next: None, source: None }
    }
    /// Bad command line, config or script.
    pub fn usage(what: impl Into<String>) -> Error {
        Error::new(Kind::Usage, what)
    }
    /// A checkpoint can't be read as it is.
    pub fn checkpoint(what: impl Into<String>) -> Error {
        Error::new(Kind::Checkpoint, what)
    }
    /// A data file or row can't be used.
    pub fn data(what: impl Into<String>) -> Error {
        Error::new(Kind::Data, what)
    }
    /// The plan is infeasible.
    pub fn infeasible(what: impl Into<String>) -> Error {
        Error::new(Kind::Infeasible, what)
    }
    /// GPU, driver or library.
    pub fn device(what: impl Into<String>) -> Error {
        Error::new(Kind::Device, what)
    }
    /// Training or generation failed while running.
    pub fn run(what: impl Into<String>) -> Error {
        Error::new(Kind::Run, what)
    }
    /// An operating system error at `path` while doing `what` ("read", "create", …).
    pub fn io(what: &str, path: &Path, source: std::io::Error) -> Error {
        Error {
            kind: Kind::Io,
            what: format!("cannot {what} '{}': {source}", path.display()),
            next: None,
            source: Some(Box::new(source)),
        }
    }

    /// As [`Error::io`], for a file the user named: a usage error.
    pub fn input(what: &str, path: &Path, source: std::io::Error) -> Error {
        Error { kind: Kind::Usage, ..Error::io(what, path, source) }
    }

    /// Somebody asked for a stop; work returns this instead of going on.
    #[must_use]
    pub fn stopped() -> Error {
        Error::new(Kind::Stopped, "stopped on request")
    }

    /// Adds what to do next, a full clause: "fetch the real file".
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Error {
        self.next = Some(next.into());
        self
    }
    /// Keeps the cause for `--verbose` and logs.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.source = Some(source.into());
        self
    }
    /// Whether this is a stop that was asked for.
    #[must_use]
    pub fn is_stop(&self) -> bool {
        self.kind == Kind::Stopped
    }
    /// What sort of error this is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// Whether less at a time might do.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == Kind::OutOfMemory
    }
    /// What happened, without the advice.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }
    /// The advice, if any.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.next.as_deref()
    }
    /// The process exit code of this error.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.kind {
            Kind::Usage | Kind::Checkpoint | Kind::Data => ExitCode::Usage,
            Kind::Infeasible => ExitCode::Infeasible,
            Kind::Stopped => ExitCode::StoppedEarly,
            Kind::Device | Kind::Io | Kind::Run | Kind::OutOfMemory => ExitCode::Failed,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if let Some(next) = &self.next {
            write!(f, "; {next}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_and_what_next() {
        let e = Error::checkpoint("'model.safetensors' is a Git-LFS pointer").next("fetch the real file");
        assert_eq!(e.to_string(), "'model.safetensors' is a Git-LFS pointer; fetch the real file");
        assert_eq!(e.exit_code(), ExitCode::Usage);
        assert_eq!(Error::infeasible("x").exit_code() as u8, 3);
    }
}
