//! One call of `bench step --peers`: what its rows share — checkpoints, rates, finished runs, and the time that is left.

use super::bound::{Compute, Rates};
use super::child::{self, Ended};
use super::drive::Drive;
use super::results::Results;
use super::scratch::without_paths;
use super::table::{Peer, Row, Table};
use super::{Say, disk, row};
use crate::clock;
use crate::device::{Machine, probe};
use crate::error::{Error, Result};
use crate::report;
use crate::units::{rate, secs};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What a call is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the programs and of `rows.toml`.
    pub dir: PathBuf,
    /// Rows to run; empty = all.
    pub rows: Vec<String>,
    /// Unpacked wheels by peer.
    pub wheels: BTreeMap<String, PathBuf>,
    /// Optional peers that run besides.
    pub with: Vec<String>,
    /// Interpreter of the programs.
    pub python: PathBuf,
    /// Folder for checkpoints, tokens, the peers' own shards and logs; kept between calls.
    pub work: PathBuf,
    /// Where the JSON goes while rows finish.
    pub out: Option<PathBuf>,
    /// Results file whose rows stay where this call has none of that name.
    pub merge: Option<PathBuf>,
    /// Remove a peer's shards after its last run in this call.
    pub free_shards: bool,
    /// Time for the whole call.
    pub time: Duration,
    /// Seconds of each read of the drive.
    pub drive_seconds: f64,
    /// The command line, for the record.
    pub command: String,
}

/// Less than this is not enough to start a program: Python alone takes that long to import its libraries.
const LEAST: Duration = Duration::from_secs(15);
/// Why a program did not run when the call's time is over.
pub const NO_TIME: &str = "no time left in this call";

/// A figure, or why there is none.
pub type Known<T> = std::result::Result<T, String>;

/// Runs the chosen rows: the results, merged.
///
/// # Errors
/// The table, the rows' names, the work folder or the results file won't do. A program that fails is a `null` with its
/// reason, not an error.
pub fn run(options: Options, say: Say<'_>) -> Result<Value> {
    let table = Table::open(&options.dir)?;
    let rows = table.chosen(&options.rows)?;
    for name in options.wheels.keys().chain(&options.with) {
        if !table.peer.contains_key(name) {
            let all: Vec<&str> = table.peer.keys().map(String::as_str).collect();
            return Err(Error::usage(format!("no peer '{name}'; there are {}", all.join(", "))));
        }
    }
    let work = std::path::absolute(&options.work).map_err(|e| Error::input("find", &options.work, e))?;
    let logs = work.join("logs");
    std::fs::create_dir_all(&logs).map_err(|e| Error::io("create", &logs, e))?;
    let machine = probe::measure(Some(&work), true);
    let (merge, out) = (options.merge.clone(), options.out.clone());
    let command = without_paths(&options.command);
    let date = clock::utc(clock::unix_now());
    let mut results = Results::begin(facts(&machine), &date, &command, merge.as_deref(), out.as_deref())?;
    let mut call = Call {
        options: Options { work, ..options },
        table,
        rows: rows.clone(),
        say,
        begun: Instant::now(),
        link: None,
        floor: None,
        checkpoints: BTreeMap::new(),
        finished: BTreeMap::new(),
        residents: BTreeMap::new(),
        runs: 0,
    };
    for (index, row) in rows.iter().enumerate() {
        if call.time(row).is_err() {
            say(&format!("[{}] {NO_TIME}: its row in the results stays as it was", row.name));
            continue;
        }
        let mut done = row::run(&mut call, index, row);
        done["date"] = json!(clock::utc(clock::unix_now()));
        done["gpu"] = json!(machine.gpu.as_ref().map(|g| &g.name));
        results.set("link", call.link_json());
        if !results.put(done)? {
            call.say(row, "cut short by the call's time: the whole row of an earlier call stays");
        }
    }
    results.set("seconds", json!(call.begun.elapsed().as_secs_f64()));
    Ok(results.value().clone())
}

/// The machine without names of its own: no UUID, no host.
fn facts(machine: &Machine) -> Value {
    let mut env = report::environment(None, machine);
    if let Some(gpu) = env["gpu"].as_object_mut() {
        gpu.remove("uuid");
    }
    json!({
        "gpu": env["gpu"],
        "os": env["os"],
        "tool": env["tool"],
        "ram_total": env["ram_total"],
        "disk": env["disk"],
        "cpu_threads": std::thread::available_parallelism().map_or(1, usize::from),
    })
}

/// What the rows of a call share.
pub struct Call<'a> {
    /// What it was told.
    pub options: Options,
    /// `rows.toml`.
    pub table: Table,
    rows: Vec<Row>,
    say: Say<'a>,
    begun: Instant,
    link: Option<Known<Value>>,
    floor: Option<Known<String>>,
    checkpoints: BTreeMap<String, Known<(PathBuf, PathBuf)>>,
    /// Peers' runs of this call by command, with the drive's rate around them.
    pub finished: BTreeMap<String, (Known<Value>, Option<Drive>)>,
    /// Our steps with every block resident, by job.
    pub residents: BTreeMap<String, Known<f64>>,
    runs: usize,
}

impl Call<'_> {
    /// Says a line about `row`.
    pub fn say(&self, row: &Row, text: &str) {
        (self.say)(&format!("{:>5.0} s [{}] {text}", self.begun.elapsed().as_secs_f64(), row.name));
    }

    /// How long the next program of `row` may run.
    ///
    /// # Errors
    /// The call's time is over.
    pub fn time(&self, row: &Row) -> Known<Duration> {
        let left = self.options.time.saturating_sub(self.begun.elapsed());
        if left < LEAST {
            return Err(NO_TIME.into());
        }
        Ok(left.min(Duration::from_secs(row.time_limit)))
    }

    /// Where the next program's output goes.
    pub fn log(&mut self, row: &Row, program: &str) -> PathBuf {
        self.runs += 1;
        let name = format!("{:03}-{}-{program}.log", self.runs, row.name);
        let path = self.options.work.join("logs").join(name);
        // A log of an earlier call on this machine.
        let _ = std::fs::remove_file(&path);
        path
    }

    /// Runs one of the programs beside the table.
    fn python(&mut self, row: &Row, program: &str, script: &str, args: &[String]) -> Known<Ended> {
        let limit = self.time(row)?;
        let log = self.log(row, program);
        let work = &self.options.work;
        let mut command = Command::new(&self.options.python);
        command.arg(self.options.dir.join(script)).args(args);
        command.env("TMPDIR", work).env("HF_HUB_OFFLINE", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        // What our own program sets for itself is not the peers' default.
        command.env_remove("OMP_WAIT_POLICY").env_remove("CUDA_CACHE_DISABLE");
        let ended = child::run(&mut command, &log, limit).map_err(|e| e.to_string())?;
        match ended.failure() {
            Some(why) => Err(without_paths(&why)),
            None => Ok(ended),
        }
    }

    /// The arguments that every program takes.
    fn common(&self, row: &Row) -> Vec<String> {
        let pairs = [
            ("--shape", row.shape.clone()),
            ("--layers", row.layers.to_string()),
            ("--seq", row.seq.to_string()),
            ("--batch", row.batch.to_string()),
            ("--accum", row.accum.to_string()),
            ("--work", self.options.work.display().to_string()),
        ];
        pairs.into_iter().flat_map(|(k, v)| [k.to_string(), v]).collect()
    }

    /// The row's checkpoint and its tokens, made where they aren't there yet.
    ///
    /// # Errors
    /// The program that makes them failed.
    pub fn checkpoint(&mut self, row: &Row) -> Known<(PathBuf, PathBuf)> {
        let key = format!("{}-{}-{}x{}x{}", row.shape, row.layers, row.accum, row.batch, row.seq);
        if let Some(known) = self.checkpoints.get(&key) {
            return known.clone();
        }
        let rows = self.options.work.join(format!("rows-{key}.jsonl"));
        let mut args = self.common(row);
        args.extend(["--dump-rows".to_string(), rows.display().to_string()]);
        self.say(row, "checkpoint and tokens");
        let script = self.table.common.clone();
        let made = self.python(row, "checkpoint", &script, &args).and_then(|ended| {
            let result = child::result_line(&ended.log).ok_or("it printed no RESULT line")?;
            let dir = result["checkpoint"].as_str().ok_or("its RESULT names no checkpoint")?;
            // What is still on its way to the drive would slow down whatever is measured next.
            rustix::fs::sync();
            Ok((PathBuf::from(dir), rows))
        });
        // Without time it may work in another call, but not in this one.
        self.checkpoints.insert(key, made.clone());
        made
    }

    /// The link's rates, measured once in this call by a process of its own.
    fn link_once(&mut self, row: &Row) -> Known<Value> {
        if self.link.is_none() {
            self.say(row, "link rate");
            let measured = self.time(row).and_then(|limit| {
                let log = self.log(row, "link");
                let me = std::env::current_exe().map_err(|e| e.to_string())?;
                let mut command = Command::new(me);
                command.args(["bench", "link", "--json"]);
                let ended = child::run(&mut command, &log, limit).map_err(|e| e.to_string())?;
                match ended.failure() {
                    Some(why) => Err(why),
                    None => json_in(&ended.log).ok_or_else(|| "bench link printed no JSON".to_string()),
                }
            });
            let text = match &measured {
                Ok(v) => format!("link: {} to the device", rate(v["h2d"].as_f64().unwrap_or(f64::NAN))),
                Err(why) => format!("link: not measured: {why}"),
            };
            self.say(row, &text);
            self.link = Some(measured);
        }
        self.link.clone().unwrap_or_else(|| Err(NO_TIME.into()))
    }

    fn link_json(&self) -> Value {
        match &self.link {
            Some(Ok(v)) => {
                let mut v = v.clone();
                if let Some(gpu) = v["gpu"].as_object_mut() {
                    gpu.remove("uuid");
                }
                v
            }
            Some(Err(why)) => json!({ "why_not": without_paths(why) }),
            None => Value::Null,
        }
    }

    /// The rates to bound `row` by; the drive's is the caller's.
    pub fn rates(&mut self, row: &Row, disk: Option<f64>) -> Rates {
        let link = self.link_once(row).unwrap_or_default();
        Rates { h2d: link["h2d"].as_f64(), d2h: link["d2h"].as_f64(), disk }
    }

    /// The compute floor of the row's job, where the floor program is made for its shape; measured once in this call.
    ///
    /// # Errors
    /// The program failed, or has no entry for so many tokens.
    pub fn compute(&mut self, row: &Row) -> Known<Compute> {
        if row.shape != self.table.floor.shape {
            return Err(format!("the floor program knows only {}", self.table.floor.shape));
        }
        if self.floor.is_none() {
            self.say(row, "compute floor");
            let script = self.table.floor.script.clone();
            self.floor = Some(self.python(row, "floor", &script, &[]).map(|ended| ended.log));
        }
        let printed = self.floor.clone().unwrap_or_else(|| Err(NO_TIME.into()))?;
        Compute::of(&printed, row.tokens()).ok_or_else(|| format!("no floor for {} tokens", row.tokens()))
    }

    /// Mean O_DIRECT read rate of the checkpoint's drive, bytes per second.
    ///
    /// # Errors
    /// It can't be read past the page cache.
    pub fn drive(&self, checkpoint: &Path) -> Known<f64> {
        rustix::fs::sync();
        let read = disk::files(checkpoint).and_then(|f| disk::read(&f, self.options.drive_seconds));
        read.map(|r| r.mean()).map_err(|e| without_paths(&e.to_string()))
    }

    /// Whether `name` runs in this call.
    ///
    /// # Errors
    /// It doesn't; the text says why.
    pub fn takes_part(&self, name: &str, peer: &Peer) -> Known<()> {
        let asked = self.options.wheels.contains_key(name) || self.options.with.iter().any(|w| w == name);
        if peer.optional && !asked {
            return Err("not asked for".into());
        }
        if peer.wheel && !self.options.wheels.contains_key(name) {
            return Err(format!("its wheel is not given: --peer {name}=PATH"));
        }
        Ok(())
    }

    /// The arguments of one run of a peer.
    #[must_use]
    pub fn peer_args(&self, row: &Row, name: &str, peer: &Peer, flags: &str) -> Vec<String> {
        let mut args = self.common(row);
        args.extend(["--tier".to_string(), row.tier.clone()]);
        args.extend(["--steps".to_string(), row.steps.to_string(), "--warmup".to_string(), row.warmup.to_string()]);
        if let Some(wheel) = self.options.wheels.get(name).filter(|_| peer.wheel) {
            args.extend(["--peer-path".to_string(), wheel.display().to_string()]);
        }
        args.extend(peer.flags.split_whitespace().chain(flags.split_whitespace()).map(String::from));
        args
    }

    /// One run of a peer with `args`: its RESULT; `flags` are those of them to be shown.
    ///
    /// # Errors
    /// It failed; the text says how.
    pub fn peer(&mut self, row: &Row, name: &str, peer: &Peer, flags: &str, args: &[String]) -> Known<Value> {
        let ran = self.python(row, name, &peer.script, args).and_then(|ended| {
            let mut result = child::result_line(&ended.log).ok_or("it printed no RESULT line")?;
            if !result["step_s_median"].is_number() {
                return Err("its RESULT has no step_s_median".to_string());
            }
            result["wall_s"] = json!(ended.seconds);
            Ok(result)
        });
        let text = match &ran {
            Ok(r) => format!(
                "{name} {flags}: {} a step, {:.2} GB, {:.0} s in all",
                secs(r["step_s_median"].as_f64().unwrap_or(f64::NAN)),
                r["vram_peak_alloc_gb"].as_f64().unwrap_or(f64::NAN),
                r["wall_s"].as_f64().unwrap_or(f64::NAN)
            ),
            Err(why) => format!("{name} {flags}: {why}"),
        };
        self.say(row, &text);
        ran
    }

    /// Removes the peer's shards if no later row of this call needs them.
    pub fn free_shards(&self, index: usize, row: &Row, name: &str, peer: &Peer) {
        let Some(shards) = row.shards(peer).filter(|_| self.options.free_shards) else { return };
        let needed = |later: &Row| later.peers.contains_key(name) && later.shards(peer).as_ref() == Some(&shards);
        if !self.rows[index + 1..].iter().any(needed) {
            let _ = std::fs::remove_dir_all(self.options.work.join(shards));
        }
    }
}

/// The object in a log that may have other lines before and after it.
fn json_in(log: &str) -> Option<Value> {
    let (from, to) = (log.find('{')?, log.rfind('}')?);
    serde_json::from_str(log.get(from..=to)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_found_between_other_lines() {
        assert_eq!(json_in("warning: x\n{\n \"a\": {\"b\": 1}\n}\nbye\n").unwrap()["a"]["b"], 1);
        assert!(json_in("nothing").is_none() && json_in("} {").is_none());
    }
}
