//! What the planner needs of a checkpoint and a config, as plain numbers.

use super::schedule::PARTS;
use super::slots::SlotSizes;
use crate::checkpoint::{Block, BlockTensor, Checkpoint, Dtype, Part, Role, TensorInfo};
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::text::clean;
use crate::units::Bytes;

/// Address alignment of every tensor on the device.
const SLOT_ALIGN: u64 = 256;
/// Alignment of direct reads: each contiguous run of a block is read from sector to sector.
const SECTOR: u64 = 4096;

/// One decoder block.
#[derive(Clone, Debug)]
pub struct BlockShape {
    /// Bytes as stored: what a load moves.
    pub stored: Bytes,
    /// Bytes of a device slot that holds it, tensors aligned, in the compute type.
    pub slot: Bytes,
    /// Bytes of a host buffer that holds the aligned supersets of its parts.
    pub host: Bytes,
    /// Bytes as stored of each part.
    pub parts: [Bytes; PARTS],
    /// Device slots of the parts.
    pub slots: [Bytes; PARTS],
    /// Tokens that a query sees at most; `None`: all before it.
    pub window: Option<u64>,
    /// Tensors of each part: copies of a load.
    pub tensors: [u64; PARTS],
    /// Elements that a token is multiplied by: its weight matrices, of routed experts the active share.
    pub gemm: u64,
    /// The same of each part.
    pub gemm_parts: [u64; PARTS],
    /// Elements of all its weight matrices.
    pub weights: u64,
    /// Bytes as stored of those matrices and their scales.
    pub weight_bytes: Bytes,
    /// Elements that packed matrices have in the compute type at once: all dense ones and one expert.
    pub unpacked: u64,
}

impl BlockShape {
    /// Measures block `index` of `c`, whose blocks compute in a type of `elem` bytes.
    fn of(c: &Checkpoint, index: usize, elem: u64) -> BlockShape {
        let block = &c.blocks[index];
        let of = |part: Part| block.tensors.iter().filter(move |t| t.role.part() == part).map(|t| &c.tensors[t.tensor]);
        let in_slot = |t: &TensorInfo| {
            let bytes = if t.dtype.is_trainable() { t.elements() * elem } else { t.bytes };
            Bytes(bytes).align_up(SLOT_ALIGN)
        };
        let mut parts = Part::ALL.map(|p| of(p).map(|t| Bytes(t.bytes)).sum::<Bytes>());
        let mut in_slots = Part::ALL.map(|p| of(p).map(in_slot).sum::<Bytes>());
        let own_parts = |t: &BlockTensor| matches!(t.role, Role::Expert | Role::FeedForwardOther);
        let mut gemm_parts =
            Part::ALL.map(|p| of(p).filter(|t| t.shape.len() == 2).map(TensorInfo::elements).sum::<u64>());
        let uneven = block.tensors.iter().any(own_parts);
        if uneven {
            // Experts, and fused gate and up, can be cut by rows: three parts of one size.
            let whole: Bytes = parts[1..].iter().copied().sum();
            parts[1..].fill(Bytes(whole.0 / 3));
            parts[1] = whole - parts[2] - parts[3];
            let whole: Bytes = in_slots[1..].iter().copied().sum();
            in_slots[1..].fill(Bytes(whole.0.div_ceil(3)).align_up(SLOT_ALIGN));
        }
        let host = Part::ALL.map(|p| superset(of(p).map(|t| (t.file, t.offset, t.bytes)).collect()));
        let weights = Weights::of(c, block);
        let (active, count) = c.arch.experts.map_or((1, 1), |e| (e.active as u64, e.count as u64));
        let gemm = weights.dense + weights.routed / count * active;
        if uneven {
            let attention = block.tensors.iter().filter(|t| t.role.part() == Part::Attention);
            let matrices = attention.map(|t| &c.tensors[t.tensor]).filter(|t| t.shape.len() > 1);
            gemm_parts[0] = matrices.map(TensorInfo::parameters).sum::<u64>().min(gemm);
            let third = (gemm - gemm_parts[0]) / 3;
            gemm_parts[1..].fill(third);
        }
        BlockShape {
            stored: block.bytes,
            window: c.arch.windows.get(index).copied().flatten().map(|w| w as u64),
            tensors: Part::ALL.map(|p| of(p).count() as u64),
            gemm_parts,
            slot: in_slots.into_iter().sum(),
            host: host.into_iter().sum(),
            parts,
            slots: in_slots,
            gemm,
            weights: weights.dense + weights.routed,
            weight_bytes: weights.bytes,
            unpacked: weights.packed_dense + weights.routed / count,
        }
    }
}

/// The weight matrices of a block, in elements.
#[derive(Default)]
struct Weights {
    /// Those that every token passes.
    dense: u64,
    /// Of these, the ones stored packed, or all where none is.
    packed_dense: u64,
    /// Those of all routed experts.
    routed: u64,
    /// Bytes as stored of all, scales included.
    bytes: Bytes,
}

impl Weights {
    fn of(c: &Checkpoint, block: &Block) -> Weights {
        let (mut w, mut any_packed) = (Weights::default(), false);
        let mut packed = 0;
        for (t, role) in block.tensors.iter().map(|t| (&c.tensors[t.tensor], t.role)) {
            let n = t.parameters();
            // Norms and biases are no factors of a GEMM; biases of experts have two dimensions.
            if t.shape.len() < 2 || (role == Role::FeedForwardOther && t.name.ends_with("bias")) {
                continue;
            }
            w.bytes += Bytes(t.bytes);
            any_packed |= !t.dtype.is_trainable();
            match role {
                Role::Expert => w.routed += n,
                _ if t.dtype.is_trainable() => w.dense += n,
                _ => (w.dense, packed) = (w.dense + n, packed + n),
            }
        }
        w.packed_dense = if any_packed { packed } else { w.dense };
        w
    }
}

/// The checkpoint as the planner sees it.
#[derive(Clone, Debug)]
pub struct Model {
    /// Blocks in order.
    pub blocks: Vec<BlockShape>,
    /// Elements of all tensors in use.
    pub params: u64,
    /// Bytes per element in compute.
    pub elem: u64,
    /// Bytes per element in the checkpoint's own compute type, whatever the device.
    pub weight: u64,
    /// Compute type: `bf16`, `f16`, `f32`.
    pub compute: &'static str,
    /// Residual width.
    pub hidden: u64,
    /// Feed-forward width that a token passes: of a mixture of experts, the active ones' and the shared one's together.
    pub intermediate: u64,
    /// Width of all query heads.
    pub q: u64,
    /// Width of all key (or value) heads.
    pub kv: u64,
    /// Query heads.
    pub heads: u64,
    /// Queries and keys are normed.
    pub qk_norm: bool,
    /// Vocabulary rows.
    pub vocab: u64,
    /// Embedding as stored.
    pub embed: Bytes,
    /// Head as stored; zero when tied.
    pub head: Bytes,
    /// Head on the device, in the compute type (the embedding's when tied).
    pub head_device: Bytes,
    /// Final norm as stored.
    pub final_norm: Bytes,
    /// Final norm on the device.
    pub final_norm_device: Bytes,
    /// Head shares the embedding.
    pub tied: bool,
    /// Device bytes beside the slots to turn one packed block into the compute type.
    pub unpack: Bytes,
    /// Name and bytes of the largest tensor of the largest block.
    pub heaviest: (String, Bytes),
    /// Sizes of the device's slots.
    pub slot_sizes: SlotSizes,
    /// The largest host buffer of all blocks.
    host_buffer: Bytes,
}

impl Model {
    /// Reads the numbers off a checkpoint; `on_cpu` computes in f32.
    pub fn of(c: &Checkpoint, on_cpu: bool) -> Model {
        let a = &c.arch;
        let dtype = c.compute_dtype();
        let (compute, elem) = match dtype {
            _ if on_cpu => ("f32", 4),
            Dtype::F16 => ("f16", 2),
            Dtype::F32 => ("f32", 4),
            _ => ("bf16", 2),
        };
        let device = |index: usize| Bytes(c.tensors[index].elements() * elem);
        let blocks: Vec<BlockShape> = (0..c.blocks.len()).map(|b| BlockShape::of(c, b, elem)).collect();
        // What is stored packed is unpacked for use; MXFP4 and FP8 scales lie beside their weights.
        let packed = |b: &&BlockShape| b.weight_bytes < Bytes(b.weights * 2);
        let unpack = blocks.iter().filter(packed).map(|b| Bytes(b.unpacked * elem)).max().unwrap_or(Bytes::ZERO);
        let heaviest = c
            .blocks
            .iter()
            .max_by_key(|b| b.bytes)
            .and_then(|b| b.tensors.iter().map(|t| &c.tensors[t.tensor]).max_by_key(|t| t.bytes))
            .map_or((String::new(), Bytes::ZERO), |t| (clean(&t.name), Bytes(t.bytes)));
        let head = c.head.map_or(Bytes::ZERO, |h| Bytes(c.tensors[h].bytes));
        Model {
            blocks,
            params: c.params(),
            elem,
            weight: if dtype == Dtype::F32 { 4 } else { 2 },
            compute,
            hidden: a.hidden as u64,
            intermediate: a.experts.map_or(a.intermediate, |e| e.active * e.intermediate + e.shared) as u64,
            q: (a.n_heads * a.head_dim) as u64,
            kv: (a.n_kv_heads * a.head_dim) as u64,
            heads: a.n_heads as u64,
            qk_norm: c.block_tensor(0, Role::QNorm).is_some(),
            vocab: a.vocab as u64,
            embed: Bytes(c.tensors[c.embed].bytes),
            head,
            head_device: device(c.head.unwrap_or(c.embed)),
            final_norm: Bytes(c.tensors[c.final_norm].bytes),
            final_norm_device: device(c.final_norm),
            tied: c.head.is_none(),
            unpack,
            heaviest,
            slot_sizes: SlotSizes::default(),
            host_buffer: Bytes::ZERO,
        }
        .measured()
    }

    /// With the largest sizes of its blocks.
    fn measured(mut self) -> Model {
        let parts: Vec<[u64; PARTS]> = self.blocks.iter().map(|b| b.slots.map(|s| s.0)).collect();
        self.slot_sizes = SlotSizes::of(&parts);
        self.host_buffer = self.blocks.iter().map(|b| b.host).max().unwrap_or(Bytes::ZERO);
        self
    }

    /// The same model with its block matrices packed at `per_weight` bytes a weight.
    pub fn packed(&self, per_weight: f64) -> Model {
        let mut m = self.clone();
        for b in &mut m.blocks {
            let rest = b.stored.0.saturating_sub(b.weight_bytes.0);
            let bytes = Bytes((b.weights as f64 * per_weight).ceil() as u64 + rest);
            let share = |part: Bytes| Bytes((part.0 as f64 * bytes.0 as f64 / b.stored.0.max(1) as f64).ceil() as u64);
            b.parts = b.parts.map(share);
            b.slots = b.slots.map(|s| share(s).align_up(SLOT_ALIGN));
            (b.stored, b.slot, b.host) = (bytes, bytes.align_up(SLOT_ALIGN), bytes.align_up(SECTOR));
            b.weight_bytes = Bytes(bytes.0 - rest);
        }
        m.unpack = self.blocks.iter().map(|b| Bytes(b.unpacked * self.elem)).max().unwrap_or(Bytes::ZERO);
        m.measured()
    }

    /// Bytes of all blocks as stored.
    pub fn block_bytes(&self) -> Bytes {
        self.blocks.iter().map(|b| b.stored).sum()
    }
    /// Device slots of an attention part and of a part of the feed-forward: the largest of all blocks.
    pub fn part_slots(&self) -> [Bytes; 2] {
        [0, 1].map(|class| Bytes(self.slot_sizes.usual[class].max(self.slot_sizes.large[class])))
    }
    /// Slots of one whole block.
    pub fn slot(&self) -> Bytes {
        let [attention, feed_forward] = self.part_slots();
        attention + feed_forward * (PARTS as u64 - 1)
    }
    /// Bytes of a row of the head on the device.
    pub fn head_row(&self) -> u64 {
        self.hidden * self.elem
    }
    /// Rows of the head in one piece when it streams.
    pub fn head_rows(&self) -> u64 {
        super::schedule::head_rows(self.slot_sizes.usual[1], self.head_row()).min(self.vocab)
    }
    /// Bytes of the head as stored (the embedding's when tied).
    pub fn head_stored(&self) -> Bytes {
        if self.tied { self.embed } else { self.head }
    }
    /// Largest host buffer.
    pub fn host_buffer(&self) -> Bytes {
        self.host_buffer
    }
    /// Output and input width of a projection.
    pub fn projection(&self, target: &str) -> (u64, u64) {
        match target {
            "q_proj" => (self.q, self.hidden),
            "k_proj" | "v_proj" => (self.kv, self.hidden),
            "o_proj" => (self.hidden, self.q),
            "down_proj" => (self.hidden, self.intermediate),
            _ => (self.intermediate, self.hidden),
        }
    }
}

/// Bytes of the sector-aligned reads that cover the runs of `(file, offset, bytes)`.
fn superset(mut runs: Vec<(usize, u64, u64)>) -> Bytes {
    runs.sort_unstable();
    let mut total = 0;
    let mut open: Option<(usize, u64, u64)> = None;
    let close = |(_, start, end): (usize, u64, u64)| end.div_ceil(SECTOR) * SECTOR - start / SECTOR * SECTOR;
    for (file, start, len) in runs {
        let end = start.saturating_add(len);
        match &mut open {
            Some((f, _, e)) if *f == file && *e == start => *e = end,
            _ => total += open.replace((file, start, end)).map_or(0, close),
        }
    }
    Bytes(total + open.map_or(0, close))
}

/// What a step asks of the machine.
#[derive(Clone, Debug)]
pub struct Job {
    /// Rows of a micro-batch.
    pub rows: u64,
    /// Longest row, tokens.
    pub length: u64,
    /// Tokens that a row of a micro-batch takes on average; `None` = unknown, all are as long as `length`.
    pub seen: Option<u64>,
    /// Micro-batches in a step.
    pub micro: u64,
    /// Rank.
    pub r: u64,
    /// Projections with adapters.
    pub targets: Vec<String>,
    /// How many of the trained blocks each of them is found in: all, or there is no job.
    pub matches: Vec<(String, usize)>,
    /// Dropout on the adapters' input.
    pub dropout: bool,
    /// First block with adapters.
    pub lowest: usize,
    /// Tokens per chunk of head and loss.
    pub chunk: u64,
    /// Deterministic kernels.
    pub deterministic: bool,
}

/// Whether the tensor `name` holds the projection `target` among others, as phi3's do.
fn fused(name: &str, target: &str) -> bool {
    let whole = match target {
        "q_proj" | "k_proj" | "v_proj" => ".self_attn.qkv_proj.weight",
        "gate_proj" | "up_proj" => ".mlp.gate_up_proj.weight",
        _ => return false,
    };
    name.ends_with(whole)
}

impl Job {
    /// Reads the numbers off a config, for a model of `n_blocks`.
    ///
    /// # Errors
    /// A value no plan can be made for.
    pub fn of(config: &RunConfig, c: &Checkpoint) -> Result<Job> {
        let (l, t) = (&config.lora, &config.train);
        if !(l.top_fraction > 0.0 && l.top_fraction <= 1.0) {
            return Err(Error::usage(format!("'lora.top_fraction' = {}: expected above 0, at most 1", l.top_fraction)));
        }
        for (key, value) in [
            ("lora.r", l.r),
            ("data.max_length", config.data.max_length),
            ("train.per_device_train_batch_size", t.per_device_train_batch_size),
            ("train.gradient_accumulation_steps", t.gradient_accumulation_steps),
            ("stream.loss_chunk", config.stream.loss_chunk),
        ] {
            if value == 0 || value > 1 << 40 {
                return Err(Error::usage(format!("'{key}' = {value}: expected a number from 1 to 2^40")));
            }
        }
        let lowest = lowest_trainable(c.blocks.len(), l.top_fraction);
        let trained = &c.blocks[lowest..];
        let found = |target: &str| {
            let here =
                |t: &BlockTensor| t.role.lora_target() == Some(target) || fused(&c.tensors[t.tensor].name, target);
            trained.iter().filter(|b| b.tensors.iter().any(here)).count()
        };
        let matches: Vec<(String, usize)> = l.targets.iter().map(|t| (t.clone(), found(t))).collect();
        if let Some((target, n)) = matches.iter().find(|(_, n)| *n < trained.len()) {
            let names: Vec<&str> =
                Role::ALL.into_iter().filter_map(Role::lora_target).filter(|t| found(t) == trained.len()).collect();
            return Err(match c.arch.experts {
                Some(e) if ["gate_proj", "up_proj", "down_proj"].contains(&target.as_str()) => Error::usage(format!(
                    "'lora.targets': '{target}' matches {n} of {} blocks of '{}': its feed-forward is {} experts, which \
                     carry no adapters in this version",
                    trained.len(),
                    c.name,
                    e.count
                ))
                .next(format!("adapt attention only: lora.targets = {}", names.join(","))),
                _ => Error::usage(format!("'lora.targets': '{}' has no '{target}'", c.name))
                    .next(format!("choose among {}", names.join(", "))),
            });
        }
        if l.targets.is_empty() {
            return Err(Error::usage("'lora.targets' is empty: nothing would train").next("add \"q_proj\""));
        }
        Ok(Job {
            rows: t.per_device_train_batch_size as u64,
            length: config.data.max_length as u64,
            seen: None,
            micro: t.gradient_accumulation_steps as u64,
            r: l.r as u64,
            targets: l.targets.clone(),
            matches,
            dropout: l.dropout > 0.0,
            lowest,
            chunk: config.stream.loss_chunk as u64,
            deterministic: t.deterministic,
        })
    }

    /// The job as its data makes it on average: for seconds, never for memory.
    pub fn timed(&self) -> Job {
        Job { length: self.seen.unwrap_or(self.length), ..self.clone() }
    }
    /// Tokens of one micro-batch, at most.
    pub fn micro_tokens(&self) -> u64 {
        self.rows.saturating_mul(self.length)
    }
    /// Tokens of one step, at most.
    pub fn tokens(&self) -> u64 {
        self.micro_tokens().saturating_mul(self.micro)
    }
    /// Adapter parameters of one block.
    pub fn adapter_params(&self, m: &Model) -> u64 {
        self.targets.iter().map(|t| m.projection(t)).map(|(out, inp)| self.r.saturating_mul(out + inp)).sum()
    }
    /// The same in the flat buffer of `model/lora.rs`, where the A's of one input and every B start on 64 elements.
    pub fn adapter_elements(&self, m: &Model) -> u64 {
        let groups = [&["q_proj", "k_proj", "v_proj"][..], &["o_proj"], &["gate_proj", "up_proj"], &["down_proj"]];
        let round = |elements: u64| elements.min(1 << 56).next_multiple_of(64);
        let of = |names: &[&str]| {
            let in_group = self.targets.iter().filter(|t| names.contains(&t.as_str())).map(|t| m.projection(t));
            let (mut a, mut b) = (0u64, 0u64);
            for (out, inp) in in_group {
                a = a.saturating_add(self.r.saturating_mul(inp));
                b = b.saturating_add(round(self.r.saturating_mul(out)));
            }
            round(a).saturating_add(b)
        };
        groups.into_iter().fold(0, |sum, g| sum.saturating_add(of(g)))
    }
}

/// First block that carries adapters when the top `fraction` of `n` does: at least one block does.
#[must_use]
pub fn lowest_trainable(n: usize, fraction: f64) -> usize {
    // The tolerance keeps 0.7 of 10 at 7 blocks: 0.7 * 10 is a hair above 7 in binary.
    let trained = (fraction * n as f64 - 1e-9).ceil().max(1.0) as usize;
    n.saturating_sub(trained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fraction_that_an_adapter_implies_gives_back_its_lowest_block() {
        // `generate` turns an adapter's layers into a fraction; a hair above a whole number must not add a block.
        for n in 1..=200 {
            for lowest in 0..n {
                assert_eq!(lowest_trainable(n, (n - lowest) as f64 / n as f64), lowest, "{lowest} of {n}");
            }
        }
    }
    use crate::plan::made::{LLAMA3_8B, QWEN25_32B, TINY, checkpoint, grow_block};

    #[test]
    fn case_pl_01_sizes_are_the_sums_of_the_headers() {
        let c = checkpoint(TINY, Dtype::BF16);
        assert_eq!((c.tensors.len(), c.total_bytes()), (39, Bytes(363_648)));
        let m = Model::of(&c, false);
        assert_eq!(m.block_bytes() + m.embed + m.head + m.final_norm, Bytes(363_648));
        let m = Model::of(&checkpoint(LLAMA3_8B, Dtype::BF16), false);
        assert_eq!(m.params, 8_030_261_248);
        assert_eq!(m.blocks[7].stored, Bytes(436_224_000));
        let m = Model::of(&checkpoint(QWEN25_32B, Dtype::BF16), false);
        assert_eq!((m.params, m.blocks.len()), (32_763_876_352, 64));
    }

    #[test]
    fn the_largest_tensor_of_the_largest_block_is_known() {
        let mut c = checkpoint(TINY, Dtype::BF16);
        grow_block(&mut c, 2, 1 << 20);
        let m = Model::of(&c, false);
        assert_eq!(m.heaviest, ("model.layers.2.ple.weight".to_string(), Bytes(1 << 20)));
        assert!(m.slot() >= m.blocks[2].slot, "its part decides the class of slots");
    }

    #[test]
    fn the_top_fraction_rounds_up_and_never_to_nothing() {
        for (n, f, want) in [(32, 0.5, 16), (32, 1.0, 0), (10, 0.7, 3), (4, 0.01, 3), (5, 0.5, 2), (1, 0.5, 0)] {
            assert_eq!(lowest_trainable(n, f), want, "{n} {f}");
        }
    }

    #[test]
    fn a_superset_covers_each_run_from_sector_to_sector() {
        assert_eq!(superset(vec![(0, 10, 100)]), Bytes(4096));
        assert_eq!(superset(vec![(0, 4000, 200)]), Bytes(8192));
        assert_eq!(superset(vec![(0, 4096, 4096), (0, 0, 4096)]), Bytes(8192));
        assert_eq!(superset(vec![(0, 0, 10), (1, 0, 10), (0, 9000, 10)]), Bytes(3 * 4096));
    }

    #[test]
    fn on_cpu_slots_hold_f32() {
        let c = checkpoint(TINY, Dtype::F16);
        let (gpu, cpu) = (Model::of(&c, false), Model::of(&c, true));
        assert_eq!((gpu.compute, cpu.compute), ("f16", "f32"));
        assert!(cpu.slot() >= Bytes(2 * gpu.blocks[0].stored.0) && gpu.slot() >= gpu.blocks[0].stored);
    }

    /// One of the header-only checkpoints.
    fn fixture(name: &str) -> Checkpoint {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/headers").join(name);
        crate::checkpoint::open(&dir).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn experts_count_whole_as_bytes_and_by_their_active_share_as_work() {
        let m = Model::of(&fixture("gpt-oss-120b"), false);
        let b = &m.blocks[5];
        // q, k, v, o and the router; an expert is (5760 + 2880) rows of 2880.
        let (dense, expert) = (2880 * (4096 + 512 + 512) + 4096 * 2880 + 128 * 2880, 8640 * 2880);
        assert_eq!((b.gemm, b.weights), (dense + 4 * expert, dense + 128 * expert));
        assert_eq!((b.stored, m.params), (Bytes(1_748_118_784), 116_829_156_672));
        // 17 bytes hold 32 weights; one expert at a time is unpacked to bf16: 47 MiB.
        assert_eq!(b.weight_bytes, Bytes(2 * dense + 128 * expert / 32 * 17));
        assert_eq!((m.unpack, m.unpack.0 >> 20), (Bytes(2 * expert), 47));
        assert!(m.slot() >= b.stored && m.slot() < b.stored + Bytes(1 << 16), "{} for {}", m.slot(), b.stored);
        assert_eq!((m.compute, m.intermediate, m.q, m.kv), ("bf16", 4 * 2880, 4096, 512));
        assert_eq!(m.block_bytes(), Bytes(62_932_276_224));

        let m = Model::of(&fixture("qwen3-vl-235b-a22b"), false);
        let (dense, expert) = (4096 * (8192 + 512 + 512 + 8192 + 128), 3 * 1536 * 4096);
        assert_eq!((m.blocks[0].gemm, m.blocks[0].weights), (dense + 8 * expert, dense + 128 * expert));
        assert_eq!((m.unpack, m.intermediate), (Bytes::ZERO, 8 * 1536));
        // 22 B active: the name says so.
        let active: u64 = m.blocks.iter().map(|b| b.gemm).sum::<u64>() + 2 * 151_936 * 4096;
        assert_eq!(active / 1_000_000_000, 22);

        let m = Model::of(&fixture("glm-4.6v"), false);
        let attention = 4096 * (12_288 + 1024 + 1024 + 12_288);
        assert_eq!(m.blocks[0].gemm, attention + 3 * 10_944 * 4096, "the first block is dense");
        assert_eq!(m.blocks[1].gemm, attention + 128 * 4096 + 9 * 3 * 1408 * 4096);
        assert_eq!((m.intermediate, m.blocks[1].parts[2]), (9 * 1408, m.blocks[1].parts[3]));
        assert_eq!(m.blocks[1].parts.iter().copied().sum::<Bytes>(), m.blocks[1].stored);
    }

    #[test]
    fn a_packed_candidate_packs_every_expert() {
        let m = Model::of(&fixture("qwen3-vl-235b-a22b"), false);
        let nf4 = m.packed(0.5);
        let rest = m.blocks[0].stored.0 - m.blocks[0].weight_bytes.0;
        assert_eq!(nf4.blocks[0].stored, Bytes(m.blocks[0].weights / 2 + rest));
        assert_eq!(nf4.unpack, Bytes(2 * (4096 * (8192 + 512 + 512 + 8192 + 128) + 3 * 1536 * 4096)));
    }

    #[test]
    fn dense_models_of_a_vision_family_are_planned_by_their_text() {
        let m = Model::of(&fixture("qwen3-vl-8b"), false);
        assert_eq!((m.params, m.block_bytes(), m.unpack), (8_190_735_360, Bytes(13_892_143_104), Bytes::ZERO));
        assert_eq!((m.q, m.kv, m.intermediate, m.tied), (4096, 1024, 12_288, false));
        assert_eq!(m.blocks[0].gemm, 4096 * (2 * 4096 + 2 * 1024 + 3 * 12_288));
        assert_eq!(m.embed, Bytes(151_936 * 4096 * 2));
    }
}
