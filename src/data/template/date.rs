//! The date a template sees: taken once per run, so that every row and every resume renders the same text.

use crate::error::{Error, Result};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment in UTC, as `strftime_now` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    unix: u64,
    year: i64,
    month: u64,
    day: u64,
}

impl Date {
    /// The moment `unix` seconds after 1970.
    #[must_use]
    pub fn from_unix(unix: u64) -> Date {
        let text = crate::clock::utc(unix);
        let mut parts = text[..text.len() - "T00:00:00Z".len()].split('-').filter_map(|p| p.parse::<u64>().ok());
        let (year, month, day) = (parts.next().unwrap_or(1970), parts.next().unwrap_or(1), parts.next().unwrap_or(1));
        Date { unix, year: year as i64, month, day }
    }

    /// Midnight of the day that `unix` falls into: runs that start on one day render one text.
    #[must_use]
    pub fn day_of(unix: u64) -> Date {
        Date::from_unix(unix / 86_400 * 86_400)
    }

    /// Reads `2026-11-29`, as [`Date::iso`] writes it.
    ///
    /// # Errors
    /// Any other text, or a day that doesn't exist.
    pub fn parse(text: &str) -> Result<Date> {
        let bad = || Error::data(format!("'{}' isn't a date like 2026-11-29", super::clean(text)));
        let mut parts = text.splitn(3, '-').map(|p| p.parse::<i64>().ok());
        let (Some(Some(year)), Some(Some(month)), Some(Some(day))) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad());
        };
        if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return Err(bad());
        }
        let date = Date::from_unix((days_before(year, month, day) * 86_400) as u64);
        if date.iso() == text { Ok(date) } else { Err(bad()) }
    }

    /// `2026-11-29`.
    #[must_use]
    pub fn iso(&self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }

    /// Python's `datetime.strftime` in the C locale, with glibc's `%-d` form.
    ///
    /// # Errors
    /// A directive that isn't known here, by name.
    pub fn strftime(&self, format: &str) -> Result<String, String> {
        let (hour, minute, second) = (self.unix / 3600 % 24, self.unix / 60 % 60, self.unix % 60);
        let weekday = (self.unix / 86_400 + 4) % 7; // 1970-01-01 was a Thursday
        let yday = days_before(self.year, self.month as i64, self.day as i64) - days_before(self.year, 1, 1) + 1;
        let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            let bare = directive == Some('-');
            if bare {
                directive = chars.next();
            }
            let mut number = |value: u64, width: usize| {
                out.push_str(&if bare { value.to_string() } else { format!("{value:0width$}") });
            };
            match directive {
                Some('Y') => number(self.year as u64, 1),
                Some('y') => number(self.year as u64 % 100, 2),
                Some('m') => number(self.month, 2),
                Some('d') => number(self.day, 2),
                Some('H') => number(hour, 2),
                Some('I') => number(hour12, 2),
                Some('M') => number(minute, 2),
                Some('S') => number(second, 2),
                Some('j') => number(yday as u64, 3),
                Some('w') => number(weekday, 1),
                Some('u') => number(if weekday == 0 { 7 } else { weekday }, 1),
                Some('f') => number(0, 6),
                Some('e') if bare => number(self.day, 1),
                Some('e') => out.push_str(&format!("{:2}", self.day)),
                Some('s') => out.push_str(&self.unix.to_string()),
                Some('A') => out.push_str(DAYS[weekday as usize]),
                Some('a') => out.push_str(&DAYS[weekday as usize][..3]),
                Some('B') => out.push_str(MONTHS[self.month as usize - 1]),
                Some('b' | 'h') => out.push_str(&MONTHS[self.month as usize - 1][..3]),
                Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
                Some('F') => out.push_str(&self.iso()),
                Some('T' | 'X') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
                Some('R') => out.push_str(&format!("{hour:02}:{minute:02}")),
                Some('D' | 'x') => out.push_str(&format!("{:02}/{:02}/{:02}", self.month, self.day, self.year % 100)),
                Some('Z' | 'z') => {} // Python prints nothing for a datetime without a zone
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('%') => out.push('%'),
                other => {
                    let name = other.map_or_else(String::new, String::from);
                    return Err(format!("strftime_now can't print '%{name}'"));
                }
            }
        }
        Ok(out)
    }
}

/// Days from 1970-01-01 (Howard Hinnant's days-from-civil).
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let yoe = y - era * 400;
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    era * 146_097 + doe - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strftime_prints_what_python_prints() {
        let d = Date::from_unix(951_827_696); // 2000-02-29 12:34:56, a Tuesday
        assert_eq!(
            d.strftime("%Y-%m-%d %H:%M:%S %A %a %B %b %j %p %I %y %%").unwrap(),
            "2000-02-29 12:34:56 Tuesday Tue February Feb 060 PM 12 00 %"
        );
        assert_eq!(Date::from_unix(0).strftime("%-d/%-m %e %u %w").unwrap(), "1/1  1 4 4");
        assert_eq!(d.strftime("%Q").unwrap_err(), "strftime_now can't print '%Q'");
        assert!(d.strftime("50%").is_err());
    }

    #[test]
    fn a_date_survives_its_own_text() {
        for unix in [0, 951_782_400, 1_795_910_400] {
            let d = Date::from_unix(unix);
            assert_eq!(Date::parse(&d.iso()).unwrap(), d);
        }
        for bad in ["", "2026-02-30", "2026-13-01", "26-01-01", "2026-1-1", "2026-01-01x", "x\x1b[2J"] {
            assert!(Date::parse(bad).is_err(), "{bad}");
        }
        assert!(!Date::parse("x\x1b[2J").unwrap_err().to_string().contains('\x1b'));
    }
}
