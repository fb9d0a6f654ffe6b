//! The real desk over the scripted engine: real checkpoint, plan, recorder and run list, no libtorch.

use crate::support::fixture::Model;
use blockstream_tui::config::{ByteSize, DeviceChoice, Mode, RunConfig};
use blockstream_tui::engine::Services;
use blockstream_tui::error::Kind;
use blockstream_tui::event::{Command, Event, EventKind, RunFinished, RunStatus};
use blockstream_tui::ui::app::Screen;
use blockstream_tui::ui::keys::{self, Action};
use blockstream_tui::ui::overlay::Overlay;
use blockstream_tui::ui::{Msg, Session, Theme, buffer_text, frame};
use blockstream_tui::worker::fake::{FakeEngine, Fault};
use blockstream_tui::worker::{Desk, DeskOptions, Signals, host_gauges};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
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

fn shown(session: &Session<'_>, size: (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|f| frame::draw(&session.app, f)).unwrap();
    buffer_text(terminal.backend().buffer())
}

fn press(session: &mut Session<'_>, keys: &str) {
    keys.split(' ').for_each(|key| session.send(Msg::Key(keys::parse(key).unwrap())));
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
fn a_plan_follows_the_device_that_is_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, mut config) = desk(dir.path(), four_blocks());
    config.machine = Some(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/profiles/rtx4090-desktop.toml")));
    for (device, gpu) in [(DeviceChoice::Auto, true), (DeviceChoice::Cpu, false), (DeviceChoice::Auto, true)] {
        config.train.device = device;
        assert_eq!(desk.plan(&config).unwrap().machine.gpu.is_some(), gpu, "{device}");
    }
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
    refused(|c| c.train.mode = Mode::Full, "this version trains LoRA adapters");
    assert!(!dir.path().join("results").exists());
}

#[test]
fn case_fo_56_a_plan_says_what_keeps_it_from_being_started() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, good) = desk(dir.path(), four_blocks());
    assert_eq!(desk.unready(&good), None);
    let mut why = |edit: fn(&mut RunConfig)| {
        let mut config = good.clone();
        edit(&mut config);
        // A start gives the same reason.
        let refused = desk.start(&config).unwrap_err().to_string();
        assert_eq!(desk.unready(&config).as_deref(), Some(refused.as_str()));
        refused
    };
    assert!(why(|c| c.data.files.clear()).contains("no data file"));
    assert!(why(|c| c.data.files = vec!["nosuch.jsonl".into()]).contains("nosuch.jsonl"));
    assert!(why(|c| c.train.mode = Mode::Full).contains("forecast only"));

    let empty = RunConfig { data: Default::default(), ..good };
    let mut session = Session::new(empty, Theme::plain(), &mut desk);
    assert_eq!(session.app.plan.unready(), Some("No training data yet: press 2 and set files"));
    session.send(Msg::Act(Action::Mode));
    let drawn = shown(&session, (160, 50));
    let row = |word: &str| drawn.lines().find(|l| l.contains(word)).unwrap_or_else(|| panic!("{word}: {drawn}"));
    assert!(row("Full ").contains("forecast only") && !row("Full ").contains('✓'), "{drawn}");
    session.send(Msg::Act(Action::Mode));
    let drawn = shown(&session, (160, 50));
    let row = |word: &str| drawn.lines().find(|l| l.contains(word)).unwrap_or_else(|| panic!("{word}: {drawn}"));
    for packed in ["nf4", "fp8"] {
        assert!(!row(packed).contains('✓'), "{packed} can't be trained: {drawn}");
    }
    let rows = dir.path().join("rows.jsonl").display().to_string();
    session.send(Msg::Set("data.files".into(), rows));
    assert_eq!(session.app.plan.unready(), None);
    assert!(!dir.path().join("results").exists());
}

#[test]
fn case_fo_61_a_path_is_completed_and_a_card_can_be_imagined() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, config) = desk(dir.path(), four_blocks());
    std::fs::create_dir(dir.path().join("tidy")).unwrap();
    std::fs::create_dir(dir.path().join(".tiny-hidden")).unwrap();
    let at = |name: &str| format!("{}/{name}", dir.path().display());
    assert_eq!(desk.folders(&at("ti")), [at("tidy"), at("tiny")]);
    assert_eq!(desk.folders(&at(".ti")), [at(".tiny-hidden")]);
    assert!(desk.folders(&at("rows")).is_empty(), "a file is no folder");

    let mut session = Session::new(config, Theme::plain(), &mut desk);
    let typed = |session: &Session<'_>| match &session.app.overlay {
        Some(Overlay::Prompt(p)) => p.input.text().to_owned(),
        other => panic!("{other:?}"),
    };
    session.send(Msg::Open(Screen::Models));
    press(&mut session, "o");
    session.send(Msg::Paste(at("t")));
    press(&mut session, "<tab>");
    assert_eq!(typed(&session), at("ti"), "as far as all agree");
    press(&mut session, "n <tab>");
    assert_eq!(typed(&session), at("tiny/"));
    press(&mut session, "<ret>");
    assert!(session.app.plan.report().is_some(), "{:?}", session.app.plan.error());

    // The profile has no GPU: what-if can add one.
    press(&mut session, "w w +");
    let machine = &session.app.plan.report().unwrap().machine;
    assert_eq!(machine.gpu.as_ref().map(|g| g.vram_total.0), Some(4_000_000_000), "{:?}", session.app.plan.error());
}

#[test]
fn case_fo_59_the_whole_command_of_a_plan_can_be_read_and_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (mut desk, mut base) = desk(dir.path(), four_blocks());
    base.lora.r = 24;
    base.train.learning_rate = 3e-4;
    base.data.files = (0..9).map(|n| format!("a/long/folder/name/rows-{n}.jsonl").into()).collect();
    for size in [(80, 24), (100, 30), (120, 30), (160, 50)] {
        let mut session = Session::new(base.clone(), Theme::plain(), &mut desk);
        session.send(Msg::Resize(size.0, size.1));
        press(&mut session, "<tab> G");
        let drawn = shown(&session, size);
        let command = session.app.plan.report().unwrap().modes.lora.command.clone();
        assert!(command.contains("rows-8.jsonl") && command.contains("--set lora.r=24"), "{command}");
        // The column of the plan's text from its `$` on, as a shell would read it.
        let mut rows = drawn.lines().skip_while(|l| !l.contains("│$ "));
        let first = rows.next().unwrap_or_else(|| panic!("{size:?}: {drawn}"));
        let from = first.chars().take_while(|c| *c != '$').count() + 2;
        let column = |row: &str| {
            let text: String = row.chars().skip(from).take_while(|c| *c != '│').collect();
            text.trim_end().to_owned()
        };
        let mut read = column(first);
        while let Some(open) = read.strip_suffix('\\') {
            read = format!("{open}{}", column(rows.next().unwrap_or_else(|| panic!("{size:?}: {drawn}"))));
        }
        let one_space = |t: &str| t.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(one_space(&read), command, "{size:?}:\n{drawn}");
    }
}
