//! A run of an earlier version is read, and goes on.
//!
//! `tests/data/runs/schema_1` is the folder of four steps on the golden `llama_tied` as the program wrote it at commit
//! f043cc7, when a step's loss, gradient norm and learning rate were fields of the event; reports and the last
//! checkpoint are left out.

use blockstream_tui::event::{EventKind, GRAD_NORM, LEARNING_RATE, LOSS, Metrics, RunStatus};
use blockstream_tui::report::{self, Recording};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Metrics of every step, and the schema of every session.
fn told(recording: &Recording) -> (Vec<(u64, Metrics)>, Vec<u32>) {
    let (mut steps, mut schemas) = (Vec::new(), Vec::new());
    for event in &recording.events {
        match &event.kind {
            EventKind::Step(s) => steps.push((s.step, s.metrics.clone())),
            EventKind::Started(s) => schemas.push(s.schema),
            _ => {}
        }
    }
    (steps, schemas)
}

#[test]
fn events_of_schema_1_are_read_with_the_numbers_they_hold() {
    let dir = data("runs/schema_1");
    let recording = report::read_events(&dir).unwrap();
    let stored = lines(&dir.join("events.jsonl"));
    assert_eq!((recording.damaged, recording.events.len()), (0, stored.len()));
    let of = |l: &Value| {
        let metrics = [LOSS, GRAD_NORM, LEARNING_RATE].map(|name| (name, l[name].as_f64().unwrap()));
        (l["step"].as_u64().unwrap(), Metrics::from(metrics))
    };
    let want: Vec<_> = stored.iter().filter(|l| l["event"] == "step").map(of).collect();
    assert_eq!(told(&recording), (want.clone(), vec![1]));
    let r = report::rebuild(&dir).unwrap();
    let losses: Vec<_> = want.iter().map(|(n, m)| (*n, m.get(LOSS))).collect();
    assert_eq!((r.status, r.steps, r.loss.list, r.notices.len()), (RunStatus::Finished, 4, losses, 0));
    assert_eq!(r.eval.before, Some(5.499_187_374_114_991));
}

#[test]
fn a_step_of_schema_1_that_was_not_finite_is_no_number_and_a_cut_one_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let stored = lines(&data("runs/schema_1/events.jsonl"));
    let mut step = stored.iter().find(|l| l["event"] == "step").unwrap().clone();
    (step["loss"], step["grad_norm"]) = (Value::Null, Value::Null);
    let mut cut = step.clone();
    cut.as_object_mut().unwrap().remove("learning_rate");
    std::fs::write(dir.path().join("events.jsonl"), format!("{step}\n{cut}\n")).unwrap();
    let recording = report::read_events(dir.path()).unwrap();
    assert_eq!((recording.events.len(), recording.damaged), (1, 1));
    let (steps, _) = told(&recording);
    let names: Vec<_> = steps[0].1.iter().map(|(name, x)| (name, x.is_nan())).collect();
    assert_eq!(names, [(LOSS, true), (GRAD_NORM, true), (LEARNING_RATE, false)]);
}

#[cfg(feature = "torch")]
#[test]
fn a_run_of_schema_1_goes_on_and_its_record_is_one() {
    use crate::runs::{copy_folder, run};
    use blockstream_tui::event::EVENT_SCHEMA;
    let dir = tempfile::tempdir().unwrap();
    let (results, old) = (dir.path().join("results"), dir.path().join("results/old"));
    copy_folder(&data("runs/schema_1"), &old);
    let mut c = blockstream_tui::config::load::load(Some(&old.join("config.toml")), &[], &[]).unwrap().config;
    c.model.path = data("golden/llama_tied").display().to_string();
    c.data.files = vec![old.join("rows.jsonl")];
    let (before, _) = told(&report::read_events(&old).unwrap());
    let (_, finished) = run(&c, &results, Some(old.join("checkpoint-2")), None);
    assert_eq!((finished.status, finished.step), (RunStatus::Finished, 4), "{:?}", finished.reason);

    let recording = report::read_events(&old).unwrap();
    let (steps, schemas) = told(&recording);
    assert_eq!((recording.damaged, schemas), (0, vec![1, EVENT_SCHEMA]));
    assert_eq!(steps[..4], before[..]);
    // Another processor may round otherwise; another formula would not be this near.
    for ((n, new), (_, old)) in steps[4..].iter().zip(&before[2..]) {
        for (name, x) in new.iter() {
            let y = old.get(name).unwrap();
            assert!((x - y).abs() <= 1e-5 * y.abs(), "{name} of step {n}: {x}, was {y}");
        }
    }
    let numbers: Vec<u64> = steps.iter().map(|(n, _)| *n).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 3, 4]);
    let metrics = lines(&old.join("metrics.jsonl"));
    let trained: Vec<_> = metrics.iter().filter(|l| l["loss"].is_f64()).collect();
    let tokens: Vec<u64> = trained.iter().filter_map(|l| l["num_tokens"].as_u64()).collect();
    assert_eq!(tokens, [90, 187, 291, 374], "earlier tokens count on");
    let keys = |l: &Value| l.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(trained[3]), keys(trained[0]), "one file, one set of keys");
    let state: Value =
        serde_json::from_slice(&std::fs::read(old.join("checkpoint-4/trainer_state.json")).unwrap()).unwrap();
    let logged = state["log_history"].as_array().unwrap();
    assert_eq!((logged.len(), keys(&logged[3])), (4, keys(&logged[0])));
    assert_eq!(report::load(&old).unwrap()["loss"]["first"], logged[0]["loss"]);
}
