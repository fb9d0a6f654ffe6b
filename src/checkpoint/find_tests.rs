//! `resolve` and `list` over folders and a cache of our own.

use super::*;
use crate::support::fixture::{Model, put};
use std::path::PathBuf;

fn in_cache(cache: &std::path::Path) -> Caches<'_> {
    Caches { models: Some(cache), headers: None }
}

#[test]
fn a_model_is_found_by_folder_and_by_id() {
    let d = tempfile::tempdir().unwrap();
    let (folder, cache) = (d.path().join("m"), d.path().join("hub"));
    Model::tiny().write(&folder);
    let repo = Model::tiny().write_hub(&cache, "own/er-1", "abc123");
    let snapshot = repo.join("snapshots/abc123");
    let find = |model: &str| resolve_in(model, in_cache(&cache)).map_err(|e| e.to_string());
    assert_eq!(find(folder.to_str().unwrap()), Ok(folder.clone()));
    assert_eq!(find("own/er-1"), Ok(snapshot.clone()));
    assert_eq!(find("own/er-1@abc123"), Ok(snapshot.clone()));
    assert_eq!(find(repo.to_str().unwrap()), Ok(snapshot));
    let e = find("own/er-1@main2").unwrap_err();
    assert!(e.contains("no revision 'main2'") && e.contains("'abc123'"), "{e}");
    let e = find("own/other").unwrap_err();
    assert!(e.contains("not in the hub cache") && e.contains("hub'"), "{e}");
    for bad in ["/no/such/folder", "../x", "", "a\u{1b}b", "own/er-1@../../x"] {
        let e = find(bad).unwrap_err();
        assert!(!e.contains('\u{1b}'), "{e:?}");
    }
    let file = folder.join("model.safetensors");
    assert!(find(file.to_str().unwrap()).unwrap_err().contains("is a file"));
    assert!(resolve_in("own/er-1", Caches::default()).unwrap_err().to_string().contains("no hub cache"));
}

#[test]
fn the_list_shows_good_and_broken_models_and_nothing_twice() {
    let d = tempfile::tempdir().unwrap();
    let (place, cache) = (d.path().join("models"), d.path().join("hub"));
    Model::tiny().write(&place.join("good"));
    Model::family("qwen3").shards(2).write(&place.join("short"));
    std::fs::remove_file(place.join("short/model-00001-of-00002.safetensors")).unwrap();
    Model::tiny().set("model_type", "mamba").write(&place.join("other"));
    Model::tiny().write_headers(&place.join("plan"));
    std::fs::create_dir_all(place.join("empty")).unwrap();
    std::fs::create_dir_all(place.join("adapter")).unwrap();
    put(&place.join("adapter/adapter_config.json"), "{}");
    Model::tiny().write(&d.path().join(".demo/demo-model"));
    Model::tiny().write_hub(&cache, "own/er", "abc");
    let places: [PathBuf; 4] = [place.clone(), place.join("good"), d.path().join(".demo"), d.path().join("not/there")];
    let all = list_in(&places, in_cache(&cache));
    let seen: Vec<_> = all.iter().map(|m| (m.name.as_str(), m.origin.as_str(), m.family.as_str())).collect();
    assert_eq!(
        seen,
        [
            ("good", "folder", "llama"),
            ("other", "folder", "mamba"),
            ("plan", "folder", "llama"),
            ("short", "folder", "qwen3"),
            ("demo-model", "demo", "llama"),
            ("own/er", "hub cache", "llama"),
        ]
    );
    let good = &all[0];
    assert_eq!((good.params, good.bytes.0, good.n_blocks, &good.problem), (181_824, 363_648, 4, &None));
    assert!(all[1].problem.as_ref().unwrap().contains("'mamba' is not supported"));
    assert!(all[2].problem.as_ref().unwrap().contains("headers"));
    assert!(all[3].problem.as_ref().unwrap().contains("incomplete copy or download?"));
    assert!(all[3].bytes.0 > 100_000, "what is there is counted");
    assert_eq!(all[5].problem, None);
    for m in &all {
        assert!(resolve_in(m.path.to_str().unwrap(), Caches::default()).is_ok());
    }
}

#[test]
fn headers_stand_in_for_a_model_that_is_not_or_half_here() {
    let d = tempfile::tempdir().unwrap();
    let (models, headers) = (d.path().join("hub"), d.path().join("headers"));
    let far = headers.join("models--own--er/snapshots/abc");
    Model::tiny().write_headers(&far);
    std::fs::create_dir_all(headers.join("models--own--er/refs")).unwrap();
    put(&headers.join("models--own--er/refs/main"), "abc");
    let caches = Caches { models: Some(&models), headers: Some(&headers) };
    assert_eq!(resolve_in("own/er", caches).unwrap(), far);
    let e = crate::checkpoint::require_weights(&crate::checkpoint::open(&far).unwrap()).unwrap_err().to_string();
    assert!(e.contains("blockstream-tui download own/er`"), "{e}");

    // huggingface_hub links each file as it comes: without its weights the snapshot is less than the headers.
    let near = Model::tiny().write_hub(&models, "own/er", "abc").join("snapshots/abc");
    let weights = std::fs::read_link(near.join("model.safetensors")).unwrap();
    std::fs::remove_file(near.join("model.safetensors")).unwrap();
    assert_eq!(resolve_in("own/er", caches).unwrap(), far);
    let all = list_in(&[], caches);
    assert!(all.len() == 1 && all[0].not_here && all[0].origin == "hub", "{all:?}");

    std::os::unix::fs::symlink(weights, near.join("model.safetensors")).unwrap();
    assert_eq!(resolve_in("own/er", caches).unwrap(), near);
    let all = list_in(&[], caches);
    assert!(all.len() == 1 && !all[0].not_here && all[0].origin == "hub cache", "{all:?}");
}
