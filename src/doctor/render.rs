//! The doctor's report as lines of text.

use crate::clock;
use crate::text::clean;
use crate::units::{Bytes, rate};
use serde_json::Value;
use std::fmt::Write as _;

/// Lines with a label in front.
struct Page(String);

impl Page {
    fn line(&mut self, label: &str, text: impl AsRef<str>) {
        // Writing to a String can't fail.
        let _ = writeln!(self.0, "{label:<10} {}", text.as_ref().trim_end());
    }
}

/// Writes a report as lines of text.
#[must_use]
pub fn render(report: &Value) -> String {
    let mut page = Page(String::new());
    let f = &report["features"];
    let features = format!("tui {}, torch {}, cuda {}", flag(&f["tui"]), flag(&f["torch"]), flag(&f["cuda"]));
    page.line("version", format!("{} ({features})", text(&report["version"])));
    gpus(&mut page, &report["gpu"]);
    memory(&mut page, &report["ram"]);
    let c = &report["cpu"];
    let flops = |v: &Value| v.as_f64().map_or("N/A".into(), |f| format!("{:.2} TFLOP/s", f / 1e12));
    let source = if c["flops"] == c["flops_assumed"] { "guessed" } else { "calibrated" };
    page.line("cpu", format!("{}, {} threads, {} {source}", text(&c["name"]), text(&c["threads"]), flops(&c["flops"])));
    for v in list(&report["volumes"]) {
        volume(&mut page, v);
    }
    let u = &report["io_uring"];
    let why = u["why_not"].as_str().map(|w| format!(": {}", clean(w))).unwrap_or_default();
    let rung = match u["rung"].as_str() {
        Some("registered") => "allowed, with registered buffers".to_string(),
        Some("plain") => format!("allowed{why}"),
        _ => format!("not allowed{why}; reads use a pool of threads"),
    };
    page.line("io_uring", rung);
    let h = &report["hub"];
    page.line(
        "hub cache",
        format!("{} ({})", text(&h["cache"]), if h["exists"] == true { "there" } else { "not there" }),
    );
    page.line("hub", format!("token {}, offline {}", flag(&h["token"]), flag(&h["offline"])));
    let s = &report["calibration"];
    let none = "nothing yet: `bench calibrate` measures drive, link and products in about ten seconds";
    page.line("calibrated", if s["exists"] == true { text(&s["file"]) } else { none.into() });
    for n in list(&report["notes"]) {
        page.line("note", text(n));
    }
    page.0
}

fn gpus(page: &mut Page, g: &Value) {
    let cards = list(&g["cards"]);
    match (g["driver_present"].as_bool(), g["nvml"].as_bool()) {
        (Some(false), Some(false)) => page.line("gpu", "no CUDA driver: blocks compute on the processor"),
        (_, Some(false)) => page.line("gpu", "driver found, but no NVML library"),
        _ => page.line("gpu", format!("driver {}, {} card(s)", text(&g["driver"]), cards.len())),
    }
    for c in cards {
        let shared = if c["memory"] == "integrated/shared" { ", integrated/shared memory" } else { "" };
        page.line("", format!("{} {} ({}){shared}", text(&c["index"]), text(&c["name"]), text(&c["uuid"])));
        page.line(
            "",
            format!(
                "  VRAM {} free of {}, capability {}, PCIe {}",
                bytes(&c["vram_free"]),
                bytes(&c["vram_total"]),
                text(&c["capability"]),
                text(&c["pcie"])
            ),
        );
        page.line(
            "",
            format!(
                "  SM clock {} of {} MHz, {} C, {} W, {} % busy",
                text(&c["sm_clock_mhz"]),
                text(&c["sm_clock_max_mhz"]),
                text(&c["temperature_c"]),
                text(&c["power_w"]),
                text(&c["utilisation"])
            ),
        );
    }
    let t = &g["taken"];
    if t.is_object() {
        page.line(
            "",
            format!("a run takes {}, {}: {} of VRAM", text(&t["index"]), text(&t["why"]), bytes(&t["budget"])),
        );
        if !t["margin"].is_null() {
            page.line(
                "",
                format!("  {} are kept free: Windows moves what is past it to the host", bytes(&t["margin"])),
            );
        }
        page.line("", format!("  overhead beyond tensors {}, {}", bytes(&t["overhead"]), text(&t["overhead_source"])));
    }
}

fn memory(page: &mut Page, r: &Value) {
    let usable = format!("{} usable of {}", bytes(&r["available"]), bytes(&r["total"]));
    page.line(
        "ram",
        format!("{usable} (limited by {}), {} may be pinned", text(&r["limited_by"]), bytes(&r["pinnable"])),
    );
    page.line("", format!("swap {} free of {}", bytes(&r["swap_free"]), bytes(&r["swap"])));
    let lock = if r["memlock"].is_null() { "no limit".into() } else { bytes(&r["memlock"]) };
    page.line("memlock", format!("{lock}; io_uring's registered buffers count against it"));
}

fn volume(page: &mut Page, d: &Value) {
    let uses: Vec<String> = list(&d["uses"]).iter().map(text).collect();
    page.line("volume", uses.join(", "));
    let link = d["link"].as_str().map(|l| format!(", {}", clean(l))).unwrap_or_default();
    page.line("", format!("{} ({}){link}", text(&d["kind"]), text(&d["why"])));
    let quota = match (&d["quota_left"], d["why_no_quota"].as_str()) {
        (Value::Null, Some(why)) => format!(" (quota not asked: {})", clean(why)),
        (Value::Null, None) => String::new(),
        (left, _) => format!(" (quota leaves {})", bytes(left)),
    };
    let aligned = d["alignment"]["offset"].as_u64().map(|a| format!(", aligned to {a}")).unwrap_or_default();
    let direct = flag(&d["o_direct"]);
    page.line(
        "",
        format!("{}, {} free{quota}, O_DIRECT {direct}{aligned}", text(&d["file_system"]), bytes(&d["free"])),
    );
    let read = &d["calibrated"]["read"];
    match (read["spread"][0].as_f64(), read["spread"][1].as_f64(), read["at"].as_u64()) {
        (Some(low), Some(high), Some(at)) => {
            page.line("", format!("reads at {} to {}, calibrated {}", rate(low), rate(high), &clock::utc(at)[..10]));
        }
        _ => page.line("", format!("reads at {} (guessed)", rate(d["read_assumed"].as_f64().unwrap_or(f64::NAN)))),
    }
    if let Some(m) = d["read_measured"].as_object() {
        match m["rate"].as_f64() {
            Some(x) => page.line("", format!("reads at {} (measured: {})", rate(x), text(&m["reader"]))),
            None => page.line("", format!("rate not measured: {}", text(&m["why_not"]))),
        }
    }
    if let Some(kind) = d["kind_by_reading"].as_str() {
        page.line("", format!("it reads like {kind}"));
    }
    for w in list(&d["wear"]) {
        wear(page, w);
    }
}

fn wear(page: &mut Page, w: &Value) {
    let life = w["life_used"].as_f64().map(|l| format!(", {:.0} % of its life used", l * 100.0)).unwrap_or_default();
    let told = match (w["written"].as_u64(), w["since_boot"].as_u64()) {
        (Some(all), _) => format!("{} written in its life{life}", Bytes(all)),
        (None, Some(boot)) => format!("{} written since the system started{life}", Bytes(boot)),
        (None, None) => format!("bytes written N/A{life}"),
    };
    page.line("", format!("{}: {told} (by {})", text(&w["device"]), text(&w["source"])));
    for note in list(&w["notes"]) {
        page.line("", format!("  {}", text(note)));
    }
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

fn flag(v: &Value) -> &'static str {
    match v.as_bool() {
        Some(true) => "yes",
        Some(false) => "no",
        None => "N/A",
    }
}

/// A value for people: no quotes, `N/A` for null, control characters replaced.
fn text(v: &Value) -> String {
    match v {
        Value::Null => "N/A".into(),
        Value::String(s) => clean(s),
        v => v.to_string(),
    }
}

fn bytes(v: &Value) -> String {
    v.as_u64().map_or("N/A".into(), |b| Bytes(b).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn case_pl_09_missing_fields_read_not_available_never_zero() {
        let card = json!({
            "index": 0, "name": null, "uuid": null, "vram_total": null, "vram_free": null, "capability": null,
            "pcie": null, "sm_clock_mhz": null, "sm_clock_max_mhz": null, "temperature_c": null, "power_w": null,
            "utilisation": null });
        let gpu = json!({ "driver_present": true, "nvml": true, "driver": null, "cards": [card] });
        let text = render(&json!({ "gpu": gpu, "volumes": [{ "uses": ["results"], "wear": [{ "device": "sda" }] }] }));
        assert!(text.contains("VRAM N/A free of N/A") && text.contains("SM clock N/A of N/A MHz"), "{text}");
        assert!(text.contains("sda: bytes written N/A (by N/A)") && !text.contains("null"), "{text}");
    }

    #[test]
    fn wear_names_its_source_and_hostile_names_are_clean() {
        let wear =
            json!({ "device": "nvme0n1", "written": 27_723_431_936_000_u64, "life_used": 0.07, "source": "UDisks" });
        let old = json!({ "device": "sd\u{1b}[31m", "since_boot": 1_024_000, "source": "the kernel",
                          "notes": ["UDisks: the daemon is not running"] });
        let text = render(&json!({ "volumes": [{ "uses": ["hub cache"], "wear": [wear, old] }] }));
        assert!(text.contains("nvme0n1: 27.72 TB written in its life, 7 % of its life used (by UDisks)"), "{text}");
        assert!(
            text.contains("1.0 MB written since the system started (by the kernel)") && !text.contains('\u{1b}'),
            "{text}"
        );
    }
}
