//! Pins what copies start from, before a run begins. Drivers under Windows and in containers cap pinned memory far below
//! what is free: then the ring for disk reads is made smaller, and what the cap is gets said. It is never called VRAM.

use super::ring::Ring;
use crate::error::{Error, Result};
use crate::store::reader::{QUEUE_DEPTH, REQUEST};
use crate::store::{HostMemory, Pin};
use crate::units::{Bytes, MIB};

/// What became of it.
pub(super) struct Pinned {
    pub ring: Ring,
    /// All of it is pinned.
    pub pinned: bool,
    /// What is not as planned, and what it costs.
    pub note: Option<String>,
}

/// Pins the RAM tier and a ring of about `ring_bytes`, of chunks of at most `limit` bytes: a smaller ring where only that
/// is allowed, pageable memory where `allow_pageable`. Without a `pinner` nothing is. `stop` is asked meanwhile.
///
/// # Errors
/// There is no memory, or the driver pins less than the RAM tier and two chunks; the error names how much it pins. What
/// `stop` says.
pub(super) fn pin(
    ram: (&mut HostMemory, u64),
    ring_bytes: u64,
    limit: u64,
    allow_pageable: bool,
    pinner: Option<&mut dyn Pin>,
    stop: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Pinned> {
    // A processor copies from any memory.
    let Some(pinner) = pinner else {
        return Ok(Pinned { ring: Ring::new(ring_bytes, limit)?, pinned: false, note: None });
    };
    let (ram, ram_len) = ram;
    let refused = if ram_len > 0 { ram.pin(pinner, stop).err() } else { None };
    if let Some(e) = refused {
        if e.is_stop() {
            return Err(e);
        }
        if allow_pageable {
            return pageable(ring_bytes, limit);
        }
        return Err(too_little(most(pinner, ram_len, stop)?, ram_len, "the blocks that wait in host memory", e));
    }
    let mut bytes = ring_bytes;
    loop {
        let mut ring = Ring::new(bytes, limit)?;
        let taken = ring.memory().len();
        let e = match ring.memory().pin(pinner, stop) {
            Ok(()) => {
                let note = (bytes < ring_bytes).then(|| shorter(ring_bytes, taken));
                return Ok(Pinned { ring, pinned: true, note });
            }
            Err(e) if e.is_stop() => return Err(e),
            Err(e) => e,
        };
        if ring.at_least() {
            if allow_pageable {
                return pageable(ring_bytes, limit);
            }
            drop(ring);
            let all = ram_len + taken;
            return Err(too_little(ram_len + most(pinner, taken, stop)?, all, "the smallest ring for disk reads", e));
        }
        bytes /= 2;
    }
}

fn pageable(ring_bytes: u64, limit: u64) -> Result<Pinned> {
    let note = "no more host memory may be pinned: copies start from pageable memory, which the driver first copies \
                once more; steps are slower than planned";
    Ok(Pinned { ring: Ring::new(ring_bytes, limit)?, pinned: false, note: Some(note.into()) })
}

/// What a ring of `taken` instead of `planned` bytes costs.
fn shorter(planned: u64, taken: u64) -> String {
    let queue = QUEUE_DEPTH as u64 * REQUEST;
    // One half is read into while the other is copied from.
    let under_way = (taken / 2 / REQUEST).clamp(1, QUEUE_DEPTH as u64);
    let cost = if taken >= 2 * queue {
        "the drive's queue stays full, but reads run less far ahead".to_string()
    } else {
        format!("the drive has about {under_way} instead of {QUEUE_DEPTH} requests at a time, and reads slower")
    };
    let (taken, planned) = (Bytes(taken), Bytes(planned));
    format!("no more host memory may be pinned: the ring for disk reads has {taken} instead of {planned}; {cost}")
}

/// The most that `pinner` takes now, below `wanted`: to 16 MiB, by halving.
fn most(pinner: &mut dyn Pin, wanted: u64, stop: &(dyn Fn() -> Result<()> + Sync)) -> Result<u64> {
    let (mut low, mut high) = (0, wanted);
    while high - low > 16 * MIB {
        let middle = low + (high - low) / 2;
        match HostMemory::new(middle)?.pin(pinner, stop) {
            Ok(()) => low = middle,
            Err(e) if e.is_stop() => return Err(e),
            Err(_) => high = middle,
        }
    }
    Ok(low)
}

fn too_little(most: u64, needed: u64, what: &str, e: Error) -> Error {
    let (most, needed) = (Bytes(most), Bytes(needed));
    let budget = most.0 / MIB;
    let next = if budget > 0 {
        format!(
            "set stream.host_budget = \"{budget} MiB\": more blocks then wait on disk; or accept slower copies with \
             stream.allow_pageable = true"
        )
    } else {
        "accept slower copies with stream.allow_pageable = true, or raise the limit (WSL: more memory in .wslconfig; \
         containers: `ulimit -l unlimited`)"
            .into()
    };
    let what = format!("the driver pins {most} of host memory here, and {what} take {needed}");
    Error::device(what).next(next).because(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: u64 = 500_000_000;

    /// A driver that pins 500 MB in all. What is dropped again is not counted back where it could not be pinned.
    #[derive(Default)]
    struct Capped {
        held: u64,
        /// A test of the most that fits gives its memory back.
        asked: Vec<u64>,
    }

    impl Pin for Capped {
        fn register(&mut self, memory: &mut HostMemory) -> Result<()> {
            self.asked.push(memory.len());
            if self.held + memory.len() > CAP {
                return Err(Error::device("CUDA: pinning: out of memory"));
            }
            Ok(())
        }
    }

    fn with_ram(ram: u64, ring: u64, pageable: bool, held: u64) -> (Result<Pinned>, Capped) {
        let mut capped = Capped { held, ..Capped::default() };
        let mut memory = HostMemory::new(ram).unwrap();
        let limit = super::super::ring::chunk_limit(ring);
        let pinned = pin((&mut memory, ram), ring, limit, pageable, Some(&mut capped), &|| Ok(()));
        (pinned, capped)
    }

    #[test]
    fn case_fo_11d_a_stop_ends_pinning_and_is_no_refusal() {
        for (ram, pageable) in [(0, true), (64 << 20, true), (64 << 20, false)] {
            let (mut capped, mut memory) = (Capped::default(), HostMemory::new(ram).unwrap());
            let stop = || Err(Error::stopped());
            let pinned = pin((&mut memory, ram), 64 << 20, 16 << 20, pageable, Some(&mut capped), &stop);
            assert!(pinned.is_err_and(|e| e.is_stop()) && capped.asked.is_empty());
        }
    }

    #[test]
    fn case_pl_05_what_fits_is_pinned_as_planned() {
        let (pinned, capped) = with_ram(0, 256 << 20, false, 0);
        let pinned = pinned.unwrap();
        assert!(pinned.pinned && pinned.note.is_none() && capped.asked.len() == 1);
    }

    #[test]
    fn case_pl_05_above_500_mb_the_ring_is_smaller_and_its_cost_said() {
        let (pinned, _) = with_ram(0, 1 << 30, false, 0);
        let mut pinned = pinned.unwrap();
        let len = pinned.ring.memory().len();
        assert!(pinned.pinned && (200_000_000..=CAP).contains(&len), "{len}");
        let note = pinned.note.unwrap();
        assert!(note.contains("instead of 1.07 GB") && note.contains("stays full") && !note.contains("VRAM"), "{note}");
        // So little is left that the drive's queue suffers.
        let (pinned, _) = with_ram(0, 1 << 30, false, CAP - 70_000_000);
        let note = pinned.unwrap().note.unwrap();
        assert!(note.contains("instead of 32 requests") && note.contains("reads slower"), "{note}");
    }

    #[test]
    fn case_pl_05_a_ram_tier_past_the_cap_is_refused_by_its_name_or_pageable() {
        let e = with_ram(2_000_000_000, 256 << 20, false, 0).0.err().unwrap();
        let said = e.to_string();
        assert!(said.contains("of host memory here") && said.contains("take 2.00 GB"), "{said}");
        assert!(said.contains("stream.host_budget = \"4") && said.contains("allow_pageable"), "{said}");
        assert!(!said.contains("VRAM") && !said.contains("out of memory") && !e.is_out_of_memory(), "{said}");
        let pinned = with_ram(2_000_000_000, 256 << 20, true, 0).0.unwrap();
        assert!(!pinned.pinned && pinned.note.unwrap().contains("slower than planned"));
    }

    #[test]
    fn case_pl_05_where_nothing_may_be_pinned_not_even_the_smallest_ring_is() {
        let e = with_ram(0, 64 << 20, false, CAP).0.err().unwrap().to_string();
        assert!(e.contains("the driver pins 0 B of host memory here") && e.contains(".wslconfig"), "{e}");
    }
}
