//! The bounded queue between the hub and the screen: lifecycle events keep their order, telemetry is latest-wins.

use crate::event::{Event, EventKind};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lifecycle events held for a screen that doesn't read. A step is one event, so a day of steps fits.
const CAPACITY: usize = 65_536;

/// A queue that the hub fills without ever waiting and the screen empties. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct EventQueue(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    lifecycle: VecDeque<Event>,
    progress: Option<Event>,
    gauges: Option<Event>,
    trace: Option<Event>,
    overflowed: u64,
}

impl EventQueue {
    /// Adds an event. Telemetry replaces the unread one of its kind. Past the bound the oldest *step* gives way (the
    /// recorder has it already) and is counted; a start, a save or an end never does.
    pub fn push(&self, event: Event) {
        let mut s = self.lock();
        match event.kind {
            EventKind::Progress(_) => s.progress = Some(event),
            EventKind::Gauges(_) => s.gauges = Some(event),
            EventKind::Trace(_) => s.trace = Some(event),
            _ => {
                if s.lifecycle.len() >= CAPACITY
                    && let Some(i) = s.lifecycle.iter().position(|e| matches!(e.kind, EventKind::Step(_)))
                {
                    s.lifecycle.remove(i);
                    s.overflowed += 1;
                }
                s.lifecycle.push_back(event);
            }
        }
    }

    /// Takes everything, in the order it happened. Never blocks longer than a push takes.
    #[must_use]
    pub fn drain(&self) -> Vec<Event> {
        let mut s = self.lock();
        let mut all: Vec<Event> = s.lifecycle.drain(..).collect();
        all.extend(s.progress.take());
        all.extend(s.gauges.take());
        all.extend(s.trace.take());
        all.sort_by_key(|e| e.seq);
        all
    }

    /// Steps that gave way because nobody read for very long.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.lock().overflowed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A reader that panicked leaves a whole queue behind: every change is one push or one drain.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Gauges, StepRecord, StepTrace};

    fn event(seq: u64, kind: EventKind) -> Event {
        Event { seq, at: 0.0, kind }
    }

    #[test]
    fn telemetry_is_latest_wins_and_lifecycle_is_kept_in_order() {
        let q = EventQueue::default();
        q.push(event(0, EventKind::Paused { step: 1 }));
        q.push(event(1, EventKind::Gauges(Gauges { sm_clock_mhz: Some(1), ..Gauges::default() })));
        q.push(event(2, EventKind::Resumed { step: 1 }));
        q.push(event(3, EventKind::Gauges(Gauges { sm_clock_mhz: Some(2), ..Gauges::default() })));
        q.push(event(4, EventKind::Step(StepRecord::default())));
        q.push(event(5, EventKind::Trace(StepTrace::default())));
        q.push(event(6, EventKind::Trace(StepTrace::default())));
        let seqs: Vec<u64> = q.drain().iter().map(|e| e.seq).collect();
        assert_eq!(seqs, [0, 2, 3, 4, 6]);
        assert!(q.drain().is_empty());
    }

    #[test]
    fn past_the_bound_only_steps_give_way() {
        let q = EventQueue::default();
        q.push(event(0, EventKind::Paused { step: 0 }));
        for i in 0..CAPACITY as u64 + 4 {
            q.push(event(i + 1, EventKind::Step(StepRecord { step: i, ..StepRecord::default() })));
        }
        let all = q.drain();
        assert_eq!((all.len(), q.overflowed()), (CAPACITY, 5));
        assert!(matches!(all[0].kind, EventKind::Paused { .. }));
    }
}
