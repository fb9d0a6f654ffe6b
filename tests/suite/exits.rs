//! Every way out of the program shows text from outside: none of it may act on the terminal (FO-33, FO-88).

use crate::support::fixture::{Model, put};
use blockstream_tui::text::hostile;
use std::path::Path;
use std::process::Command;

/// A clear-screen sequence, a direction override and a C1 control: what each command is given as its value.
const BAD: &str = "x\u{1b}[2J\u{202e}y\u{9b}z";

/// Runs the program in `dir`; both of its streams, as text, with their names.
fn said(dir: &Path, args: &[&str]) -> Vec<(&'static str, String)> {
    let mut run = Command::new(env!("CARGO_BIN_EXE_blockstream-tui"));
    run.args(args).current_dir(dir).env("BSTUI_TRAIN__SEED", BAD);
    if args.iter().any(|a| *a == "--set" || *a == "plan") {
        run.env_remove("BSTUI_TRAIN__SEED");
    }
    let out = run.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what is shown is UTF-8");
    vec![("stdout", text(out.stdout)), ("stderr", text(out.stderr))]
}

#[test]
fn case_fo_33_and_88_no_way_out_passes_what_would_act_on_the_terminal() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let model = Model::tiny().write(&dir.join(format!("model{BAD}")));
    put(&model.join("chat_template.jinja"), format!("{{{{ raise_exception('{BAD}') }}}}"));
    put(&dir.join(BAD), format!("{{\"{BAD}\": 1}}\n"));
    put(
        &dir.join("chat.jsonl"),
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n",
    );
    put(&dir.join("bad.toml"), format!("[{BAD}]\n"));
    put(&dir.join("worse.toml"), format!("[train]\n\"{BAD}\" = 1\n"));
    std::fs::create_dir(dir.join("run")).unwrap();
    put(
        &dir.join("run/report.json"),
        format!("{{\"schema\": 1, \"status\": \"{BAD}\", \"files\": {{\"{BAD}\": {{}}}}}}"),
    );
    let model = model.to_str().unwrap();
    let set = format!("train.{BAD}={BAD}");
    let seed = format!("train.seed={BAD}");
    let what_if = format!("ram={BAD}");
    let gone = format!("gone{BAD}");
    let profile = ["--profile", "cpu-only"];
    let mut calls: Vec<Vec<&str>> = vec![
        vec![BAD],
        vec!["--", BAD],
        vec!["train", BAD],
        vec!["train", "--model", &gone],
        vec!["train", "--model", model, "--set", &set],
        vec!["train", "--model", model, "--set", &seed],
        vec!["train", "--model", model, "--set", "data.files=chat.jsonl", "--profile", "cpu-only"],
        vec!["train", "--resume", &gone],
        vec!["train", "--resume", "run"],
        vec!["plan", model],
        vec!["plan", model, "--json"],
        vec!["plan", &gone],
        vec!["plan", model, "--config", "bad.toml"],
        vec!["plan", model, "--config", "worse.toml"],
        vec!["plan", model, "--config", &gone],
        vec!["plan", model, "--profile", &gone],
        vec!["plan", model, "--what-if", &what_if],
        vec!["plan", model, "--what-if", BAD],
        vec!["data", "inspect", BAD, "--model", model],
        vec!["data", "inspect", "chat.jsonl", "--model", model],
        vec!["data", "inspect", "chat.jsonl", "--model", model, "--set", &set],
        vec!["data", "inspect", "chat.jsonl", "--model", &gone, "--json"],
        vec!["generate", "--model", &gone, "--prompt", BAD],
        vec!["generate", "--model", model, "--prompt", BAD, "--adapter", &gone],
        vec!["export", &gone, "--to", "peft"],
        vec!["export", "run", "--to", BAD],
        vec!["import", &gone, "--to", &gone],
        vec!["verify", &gone],
        vec!["verify", "run"],
        vec!["compare", &gone, "run"],
        vec!["compare", "run", "run", "--json"],
        vec!["models", "."],
        vec!["models", ".", "--json"],
        vec!["models", &gone],
        vec!["replay", &gone],
        vec!["download", BAD],
        vec!["bench", BAD],
        vec!["--script", &gone],
        vec!["train", "--model", model],
    ];
    calls.iter_mut().filter(|c| c[0] == "plan" && !c.contains(&"--profile")).for_each(|c| c.extend(profile));
    let mut named = 0;
    for call in &calls {
        for (stream, text) in said(dir, call) {
            let bad: Vec<char> = text.chars().filter(|c| hostile(*c) && !matches!(c, '\n' | '\t')).collect();
            assert!(bad.is_empty(), "{call:?} lets {bad:?} out on {stream}:\n{text:?}");
            named += usize::from(text.contains("\\u{1b}") || text.contains("\\u001b"));
        }
    }
    // The walk means something only if these commands do say what they were given.
    assert!(named > calls.len() / 2, "{named} of {} calls showed the text", calls.len());
}
