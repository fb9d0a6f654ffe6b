//! Whether a run learned anything: epochs that are one pass, skipped steps, adapters that change nothing.

use super::runs::{config, curve, file, run, run_dir};
use crate::support::fixture::Model;
use blockstream_tui::error::ExitCode;
use blockstream_tui::event::{Event, EventKind, RunStatus};
use blockstream_tui::export;
use serde_json::Value;
use std::path::Path;

fn warned(events: &[Event], text: &str) -> bool {
    events.iter().any(|e| matches!(&e.kind, EventKind::Notice(n) if n.text.contains(text)))
}

#[test]
fn case_fo_09b_two_epochs_of_seven_rows_train_fourteen() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    let rows = std::fs::read_to_string(&c.data.files[0]).unwrap();
    std::fs::write(&c.data.files[0], rows.lines().take(7).flat_map(|l| [l, "\n"]).collect::<String>()).unwrap();
    (c.data.eval_split, c.train.max_steps, c.train.num_train_epochs) = (0.0, 0, 2.0);
    (c.train.per_device_train_batch_size, c.train.gradient_accumulation_steps) = (1, 4);
    let (events, finished) = run(&c, &dir.path().join("results"), None, None);
    assert_eq!((finished.status, finished.step), (RunStatus::Finished, 4));
    let steps: Vec<_> =
        events.iter().filter_map(|e| if let EventKind::Step(s) = &e.kind { Some(s.clone()) } else { None }).collect();
    let once: u64 = steps[..2].iter().map(|s| s.tokens).sum();
    assert_eq!(once, steps[2..].iter().map(|s| s.tokens).sum::<u64>(), "each epoch has every row once");
    assert_eq!((steps[1].epoch, steps[3].epoch), (1.0, 2.0));
    assert!(!warned(&events, "each epoch is one step"));
    c.train.gradient_accumulation_steps = 100;
    let (events, finished) = run(&c, &dir.path().join("results"), None, None);
    assert_eq!(finished.step, 2);
    assert!(warned(&events, "a step takes 100 rows and there are 7 to train"), "{events:?}");
}

#[test]
fn case_fo_10b_an_adapter_that_changes_nothing_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    (c.train.max_steps, c.train.learning_rate) = (2, 0.0);
    let (events, finished) = run(&c, &dir.path().join("results"), None, None);
    assert_eq!(finished.status, RunStatus::Finished);
    assert!(warned(&events, "the adapter changes nothing"), "{events:?}");
    let report: Value = serde_json::from_slice(&file(&run_dir(&events), "report.json")).unwrap();
    assert!(report["notices"].to_string().contains("the adapter changes nothing"));
    assert!(export::changes_nothing(&run_dir(&events)));
    c.train.learning_rate = 1e-3;
    let (events, _) = run(&c, &dir.path().join("results"), None, None);
    assert!(!warned(&events, "the adapter changes nothing") && !export::changes_nothing(&run_dir(&events)));
}

/// Writes an infinity over the last value of the stored tensor `name`.
fn spoil(model: &Path, name: &str) {
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let end = head + header[name]["data_offsets"][1].as_u64().unwrap() as usize;
    bytes[end - 2..end].copy_from_slice(&[0x80, 0x7f]);
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn case_fo_74b_a_run_that_learned_nothing_fails_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("tiny"));
    let mut c = config(&model, dir.path());
    (c.train.max_steps, c.lora.alpha, c.train.warmup_steps) = (2, 1e30, 0.0);
    let (events, finished) = run(&c, &dir.path().join("results"), None, None);
    let reason = finished.reason.clone().unwrap_or_default();
    assert_eq!(finished.status, RunStatus::Failed, "{events:?}");
    assert!(reason.contains("nothing was learned") && reason.contains("lora.alpha"), "{reason}");

    // A base that is no numbers is named, by tensor and file, in short runs and in long ones.
    let name = "model.layers.2.mlp.up_proj.weight";
    spoil(&model, name);
    c.lora.alpha = 8.0;
    for steps in [2, 10] {
        c.train.max_steps = steps;
        let (events, finished) = run(&c, &dir.path().join("results"), None, None);
        assert_eq!(finished.exit_code(), ExitCode::Usage, "the base can't be used");
        let reason = finished.reason.unwrap_or_default();
        assert_eq!((finished.status, curve(&events).len() as u64), (RunStatus::Failed, steps.min(3)));
        assert!(reason.contains(name) && reason.contains("model.safetensors"), "{reason}");
        assert!(!reason.contains("learning_rate"), "{reason}");
    }
}
