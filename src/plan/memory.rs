//! Device and host memory, term by term.
//!
//! Terms are upper bounds from shapes: what libtorch's eager kernels keep and need, for rows as long as `max_length`.
//! Saved-tensor counts follow the operators of a pre-norm decoder block (RMSNorm in f32, rotary, flash attention,
//! gated feed-forward) with LoRA beside its projections.

use super::shape::{Job, Model};
use crate::units::Bytes;
use std::collections::BTreeMap;

/// A cuBLAS(Lt) workspace; the main thread and autograd's own thread each have one.
const CUBLAS_WORKSPACE: u64 = 32 << 20;
/// Host memory of the process itself: code pages, libtorch, allocator, telemetry.
const PROCESS: Bytes = Bytes(400 << 20);
/// No term is larger: keeps sums of absurd configs inside `u64`.
const CEILING: u64 = 1 << 56;

/// Terms by name.
pub type Terms = BTreeMap<String, Bytes>;

/// Sum of the terms.
pub fn total(terms: &Terms) -> Bytes {
    terms.values().copied().sum()
}

/// The largest term, for messages.
pub fn largest(terms: &Terms) -> Option<(&str, Bytes)> {
    terms.iter().max_by_key(|(_, b)| **b).map(|(n, b)| (n.as_str(), *b))
}

fn product(factors: &[u64]) -> Bytes {
    Bytes(factors.iter().fold(1u64, |a, f| a.saturating_mul(*f)).min(CEILING))
}

/// Device memory beside ring and resident blocks; on a CPU machine the same things lie in host memory.
pub fn device_terms(m: &Model, job: &Job, on_cpu: bool) -> Terms {
    let trained = (m.blocks.len() - job.lowest) as u64;
    let hidden_state = product(&[job.tokens(), m.hidden, m.elem]);
    let adapters = job.adapter_params(m).saturating_mul(trained);
    let mut terms = Terms::new();
    let mut put = |name: &str, bytes: Bytes| {
        if bytes > Bytes::ZERO {
            terms.insert(name.into(), Bytes(bytes.0.min(CEILING)));
        }
    };
    put("head", m.head_device);
    put("final_norm", m.final_norm_device);
    // fp32 master, gradient and both moments, and a copy in the compute type.
    put("adapters", product(&[adapters, 16 + if m.elem < 4 { m.elem } else { 0 }]));
    // Every micro-batch's state at the input of each trained block, and the state on its way.
    put("boundaries", product(&[hidden_state.0, trained + 1]));
    put("hidden_gradient", hidden_state);
    put("block_activations", product(&[job.micro_tokens(), block_bytes_per_token(m, job)]));
    put("attention_scratch", attention_scratch(m, job));
    put("loss_chunk", loss_chunk(m, job));
    put("unpacked_block", m.unpack);
    if !on_cpu {
        put("cublas_workspaces", Bytes(2 * CUBLAS_WORKSPACE));
    }
    terms
}

/// Bytes per token of one block's recompute and backward, for the micro-batch in work.
fn block_bytes_per_token(m: &Model, job: &Job) -> u64 {
    let e = m.elem;
    let (h, q, kv, i) = (m.hidden, m.q, m.kv, m.intermediate);
    // Two norms: the f32 input, its normalised f32 form, and the output.
    let norms = 2 * (4 * h + 4 * h + e * h);
    // Projections before and after rotary, attention's output and its log-sum-exp.
    let attention = e * (q + 2 * kv) + e * (q + kv) + e * q + 4 * m.heads;
    // o_proj's output, the residual sums, down_proj's output.
    let residuals = 4 * e * h;
    // gate, up, act(gate), their product.
    let feed_forward = 4 * e * i;
    // Gradients alive at once: three of the feed-forward's width, two of the residual's.
    let gradients = 3 * e * i + 2 * e * h;
    let lora: u64 = job
        .targets
        .iter()
        .map(|t| {
            let (_, input) = m.projection(t);
            // A's output in f32 and its gradient; with dropout the dropped input and its mask.
            8 * job.r + if job.dropout { (e + 1) * input } else { 0 }
        })
        .sum();
    // B's output and its scaled form before they are added to the widest projection's output.
    let widest = job.targets.iter().map(|t| m.projection(t).0).max().unwrap_or(0);
    norms + attention + residuals + feed_forward + gradients + lora + 2 * e * widest
}

/// Flash backward's f32 accumulator of dQ (five of them when deterministic), its row sums, and dK, dV per query head.
fn attention_scratch(m: &Model, job: &Job) -> Bytes {
    let accumulators = if job.deterministic { 5 } else { 1 };
    product(&[job.micro_tokens(), 4 * m.q * accumulators + 4 * m.heads + 2 * m.elem * m.q])
}

/// Logits of one chunk: in the compute type, in f32, and their gradient.
fn loss_chunk(m: &Model, job: &Job) -> Bytes {
    product(&[job.chunk.min(job.micro_tokens()), m.vocab, 4 + 4 + m.elem])
}

/// Host memory beside RAM tier and ring.
pub fn host_terms(m: &Model) -> Terms {
    let mut terms = Terms::from([("process".to_string(), PROCESS)]);
    if !m.tied {
        terms.insert("embedding".into(), m.embed);
    }
    terms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;
    use crate::config::RunConfig;
    use crate::plan::testing::{LLAMA3_8B, SMOL, checkpoint};

    fn terms(edit: impl Fn(&mut RunConfig)) -> Terms {
        let mut config = RunConfig::default();
        edit(&mut config);
        let c = checkpoint(LLAMA3_8B, Dtype::BF16);
        device_terms(&Model::of(&c, false), &Job::of(&config, &c).unwrap(), false)
    }

    #[test]
    fn adapters_of_an_8b_model_are_counted_exactly() {
        // r 16 on all seven projections of 32 blocks: 41.9 M parameters.
        let all = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
        let t = terms(|c| c.lora.targets = all.map(String::from).to_vec());
        assert_eq!(t["adapters"], Bytes(41_943_040 * 18));
    }

    #[test]
    fn boundaries_grow_with_micro_batches_and_shrink_with_the_top_fraction() {
        let one = terms(|_| {})["boundaries"];
        assert_eq!(one, Bytes(1024 * 4096 * 2 * 33));
        assert_eq!(terms(|c| c.train.gradient_accumulation_steps = 4)["boundaries"], one * 4);
        assert_eq!(terms(|c| c.lora.top_fraction = 0.5)["boundaries"], Bytes(1024 * 4096 * 2 * 17));
        let block = terms(|_| {})["block_activations"];
        assert_eq!(terms(|c| c.train.gradient_accumulation_steps = 4)["block_activations"], block);
    }

    #[test]
    fn case_pl_15_logits_and_attention_are_terms_of_their_own() {
        let t = terms(|c| c.data.max_length = 2048);
        assert_eq!(t["loss_chunk"], Bytes(512 * 128_256 * 10));
        assert!(t["attention_scratch"] > Bytes::ZERO);
        assert_eq!(terms(|c| c.data.max_length = 8192)["loss_chunk"], t["loss_chunk"], "never tokens x vocab");
        assert_eq!(terms(|c| c.data.max_length = 64)["loss_chunk"], Bytes(64 * 128_256 * 10));
    }

    #[test]
    fn a_tied_head_counts_once() {
        let m = Model::of(&checkpoint(SMOL, Dtype::F16), false);
        assert!(!host_terms(&m).contains_key("embedding"));
        let c = checkpoint(SMOL, Dtype::F16);
        let t = device_terms(&m, &Job::of(&RunConfig::default(), &c).unwrap(), false);
        assert_eq!(t["head"], m.embed);
    }

    #[test]
    fn absurd_configs_do_not_overflow() {
        let t = terms(|c| {
            c.data.max_length = 1 << 40;
            c.train.per_device_train_batch_size = 1 << 40;
            c.train.gradient_accumulation_steps = 1 << 40;
            c.lora.r = 1 << 40;
        });
        assert!(total(&t) > Bytes(1 << 56));
    }
}
