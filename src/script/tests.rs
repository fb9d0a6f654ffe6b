//! Scripts against the scripted desk: grammar, expectations, exit codes, files.

use super::*;
use crate::config::RunConfig;
use crate::error::ExitCode;
use crate::event::RunStatus;
use crate::ui::UiOptions;
use crate::worker::Signals;
use crate::worker::fake::{FakeDesk, FakeEngine, Fault};
use std::path::Path;
use std::time::Duration;

struct Ran {
    code: ExitCode,
    out: String,
    err: String,
    _dir: tempfile::TempDir,
    results: std::path::PathBuf,
}

fn ran_with(script: &str, engine: FakeEngine, signals: &Signals, change: impl FnOnce(&mut RunConfig)) -> Ran {
    let dir = tempfile::tempdir().unwrap();
    let (file, results) = (dir.path().join("t.script"), dir.path().join("results"));
    std::fs::write(&file, script).unwrap();
    let mut config = RunConfig::default();
    config.model.path = "models/SmolLM2-135M-Instruct".into();
    config.train.max_steps = 6;
    change(&mut config);
    let mut desk = FakeDesk::new(engine, results.clone(), signals.clone());
    let options = UiOptions { config, results: results.clone(), ..UiOptions::default() };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(&file, &mut desk, options, &mut out, &mut err);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code, out: text(out), err: text(err), _dir: dir, results }
}

fn ran(script: &str) -> Ran {
    ran_with(script, FakeEngine::default(), &Signals::none(), |_| {})
}

fn first_error(script: &str) -> (usize, String) {
    parse(script).unwrap_err()
}

#[test]
fn a_line_of_each_kind_is_read() {
    let script = "\
# comment
size 80x24   # after a command too

key j <ret> <c-c>
type \"two words # not a comment \\\" \\\\\"
open runs
set stream.vram_budget \"2 GB\"
run
wait finished 90s
wait paused 5m
wait \"step 3\" 250ms
wait step 4 1h
wait screen \"LORA_DISK\" 2s
expect steps >= 20
expect verdict == RAM in lora
expect loss.last < loss.first
expect screen held-out
snapshot plan-1
export peft
stop
quit
";
    let lines = parse(script).unwrap();
    assert_eq!(lines.len(), 19);
    assert_eq!((lines[0].number, &lines[0].command), (2, &Command::Size(80, 24)));
    assert_eq!(lines[2].command, Command::Type("two words # not a comment \" \\".into()));
    assert_eq!(lines[6].command, Command::Wait(Wait::Finished, Duration::from_secs(90)));
    assert_eq!(lines[8].command, Command::Wait(Wait::Step(3), Duration::from_millis(250)));
    assert_eq!(lines[9].command, Command::Wait(Wait::Step(4), Duration::from_secs(3600)));
    let Command::Expect { op: Op::Eq, value: Operand::Word(w), scope: Scope::Lora, .. } = &lines[12].command else {
        panic!("{:?}", lines[12])
    };
    assert_eq!(w, "RAM");
}

#[test]
fn a_byte_order_mark_changes_nothing() {
    let text = "size 80x24\nrun\n";
    assert_eq!(parse(&format!("\u{feff}{text}")), parse(text));
}

#[test]
fn case_ui_18_every_bad_line_is_named_and_none_is_ignored() {
    for (script, line, part) in [
        ("size 80x24\n\nfly away\n", 3, "unknown command 'fly'"),
        ("snapshto x", 1, "did you mean 'snapshot'?"),
        ("RUN", 1, "unknown command 'RUN'"),
        ("size 80", 1, "'80' is not a size"),
        ("size 0x10", 1, "not a size"),
        ("size 501x10", 1, "not a size"),
        ("key", 1, "key is written"),
        ("key <nope>", 1, "'<nope>' is not a key"),
        ("type one two", 1, "'type' is written"),
        ("open nowhere", 1, "no screen 'nowhere'"),
        ("set lora.r", 1, "'set' is written"),
        ("wait finished", 1, "'wait' is written"),
        ("wait finished soon", 1, "'soon' is not a duration"),
        ("wait finished 90", 1, "'90' is not a duration"),
        ("wait finished -3s", 1, "not a duration"),
        ("wait finished 1e999s", 1, "not a duration"),
        ("wait \"step x\" 1s", 1, "'x' is not a step number"),
        ("expect steps", 1, "'expect' is written"),
        ("expect steps = 3", 1, "'=' is no comparison"),
        ("expect steps == 3 in both", 1, "'in lora' or 'in full'"),
        ("expect steps == 3 4", 1, "'in lora' or 'in full'"),
        ("snapshot ../x", 1, "no snapshot name"),
        ("snapshot .x", 1, "no snapshot name"),
        ("type \"open end", 1, "has no end"),
        ("type \"a\\q\"", 1, "means nothing"),
        ("run now", 1, "'run' is written"),
        ("quit 3", 1, "'quit' is written"),
    ] {
        let (at, what) = first_error(script);
        assert_eq!(at, line, "{script}");
        let part = part.replace("key is", "'key' is");
        assert!(what.contains(&part), "{script}: {what}");
    }
    let r = ran("open plan\nopen run\nfly\n");
    assert_eq!(r.code, ExitCode::Usage);
    assert!(r.err.contains("t.script:3: unknown command 'fly'"), "{}", r.err);
    assert!(!r.err.contains("> open plan"), "nothing runs before the whole script is read: {}", r.err);
}

#[test]
fn a_whole_run_prints_its_report_and_keeps_stdout_for_data() {
    let r = ran("open plan\nexpect verdict == RAM in lora\nexpect modes.lora.vram.total > 0\nsnapshot plan\nrun\n\
         wait finished 20s\nexpect steps == 6\nexpect loss.last < loss.first\nexpect eval.after < eval.before\n\
         expect residency.peak <= residency.planned\nexpect bytes.model_drive_written == 0\nexpect verdict contains LORA\n\
         expect status == finished\nsnapshot run\nexport peft\n");
    assert_eq!(r.code, ExitCode::Ok, "{}", r.err);
    let run = r.results.join("fake-1");
    let paths = [r.results.join("plan.txt"), run.join("report.json"), run.join("run.txt"), run.join("adapter")];
    let wanted: String = paths.iter().map(|p| format!("{}\n", p.display())).collect();
    assert_eq!(r.out, wanted);
    assert!(r.err.contains("step 6/6: loss") && r.err.contains("eval loss"), "{}", r.err);
    assert!(std::fs::read_to_string(run.join("run.txt")).unwrap().contains("finished"));
}

#[test]
fn keys_and_verbs_do_the_same() {
    let by_keys = "open models\nkey g <ret>\nwait screen RAM 2s\nkey <ret>\nwait finished 20s\n";
    let by_verbs = "run\nwait finished 20s\n";
    let report = |script: &str| {
        let r = ran(script);
        assert_eq!(r.code, ExitCode::Ok, "{}", r.err);
        let text = std::fs::read_to_string(r.results.join("fake-1/report.json")).unwrap();
        let mut report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["seconds_per_step"] = serde_json::Value::Null;
        report
    };
    assert_eq!(report(by_keys), report(by_verbs));
}

#[test]
fn a_false_expectation_ends_the_script_with_one_and_says_what_was_found() {
    let r = ran("open plan\nexpect verdict == LORA_DISK in lora\nsnapshot never\n");
    assert_eq!(r.code, ExitCode::Failed);
    assert!(r.err.contains("t.script:2: 'verdict' is \"RAM\", expected == \"LORA_DISK\""), "{}", r.err);
    assert!(r.out.is_empty());
    for (line, part) in [
        ("expect nothing.here == 3", "no 'nothing.here' in the plan (no run has finished)"),
        ("expect model < 3", "only numbers have an order"),
        ("expect screen \"no such text\"", "the screen does not show"),
        ("wait \"step 3\" 1s", "no run was started"),
        ("wait screen nowhere 20ms", "in vain"),
        ("export peft", "is to be exported"),
    ] {
        let r = ran(&format!("open plan\n{line}\n"));
        if line == "export peft" {
            assert_eq!(r.code, ExitCode::Ok, "the newest listed run is exported where none ran: {}", r.err);
            continue;
        }
        assert_eq!(r.code, ExitCode::Failed, "{line}");
        assert!(r.err.contains(part), "{line}: {}", r.err);
    }
}

#[test]
fn case_ui_18_an_infeasible_plan_is_three_and_a_failed_run_is_one() {
    let r = ran_with("run\nwait finished 9s\n", FakeEngine::default(), &Signals::none(), |c| {
        c.stream.vram_budget = crate::config::ByteSize(1_000_000);
    });
    assert_eq!(r.code, ExitCode::Infeasible);
    assert!(r.err.contains("t.script:1: INFEASIBLE (lora): Needs") && r.err.contains("nearest fix"), "{}", r.err);
    assert!(!r.results.join("fake-1").exists(), "nothing is written for a plan that is refused");

    let engine = FakeEngine { fault: Fault::Error(3), ..FakeEngine::default() };
    let r = ran_with("run\nwait finished 9s\n", engine, &Signals::none(), |_| {});
    assert_eq!(r.code, ExitCode::Failed);
    assert!(r.err.contains("t.script:2: the run failed: the scripted engine failed as told"), "{}", r.err);

    let r = ran_with("run\n", FakeEngine::default(), &Signals::none(), |c| c.model.path = "models/nowhere".into());
    assert_eq!(r.code, ExitCode::Usage, "{}", r.err);
    let r = ran_with("run\n", FakeEngine::default(), &Signals::none(), |c| c.model.path.clear());
    assert_eq!(r.code, ExitCode::Usage, "{}", r.err);
}

fn slow() -> FakeEngine {
    FakeEngine { visit: Duration::from_millis(1), ..FakeEngine::default() }
}

#[test]
fn stop_and_the_end_of_the_script_save_and_exit_four() {
    for script in ["run\nwait \"step 1\" 9s\nstop\nwait finished 9s\n", "run\nwait \"step 1\" 9s\n", "run\nquit\n"] {
        let r = ran_with(script, slow(), &Signals::none(), |c| c.train.max_steps = 10_000);
        assert_eq!(r.code, ExitCode::StoppedEarly, "{script}: {}", r.err);
        assert!(
            r.err.contains("saved at step") && r.err.contains("resume with: blockstream-tui train --resume"),
            "{}",
            r.err
        );
        assert!(r.out.contains("report.json"));
    }
}

#[test]
fn pause_is_waited_for_and_the_run_goes_on() {
    let script = "run\nkey p\nwait paused 9s\nexpect screen paused\nkey p\nwait finished 9s\n";
    let r = ran_with(script, slow(), &Signals::none(), |c| c.train.max_steps = 4);
    assert_eq!(r.code, ExitCode::Ok, "{}", r.err);
}

#[test]
fn case_tr_09_a_signal_in_a_script_saves_and_exits_by_its_number() {
    for (term, code) in [(false, ExitCode::Interrupted), (true, ExitCode::Terminated)] {
        let signals = Signals::none();
        let sender = signals.clone();
        let send = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(80));
            if term { sender.terminate() } else { sender.interrupt() }
        });
        let r = ran_with("run\nwait finished 9s\n", slow(), &signals, |c| c.train.max_steps = 10_000);
        send.join().unwrap();
        assert_eq!(r.code, code, "{}", r.err);
        assert!(
            r.err.contains("saved checkpoint") && r.err.contains("resume with: blockstream-tui train --resume"),
            "{}",
            r.err
        );
        let report = std::fs::read_to_string(r.results.join("fake-1/report.json")).unwrap();
        let status =
            serde_json::to_string(if term { &RunStatus::Terminated } else { &RunStatus::Interrupted }).unwrap();
        assert!(report.contains(&format!("\"status\": {status}")), "{report}");
    }
}

#[test]
fn case_tr_09_ctrl_c_asks_and_a_second_one_drops_the_step() {
    let script = "run\nwait \"step 2\" 9s\nkey <c-c>\nexpect screen \"save and stop\"\nkey <c-c>\nwait finished 9s\n";
    let r = ran_with(script, slow(), &Signals::none(), |c| c.train.max_steps = 10_000);
    assert_eq!(r.code, ExitCode::StoppedEarly, "{}", r.err);
    assert!(r.err.contains("saved at step"), "{}", r.err);
}

#[test]
fn a_script_that_is_not_there_is_bad_usage_of_the_disk() {
    let mut desk = FakeDesk::new(FakeEngine::default(), "results".into(), Signals::none());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(Path::new("/nowhere/x.script"), &mut desk, UiOptions::default(), &mut out, &mut err);
    assert_eq!(code, ExitCode::Usage);
    assert!(String::from_utf8(err).unwrap().contains("cannot read '/nowhere/x.script'"));
}
