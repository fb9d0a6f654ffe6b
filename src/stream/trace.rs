//! Where a step's time went: for each visit, what it waited for and how long it computed.

use super::lane::{CopyTimes, Lane, LaneTimes, Stamp, Ticket};
use crate::error::Result;
use crate::event::{Phase, VisitTimes};
use std::collections::{HashMap, VecDeque};

/// What compute waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The drive had not delivered yet when the copy was wanted.
    Disk,
    /// The copy was on its way.
    Link,
}

struct Begun {
    phase: Phase,
    block: usize,
    /// Of the program; `None` where nothing streams.
    number: Option<u64>,
    stamp: Stamp,
}

/// A moment at which compute came to a segment that was not known to be there.
struct Wait {
    visit: usize,
    stamp: Stamp,
    /// The last copy into the segment's slot.
    ticket: Ticket,
    cause: Cause,
}

struct Copying {
    ticket: Ticket,
    visit: u64,
    bytes: u64,
    from_disk: bool,
}

/// The times of one step.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// Each visit, in order.
    pub visits: Vec<VisitTimes>,
    /// Seconds copies spent moving bytes.
    pub h2d_s: f64,
    /// Seconds compute waited for weights.
    pub stall_s: f64,
    /// Seconds the copy queue waited for a slot's last reader.
    pub evict_wait_s: f64,
}

/// Collects marks during a step and turns them into times at its end.
#[derive(Default)]
pub(super) struct Trace {
    visits: Vec<Begun>,
    /// The newest visit's stamp, as long as nothing was queued after it.
    fresh: Option<Stamp>,
    waits: Vec<Wait>,
    copying: VecDeque<Copying>,
    /// Copies that ended, of visits not reported yet: `(visit, seconds, waited, bytes, from disk)`.
    ended: Vec<(u64, f64, f64, u64, bool)>,
}

impl Trace {
    pub(super) fn begin(&mut self, phase: Phase, block: usize, number: Option<u64>, lane: &mut dyn Lane) -> Result<()> {
        let stamp = lane.stamp()?;
        self.visits.push(Begun { phase, block, number, stamp });
        self.fresh = Some(stamp);
        Ok(())
    }

    /// No visit has begun since the times were last taken.
    pub(super) fn is_empty(&self) -> bool {
        self.visits.is_empty()
    }

    /// Work may be queued from here on.
    pub(super) fn queued(&mut self) {
        self.fresh = None;
    }

    /// This moment of the compute queue. A stamp costs microseconds of the device while copies run: where nothing was
    /// queued since the visit began, that one will do.
    pub(super) fn now(&self, lane: &mut dyn Lane) -> Result<Stamp> {
        self.fresh.map_or_else(|| lane.stamp(), Ok)
    }

    /// Compute came to a segment at `stamp`, and may have to wait there until the copy `ticket` has ended.
    pub(super) fn waits(&mut self, stamp: Stamp, ticket: Ticket, cause: Cause) {
        if let Some(visit) = self.visits.len().checked_sub(1) {
            self.waits.push(Wait { visit, stamp, ticket, cause });
        }
    }

    pub(super) fn copying(&mut self, ticket: Ticket, visit: u64, bytes: u64, from_disk: bool) {
        self.copying.push_back(Copying { ticket, visit, bytes, from_disk });
    }

    /// The step's times; it ends now.
    pub(super) fn take(&mut self, lane: &mut dyn Lane) -> Result<StepTimes> {
        let end = if self.visits.is_empty() { None } else { Some(lane.stamp()?) };
        let LaneTimes { stamps, copies } = lane.take_times()?;
        let mut out = StepTimes::default();
        let ends: HashMap<Ticket, f64> = copies.iter().map(|c| (c.ticket, c.done)).collect();
        for CopyTimes { ticket, seconds, waited, .. } in copies {
            out.h2d_s += seconds;
            out.evict_wait_s += waited;
            // Tickets end in the order they were given.
            while let Some(c) = self.copying.pop_front() {
                if c.ticket == ticket {
                    self.ended.push((c.visit, seconds, waited, c.bytes, c.from_disk));
                    break;
                }
            }
        }
        let until = |i: usize| self.visits.get(i + 1).map(|v| v.stamp).or(end);
        for (i, v) in self.visits.iter().enumerate() {
            let whole = until(i).map_or(0.0, |e| stamps[e] - stamps[v.stamp]);
            let mut t = VisitTimes { phase: v.phase, block: v.block, ..VisitTimes::default() };
            for w in self.waits.iter().filter(|w| w.visit == i) {
                let s = ends.get(&w.ticket).map_or(0.0, |end| (end - stamps[w.stamp]).max(0.0));
                match w.cause {
                    Cause::Disk => t.wait_disk_s += s,
                    Cause::Link => t.wait_link_s += s,
                }
            }
            t.compute_s = (whole - t.wait_disk_s - t.wait_link_s).max(0.0);
            for &(_, seconds, _, bytes, from_disk) in self.ended.iter().filter(|e| Some(e.0) == v.number) {
                t.copy_s += seconds;
                t.h2d += bytes;
                t.disk += if from_disk { bytes } else { 0 };
            }
            out.stall_s += t.wait_disk_s + t.wait_link_s;
            out.visits.push(t);
        }
        let newest = self.visits.iter().filter_map(|v| v.number).max();
        self.ended.retain(|e| Some(e.0) > newest);
        self.visits.clear();
        self.waits.clear();
        self.fresh = None;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Piecewise;

    /// A queue whose stamps lie a second apart, and copies that ended when they are said to.
    struct Clockwork {
        stamps: usize,
        copies: Vec<CopyTimes>,
    }

    impl Lane for Clockwork {
        fn device(&self) -> tch::Device {
            tch::Device::Cpu
        }
        unsafe fn load(&mut self, _: usize, _: Piecewise<'_>, _: *const u8) -> Result<Ticket> {
            unreachable!("nothing is loaded here")
        }
        fn wait(&mut self, _: usize) -> Result<()> {
            Ok(())
        }
        fn release(&mut self, _: usize) -> Result<()> {
            Ok(())
        }
        fn copied(&mut self, _: Ticket) -> Result<bool> {
            Ok(true)
        }
        fn wait_copied(&mut self, _: Ticket) -> Result<()> {
            Ok(())
        }
        fn slot(&self, _: usize) -> *const u8 {
            std::ptr::null()
        }
        fn stamp(&mut self) -> Result<Stamp> {
            self.stamps += 1;
            Ok(self.stamps - 1)
        }
        fn take_times(&mut self) -> Result<LaneTimes> {
            let stamps = (0..std::mem::take(&mut self.stamps)).map(|s| s as f64).collect();
            Ok(LaneTimes { stamps, copies: std::mem::take(&mut self.copies) })
        }
    }

    #[test]
    fn compute_waits_from_where_it_comes_to_a_segment_until_its_copy_has_ended() {
        let copy = |ticket, done| CopyTimes { ticket, seconds: 0.5, waited: 0.0, done };
        let mut lane = Clockwork { stamps: 0, copies: vec![copy(1, -3.0), copy(2, 0.75), copy(3, 2.25), copy(4, 1.0)] };
        let mut trace = Trace::default();
        trace.begin(Phase::Forward, 0, Some(7), &mut lane).unwrap();
        (1..=4).for_each(|ticket| trace.copying(ticket, 7, 10, ticket == 3));
        // The visit's own stamp (0) serves until something is queued; then a new one is taken (1, then 2).
        let first = trace.now(&mut lane).unwrap();
        trace.waits(first, 1, Cause::Link);
        trace.waits(first, 2, Cause::Link);
        trace.queued();
        let second = trace.now(&mut lane).unwrap();
        trace.waits(second, 3, Cause::Disk);
        trace.queued();
        let third = trace.now(&mut lane).unwrap();
        trace.waits(third, 4, Cause::Link);
        assert_eq!((first, second, third), (0, 1, 2));

        let times = trace.take(&mut lane).unwrap();
        let v = &times.visits[0];
        // Copies 1 and 4 had ended before; the end of the step is stamp 3.
        assert_eq!((v.wait_link_s, v.wait_disk_s, v.compute_s), (0.75, 1.25, 1.0));
        assert_eq!((v.copy_s, v.h2d, v.disk), (2.0, 40, 10));
        assert_eq!((times.stall_s, times.h2d_s), (2.0, 2.0));
    }
}
