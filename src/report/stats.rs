//! Order statistics over small samples; values that are not finite don't count.

use super::types::Spread;

/// The finite values, sorted.
pub(crate) fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut out: Vec<f64> = values.into_iter().filter(|x| x.is_finite()).collect();
    out.sort_by(f64::total_cmp);
    out
}

/// Median of sorted values: the middle one, or the mean of the middle two.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    let upper = *sorted.get(n / 2)?;
    // Halves first: the sum of two huge values would not be finite.
    Some(if n % 2 == 1 { upper } else { sorted[n / 2 - 1] / 2.0 + upper / 2.0 })
}

/// The value that `share` (0..1) of the sorted values don't exceed, by nearest rank.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

/// Median of integers, the lower of the middle two: a byte count that was really measured.
pub(super) fn median_u64(values: impl IntoIterator<Item = u64>) -> u64 {
    let mut all: Vec<u64> = values.into_iter().collect();
    all.sort_unstable();
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Least, median and most; `None` without a finite value.
pub(super) fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let all = sorted(values);
    Some(Spread { min: *all.first()?, median: median(&all)?, max: *all.last()?, n: all.len() })
}

/// `x` unless it isn't finite.
pub(super) fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_of_known_samples() {
        let v = sorted([3.0, 1.0, f64::NAN, 2.0, f64::INFINITY, 4.0]);
        assert_eq!(v, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(median(&v), Some(2.5));
        assert_eq!(percentile(&v, 0.95), Some(4.0));
        let hundred = sorted((1..=100).map(f64::from));
        assert_eq!(percentile(&hundred, 0.95), Some(95.0));
        assert_eq!((median(&[]), percentile(&[], 0.95), spread([f64::NAN])), (None, None, None));
        assert_eq!(median_u64([4, 1, 3, 2]), 2);
        assert_eq!(median_u64([]), 0);
        assert_eq!(median(&[f64::MAX, f64::MAX]), Some(f64::MAX));
    }
}
