//! What is measured once is used by later plans: the program's own `bench disk`, `plan` and `doctor`, one after the other.

use crate::support::fixture::Model;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn run(state: &Path, args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_blockstream-tui");
    Command::new(program)
        .args(args)
        .env("XDG_STATE_HOME", state)
        .env("HF_HUB_CACHE", state.join("hub"))
        .output()
        .unwrap()
}

fn json(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{}", stderr(out)))
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_measured_drive_is_kept_and_later_plans_use_its_rate() {
    // Beside the program: memory is no drive, and temporary folders may lie in it.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (state, model) = (dir.path().join("state"), Model::tiny().write(&dir.path().join("m")));
    let model = model.to_str().unwrap();
    let source = |args: &[&str]| json(&run(&state, args))["machine"]["source"].as_str().unwrap_or("").to_string();
    let plan = ["plan", model, "--json"];
    assert!(source(&plan).contains("disk speed guessed"), "{}", source(&plan));

    let out = run(&state, &["bench", "disk", model, "--seconds", "1.1", "--no-save", "--json"]);
    if !out.status.success() {
        // A file system without O_DIRECT can't be measured; the text says so.
        assert!(stderr(&out).contains("page cache") || stderr(&out).contains("memory"), "{}", stderr(&out));
        return;
    }
    assert!(!state.exists() && !stderr(&out).contains("saved"), "{}", stderr(&out));
    let out = run(&state, &["bench", "disk", model, "--seconds", "1.1", "--json"]);
    let measured = json(&out)["read"]["mean"].as_f64().unwrap();
    assert!(stderr(&out).contains("saved for later plans in"), "{}", stderr(&out));
    let kept = std::fs::read_to_string(state.join("blockstream-tui/calibration.toml")).unwrap();
    assert!(kept.contains("[[volume]]") && kept.contains("schema = 1"), "{kept}");

    let planned = json(&run(&state, &plan));
    assert_eq!(planned["machine"]["disk"]["read"].as_f64(), Some(measured));
    let spread = &planned["machine"]["disk"]["read_spread"];
    assert!(spread[0].as_f64() <= spread[1].as_f64() && spread[0].as_f64() > Some(0.0), "{spread}");
    assert!(source(&plan).starts_with("measured; calibrated 20"), "{}", source(&plan));

    let doctor = json(&run(&state, &["doctor", "--json"]));
    assert_eq!(doctor["schema"], 1);
    assert!(
        doctor["calibration"]["volumes"][0]["read"]["rate"].as_f64() == Some(measured),
        "{}",
        doctor["calibration"]
    );
    let text = String::from_utf8_lossy(&run(&state, &["doctor", "--disk"]).stdout).into_owned();
    assert!(text.contains("volume") && text.contains("calibrated") && !text.contains("null"), "{text}");

    // A short look tells no sustained rate.
    let out = run(&state, &["bench", "disk", model, "--seconds", "0.1"]);
    assert!(stderr(&out).contains("disk is not saved: it was too short"), "{}", stderr(&out));
}

#[test]
fn a_hostile_file_of_calibrations_stops_no_plan() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::tiny().write(&dir.path().join("m"));
    let state = dir.path().join("state");
    let file = state.join("blockstream-tui/calibration.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    for text in ["schema = 1\nvolume = \"\u{1b}[31m\"", "[[[", "schema = 9"] {
        std::fs::write(&file, text).unwrap();
        let out = run(&state, &["plan", model.to_str().unwrap(), "--json"]);
        let source = json(&out)["machine"]["source"].to_string();
        assert!(source.contains("ignored") && source.contains("guessed"), "{source}");
        assert!(!source.contains("u001b"), "{source}");
    }
}
