//! Limits on a row's figures: `ours_s <= 1.06 x bound_s`, judged on the row's own JSON.

use serde::Deserialize;
use serde_json::{Value, json};

/// One limit: `figure <= at_most`, times the largest of the figures `of` where some are named.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Key of the row, dotted for one inside: `ours_s`, `peers.soup`, `vram_live`.
    pub figure: String,
    /// The factor, or the value itself where `of` is empty.
    pub at_most: f64,
    /// Keys of the row; the largest counts.
    #[serde(default)]
    pub of: Vec<String>,
}

/// The number under `key` (dotted for one inside) of `row`.
#[must_use]
pub fn figure(row: &Value, key: &str) -> Option<f64> {
    row.pointer(&format!("/{}", key.replace('.', "/")))?.as_f64().filter(|x| x.is_finite())
}

impl Limit {
    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        let of = match &self.of[..] {
            [] if self.at_most >= 1e6 => return format!("{} <= {} GB", self.figure, self.at_most / 1e9),
            [] => return format!("{} <= {}", self.figure, self.at_most),
            [one] => one.clone(),
            many => format!("max({})", many.join(", ")),
        };
        format!("{} <= {} x {of}", self.figure, self.at_most)
    }

    /// Judges `row`: `{text, value, limit, ratio, ok}`; `ok` is `null` where a figure is missing.
    ///
    /// `ratio` is the value over what it is measured by (before the factor), to be read beside the factor.
    #[must_use]
    pub fn judge(&self, row: &Value) -> Value {
        let value = figure(row, &self.figure);
        let of: Option<Vec<f64>> = self.of.iter().map(|k| figure(row, k)).collect();
        let base = of.map(|of| of.into_iter().reduce(f64::max).unwrap_or(1.0));
        let limit = base.map(|b| b * self.at_most);
        let by = if self.of.is_empty() { limit } else { base };
        json!({
            "text": self.text(),
            "value": value,
            "limit": limit,
            "ratio": value.zip(by).map(|(v, b)| v / b).filter(|r| r.is_finite()),
            "ok": value.zip(limit).map(|(v, l)| v <= l),
        })
    }
}

/// Judges all of them: their JSON, and whether they hold. One that fails decides; one that is unknown leaves it open.
#[must_use]
pub fn judge(limits: &[Limit], row: &Value) -> (Vec<Value>, Option<bool>) {
    let judged: Vec<Value> = limits.iter().map(|l| l.judge(row)).collect();
    let ok = verdict(&judged);
    (judged, ok)
}

/// `Some(false)` if any failed, `None` if any is unknown, `Some(true)` otherwise.
#[must_use]
pub fn verdict(judged: &[Value]) -> Option<bool> {
    if judged.iter().any(|j| j["ok"] == false) {
        Some(false)
    } else if judged.iter().any(|j| j["ok"].is_null()) {
        None
    } else {
        Some(true)
    }
}

/// The limit that all programs compute the same: first-step losses within `share` of each other; open with one alone.
#[must_use]
pub fn same_loss(losses: &[(String, f64)], share: f64) -> Value {
    let values = || losses.iter().map(|l| l.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    let spread = (losses.len() > 1).then(|| (high - low) / low.abs().max(1e-9));
    json!({
        "text": format!("first-step losses agree within {} %", share * 100.0),
        "value": spread,
        "limit": share,
        "ratio": spread.map(|s| s / share),
        "ok": spread.map(|s| s <= share),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(figure: &str, at_most: f64, of: &[&str]) -> Limit {
        Limit { figure: figure.into(), at_most, of: of.iter().map(|s| s.to_string()).collect() }
    }

    #[test]
    fn limits_hold_fail_or_stay_open() {
        let row =
            json!({ "ours_s": 1.0, "bound_s": 0.9, "resident_s": 1.2, "vram_live": 3.5e9, "peers": { "soup": null } });
        let holds = limit("ours_s", 1.05, &["bound_s", "resident_s"]);
        let j = holds.judge(&row);
        assert_eq!(j["text"], "ours_s <= 1.05 x max(bound_s, resident_s)");
        assert!(j["ok"] == true && (j["ratio"].as_f64().unwrap() - 1.0 / 1.2).abs() < 1e-12, "{j}");
        let fails = limit("ours_s", 1.06, &["bound_s"]);
        assert_eq!(fails.judge(&row)["ok"], false);
        let vram = limit("vram_live", 3.6e9, &[]);
        assert_eq!((vram.judge(&row)["ok"].clone(), vram.text().as_str()), (json!(true), "vram_live <= 3.6 GB"));
        let open = limit("ours_s", 0.95, &["peers.soup"]);
        assert!(open.judge(&row)["ok"].is_null());
        assert_eq!(judge(&[holds.clone(), vram.clone()], &row).1, Some(true));
        assert_eq!(judge(&[holds.clone(), open.clone()], &row).1, None);
        assert_eq!(judge(&[fails, open], &row).1, Some(false));
        assert_eq!(limit("written", 0.0, &[]).judge(&json!({ "written": 0 }))["ok"], true);
    }

    #[test]
    fn losses_are_compared_with_each_other() {
        let of = |l: &[f64]| same_loss(&l.iter().map(|x| (String::new(), *x)).collect::<Vec<_>>(), 0.01)["ok"].clone();
        assert_eq!((of(&[11.9, 11.95, 12.0]), of(&[11.9, 12.1])), (json!(true), json!(false)));
        assert!(of(&[11.9]).is_null() && of(&[]).is_null());
    }
}
