//! Whether the driver may have moved device memory to the host: under Windows that is no error, only a step that crawls.

use crate::units::{Bytes, secs};
use std::collections::VecDeque;

/// Steps that make up the usual time.
const STEPS: usize = 20;
/// Steps before there is a usual time.
const LEAST: usize = 3;
/// A step so many times longer than usual has jumped.
const JUMP: f64 = 10.0;
/// Share of the card's memory in use from which on it counts as full.
const FULL: f64 = 0.97;

/// The card's memory against what is put into it; fed with what a run says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spill {
    /// The card's own memory; `None` = there is no card, or it shares the host's.
    dedicated: Option<Bytes>,
    /// Its driver moves memory instead of refusing it.
    moves: bool,
    used: Option<Bytes>,
    times: VecDeque<f64>,
    suspected: bool,
}

impl Spill {
    /// Watches a card with `dedicated` bytes of its own; `moves`: its driver moves what doesn't fit.
    #[must_use]
    pub fn of(dedicated: Bytes, moves: bool) -> Spill {
        Spill { dedicated: (dedicated > Bytes::ZERO).then_some(dedicated), moves, ..Spill::default() }
    }

    /// It has been suspected in this run.
    #[must_use]
    pub fn suspected(&self) -> bool {
        self.suspected
    }

    /// The program's own allocations are `live` bytes. Says why a spill is suspected, once.
    pub(super) fn holds(&mut self, live: Option<Bytes>) -> Option<String> {
        let (live, dedicated) = live.zip(self.dedicated)?;
        // No other way to be true: so much is not on the card.
        let past = live > dedicated;
        self.say(past, || format!("{live} are allocated on a card with {dedicated}"))
    }

    /// The driver says that `used` bytes of the card are in use.
    pub(super) fn uses(&mut self, used: Option<Bytes>) -> Option<String> {
        self.used = used;
        None
    }

    /// A step took `seconds`. Says why a spill is suspected, once.
    pub(super) fn step(&mut self, seconds: f64) -> Option<String> {
        if !seconds.is_finite() || seconds <= 0.0 {
            return None;
        }
        let mut sorted: Vec<f64> = self.times.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted.get(sorted.len() / 2).copied().filter(|_| sorted.len() >= LEAST);
        let jumped = usual.is_some_and(|u| seconds >= JUMP * u);
        if !jumped {
            // A step that crawls is not what is usual.
            self.times.push_back(seconds);
            if self.times.len() > STEPS {
                self.times.pop_front();
            }
        }
        let full = self.used.zip(self.dedicated).is_some_and(|(u, d)| u.0 as f64 >= FULL * d.0 as f64);
        // A full card alone is a good plan, and a long step alone has many causes.
        self.say(self.moves && jumped && full, || {
            format!("a step took {}, usually {}, while the card is full", secs(seconds), secs(usual.unwrap_or(0.0)))
        })
    }

    fn say(&mut self, now: bool, why: impl FnOnce() -> String) -> Option<String> {
        let first = now && !self.suspected;
        self.suspected |= now;
        first.then(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Bytes = Bytes(8_000_000_000);

    #[test]
    fn case_pl_06_more_allocated_than_the_card_has_is_a_spill_and_said_once() {
        let mut s = Spill::of(CARD, true);
        assert_eq!(s.holds(Some(Bytes(7_900_000_000))), None);
        assert!(!s.suspected());
        let why = s.holds(Some(Bytes(9_270_000_000))).unwrap();
        assert_eq!(why, "9.27 GB are allocated on a card with 8.00 GB");
        assert!(s.holds(Some(Bytes(9_270_000_000))).is_none() && s.suspected());
        assert_eq!(Spill::default().holds(Some(CARD)), None, "no card, no spill");
        assert_eq!(Spill::of(CARD, true).holds(None), None);
    }

    #[test]
    fn case_pl_06_a_step_ten_times_as_long_on_a_full_card_is_suspected() {
        let run = |moves: bool, used: u64, last: f64| {
            let mut s = Spill::of(CARD, moves);
            s.uses(Some(Bytes(used)));
            assert!([1.0, 1.1, 0.9, 1.0].into_iter().all(|t| s.step(t).is_none()));
            s.step(last)
        };
        let why = run(true, 7_900_000_000, 10.5).unwrap();
        assert_eq!(why, "a step took 10.50 s, usually 1.00 s, while the card is full");
        assert_eq!(run(true, 7_900_000_000, 9.0), None, "not ten times");
        assert_eq!(run(true, 5_000_000_000, 10.5), None, "the card has room");
        assert_eq!(run(false, 7_900_000_000, 10.5), None, "this driver refuses what doesn't fit");
        let mut early = Spill::of(CARD, true);
        early.uses(Some(CARD));
        assert_eq!(
            (early.step(0.1), early.step(5.0), early.step(f64::NAN)),
            (None, None, None),
            "nothing is usual yet"
        );
    }
}
