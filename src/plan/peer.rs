//! What a peer's estimator says of the same job, to be printed beside ours.

use super::shape::{Job, Model};
use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::units::Bytes;

/// soup-cli 0.77's `estimate_stream_peak_vram` for a bf16 LoRA step with chunked loss and `slots` layers on the device:
/// `slots·layer + large_slot + 16·adapter + 13.5 MB + tokens·2·(L·h + 2·(h + i)) + logits + chunk`, its logits
/// 14 bytes per vocabulary row and chunked token. Zero for a config we refuse.
#[must_use]
pub fn soup_vram(checkpoint: &Checkpoint, config: &RunConfig, slots: usize) -> Bytes {
    let Ok(job) = Job::of(config, checkpoint) else { return Bytes::ZERO };
    let m = Model::of(checkpoint, false);
    let (layers, tokens) = (m.blocks.len() as u64, job.micro_tokens());
    let layer = m.blocks.iter().map(|b| b.stored.0).max().unwrap_or(0);
    let large = if m.tied { 0 } else { m.embed.0.max(m.head.0) };
    let kept = if m.tied { m.embed.0 } else { 0 };
    // Its own count of these is a guess (layers·targets·2·r·h); the true one is kinder to it.
    let adapter = layers * job.adapter_params(&m);
    let activations = tokens * 2 * (layers * m.hidden + 2 * (m.hidden + m.intermediate));
    let logits = m.vocab * job.rows * job.length.min(job.chunk) * 14;
    let chunk = 2 * m.hidden * tokens * 2;
    Bytes(
        slots as u64 * layer + large + kept + m.final_norm.0 + 16 * adapter + 13_500_000 + activations + logits + chunk,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;
    use crate::config::TARGETS;
    use crate::plan::made::{LLAMA3_8B, checkpoint};

    #[test]
    fn it_gives_soups_own_figures() {
        // Llama-3.1-8B, r 16 on 7 targets, two buffers, chunk 64: 2.90 GB at 512 tokens, 3.44 at 2048.
        let mut config = RunConfig::default();
        config.lora.r = 16;
        config.stream.loss_chunk = 64;
        config.lora.targets = TARGETS.map(String::from).to_vec();
        for (length, want) in [(512, 2.90), (2048, 3.44)] {
            config.data.max_length = length;
            let got = soup_vram(&checkpoint(LLAMA3_8B, Dtype::BF16), &config, 2).0 as f64 / 1e9;
            assert!((got - want).abs() < 0.03, "{length}: {got}");
        }
    }
}
