//! The real desk over the scripted engine: real checkpoint, plan, recorder and run list, no libtorch.

use crate::support::fixture::Model;
use blockstream_tui::config::{ByteSize, RunConfig};
use blockstream_tui::engine::Services;
use blockstream_tui::error::Kind;
use blockstream_tui::event::{Command, Event, EventKind, RunFinished, RunStatus};
use blockstream_tui::ui::{Msg, Session, Theme};
use blockstream_tui::worker::fake::{FakeEngine, Fault};
use blockstream_tui::worker::{Desk, DeskOptions, Signals, host_gauges};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn desk(dir: &Path, engine: FakeEngine) -> (Desk, RunConfig) {
    let model = Model::tiny().write(&dir.join("tiny"));
    let options = DeskOptions {
        engine: Box::new(move || Box::new(engine.clone())),
        gauges: Box::new(|_| Box::new(host_gauges)),
        env: Box::new(|_, machine| serde_json::json!({ "machine": machine.name })),
        places: vec![model.clone()],
        results: dir.join("results"),
        signals: Signals::none(),
        resume: None,
    };
    let mut config = RunConfig::default();
    config.model.path = model.display().to_string();
    config.machine = Some(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/profiles/cpu-only.toml")));
    config.train.max_steps = 4;
    let rows = dir.join("rows.jsonl");
    std::fs::write(&rows, "{\"text\": \"a\"}\n").unwrap();
    config.data.files = vec![rows];
    (Desk::new(options), config)
}

fn four_blocks() -> FakeEngine {
    FakeEngine { n_blocks: 4, ..FakeEngine::default() }
}

fn until_finished(desk: &mut Desk) -> (Vec<Event>, RunFinished) {
    let (since, mut all) = (Instant::now(), Vec::new());
    loop {
        for event in desk.poll() {
            all.push(event.clone());
            if let EventKind::Finished(f) = event.kind {
                return (all, f);
            }
        }
        assert!(since.elapsed() < Duration::from_secs(10), "no Finished");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_desk_plans_runs_records_and_lists() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, config) = desk(dir.path(), four_blocks());
    let models = desk.models();
    assert_eq!((models[0].name.as_str(), models[0].n_blocks), ("tiny", 4));
    assert_eq!(desk.plan(&config).unwrap().n_blocks, 4);
    assert!(desk.runs().is_empty());
    desk.start(&config).unwrap();
    let (events, finished) = until_finished(&mut desk);
    assert_eq!((finished.status, finished.step), (RunStatus::Finished, 4));
    let EventKind::Started(started) = &events[0].kind else { panic!("{:?}", events[0]) };
    for file in ["config.toml", "plan.json", "env.json", "metrics.jsonl", "events.jsonl", "report.json", "report.md"] {
        assert!(started.run_dir.join(file).is_file(), "{file}");
    }
    let runs = desk.runs();
    assert_eq!((runs.len(), runs[0].steps, runs[0].status), (1, 4, RunStatus::Finished));
    let report = desk.report(&runs[0].dir).unwrap();
    assert_eq!(report["steps"], 4);
    assert!(report["loss"]["last"].as_f64() < report["loss"]["first"].as_f64());
}

#[test]
fn one_run_at_a_time_and_an_infeasible_one_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let slow = FakeEngine { visit: Duration::from_millis(5), steps: Some(100_000), ..four_blocks() };
    let (mut desk, mut config) = desk(dir.path(), slow);
    config.stream.vram_budget = ByteSize(1);
    config.stream.host_budget = ByteSize(1);
    let refused = desk.start(&config).unwrap_err();
    assert_eq!(refused.kind(), Kind::Infeasible, "{refused}");
    assert!(desk.runs().is_empty() && !dir.path().join("results").exists(), "nothing is written");
    config.stream.vram_budget = ByteSize(0);
    config.stream.host_budget = ByteSize(0);
    desk.start(&config).unwrap();
    assert!(desk.start(&config).unwrap_err().to_string().contains("a run is in progress"));
    desk.command(Command::StopAndSave);
    assert_eq!(until_finished(&mut desk).1.status, RunStatus::Stopped);
    assert_eq!(desk.runs()[0].status, RunStatus::Stopped);
}

#[test]
fn a_failed_run_has_a_report_that_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, config) = desk(dir.path(), FakeEngine { fault: Fault::Panic(3), ..four_blocks() });
    desk.start(&config).unwrap();
    let (_, finished) = until_finished(&mut desk);
    assert_eq!((finished.status, finished.step), (RunStatus::Failed, 2));
    let run = desk.runs().remove(0);
    assert_eq!((run.status, run.steps), (RunStatus::Failed, 2));
    assert!(desk.export(&run.dir, "no-such-kind").is_err());
}

#[test]
fn a_checkpoint_that_is_not_there_is_said_on_the_plan_screen() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, mut config) = desk(dir.path(), four_blocks());
    config.model.path = dir.path().join("nowhere").display().to_string();
    let mut session = Session::new(config.clone(), Theme::plain(), &mut desk);
    assert!(session.app.plan.error().is_some_and(|e| e.contains("nowhere")));
    session.send(Msg::Set("model.path".into(), dir.path().join("tiny").display().to_string()));
    assert!(session.app.plan.report().is_some(), "{:?}", session.app.plan.error());
}

#[test]
fn what_can_be_seen_to_be_wrong_is_refused_before_a_run_folder_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, good) = desk(dir.path(), four_blocks());
    let mut refused = |edit: fn(&mut RunConfig), word: &str| {
        let mut config = good.clone();
        edit(&mut config);
        let e = desk.start(&config).unwrap_err();
        assert!(e.kind() == Kind::Usage && e.to_string().contains(word), "{e}");
    };
    refused(|c| c.data.files.clear(), "no data file is named");
    refused(|c| c.data.files = vec!["nosuch.jsonl".into()], "nosuch.jsonl");
    refused(|c| c.train.mode = "full".into(), "cannot be trained by this version");
    assert!(!dir.path().join("results").exists());
}
