//! What a resumed run takes, says and refuses when something has changed since it was started.

use super::runs::{config, copy_folder, curve, file, rows, run, run_dir, run_on};
use crate::support::fixture::Model;
use blockstream_tui::config::{RunConfig, TierChoice, load};
use blockstream_tui::engine::Resume;
use blockstream_tui::event::{Event, EventKind, RunFinished, RunStatus};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A finished run of two steps whose longer rows are cut.
struct Old {
    dir: tempfile::TempDir,
    config: RunConfig,
    run: PathBuf,
}

impl Old {
    fn new() -> Old {
        let dir = tempfile::tempdir().unwrap();
        let model = Model::tiny().std(0.08).write(&dir.path().join("tiny"));
        let mut config = config(&model, dir.path());
        (config.train.max_steps, config.data.max_length) = (2, 50);
        let run = run_dir(&run(&config, &dir.path().join("results"), None, None).0);
        config.train.max_steps = 3;
        Old { dir, config, run }
    }

    fn resume(&self, config: &RunConfig, force: bool) -> (Vec<Event>, RunFinished) {
        let resume = Resume { checkpoint: self.run.join("checkpoint-2"), force };
        run_on(config, &self.dir.path().join("results"), Some(resume), None)
    }

    /// What lies in the run's folder.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut folders = vec![self.run.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    all.insert(path.clone(), std::fs::read(path).unwrap());
                }
            }
        }
        all
    }

    /// The resume of `config` is refused for `reason`, and leaves the folder as it was.
    fn refuses(&self, config: &RunConfig, reason: &str) {
        let before = self.contents();
        let (_, finished) = self.resume(config, false);
        let said = finished.reason.unwrap_or_default();
        assert!(finished.status == RunStatus::Failed && said.contains(reason), "{reason}: {said}");
        assert!(finished.refused, "{said}");
        assert!(before == self.contents(), "'{reason}' changed the folder");
    }
}

fn said(events: &[Event]) -> Vec<String> {
    let text = |e: &Event| if let EventKind::Notice(n) = &e.kind { Some(n.text.clone()) } else { None };
    events.iter().filter_map(text).collect()
}

/// What a resume makes of a changed setting.
#[derive(Clone, Copy, PartialEq)]
enum Taken {
    Never,
    Forced,
    Said,
}

#[test]
fn case_fo_05c_a_changed_setting_is_refused_with_both_values_or_said() {
    use Taken::{Forced, Never, Said};
    let old = Old::new();
    let template = old.dir.path().join("other.jinja");
    std::fs::write(&template, "{% for m in messages %}{{ m['content'] }}\n{% endfor %}").unwrap();
    let template = template.display().to_string();
    let shown = format!("data.template was not set in this run and is \"{template}\" now");
    for (key, value, reason, taken) in [
        ("lora.r", "8", "lora.r was 4 in this run and is 8 now", Never),
        ("lora.targets", "q_proj", "lora.targets was", Never),
        ("lora.top_fraction", "0.5", "lora.top_fraction was 1 in this run and is 0.5 now", Never),
        ("lora.init_from", "somewhere", "lora.init_from was not set in this run and is \"somewhere\" now", Never),
        ("train.seed", "7", "train.seed was 42 in this run and is 7 now", Never),
        ("train.gradient_accumulation_steps", "3", "was 4 in this run and is 6 now", Never),
        ("lora.alpha", "1", "lora.alpha was 32 in this run and is 1 now", Forced),
        ("lora.rslora", "true", "lora.rslora was false in this run and is true now", Forced),
        ("data.max_length", "40", "data.max_length was 50 in this run and is 40 now", Forced),
        ("data.over_long", "drop", "was \"truncate_end\" in this run and is \"drop\" now", Forced),
        ("data.train_on", "all", "data.train_on was \"assistant\" in this run and is \"all\" now", Forced),
        ("data.eval_split", "0.4", "data.eval_split was 0.2 in this run and is 0.4 now", Forced),
        ("data.template", &template, &shown, Forced),
        ("lora.dropout", "0.3", "lora.dropout was 0.1 in this run and is 0.3 now: the loss curve", Said),
        ("train.learning_rate", "0.5", "train.learning_rate was 0.01 in this run and is 0.5 now: the loss curve", Said),
        ("train.lr_scheduler_type", "linear", "was \"cosine\" in this run and is \"linear\" now: the loss curve", Said),
        ("train.warmup_steps", "1", "train.warmup_steps was 2 in this run and is 1 now: the loss curve", Said),
        ("train.weight_decay", "0.1", "train.weight_decay was 0 in this run and is 0.1 now: the loss curve", Said),
        ("train.max_grad_norm", "0.5", "train.max_grad_norm was 1 in this run and is 0.5 now: the loss curve", Said),
        ("stream.prefetch_ahead", "3", "stream.prefetch_ahead was 1 in this run and is 3 now", Said),
    ] {
        let mut c = old.config.clone();
        load::set(&mut c, key, value).unwrap();
        if taken != Said {
            old.refuses(&c, reason);
        }
        let copy = Old { dir: tempfile::tempdir().unwrap(), config: c.clone(), run: PathBuf::new() };
        let copy = Old { run: copy.dir.path().join("results/run"), ..copy };
        copy_folder(&old.run, &copy.run);
        let (events, finished) = copy.resume(&c, taken == Forced);
        assert_eq!(finished.status == RunStatus::Finished, taken != Never, "{key}: {:?}", finished.reason);
        if taken == Never {
            continue;
        }
        assert!(said(&events).iter().any(|n| n.contains(reason)), "{key}: {events:?}");
        let kept = String::from_utf8(file(&copy.run, "config.toml")).unwrap();
        let mut again = load::load(Some(&copy.run.join("config.toml")), &[], &[]).unwrap().config;
        load::set(&mut again, key, value).unwrap();
        assert_eq!(load::to_toml(&again).unwrap(), kept, "{key}: what was taken is recorded");
        // The adapter that PEFT loads has the factor that was trained with.
        let adapter: Value = serde_json::from_slice(&file(&copy.run, "adapter/adapter_config.json")).unwrap();
        let factor = (adapter["lora_alpha"].as_f64(), adapter["use_rslora"] == true);
        assert_eq!(factor, (Some(c.lora.alpha), c.lora.rslora), "{key}");
    }
}

#[test]
fn case_fo_05d_rows_are_known_by_what_they_are() {
    let old = Old::new();
    let path = &old.config.data.files[0];
    let text = std::fs::read_to_string(path).unwrap();
    // Edited, shrunk and longer data.
    for changed in
        [text.replace("answer", "anSwer"), text.lines().take(6).collect::<Vec<_>>().join("\n"), text.repeat(2)]
    {
        std::fs::write(path, changed).unwrap();
        old.refuses(&old.config, "the data files have other contents");
    }
    // The model's own chat template.
    std::fs::write(path, &text).unwrap();
    let tokenizer = Path::new(&old.config.model.path).join("tokenizer_config.json");
    let own = std::fs::read_to_string(&tokenizer).unwrap();
    std::fs::write(&tokenizer, own.replace("'\\\\n' + m", "': ' + m")).unwrap();
    assert_ne!(own, std::fs::read_to_string(&tokenizer).unwrap());
    old.refuses(&old.config, "chat template or tokenizer has changed");
    std::fs::write(&tokenizer, own).unwrap();

    // Another name for the same rows, and held-out rows of their own, which no training row depends on.
    let mut c = old.config.clone();
    let elsewhere = old.dir.path().join("renamed.jsonl");
    std::fs::rename(path, &elsewhere).unwrap();
    c.data.files = vec![elsewhere];
    let (events, finished) = old.resume(&c, false);
    assert_eq!(finished.status, RunStatus::Finished, "{:?}", finished.reason);
    assert!(said(&events).iter().any(|n| n.contains("renamed.jsonl") && n.contains("rows that train are the same")));
    assert!(!said(&events).iter().any(|n| n.contains("held-out rows are others")));
}

#[test]
fn case_fo_05e_what_changes_nothing_is_taken_and_said_and_the_curve_stays() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().std(0.08).write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    (c.data.eval_split, c.train.max_steps, c.train.save_steps) = (0.0, 4, 2);
    let (events, _) = run(&c, &dir.path().join("results"), None, None);
    let old = run_dir(&events).join("checkpoint-2");
    // Another place of the base, an eval file that was not there, other tiers and saves.
    let moved = dir.path().join("elsewhere/tiny");
    copy_folder(&model, &moved);
    c.model.path = moved.display().to_string();
    c.data.eval_files = vec![rows(dir.path())];
    (c.stream.tier, c.train.save_steps, c.stream.slots) = (TierChoice::Ram, 0, 3);
    let (resumed, finished) = run(&c, &dir.path().join("results"), Some(old), None);
    assert_eq!(finished.status, RunStatus::Finished, "{:?}", finished.reason);
    let said = said(&resumed);
    for line in [
        "stream.tier was \"disk\" in this run and is \"ram\" now",
        "train.save_steps was 2 in this run and is 0 now",
        "stream.slots was 0 in this run and is 3 now",
        "data.eval_files was [] in this run",
        "the held-out rows are others",
    ] {
        assert!(said.iter().any(|n| n.contains(line)), "{line}: {said:#?}");
    }
    let false_alarm = |n: &&String| n.contains("curve") || n.contains("data files");
    assert_eq!(said.iter().find(false_alarm), None);
    assert_eq!(curve(&events)[2..], curve(&resumed)[..], "the curve is the uninterrupted one");
}

#[test]
fn case_fo_05f_a_checkpoint_of_an_older_version_only_warns() {
    let old = Old::new();
    let folder = old.run.join("checkpoint-2");
    let read = |name: &str| serde_json::from_slice::<Value>(&file(&folder, name)).unwrap();
    let mut state = read("trainer_state.json");
    for key in ["settings", "rows_sha256", "eval_sha256"] {
        state.as_object_mut().unwrap().remove(key);
    }
    state["base_fingerprint"] = "an older fingerprint".into();
    let text = serde_json::to_vec_pretty(&state).unwrap();
    std::fs::write(folder.join("trainer_state.json"), &text).unwrap();
    let mut manifest = read("checkpoint.json");
    let hash: String = Sha256::digest(&text).iter().map(|b| format!("{b:02x}")).collect();
    manifest["files"]["trainer_state.json"] = serde_json::json!({ "bytes": text.len(), "sha256": hash });
    std::fs::write(folder.join("checkpoint.json"), manifest.to_string()).unwrap();
    let (events, finished) = old.resume(&old.config, false);
    assert_eq!(finished.status, RunStatus::Finished, "{:?}", finished.reason);
    assert!(said(&events).iter().any(|n| n.contains("older version") && n.contains("base and settings")), "{events:?}");
}

/// Runs `train` in the folder `at`.
fn train(at: &Path, args: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_blockstream-tui"))
        .current_dir(at)
        .arg("train")
        .args(args)
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn case_fo_37c_a_run_resumes_from_any_folder_and_a_refused_one_exits_two() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let model = Model::tiny().write(&home.join("tiny"));
    let mut c = config(&model, &home);
    (c.model.path, c.data.files) = ("tiny".into(), vec!["rows.jsonl".into()]);
    (c.train.max_steps, c.train.save_steps) = (2, 1);
    std::fs::write(home.join("run.toml"), load::to_toml(&c).unwrap()).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    // Results inside the folder where the run was started, and outside of it.
    for results in [home.join("results"), dir.path().join("out/results")] {
        let place = results.display().to_string();
        let (code, err) = train(&home, &["--config", "run.toml", "--results", &place]);
        assert_eq!(code, Some(0), "{err}");
        let run = std::fs::read_dir(&results).unwrap().next().unwrap().unwrap().path();
        let env = String::from_utf8(file(&run, "env.json")).unwrap();
        assert!(!env.contains(&dir.path().display().to_string()), "{env}");
        let folder = run.display().to_string();
        let (code, err) = train(&elsewhere, &["--resume", &folder, "--max-steps", "3", "--set", "lora.alpha=1"]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("error: lora.alpha was 32 in this run and is 1 now"), "{err}");
        let (code, err) = train(&elsewhere, &["--resume", &folder, "--max-steps", "3"]);
        assert!(code == Some(0) && err.contains("step 3/3"), "{err}");
        assert!(
            !err.contains("rows.jsonl\" now") && !err.contains("tiny\" now"),
            "another way there is no news: {err}"
        );
        let (code, err) = train(&home, &["--resume", &folder, "--max-steps", "4"]);
        assert!(code == Some(0) && err.contains("step 4/4"), "{err}");
    }
    // Data that can't be used is no failure of the run either.
    std::fs::write(home.join("rows.jsonl"), "{\"x\": 1}\n").unwrap();
    let (code, err) = train(&home, &["--config", "run.toml"]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn case_fo_37d_a_torn_last_line_is_mended_when_the_run_goes_on() {
    let old = Old::new();
    for name in ["metrics.jsonl", "events.jsonl"] {
        let path = old.run.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(b"{\"loss\": 1.5, \"step\": \xe2\x82");
        std::fs::write(&path, bytes).unwrap();
    }
    std::fs::create_dir(old.run.join("checkpoint-3.tmp")).unwrap();
    let mut c = old.config.clone();
    c.lora.alpha = 1.0;
    old.refuses(&c, "lora.alpha");
    let (_, finished) = old.resume(&old.config, false);
    assert_eq!(finished.status, RunStatus::Finished, "{:?}", finished.reason);
    let lines = String::from_utf8(file(&old.run, "metrics.jsonl")).unwrap();
    let values = lines.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let steps: Vec<u64> = values.filter(|v| v["loss"].is_f64()).map(|v| v["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3]);
    for line in String::from_utf8(file(&old.run, "events.jsonl")).unwrap().lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
    let left = std::fs::read_dir(&old.run).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|n| n.ends_with(".tmp")).collect::<Vec<_>>(), [""; 0]);
}
