//! The terminal loop: keys, signals, a tick, and the run's events, on one current-thread runtime.
//!
//! Keys are read on a thread of their own and arrive by a bounded channel. The loop draws only when something changed.

use super::app::{App, Msg};
use super::noise::Noise;
use super::session::{Request, Session};
use super::term::{self, Screen};
use super::theme::Theme;
use crate::clock::{self, Clock};
use crate::config::RunConfig;
use crate::engine::Services;
use crate::error::{Error, ExitCode, Result};
use crate::event::Level;
use ratatui::crossterm::event::{self as input, Event as Input};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

const TICK: Duration = Duration::from_millis(100);
/// Key events that may wait; a flood of mouse or paste events blocks its reader, not the loop.
const INPUTS: usize = 64;

/// What a workbench starts with.
#[derive(Clone, Debug, Default)]
pub struct UiOptions {
    /// The config of the next run.
    pub config: RunConfig,
    /// No colour, whatever the environment says.
    pub no_color: bool,
    /// Only ASCII characters, whatever the locale says.
    pub ascii: bool,
    /// Folder for run folders, saved screens and the log of library noise.
    pub results: PathBuf,
    /// What the user should know about the config: aliases taken, values replaced.
    pub notes: Vec<String>,
}

/// Runs the workbench until the user leaves it.
///
/// # Errors
/// There is no terminal (exit code 2), or it refuses.
pub fn run(services: &mut dyn Services, options: UiOptions) -> Result<ExitCode> {
    let env = |name: &str| std::env::var(name).ok();
    term::require(env("TERM").as_deref())?;
    let theme = Theme::detect(options.no_color, options.ascii, &env);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::device(format!("no runtime for the screen: {e}")))?;
    let mut session = Session::new(options.config, theme, services);
    for note in options.notes {
        session.send(Msg::Say(Level::Info, note));
    }
    let noise = Noise::redirect(&options.results.join("blockstream-tui.log"))?;
    let mut screen = Screen::enter(noise)?;
    let code = runtime.block_on(watch(&mut session, &mut screen, &options.results));
    drop(screen);
    // A terminal that is gone can't be told, and the run's folder says the same.
    let _ = std::io::stderr().write_all(farewell(&session.app).as_bytes());
    code
}

/// What is said once the screen is gone.
fn farewell(app: &App) -> String {
    let run = &app.run;
    let report = run.started.as_ref().filter(|_| run.finished.is_some());
    let report = report.map(|s| format!("report: {}", s.run_dir.join("report.json").display()));
    let stopped = app.fetch.downloading();
    let stopped = stopped.map(|model| format!("the download stopped; resume with: blockstream-tui download {model}"));
    run.ending()
        .into_iter()
        .chain(report)
        .chain(stopped)
        .map(|line| crate::text::lines(&line).into_owned() + "\n")
        .collect()
}

/// Signals that reach the screen as messages.
struct Signals {
    int: Signal,
    term: Signal,
    hup: Signal,
    cont: Signal,
    stop: Signal,
}

impl Signals {
    fn install() -> Result<Signals> {
        let catch = |kind| signal(kind).map_err(|e| Error::device(format!("cannot catch signals: {e}")));
        Ok(Signals {
            int: catch(SignalKind::interrupt())?,
            term: catch(SignalKind::terminate())?,
            hup: catch(SignalKind::hangup())?,
            stop: catch(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
            cont: catch(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
        })
    }
}

async fn watch(session: &mut Session<'_>, screen: &mut Screen, results: &Path) -> Result<ExitCode> {
    let clock = Clock::real();
    let mut signals = Signals::install()?;
    let mut keys = read_keys()?;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let size = screen.terminal.size().map_err(lost)?;
    session.send(Msg::Resize(size.width, size.height));
    let (mut dirty, mut second, mut attached) = (true, 0, true);
    loop {
        if dirty && attached {
            // A terminal that is gone must not cost the run: save, stop, leave.
            if screen.terminal.draw(|f| super::frame::draw(&session.app, f)).is_err() {
                lose(session, &mut attached);
            }
        }
        dirty = true;
        tokio::select! {
            biased;
            _ = signals.term.recv() => session.send(Msg::Leave(ExitCode::Terminated)),
            // The kernel, the shell and our own writes may each tell of the same closed terminal.
            _ = signals.hup.recv() => lose(session, &mut attached),
            _ = signals.int.recv() => session.send(Msg::Leave(ExitCode::Interrupted)),
            _ = signals.stop.recv(), if attached => if screen.suspend().is_err() { lose(session, &mut attached) },
            // A closed terminal sends this one too, after SIGHUP.
            _ = signals.cont.recv(), if attached => if screen.resume().is_err() { lose(session, &mut attached) },
            received = keys.recv(), if attached => match received {
                Some(Input::Key(key)) => session.send(Msg::Key(key)),
                Some(Input::Paste(text)) => session.send(Msg::Paste(text)),
                Some(Input::Resize(w, h)) => session.send(Msg::Resize(w, h)),
                Some(_) => dirty = false,
                None => lose(session, &mut attached),
            },
            _ = tick.tick() => {
                let had_flash = session.app.flash.is_some();
                let now = clock.now();
                let events = session.tick(now);
                let noise = screen.noise();
                // While a run is on, its countdown moves once a second even if the trainer is silent.
                let moved = session.app.busy() && now as u64 != second;
                let fetched = session.app.fetch.take_changed();
                dirty = fetched || !events.is_empty() || !noise.is_empty() || moved || had_flash != session.app.flash.is_some();
                if moved {
                    second = now as u64;
                }
                if !noise.is_empty() {
                    session.send(Msg::Noise(noise));
                }
            }
        }
        while let Some(request) = session.request() {
            dirty = true;
            match request {
                Request::Quit(code) => return Ok(code),
                Request::Suspend if attached && screen.suspend().is_err() => lose(session, &mut attached),
                Request::Redraw if attached && screen.redraw().is_err() => lose(session, &mut attached),
                Request::Suspend | Request::Redraw => {}
                Request::SaveScreen => save_screen(session, screen, results),
            }
        }
    }
}

/// The terminal is gone: the run is saved and the program leaves, however often that is noticed.
fn lose(session: &mut Session<'_>, attached: &mut bool) {
    if std::mem::replace(attached, false) {
        session.hang_up();
    }
}

/// Reads the terminal on its own thread; ends with the channel or the terminal.
fn read_keys() -> Result<mpsc::Receiver<Input>> {
    let (tx, rx) = mpsc::channel(INPUTS);
    std::thread::Builder::new()
        .name("keys".into())
        .spawn(move || {
            while let Ok(event) = input::read() {
                if tx.blocking_send(event).is_err() {
                    return;
                }
            }
        })
        .map_err(|e| Error::device(format!("cannot start the keys thread: {e}")))?;
    Ok(rx)
}

fn save_screen(session: &mut Session<'_>, screen: &mut Screen, results: &Path) {
    let name = format!("screen-{}.txt", clock::utc(clock::unix_now()).replace(':', ""));
    let path = results.join(name);
    let buffer = screen.terminal.draw(|f| super::frame::draw(&session.app, f)).map(|done| done.buffer.clone());
    let written = buffer.and_then(|b| {
        std::fs::create_dir_all(results)?;
        std::fs::write(&path, buffer_text(&b))
    });
    session.send(match written {
        Ok(()) => Msg::Say(Level::Info, format!("screen written to {}", path.display())),
        Err(e) => Msg::Say(Level::Error, format!("cannot write '{}': {e}", path.display())),
    });
}

/// A drawn buffer as text: a line per row, nothing after its last sign.
#[must_use]
pub fn buffer_text(buffer: &ratatui::buffer::Buffer) -> String {
    let mut out = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut row = String::new();
        let mut skip = 0;
        for x in buffer.area.left()..buffer.area.right() {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            let symbol = buffer[(x, y)].symbol();
            skip = super::text::width(symbol).saturating_sub(1);
            row.push_str(symbol);
        }
        out.push_str(row.trim_end());
        out.push('\n');
    }
    out
}

fn lost(e: std::io::Error) -> Error {
    Error::device(format!("the terminal is gone: {e}"))
}
