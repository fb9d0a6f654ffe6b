//! ggml blocks to `f32` to `f16`, row by row.
//!
//! Formulas of ggml's `dequantize_row_*`: `Q4_0` d·(q−8), `Q4_1` d·q+m, `Q8_0` d·q; in a 4-bit block the low nibbles are
//! values 0–15 and the high nibbles 16–31. Multiplied and added in two roundings, as numpy and ggml's C do.

use super::reader::Quant;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Decodes `bytes`, whole blocks of `kind`, into `out`.
pub fn to_f32(kind: Quant, bytes: &[u8], out: &mut Vec<f32>) {
    out.clear();
    let (_, block_bytes) = kind.block();
    let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
    for b in bytes.chunks_exact(usize::try_from(block_bytes).expect("a block has at most 34 bytes")) {
        match kind {
            Quant::F32 => out.push(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Quant::F16 => out.push(half(b)),
            Quant::Bf16 => out.push(bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            Quant::Q4_0 => {
                let d = half(b);
                nibbles(&b[2..], out, |q| d * (f32::from(q) - 8.0));
            }
            Quant::Q4_1 => {
                let (d, m) = (half(b), half(&b[2..]));
                nibbles(&b[4..], out, |q| d * f32::from(q) + m);
            }
            Quant::Q8_0 => {
                let d = half(b);
                out.extend(b[2..].iter().map(|&q| d * f32::from(q.cast_signed())));
            }
        }
    }
}

/// Rounds `values` to half (nearest even) as little-endian bytes.
///
/// # Errors
/// The place of the first value that is not finite or that half can't hold.
pub fn to_f16(values: &[f32], scratch: &mut Vec<f16>, out: &mut Vec<u8>) -> Result<(), usize> {
    scratch.resize(values.len(), f16::ZERO);
    scratch.convert_from_f32_slice(values);
    if let Some(bad) = scratch.iter().position(|h| !h.is_finite()) {
        return Err(bad);
    }
    out.extend(scratch.iter().flat_map(|h| h.to_le_bytes()));
    Ok(())
}

fn nibbles(packed: &[u8], out: &mut Vec<f32>, value: impl Fn(u8) -> f32) {
    out.extend(packed.iter().map(|b| value(b & 15)));
    out.extend(packed.iter().map(|b| value(b >> 4)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(kind: Quant, bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::new();
        to_f32(kind, bytes, &mut out);
        out
    }

    #[test]
    fn floats_decode_to_themselves() {
        assert_eq!(decoded(Quant::F32, &[0, 0, 128, 63, 0, 0, 0, 192]), [1.0, -2.0]);
        assert_eq!(decoded(Quant::F16, &[0x00, 0x3c, 0x01, 0x00]), [1.0, 5.960_464_5e-8]);
        assert_eq!(decoded(Quant::Bf16, &[0x80, 0x3f, 0x49, 0xc0]), [1.0, -3.140_625]);
    }

    #[test]
    fn blocks_of_four_bits_put_low_nibbles_first() {
        // d = 0.5; byte j holds j in its low and 15 - j in its high nibble.
        let packed: Vec<u8> = (0..16).map(|j| j | (15 - j) << 4).collect();
        let q4_0 = decoded(Quant::Q4_0, &[&[0x00, 0x38], packed.as_slice()].concat());
        assert_eq!(q4_0.len(), 32);
        assert_eq!((q4_0[0], q4_0[1], q4_0[15]), (-4.0, -3.5, 3.5));
        assert_eq!((q4_0[16], q4_0[17], q4_0[31]), (3.5, 3.0, -4.0));
        // d = 0.5, m = -2.
        let q4_1 = decoded(Quant::Q4_1, &[&[0x00, 0x38, 0x00, 0xc0], packed.as_slice()].concat());
        assert_eq!((q4_1[0], q4_1[1], q4_1[15]), (-2.0, -1.5, 5.5));
        assert_eq!((q4_1[16], q4_1[31]), (5.5, -2.0));
    }

    #[test]
    fn blocks_of_eight_bits_are_signed() {
        let mut block = vec![0x00, 0x34];
        block.extend((0..32u8).map(|j| if j == 0 { 0x80 } else { j }));
        let out = decoded(Quant::Q8_0, &block);
        assert_eq!((out.len(), out[0], out[1], out[31]), (32, -32.0, 0.25, 7.75));
    }

    #[test]
    fn rounding_to_half_is_to_nearest_even_and_overflow_is_refused() {
        let (mut scratch, mut out) = (Vec::new(), Vec::new());
        // 1 + 2^-11 lies half-way between two halves; so does 1 + 3·2^-11.
        to_f16(&[1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11), 65_504.0], &mut scratch, &mut out).unwrap();
        assert_eq!(out, [0x00, 0x3c, 0x02, 0x3c, 0xff, 0x7b]);
        assert_eq!(to_f16(&[1.0, 1e6], &mut scratch, &mut out), Err(1));
        assert_eq!(to_f16(&[f32::NAN], &mut scratch, &mut out), Err(0));
    }
}
