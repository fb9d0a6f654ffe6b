//! CUDA is asked how much memory a card has, where NVML doesn't say.

use crate::units::Bytes;

/// A card's memory by CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// It is the host's memory.
    pub shared: bool,
    /// All of it.
    pub total: Bytes,
    /// Free now.
    pub free: Bytes,
}

/// Memory of the card with `uuid` (of the only card where that is unknown); `None` where CUDA doesn't say either. Opens a
/// context for a moment: only asked where NVML fails.
#[cfg(feature = "cuda")]
#[must_use]
pub fn memory(uuid: Option<&str>) -> Option<Told> {
    use cudarc::driver::{CudaContext, sys::CUdevice_attribute};

    if !super::cuda::driver_present() {
        return None;
    }
    let n = usize::try_from(CudaContext::device_count().ok()?).ok()?;
    let context = (0..n).find_map(|i| {
        let context = CudaContext::new(i).ok()?;
        let hex: String = context.uuid().ok()?.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect();
        let same = uuid.map_or(n == 1, |u| u.trim_start_matches("GPU-").replace('-', "") == hex);
        same.then_some(context)
    })?;
    let (free, total) = context.mem_get_info().ok()?;
    let shared = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED).ok()? != 0;
    Some(Told { shared, total: Bytes(total as u64), free: Bytes(free as u64) })
}

/// This build can't ask.
#[cfg(not(feature = "cuda"))]
#[must_use]
pub fn memory(_: Option<&str>) -> Option<Told> {
    None
}
