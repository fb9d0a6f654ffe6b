//! Faults found by trying the workbench, one test each (`case_fo_…`).

use super::*;
use blockstream_tui::event::{Command, Saved};
use blockstream_tui::ui::keys::{Action, BINDINGS};
use blockstream_tui::ui::overlay::Overlay;

/// Every key that moves something somewhere.
fn movement_keys() -> Vec<&'static str> {
    use Action as A;
    let moves = |a: Action| a.repeats() || matches!(a, A::Top | A::Bottom | A::FocusNext | A::FocusPrev);
    BINDINGS.iter().filter(|b| moves(b.action)).flat_map(|b| b.keys.iter().copied()).collect()
}

#[test]
fn case_fo_51_no_movement_key_ends_a_run() {
    let keys = movement_keys();
    assert!(keys.contains(&"j") && keys.contains(&"k") && keys.contains(&"<pgdn>"), "{keys:?}");
    for opener in ["q", "q d", "<c-c>"] {
        for first in &keys {
            for second in &keys {
                let mut desk = desk();
                let mut session = training(&mut desk);
                press(&mut session, opener);
                press(&mut session, &format!("{first} {second}"));
                assert!(session.app.run.asked.is_empty(), "{opener} {first} {second}");
                assert!(matches!(session.app.overlay, Some(Overlay::Quit(_))), "{opener} {first} {second}");
            }
        }
    }
}

#[test]
fn case_fo_51_discarding_asks_again_and_names_the_loss() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    press(&mut session, "q d");
    let shown = text(&session.app, (80, 24));
    assert!(shown.contains("12 steps would be lost: nothing is saved yet"), "{shown}");
    // The key that opened it, held or hit twice, and Enter alone discard nothing.
    press(&mut session, "d d");
    assert!(session.app.run.asked.is_empty() && session.app.overlay.is_some());
    press(&mut session, "<ret>");
    assert!(session.app.run.asked.is_empty() && session.app.overlay.is_none());

    let saved = Saved { step: 10, what: "checkpoint".into(), path: "x".into(), bytes: Default::default() };
    let at = session.app.run.at;
    session.send(Msg::Events(vec![Event { seq: 5_000, at, kind: EventKind::Saved(saved) }]));
    press(&mut session, "q");
    let shown = text(&session.app, (80, 24));
    assert!(shown.contains("2 steps") && shown.contains("since the last save (step 10) would be lost"), "{shown}");
    press(&mut session, "d y");
    assert!(session.app.run.asked.has(Command::Discard));
}

#[test]
fn case_fo_58_ctrl_c_does_what_the_dialog_says_however_it_was_opened() {
    for opener in ["q", "<c-c>", ": q <ret>"] {
        let mut desk = desk();
        let mut session = training(&mut desk);
        press(&mut session, opener);
        let shown = text(&session.app, (80, 24));
        assert!(shown.contains("Ctrl-C again"), "{opener}: {shown}");
        assert!(!shown.contains("go on?") && shown.contains("c keep training"), "{opener}: {shown}");
        // A reader takes longer than the two seconds of a double Ctrl-C.
        let at = session.app.now;
        session.send(Msg::Tick(at + 30.0));
        press(&mut session, "<c-c>");
        assert!(session.app.run.asked.has(Command::DropStep), "{opener}");
    }
}

#[test]
fn case_fo_54_a_run_shows_its_own_plan_config_and_model() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    session.send(Msg::Set("train.eval_steps".into(), "1".into()));
    let shown = |session: &mut Session<'_>| {
        session.send(Msg::Open(Screen::Run));
        SIZES.map(|size| text(&session.app, size))
    };
    let before = shown(&mut session);
    let left = session.app.run.eta(session.app.run.at).unwrap();
    // Another model, other settings, another machine: all for the next run.
    session.send(Msg::Open(Screen::Models));
    press(&mut session, "j j <ret>");
    for (key, value) in [("lora.r", "128"), ("data.max_length", "8192"), ("train.max_steps", "999")] {
        session.send(Msg::Set(key.into(), value.into()));
    }
    press(&mut session, "w + +");
    feed_one_step(&mut session);
    assert_eq!(
        session.app.run.eta(session.app.run.at).unwrap().evals,
        left.evals,
        "evaluations of the run's own config"
    );
    let after = shown(&mut session);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.lines().next(), after.lines().next(), "the run's own model in the header");
        // The memory of the run's own plan: what is live against what was planned.
        for shown in [before, after] {
            assert!(shown.contains("696.5 MB of 4.97 GB") && !shown.contains("✗"), "{shown}");
        }
    }
    session.send(Msg::Open(Screen::Plan));
    assert!(text(&session.app, (160, 50)).lines().next().unwrap().contains("Qwen3-32B"), "Plan shows the next run");
}

/// The step after the newest one, with its telemetry left out.
fn feed_one_step(session: &mut Session<'_>) {
    let last = session.app.run.last.clone().unwrap();
    let step = StepRecord { step: last.step + 1, ..last };
    let at = session.app.run.at + 1.0;
    session.send(Msg::Events(vec![Event { seq: 7_000, at, kind: EventKind::Step(step) }]));
}
