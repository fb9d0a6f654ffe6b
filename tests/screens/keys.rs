//! What keys, messages and signals do, over the same sessions.

use super::*;
use blockstream_tui::error::ExitCode;
use blockstream_tui::event::Command;
use blockstream_tui::ui::Request;
use blockstream_tui::ui::app::Effect;
use blockstream_tui::ui::form;
use blockstream_tui::ui::keys::{Action, BINDINGS};
use blockstream_tui::ui::overlay::Overlay;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

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
    assert!(session.app.run.asked.has(Command::StopAndSave));
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
    for choice in ["s save and stop", "d discard", "c keep training", "Ctrl-C again drops this step and saves"] {
        assert!(shown.contains(choice), "{shown}");
    }
    press(&mut session, "c");
    assert!(session.app.overlay.is_none() && session.app.run.asked.is_empty(), "cancel goes on");
    // After that the first asks again; the second, while it asks, drops the step; the third leaves.
    let at = session.app.now;
    session.send(Msg::Tick(at + 2.5));
    press(&mut session, "<c-c>");
    assert!(matches!(session.app.overlay, Some(Overlay::Quit(_))));
    session.send(Msg::Tick(at + 4.0));
    press(&mut session, "<c-c>");
    assert!(session.app.run.asked.has(Command::DropStep));
    assert!(text(&session.app, (80, 24)).contains("dropping this step, saving the one before"));
    // A save may take its time; an engine that does not answer the third does not hold the program for ever.
    session.send(Msg::Tick(at + 100.0));
    assert_eq!(session.request(), None);
    press(&mut session, "<c-c>");
    assert!(session.app.run.asked.has(Command::Discard));
    session.send(Msg::Tick(at + 109.0));
    assert_eq!(session.request(), None);
    session.send(Msg::Tick(at + 110.5));
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
        ("q <right> <right> <ret>", None),
        ("q <right> <ret> <left> <ret>", Some(Command::Discard)),
        ("q d y", Some(Command::Discard)),
        ("q d s", Some(Command::StopAndSave)),
        ("q d <ret>", None),
        ("q <esc>", None),
    ] {
        let mut desk = desk();
        let mut session = training(&mut desk);
        press(&mut session, keys);
        assert_eq!(session.app.run.asked.is_empty(), asked.is_none(), "{keys}");
        assert!(asked.is_none_or(|c| session.app.run.asked.has(c)), "{keys}");
        assert!(session.app.overlay.is_none(), "{keys}");
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
    assert!(session.app.overlay.is_none() && session.app.run.asked.is_empty());
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
    assert!(session.app.run.asked.has(Command::StopAndSave));
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
    assert_eq!(session.request(), None);
    assert!(session.app.run.asked.has(Command::StopAndSave));
    session.send(Msg::Leave(ExitCode::Terminated));
    assert!(session.app.run.asked.has(Command::DropStep));
    session.send(Msg::Leave(ExitCode::Terminated));
    assert!(session.app.run.asked.has(Command::Discard));
    finish(&mut session, RunStatus::Aborted, None);
    assert_eq!(session.request(), Some(Request::Quit(ExitCode::Terminated)));
}

#[test]
fn case_fo_58_ctrl_c_keeps_its_promise_however_the_dialog_was_opened() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    press(&mut session, "q");
    assert!(text(&session.app, (80, 24)).contains("Ctrl-C again drops this step and saves"));
    press(&mut session, "<c-c>");
    assert!(session.app.run.asked.has(Command::DropStep));
}

#[test]
fn case_fo_61_quitting_after_a_stop_exits_as_the_stop_did() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    press(&mut session, "S");
    finish(&mut session, RunStatus::Stopped, None);
    press(&mut session, "q");
    assert_eq!(session.request(), Some(Request::Quit(ExitCode::StoppedEarly)));
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

#[test]
fn settings_change_by_arrow_or_by_text_and_plan_again_at_once() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    let vram = |s: &Session<'_>| s.app.plan.report().unwrap().modes.lora.vram.total;
    let before = vram(&session);
    press(&mut session, "l");
    assert_eq!(session.app.config.lora.r, 32);
    assert!(vram(&session) > before);
    // Every setting of both screens takes every value of its walk.
    for (screen, fields) in [(Screen::Plan, &form::PLAN), (Screen::Data, &form::DATA)] {
        session.send(Msg::Open(screen));
        press(&mut session, "g");
        for field in fields.iter() {
            for _ in 0..12 {
                press(&mut session, "<left>");
            }
            for value in field.steps.iter().skip(1) {
                press(&mut session, "<right>");
                let shown = text(&session.app, (160, 50));
                assert!(!shown.contains('✗') || shown.contains("INFEASIBLE"), "{} {value}: {shown}", field.key);
            }
            if let Some(last) = field.steps.last() {
                assert_eq!(field.get(&session.app.config), *last, "{}", field.key);
            }
            press(&mut session, "j");
        }
    }
    session.send(Msg::Open(Screen::Plan));
    press(&mut session, "g i <bs> <bs> <bs> <bs> 2 4 <ret>");
    assert_eq!(session.app.config.lora.r, 24);
    press(&mut session, "i x <ret>");
    assert_eq!(session.app.config.lora.r, 24);
    assert!(text(&session.app, (100, 30)).contains('✗'), "a bad value is refused and said");
    press(&mut session, "i 9 <esc>");
    assert_eq!(session.app.config.lora.r, 24, "escape leaves it as it was");
}
