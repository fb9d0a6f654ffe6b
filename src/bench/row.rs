//! One row: ours and the peers in turn on the same job, the bound by rates of the same call, and the verdict.

use super::bound::bound;
use super::child::NO_END;
use super::drive::{Drive, on_drive};
use super::limits::{self, same_loss};
use super::ours::{self, Ours};
use super::peers::{Call, Known, NO_TIME};
use super::results::{PEERS, empty_row};
use super::scratch::without_paths;
use super::table::{Peer, Row};
use crate::config::RunConfig;
use crate::units::secs;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest difference between first-step losses of the same job.
const SAME_LOSS: f64 = 0.01;

/// A peer's best run that fits, and what was tried before it.
#[derive(Debug, Default)]
struct PeerRun {
    result: Option<Value>,
    flags: String,
    tried: Vec<Value>,
    reason: Option<String>,
    drive: Option<Drive>,
}

impl PeerRun {
    fn seconds(&self) -> Option<f64> {
        self.result.as_ref()?["step_s_median"].as_f64()
    }

    fn json(&self) -> Value {
        let Some(r) = &self.result else {
            return json!({ "seconds": null, "reason": self.reason, "flags": self.flags, "tried": self.tried });
        };
        let bytes = |key: &str| r[key].as_f64().map(|gb| (gb * 1e9) as u64);
        json!({
            "seconds": self.seconds(),
            "min": r["step_s_min"],
            "max": r["step_s_max"],
            "vram_live": bytes("vram_peak_alloc_gb"),
            "vram_reserved": bytes("vram_peak_reserved_gb"),
            "loss_first": r["loss_first"],
            "flags": self.flags,
            "tried": self.tried,
            "drive": self.drive.as_ref().map(Drive::json),
            "result": r,
        })
    }
}

/// Runs `row`, number `index` of the call: its JSON, with every key.
pub fn run(call: &mut Call<'_>, index: usize, row: &Row) -> Value {
    let mut out = empty_row(&row.name);
    describe(&mut out, row);
    let (checkpoint, tokens) = match call.checkpoint(row) {
        Ok(made) => made,
        Err(why) => {
            call.say(row, &format!("no checkpoint: {why}"));
            out["reasons"] = json!({ "checkpoint": why });
            return out;
        }
    };
    let peers_first = row.vram_of_better_peer;
    let mut peers = if peers_first { all_peers(call, index, row, &checkpoint) } else { BTreeMap::new() };
    let (ours, drive) = match budget(call, row, &peers) {
        Ok(more) => our_run(call, row, &more, &checkpoint, &tokens),
        Err(why) => (Err(why), None),
    };
    if !peers_first {
        peers = all_peers(call, index, row, &checkpoint);
    }
    let mut reasons = Map::new();
    put_peers(&mut out, call, &peers, &mut reasons);
    put_ours(&mut out, call, row, &ours, drive.as_ref(), &mut reasons);
    if row.resident {
        match resident(call, row, ours.as_ref().ok(), &checkpoint, &tokens) {
            Ok(seconds) => out["resident_s"] = json!(seconds),
            Err(why) => drop(reasons.insert("resident".into(), why.into())),
        }
    }
    // What ran out of the call's time is measured whole in another call.
    let late = call.time(row).is_err();
    let cut = |why: &Value| why.as_str().is_some_and(|w| w.contains(NO_TIME) || (late && w.contains(NO_END)));
    out["complete"] = json!(!reasons.values().any(cut));
    out["reasons"] = reasons.into();
    let (mut judged, _) = limits::judge(&row.limits, &out);
    let losses = losses(call, &ours, &peers);
    if !row.peers.is_empty() {
        judged.push(same_loss(&losses, SAME_LOSS));
    }
    out["loss_first"] = losses.into_iter().map(|(name, loss)| (name, json!(loss))).collect::<Map<_, _>>().into();
    out["ok"] = json!(limits::verdict(&judged));
    out["limits"] = judged.into();
    for limit in out["limits"].as_array().into_iter().flatten() {
        let word = match limit["ok"].as_bool() {
            Some(true) => "holds",
            Some(false) => "FAILS",
            None => "open",
        };
        let ratio = limit["ratio"].as_f64().map_or("N/A".into(), |r| format!("{r:.3}"));
        call.say(row, &format!("{word}: {} (ratio {ratio})", limit["text"].as_str().unwrap_or_default()));
    }
    out
}

/// What the row is, for a reader of the results.
fn describe(out: &mut Value, row: &Row) {
    let facts = json!({
        "shape": row.shape,
        "layers": row.layers,
        "seq": row.seq,
        "batch": row.batch,
        "accum": row.accum,
        "tokens": row.tokens(),
        "steps": row.steps,
        "warmup": row.warmup,
        "config": row.config,
        "note": row.note,
    });
    if let (Some(out), Value::Object(facts)) = (out.as_object_mut(), facts) {
        out.extend(facts);
    }
}

/// The keys of our config that depend on what the peers needed.
fn budget(call: &Call<'_>, row: &Row, peers: &BTreeMap<String, PeerRun>) -> Known<Vec<String>> {
    if !row.vram_of_better_peer {
        return Ok(Vec::new());
    }
    let (name, peer) = better(call, peers).ok_or("no peer was measured, and its VRAM is our budget")?;
    let gb = peer.result.as_ref().and_then(|r| r["vram_peak_alloc_gb"].as_f64());
    let gb = gb.ok_or_else(|| format!("{name} did not say how much VRAM it used, and that is our budget"))?;
    Ok(vec![format!("stream.vram_budget={}", (gb * 1e9) as u64)])
}

/// The fastest of the rivals.
fn better<'p>(call: &Call<'_>, peers: &'p BTreeMap<String, PeerRun>) -> Option<(&'p str, &'p PeerRun)> {
    let rival = |name: &str| call.table.peer.get(name).is_some_and(|p| p.rival);
    let timed = peers.iter().filter(|(name, run)| rival(name) && run.seconds().is_some());
    let seconds = |run: &PeerRun| run.seconds().unwrap_or(f64::INFINITY);
    timed.min_by(|a, b| seconds(a.1).total_cmp(&seconds(b.1))).map(|(name, run)| (name.as_str(), run))
}

fn our_run(
    call: &mut Call<'_>,
    row: &Row,
    more: &[String],
    checkpoint: &Path,
    tokens: &Path,
) -> (Known<Ours>, Option<Drive>) {
    let config = match row.our_config(more) {
        Ok(config) => placed(config, checkpoint, tokens),
        Err(e) => return (Err(e.to_string()), None),
    };
    on_drive(call, row, checkpoint, &mut |call| train(call, row, &config, "ours"))
}

fn placed(mut config: RunConfig, checkpoint: &Path, tokens: &Path) -> RunConfig {
    config.model.path = checkpoint.display().to_string();
    config.data.files = vec![PathBuf::from(tokens)];
    config
}

fn train(call: &mut Call<'_>, row: &Row, config: &RunConfig, name: &str) -> Known<Ours> {
    let limit = call.time(row)?;
    let log = call.log(row, name);
    let ran = ours::run(config, row.warmup, limit, Some(&log)).map_err(|e| without_paths(&e.to_string()));
    let text = match &ran {
        Ok(o) => format!(
            "{name}: {} a step, {:.2} GB, {:.0} s in all",
            secs(o.seconds.median().unwrap_or(f64::NAN)),
            o.vram_live().unwrap_or(0) as f64 / 1e9,
            o.wall
        ),
        Err(why) => format!("{name}: {why}"),
    };
    call.say(row, &text);
    ran
}

/// Our step with every block resident, of the same job; run once in a call.
fn resident(call: &mut Call<'_>, row: &Row, ours: Option<&Ours>, checkpoint: &Path, tokens: &Path) -> Known<f64> {
    let key = format!("{}-{}-{}x{}x{}", row.shape, row.layers, row.accum, row.batch, row.seq);
    if let Some(seconds) = ours.filter(|o| o.all_resident()).and_then(|o| o.seconds.median()) {
        call.residents.insert(key.clone(), Ok(seconds));
    }
    if let Some(known) = call.residents.get(&key) {
        return known.clone();
    }
    let config = row.resident_config().map_err(|e| e.to_string())?;
    let ran = train(call, row, &placed(config, checkpoint, tokens), "ours, all resident");
    let seconds = ran.and_then(|o| match (o.all_resident(), o.seconds.median()) {
        (true, Some(median)) => Ok(median),
        _ => Err(format!("not every block found room on the device: {}", o.blocks())),
    });
    call.residents.insert(key, seconds.clone());
    seconds
}

fn all_peers(call: &mut Call<'_>, index: usize, row: &Row, checkpoint: &Path) -> BTreeMap<String, PeerRun> {
    let mut runs = BTreeMap::new();
    for (name, alternatives) in &row.peers {
        let Some(peer) = call.table.peer.get(name).cloned() else { continue };
        let run = match call.takes_part(name, &peer) {
            Ok(()) => one_peer(call, row, name, &peer, alternatives, checkpoint),
            Err(why) => PeerRun { reason: Some(why), ..PeerRun::default() },
        };
        call.free_shards(index, row, name, &peer);
        runs.insert(name.clone(), run);
    }
    runs
}

/// Runs a peer with one set of flags after the other until it ends well within the row's cap.
fn one_peer(
    call: &mut Call<'_>,
    row: &Row,
    name: &str,
    peer: &Peer,
    alternatives: &[String],
    checkpoint: &Path,
) -> PeerRun {
    let mut run = PeerRun::default();
    for flags in alternatives {
        let args = call.peer_args(row, name, peer, flags);
        let command = format!("{} {}", peer.script, args.join(" "));
        let before = call.finished.get(&command).cloned();
        let (ran, drive) = before
            .unwrap_or_else(|| on_drive(call, row, checkpoint, &mut |call| call.peer(row, name, peer, flags, &args)));
        // Another row may compare with the very same run.
        call.finished.insert(command, (ran.clone(), drive.clone()));
        run.flags = format!("{} {flags}", peer.flags).trim().to_string();
        let over = |r: &Value| {
            let gb = r["vram_peak_alloc_gb"].as_f64().filter(|gb| row.vram_cap_gb > 0.0 && *gb > row.vram_cap_gb);
            gb.map(|gb| format!("{gb:.2} GB of VRAM, the cap is {} GB", row.vram_cap_gb))
        };
        match ran.and_then(|r| over(&r).map_or(Ok(r), Err)) {
            Ok(result) => return PeerRun { result: Some(result), drive, reason: None, ..run },
            Err(why) => {
                run.tried.push(json!({ "flags": run.flags, "reason": why }));
                run.reason = Some(why);
            }
        }
    }
    run
}

fn put_peers(out: &mut Value, call: &Call<'_>, peers: &BTreeMap<String, PeerRun>, reasons: &mut Map<String, Value>) {
    for (name, run) in peers {
        out["peers"][name] = json!(run.seconds());
        if let Some(why) = &run.reason {
            reasons.insert(name.clone(), why.clone().into());
        }
    }
    for name in PEERS.into_iter().filter(|p| !peers.contains_key(*p)) {
        reasons.insert(name.into(), "not in this row".into());
    }
    if let Some((name, run)) = better(call, peers) {
        out["better_peer"] = json!(name);
        out["better_peer_s"] = json!(run.seconds());
    }
    out["peer_details"] = peers.iter().map(|(name, run)| (name.clone(), run.json())).collect::<Map<_, _>>().into();
}

fn put_ours(
    out: &mut Value,
    call: &mut Call<'_>,
    row: &Row,
    ours: &Known<Ours>,
    drive: Option<&Drive>,
    reasons: &mut Map<String, Value>,
) {
    let compute = call.compute(row);
    match &compute {
        Ok(c) => out["floor_s"] = json!(c.step(row.layers)),
        Err(why) => drop(reasons.insert("floor".into(), why.clone().into())),
    }
    let ours = match ours {
        Ok(ours) => ours,
        Err(why) => {
            reasons.insert("ours".into(), why.clone().into());
            return;
        }
    };
    // A drive is no slower than what this very run got from it, whatever it gave before and after.
    let read = ours.drive_rate();
    let rates = call.rates(row, drive.and_then(Drive::mean).map(|rate| rate.max(read)));
    let bound = bound(&ours.plan, rates, compute.ok());
    out["ours_s"] = json!(ours.seconds.median());
    out["ours_p95"] = json!(ours.seconds.percentile(0.95));
    out["ours_n"] = json!(ours.seconds.n());
    out["bound_s"] = bound["seconds"].clone();
    out["bound_resource"] = bound["resource"].clone();
    out["bound"] = bound;
    out["vram_live"] = json!(ours.vram_live());
    out["written"] = json!(ours.written);
    out["tokens_per_second"] = json!(ours.seconds.median().map(|s| row.tokens() as f64 / s));
    let host = |term: &str| ours.plan.host.terms.get(term).map_or(0, |b| b.0);
    out["host_weights"] = json!(host("ring") + host("ram_tier"));
    out["ours"] = ours.json();
    out["ours"]["config"] = ours.report["config"].clone();
    out["drive"] = drive.map_or(Value::Null, Drive::json);
    if drive.is_some() {
        out["drive"]["during"] = json!(read);
    }
}

/// First-step losses of every program that trained the same model.
fn losses(call: &Call<'_>, ours: &Known<Ours>, peers: &BTreeMap<String, PeerRun>) -> Vec<(String, f64)> {
    let own = ours.as_ref().ok().and_then(|o| o.loss_first).map(|l| ("ours".to_string(), l));
    let same = peers.iter().filter(|(name, _)| call.table.peer.get(*name).is_some_and(|p| !p.other_model));
    let theirs = same.filter_map(|(name, run)| Some((name.clone(), run.result.as_ref()?["loss_first"].as_f64()?)));
    own.into_iter().chain(theirs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_peer_is_null_with_its_reason() {
        let run = PeerRun { reason: Some("ended with code 1: OOM".into()), ..PeerRun::default() };
        assert!(run.json()["seconds"].is_null() && run.json()["reason"] == "ended with code 1: OOM");
    }
}
