//! Whole runs of the real trainer on tiny models: what they leave behind, how they resume, stop and refuse.

use crate::support::fixture::{Model, Tensor};
use blockstream_tui::checkpoint::{self, Part, adapter};
use blockstream_tui::config::{DeviceChoice, RunConfig, Scheduler, TierChoice};
use blockstream_tui::device::shim;
use blockstream_tui::engine::{Resume, Services};
use blockstream_tui::event::{
    Command, Event, EventKind, GRAD_NORM, LEARNING_RATE, LOSS, RunFinished, RunStatus, StepRecord,
};
use blockstream_tui::train::Trainer;
use blockstream_tui::worker::{Desk, DeskOptions, Signals, host_gauges};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ten chat rows.
pub(super) fn rows(dir: &Path) -> PathBuf {
    let path = dir.join("rows.jsonl");
    let line = |i: usize| {
        format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"question {i}\"}},{{\"role\":\"assistant\",\"content\":\"{}\"}}]}}\n",
            "answer ".repeat(1 + i % 4)
        )
    };
    std::fs::write(&path, (0..10).map(line).collect::<String>()).unwrap();
    path
}

/// A config that trains `model` for ten steps, from disk.
pub(super) fn config(model: &Path, dir: &Path) -> RunConfig {
    let mut c = RunConfig::default();
    c.model.path = model.display().to_string();
    c.data.files = vec![rows(dir)];
    c.data.eval_split = 0.2;
    c.data.max_length = 128;
    c.lora.r = 4;
    c.lora.dropout = 0.1;
    c.train.max_steps = 10;
    c.train.per_device_train_batch_size = 2;
    c.train.gradient_accumulation_steps = 2;
    c.train.learning_rate = 1e-2;
    c.train.lr_scheduler_type = Scheduler::Cosine;
    c.train.warmup_steps = 2.0;
    c.train.device = DeviceChoice::Cpu;
    c.train.save_total_limit = 0;
    c.stream.tier = TierChoice::Disk;
    c.stream.prefetch_ahead = 1;
    c
}

/// Runs to the end; after the first step sends `command`, if any.
pub(super) fn run(
    config: &RunConfig,
    results: &Path,
    resume: Option<PathBuf>,
    command: Option<Command>,
) -> (Vec<Event>, RunFinished) {
    run_on(config, results, resume.map(Resume::from), command)
}

/// As [`run`], from what `resume` says.
pub(super) fn run_on(
    config: &RunConfig,
    results: &Path,
    resume: Option<Resume>,
    command: Option<Command>,
) -> (Vec<Event>, RunFinished) {
    let _ = shim::init();
    let mut desk = Desk::new(DeskOptions {
        engine: Box::new(|| Box::new(Trainer)),
        gauges: Box::new(|_| Box::new(host_gauges)),
        env: Box::new(|_, machine| serde_json::json!({ "machine": machine.name })),
        places: Vec::new(),
        results: results.to_path_buf(),
        signals: Signals::none(),
        resume,
    });
    desk.start(config).unwrap_or_else(|e| panic!("{e}"));
    let (since, mut all, mut command) = (Instant::now(), Vec::new(), command);
    loop {
        for event in desk.poll() {
            all.push(event.clone());
            match event.kind {
                EventKind::Step(_) => {
                    if let Some(c) = command.take() {
                        desk.command(c);
                    }
                }
                EventKind::Finished(f) => return (all, f),
                _ => {}
            }
        }
        assert!(since.elapsed() < Duration::from_secs(60), "no end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn run_dir(events: &[Event]) -> PathBuf {
    let started = events.iter().find_map(|e| if let EventKind::Started(s) = &e.kind { Some(s) } else { None });
    started.unwrap_or_else(|| panic!("{events:?}")).run_dir.clone()
}

/// Loss, gradient norm and learning rate of every step, as bits.
pub(super) fn curve(events: &[Event]) -> Vec<(u64, [u64; 3])> {
    let steps = events.iter().filter_map(|e| if let EventKind::Step(s) = &e.kind { Some(s) } else { None });
    let bits = |s: &StepRecord| [LOSS, GRAD_NORM, LEARNING_RATE].map(|name| s.metrics.get(name).unwrap().to_bits());
    steps.map(|s| (s.step, bits(s))).collect()
}

pub(super) fn file(run: &Path, name: &str) -> Vec<u8> {
    std::fs::read(run.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub(super) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)
        } else {
            std::fs::copy(entry.path(), target).map(drop).unwrap()
        }
    }
}

#[test]
fn case_tr_03_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().std(0.08).write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.save_steps = 5;
    let (events, finished) = run(&c, &dir.path().join("straight"), None, None);
    assert_eq!((finished.status, finished.step), (RunStatus::Finished, 10));
    let straight = run_dir(&events);

    // From the checkpoint in its middle …
    let half = dir.path().join("half/run");
    copy_folder(&straight.join("checkpoint-5"), &half.join("checkpoint-5"));
    let (resumed, finished) = run(&c, &dir.path().join("half"), Some(half.join("checkpoint-5")), None);
    assert_eq!((finished.status, finished.step), (RunStatus::Finished, 10));
    assert_eq!(run_dir(&resumed).file_name(), half.file_name(), "it goes on in its own folder");
    // … and after a stop at whatever step the command met.
    let (first, stopped) = run(&c, &dir.path().join("stopped"), None, Some(Command::StopAndSave));
    assert_eq!(stopped.status, RunStatus::Stopped);
    assert!(stopped.step >= 1 && stopped.step < 10, "stopped at {}", stopped.step);
    let stopped_dir = run_dir(&first);
    let (second, _) = run(&c, &dir.path().join("stopped"), stopped.checkpoint.clone(), None);

    for other in [&half, &stopped_dir] {
        for name in [
            "checkpoint-10/adapter_model.safetensors",
            "checkpoint-10/optimizer.safetensors",
            "checkpoint-10/trainer_state.json",
            "adapter/adapter_model.safetensors",
        ] {
            assert!(file(&straight, name) == file(other, name), "{name} differs in {}", other.display());
        }
    }
    // TR-01: rate, loss and norm of every step equal the straight run's to the last bit.
    let want = curve(&events);
    assert_eq!(want[5..], curve(&resumed)[..]);
    let joined: Vec<_> = curve(&first).into_iter().chain(curve(&second)).collect();
    assert_eq!(want, joined);
    assert!(want.iter().skip(1).all(|s| s.1[2] != 0), "the rate is zero at most at the first warm-up step");
}

#[test]
fn case_tr_01_more_steps_on_resume_stretch_the_schedule_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.max_steps = 3;
    let (events, _) = run(&c, &dir.path().join("results"), None, None);
    let checkpoint = run_dir(&events).join("checkpoint-3");
    c.train.max_steps = 6;
    let (events, finished) = run(&c, &dir.path().join("results"), Some(checkpoint), None);
    assert_eq!(finished.step, 6);
    let said =
        events.iter().any(|e| matches!(&e.kind, EventKind::Notice(n) if n.text.contains("stretched over all 6")));
    assert!(said, "{events:?}");
    assert!(curve(&events).iter().all(|s| f64::from_bits(s.1[2]) > 0.0), "no step is trained at rate 0");
}

#[test]
fn a_resume_on_another_base_or_batch_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.max_steps = 1;
    let (events, _) = run(&c, &dir.path().join("results"), None, None);
    let checkpoint = run_dir(&events).join("checkpoint-1");
    c.train.max_steps = 2;
    c.train.per_device_train_batch_size = 1;
    let refused = run(&c, &dir.path().join("results"), Some(checkpoint.clone()), None).1;
    assert!(refused.status == RunStatus::Failed && refused.reason.unwrap().contains("rows per step"));
    c.train.per_device_train_batch_size = 2;
    Model::tiny().seed(9).write(&model);
    let refused = run(&c, &dir.path().join("results"), Some(checkpoint), None).1;
    assert!(refused.status == RunStatus::Failed && refused.reason.unwrap().contains("base checkpoint"));
}

#[test]
fn case_fo_04_init_from_takes_the_adapters_own_factor() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().std(0.08).write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    (c.train.max_steps, c.lora.alpha, c.lora.rslora) = (3, 8.0, true);
    let trained = run_dir(&run(&c, &dir.path().join("results"), None, None).0).join("adapter");
    c.lora.init_from = Some(trained.clone());
    c.train.max_steps = 1;
    let right = run(&c, &dir.path().join("right"), None, None).0;
    (c.lora.alpha, c.lora.rslora) = (1.0, false);
    let (events, _) = run(&c, &dir.path().join("other"), None, None);
    assert_eq!(curve(&right), curve(&events));
    let named = |e: &Event| matches!(&e.kind, EventKind::Notice(n) if n.text.contains("lora.alpha = 8") && n.text.contains("lora.alpha = 1 "));
    assert!(events.iter().any(named), "{events:?}");
    let written = adapter::read(&run_dir(&events).join("adapter")).unwrap().0;
    assert_eq!((written.lora_alpha, written.use_rslora), (8.0, true));
}

#[test]
fn case_fo_79_a_bad_init_from_is_refused_before_there_is_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.lora.init_from = Some(dir.path().join("absent"));
    let mut desk = Desk::new(DeskOptions {
        engine: Box::new(|| Box::new(Trainer)),
        gauges: Box::new(|_| Box::new(host_gauges)),
        env: Box::new(|_, _| Value::Null),
        places: Vec::new(),
        results: dir.path().join("results"),
        signals: Signals::none(),
        resume: None,
    });
    let refused = desk.start(&c).unwrap_err();
    assert!(refused.to_string().contains("absent"), "{refused}");
    assert!(!dir.path().join("results").exists());
}

#[test]
fn case_fo_06_a_base_is_known_by_its_contents() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let print = |at: &Path| checkpoint::open(at).unwrap().fingerprint;
    let (moved, before) = (dir.path().join("moved/tiny"), print(&model));
    copy_folder(&model, &moved);
    let weights = moved.join("model.safetensors");
    let open = || std::fs::OpenOptions::new().write(true).open(&weights).unwrap();
    let then = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    open().set_modified(then).unwrap();
    assert_eq!(print(&moved), before, "times and place mean nothing");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    open().set_modified(then).unwrap();
    assert_ne!(print(&moved), before, "same size and time, other contents");
}

#[test]
fn case_fo_07_an_older_checkpoint_starts_a_branch_and_its_newest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    (c.train.max_steps, c.train.save_steps) = (8, 2);
    let old = run_dir(&run(&c, &dir.path().join("results"), None, None).0);
    (c.train.max_steps, c.train.save_total_limit) = (4, 2);
    let (events, finished) = run(&c, &dir.path().join("results"), Some(old.join("checkpoint-2")), None);
    assert_eq!(finished.checkpoint.as_deref().and_then(Path::file_name), Some("checkpoint-4".as_ref()));
    let (newest, _) = blockstream_tui::train::save::newest(&old);
    assert_eq!(newest.unwrap(), old.join("checkpoint-4"));
    let aside = old.join("set-aside-1-after-step-2");
    assert!(["checkpoint-4", "checkpoint-6", "checkpoint-8"].iter().all(|n| aside.join(n).is_dir()));
    let said = |e: &Event| matches!(&e.kind, EventKind::Notice(n) if n.text.contains("set-aside-1-after-step-2"));
    assert!(events.iter().any(said), "{events:?}");
    // FO-18: the metrics hold each step once.
    let lines = String::from_utf8(file(&old, "metrics.jsonl")).unwrap();
    let values = lines.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let steps: Vec<u64> = values.filter(|v| v["loss"].is_f64()).map(|v| v["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4]);
}

#[test]
fn case_fo_37_a_refused_resume_changes_nothing_in_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.max_steps = 4;
    let old = run_dir(&run(&c, &dir.path().join("results"), None, None).0);
    let names = ["config.toml", "plan.json", "env.json", "metrics.jsonl", "events.jsonl", "report.json"];
    let before = names.map(|n| file(&old, n));
    for (what, change) in
        [("lora.r was 4", (|c| c.lora.r = 16) as fn(&mut RunConfig)), ("4 already", |c| c.train.max_steps = 2)]
    {
        let mut changed = c.clone();
        change(&mut changed);
        let (_, refused) = run(&changed, &dir.path().join("results"), Some(old.join("checkpoint-4")), None);
        assert_eq!(refused.status, RunStatus::Failed, "{what}");
        let reason = refused.reason.unwrap();
        assert!(reason.contains(what), "{reason}");
        assert!(before == names.map(|n| file(&old, n)), "{what} changed the folder");
    }
}

#[test]
fn case_tr_07_a_damaged_checkpoint_is_passed_over_and_named() {
    use blockstream_tui::train::save;
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    (c.train.max_steps, c.train.save_steps) = (4, 2);
    let (events, _) = run(&c, &dir.path().join("results"), None, None);
    let run = run_dir(&events);
    let newest = run.join("checkpoint-4");
    for damage in ["adapter_model.safetensors", "trainer_state.json", "checkpoint.json"] {
        let path = newest.join(damage);
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, whole.len() / 2] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (found, skipped) = save::newest(&run);
            assert_eq!(found.unwrap(), run.join("checkpoint-2"), "{damage} cut to {cut}");
            assert!(skipped.len() == 1 && skipped[0].contains(damage), "{skipped:?}");
        }
        std::fs::write(&path, whole).unwrap();
    }
    assert_eq!(save::newest(&run).0.unwrap(), newest);
}

#[test]
fn case_ex_01_a_run_leaves_pefts_keys_shapes_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.max_steps = 2;
    c.lora.targets = vec!["q_proj".into(), "v_proj".into()];
    c.lora.top_fraction = 0.5;
    let (events, _) = run(&c, &dir.path().join("results"), None, None);
    let folder = run_dir(&events).join("adapter");
    let (config, tensors) = adapter::read(&folder).unwrap();
    assert_eq!((config.r, config.layers_to_transform), (4, Some(vec![2, 3])));
    assert_eq!(config.base_model_name_or_path, "tiny");
    let mut want = Vec::new();
    for layer in [2, 3] {
        for (module, out) in [("q_proj", 64), ("v_proj", 32)] {
            let stem = format!("base_model.model.model.layers.{layer}.self_attn.{module}");
            want.push((format!("{stem}.lora_A.weight"), vec![4, 64]));
            want.push((format!("{stem}.lora_B.weight"), vec![out, 4]));
        }
    }
    let got: Vec<_> = tensors.iter().map(|t| (t.key.clone(), t.shape.clone())).collect();
    assert_eq!(got.len(), want.len());
    assert!(want.iter().all(|w| got.contains(w)), "{got:?}");
    assert!(tensors.iter().filter(|t| t.key.contains("lora_B")).all(|t| t.data.iter().any(|x| *x != 0.0)), "B moved");
    for name in ["adapter_model.safetensors", "adapter_config.json", "README.md"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
}

#[test]
fn case_ck_19_heads_wider_than_hidden_train_with_the_right_shapes() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().set("head_dim", 32).write(&dir.path().join("wide"));
    let mut c = config(&model, dir.path());
    c.train.max_steps = 2;
    let (events, finished) = run(&c, &dir.path().join("results"), None, None);
    assert_eq!(finished.status, RunStatus::Finished);
    let (_, tensors) = adapter::read(&run_dir(&events).join("adapter")).unwrap();
    let shape = |module: &str, ab: &str| {
        let key = format!("base_model.model.model.layers.0.self_attn.{module}.lora_{ab}.weight");
        tensors.iter().find(|t| t.key == key).unwrap().shape.clone()
    };
    assert_eq!((shape("q_proj", "A"), shape("q_proj", "B")), (vec![4, 64], vec![128, 4]));
    assert_eq!((shape("o_proj", "A"), shape("o_proj", "B")), (vec![4, 128], vec![64, 4]));
    let opened = checkpoint::open(&model).unwrap();
    let summed: u64 = opened.tensors.iter().map(|t| t.elements()).sum();
    assert_eq!(opened.params(), summed);
}

#[test]
fn a_run_keeps_within_its_plan_and_its_report_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().set("num_hidden_layers", 8).write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.eval_steps = 4;
    let (events, finished) = run(&c, &dir.path().join("results"), None, None);
    let report: Value = serde_json::from_slice(&file(&run_dir(&events), "report.json")).unwrap();
    assert_eq!(report["steps"], 10);
    assert_eq!(report["verdict"], "LORA_DISK");
    assert!(report["residency"]["peak"].as_u64() <= report["residency"]["planned"].as_u64());
    assert_eq!(report["residency"]["peak"].as_u64().unwrap(), finished.residency_peak as u64);
    // Two slots of eight blocks, and one for an attention part more: read from disk in place, as planned.
    let per_step = &report["bytes"]["per_step"];
    let opened = checkpoint::open(&model).unwrap();
    let attention = opened.blocks[0].tensors.iter().filter(|t| t.role.part() == Part::Attention);
    let attention: u64 = attention.map(|t| opened.tensors[t.tensor].bytes).sum();
    let loads = 12 * opened.blocks[0].bytes.0 - 2 * attention;
    assert_eq!(per_step["h2d"].as_u64().unwrap(), loads);
    assert_eq!(report["bytes"]["planned_per_step"]["h2d"], per_step["h2d"]);
    assert!(per_step["disk_read"].as_u64().unwrap() >= loads);
    assert!(report["eval"]["after"].as_f64() < report["eval"]["before"].as_f64());
    let evals = events.iter().filter(|e| matches!(e.kind, EventKind::Eval(_))).count();
    assert_eq!(evals, 4, "before, after steps 4 and 8, after the last");
}

#[test]
fn case_tr_09_a_stop_at_once_leaves_the_last_checkpoint_and_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.save_steps = 1;
    c.train.max_steps = 500;
    let (events, finished) = run(&c, &dir.path().join("results"), None, Some(Command::Discard));
    assert_eq!(finished.status, RunStatus::Aborted);
    let run = run_dir(&events);
    let newest = blockstream_tui::train::save::newest(&run);
    assert_eq!(newest.0, finished.checkpoint);
    assert!(newest.1.is_empty(), "{:?}", newest.1);
    let left: Vec<_> =
        std::fs::read_dir(&run).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|n| !n.ends_with(".tmp")), "{left:?}");
}

/// Runs `config`; at the first event that `when` picks does `act` to the desk. Seconds from there to the end, too.
pub(super) fn run_until(
    config: &RunConfig,
    results: &Path,
    when: impl Fn(&EventKind) -> bool,
    act: impl FnOnce(&mut Desk),
) -> (Vec<Event>, RunFinished, f64) {
    let _ = shim::init();
    let mut desk = Desk::new(DeskOptions {
        engine: Box::new(|| Box::new(Trainer)),
        gauges: Box::new(|_| Box::new(host_gauges)),
        env: Box::new(|_, machine| serde_json::json!({ "machine": machine.name })),
        places: Vec::new(),
        results: results.to_path_buf(),
        signals: Signals::none(),
        resume: None,
    });
    desk.start(config).unwrap_or_else(|e| panic!("{e}"));
    let (mut since, mut all, mut act) = (Instant::now(), Vec::new(), Some(act));
    loop {
        for event in desk.poll() {
            all.push(event.clone());
            if when(&event.kind)
                && let Some(act) = act.take()
            {
                act(&mut desk);
                since = Instant::now();
            }
            if let EventKind::Finished(f) = event.kind {
                return (all, f, since.elapsed().as_secs_f64());
            }
        }
        assert!(since.elapsed() < Duration::from_secs(60), "no end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn is_step(n: u64) -> impl Fn(&EventKind) -> bool {
    move |k| matches!(k, EventKind::Step(s) if s.step == n)
}

/// What `finished` says is what lies in the folder.
pub(super) fn agrees(events: &[Event], finished: &RunFinished) {
    let (newest, _) = blockstream_tui::train::save::newest(&run_dir(events));
    assert_eq!(newest, finished.checkpoint, "{finished:?}");
    match finished.saved_step() {
        Some(n) => assert!(finished.kept().starts_with(&format!("saved at step {n}"))),
        None => assert!(finished.kept().starts_with("nothing was saved")),
    }
}

#[test]
fn case_fo_03a_files_that_are_not_read_any_more_may_change() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.stream.tier = TierChoice::Ram;
    let shard = model.join("model.safetensors");
    let gone = |_: &mut Desk| std::fs::remove_file(&shard).unwrap();
    let (events, finished, _) = run_until(&c, &dir.path().join("results"), is_step(2), gone);
    assert_eq!((finished.status, finished.step), (RunStatus::Finished, 10), "{:?}", finished.reason);
    agrees(&events, &finished);
}

#[test]
fn case_fo_03b_an_error_in_a_step_costs_that_step_alone() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.max_steps = 100_000;
    let shard = model.join("model.safetensors");
    let touch = |_: &mut Desk| std::fs::File::open(&shard).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    let (events, finished, _) = run_until(&c, &dir.path().join("results"), is_step(3), touch);
    assert_eq!(finished.status, RunStatus::Failed);
    assert!(finished.reason.as_ref().is_some_and(|r| r.contains("was written to")), "{finished:?}");
    assert!(finished.step >= 3 && finished.saved_step() == Some(finished.step), "{finished:?}");
    agrees(&events, &finished);
}

#[test]
fn case_fo_03c_steps_that_are_not_finite_and_dropped_steps_keep_the_last_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    c.train.learning_rate = 1e30;
    let (events, finished, _) = run_until(&c, &dir.path().join("a"), is_step(1_000), |_| {});
    assert_eq!(finished.status, RunStatus::Failed, "{finished:?}");
    assert_eq!(finished.saved_step(), Some(finished.step));
    agrees(&events, &finished);

    (c.train.learning_rate, c.train.max_steps) = (1e-3, 100_000);
    let drop_step = |d: &mut Desk| d.command(Command::DropStep);
    let (events, finished, _) = run_until(&c, &dir.path().join("b"), is_step(3), drop_step);
    assert_eq!(finished.status, RunStatus::Stopped);
    assert!(finished.step >= 3 && finished.saved_step() == Some(finished.step), "{finished:?}");
    agrees(&events, &finished);
}

#[test]
fn case_fo_11_a_stop_is_heard_while_data_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let c = config(&model, dir.path());
    let rows = std::fs::read_to_string(&c.data.files[0]).unwrap();
    std::fs::write(&c.data.files[0], rows.repeat(40_000)).unwrap();
    let reading = |k: &EventKind| matches!(k, EventKind::Stage(s) if s.name == "reading data");
    let stop = |d: &mut Desk| d.command(Command::StopAndSave);
    let (_, finished, seconds) = run_until(&c, &dir.path().join("results"), reading, stop);
    assert!(seconds < 3.0, "{seconds} s");
    assert_eq!((finished.status, finished.checkpoint), (RunStatus::Stopped, None));
}

#[test]
fn case_fo_17d_the_attention_shown_is_the_one_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    for (window, says) in [(45, "sdpa, cpu, causal; sdpa, cpu, masked window"), (500, "sdpa, cpu, causal")] {
        let model = Model::family("mistral").set("sliding_window", window).write(&dir.path().join(says));
        let mut c = config(&model, dir.path());
        c.train.max_steps = 1;
        c.train.per_device_train_batch_size = 1;
        let (events, _) = run(&c, &dir.path().join(format!("results-{window}")), None, None);
        let started = events.iter().find_map(|e| match &e.kind {
            EventKind::Started(s) => Some(s.attention.clone()),
            _ => None,
        });
        assert_eq!(started.as_deref(), Some(says));
    }
}

#[test]
fn case_fo_78c_what_was_passed_over_of_a_model_is_in_its_reports() {
    let dir = tempfile::tempdir().unwrap();
    let head = |tensors: &mut Vec<Tensor>| {
        let embedding = tensors[0].clone();
        let name = embedding.name.clone();
        let data = Model::tiny().values(&name).iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
        tensors.push(Tensor { name: "lm_head.weight".into(), data: Some(data), ..embedding });
    };
    let model = Model::tiny().set("tie_word_embeddings", true).unset("rope_theta").edit(head);
    let model = model.write(&dir.path().join("m"));
    std::fs::copy(model.join("model.safetensors"), model.join("consolidated.safetensors")).unwrap();
    let mut c = config(&model, dir.path());
    c.train.max_steps = 1;
    let (events, _) = run(&c, &dir.path().join("results"), None, None);
    let dir = run_dir(&events);
    for file in ["report.json", "report.md", "report.html"] {
        // Markdown has a backslash before each underscore.
        let text = std::fs::read_to_string(dir.join(file)).unwrap().replace('\\', "");
        for words in ["lm_head.weight", "consolidated.safetensors", "no rope_theta: 10000 taken"] {
            assert!(text.contains(words), "'{words}' is not in {file}: {text}");
        }
    }
}
