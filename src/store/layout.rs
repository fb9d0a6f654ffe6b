//! How a block's tensors lie in its file, in a host buffer and in a device slot.
//!
//! safetensors promises no alignment (tensors were seen at offset 10 mod 64), and `O_DIRECT` wants aligned offsets.
//! So a host buffer holds the aligned superset of each contiguous run, and each tensor is copied from there to a
//! 256-byte-aligned place in the slot.

use crate::checkpoint::{Checkpoint, Dtype, Role};

/// Alignment of `O_DIRECT` offsets, lengths and addresses. 4096 suits every drive; 512 would suit most.
pub const SECTOR: u64 = 4096;
/// Alignment of every tensor inside a slot, as libtorch's own allocations (kernels may pick by alignment).
pub const SLOT_ALIGN: u64 = 256;
/// Tensors nearer than this in a file are read as one run: a short gap is cheaper than another request.
const GAP: u64 = 64 << 10;

/// An aligned range of a file and its place in the host buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index into the checkpoint's files.
    pub file: usize,
    /// File offset, a multiple of [`SECTOR`].
    pub offset: u64,
    /// Length, a multiple of [`SECTOR`]; may reach past the end of the file.
    pub len: u64,
    /// Bytes of it that must arrive (less than `len` only at the end of a file).
    pub needed: u64,
    /// Place in the host buffer, a multiple of [`SECTOR`].
    pub host: u64,
}

/// One tensor of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it does.
    pub role: Role,
    /// Stored element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<i64>,
    /// Stored bytes.
    pub bytes: u64,
    /// Place in the host buffer; any alignment.
    pub host: u64,
    /// Place in the slot, a multiple of [`SLOT_ALIGN`].
    pub slot: u64,
}

/// How one block is read, buffered and placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Block number.
    pub block: usize,
    /// What to read.
    pub runs: Vec<Run>,
    /// What to copy where.
    pub pieces: Vec<Piece>,
    /// Host buffer length.
    pub host_len: u64,
    /// Slot length.
    pub slot_len: u64,
    /// Sum of the tensors' stored bytes.
    pub bytes: u64,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// The stored bytes (GPU).
    AsStored,
    /// Every tensor widened to f32 (CPU: f16 and bf16 arithmetic is slower there).
    F32,
}

impl BlockLayout {
    /// Lays out block `block` of `checkpoint`.
    #[must_use]
    pub fn new(checkpoint: &Checkpoint, block: usize, kind: SlotKind) -> BlockLayout {
        let mut by_place: Vec<(Role, usize)> =
            checkpoint.blocks[block].tensors.iter().map(|t| (t.role, t.tensor)).collect();
        by_place.sort_by_key(|&(_, t)| (checkpoint.tensors[t].file, checkpoint.tensors[t].offset));

        let mut runs: Vec<Run> = Vec::new();
        let mut pieces = Vec::new();
        let (mut host, mut slot, mut bytes) = (0, 0, 0);
        for (role, index) in by_place {
            let t = &checkpoint.tensors[index];
            let end = t.offset + t.bytes;
            let joins = runs.last().is_some_and(|r| r.file == t.file && t.offset <= r.offset + r.needed + GAP);
            if !joins {
                let offset = t.offset / SECTOR * SECTOR;
                runs.push(Run { file: t.file, offset, len: 0, needed: 0, host });
            }
            let run = runs.last_mut().expect("pushed above");
            run.needed = run.needed.max(end - run.offset);
            run.len = run.needed.div_ceil(SECTOR) * SECTOR;
            host = run.host + run.len;
            let size = match kind {
                SlotKind::AsStored => t.bytes,
                SlotKind::F32 => t.elements() * 4,
            };
            pieces.push(Piece {
                role,
                dtype: t.dtype.clone(),
                shape: t.shape.iter().map(|&d| d as i64).collect(),
                bytes: t.bytes,
                host: run.host + (t.offset - run.offset),
                slot,
            });
            slot += size.div_ceil(SLOT_ALIGN) * SLOT_ALIGN;
            bytes += t.bytes;
        }
        BlockLayout { block, runs, pieces, host_len: host, slot_len: slot, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Activation, Arch, Block, BlockTensor, Family, Rope, RopeScaling, SpecialIds, TensorInfo};
    use crate::units::Bytes;

    fn checkpoint(tensors: Vec<(Role, usize, u64, u64)>) -> Checkpoint {
        let infos = tensors
            .iter()
            .map(|&(role, file, offset, n)| TensorInfo {
                name: role.suffix().into(),
                dtype: Dtype::BF16,
                shape: vec![n],
                file,
                offset,
                bytes: 2 * n,
            })
            .collect();
        Checkpoint {
            dir: "x".into(),
            name: "x".into(),
            hub_id: None,
            revision: None,
            arch: Arch {
                family: Family::Llama,
                hidden: 1,
                intermediate: 1,
                n_layers: 1,
                n_heads: 1,
                n_kv_heads: 1,
                head_dim: 1,
                vocab: 1,
                norm_eps: 1e-5,
                rope: Rope { theta: 1e4, scaling: RopeScaling::None },
                tied: true,
                act: Activation::Silu,
                windows: vec![None],
                max_positions: 1,
                special: SpecialIds::default(),
            },
            files: Vec::new(),
            tensors: infos,
            prefix: String::new(),
            embed: 0,
            final_norm: 0,
            head: None,
            blocks: vec![Block {
                index: 0,
                tensors: tensors.iter().enumerate().map(|(i, t)| BlockTensor { role: t.0, tensor: i }).collect(),
                bytes: Bytes(0),
            }],
            unused: Vec::new(),
            notes: Vec::new(),
            not_here: false,
            fingerprint: String::new(),
        }
    }

    #[test]
    fn neighbours_share_a_run_and_unaligned_starts_are_widened() {
        let c = checkpoint(vec![(Role::Q, 0, 8202, 1000), (Role::K, 0, 10_202, 100), (Role::V, 1, 4096, 2048)]);
        let l = BlockLayout::new(&c, 0, SlotKind::AsStored);
        assert_eq!(l.runs[0], Run { file: 0, offset: 8192, len: 4096, needed: 2210, host: 0 });
        assert_eq!(l.runs[1], Run { file: 1, offset: 4096, len: 4096, needed: 4096, host: 4096 });
        assert_eq!(l.pieces.iter().map(|p| p.host).collect::<Vec<_>>(), [10, 2010, 4096]);
        assert_eq!(l.pieces.iter().map(|p| p.slot).collect::<Vec<_>>(), [0, 2048, 2304]);
        assert_eq!((l.host_len, l.bytes), (8192, 6296));
    }

    #[test]
    fn f32_slots_double_what_bf16_takes() {
        let c = checkpoint(vec![(Role::Q, 0, 0, 1024)]);
        assert_eq!(BlockLayout::new(&c, 0, SlotKind::F32).slot_len, 4096);
        assert_eq!(BlockLayout::new(&c, 0, SlotKind::AsStored).slot_len, 2048);
    }

    #[test]
    fn far_tensors_of_a_file_are_separate_runs() {
        let c = checkpoint(vec![(Role::Q, 0, 0, 16), (Role::K, 0, 1 << 20, 16)]);
        let l = BlockLayout::new(&c, 0, SlotKind::AsStored);
        assert_eq!(l.runs.len(), 2);
        assert_eq!(l.runs[1].host, 4096);
    }
}
