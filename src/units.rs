//! Bytes, seconds and rates as types, and the only code that formats them.
//!
//! GB is 1e9 bytes, GiB is 2^30: the two are never mixed on one line. Rates are bytes per second.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A count of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// One gigabyte, 1e9 bytes.
pub const GB: u64 = 1_000_000_000;
/// One gibibyte, 2^30 bytes.
pub const GIB: u64 = 1 << 30;
/// One mebibyte, 2^20 bytes.
pub const MIB: u64 = 1 << 20;

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// As a number of gigabytes (1e9).
    #[must_use]
    pub fn gb(self) -> f64 {
        self.0 as f64 / GB as f64
    }

    /// As a number of gibibytes (2^30).
    #[must_use]
    pub fn gib(self) -> f64 {
        self.0 as f64 / GIB as f64
    }

    /// `self - other`, zero where that would be negative.
    #[must_use]
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// `self + other`, or `None` past `u64::MAX`.
    #[must_use]
    pub fn checked_add(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_add(other.0).map(Bytes)
    }

    /// Rounded up to a multiple of `align` (a power of two).
    #[must_use]
    pub fn align_up(self, align: u64) -> Bytes {
        Bytes(self.0.div_ceil(align) * align)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0 as f64;
        let text = match self.0 {
            0..1_000 => format!("{} B", self.0),
            1_000..1_000_000 => format!("{:.1} kB", b / 1e3),
            1_000_000..1_000_000_000 => format!("{:.1} MB", b / 1e6),
            1_000_000_000..1_000_000_000_000 => format!("{:.2} GB", b / 1e9),
            _ => format!("{:.2} TB", b / 1e12),
        };
        f.pad(&text)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, o: Bytes) -> Bytes {
        Bytes(self.0 + o.0)
    }
}
impl AddAssign for Bytes {
    fn add_assign(&mut self, o: Bytes) {
        self.0 += o.0;
    }
}
impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, o: Bytes) -> Bytes {
        Bytes(self.0 - o.0)
    }
}
impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, n: u64) -> Bytes {
        Bytes(self.0 * n)
    }
}
impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, |a, b| a + b)
    }
}

/// Formats a rate in bytes per second, `"1.23 GB/s"`; a dash where it is unknown or not finite.
#[must_use]
pub fn rate(bytes_per_sec: f64) -> String {
    if !bytes_per_sec.is_finite() || bytes_per_sec <= 0.0 {
        return "–".into();
    }
    format!("{}/s", Bytes(bytes_per_sec as u64))
}

/// Formats a duration in seconds: `"380 ms"`, `"12.9 s"`, `"4 min 05 s"`, `"3 h 20 min"`.
#[must_use]
pub fn secs(s: f64) -> String {
    if !s.is_finite() || s < 0.0 {
        return "–".into();
    }
    if s < 0.0995 {
        format!("{:.1} ms", s * 1e3)
    } else if s < 0.9995 {
        format!("{:.0} ms", s * 1e3)
    } else if s < 99.95 {
        format!("{s:.2} s")
    } else if s < 5_400.0 {
        format!("{} min {:02} s", s as u64 / 60, s as u64 % 60)
    } else {
        format!("{} h {:02} min", s as u64 / 3600, (s as u64 % 3600) / 60)
    }
}

/// Formats a count with a suffix: `"8.03 B"`, `"134.5 M"`, `"12.0 k"`.
#[must_use]
pub fn count(n: u64) -> String {
    let x = n as f64;
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.1} k", x / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", x / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.2} B", x / 1e9),
        _ => format!("{:.2} T", x / 1e12),
    }
}

/// `done / total` clamped to 0..=1; 0 where either is not finite or the total is 0.
///
/// The only way a gauge gets its ratio: ratatui's panics outside 0..=1 and on NaN.
#[must_use]
pub fn ratio_of(done: f64, total: f64) -> f64 {
    let r = done / total;
    if r.is_finite() { r.clamp(0.0, 1.0) } else { 0.0 }
}

/// `1 row`, `2 rows`.
#[must_use]
pub fn plural(n: u64, noun: &str) -> String {
    let ending = match (n, noun.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        _ => "s",
    };
    format!("{n} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_has_its_plural() {
        assert_eq!(
            [plural(1, "row"), plural(2, "row"), plural(3, "micro-batch")],
            ["1 row", "2 rows", "3 micro-batches"]
        );
    }

    #[test]
    fn bytes_pick_their_unit() {
        assert_eq!(Bytes(999).to_string(), "999 B");
        assert_eq!(Bytes(436_207_616).to_string(), "436.2 MB");
        assert_eq!(Bytes(26_200_000_000).to_string(), "26.20 GB");
        assert_eq!(format!("{:>10}", Bytes(5)), "       5 B");
    }

    #[test]
    fn ratio_never_leaves_the_unit_interval() {
        assert_eq!(ratio_of(1.0, 0.0), 0.0);
        assert_eq!(ratio_of(f64::NAN, 1.0), 0.0);
        assert_eq!(ratio_of(3.0, 2.0), 1.0);
        assert_eq!(ratio_of(-1.0, 2.0), 0.0);
    }

    #[test]
    fn seconds_read_like_a_person_says_them() {
        assert_eq!(secs(0.0123), "12.3 ms");
        assert_eq!(secs(0.472), "472 ms");
        assert_eq!(secs(245.0), "4 min 05 s");
        assert_eq!(secs(f64::NAN), "–");
    }
}
