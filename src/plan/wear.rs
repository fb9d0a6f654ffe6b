//! What a run costs the drive. It scales with optimizer steps, never with micro-batches.

use super::types::Wear;
use crate::units::Bytes;

/// Bytes written per parameter and step in full finetuning: fp32 moments and a split fp32 master whose upper half is
/// the bf16 weight (8 + 2 + 2).
pub const FULL_WRITTEN: u64 = 12;
/// Bytes read per parameter and step: the weight forward, weight and state backward.
pub const FULL_READ: u64 = 14;

/// Wear of a step that writes `written`, on a drive rated for `tbw` bytes.
pub fn wear(written: Bytes, tbw: Option<Bytes>) -> Wear {
    let steps = tbw.and_then(|t| t.0.checked_div(written.0));
    Wear { written_per_step: written, steps_to_tbw: steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_pl_13_wear_of_an_8b_model() {
        let params = 8_030_261_248u64;
        let tbw = Some(Bytes(600_000_000_000_000));
        let w = wear(Bytes(params * FULL_WRITTEN), tbw);
        assert_eq!((w.written_per_step.to_string().as_str(), w.steps_to_tbw), ("96.36 GB", Some(6226)));
        // A separate bf16 copy beside the master would write 14 bytes.
        let w = wear(Bytes(params * 14), tbw);
        assert_eq!((w.written_per_step.to_string().as_str(), w.steps_to_tbw), ("112.42 GB", Some(5336)));
        // LoRA writes nothing; an unknown rating gives bytes and no count.
        assert_eq!(wear(Bytes::ZERO, tbw).steps_to_tbw, None);
        assert_eq!(wear(Bytes(5), None), Wear { written_per_step: Bytes(5), steps_to_tbw: None });
    }
}
