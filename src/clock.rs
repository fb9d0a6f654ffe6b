//! Time that tests can hold in their hand: a real monotonic clock, or one moved by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock that starts at zero when made.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's.
    Real(Instant),
    /// Moves only by [`Clock::advance`]; counts microseconds.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, zero now.
    #[must_use]
    pub fn real() -> Clock {
        Clock::Real(Instant::now())
    }
    /// A clock that stands still until advanced.
    #[must_use]
    pub fn manual() -> Clock {
        Clock::Manual(Arc::default())
    }
    /// Seconds since the clock was made.
    #[must_use]
    pub fn now(&self) -> f64 {
        match self {
            Clock::Real(start) => start.elapsed().as_secs_f64(),
            Clock::Manual(us) => us.load(Ordering::SeqCst) as f64 / 1e6,
        }
    }
    /// Moves a manual clock; no effect on a real one.
    pub fn advance(&self, by: Duration) {
        if let Clock::Manual(us) = self {
            us.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
        }
    }
}

/// Seconds since 1970, UTC.
#[must_use]
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// `unix` seconds as `2026-11-29T17:31:06Z` (proleptic Gregorian, UTC; Howard Hinnant's civil-from-days).
#[must_use]
pub fn utc(unix: u64) -> String {
    let (days, rest) = ((unix / 86_400) as i64, unix % 86_400);
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest % 3600 / 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utc_matches_known_dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_795_973_466), "2026-11-29T17:31:06Z");
    }

    #[test]
    fn a_manual_clock_stands_still() {
        let c = Clock::manual();
        assert_eq!(c.now(), 0.0);
        c.advance(Duration::from_millis(1500));
        assert_eq!(c.now(), 1.5);
    }
}
