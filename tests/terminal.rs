//! The real binary on a real pseudo-terminal, over the scripted engine: it starts and quits, a panic gives the
//! terminal back, library noise stays off the screen, and without a terminal it says what to use instead.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(all(feature = "tui", unix))]

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// The program over the scripted engine (`tests/support/scripted.rs`).
fn scripted() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_blockstream-tui"));
    program.with_file_name("examples").join("scripted")
}

fn parser(rows: u16, columns: u16) -> vt100::Parser {
    let side = |n| std::num::NonZero::new(n).unwrap();
    vt100::Parser::new(side(rows), side(columns), 0)
}

/// The program on a terminal of 80×24.
struct Term {
    master: Box<dyn MasterPty + Send>,
    writer: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    bytes: Receiver<Vec<u8>>,
    raw: Vec<u8>,
    screen: vt100::Parser,
    results: tempfile::TempDir,
    /// Tells the reader to let go of the terminal at what comes next.
    let_go: Arc<AtomicBool>,
}

impl Term {
    fn start(env: &[(&str, &str)]) -> Term {
        Term::start_in(env, "")
    }

    /// The results go into the folder `sub` of a fresh one.
    fn start_in(env: &[(&str, &str)], sub: &str) -> Term {
        let size = PtySize { rows: 24, cols: 80, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let results = tempfile::tempdir().unwrap();
        let mut command = CommandBuilder::new(scripted());
        command.args(["--results", results.path().join(sub).to_str().unwrap()]);
        command.cwd(results.path());
        for name in ["NO_COLOR", "LC_ALL", "LC_CTYPE", "COLORTERM"] {
            command.env_remove(name);
        }
        // A backtrace would scroll a panic's message out of the log pane.
        let fixed = [("TERM", "xterm-256color"), ("LANG", "C.UTF-8"), ("SCRIPTED_MS", "2"), ("RUST_BACKTRACE", "0")];
        for (name, value) in fixed {
            command.env(name, value);
        }
        for (name, value) in env {
            command.env(name, value);
        }
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().unwrap();
        let writer = pair.master.take_writer().unwrap();
        let (tx, bytes) = sync_channel(1_024);
        let let_go = Arc::new(AtomicBool::new(false));
        let letting_go = let_go.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if letting_go.load(Ordering::SeqCst) || tx.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        let screen = parser(24, 80);
        Term { master: pair.master, writer, child, bytes, raw: Vec::new(), screen, results, let_go }
    }

    fn pump(&mut self) {
        while let Ok(bytes) = self.bytes.recv_timeout(Duration::from_millis(10)) {
            self.screen.process(&bytes);
            self.raw.extend(bytes);
        }
    }

    fn shown(&self) -> String {
        self.screen.screen().contents()
    }

    fn until(&mut self, what: &str, test: impl Fn(&Term) -> bool) {
        let since = Instant::now();
        while !test(self) {
            assert!(since.elapsed() < Duration::from_secs(15), "never {what}:\n{}", self.shown());
            self.pump();
        }
    }

    fn until_shown(&mut self, text: &str) {
        self.until(&format!("shown: {text}"), |t| t.shown().contains(text));
    }

    fn keys(&mut self, keys: &str) {
        self.writer.write_all(keys.as_bytes()).unwrap();
        self.writer.flush().unwrap();
    }

    /// Waits for the end; returns the exit code and everything that came.
    fn code(&mut self) -> u32 {
        let since = Instant::now();
        loop {
            self.pump();
            if let Some(status) = self.child.try_wait().unwrap() {
                self.pump();
                return status.exit_code();
            }
            assert!(since.elapsed() < Duration::from_secs(15), "it does not end:\n{}", self.shown());
        }
    }

    fn position(&self, bytes: &str) -> Option<usize> {
        self.raw.windows(bytes.len()).position(|w| w == bytes.as_bytes())
    }

    /// The line discipline is cooked again: the kernel echoes and edits lines.
    fn cooked(&self) -> bool {
        let termios = self.master.get_termios().unwrap();
        let text = format!("{:?}", termios.local_flags);
        text.contains("ICANON") && text.contains("ECHO")
    }
}

const ENTER_SCREEN: &str = "\u{1b}[?1049h";
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";
const SHOW_CURSOR: &str = "\u{1b}[?25h";

#[test]
fn it_starts_trains_by_keyboard_and_quits() {
    let mut t = Term::start(&[("SCRIPTED_STEPS", "5")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r");
    t.until_shown("✓ RAM");
    t.keys("\r");
    t.until_shown("✓ finished");
    t.keys("5");
    t.until_shown("2.90 → 1.20");
    t.keys("q");
    assert_eq!(t.code(), 0);
    assert!(t.position(ENTER_SCREEN) < t.position(LEAVE_SCREEN));
    assert!(t.cooked());
    assert!(t.results.path().join("fake-1/report.json").exists());
    assert!(!t.results.path().join("blockstream-tui.log").exists(), "no noise, no log");
}

#[test]
fn case_fo_61_looking_around_makes_no_folder_and_noise_is_kept_all_the_same() {
    let mut t = Term::start_in(&[], "not-there-yet");
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("235q");
    assert_eq!(t.code(), 0);
    assert!(!t.results.path().join("not-there-yet").exists());

    let mut t = Term::start_in(&[("SCRIPTED_STEPS", "5"), ("SCRIPTED_FAULT", "noise")], "not-there-yet");
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r\r");
    t.until_shown("» XXXX from a library on fd 2");
    t.until_shown("✓ finished");
    t.keys("q");
    assert_eq!(t.code(), 0);
    let log = std::fs::read_to_string(t.results.path().join("not-there-yet/blockstream-tui.log")).unwrap();
    assert!(log.contains("XXXX from a library"), "{log}");
}

#[test]
fn case_fo_61_a_mouse_report_of_no_place_ends_nothing() {
    let mut t = Term::start(&[]);
    t.until_shown("SmolLM2-135M-Instruct");
    for report in ["\u{1b}[<0;0;0M", "\u{1b}[<0;0;0m", "\u{1b}[M   ", "\u{1b}[0;0;0M"] {
        t.keys(report);
    }
    t.keys("5");
    t.until_shown("2.90 → 1.20");
    t.keys("q");
    assert_eq!(t.code(), 0);
}

#[test]
fn case_tr_09_save_and_stop_from_the_keyboard_exits_four() {
    let mut t = Term::start(&[("SCRIPTED_STEPS", "100000")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r\r");
    t.until_shown("training");
    t.keys("\u{3}");
    t.until_shown("d discard");
    t.keys("s");
    assert_eq!(t.code(), 4);
    assert!(t.cooked());
}

#[test]
fn case_tr_09_sigterm_saves_restores_the_terminal_and_exits_143() {
    let mut t = Term::start(&[("SCRIPTED_STEPS", "100000")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r\r");
    t.until_shown("training");
    let pid = t.child.process_id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(t.code(), 143);
    assert!(t.position(LEAVE_SCREEN).is_some() && t.cooked());
    assert!(t.shown().contains("saved at step") && t.shown().contains("train --resume"), "{}", t.shown());
    let report = std::fs::read_to_string(t.results.path().join("fake-1/report.json")).unwrap();
    assert!(report.contains("\"status\": \"terminated\""), "{report}");
}

#[test]
fn case_fo_47_the_program_itself_has_no_scripted_engine() {
    let d = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_blockstream-tui"));
    program.current_dir(d.path()).args(["--script", "s.txt"]).env("SCRIPTED_MS", "1").env("SCRIPTED_STEPS", "2");
    std::fs::write(d.path().join("s.txt"), "open models/SmolLM2-135M-Instruct\nrun\nwait finished 20s\n").unwrap();
    let out = program.output().unwrap();
    assert!(!out.status.success(), "it trains no invented model: {}", String::from_utf8_lossy(&out.stdout));
    assert!(!d.path().join("results").exists(), "and reports on none");
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_blockstream-tui")).unwrap();
    for name in ["BSTUI_FAKE_ENGINE", "BSTUI_PANIC_TEST", "SCRIPTED_MS", "as told"] {
        assert!(!bytes.windows(name.len()).any(|w| w == name.as_bytes()), "{name} is in the program");
    }
}

#[test]
fn case_ui_04_a_panic_gives_the_terminal_back_before_its_message() {
    let mut t = Term::start(&[("SCRIPTED_FAULT", "screen")]);
    assert_eq!(t.code(), 101);
    let at = |s: &str| t.position(s).unwrap_or_else(|| panic!("no {s:?} in {}", String::from_utf8_lossy(&t.raw)));
    let order = [
        at(ENTER_SCREEN),
        at("\u{1b}[?1000l"),
        at("\u{1b}[?2004l"),
        at("\u{1b}[?1004l"),
        at(LEAVE_SCREEN),
        at(LEAVE_SCREEN) + t.raw[at(LEAVE_SCREEN)..].windows(6).position(|w| w == SHOW_CURSOR.as_bytes()).unwrap(),
        at("the screen panicked as told"),
    ];
    assert!(order.windows(2).all(|w| w[0] < w[1]), "{order:?}");
    assert!(t.cooked());
}

#[test]
fn case_ui_07_library_noise_goes_to_the_log_and_its_pane() {
    let mut t = Term::start(&[("SCRIPTED_STEPS", "5"), ("SCRIPTED_FAULT", "noise")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r\r");
    t.until_shown("✓ finished");
    t.until_shown("» XXXX from a library on fd 2");
    t.until_shown("» YYYY from a library on fd 1");
    t.keys("1");
    t.until_shown("─ models ");
    assert!(!t.shown().contains("XXXX"), "nothing is painted over another screen");
    t.keys("q");
    assert_eq!(t.code(), 0);
    let log = std::fs::read_to_string(t.results.path().join("blockstream-tui.log")).unwrap();
    assert!(log.contains("XXXX from a library") && log.contains("YYYY from a library"));
}

#[test]
fn a_panic_of_the_trainer_leaves_the_screen_alone() {
    let mut t = Term::start(&[("SCRIPTED_STEPS", "5"), ("SCRIPTED_FAULT", "panic")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r\r");
    t.until_shown("✗ failed");
    t.until_shown("panicked as told");
    assert!(t.position(LEAVE_SCREEN).is_none());
    t.keys("q");
    assert_eq!(t.code(), 1, "the run that failed is what was left");
}

#[test]
fn case_ui_12_no_color_in_the_byte_stream_and_case_ui_17_no_mouse_capture() {
    let mut t = Term::start(&[("NO_COLOR", "1")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("q");
    assert_eq!(t.code(), 0);
    let text = String::from_utf8_lossy(&t.raw).into_owned();
    for sgr in text.split("\u{1b}[").filter_map(|s| s.split_once('m')).map(|(sgr, _)| sgr) {
        if sgr.chars().all(|c| c.is_ascii_digit() || c == ';') {
            let coloured = sgr.split(';').any(|n| matches!(n.parse::<u32>(), Ok(30..=38 | 40..=48 | 90..=107)));
            assert!(!coloured, "{sgr}");
        }
    }
    for capture in ["\u{1b}[?1000h", "\u{1b}[?1002h", "\u{1b}[?1003h"] {
        assert!(t.position(capture).is_none());
    }
}

#[test]
fn case_ui_14_a_c_locale_gets_ascii_bytes_only() {
    let mut t = Term::start(&[("LC_ALL", "C"), ("SCRIPTED_STEPS", "5")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r\r");
    t.until_shown("+ finished");
    t.keys("q");
    assert_eq!(t.code(), 0);
    assert!(t.raw.is_ascii());
}

#[test]
fn case_ui_16_ctrl_z_restores_stops_and_comes_back_repainted() {
    let mut t = Term::start(&[]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\u{1a}");
    t.until("left the screen", |t| t.position(LEAVE_SCREEN).is_some());
    let pid = t.child.process_id().unwrap();
    let state = move || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|s| s.chars().next()).unwrap_or('?')
    };
    t.until("stopped", |_| state() == 'T');
    assert!(t.cooked());
    t.screen = parser(30, 90);
    t.master.resize(PtySize { rows: 30, cols: 90, pixel_width: 0, pixel_height: 0 }).unwrap();
    assert!(Command::new("kill").args(["-CONT", &pid.to_string()]).status().unwrap().success());
    t.until_shown("SmolLM2-135M-Instruct");
    t.until("as wide as the terminal now is", |t| t.shown().lines().any(|l| l.chars().count() == 90));
    t.keys("q");
    assert_eq!(t.code(), 0);
}

/// Runs the binary without a terminal on `stdin` or `stdout`.
fn piped(term: Option<&str>) -> (Option<i32>, String, String) {
    let mut command = Command::new(scripted());
    command.env("SCRIPTED_MS", "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("TERM");
    if let Some(term) = term {
        command.env("TERM", term);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn case_ui_06_without_a_terminal_it_exits_two_and_writes_plain_text() {
    for term in [Some("xterm"), Some("dumb"), None] {
        let (code, out, err) = piped(term);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{term:?}");
        assert!(err.contains("no terminal: use --script") && !err.contains('\u{1b}'), "{err}");
    }
    // A terminal that says it is dumb is none.
    let mut t = Term::start(&[("TERM", "dumb")]);
    assert_eq!(t.code(), 2);
    assert!(t.shown().contains("no terminal: use --script"));
    assert!(t.position(ENTER_SCREEN).is_none());
}

#[test]
fn case_ui_18_a_script_keeps_data_on_stdout_and_progress_on_stderr() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("t.script");
    std::fs::write(&script, "run\nwait finished 20s\nexpect steps == 5\nsnapshot end\n").unwrap();
    let run = |script: &Path| {
        let mut command = Command::new(scripted());
        command.env("SCRIPTED_MS", "0").env("SCRIPTED_STEPS", "5").stdin(Stdio::null());
        command.arg("--script").arg(script).arg("--results").arg(dir.path());
        command.args(["--model", "models/SmolLM2-135M-Instruct"]).output().unwrap()
    };
    let output = run(&script);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert_eq!(out.lines().count(), 2, "{out}");
    assert!(out.lines().all(|l| Path::new(l).is_file()), "{out}");
    assert!(err.contains("step 5/5"));
    std::fs::write(&script, "size 80x24\nopen plan\nnonsense\n").unwrap();
    let output = run(&script);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("t.script:3: unknown command 'nonsense'"));
}

#[test]
fn case_tr_09_signals_end_a_script_saved_and_by_their_number() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("t.script");
        std::fs::write(&script, "run\nwait finished 60s\n").unwrap();
        let mut child = Command::new(scripted())
            .envs([("SCRIPTED_MS", "1"), ("SCRIPTED_STEPS", "100000")])
            .arg("--script")
            .arg(&script)
            .arg("--results")
            .arg(dir.path())
            .args(["--model", "models/SmolLM2-135M-Instruct"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
        assert!(lines.any(|l| l.unwrap().starts_with("step 2/")), "it trains");
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{rest:?}");
        assert!(rest.iter().any(|l| l.contains("train --resume")), "{rest:?}");
    }
}

/// Closes the terminal `after` a run has begun to train; the kernel then sends SIGHUP and SIGCONT, and every read and
/// write answers EIO.
fn close_terminal(after: Duration) {
    let mut t = Term::start(&[("SCRIPTED_STEPS", "100000")]);
    t.until_shown("SmolLM2-135M-Instruct");
    t.keys("\r\r");
    t.until_shown("training");
    std::thread::sleep(after);
    let Term { master, writer, mut child, bytes, results, let_go, .. } = t;
    let_go.store(true, Ordering::SeqCst);
    drop((master, writer));
    let since = Instant::now();
    let status = loop {
        while bytes.try_recv().is_ok() {}
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(since.elapsed() < Duration::from_secs(15), "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    let log = std::fs::read_to_string(results.path().join("blockstream-tui.log")).unwrap_or_default();
    assert_eq!(status.exit_code(), 143, "{status:?} {log}");
    let report = std::fs::read_to_string(results.path().join("fake-1/report.json")).unwrap();
    // Also where the terminal's EIO was seen, and the run over, before the kernel's signal came.
    assert!(report.contains("\"status\": \"terminated\""), "{report}");
    assert!(log.contains("saved at step") && log.contains("train --resume"), "{log}");
}

#[test]
fn case_fo_50_closing_the_terminal_saves_the_run_at_any_moment() {
    // A run's visits take 2 ms here: the moments lie in steps, between them and around a redraw.
    for quarter in 0..5 {
        std::thread::scope(|s| {
            for k in 0..4 {
                s.spawn(move || close_terminal(Duration::from_millis(quarter * 130 + k * 37)));
            }
        });
    }
}
