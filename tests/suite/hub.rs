//! The program against a hub on this machine: headers for a plan, a download that is interrupted and gone on with, and
//! a plan when the hub is gone.

use crate::support::fixture::Model;
use crate::support::hub::{COMMIT, TestHub};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SECRET: &str = "hf_SECRETSECRET";
const WEIGHTS: &str = "model.safetensors";

/// A user with a home of their own and a token.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, hub: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_blockstream-tui"));
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("HF_")) {
            command.env_remove(name);
        }
        command.env_remove("HUGGINGFACE_HUB_CACHE").env("HOME", self.0.path()).env("XDG_CACHE_HOME", self.at("cache"));
        command.env("HF_ENDPOINT", hub).env("HF_TOKEN", SECRET).current_dir(self.0.path());
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, hub: &str, args: &[&str]) -> Told {
        told(self.command(hub, args).output().unwrap())
    }

    fn blobs(&self) -> PathBuf {
        self.at("cache/huggingface/hub/models--o--n/blobs")
    }
}

struct Told {
    code: Option<i32>,
    out: String,
    err: String,
}

fn told(output: Output) -> Told {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let told = Told { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) };
    assert!(!told.out.contains(SECRET) && !told.err.contains(SECRET), "{}\n{}", told.out, told.err);
    told
}

fn plan(home: &Home, hub: &str) -> Told {
    home.run(hub, &["plan", "o/n", "--json", "--profile", "rtx5050-laptop-8gb"])
}

fn json(told: &Told) -> Value {
    assert_eq!(told.code, Some(0), "{}", told.err);
    serde_json::from_str(&told.out).unwrap()
}

fn part(blobs: &Path) -> Option<u64> {
    let files = std::fs::read_dir(blobs).ok()?.flatten();
    let mut parts = files.filter(|f| f.file_name().to_string_lossy().ends_with(".incomplete"));
    parts.next().map(|f| f.metadata().unwrap().len())
}

#[test]
fn a_model_of_the_hub_is_planned_downloaded_and_planned_again_without_it() {
    let model = Model::tiny();
    let hub = TestHub::of(&model);
    let (home, url) = (Home::new(), hub.url.clone());

    let first = plan(&home, &url);
    let report = json(&first);
    assert_eq!(report["model"], "o/n");
    assert_eq!(report["bytes"], model.bytes());
    assert!(first.err.contains("asking the hub for its headers, not its weights"), "{}", first.err);
    let notes = report.to_string();
    assert!(notes.contains("not on this machine yet"), "{notes}");
    let asked = hub.asked();
    let weights: Vec<_> = asked.iter().filter(|a| a.path.ends_with(WEIGHTS)).collect();
    assert!(!weights.is_empty() && weights.iter().all(|a| a.range.is_some()), "{weights:?}");
    assert!(!home.at("cache/huggingface").exists(), "a plan writes nothing to the hub cache");
    // Kept under the hub that gave them: another may have a model of the same name.
    let hubs: Vec<_> = std::fs::read_dir(home.at("cache/blockstream-tui/headers")).unwrap().flatten().collect();
    assert!(matches!(hubs.as_slice(), [hub] if hub.path().join(format!("models--o--n/snapshots/{COMMIT}")).is_dir()));

    // The second plan asks nobody, and says the same.
    let second = plan(&home, &url);
    assert_eq!(json(&second), report);
    assert_eq!(hub.asked(), []);

    std::fs::write(home.at("rows.jsonl"), "{\"prompt\": \"a\", \"completion\": \"b\"}\n").unwrap();
    let train = home.run(&url, &["train", "--model", "o/n", "--set", "data.files=rows.jsonl"]);
    assert_eq!(train.code, Some(2), "{}", train.err);
    assert!(train.err.contains("`blockstream-tui download o/n`"), "{}", train.err);
    assert!(!home.at("results").exists());

    let refused = home.run(&url, &["download", "o/n"]);
    assert_eq!(refused.code, Some(2));
    for word in ["to fetch", "free", "written, once", "--yes"] {
        assert!(refused.err.contains(word), "{}", refused.err);
    }
    assert!(!home.blobs().exists());

    // Interrupted in the middle: 130, and what has come stays.
    hub.rules().stalls = vec![150_000];
    let child = home.command(&url, &["download", "o/n", "--yes"]).spawn().unwrap();
    let begun = Instant::now();
    while part(&home.blobs()) != Some(150_000) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the download did not get there");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let stopped = told(child.wait_with_output().unwrap());
    assert_eq!(stopped.code, Some(130), "{}", stopped.err);
    assert!(stopped.err.contains("resume by the same command"), "{}", stopped.err);
    assert_eq!(part(&home.blobs()), Some(150_000));
    assert!(json(&plan(&home, &url)).to_string().contains("not on this machine yet"), "a part is no model");

    hub.asked();
    let done = json(&home.run(&url, &["download", "o/n", "--yes", "--json"]));
    assert_eq!(hub.ranges(WEIGHTS), [Some("bytes=150000-".to_owned())]);
    assert_eq!((done["schema"].as_u64(), done["model"].as_str()), (Some(1), Some("o/n")));
    assert!(done["bytes"].as_u64().unwrap() - done["fetched"].as_u64().unwrap() > 150_000);
    let dir = PathBuf::from(done["dir"].as_str().unwrap());
    assert_eq!(std::fs::read(dir.join(WEIGHTS)).unwrap(), hub.rules().files[WEIGHTS]);
    let listed = json(&home.run(&url, &["models", "--json"]));
    let entry = &listed["models"][0];
    assert_eq!((entry["name"].as_str(), &entry["problem"]), (Some("o/n"), &Value::Null), "{listed}");
    assert_eq!(listed["models"].as_array().unwrap().len(), 1, "{listed}");

    drop(hub);
    let last = json(&plan(&home, &url));
    assert_eq!(last["bytes"], report["bytes"]);
    assert!(!last.to_string().contains("not on this machine yet"));
}

#[test]
fn without_network_or_access_it_says_what_to_do() {
    let hub = TestHub::of(&Model::tiny());
    let home = Home::new();
    let offline = home.command(&hub.url, &["plan", "o/n"]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let offline = told(offline);
    assert_eq!(offline.code, Some(2));
    assert!(offline.err.contains("HF_HUB_OFFLINE is set"), "{}", offline.err);
    assert_eq!(hub.asked(), []);

    // Nobody's token is taken where that is switched off.
    let mut anonymous = home.command(&hub.url, &["plan", "o/n", "--profile", "h200"]);
    anonymous.env("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
    assert_eq!(told(anonymous.output().unwrap()).code, Some(0));
    assert!(hub.asked().iter().all(|a| a.token.is_none()));

    hub.rules().token = Some("another".into());
    let denied = home.run(&hub.url, &["download", "o/n", "--yes"]);
    assert_eq!(denied.code, Some(2));
    assert!(denied.err.contains("HF_TOKEN"), "{}", denied.err);
    let missing = home.run("http://127.0.0.1:9", &["download", "o/n", "--yes"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("the connection to http://127.0.0.1:9 failed"), "{}", missing.err);
    let odd = home.run("not an address", &["download", "o/n", "--yes"]);
    assert_eq!(odd.code, Some(2));
    assert!(odd.err.contains("HF_ENDPOINT"), "{}", odd.err);

    // A mistyped path is not sent to anyone.
    std::fs::create_dir(home.at("models")).unwrap();
    hub.asked();
    for path in ["models/typo", "typo", "./typo", "../typo"] {
        assert_eq!(home.run(&hub.url, &["plan", path]).code, Some(2));
    }
    assert_eq!(hub.asked(), []);
}
