//! What a run costs the drive. It scales with optimizer steps, never with micro-batches.

use super::types::Wear;
use crate::config::RunConfig;
use crate::device::Disk;
use crate::units::Bytes;

/// What a run writes, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// In each step.
    pub step: Bytes,
    /// In each checkpoint.
    pub save: Bytes,
    /// Once a run.
    pub once: Bytes,
}

/// The drive's rated endurance: the config's, else the machine's; `None` = unknown.
pub fn rating(disk: &Disk, config: &RunConfig) -> Option<Bytes> {
    if config.wear.tbw > 0.0 { Some(Bytes((config.wear.tbw * 1e12) as u64)) } else { disk.tbw }
}

/// Share of the rated life that is over, by SMART: its own figure, else bytes written against the rating.
pub fn life_used(disk: &Disk, config: &RunConfig) -> Option<f64> {
    let by_bytes = || Some(disk.written?.0 as f64 / rating(disk, config).filter(|r| r.0 > 0)?.0 as f64);
    disk.life_used.or_else(by_bytes).filter(|x| x.is_finite() && *x >= 0.0)
}

/// What may still be written until the rating is reached.
pub fn left(disk: &Disk, config: &RunConfig) -> Option<Bytes> {
    let rating = rating(disk, config)?;
    let used = match (disk.written, life_used(disk, config)) {
        (Some(w), _) => w,
        (None, Some(share)) => Bytes((rating.0 as f64 * share) as u64),
        (None, None) => Bytes::ZERO,
    };
    Some(rating.saturating_sub(used))
}

/// Wear of a run that writes `writes` on `disk`.
pub fn wear(writes: Writes, disk: &Disk, config: &RunConfig) -> Wear {
    let steps = (config.train.max_steps > 0).then_some(config.train.max_steps);
    let every = config.train.save_steps;
    // One more at the end, unless the last step's own checkpoint is that.
    let saves = match (steps, every) {
        (_, 0) => Some(1),
        (Some(n), every) => Some(n / every + u64::from(!n.is_multiple_of(every))),
        (None, _) => None,
    };
    let stepped = match (writes.step, steps) {
        (Bytes::ZERO, _) => Some(0),
        (b, Some(n)) => Some(b.0.saturating_mul(n)),
        (_, None) => None,
    };
    let saved = if writes.save == Bytes::ZERO { Some(0) } else { saves.map(|n| writes.save.0.saturating_mul(n)) };
    let run = stepped.zip(saved).map(|(a, b)| Bytes(a.saturating_add(b).saturating_add(writes.once.0)));
    let rated = rating(disk, config).filter(|r| *r > Bytes::ZERO);
    Wear {
        written_per_step: writes.step,
        steps_to_tbw: left(disk, config).and_then(|l| l.0.checked_div(writes.step.0)),
        written_per_save: writes.save,
        written_once: writes.once,
        saves,
        written_per_run: run,
        life_per_run: run.zip(rated).map(|(w, r)| w.0 as f64 / r.0 as f64),
        life_used: life_used(disk, config),
        write_rate: (writes.step > Bytes::ZERO).then(|| write_rate(disk, writes.step)),
        overridden: false,
    }
}

/// Bytes per second at which a burst of `bytes` is written: the part that exceeds the drive's fast cache goes at the
/// rate behind it.
pub fn write_rate(disk: &Disk, bytes: Bytes) -> f64 {
    match (disk.slc, disk.write_after_slc) {
        (Some(slc), Some(slow)) if bytes > slc && slow > 0.0 && slow < disk.write => {
            let seconds = slc.0 as f64 / disk.write.max(1.0) + (bytes - slc).0 as f64 / slow;
            bytes.0 as f64 / seconds
        }
        _ => disk.write,
    }
}

/// The rate in the long run: the cache is never emptied between bursts.
pub fn write_rate_at_worst(disk: &Disk, bytes: Bytes) -> f64 {
    match (disk.slc, disk.write_after_slc) {
        (Some(slc), Some(slow)) if bytes > slc && slow > 0.0 => slow.min(disk.write),
        _ => disk.write,
    }
}

/// The cliff in words, where a step's writes go over it.
pub fn cliff(disk: &Disk, step: Bytes) -> Option<String> {
    let (slc, slow) = disk.slc.zip(disk.write_after_slc)?;
    (step > slc && slow < disk.write).then(|| {
        format!(
            "each step writes {step}, the drive's fast cache takes {slc}: the rest is written at {} instead of {}",
            crate::units::rate(slow),
            crate::units::rate(disk.write)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(tbw: u64) -> Disk {
        Disk { tbw: Some(Bytes(tbw * 1_000_000_000_000)), write: 2e9, ..Disk::default() }
    }

    fn step(bytes: u64) -> Writes {
        Writes { step: Bytes(bytes), ..Writes::default() }
    }

    #[test]
    fn case_pl_13_wear_of_an_8b_model() {
        let params = 8_030_261_248u64;
        let c = RunConfig::default();
        let w = wear(step(params * 12), &drive(600), &c);
        assert_eq!((w.written_per_step.to_string().as_str(), w.steps_to_tbw), ("96.36 GB", Some(6226)));
        // A separate bf16 copy beside the master would write 14 bytes.
        let w = wear(step(params * 14), &drive(600), &c);
        assert_eq!((w.written_per_step.to_string().as_str(), w.steps_to_tbw), ("112.42 GB", Some(5336)));
        // LoRA writes nothing in a step; an unknown rating gives bytes and no count or share.
        assert_eq!(wear(step(0), &drive(600), &c).steps_to_tbw, None);
        let unknown = wear(step(5), &Disk::default(), &c);
        assert_eq!((unknown.written_per_step, unknown.steps_to_tbw, unknown.life_per_run), (Bytes(5), None, None));
        // 1000 steps of it: 96 TB, 16 % of the rating.
        let mut run = RunConfig::default();
        run.train.max_steps = 1000;
        let w = wear(step(params * 12), &drive(600), &run);
        assert_eq!(w.written_per_run, Some(Bytes(96_363_134_976_000)));
        assert!((w.life_per_run.unwrap() - 0.1606).abs() < 1e-4);
    }

    #[test]
    fn a_lora_run_writes_its_checkpoints_and_nothing_else() {
        let mut c = RunConfig::default();
        let writes = Writes { step: Bytes::ZERO, save: Bytes(120), once: Bytes(40) };
        let run = |c: &RunConfig| {
            let w = wear(writes, &drive(300), c);
            (w.saves, w.written_per_run)
        };
        // One at the end, even where the number of steps is the data's.
        assert_eq!(run(&c), (Some(1), Some(Bytes(160))));
        c.train.save_steps = 20;
        assert_eq!(run(&c), (None, None));
        c.train.max_steps = 24;
        assert_eq!(run(&c), (Some(2), Some(Bytes(280))));
        c.train.max_steps = 40;
        assert_eq!(run(&c), (Some(2), Some(Bytes(280))));
    }

    #[test]
    fn what_smart_says_is_written_shortens_what_is_left() {
        let c = RunConfig::default();
        let mut d = drive(300);
        assert_eq!(left(&d, &c), Some(Bytes(300_000_000_000_000)));
        d.life_used = Some(0.25);
        assert_eq!(left(&d, &c), Some(Bytes(225_000_000_000_000)));
        // Bytes are exact where SMART has them.
        d.written = Some(Bytes(100_000_000_000_000));
        assert_eq!(wear(step(1_000_000_000_000), &d, &c).steps_to_tbw, Some(200));
        d.written = Some(Bytes(301_000_000_000_000));
        assert_eq!(wear(step(1_000_000_000_000), &d, &c).steps_to_tbw, Some(0));
        d.life_used = None;
        assert!(life_used(&d, &c).unwrap() > 1.0);
    }

    #[test]
    fn past_the_fast_cache_a_burst_is_slower() {
        let mut d = drive(300);
        (d.slc, d.write_after_slc) = (Some(Bytes(20_000_000_000)), Some(0.5e9));
        assert_eq!(write_rate(&d, Bytes(20_000_000_000)), 2e9);
        // 20 GB at 2 GB/s and 20 GB at 0.5 GB/s: 50 s.
        assert_eq!(write_rate(&d, Bytes(40_000_000_000)), 0.8e9);
        assert_eq!(write_rate_at_worst(&d, Bytes(40_000_000_000)), 0.5e9);
        assert!(cliff(&d, Bytes(40_000_000_000)).unwrap().contains("500.0 MB/s instead of 2.00 GB/s"));
        assert_eq!(cliff(&d, Bytes(10)), None);
        d.slc = None;
        assert_eq!((write_rate(&d, Bytes(40_000_000_000)), cliff(&d, Bytes(40_000_000_000))), (2e9, None));
    }
}
