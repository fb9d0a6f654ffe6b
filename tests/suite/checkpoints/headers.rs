//! The header-only checkpoints of `tests/data/headers`: their sizes are those measured on the real models.

use blockstream_tui::checkpoint::header::{self, HeaderTensor};
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
