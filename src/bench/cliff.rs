//! Finds where a drive's fast cache is full: the rate of writing falls, and stays down.

/// Share of the first second's rate below which writing counts as fallen.
const FALLEN: f64 = 0.6;
/// Seconds that it must stay down: drives pause now and then.
const STAYS: f64 = 2.0;

/// Where the fast cache ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cliff {
    /// Bytes written before it.
    pub bytes: u64,
    /// Bytes per second before it.
    pub before: f64,
    /// Bytes per second from there on.
    pub after: f64,
}

/// Looks for it in `ticks`, rates of equal times of `tick` seconds, in order. A drive that pauses and goes on as before,
/// or a write too short to tell, has none.
#[must_use]
pub fn find(ticks: &[f64], tick: f64) -> Option<Cliff> {
    let count = |seconds: f64| ((seconds / tick).round() as usize).max(1);
    let (second, stays) = (count(1.0), count(STAYS));
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
    if ticks.len() < second + stays {
        return None;
    }
    let limit = FALLEN * mean(&ticks[..second]);
    // A half second's mean: single ticks jump.
    let half = count(0.5);
    let low = |i: usize| mean(&ticks[i..i + half]) < limit;
    let at = (second..=ticks.len() - stays).find(|&i| ticks[i] < limit && (i..=i + stays - half).all(low))?;
    Some(Cliff {
        bytes: (ticks[..at].iter().sum::<f64>() * tick) as u64,
        before: mean(&ticks[..at]),
        after: mean(&ticks[at..]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(parts: &[(f64, f64)]) -> Vec<f64> {
        parts.iter().flat_map(|(seconds, rate)| vec![*rate; (seconds * 10.0).round() as usize]).collect()
    }

    #[test]
    fn a_lasting_fall_is_a_cliff_and_a_pause_is_not() {
        let c = find(&rates(&[(5.0, 3e9), (4.0, 0.5e9)]), 0.1).unwrap();
        assert!((c.bytes as f64 - 15e9).abs() < 1e6, "{c:?}");
        assert!((c.before - 3e9).abs() < 1e3 && (c.after - 0.5e9).abs() < 1e3, "{c:?}");
        assert_eq!(find(&rates(&[(5.0, 3e9), (1.5, 0.1e9), (5.0, 3e9)]), 0.1), None, "it went on");
        assert_eq!(find(&rates(&[(5.0, 3e9), (4.0, 2e9)]), 0.1), None, "not below 60 %");
        assert_eq!(find(&rates(&[(5.0, 3e9), (1.9, 0.5e9)]), 0.1), None, "too short to tell");
        assert_eq!(find(&rates(&[(0.4, 3e9)]), 0.1), None);
        assert_eq!(find(&[], 0.1), None);
    }

    #[test]
    fn a_cliff_after_a_pause_is_found_where_it_is() {
        let c = find(&rates(&[(2.0, 2e9), (0.6, 0.2e9), (2.0, 2e9), (3.0, 0.4e9)]), 0.1).unwrap();
        assert!((c.bytes as f64 - 8.12e9).abs() < 1e7, "{c:?}");
    }
}
