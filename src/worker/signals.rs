//! SIGINT and SIGTERM as counters: the first finishes the step and saves, the second drops it and saves, the third
//! leaves at once. Hang-ups count once: kernel and shell each send one for the same closed terminal.

use crate::error::{Error, Result};
use crate::event::{Command, RunStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts of signals received. Clones share them; [`Signals::none`] catches nothing.
#[derive(Clone, Debug, Default)]
pub struct Signals(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    int: AtomicUsize,
    term: AtomicUsize,
    hung_up: AtomicBool,
    runs: AtomicUsize,
}

impl Signals {
    /// Nothing is caught.
    #[must_use]
    pub fn none() -> Signals {
        Signals::default()
    }

    /// Catches SIGINT, SIGTERM and SIGHUP of a program without a screen (a closed terminal counts as SIGTERM). While no
    /// run is on they do what they always do: end the process.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn install() -> Result<Signals> {
        Signals::catch(true)
    }

    /// Counts the same signals for a program whose screen answers them itself.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn observe() -> Result<Signals> {
        Signals::catch(false)
    }

    fn catch(die_when_idle: bool) -> Result<Signals> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let refused = |e: std::io::Error| Error::device(format!("cannot catch signals: {e}"));
        let mut received = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(refused)?;
        let signals = Signals::default();
        let seen = signals.clone();
        let body = move || {
            for signal in received.forever() {
                if die_when_idle && seen.0.runs.load(Ordering::SeqCst) == 0 {
                    // If even that is refused there is nothing left to do but go on.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                match signal {
                    SIGINT => seen.interrupt(),
                    SIGHUP => seen.hang_up(),
                    _ => seen.terminate(),
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(body).map_err(refused)?;
        Ok(signals)
    }

    /// A run begins that these signals stop.
    pub(super) fn run_begins(&self) {
        self.0.runs.fetch_add(1, Ordering::SeqCst);
        self.0.hung_up.store(false, Ordering::SeqCst);
    }
    /// It has ended, its record is closed.
    pub(super) fn run_ends(&self) {
        self.0.runs.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts one SIGINT, as the handler does.
    pub fn interrupt(&self) {
        self.0.int.fetch_add(1, Ordering::SeqCst);
    }
    /// Counts one SIGTERM, as the handler does.
    pub fn terminate(&self) {
        self.0.term.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a SIGHUP, as the handler does: as one SIGTERM, however often it comes in a run.
    pub fn hang_up(&self) {
        if !self.0.hung_up.swap(true, Ordering::SeqCst) {
            self.terminate();
        }
    }

    /// Signals received so far.
    #[must_use]
    pub fn received(&self) -> Received {
        Received { int: self.0.int.load(Ordering::SeqCst), term: self.0.term.load(Ordering::SeqCst) }
    }

    /// What the trainer is asked to do after `count` signals.
    #[must_use]
    pub fn command(count: usize) -> Option<Command> {
        match count {
            0 => None,
            1 => Some(Command::StopAndSave),
            2 => Some(Command::DropStep),
            _ => Some(Command::Discard),
        }
    }
}

/// How many signals of each sort have come. A closed terminal counts as a SIGTERM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    int: usize,
    term: usize,
}

impl Received {
    /// All of them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.int + self.term
    }

    /// Those that came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: Received) -> Received {
        Received { int: self.int - earlier.int, term: self.term - earlier.term }
    }

    /// The status of a run that these signals stopped, or `status` as it is.
    #[must_use]
    pub fn status(&self, status: RunStatus) -> RunStatus {
        match status {
            RunStatus::Stopped | RunStatus::Aborted if self.term > 0 => RunStatus::Terminated,
            RunStatus::Stopped | RunStatus::Aborted if self.int > 0 => RunStatus::Interrupted,
            other => other,
        }
    }
}
