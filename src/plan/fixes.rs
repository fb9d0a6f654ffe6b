//! The nearest change that makes a plan feasible, or better: the change that costs the user least. Settings come before
//! hardware; of each kind the smallest amount that suffices, found by bisection.

use super::command;
use super::fit::{self, settles};
use super::full;
use super::shape::Job;
use super::types::Verdict;
use super::verdict::{Inputs, blockers, judge_fit, no_space};
use super::whatif::Edit;
use crate::config::{ByteSize, DeviceChoice, HeadPlace, Mode, Offload, Resident, RunConfig, TierChoice};
use crate::device::Machine;
use crate::units::GB;

/// Whether a machine and a config reach the goal.
type Reaches<'a> = &'a dyn Fn(&Machine, &RunConfig) -> bool;

/// How changes are judged.
struct Goal<'a> {
    /// The planner's own answer. It plays steps through to choose among fits, so it isn't cheap.
    reached: Reaches<'a>,
    /// Whether any fit would reach it: a necessary condition that costs little, and mostly a sufficient one.
    possible: Reaches<'a>,
}

/// A change in words, and the command that makes it where it is one of settings.
pub type Fix = (Option<String>, Option<String>);

/// Sizes that cards are sold in, GB.
const CARDS: [u64; 12] = [4, 6, 8, 10, 12, 16, 24, 32, 48, 80, 96, 141];
/// Lengths are tried in multiples of this many tokens.
const LENGTH_STEP: usize = 64;

/// The nearest change for a LoRA plan with `verdict`.
pub fn lora(x: &Inputs<'_>, verdict: Verdict) -> Fix {
    let to = match verdict {
        Verdict::Ram => return (None, None),
        Verdict::Infeasible => Verdict::LoraDisk,
        _ => Verdict::Ram,
    };
    let reached = |machine: &Machine, config: &RunConfig| {
        let Ok(job) = Job::of(config, x.checkpoint) else { return false };
        let x = Inputs { machine, config, job: &job, ..*x };
        settles(x.model, &job, machine, config, |fit| judge_fit(&x, fit.clone()).verdict <= to)
    };
    let possible = |machine: &Machine, config: &RunConfig| {
        let Ok(job) = Job::of(config, x.checkpoint) else { return false };
        let streams = machine.disk.refuses_streaming(config.stream.allow_hdd).is_none() && to != Verdict::Ram;
        let x = Inputs { machine, config, job: &job, ..*x };
        blockers(&x).is_empty() && no_space(&x).is_none() && fit::possible(x.model, &job, machine, config, streams)
    };
    let goal = Goal { reached: &reached, possible: &possible };
    let edits = if to == Verdict::Ram { free_settings(x.config) } else { settings(x.config) };
    if let Some((words, config)) = first_setting(x, edits, &goal) {
        let to = if to == Verdict::Ram { " to keep the whole model in memory" } else { "" };
        let command = command::command(&config, &x.checkpoint.name, Mode::Lora);
        return (Some(format!("set {words}{to}")), Some(command));
    }
    let to = if to == Verdict::Ram { " would keep the whole model in memory" } else { " would do" };
    let fix = hardware(x, &goal).map(|more| format!("{more}{to}"));
    (fix.or_else(|| elsewhere(x)), None)
}

/// Results on another volume than the model find no room there, and nothing else is to blame.
fn elsewhere(x: &Inputs<'_>) -> Option<String> {
    let free = x.machine.results_free?;
    let machine = Machine { results_free: None, ..x.machine.clone() };
    let alone = Inputs { machine: &machine, ..*x };
    let need = super::verdict::results_need(x);
    (need > free && blockers(&alone).is_empty() && no_space(&alone).is_none())
        .then(|| format!("put the results on a drive with {need} free: --results DIR"))
}

/// The nearest change for full finetuning that is infeasible: LoRA if that can be done, and what full would take.
pub fn full(x: &Inputs<'_>, lora: Verdict, eight_bit: Verdict) -> Fix {
    let reached = |machine: &Machine, config: &RunConfig| {
        let Ok(job) = Job::of(config, x.checkpoint) else { return false };
        full::verdict(&Inputs { machine, config, job: &job, ..*x }, full::State::Fp32) <= Verdict::FullFtDisk
    };
    let goal = Goal { reached: &reached, possible: &reached };
    let for_full = match first_setting(x, settings(x.config), &goal) {
        Some((words, _)) => Some(format!("set {words}")),
        None if eight_bit <= Verdict::FullFtDisk => Some("8-bit moments".into()),
        None => hardware(x, &goal),
    };
    if lora == Verdict::Infeasible {
        return (for_full, None);
    }
    let mut config = x.config.clone();
    config.train.mode = Mode::Lora;
    let runs = x.checkpoint.plan_only.is_none();
    let command = runs.then(|| command::command(&config, &x.checkpoint.name, Mode::Lora));
    let full = for_full.map(|f| format!("; full finetuning would need {}", f.trim_start_matches("set ")));
    let text =
        format!("set train.mode = lora ({}): it never rewrites the weights{}", lora.word(), full.unwrap_or_default());
    (Some(text), command)
}

/// One change to a config.
struct Setting {
    text: String,
    apply: Box<dyn Fn(&mut RunConfig)>,
}

fn edit(key: &str, to: impl std::fmt::Display, apply: impl Fn(&mut RunConfig) + 'static) -> Setting {
    Setting { text: format!("{key} = {to}"), apply: Box::new(apply) }
}

/// Changes to try together, the smallest amount first where there is a choice.
enum Try {
    /// These.
    These(Vec<Setting>),
    /// The first of so many that suffices; each gives up more than the one before, so bisection finds it.
    Least(usize, Box<dyn Fn(usize) -> Vec<Setting>>),
    /// As `Least`, and of each only those that are needed.
    LeastOfAll(usize, Box<dyn Fn(usize) -> Vec<Setting>>),
}

/// The first of `tries` that reaches the goal, in words, and the config with it.
fn first_setting(x: &Inputs<'_>, tries: Vec<Try>, goal: &Goal<'_>) -> Option<(String, RunConfig)> {
    let with = |edits: &[Setting]| {
        let mut config = x.config.clone();
        edits.iter().for_each(|e| (e.apply)(&mut config));
        config
    };
    let possible = |edits: &[Setting]| (goal.possible)(x.machine, &with(edits));
    let reached = |edits: &[Setting]| possible(edits) && (goal.reached)(x.machine, &with(edits));
    let least_of = |n: usize, of: &dyn Fn(usize) -> Vec<Setting>| {
        if n == 0 || !possible(&of(n - 1)) {
            return None;
        }
        let (mut low, mut high) = (0, n - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if possible(&of(middle)) { high = middle } else { low = middle + 1 }
        }
        // Where the planner prefers another fit, a little more has to be given up.
        (high..n).take(MOST_MORE).map(of).find(|edits| reached(edits))
    };
    for one in tries {
        let edits = match one {
            Try::These(edits) => reached(&edits).then_some(edits),
            Try::Least(n, of) => least_of(n, &of),
            Try::LeastOfAll(n, of) => least_of(n, &of).map(|mut edits| {
                for i in (0..edits.len()).rev() {
                    let left_out = edits.remove(i);
                    if !reached(&edits) {
                        edits.insert(i, left_out);
                    }
                }
                edits
            }),
        };
        if let Some(edits) = edits.filter(|e| !e.is_empty()) {
            let words: Vec<&str> = edits.iter().map(|e| e.text.as_str()).collect();
            return Some((words.join(" and "), with(&edits)));
        }
    }
    None
}

/// Settings that only lift a limit.
fn free_settings(config: &RunConfig) -> Vec<Try> {
    let s = &config.stream;
    let mut tries = Vec::new();
    let mut one = |e: Setting| tries.push(Try::These(vec![e]));
    if config.train.device == DeviceChoice::Cuda {
        one(edit("train.device", "auto", |c| c.train.device = DeviceChoice::Auto));
    }
    if s.tier != TierChoice::Auto {
        one(edit("stream.tier", "auto", |c| c.stream.tier = TierChoice::Auto));
    }
    if s.host_budget.0 > 0 {
        one(edit("stream.host_budget", "0 (what is free)", |c| c.stream.host_budget = ByteSize(0)));
    }
    if s.vram_budget.0 > 0 {
        one(edit("stream.vram_budget", "0 (what is free)", |c| c.stream.vram_budget = ByteSize(0)));
    }
    if s.resident_blocks != Resident::Auto {
        one(edit("stream.resident_blocks", "auto", |c| c.stream.resident_blocks = Resident::Auto));
    }
    tries
}

/// Settings, the mildest first: limits lifted, then speed given up, then batch, then length, then all together.
fn settings(config: &RunConfig) -> Vec<Try> {
    let (s, t, length) = (&config.stream, &config.train, config.data.max_length);
    let (batch, micro) = (t.per_device_train_batch_size, t.gradient_accumulation_steps);
    let mut tries = free_settings(config);
    let chunk = |to: usize| edit("stream.loss_chunk", to, move |c| c.stream.loss_chunk = to);
    let rows =
        |to: usize| edit("train.per_device_train_batch_size", to, move |c| c.train.per_device_train_batch_size = to);
    let micros =
        |to: usize| edit("train.gradient_accumulation_steps", to, move |c| c.train.gradient_accumulation_steps = to);
    let shorter = |to: usize| edit("data.max_length", to, move |c| c.data.max_length = to);
    let slots = |to: usize| {
        let words = if to == 0 { "0 (as many as fit)".into() } else { to.to_string() };
        edit("stream.slots", words, move |c| c.stream.slots = to)
    };
    if s.head == HeadPlace::Resident {
        tries.push(Try::These(vec![edit("stream.head", "auto", |c| c.stream.head = HeadPlace::Auto)]));
    }
    if s.activation_offload == Offload::Off {
        let auto = edit("stream.activation_offload", "auto", |c| c.stream.activation_offload = Offload::Auto);
        tries.push(Try::These(vec![auto]));
    }
    if !s.allow_hdd {
        // Only counts on a hard disk.
        tries.push(Try::These(vec![edit("stream.allow_hdd", "true", |c| c.stream.allow_hdd = true)]));
    }
    if t.save_steps > 0 && t.save_total_limit != 1 {
        let one = edit("train.save_total_limit", 1, |c| c.train.save_total_limit = 1);
        tries.push(Try::These(vec![one]));
    }
    let chunks: Vec<usize> = [256, 128, 64].into_iter().filter(|c| *c < s.loss_chunk).collect();
    tries.push(Try::Least(chunks.len(), Box::new(move |i| vec![chunk(chunks[i])])));
    // A ring that was asked for is never cut: fewer slots, or as many as fit.
    let ring = s.slots;
    tries.push(Try::Least(ring, Box::new(move |i| vec![slots(ring - 1 - i)])));
    // As many rows a step, in more micro-batches: the same training.
    let same = smaller_divisors(batch);
    let divisors = same.len();
    let split = move |i: usize| vec![rows(same[i]), micros(micro.saturating_mul(batch / same[i]))];
    tries.push(Try::Least(divisors, Box::new(split)));
    let at_most = length.saturating_sub(1) / LENGTH_STEP;
    let nth = move |i: usize| (at_most - i) * LENGTH_STEP;
    tries.push(Try::Least(at_most, Box::new(move |i| vec![shorter(nth(i))])));
    tries.push(Try::Least(micro - 1, Box::new(move |i| vec![micros(micro - 1 - i)])));
    let loss_chunk = s.loss_chunk;
    let thrifty = move |i: usize| {
        let length = if i == 0 { length } else { nth(i - 1) };
        vec![slots(0), chunk(64.min(loss_chunk)), rows(1), micros(1), shorter(length)]
    };
    tries.push(Try::LeastOfAll(at_most + 1, Box::new(thrifty)));
    tries
}

/// Divisors of `n` below it, the largest first.
fn smaller_divisors(n: usize) -> Vec<usize> {
    let low = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d));
    let mut all: Vec<usize> = low.flat_map(|d| [d, n / d]).filter(|d| *d < n).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    all
}

/// Something that money buys.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Ram,
    Card,
    Disk,
    Endurance,
}

impl Axis {
    /// Amounts to choose from: GB more, the card's GB, TB of rating.
    fn most(self, m: &Machine) -> u64 {
        match self {
            Axis::Card if m.gpu.as_ref().is_none_or(|g| g.integrated) => 0,
            Axis::Card => CARDS[CARDS.len() - 1],
            Axis::Endurance if m.disk.tbw.is_none() => 0,
            Axis::Endurance => MOST_TB,
            Axis::Ram | Axis::Disk => MOST_GB,
        }
    }

    /// The edit that gives `amount` of it.
    fn edit(self, m: &Machine, amount: u64) -> Edit {
        match self {
            Axis::Ram => Edit::Ram(m.ram.total.0 + amount * GB),
            Axis::Card => Edit::Vram((amount * GB).max(m.gpu.as_ref().map_or(0, |g| g.vram_total.0))),
            Axis::Disk => Edit::Disk(m.disk.free.0 + amount * GB),
            Axis::Endurance => Edit::Tbw((amount * 1000 * GB).max(m.disk.tbw.map_or(0, |t| t.0))),
        }
    }

    /// The least amount that works; 0 where none is needed. `most` works.
    fn least(self, m: &Machine, works: impl Fn(u64) -> bool) -> Option<u64> {
        if works(0) {
            return Some(0);
        }
        match self {
            Axis::Card => CARDS.into_iter().find(|c| works(*c)),
            _ => least(self.most(m), works),
        }
    }

    /// `from` and what comes after it.
    fn next(self, m: &Machine, from: u64) -> Box<dyn Iterator<Item = u64>> {
        match self {
            Axis::Card => Box::new(CARDS.into_iter().filter(move |c| *c >= from)),
            _ => Box::new(from.max(1)..=self.most(m)),
        }
    }

    /// How many times as much as now.
    fn grown(self, m: &Machine, amount: u64) -> f64 {
        let by = |now: u64, to: f64| to / now.max(1) as f64;
        let gb = (amount * GB) as f64;
        match self {
            Axis::Ram => by(m.ram.total.0, m.ram.total.0 as f64 + gb),
            Axis::Card => by(m.gpu.as_ref().map_or(1, |g| g.vram_total.0), gb),
            Axis::Disk => by(m.disk.free.0, m.disk.free.0 as f64 + gb),
            Axis::Endurance => by(m.disk.tbw.map_or(1, |t| t.0), gb * 1000.0),
        }
    }

    fn words(self, amount: u64) -> String {
        match self {
            Axis::Ram => format!("{amount} GB more RAM"),
            Axis::Card => format!("a {amount} GB card"),
            Axis::Disk => format!("{amount} GB more free disk"),
            Axis::Endurance => format!("a drive rated for {amount} TB written"),
        }
    }
}

/// The least hardware that reaches the goal: of what suffices alone the smallest in proportion, else the least of each.
fn hardware(x: &Inputs<'_>, goal: &Goal<'_>) -> Option<String> {
    const AXES: [Axis; 4] = [Axis::Ram, Axis::Card, Axis::Disk, Axis::Endurance];
    let m = x.machine;
    let axes: Vec<Axis> = AXES.into_iter().filter(|a| a.most(m) > 0).collect();
    let with = |amounts: &[(Axis, u64)]| {
        let mut machine = m.clone();
        amounts.iter().filter(|(_, n)| *n > 0).for_each(|(a, n)| a.edit(m, *n).change(&mut machine));
        machine
    };
    let possible = |amounts: &[(Axis, u64)]| (goal.possible)(&with(amounts), x.config);
    let reached = |amounts: &[(Axis, u64)]| (goal.reached)(&with(amounts), x.config);
    // What may suffice alone, the smallest in proportion first: its verdict is asked for only until none can be smaller.
    let least = |a: &Axis| {
        let from = if possible(&[(*a, a.most(m))]) { a.least(m, |n| possible(&[(*a, n)]))? } else { return None };
        Some((a.grown(m, from), *a, from))
    };
    let mut alone: Vec<(f64, Axis, u64)> = axes.iter().filter_map(least).collect();
    alone.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut best: Option<(f64, String)> = None;
    for (grown, a, from) in alone {
        if best.as_ref().is_some_and(|b| b.0 <= grown) {
            break;
        }
        // Mostly the planner agrees at once; where it prefers another fit, a little more is needed.
        let near: Vec<u64> = a.next(m, from).take(MOST_MORE).collect();
        if let Some(n) = first(&near, |n| reached(&[(a, n)]))
            && best.as_ref().is_none_or(|b| a.grown(m, n) < b.0)
        {
            best = Some((a.grown(m, n), a.words(n)));
        }
    }
    if let Some((_, words)) = best {
        return Some(words);
    }
    let mut amounts: Vec<(Axis, u64)> = axes.iter().map(|a| (*a, a.most(m))).collect();
    if !possible(&amounts) {
        return None;
    }
    for i in 0..amounts.len() {
        let n = amounts[i].0.least(m, |n| {
            let mut all = amounts.clone();
            all[i].1 = n;
            possible(&all)
        })?;
        amounts[i].1 = n;
    }
    let words: Vec<String> = amounts.iter().filter(|(_, n)| *n > 0).map(|(a, n)| a.words(*n)).collect();
    reached(&amounts).then(|| words.join(" and "))
}

/// The first of `amounts` that works, if any does; what comes after one that works mostly works too.
fn first(amounts: &[u64], works: impl Fn(u64) -> bool) -> Option<u64> {
    let (head, rest) = amounts.split_first()?;
    if works(*head) {
        return Some(*head);
    }
    let last = rest.last().filter(|n| works(**n))?;
    let before = &rest[..rest.len() - 1];
    Some(*before.get(before.partition_point(|n| !works(*n))).unwrap_or(last))
}

/// Steps past what is possible at which the planner is asked.
const MOST_MORE: usize = 8;

/// Nothing more than this is worth telling, GB of memory or space.
const MOST_GB: u64 = 8192;
/// The same for a drive's rating, TB.
const MOST_TB: u64 = 100_000;

/// The least whole number from 1 to `most` that `works`; more never works worse.
fn least(most: u64, works: impl Fn(u64) -> bool) -> Option<u64> {
    let mut high = 1;
    while high < most && !works(high) {
        high *= 2;
    }
    let (mut low, mut high) = (high / 2, high.min(most));
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if works(middle) { high = middle } else { low = middle }
    }
    works(high).then_some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_fo_79c_divisors_of_absurd_batches_are_found_at_once() {
        assert_eq!(smaller_divisors(12), [6, 4, 3, 2, 1]);
        assert_eq!((smaller_divisors(1), smaller_divisors(7)), (vec![], vec![1]));
        assert_eq!(smaller_divisors(1 << 40).len(), 40);
    }

    #[test]
    fn the_least_amount_is_found_exactly() {
        for want in [1, 2, 3, 24, 36, 63, 64, 65, 1000, MOST_GB] {
            assert_eq!(least(MOST_GB, |gb| gb >= want), Some(want));
        }
        assert_eq!(least(MOST_GB, |_| false), None);
    }
}
