//! How the tensors of a segment lie in their files, in host memory and in a device slot.
//!
//! A segment is a part of a block, or some rows of the head. safetensors promises no alignment (tensors were seen at
//! offset 10 mod 64), and `O_DIRECT` wants aligned offsets. So a chunk is the aligned superset of a contiguous range,
//! and each tensor is copied from there to a 256-byte-aligned place in the slot.

use crate::checkpoint::{Checkpoint, Dtype, Part, Role, TensorInfo};

/// Alignment of `O_DIRECT` offsets, lengths and addresses. 4096 suits every drive; 512 would suit most.
pub const SECTOR: u64 = 4096;
/// Alignment of every tensor inside a slot, as libtorch's own allocations (kernels may pick by alignment).
pub const SLOT_ALIGN: u64 = 256;
/// Tensors nearer than this in a file are read together: a short gap is cheaper than another request.
const GAP: u64 = 64 << 10;

/// An aligned range of a file that is read at once, and where what it holds belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index into the checkpoint's files.
    pub file: usize,
    /// File offset, a multiple of [`SECTOR`].
    pub offset: u64,
    /// Length, a multiple of [`SECTOR`]; may reach past the end of the file.
    pub len: u64,
    /// Place in a host buffer that holds the whole segment, a multiple of [`SECTOR`].
    pub host: u64,
    /// What of it goes where.
    pub spans: Vec<Span>,
}

/// Stored bytes of one tensor, whole elements, inside a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index into [`SegmentLayout::pieces`].
    pub piece: usize,
    /// Place in the chunk; any alignment.
    pub host: u64,
    /// First byte within the tensor as stored.
    pub at: u64,
    /// Stored bytes.
    pub bytes: u64,
}

/// One tensor of a segment, or some rows of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it does in a block; `None` for rows of the head.
    pub role: Option<Role>,
    /// Stored element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<i64>,
    /// Stored bytes.
    pub bytes: u64,
    /// Place in the slot, a multiple of [`SLOT_ALIGN`].
    pub slot: u64,
}

/// How one segment is read, buffered and placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    /// What to read, in file order.
    pub chunks: Vec<Chunk>,
    /// Its tensors.
    pub pieces: Vec<Piece>,
    /// Length of a host buffer that holds all chunks.
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

impl SlotKind {
    /// Bytes of an element stored as `size` bytes.
    #[must_use]
    pub fn element(self, size: u64) -> u64 {
        match self {
            SlotKind::AsStored => size,
            SlotKind::F32 => 4,
        }
    }
}

/// Rows of a tensor that a segment holds.
struct Source {
    role: Option<Role>,
    file: usize,
    offset: u64,
    dtype: Dtype,
    shape: Vec<i64>,
    size: u64,
}

impl Source {
    fn rows(role: Option<Role>, t: &TensorInfo, rows: Option<(u64, u64)>) -> Source {
        let size = t.bytes / t.elements().max(1);
        let mut shape: Vec<i64> = t.shape.iter().map(|&d| d as i64).collect();
        let row = t.elements() / t.shape[0].max(1) * size;
        let mut offset = t.offset;
        if let Some((first, n)) = rows {
            shape[0] = n as i64;
            offset += first * row;
        }
        Source { role, file: t.file, offset, dtype: t.dtype.clone(), shape, size }
    }
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<i64>() as u64 * self.size
    }
}

impl SegmentLayout {
    /// Lays out `part` of block `block`; no chunk is longer than `limit` bytes (and two sectors).
    #[must_use]
    pub fn part(c: &Checkpoint, block: usize, part: Part, kind: SlotKind, limit: u64) -> SegmentLayout {
        let tensors = c.blocks[block].tensors.iter().filter(|t| t.role.part() == part);
        let sources = tensors.map(|t| Source::rows(Some(t.role), &c.tensors[t.tensor], None)).collect();
        SegmentLayout::new(sources, kind, limit)
    }

    /// Lays out `rows` rows of the head (the embedding's when tied) from `first` on.
    #[must_use]
    pub fn head(c: &Checkpoint, first: u64, rows: u64, kind: SlotKind, limit: u64) -> SegmentLayout {
        SegmentLayout::new(vec![Source::rows(None, c.head_tensor(), Some((first, rows)))], kind, limit)
    }

    fn new(mut sources: Vec<Source>, kind: SlotKind, limit: u64) -> SegmentLayout {
        assert!(limit >= 4 * SECTOR, "a chunk holds at least some elements of any type");
        sources.sort_by_key(|s| (s.file, s.offset));
        let mut l = SegmentLayout { chunks: Vec::new(), pieces: Vec::new(), host_len: 0, slot_len: 0, bytes: 0 };
        for (piece, s) in sources.iter().enumerate() {
            let bytes = s.bytes();
            l.pieces.push(Piece {
                role: s.role,
                dtype: s.dtype.clone(),
                shape: s.shape.clone(),
                bytes,
                slot: l.slot_len,
            });
            l.slot_len += (bytes / s.size * kind.element(s.size)).div_ceil(SLOT_ALIGN) * SLOT_ALIGN;
            l.bytes += bytes;
            let mut at = 0;
            while at < bytes {
                let from = s.offset + at;
                // Room left in the open chunk, if this tensor joins it.
                let open = l.chunks.last().filter(|c| c.file == s.file).map(|c| (c.offset, c.offset + c.len));
                let room = match open {
                    Some((start, end)) if from <= end + GAP => (start + limit).saturating_sub(from) / s.size * s.size,
                    _ => 0,
                };
                if room == 0 {
                    l.close();
                    let offset = from / SECTOR * SECTOR;
                    l.chunks.push(Chunk { file: s.file, offset, len: 0, host: l.host_len, spans: Vec::new() });
                    continue;
                }
                let n = room.min(bytes - at);
                let chunk = l.chunks.last_mut().expect("pushed above");
                chunk.spans.push(Span { piece, host: from - chunk.offset, at, bytes: n });
                chunk.len = (from + n - chunk.offset).div_ceil(SECTOR) * SECTOR;
                at += n;
            }
        }
        l.close();
        l
    }

    /// Counts the last chunk's bytes once it is complete.
    fn close(&mut self) {
        self.host_len = self.chunks.last().map_or(0, |c| c.host + c.len);
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
                experts: None,
            },
            files: Vec::new(),
            tensors: infos,
            prefix: String::new(),
            class_prefix: "model.".into(),
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
            plan_only: None,
            fingerprint: String::new(),
        }
    }

    fn attention(c: &Checkpoint, limit: u64) -> SegmentLayout {
        SegmentLayout::part(c, 0, Part::Attention, SlotKind::AsStored, limit)
    }

    #[test]
    fn neighbours_share_a_chunk_and_unaligned_starts_are_widened() {
        let c = checkpoint(vec![(Role::Q, 0, 8202, 1000), (Role::K, 0, 10_202, 100), (Role::V, 1, 4096, 2048)]);
        let l = attention(&c, u64::MAX / 2);
        assert_eq!((l.chunks[0].offset, l.chunks[0].len, l.chunks[0].host), (8192, 4096, 0));
        assert_eq!((l.chunks[1].offset, l.chunks[1].len, l.chunks[1].host), (4096, 4096, 4096));
        let spans: Vec<_> = l.chunks.iter().flat_map(|c| &c.spans).map(|s| (s.piece, s.host, s.at, s.bytes)).collect();
        assert_eq!(spans, [(0, 10, 0, 2000), (1, 2010, 0, 200), (2, 0, 0, 4096)]);
        assert_eq!(l.pieces.iter().map(|p| p.slot).collect::<Vec<_>>(), [0, 2048, 2304]);
        assert_eq!((l.host_len, l.bytes), (8192, 6296));
    }

    #[test]
    fn chunks_cover_every_byte_once_and_never_cut_an_element() {
        for (offset, limit) in [(10, 16_384), (8, 20_001), (4095, 40_960), (0, 1 << 20)] {
            let c = checkpoint(vec![(Role::Q, 0, offset, 50_000), (Role::K, 0, offset + 100_000, 3)]);
            let l = attention(&c, limit);
            let mut seen = [0, 0];
            for chunk in &l.chunks {
                assert!(chunk.offset % SECTOR == 0 && chunk.len % SECTOR == 0 && chunk.len <= limit + SECTOR);
                for s in &chunk.spans {
                    assert_eq!((s.at, s.bytes % 2), (seen[s.piece], 0));
                    let tensor = &c.tensors[s.piece];
                    assert_eq!(chunk.offset + s.host, tensor.offset + s.at, "a span is where its bytes are");
                    assert!(s.host + s.bytes <= chunk.len);
                    seen[s.piece] += s.bytes;
                }
            }
            assert_eq!(seen, [100_000, 6]);
            assert_eq!(l.host_len, l.chunks.iter().map(|c| c.len).sum::<u64>());
        }
    }

    #[test]
    fn f32_slots_double_what_bf16_takes() {
        let c = checkpoint(vec![(Role::Q, 0, 0, 1024)]);
        assert_eq!(SegmentLayout::part(&c, 0, Part::Attention, SlotKind::F32, 1 << 20).slot_len, 4096);
        assert_eq!(attention(&c, 1 << 20).slot_len, 2048);
    }

    #[test]
    fn far_tensors_of_a_file_are_separate_chunks() {
        let c = checkpoint(vec![(Role::Q, 0, 0, 16), (Role::K, 0, 1 << 20, 16)]);
        let l = attention(&c, 1 << 30);
        assert_eq!(l.chunks.len(), 2);
        assert_eq!(l.chunks[1].host, 4096);
    }

    #[test]
    fn rows_of_the_head_start_where_they_lie() {
        let mut c = checkpoint(vec![(Role::Q, 0, 0, 16)]);
        c.tensors[0].shape = vec![8, 2];
        let l = SegmentLayout::head(&c, 3, 4, SlotKind::AsStored, 1 << 20);
        assert_eq!((l.chunks[0].spans[0].host, l.bytes, &l.pieces[0].shape[..]), (12, 16, &[4, 2][..]));
    }
}
