//! The record of a run from its events to its report, through the public API.

#![expect(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

use blockstream_tui::config::RunConfig;
use blockstream_tui::event::*;
use blockstream_tui::report::types::SmartFigures;
use blockstream_tui::report::{self, Recorder, comparable, summary};
use blockstream_tui::units::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

use crate::recorded::*;

fn record(dir: &Path, kinds: Vec<EventKind>) -> Recorder {
    let mut recorder = Recorder::create(dir, &config(), &plan(), &env()).unwrap();
    for event in events(kinds) {
        recorder.record(&event).unwrap();
    }
    recorder
}

fn run_dir(root: &Path) -> PathBuf {
    let dir = root.join("results/run-1");
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn wear_adds_what_was_saved_and_tells_smart_before_and_after() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    let mut kinds = ten_steps(&dir);
    let saved = |step, bytes| {
        EventKind::Saved(Saved { step, what: "checkpoint".into(), path: dir.join("checkpoint-5"), bytes: Bytes(bytes) })
    };
    let at = kinds.len() - 1;
    let before: u64 = kinds.iter().map(|k| if let EventKind::Saved(s) = k { s.bytes.0 } else { 0 }).sum();
    kinds.insert(at, saved(5, 1_000_000));
    // A later checkpoint replaced it: both were written.
    kinds.insert(at, saved(10, 1_000_000));
    let mut env = env();
    env["drive"] = json!({ "written": 50_000_000_000_000u64, "life_used": 0.07 });
    let mut p = plan();
    p.machine.disk.tbw = Some(Bytes(300_000_000_000_000));
    p.modes.lora.wear.overridden = true;
    let mut recorder = Recorder::create(&dir, &config(), &p, &env).unwrap();
    let after = SmartFigures { written: Some(50_000_002_000_000), ..SmartFigures::default() };
    recorder.ask_drive_at_end(Box::new(move || Some(after)));
    for event in events(kinds) {
        recorder.record(&event).unwrap();
    }
    let r = json_file(&recorder.finish().unwrap());
    let w = &r["wear"];
    let outside = r["bytes"]["model_drive_written"].as_u64().unwrap();
    assert_eq!(w["run_folder_written"], before + 2_000_000);
    assert_eq!(w["model_drive_written"], outside);
    assert_eq!(w["per_step"], (before + 2_000_000 + outside) / 10);
    assert_eq!(w["smart_before"], json!({ "written": 50_000_000_000_000u64, "life_used": 0.07 }));
    assert_eq!(w["smart_after"], json!({ "written": 50_000_002_000_000u64, "life_used": null }));
    assert_eq!((&w["tbw"], &w["overridden"]), (&json!(300_000_000_000_000u64), &json!(true)));
    let share = (before + 2_000_000 + outside) as f64 / 300e12;
    assert!((w["life"].as_f64().unwrap() - share).abs() < 1e-15);
    let text = fs::read_to_string(dir.join("report.md")).unwrap();
    assert!(text.contains("50.00 TB written, 7.0 % of its life used / 50.00 TB written"), "{text}");
    assert!(text.contains("wear.override was set"), "{text}");
    // The runs' list knows what it wrote, and when.
    let entry = &report::list(&root.path().join("results"))[0];
    assert_eq!(entry.written, Bytes(before + 2_000_000 + outside));
    assert_eq!(entry.month.len(), 7, "{}", entry.month);
}

#[test]
fn case_ex_15_report_is_complete_and_honest() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    let mut kinds = ten_steps(&dir);
    kinds.insert(
        5,
        EventKind::Notice(Notice { level: Level::Warn, text: format!("fell back: '{HOME}/a b/x' is on btrfs") }),
    );
    let path = record(&dir, kinds).finish().unwrap();
    assert_eq!(path, dir.join("report.json"));
    let r = json_file(&path);
    let want = json!({
        "schema": 1, "run_id": "run-1", "status": "finished", "verdict": "LORA_DISK", "mode": "lora",
        "steps": 10, "tokens": 640, "trained_tokens": 200, "skipped_steps": [], "telemetry_dropped": 7,
        "tool": format!("blockstream-tui {}", env!("CARGO_PKG_VERSION")),
    });
    for (key, value) in want.as_object().unwrap() {
        assert_eq!(&r[key], value, "{key}");
    }
    for (pointer, value) in [
        ("/model/fingerprint", json!("f00d")),
        ("/machine/gpu/name", json!("RTX 5050")),
        ("/machine/gpu/uuid", json!("GPU-1234")),
        ("/machine/gpu/driver", json!("580.1")),
        ("/setup/dtype", json!("bf16")),
        ("/setup/seq", json!(64)),
        ("/setup/batch", json!(1)),
        ("/setup/seed", json!(42)),
        ("/setup/attention", json!("sdpa-flash")),
        ("/setup/reader", json!("pread, O_DIRECT, 4 threads")),
        ("/data/sha256", json!("da7a")),
        ("/data/rows_used", json!(10)),
        ("/data/dropped/over-long", json!(3)),
        ("/data/truncated", json!(1)),
        ("/data/over_long", json!("truncate_end")),
        ("/loss/first", json!(4.0)),
        ("/eval/before", json!(4.0)),
        ("/eval/after", json!(3.0)),
        ("/residency/planned", json!(3)),
        ("/residency/peak", json!(3)),
        ("/bytes/disk_read", json!(6000)),
        ("/bytes/h2d", json!(7000)),
        ("/bytes/d2h", json!(80)),
        ("/bytes/model_drive_written", json!(0)),
        ("/bytes/per_step/disk_read", json!(600)),
        ("/bytes/planned_per_step/disk_read", json!(600)),
        // The two slow first steps don't count, and the report says so.
        ("/seconds_per_step/median", json!(0.5)),
        ("/seconds_per_step/p95", json!(1.0)),
        ("/seconds_per_step/n", json!(8)),
        ("/seconds_per_step/warmup_excluded", json!(2)),
        ("/bound/resource", json!("disk")),
        ("/bound/seconds", json!(0.4)),
        ("/bound/share", json!(0.8)),
        ("/forecast/low", json!(0.4)),
        ("/forecast/high", json!(0.8)),
        ("/forecast/inside", json!(true)),
        ("/vram/planned", json!(5000)),
        ("/vram/live", json!(4000)),
        ("/vram/reserved", json!(4500)),
        ("/vram/device", json!(4900)),
        ("/ram/planned", json!(900)),
        // One block turned out to be in RAM: 75 of its bytes moved there from the planned disk tier.
        ("/tiers/vram", json!(10)),
        ("/tiers/ram", json!(95)),
        ("/tiers/disk", json!(225)),
        ("/stats/h2d_s", json!(0.5)),
        ("/stats/stall_s", json!(1.0)),
        ("/stats/evict_wait_s", json!(0.0)),
        ("/stats/resident_history", json!([[0, 1], [1, 2]])),
        ("/sessions/0/to_step", json!(10)),
        ("/notices/0/text", json!("fell back: '…/x' is on btrfs")),
    ] {
        assert_eq!(r.pointer(pointer), Some(&value), "{pointer}");
    }
    let speed = r["tokens_per_second"]["value"].as_f64().unwrap();
    assert!((speed - 8.0 * 64.0 / 4.6).abs() < 1e-9, "{speed}");
    assert!(r["tokens_per_second"]["method"].as_str().unwrap().contains("8 optimizer steps; 2 warm-up"));
    assert_eq!(r["loss"]["list"].as_array().unwrap().len(), 10);
    assert_eq!(r["forecast"]["ratio"].as_f64().map(|x| (x * 100.0).round()), Some(83.0));
    // Only the config, which resuming needs, may say where things lie on this machine.
    for name in [
        "plan.json",
        "env.json",
        "events.jsonl",
        "metrics.jsonl",
        "report.json",
        "report.md",
        "report.html",
        "loss.svg",
    ] {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        assert!(!text.contains("alice"), "{name}: {text}");
        assert!(!text.contains(root.path().to_str().unwrap()), "{name}");
    }
    assert!(fs::read_to_string(dir.join("config.toml")).unwrap().contains("alice"));
}

#[test]
fn case_ex_15_resume_history_counts_each_step_once() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    // Killed after step 7 with a checkpoint at 5, mid-line.
    let mut kinds = vec![started(&dir, 0, 10), eval(0, 4.0)];
    kinds.extend((1..=7).map(|n| step(n, 4.0, 0.5)));
    drop(record(&dir, kinds));
    fs::OpenOptions::new()
        .append(true)
        .open(dir.join("events.jsonl"))
        .map(|mut f| {
            use std::io::Write;
            f.write_all(b"{\"seq\":9,\"at\":4.5,\"event\":\"step\",\"ste").unwrap();
        })
        .unwrap();
    let dead = report::rebuild(&dir).unwrap();
    assert_eq!((dead.status, dead.steps), (RunStatus::Failed, 7));
    assert!(dead.reason.unwrap().contains("last word"));
    let mut kinds = vec![started(&dir, 5, 10)];
    kinds.extend((6..=10).map(|n| step(n, 3.0, 0.5)));
    kinds.extend([eval(10, 2.0), finished(&dir, 10, RunStatus::Finished)]);
    let mut recorder =
        Recorder::create(&dir, &RunConfig { results: Some("r".into()), ..config() }, &plan(), &env()).unwrap();
    for event in events(kinds) {
        recorder.record(&event).unwrap();
    }
    let r = json_file(&recorder.finish().unwrap());
    assert_eq!(r["steps"], 10);
    assert_eq!(r["tokens"], 640, "repeated steps are not new tokens");
    assert_eq!(r["bytes"]["disk_read"], 12 * 600, "but their bytes did move");
    assert_eq!(r["loss"]["list"].as_array().unwrap().len(), 10);
    assert_eq!(r["loss"]["list"][5], json!([6, 3.0]));
    assert_eq!((&r["eval"]["before"], &r["eval"]["after"]), (&json!(4.0), &json!(2.0)));
    assert_eq!(r["seconds_per_step"]["warmup_excluded"], 4, "each session warms up");
    let sessions: Vec<Value> =
        r["sessions"].as_array().unwrap().iter().map(|s| json!([s["from_step"], s["to_step"], s["status"]])).collect();
    assert_eq!(sessions, [json!([0, 7, "running"]), json!([5, 10, "finished"])]);
    assert!(r["sessions"].as_array().unwrap().iter().all(|s| s["started"].is_string()));
    let lines: Vec<Value> = fs::read_to_string(dir.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let tokens =
        |n: u64| lines.iter().rev().find(|l| l["step"] == n && l["loss"].is_f64()).unwrap()["num_tokens"].clone();
    assert_eq!((tokens(7), tokens(10)), (json!(7 * 64), json!(640)));
    assert!(dir.join("config.1.toml").exists() && !dir.join("plan.1.json").exists());
    assert_eq!(json_file(&dir.join("env.json"))["earlier"].as_array().unwrap().len(), 1);
}

#[test]
fn case_ex_15_a_nan_step_is_null_counted_and_leaves_valid_json() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    let mut kinds = vec![started(&dir, 0, 3), step(1, 4.0, 0.5), step(2, f64::NAN, 0.5)];
    kinds.push(EventKind::Step(StepRecord {
        step: 3,
        metrics: [(LOSS, f64::INFINITY), (GRAD_NORM, f64::NEG_INFINITY), (LEARNING_RATE, f64::NAN)].into(),
        seconds: f64::INFINITY,
        stall_s: f64::NAN,
        ..StepRecord::default()
    }));
    kinds.push(finished(&dir, 3, RunStatus::Failed));
    let r = json_file(&record(&dir, kinds).finish().unwrap());
    assert_eq!(r["steps"], 3, "no step is lost: {r}");
    assert_eq!(r["skipped_steps"], json!([2]));
    assert_eq!(r["loss"], json!({ "first": 4.0, "last": null, "list": [[1, 4.0], [2, null], [3, null]] }));
    assert_eq!(r["notices"], json!([]));
    for line in fs::read_to_string(dir.join("metrics.jsonl")).unwrap().lines() {
        let _: Value = serde_json::from_str(line).unwrap();
    }
    let svg = fs::read_to_string(dir.join("loss.svg")).unwrap();
    assert!(svg.contains("not finite: 2") && !svg.contains("NaN"));
}

#[test]
fn case_ui_18_the_same_job_gives_the_same_report_but_for_times() {
    let report_of = |name: &str, speed: f64| {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("results").join(name);
        fs::create_dir_all(&dir).unwrap();
        let mut kinds = ten_steps(&dir);
        for kind in &mut kinds {
            if let EventKind::Step(s) = kind {
                s.seconds *= speed;
            }
        }
        json_file(&record(&dir, kinds).finish().unwrap())
    };
    let (a, b) = (report_of("by-keys", 1.0), report_of("by-script", 1.7));
    assert_ne!(a["seconds_per_step"], b["seconds_per_step"]);
    assert_eq!(comparable(&a), comparable(&b));
    let mut c = b.clone();
    c["loss"]["list"][3][1] = json!(1.0);
    assert_ne!(comparable(&b), comparable(&c));
    for key in ["verdict", "steps", "tokens", "loss", "eval", "data", "config", "bytes", "setup", "tiers"] {
        assert!(!comparable(&a)[key].is_null(), "{key}");
    }
}

#[test]
fn the_report_can_be_rebuilt_from_the_recording() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    let written = json_file(&record(&dir, ten_steps(&dir)).finish().unwrap());
    let mut rebuilt = serde_json::to_value(report::rebuild(&dir).unwrap()).unwrap();
    rebuilt["files"] = written["files"].clone();
    assert_eq!(rebuilt.to_string(), written.to_string());
    // And it reads back as the type it was written from.
    let typed: report::Report = serde_json::from_value(written).unwrap();
    assert_eq!(typed.steps, 10);
}

#[test]
fn metrics_use_trls_names() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    record(&dir, ten_steps(&dir));
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 12);
    assert_eq!(lines[0]["eval_loss"], 4.0);
    for key in ["loss", "grad_norm", "learning_rate", "epoch", "num_tokens", "step", "step_time"] {
        assert!(lines[2][key].is_number(), "{key}: {}", lines[2]);
    }
    assert_eq!((&lines[2]["step"], &lines[2]["num_tokens"]), (&json!(2), &json!(128)));
}

#[test]
fn telemetry_is_left_out_but_for_a_thin_sample_of_the_gauges() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    let mut recorder = Recorder::create(&dir, &config(), &plan(), &env()).unwrap();
    recorder.record(&Event { seq: 0, at: 0.0, kind: started(&dir, 0, 1) }).unwrap();
    // Ten hours of gauges, one a second.
    for second in 0..36_000u32 {
        let kind = EventKind::Gauges(Gauges { sm_clock_mhz: Some(1000 + second % 100), ..Gauges::default() });
        recorder.record(&Event { seq: u64::from(second), at: f64::from(second), kind }).unwrap();
    }
    let progress = Progress {
        step: 1,
        phase: Phase::Forward,
        block: 0,
        visit: 0,
        visits: 8,
        blocks: vec![BlockState::Active],
        disk_read: Bytes(0),
        h2d: Bytes(0),
        vram_live: None,
    };
    recorder.record(&Event { seq: 1, at: 1.0, kind: EventKind::Progress(progress) }).unwrap();
    let r = json_file(&recorder.finish().unwrap());
    let clock = &r["gauges"]["sm_clock_mhz"];
    assert!((500..3500).contains(&clock["n"].as_u64().unwrap()), "{clock}");
    assert_eq!(clock["min"], 1000.0);
    assert!(!fs::read_to_string(dir.join("events.jsonl")).unwrap().contains("\"progress\""));
    assert_eq!(r["gauges"]["power_w"], Value::Null, "what the driver didn't give is not 0");
}

#[test]
fn one_run_has_one_recorder_and_a_living_run_shows_as_running() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    let recorder = record(&dir, vec![started(&dir, 0, 10), step(1, 4.0, 0.5)]);
    let second = Recorder::create(&dir, &config(), &plan(), &env()).unwrap_err();
    assert!(second.to_string().contains("another process"), "{second}");
    let results = root.path().join("results");
    assert_eq!(report::list(&results)[0].status, RunStatus::Running);
    assert_eq!(report::load(&dir).unwrap()["steps"], 1);
    drop(recorder);
    assert_eq!(report::list(&results)[0].status, RunStatus::Failed);
}

#[test]
fn runs_are_listed_newest_first_and_broken_ones_are_shown() {
    let root = tempfile::tempdir().unwrap();
    let results = root.path().join("results");
    for (name, started_at) in [("b-old", "2026-01-01T00:00:00Z"), ("a-new", "2026-05-01T00:00:00Z")] {
        let dir = results.join(name);
        let mut recorder =
            Recorder::create(&dir, &config(), &plan(), &json!({ "started": started_at, "tool": "x" })).unwrap();
        for event in events(ten_steps(&dir)) {
            recorder.record(&event).unwrap();
        }
        recorder.finish().unwrap();
    }
    fs::create_dir(results.join("broken")).unwrap();
    fs::write(results.join("broken/report.json"), "{").unwrap();
    fs::create_dir(results.join("no-run")).unwrap();
    fs::write(results.join("a file"), "").unwrap();
    let runs = report::list(&results);
    let names: Vec<&str> = runs.iter().map(|r| r.run_id.as_str()).collect();
    assert_eq!(names, ["broken", "a-new", "b-old"]);
    assert_eq!((runs[0].status, runs[0].steps), (RunStatus::Failed, 0));
    let new = &runs[1];
    assert_eq!((new.model.as_str(), new.verdict.as_str(), new.steps), ("org/T0", "LORA_DISK", 10));
    assert_eq!((new.eval, new.seconds_per_step), ((Some(4.0), Some(3.0)), Some(0.5)));
    assert_eq!(new.tiers.len(), 4);
    assert!(report::list(&root.path().join("nowhere")).is_empty());
}

#[test]
fn verify_finds_changed_missing_and_foreign_files() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    fs::create_dir(dir.join("adapter")).unwrap();
    fs::write(dir.join("adapter/adapter_model.safetensors"), [1, 2, 3]).unwrap();
    let path = record(&dir, ten_steps(&dir)).finish().unwrap();
    let good = report::verify(&dir).unwrap();
    assert!(good.ok && good.checked >= 9, "{good:?}");
    fs::write(dir.join("adapter/adapter_model.safetensors"), [1, 2, 4]).unwrap();
    fs::write(dir.join("metrics.jsonl"), "").unwrap();
    fs::remove_file(dir.join("loss.svg")).unwrap();
    let mut r = json_file(&path);
    r["files"]["../../secret"] = json!({ "bytes": 1, "sha256": "00" });
    fs::write(&path, r.to_string()).unwrap();
    let bad = report::verify(&dir).unwrap();
    assert!(!bad.ok);
    for (file, why) in [
        ("adapter/adapter_model.safetensors", "content has changed"),
        ("metrics.jsonl", "0 bytes"),
        ("loss.svg", "cannot be read"),
        ("../../secret", "not a name inside"),
    ] {
        assert!(bad.problems.iter().any(|p| p.starts_with(file) && p.contains(why)), "{file}: {:?}", bad.problems);
    }
    assert_eq!(bad.problems.len(), 4);
    assert!(report::verify(root.path()).unwrap_err().to_string().contains("no report.json"));
}

#[test]
fn compare_shows_figures_and_the_settings_that_differ() {
    let root = tempfile::tempdir().unwrap();
    let mut dirs = Vec::new();
    for i in 0..5u64 {
        let dir = root.path().join(format!("results/20261129T173106Z-a-rather-long-model-name-lora-{i}"));
        let mut config = config();
        config.train.seed = 40 + i;
        let mut recorder = Recorder::create(&dir, &config, &plan(), &env()).unwrap();
        for event in events(ten_steps(&dir)) {
            recorder.record(&event).unwrap();
        }
        recorder.finish().unwrap();
        dirs.push(dir);
    }
    let c = report::compare(&dirs).unwrap();
    assert!(c.text.lines().all(|l| l.chars().count() <= report::MAX_WIDTH), "{}", c.text);
    assert_eq!(c.text.matches("s/step median").count(), 2, "five runs take two blocks:\n{}", c.text);
    assert_eq!(c.json["differing_settings"], json!(["train.seed"]));
    assert_eq!(c.json["runs"][4]["settings"], json!({ "train.seed": 44 }));
    assert_eq!(c.json["runs"][0]["seconds_per_step.median"], 0.5);
    assert!(report::compare(&dirs[..1]).unwrap_err().to_string().contains("two runs"));
}

#[test]
fn the_page_is_self_contained_and_escapes_what_files_say() {
    let root = tempfile::tempdir().unwrap();
    let dir = run_dir(root.path());
    let mut kinds = ten_steps(&dir);
    if let EventKind::Started(s) = &mut kinds[0] {
        s.model = "<script>alert(1)</script>|`x`".into();
    }
    kinds.push(EventKind::Notice(Notice { level: Level::Error, text: "<b>\u{1b}[31mred</b>\nnext".into() }));
    record(&dir, kinds).finish().unwrap();
    let html = fs::read_to_string(dir.join("report.html")).unwrap();
    for forbidden in ["<script", "http", "src=", "href=", "@import", "<b>", "\u{1b}"] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert!(html.contains("&lt;script&gt;") && html.matches("<svg ").count() == 2);
    let md = fs::read_to_string(dir.join("report.md")).unwrap();
    assert!(md.contains("\\<script\\>") && !md.contains('\u{1b}') && md.lines().count() < 100, "{md}");
    let svg = fs::read_to_string(dir.join("loss.svg")).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.contains("evaluation"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_event_sequence_has_a_summary_that_is_valid_json(
        kinds in proptest::collection::vec((any::<f64>(), any_kind()), 0..40),
    ) {
        let events: Vec<Event> =
            kinds.into_iter().enumerate().map(|(i, (at, kind))| Event { seq: i as u64, at, kind }).collect();
        let plan = serde_json::to_value(plan()).unwrap();
        let r = summary(&events, &json!({}), &plan, &Value::Null);
        let text = serde_json::to_string(&r).unwrap();
        let back: Value = serde_json::from_str(&text).unwrap();
        prop_assert!(back["schema"] == 1 && comparable(&back).is_object());
    }
}

proptest! {
    // Each case writes and syncs a dozen files.
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_event_that_is_recorded_is_read_back(kinds in proptest::collection::vec(any_kind(), 1..12)) {
        let root = tempfile::tempdir().unwrap();
        let dir = run_dir(root.path());
        let n = kinds.len();
        let recorder = record(&dir, kinds.clone());
        recorder.finish().unwrap();
        let recording = report::read_events(&dir).unwrap();
        prop_assert_eq!(recording.damaged, 0);
        let gauges = kinds.iter().filter(|k| k.is_telemetry()).count();
        prop_assert!(recording.events.len() >= n - gauges);
        prop_assert!(report::replay(&dir).is_ok() || recording.events.is_empty());
    }
}
