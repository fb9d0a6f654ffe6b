//! Values that are written in more than one way: byte counts and the resident block count.

use super::{ByteSize, Resident};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// What a byte count may look like, for messages.
pub const BYTES_EXPECTED: &str = "bytes such as 67108864, \"64 MB\" or \"1.5 GiB\"";
/// What a resident count may look like, for messages.
pub const RESIDENT_EXPECTED: &str = "\"auto\" or a number of blocks";

/// A message says with this how a drive's rating is written.
pub const TERABYTES_EXPECTED: &str = "TB written as a number or as \"600 TB\"";

/// Reads a drive's rating in TB: `600` or `"600 TB"`, `"1.2PB"`; `None` for anything else.
#[must_use]
pub fn terabytes(text: &str) -> Option<f64> {
    let text = text.trim();
    let rated = text.to_ascii_lowercase();
    // Data sheets of large drives count in PB.
    if let Some(petabytes) = rated.strip_suffix("pb") {
        return petabytes.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0).map(|x| x * 1000.0);
    }
    let number = text.parse::<f64>().ok().filter(|x| x.is_finite());
    number.or_else(|| Some(ByteSize::parse(text)?.0 as f64 / 1e12))
}

const UNITS: [(&str, u64); 10] = [
    ("b", 1),
    ("", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

impl ByteSize {
    /// Reads `"67108864"`, `"64 MB"`, `"1.5GiB"` (case doesn't matter); `None` for anything else.
    ///
    /// `MB` is 1e6 and `MiB` 2^20; a bare `M` is refused because it could mean either.
    #[must_use]
    pub fn parse(text: &str) -> Option<ByteSize> {
        let text = text.trim();
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
        let (number, unit) = (text[..digits].replace('_', ""), text[digits..].trim().to_ascii_lowercase());
        let scale = UNITS.iter().find(|(u, _)| *u == unit)?.1;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(ByteSize);
        }
        let x: f64 = number.parse().ok()?;
        let bytes = x * scale as f64;
        (bytes.is_finite() && bytes < u64::MAX as f64).then_some(ByteSize(bytes.round() as u64))
    }
}

impl Resident {
    /// Reads `"auto"` or a number; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Resident> {
        match text.trim() {
            "auto" => Some(Resident::Auto),
            n => n.parse().ok().map(Resident::AtMost),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl Serialize for Resident {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Resident::Auto => s.serialize_str("auto"),
            Resident::AtMost(n) => s.serialize_u64(*n as u64),
        }
    }
}

/// Accepts a non-negative integer or a string that `parse` understands.
struct NumberOrText<T> {
    expected: &'static str,
    number: fn(u64) -> T,
    text: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for NumberOrText<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }
    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<T, E> {
        Ok((self.number)(n))
    }
    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<T, E> {
        u64::try_from(n).map(self.number).map_err(|_| E::custom(format!("{n} is negative: expected {}", self.expected)))
    }
    fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<T, E> {
        (self.text)(s).ok_or_else(|| E::custom(format!("'{s}' is not {}", self.expected)))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(NumberOrText { expected: BYTES_EXPECTED, number: ByteSize, text: ByteSize::parse })
    }
}

impl<'de> Deserialize<'de> for Resident {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let number = |n: u64| Resident::AtMost(usize::try_from(n).unwrap_or(usize::MAX));
        d.deserialize_any(NumberOrText { expected: RESIDENT_EXPECTED, number, text: Resident::parse })
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sizes_keep_decimal_and_binary_apart() {
        let ok = |s: &str| ByteSize::parse(s).map(|b| b.0);
        assert_eq!(ok("64 MB"), Some(64_000_000));
        assert_eq!(ok("64MiB"), Some(64 << 20));
        assert_eq!(ok("1.5GiB"), Some(3 << 29));
        assert_eq!(ok("67_108_864"), Some(67_108_864));
        assert_eq!(ok(" 6 gb "), Some(6_000_000_000));
        assert_eq!(ok("0"), Some(0));
        for bad in ["", "64M", "-1", "1e9", "lots", "1.2.3 GB", "99999999999 TiB", "GB", "nan", "inf GB"] {
            assert_eq!(ok(bad), None, "{bad}");
        }
    }

    #[test]
    fn case_fo_79a_a_rating_is_tb_with_or_without_its_unit() {
        for (text, want) in
            [("600", 600.0), ("600 TB", 600.0), ("600TB", 600.0), (" 0.5 PB", 500.0), ("300000 GB", 300.0)]
        {
            assert_eq!(terabytes(text), Some(want), "{text}");
        }
        assert!(["", "lots", "600 T", "TB", "nan", "inf"].iter().all(|t| terabytes(t).is_none()));
    }

    #[test]
    fn resident_is_auto_or_a_number() {
        assert_eq!(Resident::parse("auto"), Some(Resident::Auto));
        assert_eq!(Resident::parse("0"), Some(Resident::AtMost(0)));
        assert_eq!(Resident::parse("-3"), None);
        assert_eq!(Resident::parse("all"), None);
    }
}
