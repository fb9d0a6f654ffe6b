//! The parts that stay: final norm and head on the device, embedding rows where they are cheapest to gather.

use super::kernels::{Kernels, NormUse};
use super::weights::kind_of;
use crate::checkpoint::{Checkpoint, TensorInfo};
#[cfg(feature = "cuda")]
use crate::device::cuda::{Gpu, Mark, Queue};
#[cfg(feature = "cuda")]
use crate::engine::{Control, Stop};
use crate::error::{Error, Result};
use crate::store::{HostMemory, Reader};
#[cfg(feature = "cuda")]
use std::sync::Arc;
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
    /// Weight of the final norm, `[H]`, and how it norms.
    norm: (Tensor, NormUse),
    /// `[V, H]`; `None` when it streams.
    pub head: Option<Tensor>,
    /// Logits are cap·tanh(product / cap).
    pub cap: Option<f64>,
    /// Factor on the embedding.
    scale: Option<f64>,
    embedding: Embedding,
    vocab: i64,
    device: Device,
    kind: Kind,
    #[cfg(feature = "cuda")]
    staging: Option<Staging>,
}

/// Pinned memory that gathered rows pass through, so that their copy is queued like a kernel and nothing waits.
#[cfg(feature = "cuda")]
struct Staging {
    gpu: Arc<Gpu>,
    control: Control,
    /// Two in turn: one is filled while the copy out of the other may still be queued.
    buffers: [Option<HostMemory>; 2],
    copied: [Option<Mark>; 2],
    turn: usize,
}

impl Residents {
    /// Loads them for computing in `kind` on `device`; the head only if it stays there (`with_head`).
    /// `progress(done, total)` in bytes; its error ends the loading.
    ///
    /// # Errors
    /// A read fails, or the device is out of memory; what `progress` says.
    pub fn load(
        checkpoint: &Checkpoint,
        reader: &Reader,
        kind: Kind,
        device: Device,
        with_head: bool,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Residents> {
        let head_info = checkpoint.head_tensor();
        let table = &checkpoint.tensors[checkpoint.embed];
        // A tied table is gathered from the head, unless that isn't on the device.
        let on_host = checkpoint.head.is_some() || !with_head;
        let total = if with_head { head_info.bytes } else { 0 } + if on_host { table.bytes } else { 0 };
        let mut done = 0;
        let norm = to_device(&checkpoint.tensors[checkpoint.final_norm], reader, kind, device, &mut |_| Ok(()))?;
        let mut head = None;
        if with_head {
            head = Some(to_device(head_info, reader, kind, device, &mut |n| {
                done += n;
                progress(done, total)
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
                progress(done, total)
            })?;
            let (vocab, hidden) = (table.shape[0] as i64, table.shape[1] as i64);
            Embedding::Host { rows, kind: kind_of(&table.dtype), hidden, vocab }
        } else {
            Embedding::Head
        };
        Ok(Residents {
            norm: (norm, NormUse::rms(checkpoint.arch.norm_eps)),
            head,
            cap: None,
            scale: None,
            embedding,
            vocab: table.shape[0] as i64,
            device,
            kind,
            #[cfg(feature = "cuda")]
            staging: None,
        })
    }

    /// Lets embedded rows reach `gpu` through pinned memory, unless `control` drops the step that first needs it.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn with_gpu(mut self, gpu: Arc<Gpu>, control: Control) -> Residents {
        self.staging = Some(Staging { gpu, control, buffers: [None, None], copied: [None, None], turn: 0 });
        self
    }

    /// The final norm of rows `x` `[T, H]`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn normed(&self, kernels: &Kernels, x: &Tensor) -> Result<Tensor> {
        kernels.rms_norm(x, &self.norm.0, self.norm.1)
    }

    /// Turns `dy`, the gradient of [`Residents::normed`]'s output, into that of `x`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn normed_backward(&self, kernels: &Kernels, x: &Tensor, dy: &Tensor) -> Result<()> {
        kernels.rms_norm_backward(x, &self.norm.0, self.norm.1, dy, None)
    }

    /// Embedding rows of `ids` `[B, S]` (Int64, on the host), times the model's factor → `[B, S, H]` on the device.
    ///
    /// # Errors
    /// An id outside the table, or memory can't be had or pinned; the step is to be dropped.
    pub fn embed(&mut self, ids: &Tensor) -> Result<Tensor> {
        let rows = self.rows(ids)?;
        Ok(self.scale.map_or(rows.shallow_clone(), |by| scaled(&rows, by)))
    }

    fn rows(&mut self, ids: &Tensor) -> Result<Tensor> {
        let (low, high) = (ids.min().int64_value(&[]), ids.max().int64_value(&[]));
        if low < 0 || high >= self.vocab {
            return Err(Error::data(format!(
                "token id {} is outside the embedding of {} rows",
                if low < 0 { low } else { high },
                self.vocab
            )));
        }
        let Embedding::Host { rows, kind, hidden, vocab } = &self.embedding else {
            let head = self.head.as_ref().expect("a table without rows of its own has the head's");
            return Ok(Tensor::f_embedding(head, &ids.to_device(self.device), -1, false, false)?);
        };
        // SAFETY: the mapping holds `vocab * hidden` elements and outlives the gather below.
        let table = unsafe { crate::device::shim::view(rows.at(0), &[*vocab, *hidden], *kind, Device::Cpu) };
        #[cfg(feature = "cuda")]
        if let Some(staging) = &mut self.staging {
            return Ok(staging.gather(&table, ids)?.to_kind(self.kind));
        }
        Ok(Tensor::f_embedding(&table, ids, -1, false, false)?.f_to_device(self.device)?.to_kind(self.kind))
    }
}

/// `x` times `by`, which is rounded to the type of `x` first, as transformers does.
fn scaled(x: &Tensor, by: f64) -> Tensor {
    let by = Tensor::from(by).to_kind(x.kind()).double_value(&[]);
    x * by
}

#[cfg(feature = "cuda")]
impl Staging {
    /// Rows `ids` `[B, S]` of `table` `[V, H]` → `[B, S, H]` on the GPU, as stored.
    fn gather(&mut self, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (kind, hidden) = (table.kind(), table.size()[1]);
        let bytes = ids.numel() * hidden as usize * kind.elt_size_in_bytes();
        self.turn ^= 1;
        if let Some(copied) = self.copied[self.turn].take() {
            copied.sync()?;
        }
        let buffer = match &mut self.buffers[self.turn] {
            Some(b) if b.len() >= bytes as u64 => b,
            other => {
                *other = None;
                let mut memory = HostMemory::new(bytes as u64)?;
                memory.pin(&mut self.gpu, &|| self.control.check(Stop::DropStep))?;
                other.insert(memory)
            }
        };
        let shape = [ids.numel() as i64, hidden];
        // SAFETY: the buffer holds `bytes`, and its last copy out is done.
        let rows = unsafe { crate::device::shim::view(buffer.at(0), &shape, kind, Device::Cpu) };
        let _ = table.f_index_select_out(&rows, 0, &ids.view([-1]))?;
        let size = ids.size();
        let out = Tensor::f_empty([size[0], size[1], hidden], (kind, Device::Cuda(self.gpu.index)))?;
        self.gpu.bind()?;
        // SAFETY: the buffer is not written before `copied`; `out` is of that size, and its readers are queued later.
        unsafe { self.gpu.copy_h2d(Queue::Compute, out.data_ptr() as u64, buffer.at(0), bytes)? };
        self.copied[self.turn] = Some(self.gpu.mark_untimed(Queue::Compute)?);
        Ok(out)
    }
}

#[cfg(feature = "cuda")]
impl Drop for Staging {
    fn drop(&mut self) {
        self.copied.iter().flatten().for_each(|m| {
            let _ = m.sync();
        });
    }
}

/// Reads a whole tensor to `device` as `kind`, in pieces, so that host memory holds one piece at a time.
fn to_device(
    info: &TensorInfo,
    reader: &Reader,
    kind: Kind,
    device: Device,
    progress: &mut dyn FnMut(u64) -> Result<()>,
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
        progress(bytes.len() as u64)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_on_the_embedding_is_rounded_to_its_type() {
        let _ = crate::device::shim::init();
        let ones = |kind| Tensor::ones([2, 3], (kind, Device::Cpu));
        let by = 3072_f64.sqrt();
        assert_eq!(scaled(&ones(Kind::BFloat16), by).double_value(&[1, 2]), 55.5);
        let x = scaled(&ones(Kind::Float), by);
        assert_eq!((x.double_value(&[0, 0]), x.kind()), (f64::from(by as f32), Kind::Float));
    }
}
