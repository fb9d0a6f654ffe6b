//! What sets the pace, on screen: the bound, the visits, and a drive that slows down.

use super::*;

#[test]
fn case_tr_13_a_hot_drive_is_told_apart_from_a_bug() {
    let (mut desk, mut again) = (desk(), desk());
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    let engine = FakeEngine { fault: Fault::named("slow").unwrap(), ..FakeEngine::default() };
    let left = |session: &Session<'_>| session.app.run.eta(session.app.run.at).unwrap().seconds;

    feed(&mut session, &engine, 5, 0);
    session.send(Msg::Open(Screen::Run));
    let well = (left(&session), session.app.run.step_time().unwrap().0);
    for (w, h) in SIZES {
        let shown = text(&session.app, (w, h));
        assert!(!shown.contains("! disk") && shown.contains("bottleneck: GPU"), "{shown}");
    }

    // Three steps at a fifth of the planned rate, and a little of the next.
    let mut session = Session::new(config(), Theme::plain(), &mut again);
    session.send(Msg::Open(Screen::Run));
    feed(&mut session, &engine, 8, 8);
    let hot = Gauges { drive_temp_c: Some(82), ..Gauges::default() };
    let at = session.app.run.at;
    session.send(Msg::Events(vec![Event { seq: 9_000, at, kind: EventKind::Gauges(hot) }]));
    for (w, h) in SIZES {
        let shown = text(&session.app, (w, h));
        assert!(shown.contains("! disk 0.7 of 3.4 GB/s"), "current against planned, with a sign:\n{shown}");
        assert!(shown.lines().any(|l| l.contains("bottleneck: disk")), "{shown}");
        insta::assert_snapshot!(format!("run_slow_drive_{w}x{h}"), shown);
    }
    assert!(text(&session.app, (100, 30)).contains("planned  82 °C"), "its temperature where it is readable");
    let said: Vec<_> = session.app.run.log.lines(Level::Warn).map(|l| l.text.as_str()).collect();
    assert!(said.iter().any(|l| l.contains("reads at 0.7 of 3.4 GB/s planned") && l.contains("when hot")), "{said:?}");
    let shown = text(&session.app, (160, 50));
    assert!(!shown.contains('✗') && session.app.run.running(), "slow is no error:\n{shown}");

    // The forecast counts with the steps as they are now, not with the twenty newest.
    let truth = narrate(&engine, &session.app.config);
    let end = truth.iter().rev().find(|(_, k)| matches!(k, EventKind::Step(_))).unwrap().0 - session.app.run.at;
    let now = left(&session);
    assert!((now - end).abs() / end < 0.1, "{now} s left on the screen, {end} s in truth, {well:?} before");
    assert!(session.app.run.step_time().unwrap().0 > 2.5 * well.1);

    session.app.theme = Theme { ascii: true, ..Theme::plain() };
    insta::assert_snapshot!("run_slow_drive_ascii_100x30", text(&session.app, (100, 30)));
}

#[test]
fn steps_that_say_nothing_of_their_time_leave_the_pane_as_it_was() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    let story = narrate(&FakeEngine::default(), &session.app.config);
    let old =
        story.into_iter().filter(|(_, k)| !matches!(k, EventKind::Trace(_))).take(200).map(|(at, kind)| match kind {
            EventKind::Step(s) => {
                let s = StepRecord { bound_s: 0.0, bound_by: String::new(), disk_s: 0.0, compute_s: 0.0, ..s };
                (at, EventKind::Step(s))
            }
            other => (at, other),
        });
    for (seq, (at, kind)) in old.enumerate() {
        session.send(Msg::Events(vec![Event { seq: seq as u64, at, kind }]));
    }
    session.send(Msg::Open(Screen::Run));
    let shown = text(&session.app, (100, 30));
    assert!(
        shown.contains("speed bytes a second") && !shown.contains("bottleneck") && !shown.contains("█ compute"),
        "{shown}"
    );
}

#[test]
fn the_speed_pane_expanded_shows_each_visit() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    feed(&mut session, &FakeEngine { fault: Fault::SlowDrive(3), ..FakeEngine::default() }, 4, 3);
    session.send(Msg::Open(Screen::Run));
    press(&mut session, "<tab> <tab> <tab> e");
    insta::assert_snapshot!("lanes_expanded_80x24", text(&session.app, (80, 24)));
}
