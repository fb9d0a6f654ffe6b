//! What the passes of `model/` hold on the device at their fullest moments, tensor by tensor.
//!
//! Each moment lists the tensors alive at once, in the order in which `model/block.rs`, `feed_forward.rs`,
//! `attention.rs`, `delta.rs` and `train/loss.rs` make them. States at the blocks' borders are not in it.

use super::shape::{Job, Model};
use crate::units::Bytes;

/// libtorch's allocator gives memory in pieces of this (`kMinBlockSize`), …
const PIECE: u64 = 512;
/// … takes from the driver in these from 10 MiB up (`kRoundLarge`, `kMinLargeAlloc`), …
const SEGMENT: u64 = 2 << 20;
/// … and leaves a rest below this with the tensor it was taken for (`kSmallSize`).
const REST: u64 = 1 << 20;
/// Most multiprocessors of a card: deterministic attention makes a copy of dQ for as many as share a head.
const MULTIPROCESSORS: u64 = 192;
/// The flash kernels work on this many queries at a time.
const FLASH_ROWS: u64 = 128;
/// No tensor is larger: keeps sums of absurd configs inside `u64`.
const CEILING: u64 = 1 << 56;

/// Product of `factors` in bytes.
pub fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1u64, |a, f| a.saturating_mul(*f)).min(CEILING)
}

/// What the allocator counts for a tensor of `bytes`.
pub fn allocated(bytes: u64) -> u64 {
    let exact = bytes.next_multiple_of(PIECE);
    let taken = exact.next_multiple_of(SEGMENT);
    if exact >= 5 * SEGMENT && taken - exact <= REST { taken } else { exact }
}

/// Bytes of one tensor of each sort, for the tokens of a micro-batch.
struct Sizes<'a> {
    m: &'a Model,
    job: &'a Job,
    tokens: u64,
}

impl Sizes<'_> {
    /// A tensor of `width` in the compute type.
    fn of(&self, tokens: u64, width: u64) -> u64 {
        allocated(product(&[tokens, width, self.m.elem]))
    }
    fn all(&self, width: u64) -> u64 {
        self.of(self.tokens, width)
    }
    /// Low activations (or their gradient) of the adapted projections among `names`.
    fn low(&self, tokens: u64, names: &[&str]) -> u64 {
        let n = self.job.targets.iter().filter(|t| names.contains(&t.as_str())).count() as u64;
        if n == 0 { 0 } else { self.of(tokens, n * self.job.r) }
    }
    /// A copy of the widest input that dropout makes among the projections `names`.
    fn dropped(&self, tokens: u64, names: &[&str]) -> u64 {
        let wide = |t: &String| self.m.projection(t).1;
        let widest = self.job.targets.iter().filter(|t| names.contains(&t.as_str())).map(wide).max();
        widest.filter(|_| self.job.dropout).map_or(0, |w| self.of(tokens, w))
    }
}

const QKV: [&str; 3] = ["q_proj", "k_proj", "v_proj"];
const GATE_UP: [&str; 2] = ["gate_proj", "up_proj"];

/// The fullest moments of one visit, recompute and backward, of one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// In the feed-forward.
    pub feed_forward: Bytes,
    /// In attention's backward.
    pub attention: Bytes,
}

impl Block {
    /// The moments for `mlp_chunk` tokens of the feed-forward at a time (0 = all).
    pub fn of(m: &Model, job: &Job, mlp_chunk: u64) -> Block {
        let tokens = job.micro_tokens();
        let s = Sizes { m, job, tokens };
        let state = s.all(m.hidden);
        // Normed input; q, k and v in one buffer (before and after their norms, where these are); low activations;
        // attention's output and log-sum-exp.
        let normed_heads = if m.qk_norm { s.all(m.q) + s.all(m.kv) } else { 0 };
        let lse = allocated(product(&[tokens, m.heads, 4]));
        let held = state
            + s.all(m.q + 2 * m.kv)
            + normed_heads
            + s.low(tokens, &QKV)
            + s.all(m.q)
            + lse
            + s.low(tokens, &["o_proj"]);

        let rows = if mlp_chunk == 0 { tokens } else { mlp_chunk.min(tokens) };
        let wide = s.of(rows, m.intermediate);
        let chunked = rows < tokens;
        // The middle and its norm; gate, up and the gradient of their product; then the gradient of the norm instead.
        let low = s.low(rows, &GATE_UP) + s.low(rows, &["down_proj"]) * 2;
        let widest = 3 * wide + s.dropped(rows, &["down_proj"]) + if chunked { state } else { 0 };
        let after = 2 * wide + state + s.low(rows, &GATE_UP) + s.dropped(rows, &GATE_UP);
        let feed_forward = held + 2 * state + low + widest.max(after);

        // The gradient of the middle; that of attention's output; of q, k, v; k's and v's for every query head before
        // they are summed; row sums and dQ in f32.
        let padded = job.rows.saturating_mul(job.length.next_multiple_of(FLASH_ROWS));
        let per_head = if m.kv < m.q { 2 * s.all(m.q) } else { 0 };
        let copies =
            if job.deterministic { MULTIPROCESSORS.div_ceil((job.rows.saturating_mul(m.heads)).max(1)) } else { 1 };
        let attention = held
            + state
            + s.all(m.q)
            + s.low(tokens, &["o_proj"])
            + (s.all(m.q) + 2 * s.all(m.kv) + per_head)
            + allocated(product(&[padded, m.heads, 4]))
            + allocated(product(&[padded, m.q, 4, copies]));
        Block { feed_forward: Bytes(feed_forward.min(CEILING)), attention: Bytes(attention.min(CEILING)) }
    }

    /// The fuller of the two.
    pub fn most(self) -> Bytes {
        self.feed_forward.max(self.attention)
    }
}

/// The head's fullest moment with the head on the device: a micro-batch's states, normed, their gradient, and a chunk
/// of logits in the compute type.
pub fn resident_head(m: &Model, job: &Job) -> Bytes {
    let (tokens, chunk) = (job.micro_tokens(), job.chunk.min(job.micro_tokens()));
    let state = allocated(product(&[tokens, m.hidden, m.elem]));
    Bytes(3 * state + logits(m, chunk, m.vocab) + 2 * allocated(product(&[tokens, 4])))
}

/// The same with a head that streams, where all micro-batches wait for its pieces: states, normed, what each piece adds
/// to the gradient (in f32) and the label's row.
pub fn streamed_head(m: &Model, job: &Job) -> Bytes {
    let (tokens, chunk) = (job.micro_tokens(), job.chunk.min(job.micro_tokens()));
    let state = allocated(product(&[tokens, m.hidden, m.elem]));
    let sum = allocated(product(&[tokens, m.hidden, 4]));
    let rows = 4 * allocated(product(&[tokens, 4]));
    let one = 3 * state + sum + rows + logits(m, chunk, m.head_rows().min(m.vocab));
    Bytes(product(&[one, job.micro]).saturating_add(state).min(CEILING))
}

/// A chunk of logits; without a fused kernel (f32) its softmax and exponential come on top.
fn logits(m: &Model, chunk: u64, width: u64) -> u64 {
    allocated(product(&[chunk, width, if m.elem < 4 { m.elem } else { 12 }]))
}
