//! Why steps were skipped, where nothing was learned: a base that holds values that are no numbers is named as such.

use crate::checkpoint::{Checkpoint, Dtype, TensorInfo};
use crate::error::{Error, Result};
use crate::store::Reader;

/// What to do when loss or gradient is not finite although the adapter changes nothing yet: names the tensor of the base
/// that is at fault, if one is. `told` hears how many bytes have been looked at.
pub(super) fn fault_of_base(
    checkpoint: &Checkpoint,
    reader: &Reader,
    what: &str,
    told: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<Error> {
    let (total, mut done) = (checkpoint.total_bytes().0, 0);
    for tensor in &checkpoint.tensors {
        let mut look = |n| {
            done += n;
            told(done, total)
        };
        if !finite(tensor, reader, &mut look)? {
            let file = checkpoint.files[tensor.file].path.display();
            return Ok(Error::checkpoint(format!(
                "{what}: '{}' in '{file}' holds values that are not finite",
                tensor.name
            ))
            .next("fetch that file again, or use another copy of the model"));
        }
    }
    Ok(Error::run(format!("{what}, although every weight of the base is finite"))
        .next("lower lora.alpha, or check the data near these rows"))
}

/// Whether every value of `tensor` is a finite number. Types without infinities are.
fn finite(tensor: &TensorInfo, reader: &Reader, look: &mut dyn FnMut(u64) -> Result<()>) -> Result<bool> {
    let Some(bad) = not_finite(&tensor.dtype) else { return Ok(true) };
    let size = tensor.dtype.size().unwrap_or(1) as usize;
    let (mut fine, mut rest) = (true, Vec::new());
    reader.read_range(tensor.file, tensor.offset, tensor.bytes, &mut |bytes| {
        // An element may straddle two pieces when the tensor starts at an odd offset.
        rest.extend_from_slice(bytes);
        let whole = rest.len() / size * size;
        fine &= !rest[..whole].chunks_exact(size).any(bad);
        rest.drain(..whole);
        look(bytes.len() as u64)
    })?;
    Ok(fine)
}

/// Whether the little-endian bytes of a value of this type are those of an infinity or of no number.
fn not_finite(dtype: &Dtype) -> Option<fn(&[u8]) -> bool> {
    match dtype {
        Dtype::F32 => Some(|b| b[3] & 0x7f == 0x7f && b[2] & 0x80 != 0),
        Dtype::BF16 => Some(|b| b[1] & 0x7f == 0x7f && b[0] & 0x80 != 0),
        Dtype::F16 => Some(|b| b[1] & 0x7c == 0x7c),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_fo_74a_values_that_are_not_finite_are_known_by_their_bytes() {
        let f32_bad = not_finite(&Dtype::F32).unwrap();
        for x in [0.0, -1.5, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(f32_bad(&x.to_le_bytes()), !x.is_finite(), "{x}");
            // BF16 is the upper half of an F32.
            assert_eq!(not_finite(&Dtype::BF16).unwrap()(&x.to_le_bytes()[2..]), !x.is_finite(), "{x}");
        }
        let f16_bad = not_finite(&Dtype::F16).unwrap();
        for (bits, bad) in [(0x7bff_u16, false), (0x7c00, true), (0xfc00, true), (0x7e00, true), (0x3c00, false)] {
            assert_eq!(f16_bad(&bits.to_le_bytes()), bad, "{bits:x}");
        }
    }
}
