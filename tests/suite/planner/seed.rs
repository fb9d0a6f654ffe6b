//! The seed's own figures, by our pure functions fed its assumptions, and ours beside them.

use super::made::{LLAMA3_8B, checkpoint as build};
use super::{config, machine};
use blockstream_tui::checkpoint::Dtype;
use blockstream_tui::plan::ceilings::{Have, PerParam, largest};
use blockstream_tui::plan::plan;
use blockstream_tui::units::{Bytes, GB, count};

/// 8 GB of pinned memory, 300 GB of disk.
const SEED: Have = Have { host: Bytes(8 * GB), disk: Bytes(300 * GB), written: None, device: None };

/// Each way of the seed's README: bytes of host memory and of disk a parameter, its ceiling in billions, what binds.
const ROWS: [(&str, f64, f64, f64, &str); 5] = [
    ("all pinned RAM", 8.0, 0.0, 1.0, "host memory"),
    ("weights to disk only", 6.0, 2.0, 1.3, "host memory"),
    ("full, fused step, fp32 Adam", 0.0, 14.0, 21.0, "disk space"),
    ("full, fused step, 8-bit Adam", 0.0, 8.0, 37.0, "disk space"),
    ("LoRA, frozen base", 0.0, 2.0, 150.0, "disk space"),
];

#[test]
fn the_seeds_five_ceilings_come_out_of_our_function() {
    let c = build(LLAMA3_8B, Dtype::BF16);
    let ours = plan(&c, &machine("rtx5050-laptop-8gb"), &config(|_| {})).unwrap().ceilings;
    let of = |mode: &str| {
        let c = ours.iter().find(|c| c.mode == mode).unwrap();
        (c.params as f64 / 1e9, c.limit.as_str())
    };
    for (name, host, disk, billions, limit) in ROWS {
        let (params, binds) = largest(&SEED, &PerParam { host, disk, ..PerParam::default() });
        println!("{name:<30} {:>8} by {binds}", count(params));
        // The README rounds: 1.33 to 1.3, 21.4 to 21, 37.5 to 37.
        let b = params as f64 / 1e9;
        assert!((b - billions).abs() / billions < 0.03, "{name}: {b} against {billions}");
        assert_eq!(binds, limit, "{name}");
    }
    for c in &ours {
        println!("ours, {:<24} {:>8} by {}", c.mode, count(c.params), c.limit);
    }
    // LoRA from disk: as the seed, on 355.3 GB: 177 B by disk alone, unless block inputs of so many blocks bind first.
    let (lora, limit) = of("lora");
    assert!(lora <= 177.7 && lora > 50.0, "{lora} by {limit}");
    // Full from disk: the seed's 21 B counts space only. The drive's 300 TB over 5000 steps allow 60 GB a step: 5 B at 12
    // bytes a parameter; at 6.03 it would be 9.9 B. Space alone, with two extents, the download and an export (28 bytes a
    // parameter where the seed counts 14), allows 12.7 B.
    let (full, limit) = of("full");
    assert!((full - 5.0).abs() < 0.01 && limit == "wear", "{full} by {limit}");
    let (eight, limit) = of("full_8bit");
    assert!((eight - 300e12 / 5000.0 / 6.03125 / 1e9).abs() < 0.01 && limit == "wear", "{eight} by {limit}");
    let space = machine("rtx5050-laptop-8gb").disk.free;
    let alone = largest(&Have { disk: space, ..Have::default() }, &PerParam { disk: 28.0, ..PerParam::default() }).0;
    assert!((alone as f64 / 1e9 - 12.69).abs() < 0.01, "{alone}");
    // All in memory: 12 bytes a parameter in what may be pinned; the seed's bf16 Adam takes 8 and keeps no master.
    let (ram, limit) = of("full_ram");
    assert!(ram > 0.5 && ram < 8.59 / 12.0 && limit == "host memory", "{ram} by {limit}");
}
