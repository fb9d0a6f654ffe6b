//! Headers by ranged reads: what is fetched, what is refused, and that the result is a checkpoint.

use super::*;
use crate::checkpoint::find::{Caches, list_in, resolve_in};
use crate::checkpoint::open;
use crate::support::fixture::Tensor;
use std::collections::BTreeMap;

#[test]
fn headers_open_as_the_model_that_is_not_here() {
    let model = Model::family("qwen3").shards(3);
    let hub = TestHub::of(&model);
    let user = User::of(&hub);
    let mut seen = Vec::new();
    let dir = headers(&user.settings, &id("o/n"), &Cancel::default(), &mut |s| seen.push((s.done, s.total))).unwrap();
    assert_eq!(seen, [(0, 3), (1, 3), (2, 3), (3, 3)]);
    let far = open(&dir).unwrap();
    let whole = tempfile::tempdir().unwrap();
    let near = open(&model.write(whole.path())).unwrap();
    assert!(far.not_here);
    assert_eq!((far.name.as_str(), far.hub_id.as_deref()), ("o/n", Some("o/n")));
    assert_eq!(far.revision.as_deref(), Some(COMMIT));
    assert_eq!((far.total_bytes(), far.params()), (near.total_bytes(), near.params()));
    let sizes = |c: &crate::checkpoint::Checkpoint| c.files.iter().map(|f| f.bytes).collect::<Vec<_>>();
    assert_eq!(sizes(&far), sizes(&near));

    // Only the beginning of each shard was asked for, and the token went to the hub alone.
    let asked = hub.asked();
    let shards: Vec<&Asked> = asked.iter().filter(|a| a.path.ends_with(".safetensors")).collect();
    assert!(shards.len() == 6 && shards.iter().all(|a| a.range.as_deref() == Some("bytes=0-262143")), "{shards:?}");
    let bearer = format!("Bearer {SECRET}");
    assert!(asked.iter().all(|a| a.token.as_deref() == (!a.elsewhere).then_some(bearer.as_str())), "{asked:?}");
    assert!(!asked.iter().any(|a| a.path.ends_with(".bin") || a.path.ends_with(".py")));
    user.keeps_the_secret();

    // Another process plans it without the network.
    let caches = Caches { models: user.settings.cache.as_deref(), headers: user.settings.headers.as_deref() };
    assert_eq!(resolve_in("o/n", caches).unwrap(), dir);
    assert_eq!(resolve_in(&format!("o/n@{COMMIT}"), caches).unwrap(), dir);
    assert!(resolve_in("o/n@v1", caches).is_err());
    let listed = list_in(&[], caches);
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_str(), listed[0].path.to_str()), ("o/n", Some("o/n")));
    assert!(listed[0].not_here && listed[0].origin == "hub" && listed[0].params == near.params());

    // Asked again, the hub is asked for the commit alone.
    assert_eq!(user.headers("o/n").unwrap(), dir);
    assert!(!hub.asked().iter().any(|a| a.path.ends_with(".safetensors")));
}

#[test]
fn a_revision_keeps_its_name() {
    let hub = TestHub::of(&Model::tiny());
    let user = User::of(&hub);
    let dir = user.headers("o/n@v1").unwrap();
    let caches = Caches { models: None, headers: user.settings.headers.as_deref() };
    assert_eq!(resolve_in("o/n@v1", caches).unwrap(), dir);
    assert!(resolve_in("o/n", caches).is_err(), "main was not asked for");
    assert_eq!(list_in(&[], caches)[0].path.to_str(), Some("o/n@v1"));
}

#[test]
fn a_server_without_ranges_and_a_long_header_do() {
    let more = |i: usize| Tensor::new(format!("model.some.part.that.nobody.asks.for.{i}"), "F32", &[1]);
    let model = Model::tiny().edit(move |t| t.extend((0..4_000).map(more)));
    for ranges in [true, false] {
        let hub = TestHub::of(&model);
        hub.rules().ranges = ranges;
        let user = User::of(&hub);
        let far = open(&user.headers("o/n").unwrap()).unwrap();
        assert!(far.tensors.len() > 4_000);
        let asked = hub.ranges("model.safetensors");
        assert_eq!(asked.len(), 2, "the header is longer than the first request: {asked:?}");
        assert!(asked[1].as_ref().unwrap().starts_with("bytes=262144-"), "{asked:?}");
    }
}

#[test]
fn offline_asks_nothing() {
    let hub = TestHub::of(&Model::tiny());
    let mut user = User::of(&hub);
    user.settings.offline = true;
    assert!(refusal(user.headers("o/n")).contains("HF_HUB_OFFLINE is set"));
    assert!(refusal(user.survey()).contains("HF_HUB_OFFLINE is set"));
    assert_eq!(hub.asked(), []);
}

#[test]
fn who_may_not_is_told_what_to_do() {
    let hub = TestHub::of(&Model::tiny());
    let user = User::of(&hub);
    hub.rules().token = Some("another".into());
    let e = refusal(user.headers("o/n"));
    assert!(e.contains("refuses the token for 'o/n'") && e.contains("HF_TOKEN"), "{e}");
    hub.rules().token = None;
    let e = refusal(user.headers("o/other"));
    assert!(e.contains("the hub has no 'o/other'") && e.contains("check the id"), "{e}");
    assert!(refusal(user.headers("o/n@gone")).contains("the hub has no 'o/n@gone'"));
    hub.rules().status = Some(403);
    let e = refusal(user.headers("o/n"));
    assert!(e.contains("gated") && e.contains("accept its terms"), "{e}");
    assert_eq!(names(&user.dir.path().join("cache")), [] as [&str; 0], "nothing half-made stays");
}

#[test]
fn a_hub_that_is_busy_or_silent_is_asked_again_and_then_given_up() {
    let hub = TestHub::of(&Model::tiny());
    let user = User::of(&hub);
    hub.rules().busy = 2;
    user.headers("o/n").unwrap();
    let again = User::of(&hub);
    hub.rules().stalls = vec![3];
    again.headers("o/n").unwrap();
    let third = User::of(&hub);
    hub.rules().stalls = vec![3; 9];
    let begun = Instant::now();
    let e = refusal(third.headers("o/n"));
    assert!(e.contains("nothing came for 400 ms") && e.contains("3 attempts"), "{e}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    drop(hub);
    let e = refusal(third.headers("o/n"));
    assert!(e.contains("the connection to http://127.0.0.1"), "{e}");
}

#[test]
fn redirects_end() {
    let hub = TestHub::of(&Model::tiny());
    let user = User::of(&hub);
    hub.rules().loops = true;
    assert!(refusal(user.headers("o/n")).contains("without end"));
    assert!(hub.asked().len() < 20);
    hub.rules().loops = false;
    for unsafe_target in ["file:///etc/passwd", "ftp://h/x"] {
        hub.rules().target = Some(unsafe_target.into());
        assert!(refusal(user.headers("o/n")).contains("not safe to ask"));
    }
}

#[test]
fn hostile_headers_indexes_and_names_are_refused() {
    let header = |length: u64, json: &str| [&length.to_le_bytes(), json.as_bytes(), &[0; 64]].concat();
    let cases: [(Vec<u8>, &str); 5] = [
        (header(u64::MAX, "{}"), "claims 18446744073709551615 bytes"),
        (header(1 << 40, "{}"), "claims 1099511627776 bytes"),
        (header(2, "{}"), "trailing bytes"),
        (b"<!doctype html><title>sorry</title>".to_vec(), "a web page"),
        (Vec::new(), "is empty"),
    ];
    for (bytes, why) in cases {
        let hub = TestHub::of(&Model::tiny());
        hub.rules().files.insert("model.safetensors".into(), bytes);
        let e = refusal(User::of(&hub).headers("o/n"));
        assert!(e.contains(why), "{e}");
    }
    for (name, why) in [("../x.safetensors", "escapes the model folder"), ("a\u{1b}.safetensors", "not a file name")] {
        let hub = TestHub::of(&Model::tiny());
        let index = serde_json::json!({ "weight_map": { "a": name } }).to_string();
        hub.rules().files.insert("model.safetensors.index.json".into(), index.into_bytes());
        hub.rules().files.insert(name.into(), vec![0; 9]);
        let user = User::of(&hub);
        assert!(refusal(user.headers("o/n")).contains(why));
        assert!(refusal(user.survey()).contains(why));
        assert!(!user.dir.path().join("x.safetensors").exists());
    }
    let lone = TestHub::start(BTreeMap::from([
        ("config.json".to_owned(), b"{}".to_vec()),
        ("../x.safetensors".to_owned(), vec![0; 9]),
        ("pytorch_model.bin".to_owned(), vec![0; 9]),
    ]));
    assert!(refusal(User::of(&lone).headers("o/n")).contains("no safetensors weights"));
    lone.rules().files.remove("config.json");
    assert!(refusal(User::of(&lone).headers("o/n")).contains("no config.json"));
}

#[test]
fn a_cancelled_fetch_leaves_nothing() {
    let hub = TestHub::of(&Model::tiny().shards(2));
    let user = User::of(&hub);
    hub.rules().stalls = vec![3; 9];
    let cancel = Cancel::default();
    let begun = Instant::now();
    let e = headers(&user.settings, &id("o/n"), &cancel, &mut |_| cancel.ask()).unwrap_err();
    assert!(e.to_string().contains("cancelled") && begun.elapsed() < Duration::from_millis(350), "{e}");
    assert_eq!(names(&user.dir.path().join("cache")), [] as [&str; 0]);
}
