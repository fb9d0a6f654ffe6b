//! Dropout whose mask is a pure function of (seed, step, micro-batch, block, target, element).
//!
//! Recompute replays it by asking again; nothing is stored, and CPU and GPU agree because the hash is integer
//! arithmetic (splitmix64, Steele et al. 2014) on libtorch's wrapping 64-bit integers.

use tch::{Device, Kind, Tensor};

/// Where in the run a mask belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskKey(u64);

impl MaskKey {
    /// The key of a mask.
    #[must_use]
    pub fn new(seed: u64, step: u64, micro_batch: usize, block: usize, target: usize) -> MaskKey {
        let mut key = mix(seed ^ 0x6272_6F70_6F75_7421);
        for part in [step, micro_batch as u64, block as u64, target as u64] {
            key = mix(key ^ part.wrapping_mul(GOLDEN));
        }
        MaskKey(key)
    }

    /// The key as the hash adds it.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// splitmix64's finaliser.
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A uniform number in [0, 1) of 24 bits: element `i` of stream `key`. The scalar twin of the mask's hash.
#[must_use]
pub fn uniform(key: u64, i: u64) -> f64 {
    (mix(key.wrapping_add(i.wrapping_mul(GOLDEN))) >> 40) as f64 / f64::from(1 << 24)
}

/// Inverted dropout: zeroes a share `p` of `x` and scales the rest by 1/(1−p). `x`'s first element is the mask's
/// element `first`: a part of a tensor gets its part of the mask.
pub fn dropout(x: &Tensor, p: f64, key: MaskKey, first: u64) -> Tensor {
    x * mask(&x.size(), p, key, first, x.kind(), x.device())
}

/// An element is kept if its hash's 24 bits are at least this.
#[must_use]
pub fn threshold(p: f64) -> i64 {
    (p * f64::from(1 << 24)).round() as i64
}

/// 0 or 1/(1−p) per element.
fn mask(shape: &[i64], p: f64, key: MaskKey, first: u64, kind: Kind, device: Device) -> Tensor {
    let n: i64 = shape.iter().product();
    let shr = |z: &Tensor, by: i64| {
        let logical = (1_i64 << (64 - by)) - 1;
        z.bitwise_right_shift_tensor_scalar(by).bitwise_and(logical)
    };
    let first = first as i64;
    let mut z = Tensor::arange_start(first, first + n, (Kind::Int64, device)) * (GOLDEN as i64) + (key.0 as i64);
    z = z.bitwise_xor_tensor(&shr(&z, 30)) * (0xBF58_476D_1CE4_E5B9_u64 as i64);
    z = z.bitwise_xor_tensor(&shr(&z, 27)) * (0x94D0_49BB_1331_11EB_u64 as i64);
    z = z.bitwise_xor_tensor(&shr(&z, 31));
    shr(&z, 40).ge(threshold(p)).to_kind(kind).reshape(shape) * (1.0 / (1.0 - p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tensor_mask_is_the_scalar_hash() {
        let _ = crate::device::shim::init();
        let key = MaskKey::new(42, 3, 1, 7, 2);
        let m = Vec::<f32>::try_from(mask(&[1000], 0.3, key, 0, Kind::Float, Device::Cpu)).unwrap();
        for (i, v) in m.iter().enumerate() {
            let keep = uniform(key.0, i as u64) >= (0.3 * f64::from(1 << 24)).round() / f64::from(1 << 24);
            assert_eq!(*v, if keep { 1.0 / 0.7 } else { 0.0 } as f32, "element {i}");
        }
        let rest = mask(&[10, 30], 0.3, key, 700, Kind::Float, Device::Cpu).view([-1]);
        assert_eq!(Vec::<f32>::try_from(rest).unwrap(), m[700..], "a part of the mask");
        let kept = m.iter().filter(|v| **v > 0.0).count();
        assert!((620..780).contains(&kept), "{kept} of 1000 kept at p = 0.3");
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let base = MaskKey::new(42, 3, 1, 7, 2);
        for other in [
            MaskKey::new(43, 3, 1, 7, 2),
            MaskKey::new(42, 4, 1, 7, 2),
            MaskKey::new(42, 3, 0, 7, 2),
            MaskKey::new(42, 3, 1, 8, 2),
            MaskKey::new(42, 3, 1, 7, 3),
        ] {
            assert_ne!(base, other);
        }
    }
}
