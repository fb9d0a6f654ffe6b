//! The terminal, held by a guard: raw mode, alternate screen and cursor are given back however the program ends.

use super::noise::Noise;
use crate::error::{Error, Result};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{DisableBracketedPaste, DisableFocusChange, DisableMouseCapture, EnableBracketedPaste};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{cursor::Show, execute};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Refuses to start where there is no terminal to draw on or to read keys from. Touches nothing.
///
/// # Errors
/// stdin or stdout is not a terminal, or `TERM` is unset or `dumb`.
pub fn require(term: Option<&str>) -> Result<()> {
    let capable = term.is_some_and(|t| !t.is_empty() && t != "dumb");
    if capable && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return Ok(());
    }
    Err(Error::usage("no terminal: use --script FILE"))
}

/// The screen while the workbench is up. Dropping it restores the terminal and the descriptors.
pub struct Screen {
    /// Draws on the terminal itself, not on fd 1, which belongs to the log meanwhile.
    pub terminal: Terminal<CrosstermBackend<File>>,
    held: Arc<Held>,
}

/// What has to be undone, shared with the panic hook.
struct Held {
    tty: File,
    noise: Mutex<Option<Noise>>,
}

impl Screen {
    /// Takes the terminal: descriptors to the log first, then raw mode and the alternate screen.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn enter(noise: Noise) -> Result<Screen> {
        let tty = noise.tty()?;
        let held = Arc::new(Held { tty: noise.tty()?, noise: Mutex::new(Some(noise)) });
        hook(&held);
        let taken = held.take().and_then(|()| Terminal::new(CrosstermBackend::new(tty)));
        match taken {
            Ok(terminal) => Ok(Screen { terminal, held }),
            Err(e) => {
                held.release();
                Err(refused(e))
            }
        }
    }

    /// Gives the terminal back, stops this process, and takes the terminal again when it is continued.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn suspend(&mut self) -> Result<()> {
        self.held.give_back();
        // The whole group: under `make run` the shell watches make, and would wait for it forever. SIGSTOP, since a
        // caught SIGTSTP would not stop us.
        rustix::process::kill_current_process_group(rustix::process::Signal::STOP)
            .map_err(|e| Error::device(format!("cannot suspend: {e}")))?;
        self.resume()
    }

    /// Takes the terminal again after a stop from outside, and draws everything anew.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn resume(&mut self) -> Result<()> {
        // The shell may have left the line in any mode: forget what we believe about it.
        let _ = disable_raw_mode();
        self.held.take().map_err(refused)?;
        self.redraw()
    }

    /// Makes the next frame draw every cell.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn redraw(&mut self) -> Result<()> {
        // Not `clear`: it asks the terminal for the cursor and waits for the answer, which the keys thread takes.
        let size = self.terminal.size().map_err(refused)?;
        self.terminal.resize(ratatui::layout::Rect::from((ratatui::layout::Position::ORIGIN, size))).map_err(refused)
    }

    /// Lines that libraries wrote since the last call.
    #[must_use]
    pub fn noise(&self) -> Vec<String> {
        let mut noise = self.held.noise.lock().unwrap_or_else(PoisonError::into_inner);
        noise.as_mut().map(Noise::lines).unwrap_or_default()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.held.release();
    }
}

impl Held {
    fn take(&self) -> std::io::Result<()> {
        enable_raw_mode()?;
        execute!(&self.tty, EnterAlternateScreen, EnableBracketedPaste)
    }

    /// Each step on its own: one that fails must not keep the others from being undone. Whether the terminal still
    /// takes what is written to it.
    fn give_back(&self) -> bool {
        let mut tty = &self.tty;
        let _ = execute!(tty, DisableMouseCapture);
        let _ = execute!(tty, DisableBracketedPaste);
        let _ = execute!(tty, DisableFocusChange);
        let there = execute!(tty, LeaveAlternateScreen, Show).and_then(|()| tty.flush()).is_ok();
        let _ = disable_raw_mode();
        there
    }

    fn release(&self) {
        let mut noise = self.noise.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(noise) = noise.take() {
            // Where the terminal is gone the log keeps the last words, and a panic on a dead stderr can't follow.
            if self.give_back() { drop(noise) } else { noise.keep() }
        }
    }
}

/// A panic on this thread restores the terminal before its message is printed; one on another thread (the trainer's
/// is caught) leaves the screen alone, and its message goes to the log.
fn hook(held: &Arc<Held>) {
    let (ui, held) = (std::thread::current().id(), Arc::downgrade(held));
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == ui
            && !crate::panics::is_caught()
            && let Some(held) = held.upgrade()
        {
            held.release();
        }
        before(info);
    }));
}

fn refused(e: std::io::Error) -> Error {
    Error::device(format!("the terminal refuses: {e}")).next("use --script FILE")
}
