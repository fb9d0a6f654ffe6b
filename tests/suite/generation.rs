//! Generation: greedy ids with a key/value cache equal transformers', streamed or not.

use crate::golden::{Golden, dir};
use crate::walk::open;
use blockstream_tui::event::TierName;
use blockstream_tui::infer::{Choice, Generator};
use blockstream_tui::model::Residents;
use blockstream_tui::store::Reader;
use blockstream_tui::stream::{StreamSetup, Streamer};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;
use tch::{Device, Kind};

/// A generator over the checkpoint in `folder`, every block of `tier`.
pub fn generator(folder: &Path, tier: TierName, slots: usize) -> Generator {
    let checkpoint = open(folder);
    let setup = StreamSetup::cpu(vec![tier; checkpoint.blocks.len()], slots.min(checkpoint.blocks.len()), 1);
    let reader = Reader::open(&checkpoint, Duration::ZERO).unwrap();
    let streamer = Streamer::new(&checkpoint, reader, &setup, &mut |_, _| {}).unwrap();
    let residents =
        Residents::load(&checkpoint, streamer.reader(), Kind::Float, Device::Cpu, true, &mut |_, _| Ok(())).unwrap();
    Generator::new(checkpoint.arch.clone(), residents, None, streamer, Kind::Float)
}

#[test]
fn greedy_ids_with_a_cache_equal_transformers() {
    for case in ["llama_untied", "llama_rope_llama3", "mistral_window", "qwen2_tied", "qwen3_untied"] {
        let golden = Golden::load(case, "golden.safetensors");
        let prompt: Vec<u32> = golden.get("input_ids").i[..10].iter().map(|&i| i as u32).collect();
        let want: Vec<u32> = golden.get("greedy_ids").i.iter().map(|&i| i as u32).collect();
        for (tier, slots) in [(TierName::Vram, usize::MAX), (TierName::Disk, 1), (TierName::Ram, 2)] {
            let got = generator(&dir(case), tier, slots)
                .generate(&prompt, want.len(), &[], Choice::Greedy, &mut |_| Ok(ControlFlow::Continue(())))
                .unwrap();
            assert_eq!(got, want, "{case}, {tier:?}");
        }
    }
}

#[test]
fn generation_stops_at_an_end_token_and_samples_by_seed() {
    let golden = Golden::load("llama_untied", "golden.safetensors");
    let prompt: Vec<u32> = golden.get("input_ids").i[..10].iter().map(|&i| i as u32).collect();
    let greedy: Vec<u32> = golden.get("greedy_ids").i.iter().map(|&i| i as u32).collect();
    let run = |stop: &[u32], choice| {
        generator(&dir("llama_untied"), TierName::Ram, 2)
            .generate(&prompt, 12, stop, choice, &mut |_| Ok(ControlFlow::Continue(())))
            .unwrap()
    };
    let end = greedy[3];
    let first = greedy.iter().position(|i| *i == end).unwrap();
    assert_eq!(run(&[end], Choice::Greedy), greedy[..first]);
    let sample = |seed| run(&[], Choice::Sample { temperature: 1.0, top_k: 0, top_p: 0.95, seed });
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
    // No mass but the first token's, or no temperature: greedy.
    assert_eq!(run(&[], Choice::Sample { temperature: 1.0, top_k: 0, top_p: 0.0, seed: 1 }), greedy);
}
