//! Device and host memory, term by term.
//!
//! Terms are upper bounds from shapes, for rows as long as `max_length`.
//! They follow the hand-written passes of `model/block.rs`: what each moment of a block's recompute and backward holds.

use super::shape::{Job, Model};
use crate::units::Bytes;
use std::collections::BTreeMap;

/// Workspaces of cuBLAS and cuBLASLt for the compute stream.
const CUBLAS_WORKSPACES: u64 = 64 << 20;
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

/// What a plan may trade device memory for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thrift {
    /// The head's rows cross the link once a step.
    pub stream_head: bool,
    /// Block inputs wait in host memory.
    pub offload: bool,
    /// Tokens of the feed-forward at a time; 0 = all.
    pub mlp_chunk: u64,
}

/// Device memory beside ring and resident blocks; on a CPU machine the same things lie in host memory.
pub fn device_terms(m: &Model, job: &Job, on_cpu: bool, thrift: Thrift) -> Terms {
    let trained = (m.blocks.len() - job.lowest) as u64;
    let hidden_state = product(&[job.tokens(), m.hidden, m.elem]);
    let adapters = job.adapter_params(m).saturating_mul(trained);
    let mut terms = Terms::new();
    let mut put = |name: &str, bytes: Bytes| {
        if bytes > Bytes::ZERO {
            terms.insert(name.into(), Bytes(bytes.0.min(CEILING)));
        }
    };
    if !thrift.stream_head {
        put("head", m.head_device);
    }
    put("final_norm", m.final_norm_device);
    // fp32 master, gradient and both moments, and a copy in the compute type.
    put("adapters", product(&[adapters, 16 + if m.elem < 4 { m.elem } else { 0 }]));
    // Every micro-batch's state at the input of each trained block, and the state on its way; or three staged ones.
    put("boundaries", product(&[hidden_state.0, if thrift.offload { 4 } else { trained + 1 }]));
    put("hidden_gradient", hidden_state);
    // The feed-forward's moment, attention's and the head's exclude each other: the largest counts.
    let block = product(&[job.micro_tokens(), state_per_token(m, job)]);
    let rows = if thrift.mlp_chunk == 0 { job.micro_tokens() } else { thrift.mlp_chunk.min(job.micro_tokens()) };
    let feed_forward = product(&[rows, feed_forward_per_token(m, job)]);
    let attention = attention_moment(m, job);
    let block = block + feed_forward.max(attention);
    let head = loss_moment(m, job, thrift);
    put("block_activations", block);
    put("loss_chunk", head.saturating_sub(block));
    put("unpacked_block", m.unpack);
    if !on_cpu {
        put("cublas_workspaces", Bytes(CUBLAS_WORKSPACES));
    }
    terms
}

/// Bytes per token that stay through one block's recompute and backward: both norms' outputs, q, k, v after rotary,
/// attention's output and log-sum-exp, the state between the halves, its gradient.
fn state_per_token(m: &Model, job: &Job) -> u64 {
    let lora = job.targets.len() as u64 * 2 * job.r * (m.elem + 4);
    m.elem * (4 * m.hidden + 2 * m.q + 2 * m.kv) + 4 * m.heads + lora + job.targets_dropped(m)
}

/// Bytes per token of the feed-forward's moment: gate, up and their product's gradient, the next input's gradient.
fn feed_forward_per_token(m: &Model, job: &Job) -> u64 {
    // With an adapter on down_proj its input is needed too.
    let wide = 3 + u64::from(job.targets.iter().any(|t| t == "down_proj"));
    m.elem * (wide * m.intermediate + 2 * m.hidden)
}

/// Attention's moment: gradients of q, k, v and the output, flash backward's f32 accumulator of dQ (five of them when
/// deterministic), its row sums, and dK, dV per query head.
fn attention_moment(m: &Model, job: &Job) -> Bytes {
    let accumulators = if job.deterministic { 5 } else { 1 };
    let gradients = m.elem * (2 * m.q + 2 * m.kv + m.hidden);
    product(&[job.micro_tokens(), gradients + 4 * m.q * accumulators + 4 * m.heads + 2 * m.elem * m.q])
}

/// The head's moment: one chunk of logits, the normed states and their gradient; streamed, also an f32 sum of the
/// gradient and what is added to it.
fn loss_moment(m: &Model, job: &Job, thrift: Thrift) -> Bytes {
    let chunk = job.chunk.min(job.micro_tokens());
    let (width, states) = if thrift.stream_head {
        (m.head_rows(), m.hidden * (3 * m.elem + 4 + 4))
    } else {
        (m.vocab, m.hidden * 4 * m.elem)
    };
    // Without a fused kernel (a CPU) the logits' f32 copy and its exponential come on top.
    let logits = product(&[chunk, width, if m.elem < 4 { m.elem } else { 12 }]);
    logits + product(&[job.micro_tokens(), states])
}

/// Host memory beside RAM tier and ring.
pub fn host_terms(m: &Model, job: &Job, thrift: Thrift) -> Terms {
    let mut terms = Terms::from([("process".to_string(), PROCESS)]);
    // A tied embedding's rows are gathered from the head, unless that isn't on the device.
    if !m.tied || thrift.stream_head {
        terms.insert("embedding".into(), m.embed);
    }
    if thrift.offload {
        let trained = (m.blocks.len() - job.lowest) as u64;
        terms.insert("boundaries".into(), product(&[job.tokens(), m.hidden, m.elem, trained]));
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
        device_terms(&Model::of(&c, false), &Job::of(&config, &c).unwrap(), false, Thrift::default())
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
    fn case_pl_15_the_heads_moment_never_grows_with_tokens_times_vocabulary() {
        let c = checkpoint(LLAMA3_8B, Dtype::BF16);
        let moment = |length: usize, stream_head: bool| {
            let mut config = RunConfig::default();
            config.data.max_length = length;
            let (m, job) = (Model::of(&c, false), Job::of(&config, &c).unwrap());
            loss_moment(&m, &job, Thrift { stream_head, ..Thrift::default() })
        };
        assert_eq!(moment(2048, false), Bytes(512 * 128_256 * 2 + 2048 * 4096 * 8));
        assert_eq!(moment(8192, false), moment(2048, false) + Bytes(6144 * 4096 * 8));
        assert!(moment(2048, true) < moment(2048, false));
    }

    #[test]
    fn the_feed_forwards_chunk_and_offload_spare_device_memory() {
        let c = checkpoint(LLAMA3_8B, Dtype::BF16);
        let config = RunConfig::default();
        let (m, job) = (Model::of(&c, false), Job::of(&config, &c).unwrap());
        let of = |thrift| total(&device_terms(&m, &job, false, thrift));
        let all = of(Thrift::default());
        let head = of(Thrift { stream_head: true, ..Thrift::default() });
        assert!(all - head > Bytes(1_000_000_000));
        let offload = of(Thrift { offload: true, ..Thrift::default() });
        assert_eq!(all - offload, Bytes(1024 * 4096 * 2 * 29));
        let small = Thrift { mlp_chunk: 256, stream_head: true, ..Thrift::default() };
        assert!(of(small) < head);
    }

    #[test]
    fn a_tied_head_counts_once() {
        let m = Model::of(&checkpoint(SMOL, Dtype::F16), false);
        let c = checkpoint(SMOL, Dtype::F16);
        let job = Job::of(&RunConfig::default(), &c).unwrap();
        assert!(!host_terms(&m, &job, Thrift::default()).contains_key("embedding"));
        let t = device_terms(&m, &job, false, Thrift::default());
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
