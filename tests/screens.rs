//! The screens on ratatui's test backend, over the scripted desk and a clock that tests hold: what they show at four
//! sizes, that nothing panics at any size, and what keys do.
#![cfg(feature = "tui")]

use blockstream_tui::config::RunConfig;
use blockstream_tui::error::ExitCode;
use blockstream_tui::event::{BlockState, Command, Event, EventKind, Level, Notice, RunFinished, RunStatus};
use blockstream_tui::event::{StreamStats, VramFigures};
use blockstream_tui::plan::Verdict;
use blockstream_tui::ui::app::{App, Effect, Msg, Screen};
use blockstream_tui::ui::keys::{self, Action, BINDINGS};
use blockstream_tui::ui::overlay::Overlay;
use blockstream_tui::ui::theme::{Depth, Theme};
use blockstream_tui::ui::{Request, Session, buffer_text, frame};
use blockstream_tui::worker::Signals;
use blockstream_tui::worker::fake::{FakeDesk, FakeEngine, Fault, narrate};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Modifier};

const SIZES: [(u16, u16); 4] = [(60, 16), (80, 24), (100, 30), (160, 50)];

fn desk() -> FakeDesk {
    FakeDesk::new(FakeEngine::default(), "results".into(), Signals::none())
}

fn config() -> RunConfig {
    let mut config = RunConfig::default();
    config.model.path = "models/meta-llama/Llama-3.1-8B-Instruct".into();
    config.data.files = vec!["assets/demo/train.jsonl".into()];
    config.train.max_steps = 40;
    config
}

fn buffer(app: &App, size: (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|f| frame::draw(app, f)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(app: &App, size: (u16, u16)) -> String {
    buffer_text(&buffer(app, size))
}

fn press(session: &mut Session<'_>, keys: &str) {
    for key in keys.split(' ') {
        session.send(Msg::Key(keys::parse(key).unwrap()));
    }
}

/// Feeds the first `steps` steps and `extra` events of a scripted run, the clock in step with it.
fn feed(session: &mut Session<'_>, engine: &FakeEngine, steps: usize, extra: usize) {
    let story = narrate(engine, &session.app.config);
    let mut seen = 0;
    let mut after = 0;
    for (seq, (at, kind)) in story.into_iter().enumerate() {
        if seen >= steps {
            after += 1;
            if after > extra {
                break;
            }
        }
        seen += usize::from(matches!(kind, EventKind::Step(_)));
        session.send(Msg::Tick(at));
        session.send(Msg::Events(vec![Event { seq: seq as u64, at, kind }]));
    }
}

fn finish(session: &mut Session<'_>, status: RunStatus, reason: Option<&str>) {
    let at = session.app.run.at;
    let finished = RunFinished {
        status,
        reason: reason.map(String::from),
        step: session.app.run.last.as_ref().map_or(0, |s| s.step),
        checkpoint: Some("results/run/checkpoint-12".into()),
        vram: VramFigures::default(),
        stats: StreamStats::default(),
        residency_peak: 13,
        telemetry_dropped: 0,
    };
    session.send(Msg::Events(vec![Event { seq: 9_999, at, kind: EventKind::Finished(finished) }]));
}

/// A session in the middle of step 13 of 40.
fn training(desk: &mut FakeDesk) -> Session<'_> {
    let mut session = Session::new(config(), Theme::plain(), desk);
    feed(&mut session, &FakeEngine::default(), 12, 40);
    session.send(Msg::Open(Screen::Run));
    session
}

fn snapshots(name: &str, app: &App) {
    for (w, h) in SIZES {
        insta::assert_snapshot!(format!("{name}_{w}x{h}"), text(app, (w, h)));
    }
}

#[test]
fn models_plan_data_runs_and_try_at_four_sizes() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    for screen in [Screen::Models, Screen::Plan, Screen::Data, Screen::Runs, Screen::Try] {
        session.send(Msg::Open(screen));
        snapshots(screen.name().to_lowercase().as_str(), &session.app);
    }
}

#[test]
fn the_run_screen_at_four_sizes() {
    let mut desk = desk();
    let session = training(&mut desk);
    snapshots("run", &session.app);
}

#[test]
fn dialogs_and_overlays_at_80x24() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    let shot = |session: &mut Session<'_>, name: &str, keys: &str| {
        press(session, keys);
        insta::assert_snapshot!(name.to_owned(), text(&session.app, (80, 24)));
        session.app.overlay = None;
    };
    shot(&mut session, "quit_dialog", "q");
    shot(&mut session, "help", "?");
    shot(&mut session, "help_filtered", "? s a v e");
    shot(&mut session, "palette", ": p a u");
    shot(&mut session, "report", "5 <ret>");
    shot(&mut session, "compare", "<space> <space> c");
    shot(&mut session, "problem", "1 G <ret>");
}

#[test]
fn a_run_with_a_hole_in_its_loss_says_where() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    feed(&mut session, &FakeEngine { fault: Fault::Nan(6), ..FakeEngine::default() }, 12, 10);
    session.send(Msg::Open(Screen::Run));
    let shown = text(&session.app, (100, 30));
    assert!(shown.contains("✗ not finite at step 6"), "{shown}");
    assert!(shown.contains("✗ loss is not finite at step 6: update skipped"), "{shown}");
    assert!(!shown.contains("NaN"), "{shown}");
    insta::assert_snapshot!("run_with_nan_100x30", shown);
}

/// Sessions in every state that a screen can be in.
fn states(desk: &mut FakeDesk, mut visit: impl FnMut(&mut Session<'_>)) {
    for case in 0..6 {
        let config = if case == 0 { RunConfig::default() } else { config() };
        let mut session = Session::new(config, Theme::plain(), desk);
        match case {
            1 => feed(&mut session, &FakeEngine::default(), 0, 1),
            2 => feed(&mut session, &FakeEngine::default(), 3, 20),
            3 => feed(&mut session, &FakeEngine { n_blocks: 1, ..FakeEngine::default() }, 5, 1),
            4 => {
                feed(&mut session, &FakeEngine { fault: Fault::Nan(1), n_blocks: 300, ..FakeEngine::default() }, 2, 9);
                finish(&mut session, RunStatus::Failed, Some("disk full\u{1b}[2J\n模型 👩‍🔬"));
            }
            5 => {
                session.send(Msg::Set("model.path".into(), "x".into()));
                session.send(Msg::Planned(Err("no checkpoint here, and the reason is a long line".into())));
                session.send(Msg::Models(Vec::new()));
                session.send(Msg::Runs(Vec::new()));
                session.send(Msg::Noise(vec!["XXXX".repeat(200)]));
                session.send(Msg::Say(Level::Error, "x".repeat(300)));
            }
            _ => {}
        }
        visit(&mut session);
    }
}

/// Keys that open each overlay and each kind of typing.
const OPENERS: &[&str] = &["", "?", ":", ": z z z", "q", "/ a", "i", "o", "e", "5 <ret>", "5 <space> <space> c", "1 G <ret>"];

#[test]
fn case_ui_01_no_size_screen_or_dialog_panics() {
    let sides = [1, 2, 3, 5, 10, 20, 40, 80];
    states(&mut desk(), |session| {
        for screen in Screen::ALL {
            for opener in OPENERS {
                session.send(Msg::Open(screen));
                if !opener.is_empty() {
                    press(session, opener);
                }
                for w in sides {
                    for h in sides {
                        buffer(&session.app, (w, h));
                    }
                }
                // The sizes around the smallest full layout are where borders and lists get tight.
                for size in [(60, 16), (61, 17), (75, 18), (76, 19), (119, 20), (120, 21), (250, 70)] {
                    buffer(&session.app, size);
                }
                press(session, "<esc> <esc>");
            }
        }
    });
}

#[test]
fn case_ui_01_below_the_smallest_size_it_says_so_and_keys_still_work() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    let shown = text(&session.app, (40, 10));
    assert!(shown.contains("terminal too small: need 60x16, have") && shown.contains("40x10"), "{shown}");
    assert!(shown.contains("q quit"));
    press(&mut session, "q");
    assert!(text(&session.app, (40, 10)).contains("s save and stop"));
    press(&mut session, "s");
    assert_eq!(session.app.run.asked, Some(Command::StopAndSave));
    assert!(text(&session.app, (80, 24)).contains("stopping after this step"));
    finish(&mut session, RunStatus::Stopped, None);
    assert_eq!(session.request(), Some(Request::Quit(ExitCode::StoppedEarly)));
}

#[test]
fn any_sequence_of_keys_leaves_a_screen_that_draws() {
    let mut keys: Vec<KeyEvent> = BINDINGS.iter().flat_map(|b| b.keys).map(|k| keys::parse(k).unwrap()).collect();
    keys.extend("abz模é👩0.".chars().map(|c| keys::press(KeyCode::Char(c), KeyModifiers::NONE)));
    keys.push(keys::press(KeyCode::Backspace, KeyModifiers::NONE));
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |n: usize| {
        // xorshift64: the same walk every time.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % n as u64) as usize
    };
    states(&mut desk(), |session| {
        for i in 0..3_000 {
            let key = keys[next(keys.len())];
            session.send(Msg::Key(key));
            while session.request().is_some() {}
            if i % 10 == 0 {
                session.send(Msg::Tick(f64::from(i)));
                buffer(&session.app, SIZES[next(4)]);
            }
        }
    });
}

#[test]
fn case_tr_09_ctrl_c_opens_the_quit_dialog_and_the_second_stops_at_once() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    press(&mut session, "<c-c>");
    assert!(matches!(session.app.overlay, Some(Overlay::Quit(_))));
    let shown = text(&session.app, (80, 24));
    for choice in ["s save and stop", "k stop now", "c cancel", "Ctrl-C again stops at once"] {
        assert!(shown.contains(choice), "{shown}");
    }
    press(&mut session, "c");
    assert!(session.app.overlay.is_none() && session.app.run.asked.is_none(), "cancel goes on");
    // Two, more than two seconds apart: asks again. Within two seconds: stops.
    let at = session.app.now;
    session.send(Msg::Tick(at + 2.5));
    press(&mut session, "<c-c>");
    assert!(matches!(session.app.overlay, Some(Overlay::Quit(_))));
    session.send(Msg::Tick(at + 4.0));
    press(&mut session, "<c-c>");
    assert_eq!(session.app.run.asked, Some(Command::StopNow));
    assert!(text(&session.app, (80, 24)).contains("stopping at the next block"));
    // An engine that never answers does not hold the program for ever.
    session.send(Msg::Tick(at + 13.0));
    assert_eq!(session.request(), None);
    session.send(Msg::Tick(at + 14.5));
    assert_eq!(session.request(), Some(Request::Quit(ExitCode::Failed)));
}

#[test]
fn without_a_run_q_and_ctrl_c_leave_at_once_and_esc_never_does() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    press(&mut session, "<esc> <esc> <esc>");
    assert_eq!(session.request(), None);
    press(&mut session, "q");
    assert_eq!(session.request(), Some(Request::Quit(ExitCode::Ok)));
    press(&mut session, "<c-c>");
    assert_eq!(session.request(), Some(Request::Quit(ExitCode::Ok)));
}

#[test]
fn the_quit_dialog_answers_to_arrows_and_enter() {
    for (keys, asked) in [
        ("q <ret>", Some(Command::StopAndSave)),
        ("q <right> <ret>", Some(Command::StopNow)),
        ("q <right> <right> <ret>", None),
        ("q k", Some(Command::StopNow)),
        ("q <esc>", None),
    ] {
        let mut desk = desk();
        let mut session = training(&mut desk);
        press(&mut session, keys);
        assert_eq!(session.app.run.asked, asked, "{keys}");
        assert!(session.app.overlay.is_none());
    }
}

#[test]
fn case_tr_15_a_stop_is_on_screen_before_the_trainer_answers() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    press(&mut session, "S");
    for size in SIZES {
        assert!(text(&session.app, size).contains("stopping after this step"), "{size:?}");
    }
    press(&mut session, "p");
    assert!(text(&session.app, (80, 24)).contains("stopping after this step"), "a pause does not hide a stop");
}

#[test]
fn case_ui_08_a_release_is_ignored_and_a_held_key_only_moves() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Models));
    let event = |code, kind| KeyEvent::new_with_kind(code, KeyModifiers::NONE, kind);
    // The Enter that started the program is released after it began.
    session.send(Msg::Key(event(KeyCode::Enter, KeyEventKind::Release)));
    assert_eq!(session.app.screen, Screen::Models);
    for kind in [KeyEventKind::Press, KeyEventKind::Repeat, KeyEventKind::Release] {
        session.send(Msg::Key(event(KeyCode::Char('j'), kind)));
    }
    assert_eq!(session.app.models.list.cursor(), 2);
    for code in [KeyCode::Enter, KeyCode::Char('q')] {
        session.send(Msg::Key(event(code, KeyEventKind::Repeat)));
    }
    assert_eq!((session.app.screen, session.request()), (Screen::Models, None));
}

#[test]
fn case_ui_09_rows_with_wide_names_end_at_the_same_column() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Models));
    for width in [76, 77, 80, 83, 100, 160] {
        let drawn = buffer(&session.app, (width, 24));
        for y in 2..16 {
            assert_eq!(drawn[(width - 1, y)].symbol(), "│", "column {} of row {y} at {width}", width - 1);
        }
    }
    assert!(text(&session.app, (80, 24)).contains("模型-七十亿"));
}

#[test]
fn case_ui_12_no_colour_means_none_and_selection_is_reversed() {
    states(&mut desk(), |session| {
        session.app.theme = Theme { depth: Depth::Mono, ascii: false };
        for screen in Screen::ALL {
            session.send(Msg::Open(screen));
            let drawn = buffer(&session.app, (100, 30));
            for cell in &drawn.content {
                assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset), "{screen:?}: {cell:?}");
            }
        }
    });
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Models));
    let drawn = buffer(&session.app, (80, 24));
    assert!(drawn[(10, 3)].modifier.contains(Modifier::REVERSED), "the selected row");
    assert!(!drawn[(10, 4)].modifier.contains(Modifier::REVERSED));
    assert!(drawn.content.iter().all(|c| c.bg == Color::Reset), "no fixed background");
}

#[test]
fn case_ui_13_verdicts_and_states_read_without_colour() {
    let mut words = Vec::new();
    for verdict in [Verdict::Ram, Verdict::LoraDisk, Verdict::FullFtDisk, Verdict::Infeasible] {
        let mut desk = desk();
        let mut session = Session::new(config(), Theme::plain(), &mut desk);
        let mut plan = session.app.plan.report().unwrap().clone();
        plan.modes.lora.verdict = verdict;
        session.send(Msg::Planned(Ok(Box::new(plan))));
        let shown = text(&session.app, (80, 24));
        let line = shown.lines().find(|l| l.contains("LoRA")).unwrap().to_owned();
        assert!(line.contains(verdict.word()) && line.contains(verdict.sign()), "{line}");
        words.push(line.chars().filter(|c| c.is_uppercase() || "✓~!✗_".contains(*c)).collect::<String>());
    }
    words.sort();
    words.dedup();
    assert_eq!(words.len(), 4, "{words:?}");

    let mut desk = desk();
    let session = training(&mut desk);
    let drawn = buffer(&session.app, (100, 30));
    let p = session.app.run.progress.as_ref().unwrap();
    let active = p.blocks.iter().filter(|b| **b == BlockState::Active).count();
    let letters = |c: &&ratatui::buffer::Cell| {
        matches!(c.symbol(), "V" | "R" | "D") && c.modifier.contains(Modifier::REVERSED | Modifier::BOLD)
    };
    assert_eq!(drawn.content.iter().filter(letters).count(), active, "active is reversed");
}

#[test]
fn case_ui_14_ascii_mode_draws_nothing_else() {
    states(&mut desk(), |session| {
        session.app.theme = Theme { ascii: true, ..Theme::plain() };
        for screen in Screen::ALL {
            for opener in OPENERS {
                session.send(Msg::Open(screen));
                if !opener.is_empty() {
                    press(session, opener);
                }
                for size in [(30, 8), (80, 24), (160, 50)] {
                    let drawn = buffer(&session.app, size);
                    let odd = drawn.content.iter().find(|c| !c.symbol().is_ascii());
                    assert_eq!(odd.map(|c| c.symbol()), None, "{screen:?} {opener}");
                }
                press(session, "<esc> <esc>");
            }
        }
    });
    let mut desk = desk();
    let mut session = training(&mut desk);
    session.app.theme = Theme { ascii: true, ..Theme::plain() };
    insta::assert_snapshot!("run_ascii_80x24", text(&session.app, (80, 24)));
}

#[test]
fn text_from_files_brings_no_control_characters() {
    states(&mut desk(), |session| {
        let nasty = "a\u{1b}]0;x\u{7}b\u{9b}31m\u{202e}c";
        session.send(Msg::Events(vec![Event {
            seq: 0,
            at: 1.0,
            kind: EventKind::Notice(Notice { level: Level::Warn, text: nasty.into() }),
        }]));
        session.send(Msg::Planned(Err(nasty.into())));
        session.send(Msg::Noise(vec![nasty.into()]));
        session.send(Msg::Say(Level::Warn, nasty.into()));
        for screen in Screen::ALL {
            session.send(Msg::Open(screen));
            for cell in &buffer(&session.app, (100, 30)).content {
                assert!(!cell.symbol().chars().any(char::is_control), "{screen:?}: {:?}", cell.symbol());
            }
        }
    });
}

#[test]
fn the_keyboard_alone_leads_from_models_to_a_saved_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut desk = FakeDesk::new(FakeEngine::default(), dir.path().into(), Signals::none());
    let mut base = RunConfig::default();
    base.train.max_steps = 5;
    let mut session = Session::new(base, Theme::plain(), &mut desk);
    assert_eq!(session.app.screen, Screen::Models);
    press(&mut session, "<ret>");
    assert_eq!(session.app.screen, Screen::Plan);
    assert!(text(&session.app, (80, 24)).contains("✓ RAM"));
    press(&mut session, "<ret>");
    assert_eq!(session.app.screen, Screen::Run);
    let since = std::time::Instant::now();
    while session.app.busy() {
        assert!(since.elapsed().as_secs() < 10);
        session.tick(since.elapsed().as_secs_f64());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(text(&session.app, (80, 24)).contains("✓ finished"));
    press(&mut session, "<ret>");
    let report = text(&session.app, (80, 24));
    assert!(report.contains("report") && report.contains("fake-1"), "{report}");
    press(&mut session, "<esc> 5 x");
    assert!(text(&session.app, (160, 50)).contains("written: "), "export says where");
}

#[test]
fn an_infeasible_plan_does_not_start_and_says_why() {
    let mut desk = desk();
    let mut base = config();
    base.stream.vram_budget = blockstream_tui::config::ByteSize(1_000_000);
    let mut session = Session::new(base, Theme::plain(), &mut desk);
    press(&mut session, "<ret>");
    assert!(!session.app.busy());
    let shown = text(&session.app, (80, 24));
    assert!(shown.contains("INFEASIBLE") && shown.contains("Nearest fix: halve max_length"), "{shown}");
}

#[test]
fn pasted_text_never_acts_as_keys() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    session.send(Msg::Paste("q s \n S".into()));
    assert!(session.app.overlay.is_none() && session.app.run.asked.is_none());
    press(&mut session, ":");
    session.send(Msg::Paste("open\nruns".into()));
    press(&mut session, "<ret>");
    assert_eq!(session.app.screen, Screen::Runs);
}

#[test]
fn the_palette_runs_actions_and_verbs() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    press(&mut session, ": f r e e z e <ret>");
    assert!(session.app.panes.frozen.is_some());
    press(&mut session, ": o p e n <space> d a t a <ret>");
    assert_eq!(session.app.screen, Screen::Data);
    press(&mut session, ": s t o p <ret>");
    assert_eq!(session.app.run.asked, Some(Command::StopAndSave));
    press(&mut session, ": z z z <ret>");
    assert!(text(&session.app, (80, 24)).contains("no such command: zzz"));
}

#[test]
fn freezing_keeps_the_panes_while_the_run_goes_on() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    press(&mut session, "f");
    let before = text(&session.app, (100, 30));
    feed(&mut session, &FakeEngine::default(), 20, 3);
    let pane = |shown: &str| shown.lines().take(20).collect::<Vec<_>>().join("\n");
    let after = text(&session.app, (100, 30));
    assert_eq!(pane(&before), pane(&after));
    assert!(after.contains("step 20/40"), "the status bar tells the truth: {after}");
}

#[test]
fn signals_and_a_lost_terminal_save_first_and_leave_with_their_code() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    session.send(Msg::Leave(ExitCode::Terminated));
    assert_eq!((session.request(), session.app.run.asked), (None, Some(Command::StopAndSave)));
    session.send(Msg::Leave(ExitCode::Terminated));
    assert_eq!(session.app.run.asked, Some(Command::StopNow));
    finish(&mut session, RunStatus::Aborted, None);
    assert_eq!(session.request(), Some(Request::Quit(ExitCode::Terminated)));
}

#[test]
fn every_action_of_the_palette_is_an_effect_or_a_change_and_no_panic() {
    states(&mut desk(), |session| {
        for binding in BINDINGS {
            session.send(Msg::Act(binding.action));
            while session.request().is_some() {}
            buffer(&session.app, (80, 24));
        }
        session.app.overlay = None;
        assert!(!session.app.update(Msg::Act(Action::Redraw)).is_empty());
        assert_eq!(session.app.update(Msg::Act(Action::Suspend)), [Effect::Suspend]);
    });
}
