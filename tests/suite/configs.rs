//! The corpus of run configs and the shipped machine profiles: every valid file loads, every invalid file fails with
//! the message in its first line.

use blockstream_tui::config::load::{load, to_toml};
use blockstream_tui::config::{ByteSize, Resident};
use blockstream_tui::device::profile;
use blockstream_tui::error::ExitCode;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&dir).expect("the corpus is there").map(|e| e.expect("a readable entry").path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "toml"));
    files.sort();
    assert!(!files.is_empty(), "{folder}");
    files
}

#[test]
fn every_valid_config_loads_and_reads_back_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    for file in files("tests/data/configs/valid") {
        let loaded = load(Some(&file), &[], &[]).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let copy = dir.path().join("copy.toml");
        std::fs::write(&copy, to_toml(&loaded.config).unwrap()).unwrap();
        let again = load(Some(&copy), &[], &[]).unwrap();
        assert_eq!(again.config, loaded.config, "{}", file.display());
        assert!(again.notes.is_empty(), "{:?}", again.notes);
    }
}

#[test]
fn every_invalid_config_says_what_its_first_line_says() {
    for file in files("tests/data/configs/invalid") {
        let text = std::fs::read_to_string(&file).unwrap();
        let want = text.lines().next().unwrap().trim_start_matches("# ");
        let error = match load(Some(&file), &[], &[]) {
            Err(e) => e,
            Ok(_) => panic!("{} was accepted", file.display()),
        };
        assert!(error.to_string().contains(want.trim_end()), "{}: {error}", file.display());
        assert_eq!(error.exit_code(), ExitCode::Usage);
    }
}

#[test]
fn aliases_are_noted_one_line_each() {
    let valid = |name: &str| {
        load(Some(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs/valid").join(name)), &[], &[])
            .unwrap()
    };
    let flat = valid("flat_hugging_face.toml");
    assert_eq!(flat.notes.len(), 15, "{:?}", flat.notes);
    assert_eq!(flat.config.train.warmup_steps, 0.03);
    assert_eq!(flat.config.data.files, [PathBuf::from("rows.jsonl")]);
    let other = valid("other_trainers.toml");
    assert_eq!(other.config.stream.host_budget, ByteSize(8 << 30));
    assert_eq!(other.config.stream.resident_blocks, Resident::Auto);
    assert_eq!((other.config.lora.r, other.config.lora.targets.len(), other.config.train.max_steps), (4, 7, 50));
    assert!(valid("full.toml").notes.is_empty());
}

#[test]
fn the_environment_and_flags_name_what_is_wrong() {
    let fail = |env: &[(&str, &str)], sets: &[&str]| {
        let env: Vec<(String, String)> = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        load(None, &env, &sets).unwrap_err().to_string()
    };
    let e = fail(&[("BSTUI_TRAIN__LEARNIG_RATE", "1")], &[]);
    assert!(e.contains("BSTUI_TRAIN__LEARNIG_RATE") && e.contains("'train.learning_rate'"), "{e}");
    assert!(fail(&[], &["train.seed"]).contains("sets nothing"));
    assert!(fail(&[], &["train.seed=x"]).contains("'train.seed' = x: expected a whole number"));
    assert!(fail(&[], &["train.deterministic=yes"]).contains("expected true or false"));
}

#[test]
fn a_missing_config_is_an_io_error_with_its_path() {
    let e = load(Some(Path::new("no/such.toml")), &[], &[]).unwrap_err();
    assert!(e.to_string().contains("no/such.toml"), "{e}");
}

#[test]
fn every_shipped_profile_is_a_machine() {
    let mut names = Vec::new();
    for file in files("profiles") {
        let machine = profile::load(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        assert_eq!(machine.name, stem);
        assert!(machine.source.starts_with(&format!("profile {stem}.toml")));
        assert_eq!(machine.gpu.is_none(), stem == "cpu-only");
        names.push(stem);
    }
    assert_eq!(names, ["cpu-only", "h200", "rtx3050-laptop-4gb", "rtx4090-desktop", "rtx5050-laptop-8gb"]);
}

#[test]
fn case_fo_89_an_alpha_past_32_bits_is_refused_by_name() {
    for alpha in ["1e308", "3.5e38", "-1", "nan", "inf"] {
        let error = load(None, &[], &[format!("lora.alpha={alpha}")]).unwrap_err().to_string();
        assert!(error.contains("lora.alpha"), "{error}");
    }
}
