//! The screens on ratatui's test backend, over the scripted desk and a clock that tests hold: what they show at four
//! sizes, that nothing panics at any size, and what keys do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "tui")]

#[path = "screens/faults.rs"]
mod faults;
#[path = "screens/hub.rs"]
mod hub;
#[path = "screens/keys.rs"]
mod keys_and_messages;
#[path = "screens/newcomer.rs"]
mod newcomer;
#[path = "screens/pace.rs"]
mod pace;
#[path = "screens/whatif.rs"]
mod whatif;

use blockstream_tui::config::RunConfig;
use blockstream_tui::event::{BlockState, Event, EventKind, Gauges, Level, Notice, RunFinished, RunStatus, StepRecord};
use blockstream_tui::event::{StreamStats, VramFigures};
use blockstream_tui::plan::Verdict;
use blockstream_tui::ui::app::{App, Msg, Screen};
use blockstream_tui::ui::keys;
use blockstream_tui::ui::theme::{Depth, Theme};
use blockstream_tui::ui::{Session, buffer_text, frame};
use blockstream_tui::worker::Signals;
use blockstream_tui::worker::fake::{FakeDesk, FakeEngine, Fault, narrate};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
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
        refused: false,
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
    shot(&mut session, "help_filtered", "? / s a v e");
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
const OPENERS: &[&str] =
    &["", "?", ":", ": z z z", "q", "/ a", "i", "o", "1 H", "e", "5 <ret>", "5 <space> <space> c", "1 G <ret>"];

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
        session.app.theme = Theme { depth: Depth::Mono, light: false, ascii: false };
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
