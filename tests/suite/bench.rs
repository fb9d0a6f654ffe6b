//! `bench`: the shipped rows plan as they say on the machine they are for; whole calls on tiny models and stub peers.

use crate::support::fixture::Model;
use blockstream_tui::bench::table::Table;
use blockstream_tui::event::TierName;
use blockstream_tui::{checkpoint, device, plan};
use std::path::Path;

fn peers_dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers")
}

#[test]
fn the_shipped_rows_fit_an_h200_in_the_tiers_they_name() {
    let profile = include_str!("../../profiles/h200.toml");
    let machine = device::profile::parse(profile, "h200.toml").unwrap();
    for row in Table::open(&peers_dir()).unwrap().row.iter().filter(|r| r.shape == "llama3-8b") {
        let dir = tempfile::tempdir().unwrap();
        let llama = Model::tiny().set("hidden_size", 4096).set("intermediate_size", 14_336).set("head_dim", 128);
        let llama = llama.set("num_attention_heads", 32).set("num_key_value_heads", 8).set("vocab_size", 128_256);
        llama.set("num_hidden_layers", row.layers).set("max_position_embeddings", 8192).write_headers(dir.path());
        let opened = checkpoint::open(dir.path()).unwrap();
        let lora = plan::plan(&opened, &machine, &row.our_config(&[]).unwrap()).unwrap().modes.lora;
        assert_ne!(lora.verdict, plan::Verdict::Infeasible, "{}: {:?}", row.name, lora.reasons);
        let count = |t: TierName| lora.placement.iter().filter(|p| p.tier == t).count();
        let got = (count(TierName::Vram), count(TierName::Ram), count(TierName::Disk));
        match row.name.as_str() {
            "ram-32" => assert_eq!((got, lora.ring_slots), ((0, 32, 0), 2)),
            "ram-32-12gb" | "ram-32-14gb" => assert!(got.0 > 8 && got.1 > 0 && got.2 == 0, "{got:?}"),
            "resident-2048" | "resident-8192" => assert_eq!(got, (row.layers, 0, 0)),
            "least-vram-16" => assert_eq!((got, lora.ring_slots), ((0, 16, 0), 1)),
            "disk-cold-16" => assert!(got.0 > 8 && got.1 == 0 && got.2 > 0, "{got:?}"),
            "disk-half-ram-16" => assert_eq!(got, (0, 8, 8)),
            _ => assert_eq!(got.2, 0, "{}: {got:?}", row.name),
        }
    }
}

/// Calls that train for real.
#[cfg(feature = "torch")]
mod calls {
    use super::*;
    use serde_json::{Value, json};
    use std::process::{Command, Output};

    fn bench(args: &[&str]) -> Output {
        let program = env!("CARGO_BIN_EXE_blockstream-tui");
        // What is kept is kept here, not for the user's own plans.
        let state = env!("CARGO_TARGET_TMPDIR");
        Command::new(program).arg("bench").args(args).env("XDG_STATE_HOME", state).output().unwrap()
    }

    fn json_of(out: &Output) -> Value {
        let text = String::from_utf8_lossy(&out.stdout);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}\n{}", stderr(out)))
    }

    fn stderr(out: &Output) -> String {
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    #[test]
    fn bench_step_trains_a_tiny_model_on_the_cpu() {
        let dir = tempfile::tempdir().unwrap();
        let model = Model::tiny().write(&dir.path().join("m"));
        let model = model.to_str().unwrap();
        let small = ["--set", "data.max_length=32", "--set", "train.device=cpu", "--set", "lora.r=4"];
        let out = bench(&[&["step", model, "--steps", "3", "--warmup", "1", "--json"][..], &small].concat());
        assert!(out.status.success(), "{}", stderr(&out));
        let v = json_of(&out);
        let s = &v["seconds_per_step"];
        assert_eq!((v["schema"].clone(), s["n"].clone(), v["tokens"].clone()), (json!(1), json!(3), json!(32)));
        assert!(s["median"].as_f64().unwrap() > 0.0 && s["p95"].as_f64() >= s["median"].as_f64(), "{s}");
        assert!(v["bound"]["seconds"].as_f64().unwrap() > 0.0 && v["loss"]["first"].as_f64().unwrap() > 1.0);
        let has_share = v["bound"]["share"].is_number();
        assert_eq!((&v["bound"]["rates"], has_share), (&json!("measured"), v["bound"]["resource"] != "compute"));
        assert_eq!((v["verdict"].clone(), v["bytes"]["per_step"]["disk_read"].clone()), (json!("RAM"), json!(0)));
        assert_eq!(v["written"]["model_drive"], 0);

        let out = bench(&[&["step", model, "--steps", "2", "--warmup", "0"][..], &small].concat());
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.contains("2 steps after 0") && text.contains("verdict RAM"), "{text}{}", stderr(&out));
        let out =
            bench(&["step", model, "--set", "train.device=cpu", "--set", "lora.r=4", "--set", "data.files=no.jsonl"]);
        assert!(!out.status.success() && stderr(&out).contains("no.jsonl"), "the run's own words: {}", stderr(&out));
    }

    #[test]
    fn disk_gemm_and_link_answer_or_say_why_not() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let model = Model::tiny().write(&dir.path().join("m"));
        let out = bench(&["disk", model.to_str().unwrap(), "--seconds", "0.2", "--json"]);
        match out.status.code() {
            Some(0) => assert!(json_of(&out)["read"]["median"].as_f64().unwrap() > 0.0),
            _ => assert!(
                stderr(&out).contains("past the page cache") || stderr(&out).contains("memory"),
                "{}",
                stderr(&out)
            ),
        }
        assert_eq!(bench(&["disk", "--path", "/nowhere/at/all"]).status.code(), Some(2));
        let out = bench(&["gemm", "--size", "64", "--device", "cpu", "--json"]);
        assert!(json_of(&out)["flops"].as_f64().unwrap() > 0.0);
        assert!(stderr(&out).contains("gemm is not saved: the products were too small"), "{}", stderr(&out));
        let out = bench(&["link", "--json"]);
        match out.status.code() {
            Some(0) => assert!(json_of(&out)["h2d"].as_f64().unwrap() > 1e9),
            code => assert!(code == Some(1) && stderr(&out).contains("no GPU"), "{}", stderr(&out)),
        }
    }

    /// A table of two rows with peers that are shell scripts, and a checkpoint for them.
    fn stubs(dir: &Path) {
        let model = Model::tiny().write(&dir.join("ckpt"));
        std::fs::write(dir.join("tokens"), "{\"input_ids\": [5, 6, 7, 8, 9, 10, 11, 12]}\n").unwrap();
        let put = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
        put(
            "common.py",
            format!(
                "while [ $# -gt 0 ]; do [ \"$1\" = --dump-rows ] && cp '{}' \"$2\"; shift; done\n\
                 echo 'RESULT {{\"checkpoint\": \"{}\"}}'\n",
                dir.join("tokens").display(),
                model.display()
            ),
        );
        put("floor.py", "echo '{\"T\": 8, \"block_fwd_floor\": 1.0, \"block_bwd_floor\": 3.0, \"head\": 2.0}'".into());
        put(
            "fast.py",
            "case \"$*\" in *--large*) g=9.0;; *) g=3.0;; esac\necho noise\n\
             echo \"RESULT {\\\"step_s_median\\\": 0.5, \\\"vram_peak_alloc_gb\\\": $g, \\\"loss_first\\\": 5.6}\"\n"
                .into(),
        );
        put("broken.py", "echo 'OutOfMemoryError: no room in /some/where/x.py' >&2; exit 1".into());
        let job = "shape = 's'\nlayers = 4\nseq = 8\nsteps = 2\nwarmup = 1\ntier = 'ram'\n\
                   config = ['train.device=cpu', 'stream.tier=ram', 'lora.r=4']\n";
        put(
            "rows.toml",
            format!(
                "common = 'common.py'\n[floor]\nscript = 'floor.py'\nshape = 's'\n\
                 [peer.soup]\nscript = 'fast.py'\nshards = 'soup-{{shape}}-{{layers}}'\nrival = true\n\
                 [peer.block_streamer]\nscript = 'broken.py'\nrival = true\n\
                 [peer.airllm]\nscript = 'fast.py'\nwheel = true\noptional = true\n\
                 [[row]]\nname = 'first'\n{job}vram_cap_gb = 4.0\n\
                 peers = {{ soup = ['--large', '--small'], block_streamer = [''], airllm = [''] }}\n\
                 limits = [{{ figure = 'ours_s', at_most = 1e5, of = ['better_peer_s'] }}]\n\
                 [[row]]\nname = 'second'\n{job}resident = true\n\
                 limits = [{{ figure = 'ours_s', at_most = 1.0, of = ['resident_s'] }}]\n"
            ),
        );
    }

    #[test]
    fn peers_run_beside_ours_and_rows_merge() {
        let dir = tempfile::tempdir().unwrap();
        stubs(dir.path());
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("soup-s-4")).unwrap();
        let (work, results) = (work.display().to_string(), dir.path().join("r.json"));
        let at = dir.path().display().to_string();
        let merge = results.display().to_string();
        std::fs::write(
            &results,
            json!({ "schema": 1, "what": "peers", "rows": [{ "row": "old", "ours_s": 9.0 }, { "row": "first", "ours_s": 9.0 }] })
                .to_string(),
        )
        .unwrap();
        let all = ["step", "--peers", &at, "--python", "sh", "--work", &work, "--merge", &merge, "--free-shards"];
        let out = bench(&all);
        assert!(out.status.success(), "{}", stderr(&out));
        let v: Value = serde_json::from_slice(&std::fs::read(&results).unwrap()).unwrap();
        let rows = v["rows"].as_array().unwrap();
        assert_eq!(rows.iter().map(|r| r["row"].as_str().unwrap()).collect::<Vec<_>>(), ["old", "first", "second"]);
        assert_eq!(rows[0]["ours_s"], 9.0, "a row of another call stays");

        let first = &rows[1];
        let ours = first["ours_s"].as_f64().unwrap();
        assert!(ours > 0.0 && ours < 9.0 && first["ours_n"] == 2, "{first}");
        assert_eq!((first["peers"]["soup"].clone(), first["better_peer"].clone()), (json!(0.5), json!("soup")));
        let details = &first["peer_details"];
        assert_eq!(details["soup"]["flags"], "--small", "the larger flags did not fit the cap");
        assert!(details["soup"]["tried"][0]["reason"].as_str().unwrap().contains("the cap is 4 GB"));
        for missing in ["block_streamer", "hf_resident", "hf_best", "fsdp2", "accelerate", "deepspeed", "airllm"] {
            assert!(first["peers"][missing].is_null() && first["reasons"][missing].is_string(), "{missing}: {first}");
        }
        let why = first["reasons"]["block_streamer"].as_str().unwrap();
        assert!(why.contains("OutOfMemoryError") && !why.contains("/some/where"), "{why}");
        assert_eq!(first["reasons"]["airllm"], "not asked for");
        assert!((first["floor_s"].as_f64().unwrap() - 0.018).abs() < 1e-9 && first["complete"] == true);
        assert_eq!(first["limits"][0]["ok"], true);
        assert!(first["limits"][1]["text"].as_str().unwrap().contains("first-step losses"));
        assert!(!Path::new(&work).join("soup-s-4").exists(), "shards go after their last run");

        // On a CPU `auto` keeps no block: no resident step, and the limit stays open instead of holding.
        let second = &rows[2];
        assert!(second["resident_s"].is_null() && second["ok"].is_null() && second["reasons"]["resident"].is_string());
        assert!(!v["command"].as_str().unwrap().contains(&at), "no local path: {}", v["command"]);

        let out = bench(&[&all[..], &["--time", "3", "--rows", "first"]].concat());
        assert!(out.status.success() && stderr(&out).contains("no time left"), "{}", stderr(&out));
        let after: Value = serde_json::from_slice(&std::fs::read(&results).unwrap()).unwrap();
        assert_eq!(after["rows"][1]["ours_s"].as_f64(), v["rows"][1]["ours_s"].as_f64(), "nothing was replaced");
        let out = bench(&["step", "--peers", &at, "--work", &work, "--rows", "frist"]);
        assert!(out.status.code() == Some(2) && stderr(&out).contains("did you mean 'first'"), "{}", stderr(&out));
    }
}
