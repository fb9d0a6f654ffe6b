//! The fold over events: state words, forecasts and a resumed run.

use super::*;
use crate::event::{EvalRecord, LOSS};

fn started(steps: u64, done: u64) -> EventKind {
    EventKind::Started(RunStarted { n_blocks: 4, steps_total: steps, steps_done: done, ..RunStarted::default() })
}

fn step(n: u64, seconds: f64) -> EventKind {
    EventKind::Step(StepRecord { step: n, metrics: [(LOSS, 2.0)].into(), seconds, ..StepRecord::default() })
}

fn fold(events: Vec<(f64, EventKind)>, eval_steps: u64) -> RunView {
    let mut view = RunView::default();
    for (seq, (at, kind)) in events.into_iter().enumerate() {
        view.apply(&Event { seq: seq as u64, at, kind }, eval_steps);
    }
    view
}

fn progress(step: u64, visit: usize) -> EventKind {
    EventKind::Progress(Progress {
        step,
        phase: Phase::Forward,
        block: visit.min(3),
        visit,
        visits: 8,
        blocks: Vec::new(),
        disk_read: Bytes(0),
        h2d: Bytes(0),
        vram_live: None,
    })
}

#[test]
fn case_tr_15_a_stop_in_a_long_step_is_acknowledged_with_the_time_it_takes() {
    // A 60 s step: 4 forward visits of 5 s, 4 backward of 10 s; stop is asked for at 5 s.
    let mut view = fold(vec![(0.0, started(10, 0)), (0.0, progress(1, 0)), (5.0, progress(1, 1))], 0);
    view.asked.add(Command::StopAndSave, false);
    assert_eq!(view.state(5.0), "stopping after this step, ~55 s");
    view.asked.add(Command::DropStep, false);
    assert_eq!(view.state(5.0), "dropping this step, saving the one before");
}

#[test]
fn case_fo_03k_a_long_save_is_shown_while_it_lasts() {
    let saving = |done| {
        EventKind::Stage(Stage { name: "saving checkpoint-3".into(), done, total: 200_000_000, unit: "bytes".into() })
    };
    let mut view = fold(vec![(0.0, started(10, 0)), (5.0, step(3, 5.0)), (5.0, saving(0))], 0);
    assert_eq!(view.state(6.0), "saving checkpoint-3");
    view.asked.add(Command::SaveNow, false);
    assert_eq!(view.state(6.0), "saving checkpoint-3");
    view.asked.add(Command::Pause, false);
    assert_eq!(view.state(6.0), "saving checkpoint-3, then pausing");
    view.asked.add(Command::StopAndSave, false);
    assert_eq!(view.state(6.0), "stopping: saving checkpoint-3");
    view.apply(&Event { seq: 9, at: 7.0, kind: saving(200_000_000) }, 0);
    assert!(view.state(7.0).starts_with("stopping after this step"));
}

#[test]
fn case_tr_15_the_eta_is_near_the_truth_at_a_tenth_and_at_half() {
    // A slow first step, then 60 s each, a held-out measurement of 30 s every 5 steps and at the end.
    let mut events = vec![(0.0, started(20, 0))];
    events.push((30.0, EventKind::Eval(EvalRecord { step: 0, loss: 3.0, tokens: 1, seconds: 30.0 })));
    let mut at = 30.0;
    let mut truth = Vec::new();
    for n in 1..=20 {
        let seconds = if n == 1 { 95.0 } else { 60.0 };
        at += seconds;
        events.push((at, step(n, seconds)));
        truth.push(at);
        if n % 5 == 0 {
            at += 30.0;
            events.push((at, EventKind::Eval(EvalRecord { step: n, loss: 3.0, tokens: 1, seconds: 30.0 })));
        }
    }
    let end = at;
    for done in [2usize, 10] {
        let upto = truth[done - 1];
        let view = fold(events.iter().filter(|(t, _)| *t <= upto).cloned().collect(), 5);
        let eta = view.eta(upto).unwrap();
        let left = end - upto;
        assert!((eta.seconds - left).abs() / left < 0.2, "{done}: {eta:?} for {left}");
    }
}

#[test]
fn case_tr_15_after_a_resume_the_eta_counts_the_steps_that_are_left() {
    let view = fold(vec![(0.0, started(100, 90)), (60.0, step(91, 60.0)), (120.0, step(92, 60.0))], 0);
    let eta = view.eta(120.0).unwrap();
    assert!((eta.seconds - 480.0).abs() < 1.0, "{eta:?}");
    assert_eq!(eta.window, 1, "the first step after a start or a resume is a warm-up");
}

#[test]
fn requests_are_shown_until_they_are_answered() {
    let mut view = fold(vec![(0.0, started(10, 0)), (1.0, step(1, 1.0))], 0);
    assert_eq!(view.state(1.0), "training");
    view.asked.add(Command::Pause, false);
    assert!(view.state(1.5).starts_with("pausing after this step"));
    view.apply(&Event { seq: 9, at: 2.0, kind: EventKind::Paused { step: 2 } }, 0);
    assert_eq!(view.state(2.0), "paused");
    view.apply(&Event { seq: 10, at: 3.0, kind: EventKind::Resumed { step: 2 } }, 0);
    assert_eq!(view.state(3.0), "training");
}

#[test]
fn the_eta_forgets_a_step_in_which_the_machine_slept() {
    let mut events = vec![(0.0, started(100, 0))];
    let mut at = 0.0;
    for n in 1..=10 {
        let seconds = if n == 7 { 7_200.0 } else { 10.0 };
        at += seconds;
        events.push((at, step(n, seconds)));
    }
    let eta = fold(events, 0).eta(at).unwrap();
    assert!((eta.seconds - 900.0).abs() < 1.0, "{eta:?}");
}

#[test]
fn case_tr_13_the_eta_follows_a_pace_that_has_changed() {
    // 30 steps of 10 s, then a drive that makes them take ten times as long, then a well one again.
    let mut events = vec![(0.0, started(100, 0))];
    let mut at = 0.0;
    let mut run = |seconds: f64, steps: std::ops::RangeInclusive<u64>, events: &mut Vec<(f64, EventKind)>| {
        for n in steps {
            at += seconds;
            events.push((at, step(n, seconds)));
        }
        at
    };
    let at = run(10.0, 1..=30, &mut events);
    let eta = fold(events.clone(), 0).eta(at).unwrap();
    assert!((eta.seconds - 700.0).abs() < 1.0, "{eta:?}");
    let at = run(100.0, 31..=33, &mut events);
    let eta = fold(events.clone(), 0).eta(at).unwrap();
    assert!((eta.seconds - 6_700.0).abs() < 1.0, "{eta:?}");
    let at = run(10.0, 34..=36, &mut events);
    let eta = fold(events, 0).eta(at).unwrap();
    assert!((eta.seconds - 640.0).abs() < 1.0, "{eta:?}");
}

#[test]
fn case_pl_06_a_suspected_spill_is_a_warning_in_the_log_and_lasts() {
    let mut view = RunView { spill: Spill::of(Bytes(4_290_000_000), true), ..RunView::default() };
    let mut say = |at: f64, kind: EventKind| view.apply(&Event { seq: 0, at, kind }, 0);
    say(0.0, started(10, 0));
    for at in [1.0, 2.0] {
        let EventKind::Progress(p) = progress(1, 1) else { unreachable!("made above") };
        say(at, EventKind::Progress(Progress { vram_live: Some(Bytes(9_270_000_000)), ..p }));
    }
    assert!(view.spill.suspected());
    let warnings: Vec<&str> = view.log.lines(Level::Warn).map(|l| l.text.as_str()).collect();
    let want = "spill suspected: 9.27 GB are allocated on a card with 4.29 GB; lower stream.vram_budget";
    assert_eq!(warnings, [want]);
}
