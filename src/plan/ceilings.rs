//! The largest model that a machine can train in each way, and what binds.
//!
//! Every way costs so many bytes a parameter of host memory, of disk and of writes a step; what the machine has of each,
//! over what a parameter costs, is a ceiling, and the lowest of them binds. A model of the asked size is thought to have
//! blocks like the present one's, only more of them: so activations at block borders and adapters grow with it, while
//! ring, head, embedding and the moment of one block don't.

use super::full::{self, Largest, Ring, State};
use super::memory::{self, Thrift};
use super::room::usable;
use super::types::Ceiling;
use super::verdict::Inputs;
use super::wear;
use crate::units::Bytes;

/// Bytes that one parameter costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerParam {
    /// Of host memory.
    pub host: f64,
    /// Of space on the drive.
    pub disk: f64,
    /// Written to the drive in a step.
    pub written: f64,
    /// Of device memory.
    pub device: f64,
}

/// What there is, after what every model costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Have {
    /// Host memory.
    pub host: Bytes,
    /// Free space on the drive.
    pub disk: Bytes,
    /// Bytes that the drive may take in one step: what is left of its rating over the least number of steps.
    pub written: Option<Bytes>,
    /// Device memory; `None` = computing in host memory.
    pub device: Option<Bytes>,
}

/// The largest number of parameters, and what binds.
#[must_use]
pub fn largest(have: &Have, per: &PerParam) -> (u64, &'static str) {
    let over = |have: Bytes, per: f64| if per > 0.0 { have.0 as f64 / per } else { f64::INFINITY };
    let all = [
        (over(have.host, per.host), "host memory"),
        (have.device.map_or(f64::INFINITY, |d| over(d, per.device)), "device memory"),
        (over(have.disk, per.disk), "disk space"),
        (have.written.map_or(f64::INFINITY, |w| over(w, per.written)), "wear"),
    ];
    let (params, limit) = all.into_iter().fold((f64::INFINITY, "nothing"), |a, b| if b.0 < a.0 { b } else { a });
    (params as u64, limit)
}

/// Ceilings of this machine for models made of blocks like this one's, jobs like this one:
/// `lora` (a frozen base from disk), `lora_ram` (all of it in memory), `full` and `full_8bit` (state on disk, with a
/// 16-bit export beside it), `full_ram`.
pub fn ceilings(x: &Inputs<'_>) -> Vec<Ceiling> {
    let base = x.checkpoint.total_bytes().0 as f64 / x.model.params.max(1) as f64;
    let lora = lora_costs(x);
    let mut all = Vec::new();
    let mut put = |mode: &str, ways: [(Have, PerParam); 2]| {
        // Block inputs on the device or in host memory, whichever allows more.
        let best = ways.iter().map(|(h, p)| largest(h, p)).max_by_key(|b| b.0);
        let (params, limit) = best.unwrap_or((0, "nothing"));
        all.push(Ceiling { mode: mode.into(), params, limit: limit.into() });
    };
    put("lora", lora.map(|(h, p)| (h, PerParam { disk: base, ..p })));
    put(
        "lora_ram",
        lora.map(|(mut h, p)| {
            // Device memory that stays free takes blocks too.
            let pinned = x.machine.gpu.as_ref().map_or(h.host, |_| h.host.min(x.machine.ram.pinnable));
            h.host = pinned + h.device.unwrap_or(Bytes::ZERO);
            h.device = None;
            (h, PerParam { host: base + p.host + p.device, disk: base, ..PerParam::default() })
        }),
    );
    for (mode, state, in_host) in
        [("full", State::Fp32, false), ("full_8bit", State::EightBit, false), ("full_ram", State::Fp32, true)]
    {
        put(mode, full_costs(x, state, in_host, base));
    }
    all
}

fn device(x: &Inputs<'_>) -> Option<Bytes> {
    x.machine.gpu.as_ref().map(|g| g.vram_free.saturating_sub(g.overhead))
}

/// What is left of `have` after the `fixed` bytes, where the device has memory of its own.
fn split(x: &Inputs<'_>, on_device: Bytes, on_host: Bytes) -> Have {
    let device = device(x).map(|d| d.saturating_sub(on_device));
    let beside = if device.is_none() { on_device } else { Bytes::ZERO };
    Have {
        host: usable(x.machine.ram.available).saturating_sub(on_host + beside),
        disk: x.machine.disk.free,
        written: None,
        device,
    }
}

/// Parameters in all blocks.
fn block_params(x: &Inputs<'_>) -> f64 {
    let m = x.model;
    let rest = (m.embed + m.head).0 as f64 / (x.checkpoint.total_bytes().0.max(1) as f64) * m.params as f64;
    (m.params as f64 - rest).max(1.0)
}

/// LoRA with block inputs on the device, and in host memory.
fn lora_costs(x: &Inputs<'_>) -> [(Have, PerParam); 2] {
    [false, true].map(|offload| {
        let m = x.model;
        let thrift = Thrift { stream_head: true, offload, ..Thrift::default() };
        let device = memory::device_terms(m, x.job, x.machine.gpu.is_none(), thrift);
        let host = memory::host_terms(m, x.job, thrift);
        let term = |t: &memory::Terms, name: &str| t.get(name).copied().unwrap_or(Bytes::ZERO);
        let grows = term(&device, "adapters") + if offload { Bytes::ZERO } else { term(&device, "boundaries") };
        let host_grows = term(&host, "boundaries");
        // A part of each kind in the ring, and a short ring for reads.
        let [attention, feed_forward] = m.part_slots();
        let fixed = memory::total(&device).saturating_sub(grows) + attention + feed_forward;
        let host_fixed = memory::total(&host).saturating_sub(host_grows) + Bytes(256 << 20);
        let mut per = PerParam {
            device: grows.0 as f64 / block_params(x),
            host: host_grows.0 as f64 / block_params(x),
            ..PerParam::default()
        };
        if x.machine.gpu.is_none() {
            (per.host, per.device) = (per.host + per.device, 0.0);
        }
        (split(x, fixed, host_fixed), per)
    })
}

/// Full finetuning with `state`, block inputs on the device and in host memory.
fn full_costs(x: &Inputs<'_>, state: State, in_host: bool, base: f64) -> [(Have, PerParam); 2] {
    [false, true].map(|offload| {
        let job = full::job(x);
        let thrift = Thrift { stream_head: true, offload, ..Thrift::default() };
        let device = full::device(x, &job, state, Largest::of(x), Ring::Parts, thrift);
        let boundaries = |t: &memory::Terms| t.get("boundaries").copied().unwrap_or(Bytes::ZERO);
        let grows = if offload { Bytes::ZERO } else { boundaries(&device) };
        let host_terms = memory::host_terms(x.model, &job, thrift);
        let fixed = memory::total(&device).saturating_sub(grows);
        let host_fixed = memory::total(&host_terms).saturating_sub(boundaries(&host_terms));
        let mut have = split(x, fixed, host_fixed);
        let steps = x.config.wear.min_steps.max(1);
        if !x.config.wear.overridden {
            have.written = wear::left(&x.machine.disk, x.config).map(|l| Bytes(l.0 / steps));
        }
        let stated = state.bytes(1 << 30).0 as f64 / (1u64 << 30) as f64;
        let mut per = PerParam {
            device: grows.0 as f64 / block_params(x),
            host: boundaries(&host_terms).0 as f64 / block_params(x),
            // The download, two extents of state, a 16-bit result.
            disk: base + if in_host { 0.0 } else { 2.0 * stated } + 2.0,
            written: if in_host { 0.0 } else { stated },
        };
        if in_host {
            per.host += stated;
            if x.machine.gpu.is_some() {
                have.host = have.host.min(x.machine.ram.pinnable);
            }
        }
        if x.machine.gpu.is_none() {
            (per.host, per.device) = (per.host + per.device, 0.0);
        }
        (have, per)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_ceiling_binds() {
        let have = Have { host: Bytes(800), disk: Bytes(300), written: Some(Bytes(60)), device: Some(Bytes(10)) };
        let per = PerParam { host: 8.0, ..PerParam::default() };
        assert_eq!(largest(&have, &per), (100, "host memory"));
        assert_eq!(largest(&have, &PerParam { disk: 14.0, ..per }), (21, "disk space"));
        assert_eq!(largest(&have, &PerParam { disk: 14.0, written: 12.0, ..per }), (5, "wear"));
        assert_eq!(largest(&have, &PerParam { device: 10.0, written: 12.0, ..per }), (1, "device memory"));
        let unknown = Have { written: None, device: None, ..have };
        assert_eq!(largest(&unknown, &PerParam { device: 10.0, written: 12.0, ..per }), (100, "host memory"));
    }
}
