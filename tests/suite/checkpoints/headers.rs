//! The header-only checkpoints of `tests/data/headers`: their sizes are those measured on the real models, and they open
//! for planning.

use super::{noted, open};
use blockstream_tui::checkpoint::header::{self, HeaderTensor};
use blockstream_tui::checkpoint::{self, Experts, Family, Role};
use blockstream_tui::error::ExitCode;
use blockstream_tui::units::Bytes;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// 2^20 and 2^30 bytes.
const MIB: f64 = 1048576.0;
const GIB: f64 = 1024.0 * MIB;

/// The folder of one of them.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/headers").join(name)
}

/// Every tensor of a fixture.
fn tensors(name: &str) -> Vec<HeaderTensor> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(fixture(name)).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.to_string_lossy().ends_with(".header.json"));
    files.sort();
    files.iter().flat_map(|p| header::read_header_only(p).unwrap_or_else(|e| panic!("{e}")).header.tensors).collect()
}

/// Bytes of each decoder block, by number.
fn blocks(tensors: &[HeaderTensor]) -> BTreeMap<usize, u64> {
    let mut blocks = BTreeMap::new();
    for t in tensors {
        if let Some((_, rest)) = t.name.split_once("layers.") {
            let number = rest.split('.').next().unwrap().parse().unwrap();
            *blocks.entry(number).or_default() += t.end - t.begin;
        }
    }
    blocks
}

/// Totals, blocks and block sizes as block-streamer printed them for its runs on these models.
#[test]
fn fixtures_have_the_block_bytes_measured_on_the_real_models() {
    for (name, count, total, block, unit) in [
        ("qwen3-vl-8b", 36, "12.94", "368", MIB),
        ("gpt-oss-120b", 36, "58.61", "1.63", GIB),
        ("qwen3-vl-32b", 64, "58.13", "0.91", GIB),
    ] {
        let blocks = blocks(&tensors(name));
        assert_eq!(blocks.len(), count, "{name}");
        let sum: u64 = blocks.values().sum();
        assert_eq!(format!("{:.2}", sum as f64 / GIB), total, "{name}");
        for (number, bytes) in blocks {
            let digits = usize::from(unit == GIB) * 2;
            assert_eq!(format!("{:.digits$}", bytes as f64 / unit), block, "{name}, block {number}");
        }
    }
}

#[test]
fn fixtures_have_the_published_totals() {
    let bytes = |t: &[HeaderTensor]| t.iter().map(|t| t.end - t.begin).sum::<u64>();
    assert_eq!(bytes(&tensors("gpt-oss-120b")), 65_248_815_744);
    assert_eq!(bytes(&tensors("qwen3-vl-8b")), 2 * 8_767_123_696);
    let glm = tensors("glm-4.6v");
    let elements: u64 = glm.iter().map(|t| t.shape.iter().product::<u64>()).sum();
    assert_eq!((glm.len(), elements), (18_106, 107_710_933_120));
    // The size that kept it off the seed's disk.
    assert_eq!((bytes(&tensors("qwen3-vl-235b-a22b")) as f64 / GIB).round(), 439.0);
}

/// Parameters of the text stack; blocks; their bytes; those of the vision tower.
#[test]
fn fixtures_open_for_planning_with_true_counts() {
    for (name, family, params, blocks, bytes, tower) in [
        ("gpt-oss-120b", "gpt_oss", 116_829_156_672u64, 36, 62_932_276_224u64, 0),
        ("qwen3-vl-8b", "qwen3_vl", 8_190_735_360, 36, 13_892_143_104, 1_152_776_672),
        ("qwen3-vl-32b", "qwen3_vl", 32_762_123_264, 64, 62_412_587_008, 1_190_533_600),
        ("qwen3-vl-235b-a22b", "qwen3_vl_moe", 235_093_634_560, 94, 467_697_941_504, 1_152_776_672),
        ("glm-4.6v", "glm4v_moe", 106_852_251_264, 46, 211_221_477_888, 1_717_363_712),
    ] {
        let c = open(&fixture(name));
        assert_eq!((c.family().as_str(), c.arch.family, c.params()), (family, Family::Planned, params), "{name}");
        assert_eq!((c.blocks.len(), c.blocks.iter().map(|b| b.bytes.0).sum::<u64>()), (blocks, bytes), "{name}");
        assert_eq!(c.unused.iter().map(|&i| c.tensors[i].bytes).sum::<u64>(), tower, "{name}");
        let why = format!("{family}: this version can plan it, not train it");
        assert_eq!((c.plan_only.as_deref(), c.not_here), (Some(why.as_str()), true));
        noted(&c, &[&why]);
        if tower > 0 {
            noted(&c, &["vision or audio tower", &Bytes(tower).to_string(), "not loaded", "text only"]);
            assert_eq!(c.prefix, "model.language_model.");
        }
        let e = c.runnable().unwrap_err();
        assert!(e.to_string().contains(&why), "{e}");
        assert_eq!(e.exit_code(), ExitCode::Infeasible);
    }
}

#[test]
fn fixtures_know_their_experts() {
    let of = |name| {
        let c = open(&fixture(name));
        let last = c.blocks.last().unwrap();
        let routed = last.tensors.iter().filter(|t| t.role == Role::Expert).count();
        (c.arch.experts, routed)
    };
    let e = |count, active, intermediate, shared| Some(Experts { count, active, intermediate, shared });
    assert_eq!(of("gpt-oss-120b"), (e(128, 4, 2880, 0), 4));
    assert_eq!(of("qwen3-vl-235b-a22b"), (e(128, 8, 1536, 0), 2));
    assert_eq!(of("glm-4.6v"), (e(128, 8, 1408, 1408), 384));
    assert_eq!(of("qwen3-vl-8b"), (None, 0));
}

/// A copy of the fixture whose files went through `edit` (name, text).
fn edited(name: &str, edit: impl Fn(&str, String) -> String) -> tempfile::TempDir {
    let d = super::dir();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        let text = edit(file, std::fs::read_to_string(&path).unwrap());
        std::fs::write(d.path().join(file), text).unwrap();
    }
    d
}

#[test]
fn a_plan_only_model_with_something_missing_is_refused() {
    let renamed = |from: &'static str, to: &'static str| edited("gpt-oss-120b", move |_, t| t.replace(from, to));
    // The counts would be wrong, so a plan would be.
    let d = renamed("layers.7.self_attn.sinks", "layers.7.self_attn.sink");
    super::refused(d.path(), &["layer 7 lacks 'self_attn.sinks'", "layer 0 has"]);
    let d = renamed("layers.3.mlp.experts.down_proj_scales", "layers.3.mlp.experts.down_proj_other_scales");
    super::refused(d.path(), &["'model.layers.3.mlp.experts.down_proj_blocks'", "has no scales of its shape"]);
    let d = renamed("\"num_local_experts\": 128", "\"num_local_experts\": 64");
    super::refused(d.path(), &["[128, 2880, 90, 16]", "is not of 64 experts"]);
    let d = renamed("\"head_dim\": 64", "\"head_dim\": 128");
    super::refused(d.path(), &["self_attn.", "has shape [512]", "config.json implies [1024]"]);
    let d = edited("glm-4.6v", |_, t| t.replace("layers.9.mlp.experts.77.up_proj", "layers.9.mlp.experts.77.up_pro"));
    assert!(checkpoint::open(d.path()).is_err(), "one expert has another tensor than the others");
    let d = edited("glm-4.6v", |_, t| t.replace("\"num_hidden_layers\": 46", "\"num_hidden_layers\": 45"));
    super::refused(d.path(), &["layers.45.", "num_hidden_layers 45"]);
}

#[test]
fn layers_that_predict_further_tokens_are_left_out() {
    // As GLM-4.5-Air has one behind its 46 blocks.
    let next = "\"num_hidden_layers\": 45,\n    \"num_nextn_predict_layers\": 1";
    let d = edited("glm-4.6v", |_, t| t.replace("\"num_hidden_layers\": 46", next));
    let c = open(d.path());
    assert_eq!(c.blocks.len(), 45);
    noted(&c, &["further tokens", "not loaded"]);
    assert!(c.unused.iter().any(|&i| c.tensors[i].name.contains("layers.45.")));
}

/// Prints how long opening takes, best of five; `--nocapture` shows it.
#[test]
fn large_fixtures_open_without_quadratic_work() {
    for name in ["gpt-oss-120b", "qwen3-vl-235b-a22b", "glm-4.6v"] {
        let best = (0..5)
            .map(|_| {
                let start = std::time::Instant::now();
                let c = open(&fixture(name));
                (start.elapsed(), c.tensors.len())
            })
            .min()
            .unwrap();
        println!("{name}: {} tensors opened in {:.1} ms", best.1, best.0.as_secs_f64() * 1e3);
        // Quadratic work over 18106 names would take minutes on any machine.
        assert!(best.0.as_secs() < 20, "{name}: {best:?}");
    }
}
