//! The least a step can take: `max(disk_F, link_F, C_F) + max(disk_B, link_B, C_B + head)`.
//!
//! Bytes are those of the run's own plan, split by sweep; rates are the ones measured in the same call; compute is
//! what `floor.py` measured for the block's products, attention and head. F is the way up, B the way down.

use crate::plan::ModePlan;
use serde_json::{Value, json};

/// Measured rates, bytes per second; `None` = not measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// Host to device, pinned.
    pub h2d: Option<f64>,
    /// Device to host, pinned.
    pub d2h: Option<f64>,
    /// O_DIRECT reads.
    pub disk: Option<f64>,
}

/// Compute floor of one block and of the head, seconds, for all tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// A block on the way up.
    pub forward: f64,
    /// A block's recompute and backward.
    pub backward: f64,
    /// The head, forward and backward.
    pub head: f64,
}

impl Compute {
    /// The entry for `tokens` in what `floor.py` printed (a line of JSON for each number of tokens, in milliseconds).
    #[must_use]
    pub fn of(printed: &str, tokens: usize) -> Option<Compute> {
        let mut lines = printed.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let entry = lines.rfind(|v| v["T"].as_u64() == Some(tokens as u64))?;
        let seconds = |key: &str| entry[key].as_f64().map(|ms| ms / 1e3);
        Some(Compute {
            forward: seconds("block_fwd_floor")?,
            backward: seconds("block_bwd_floor")?,
            head: seconds("head")?,
        })
    }

    /// Of a whole step of `layers` blocks, all of them trained.
    #[must_use]
    pub fn step(&self, layers: usize) -> f64 {
        layers as f64 * (self.forward + self.backward) + self.head
    }
}

/// The bound of `plan`: `{seconds, resource, sweeps}`, `seconds` null where a rate that it needs is missing.
///
/// Without `compute` only transfers count, and `compute` says so.
#[must_use]
pub fn bound(plan: &ModePlan, rates: Rates, compute: Option<Compute>) -> Value {
    let n = plan.placement.len();
    let c = compute.unwrap_or(Compute { forward: 0.0, backward: 0.0, head: 0.0 });
    let work = [n as f64 * c.forward, (n - plan.lowest_trainable.min(n)) as f64 * c.backward + c.head];
    let time = |bytes: u64, rate: Option<f64>| if bytes == 0 { Some(0.0) } else { rate.map(|r| bytes as f64 / r) };
    let mut total = Some(0.0);
    let mut paced = [("disk", 0.0), ("link", 0.0), ("compute", 0.0)];
    let mut shown = Vec::new();
    for (s, work) in plan.sweeps.into_iter().zip(work) {
        let link = time(s.h2d.0, rates.h2d).zip(time(s.d2h.0, rates.d2h)).map(|(a, b)| f64::max(a, b));
        let queues = [time(s.disk_read.0, rates.disk), link, Some(work)];
        shown.push(json!({
            "h2d": s.h2d, "d2h": s.d2h, "disk_read": s.disk_read,
            "disk_s": queues[0], "link_s": queues[1], "compute_s": compute.map(|_| work),
        }));
        let known: Option<Vec<f64>> = queues.into_iter().collect();
        let slowest = known.map(|q| (0..3).fold((2, q[2]), |best, i| if q[i] > best.1 { (i, q[i]) } else { best }));
        if let Some((i, seconds)) = slowest {
            paced[i].1 += seconds;
        }
        total = total.zip(slowest).map(|(t, (_, s))| t + s);
    }
    // Of equals the later names it: a step without transfers and without a floor is bound by compute, in 0 s: unknown.
    let resource = paced.iter().fold(paced[0], |a, b| if b.1 >= a.1 { *b } else { a }).0;
    let seconds = total.filter(|t| *t > 0.0);
    json!({
        "seconds": seconds,
        "resource": seconds.map(|_| resource),
        "sweeps": { "up": shown[0], "down": shown[1] },
        "compute": if compute.is_some() { "floor.py" } else { "not measured for this shape: transfers only" },
        "h2d_rate": rates.h2d,
        "d2h_rate": rates.d2h,
        "disk_rate": rates.disk,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TierName;
    use crate::plan::{BlockPlace, PerStep, Verdict};
    use crate::units::Bytes;

    const BLOCK: u64 = 436_224_000;

    /// `n` blocks of a tier that load `n - slots` of themselves each way, and `beside` bytes on the way down.
    fn plan(n: usize, tier: TierName, slots: usize, beside: u64) -> ModePlan {
        let loads = (n - slots) as u64 * BLOCK;
        let h2d = if tier == TierName::Vram { 0 } else { loads };
        let disk_read = Bytes(if tier == TierName::Disk { loads } else { 0 });
        let sweep = |beside| PerStep { h2d: Bytes(h2d + beside), disk_read, ..PerStep::default() };
        ModePlan {
            verdict: Verdict::Ram,
            trainable: true,
            reasons: vec![],
            nearest_fix: None,
            tiers: Default::default(),
            per_step: PerStep::default(),
            sweeps: [sweep(0), sweep(beside)],
            seconds_per_step: Default::default(),
            vram: Default::default(),
            host: Default::default(),
            wear: Default::default(),
            space: Default::default(),
            fix_command: None,
            placement: vec![BlockPlace { block: 0, tier, bytes: Bytes(BLOCK) }; n],
            ring_slots: slots,
            residency: slots,
            stream: Default::default(),
            lowest_trainable: 0,
            candidates: vec![],
            command: String::new(),
        }
    }

    fn rates() -> Rates {
        Rates { h2d: Some(55.4e9), d2h: Some(55.0e9), disk: Some(1.7e9) }
    }

    #[test]
    fn the_ring_of_two_over_a_measured_link() {
        let c = Compute { forward: 0.0010, backward: 0.0029, head: 0.006 };
        let b = bound(&plan(32, TierName::Ram, 2, 0), rates(), Some(c));
        assert!((b["seconds"].as_f64().unwrap() - 60.0 * BLOCK as f64 / 55.4e9).abs() < 1e-6, "{b}");
        assert_eq!(b["resource"], "link");
        assert_eq!(b["sweeps"]["up"]["h2d"].as_u64(), b["sweeps"]["down"]["h2d"].as_u64());
        assert!((c.step(32) - 0.1308).abs() < 1e-9);
    }

    #[test]
    fn a_slow_head_counts_with_the_way_down_only() {
        let c = Compute { forward: 0.001, backward: 0.009, head: 0.006 };
        let b = bound(&plan(32, TierName::Ram, 2, 0), rates(), Some(c));
        let up = 30.0 * BLOCK as f64 / 55.4e9;
        assert!((b["seconds"].as_f64().unwrap() - (up + 32.0 * 0.009 + 0.006)).abs() < 1e-6, "{b}");
        let streamed = bound(&plan(32, TierName::Ram, 2, 1_000_000_000), rates(), None);
        assert_eq!(streamed["sweeps"]["down"]["h2d"], 30 * BLOCK + 1_000_000_000);
    }

    #[test]
    fn disk_rows_are_the_drives_and_unknown_rates_leave_it_open() {
        let p = plan(16, TierName::Disk, 2, 0);
        let b = bound(&p, rates(), None);
        assert!((b["seconds"].as_f64().unwrap() - 28.0 * BLOCK as f64 / 1.7e9).abs() < 1e-6 && b["resource"] == "disk");
        assert!(bound(&p, Rates { disk: None, ..rates() }, None)["seconds"].is_null());
        assert!(bound(&plan(4, TierName::Vram, 0, 0), rates(), None)["seconds"].is_null());
    }

    #[test]
    fn the_floor_is_read_by_tokens() {
        let printed = "warning: x\n{\"T\": 512, \"head\": 1.0}\n{\"T\": 2048, \"block_fwd_floor\": 1.0, \
                       \"block_bwd_floor\": 3.0, \"head\": 2.0}\n";
        assert_eq!(Compute::of(printed, 2048).unwrap().step(16), 0.066);
        assert!(Compute::of(printed, 512).is_none() && Compute::of(printed, 8192).is_none());
    }
}
