//! Device and host memory, term by term.
//!
//! Terms are upper bounds from shapes, for rows as long as `max_length` of which every token carries loss.

use super::moments::{self, allocated, product};
use super::shape::{Job, Model};
use super::types::VramPlan;
use super::words;
use crate::units::Bytes;
use std::collections::BTreeMap;

/// Workspace of cuBLAS for the compute stream, allocated by libtorch: 32 MiB on Hopper, 8 MiB on others.
const CUBLAS_WORKSPACES: u64 = 32 << 20;
/// Rests of cached blocks that were a little larger than what they were taken for.
const ALLOCATOR_SLACK: u64 = 8 << 20;
/// Copies of the widest tensor in libtorch's operators for the feed-forward's gradient on a CPU.
const UNFUSED: u64 = 3;
/// Host memory of the process itself: code pages, libtorch, allocator, telemetry.
const PROCESS: Bytes = Bytes(400 << 20);
/// No term is larger: keeps sums of absurd configs inside `u64`.
const CEILING: u64 = 1 << 56;

/// Terms by name.
pub type Terms = BTreeMap<&'static str, Bytes>;

/// Sum of the terms.
pub fn total(terms: &Terms) -> Bytes {
    terms.values().copied().sum()
}

/// That `need` is more than `have` (limited by `source`), with the largest part and what makes it smaller.
pub fn lacks(what: &str, terms: &Terms, need: Bytes, have: Bytes, source: &str) -> String {
    let mut text = format!("needs {need} {what}, {have} is there ({source})");
    if let Some((name, bytes)) = terms.iter().max_by_key(|(_, b)| **b) {
        text.push_str(&format!("; the largest part: {}, {bytes}", words::term(name)));
        if let Some(hint) = words::smaller(name) {
            text.push_str(&format!(": {hint}"));
        }
    }
    text
}

impl VramPlan {
    /// `terms`, their sum, and what there is.
    pub(super) fn of(terms: &Terms, budget: Bytes) -> VramPlan {
        VramPlan { total: total(terms), budget, terms: terms.iter().map(|(n, b)| (n.to_string(), *b)).collect() }
    }
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
    let state = allocated(product(&[job.micro_tokens(), m.hidden, m.elem]));
    let step = product(&[state, job.micro]);
    let mut terms = Terms::new();
    let mut put = |name: &'static str, bytes: u64| {
        if bytes > 0 {
            terms.insert(name, Bytes(bytes.min(CEILING)));
        }
    };
    if !thrift.stream_head {
        put("head", m.head_device.0);
    }
    put("final_norm", m.final_norm_device.0);
    // fp32 master, gradient and both moments, and a copy in the compute type.
    let adapters = job.adapter_elements(m).saturating_mul(trained);
    let compute = if m.elem < 4 { allocated(product(&[adapters, m.elem])) } else { 0 };
    put("adapters", product(&[allocated(product(&[adapters, 4])), 4]).saturating_add(compute));
    // Cosines and sines of the next power of two of positions; places and labels of two steps.
    let positions = job.length.min(1 << 50).next_power_of_two();
    let tables = 2 * allocated(product(&[positions, m.q / m.heads.max(1) / 2, m.elem]));
    put("positions_and_labels", tables + product(&[job.tokens(), 32]));
    // Every micro-batch's state at the input of each trained block, and the states on their way; or three sets of
    // staged ones, and while a block runs forward one state twice.
    let boundaries =
        if thrift.offload { product(&[step, 4]).saturating_add(state) } else { product(&[step, trained + 1]) };
    put("boundaries", boundaries);
    // A block's moment and the head's exclude each other: the fuller counts.
    let block = moments::Block::of(m, job, thrift.mlp_chunk);
    let scratch = block.attention.saturating_sub(block.feed_forward);
    put("block_activations", block.feed_forward.0);
    put("attention_scratch", scratch.0);
    let head = if thrift.stream_head { moments::streamed_head(m, job) } else { moments::resident_head(m, job) };
    put("loss_chunk", head.saturating_sub(block.most()).0);
    put("unpacked_block", m.unpack.0);
    if on_cpu {
        // Operators that aren't fused make copies of the widest tensor on their way.
        put("operator_copies", product(&[job.micro_tokens(), m.intermediate.max(m.q), m.elem, UNFUSED]));
    } else {
        put("cublas_workspaces", CUBLAS_WORKSPACES);
        put("allocator_slack", ALLOCATOR_SLACK);
    }
    terms
}

/// Host memory beside RAM tier and ring.
pub fn host_terms(m: &Model, job: &Job, thrift: Thrift) -> Terms {
    let mut terms = Terms::from([("process", PROCESS)]);
    // A tied embedding's rows are gathered from the head, unless that isn't on the device.
    if !m.tied || thrift.stream_head {
        terms.insert("embedding", m.embed);
    }
    if thrift.offload {
        let trained = (m.blocks.len() - job.lowest) as u64;
        terms.insert("boundaries", Bytes(product(&[job.tokens(), m.hidden, m.elem, trained])));
    }
    terms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;
    use crate::config::{RunConfig, TARGETS};
    use crate::plan::made::{LLAMA3_8B, SMOL, checkpoint};

    fn terms(edit: impl Fn(&mut RunConfig)) -> Terms {
        let mut config = RunConfig::default();
        edit(&mut config);
        let c = checkpoint(LLAMA3_8B, Dtype::BF16);
        device_terms(&Model::of(&c, false), &Job::of(&config, &c).unwrap(), false, Thrift::default())
    }

    #[test]
    fn adapters_of_an_8b_model_are_counted_exactly() {
        // r 16 on all seven projections of 32 blocks: 41.9 M parameters.
        let t = terms(|c| c.lora.targets = TARGETS.map(String::from).to_vec());
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
        let moment = |length: usize| {
            let mut config = RunConfig::default();
            config.data.max_length = length;
            let (m, job) = (Model::of(&c, false), Job::of(&config, &c).unwrap());
            (moments::resident_head(&m, &job), moments::streamed_head(&m, &job))
        };
        let (short, long) = (moment(2048), moment(8192));
        assert_eq!(short.0, Bytes(allocated(512 * 128_256 * 2) + 2048 * (4096 * 6 + 8)));
        assert_eq!(long.0, short.0 + Bytes(6144 * (4096 * 6 + 8)));
        assert!(short.1 < short.0 + Bytes(2048 * 4096 * 6), "pieces of the head are smaller than its chunks of logits");
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
        assert_eq!(all - offload, Bytes(1024 * 4096 * 2 * 28));
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
