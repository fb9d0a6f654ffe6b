//! The parts that stay: final norm and head on the device, embedding rows where they are cheapest to gather.

use super::weights::kind_of;
use crate::checkpoint::{Checkpoint, TensorInfo};
use crate::error::{Error, Result};
use crate::store::{HostMemory, Reader};
use tch::{Device, Kind, Tensor};

/// Rows of the embedding.
enum Embedding {
    /// Tied, and the head is on the device: it is the table.
    Head,
    /// The stored rows in host memory; a step gathers `tokens × hidden` of them.
    Host { rows: HostMemory, kind: Kind, hidden: i64, vocab: i64 },
}

/// Final norm, head and embedding.
pub struct Residents {
    /// `[H]`
    pub norm: Tensor,
    /// `[V, H]`; `None` when it streams.
    pub head: Option<Tensor>,
    embedding: Embedding,
    vocab: i64,
    device: Device,
    kind: Kind,
}

impl Residents {
    /// Loads them for computing in `kind` on `device`; the head only if it stays there (`with_head`).
    /// `progress(done, total)` in bytes.
    ///
    /// # Errors
    /// A read fails, or the device is out of memory.
    pub fn load(
        checkpoint: &Checkpoint,
        reader: &Reader,
        kind: Kind,
        device: Device,
        with_head: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Residents> {
        let head_info = checkpoint.head_tensor();
        let table = &checkpoint.tensors[checkpoint.embed];
        // A tied table is gathered from the head, unless that isn't on the device.
        let on_host = checkpoint.head.is_some() || !with_head;
        let total = if with_head { head_info.bytes } else { 0 } + if on_host { table.bytes } else { 0 };
        let mut done = 0;
        let norm = to_device(&checkpoint.tensors[checkpoint.final_norm], reader, kind, device, &mut |_| {})?;
        let mut head = None;
        if with_head {
            head = Some(to_device(head_info, reader, kind, device, &mut |n| {
                done += n;
                progress(done, total);
            })?);
        }
        let embedding = if on_host {
            let rows = HostMemory::new(table.bytes)?;
            let mut at = 0;
            reader.read_range(table.file, table.offset, table.bytes, &mut |bytes| {
                // SAFETY: `at + bytes.len()` never passes `table.bytes`, the mapping's length.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), rows.at(at), bytes.len()) };
                at += bytes.len() as u64;
                done += bytes.len() as u64;
                progress(done, total);
                Ok(())
            })?;
            let (vocab, hidden) = (table.shape[0] as i64, table.shape[1] as i64);
            Embedding::Host { rows, kind: kind_of(&table.dtype), hidden, vocab }
        } else {
            Embedding::Head
        };
        Ok(Residents { norm, head, embedding, vocab: table.shape[0] as i64, device, kind })
    }

    /// Embedding rows of `ids` `[B, S]` (Int64, on the host) → `[B, S, H]` on the head's device.
    ///
    /// # Errors
    /// An id outside the table.
    pub fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let vocab = self.vocab;
        let (low, high) = (ids.min().int64_value(&[]), ids.max().int64_value(&[]));
        if low < 0 || high >= vocab {
            return Err(Error::data(format!(
                "token id {} is outside the embedding of {vocab} rows",
                if low < 0 { low } else { high }
            )));
        }
        Ok(match &self.embedding {
            Embedding::Head => {
                let head = self.head.as_ref().expect("a table without rows of its own has the head's");
                Tensor::embedding(head, &ids.to_device(self.device), -1, false, false)
            }
            Embedding::Host { rows, kind, hidden, vocab } => {
                // SAFETY: the mapping holds `vocab * hidden` elements and outlives the gather below.
                let table = unsafe { crate::device::shim::view(rows.at(0), &[*vocab, *hidden], *kind, Device::Cpu) };
                Tensor::embedding(&table, ids, -1, false, false).to_device(self.device).to_kind(self.kind)
            }
        })
    }
}

/// Reads a whole tensor to `device` as `kind`, in pieces, so that host memory holds one piece at a time.
fn to_device(
    info: &TensorInfo,
    reader: &Reader,
    kind: Kind,
    device: Device,
    progress: &mut dyn FnMut(u64),
) -> Result<Tensor> {
    let stored = kind_of(&info.dtype);
    let shape: Vec<i64> = info.shape.iter().map(|&d| d as i64).collect();
    let n: i64 = shape.iter().product();
    let flat = Tensor::f_empty([n], (kind, device))?;
    let size =
        info.dtype.size().ok_or_else(|| Error::checkpoint(format!("'{}' has a type without a size", info.name)))?;
    let mut at = 0;
    // An element may straddle two pieces when the tensor starts at an odd offset.
    let mut rest: Vec<u8> = Vec::new();
    reader.read_range(info.file, info.offset, info.bytes, &mut |bytes| {
        progress(bytes.len() as u64);
        rest.extend_from_slice(bytes);
        let whole = rest.len() / size as usize;
        let piece = Tensor::f_from_data_size(&rest[..whole * size as usize], &[whole as i64], stored)?;
        flat.narrow(0, at, whole as i64).f_copy_(&piece)?;
        at += whole as i64;
        rest.drain(..whole * size as usize);
        Ok(())
    })?;
    Ok(flat.view(shape.as_slice()))
}
