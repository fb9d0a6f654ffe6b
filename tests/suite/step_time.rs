//! Where a step's time goes: what the recorder keeps of it and what the report says.

#![expect(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

use blockstream_tui::event::*;
use blockstream_tui::report::{self, Recorder};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

use crate::recorded::*;

fn visit(phase: Phase, block: usize, wait_disk_s: f64) -> VisitTimes {
    VisitTimes { phase, block, h2d: 100, disk: 40, copy_s: 0.02, wait_link_s: 0.01, wait_disk_s, compute_s: 0.05 }
}

fn trace(step: u64) -> EventKind {
    let (f, b) = (Phase::Forward, Phase::Backward);
    let head = VisitTimes { phase: Phase::Head, block: 2, compute_s: 0.03, ..VisitTimes::default() };
    let visits = vec![visit(f, 0, 0.1), visit(f, 1, 0.0), head, visit(b, 1, 0.0), visit(b, 0, 0.04)];
    EventKind::Trace(StepTrace { step, visits })
}

/// Step `n`, which says where its half second went.
fn timed(n: u64, by: &str) -> EventKind {
    let EventKind::Step(s) = step(n, 3.0, 0.5) else { panic!("a step") };
    EventKind::Step(StepRecord { stall_disk_s: 0.15, compute_s: 0.25, bound_s: 0.4, bound_by: by.into(), ..s })
}

/// A run of six steps, a second each: the traces come before their steps, as the trainer sends them.
fn recorded(dir: &Path, ends: bool) -> Recorder {
    paced(dir, ends, "disk")
}

/// The same, where `by` sets the pace of all steps but one.
fn paced(dir: &Path, ends: bool, by: &str) -> Recorder {
    let mut recorder = Recorder::create(dir, &config(), &plan(), &env()).unwrap();
    let mut kinds = vec![(0.0, started(dir, 0, 6))];
    for n in 1..=6 {
        kinds.extend([(n as f64, trace(n)), (n as f64, timed(n, if n == 3 { "link" } else { by }))]);
    }
    kinds.push((6.5, eval(6, 2.0)));
    if ends {
        kinds.push((7.0, finished(dir, 6, RunStatus::Finished)));
    }
    for (seq, (at, kind)) in kinds.into_iter().enumerate() {
        recorder.record(&Event { seq: seq as u64, at, kind }).unwrap();
    }
    recorder
}

fn json_of(report: report::Report) -> Value {
    serde_json::to_value(report).unwrap()
}

#[test]
fn the_report_says_where_a_steps_time_went() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("results/run-1");
    let path = recorded(&dir, true).finish().unwrap();
    let r: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for (pointer, value) in [
        ("/bound/resource", json!("disk")),
        ("/bound/seconds", json!(0.4)),
        ("/bound/share", json!(0.8)),
        ("/bound/source", json!("measured")),
        // The plan's bound stays where it was.
        ("/forecast/low", json!(0.4)),
        ("/seconds_per_step/parts/compute_s", json!(0.25)),
        ("/seconds_per_step/parts/stall_disk_s", json!(0.15)),
        ("/stats/compute_s", json!(1.5)),
        ("/trace/step", json!(6)),
        ("/trace/visits/0/wait_disk_s", json!(0.1)),
        ("/trace/phases/0/phase", json!("forward")),
        ("/trace/phases/0/visits", json!(2)),
        ("/trace/phases/0/h2d", json!(200)),
        ("/trace/phases/0/disk", json!(80)),
        ("/trace/phases/0/copy_s", json!(0.04)),
        ("/trace/phases/0/wait_link_s", json!(0.02)),
        ("/trace/phases/1/compute_s", json!(0.03)),
        ("/trace/phases/2/wait_disk_s", json!(0.04)),
    ] {
        assert_eq!(r.pointer(pointer), Some(&value), "{pointer}");
    }
    let sum = |key: &str| r["stats"][key].as_f64().unwrap();
    assert!((sum("stall_link_s") - 0.3).abs() < 1e-9 && (sum("stall_disk_s") - 0.9).abs() < 1e-9);
    assert_eq!(r["trace"]["visits"].as_array().unwrap().len(), 5);

    let md = fs::read_to_string(dir.join("report.md")).unwrap();
    assert!(md.contains("## Where a step's time goes") && md.contains("Bottleneck: disk, busy for"), "{md}");
    assert!(md.contains("busy for 400 ms of a step's 500 ms (80 %) and idle for 100 ms"), "{md}");
    assert!(md.contains("| forward | 2 | 100 ms | 20.0 ms | 100 ms | 200 B | 80 B | 40.0 ms |"), "{md}");
    assert!(md.contains("| all | 5 |"), "{md}");
    let html = fs::read_to_string(dir.join("report.html")).unwrap();
    assert_eq!(html.matches("<svg ").count(), 3, "the strip of the visits");
    assert!(
        html.contains("Bottleneck: disk")
            && html.contains("(80 %)")
            && html.contains("waiting for copies")
            && !html.contains("<script")
    );
}

#[test]
fn case_fo_15c_a_report_gives_compute_no_share_of_itself() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("results/run-1");
    let path = paced(&dir, true, "compute").finish().unwrap();
    let r: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(r["bound"], json!({ "resource": "compute", "seconds": 0.4, "share": null, "source": "measured" }));
    for file in ["report.md", "report.html"] {
        let text = fs::read_to_string(dir.join(file)).unwrap();
        assert!(text.contains("Bottleneck: GPU, busy for 400 ms of a step") && !text.contains("(80 %)"), "{text}");
    }
}

#[test]
fn few_traces_are_kept_and_the_newest_is_one_of_them() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("results/run-1");
    recorded(&dir, true).finish().unwrap();
    let recording = report::read_events(&dir).unwrap();
    let steps = recording.events.iter().filter_map(|e| match &e.kind {
        EventKind::Trace(t) => Some(t.step),
        _ => None,
    });
    let steps: Vec<u64> = steps.collect();
    assert_eq!(steps, [1, 2, 4, 6], "whenever the run's age has doubled, and at its end");
    assert!(matches!(recording.events.last().unwrap().kind, EventKind::Finished(_)));
    let length = report::replay(&dir).unwrap().length();
    assert_eq!(length, 7.0, "a trace that is recorded late costs a replay no time");
    // A run that was killed still has one.
    let dead = root.path().join("results/run-2");
    drop(recorded(&dead, false));
    assert_eq!(json_of(report::rebuild(&dead).unwrap())["trace"]["step"], 4);
}

#[test]
fn a_recording_without_these_figures_has_the_plans_bound_and_says_so() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("results/run-1");
    let mut recorder = Recorder::create(&dir, &config(), &plan(), &env()).unwrap();
    for event in events(ten_steps(&dir)) {
        recorder.record(&event).unwrap();
    }
    recorder.finish().unwrap();
    let r = json_of(report::rebuild(&dir).unwrap());
    assert_eq!(r["bound"], json!({ "resource": "disk", "seconds": 0.4, "share": 0.8, "source": "planned" }));
    for pointer in ["/trace", "/seconds_per_step/parts", "/stats/compute_s", "/stats/stall_disk_s"] {
        assert_eq!(r.pointer(pointer), Some(&Value::Null), "{pointer}");
    }
    let md = fs::read_to_string(dir.join("report.md")).unwrap();
    assert!(!md.contains("Where a step's time goes") && md.contains("at planned rates"), "{md}");
}
