//! Cases about files: missing, stray, stale, hostile, broken, linked.

use super::{dir, noted, open, refused};
use crate::support::fixture::{Model, Raw, Tensor, put, safetensors};
use blockstream_tui::checkpoint;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn case_ck_01_missing_shard_is_named() {
    let d = dir();
    Model::tiny().shards(2).write(d.path());
    std::fs::remove_file(d.path().join("model-00002-of-00002.safetensors")).unwrap();
    let words = ["'model-00002-of-00002.safetensors'", "20 of 39 tensors", "incomplete copy or download?"];
    refused(d.path(), &words);
}

#[test]
fn case_ck_03_stray_weights_are_ignored_and_listed() {
    let d = dir();
    let model = Model::tiny().shards(2);
    model.write(d.path());
    let stray = safetensors(&Model::tiny().tensors(), &Raw { seed: 9, ..Raw::default() });
    put(&d.path().join("model.safetensors"), &stray);
    put(&d.path().join("adapter_model.safetensors"), &stray);
    let c = open(d.path());
    assert_eq!(c.total_bytes().0, 363_648);
    let names: Vec<_> = c.files.iter().map(|f| f.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
    noted(&c, &["ignored", "'model.safetensors'", "'adapter_model.safetensors'"]);
}

#[test]
fn case_ck_05_stale_index_is_explained_and_rebuilt_only_when_asked() {
    let d = dir();
    Model::tiny().shards(2).write(d.path());
    for n in 1..=2 {
        let from = d.path().join(format!("model-0000{n}-of-00002.safetensors"));
        std::fs::rename(from, d.path().join(format!("part-{n}.safetensors"))).unwrap();
    }
    let words = "the index names 2 absent files; 2 other safetensors files cover all 39 expected tensors";
    refused(d.path(), &[words, "rebuild the index: --rebuild-index"]);
    let path = d.path().to_str().unwrap();
    let e = checkpoint::open_model(path, false).map(|c| c.name).unwrap_err();
    assert!(e.to_string().contains(words), "never silent: {e}");
    assert!(!d.path().join("model.safetensors.index.json.old").exists(), "nothing is written unless asked");
    let c = checkpoint::open_model(path, true).unwrap();
    assert_eq!(c.total_bytes().0, 363_648);
    noted(&c, &["index was rebuilt from the 2 files here, as asked", "model.safetensors.index.json.old"]);
    // An index that is right stays as it is.
    let before = std::fs::read(d.path().join("model.safetensors.index.json")).unwrap();
    let c = checkpoint::open_model(path, true).unwrap();
    assert!(c.notes.is_empty(), "{:?}", c.notes);
    assert_eq!(std::fs::read(d.path().join("model.safetensors.index.json")).unwrap(), before);
    // Files that hold other tensors are no replacement, asked or not.
    let other = dir();
    Model::tiny().shards(2).write(other.path());
    std::fs::remove_file(other.path().join("model-00002-of-00002.safetensors")).unwrap();
    std::fs::rename(other.path().join("model-00001-of-00002.safetensors"), other.path().join("part-1.safetensors"))
        .unwrap();
    let e = checkpoint::open_model(other.path().to_str().unwrap(), true).map(|c| c.name).unwrap_err();
    assert!(e.to_string().contains("lacks 2 of 2 weights files"), "{e}");
}

#[test]
fn an_index_can_be_rebuilt_where_there_is_none() {
    let d = dir();
    Model::tiny().shards(2).write(d.path());
    std::fs::remove_file(d.path().join("model.safetensors.index.json")).unwrap();
    refused(d.path(), &["no model.safetensors.index.json", "--rebuild-index"]);
    checkpoint::rebuild_index(d.path()).unwrap();
    assert_eq!(open(d.path()).total_bytes().0, 363_648);
}

#[test]
fn case_ck_06_shard_names_cannot_leave_the_folder() {
    let d = dir();
    let evil = d.path().join("evil");
    Model::tiny().write(&evil);
    std::fs::copy(evil.join("model.safetensors"), evil.join("x.safetensors")).unwrap();
    // The kernel's own word that nothing there was opened.
    use rustix::fs::inotify;
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, &evil, inotify::WatchFlags::OPEN | inotify::WatchFlags::ACCESS).unwrap();
    for name in
        ["../evil/model.safetensors", "/etc/passwd", "sub/../../evil/x.safetensors", "..", "a\\..\\b.safetensors"]
    {
        let model = d.path().join("X");
        let rename = move |m: &mut BTreeMap<String, String>| {
            m.values_mut().for_each(|v| *v = name.into());
        };
        Model::tiny().shards(2).weight_map(rename).write(&model);
        let e = refused(&model, &[name.rsplit('/').next().unwrap()]);
        assert!(e.contains("shard name escapes the model folder") || name.contains('\\'), "{e}");
    }
    let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 512];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    assert_eq!(events.next().err(), Some(rustix::io::Errno::AGAIN), "the evil folder was touched");
}

#[test]
fn case_fo_87_a_shard_has_one_name() {
    for name in ["./x.safetensors", "a//x.safetensors", "a/../x.safetensors", "x.safetensors/", "sub/./x.safetensors"] {
        let d = dir();
        let rename = move |m: &mut BTreeMap<String, String>| m.values_mut().for_each(|v| *v = name.into());
        Model::tiny().shards(2).weight_map(rename).write(d.path());
        refused(d.path(), &["shard name", "index is broken or hostile"]);
    }
}

#[test]
fn a_shard_in_a_subfolder_is_allowed() {
    let d = dir();
    let rename = |m: &mut BTreeMap<String, String>| {
        m.values_mut().for_each(|v| *v = format!("sub/{v}"));
    };
    Model::tiny().shards(2).weight_map(rename).write(d.path());
    std::fs::create_dir(d.path().join("sub")).unwrap();
    for n in 1..=2 {
        let name = format!("model-0000{n}-of-00002.safetensors");
        std::fs::rename(d.path().join(&name), d.path().join("sub").join(&name)).unwrap();
    }
    assert_eq!(open(d.path()).total_bytes().0, 363_648);
}

#[test]
fn case_ck_08_lfs_pointers_are_told_apart() {
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 4976698672\n",
        "0123456789abcdef".repeat(4)
    );
    for name in
        ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"]
    {
        let d = dir();
        Model::tiny().write(d.path());
        put(&d.path().join(name), &pointer);
        let size = format!("{} bytes", pointer.len());
        let e = refused(d.path(), &[name, "Git-LFS pointer", &size, "the real file is 4.98 GB", "fetch the real file"]);
        assert!(e.contains("download it"), "git is not the only way: {e}");
    }
}

/// First bytes and length of a file, and what must be said about it.
type Broken = ((Vec<u8>, u64), Vec<String>);

#[test]
fn case_ck_09_every_kind_of_broken_file_has_its_own_message() {
    let good = safetensors(&Model::tiny().tensors(), &Raw::default());
    let sized = |n: u64, len: u64| (n.to_le_bytes().to_vec(), len);
    let whole = |b: &[u8]| (b.to_vec(), b.len() as u64);
    let short = good.len() as u64 - 10;
    let kinds: Vec<Broken> = vec![
        (whole(b""), vec!["is empty: 0 bytes found".into()]),
        (whole(b"1234567"), vec!["7 bytes long".into(), "at least 10 bytes expected".into()]),
        (whole(&[0; 8]), vec!["header of 0 bytes".into(), "file: 8 bytes".into()]),
        (whole(b"<!doctype html><title>Sign in</title>"), vec!["a web page".into()]),
        (whole(b"PK\x03\x04 and so on"), vec!["a zip archive".into(), "pickle".into()]),
        (
            whole(&good[..short as usize]),
            vec!["truncated".into(), format!("{short} bytes found, {} expected", good.len())],
        ),
        (sized(100_000_001, 100_000_100), vec!["header of 100000001 bytes".into(), "limit of 100000000".into()]),
        (sized(1 << 63, 4096), vec!["claims 9223372036854775808 bytes".into(), "the file has 4096".into()]),
    ];
    if let Ok(path) = std::env::var("CK_09_CHILD") {
        // The test program itself may have libtorch mapped: what counts is what opening adds to the peak.
        let peak = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let before = peak();
        let _ = checkpoint::open(Path::new(&path));
        println!("added: {} kB", peak() - before);
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for ((bytes, len), words) in kinds {
        let d = dir();
        Model::tiny().write(d.path());
        let file = d.path().join("model.safetensors");
        put(&file, bytes);
        std::fs::File::options().write(true).open(&file).unwrap().set_len(len).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["model.safetensors"]).collect();
        let e = refused(d.path(), &words);
        assert!(seen.insert(e.replace(d.path().to_str().unwrap(), "")), "said twice: {e}");
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "checkpoints::files::case_ck_09_every_kind_of_broken_file_has_its_own_message",
                "--nocapture",
            ])
            .env("CK_09_CHILD", d.path())
            .output()
            .unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        let kb = text.split("added:").nth(1).unwrap().split_whitespace().next().unwrap().parse::<u64>().unwrap();
        assert!(kb < 50_000, "peak {kb} kB for: {e}");
    }
}

#[test]
fn case_ck_11_ranges_cover_the_data_exactly_once() {
    let f32s = |name: &str, n: u64| Tensor::new(name, "F32", &[n]);
    let two = |a: (u64, u64), b: (u64, u64)| vec![f32s("a", 2).at(a.0, a.1), f32s("b", 2).at(b.0, b.1)];
    let one = |shape: &[u64], begin, end| vec![Tensor::new("a", "F32", shape).at(begin, end)];
    let trailing = Raw { trailer: b"XXXX".to_vec(), ..Raw::default() };
    let plain = Raw::default();
    let broken = [
        (two((0, 8), (0, 8)), &plain, vec!["'a' [0, 8]", "'b' [0, 8]", "overlap", "bytes [0, 8]"]),
        (
            vec![f32s("a", 1).at(0, 4), f32s("b", 1).at(8, 12)],
            &plain,
            vec!["'a' [0, 4]", "'b' [8, 12]", "bytes [4, 8]", "no tensor"],
        ),
        (vec![f32s("a", 1)], &trailing, vec!["4 trailing bytes [4, 8]", "'a' [0, 4]"]),
        (one(&[3], 0, 8), &plain, vec!["'a'", "takes 12 bytes", "[0, 8]", "hold 8"]),
        (one(&[1 << 32, 1 << 32], 0, 8), &plain, vec!["'a'", "4294967296", "64 bits"]),
        (one(&[2], 8, 0), &plain, vec!["'a'", "[8, 0]", "before it begins"]),
    ];
    for (tensors, raw, words) in broken {
        let d = dir();
        Model::tiny().write(d.path());
        put(&d.path().join("model.safetensors"), safetensors(&tensors, raw));
        refused(d.path(), &words);
    }
    // Keys in another order than offsets are fine.
    let d = dir();
    let model = Model::tiny().edit(|t| {
        let mut at = 0;
        for tensor in t.iter_mut() {
            let end = at + tensor.bytes();
            *tensor = tensor.clone().at(at, end);
            at = end;
        }
        t.reverse();
    });
    assert_eq!(open(&model.write(d.path())).total_bytes().0, 363_648);
}

#[test]
fn case_ck_12_empty_and_scalar_tensors_are_legal() {
    let d = dir();
    let model = Model::tiny().edit(|t| {
        t.push(Tensor::new("marker", "F8_E4M3", &[0]));
        t.push(Tensor::new("step", "F32", &[]));
    });
    let c = open(&model.write(d.path()));
    let unused: Vec<_> = c.unused.iter().map(|&i| (c.tensors[i].name.as_str(), c.tensors[i].bytes)).collect();
    assert_eq!(unused, [("marker", 0), ("step", 4)]);
    noted(&c, &["unused", "'marker'", "'step'"]);
    let d = dir();
    Model::tiny().edit(|t| t.push(Tensor::new("step", "F32", &[1]).at(363_648, 363_648))).write(d.path());
    refused(d.path(), &["'step'", "takes 4 bytes", "hold 0"]);
}

#[test]
fn case_ck_14_hub_cache_links_good_and_dangling() {
    let d = dir();
    let repo = Model::tiny().write_hub(d.path(), "a/b", "0123abcd");
    let snapshot = repo.join("snapshots/0123abcd");
    let c = open(&snapshot);
    assert_eq!((c.name.as_str(), c.hub_id.as_deref(), c.revision.as_deref()), ("a/b", Some("a/b"), Some("0123abcd")));
    assert_eq!(c.total_bytes().0, 363_648);
    assert_eq!(c.files[0].path.parent().unwrap(), repo.join("blobs").canonicalize().unwrap());
    let c = open(&repo);
    assert_eq!((c.revision.as_deref(), c.dir.as_path()), (Some("0123abcd"), snapshot.as_path()));
    noted(&c, &["0123abcd", "refs/main"]);

    // Copies in place of links, as on a system without them.
    let blob = c.files[0].path.clone();
    let link = snapshot.join("model.safetensors");
    let target = std::fs::read_link(&link).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::fs::copy(&blob, &link).unwrap();
    assert_eq!(open(&repo).total_bytes().0, 363_648);

    std::fs::remove_file(&link).unwrap();
    symlink(&target, &link).unwrap();
    std::fs::remove_file(&blob).unwrap();
    put(&blob.with_extension("incomplete"), b"half");
    let words = ["blob missing (interrupted download?)", "model.safetensors", target.to_str().unwrap(), ".incomplete"];
    refused(&repo, &words);
}
