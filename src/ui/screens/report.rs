//! A run's report as rows, and two of them side by side.

use crate::plan::words;
use crate::report::flat_settings;
use crate::ui::text::{cut, fit, middle};
use crate::ui::theme::{Theme, Tone};
use crate::units::{Bytes, count, rate, secs};
use ratatui::text::{Line, Span};
use serde_json::Value;
use std::collections::BTreeSet;

/// How a value of the report is shown.
#[derive(Clone, Copy)]
enum Form {
    Text,
    /// An object with a `name`, or the name itself.
    Name,
    /// What limited the steps.
    Resource,
    Count,
    Number,
    Bytes,
    Seconds,
}

/// Label, path in `report.json`, form. Grouped as a reader asks: what, how well, how fast, at what cost.
const ROWS: &[(&str, &str, Form)] = &[
    ("run", "run_id", Form::Text),
    ("model", "model", Form::Name),
    ("mode", "mode", Form::Text),
    ("verdict", "verdict", Form::Text),
    ("status", "status", Form::Text),
    ("steps", "steps", Form::Count),
    ("tokens", "tokens", Form::Count),
    ("", "", Form::Text),
    ("loss first", "loss.first", Form::Number),
    ("loss last", "loss.last", Form::Number),
    ("eval loss before", "eval.before", Form::Number),
    ("eval loss after", "eval.after", Form::Number),
    ("", "", Form::Text),
    ("step, median", "seconds_per_step.median", Form::Seconds),
    ("step, p95", "seconds_per_step.p95", Form::Seconds),
    ("forecast low", "forecast.low", Form::Seconds),
    ("forecast high", "forecast.high", Form::Seconds),
    ("fastest possible", "bound.seconds", Form::Seconds),
    ("bottleneck", "bound.resource", Form::Resource),
    ("waited for weights", "stats.stall_s", Form::Seconds),
    ("", "", Form::Text),
    ("layers loaded, plan", "residency.planned", Form::Count),
    ("layers loaded, most", "residency.peak", Form::Count),
    ("read from disk", "bytes.disk_read", Form::Bytes),
    ("RAM→GPU", "bytes.h2d", Form::Bytes),
    ("GPU→RAM", "bytes.d2h", Form::Bytes),
    ("model drive written", "bytes.model_drive_written", Form::Bytes),
    ("VRAM planned", "vram.planned", Form::Bytes),
    ("VRAM, tensors", "vram.live", Form::Bytes),
    ("VRAM reserved", "vram.reserved", Form::Bytes),
    ("VRAM in use", "vram.device", Form::Bytes),
];

const LABEL: usize = 20;
/// Columns of the change between two runs.
const CHANGE: usize = 10;

/// The value at a dotted path; numbers index arrays.
#[must_use]
pub fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |v, key| match v {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    })
}

fn shown(report: &Value, path: &str, form: Form) -> String {
    let Some(value) = at(report, path).filter(|v| !v.is_null()) else {
        return "–".into();
    };
    match (form, value) {
        (Form::Text | Form::Name, Value::String(s)) => s.clone(),
        (Form::Resource, Value::String(s)) => {
            words::limiting(s, at(report, "machine.device").and_then(Value::as_str).unwrap_or_default()).to_owned()
        }
        (Form::Name, v) => v["name"].as_str().filter(|n| !n.is_empty()).unwrap_or("–").to_owned(),
        (Form::Bytes, v) => v.as_u64().map_or_else(|| v.to_string(), |b| Bytes(b).to_string()),
        (Form::Count, v) => {
            v.as_u64().map_or_else(|| v.to_string(), |n| if n < 10_000 { n.to_string() } else { count(n) })
        }
        (Form::Number, v) => v.as_f64().map_or_else(|| v.to_string(), |x| format!("{x:.4}")),
        (Form::Seconds, v) => v.as_f64().map_or_else(|| v.to_string(), secs),
        (Form::Text | Form::Resource, v) => v.to_string(),
    }
}

/// Lines of one report, or of two with the change between them, `width` columns wide.
#[must_use]
pub fn report_lines(reports: &[Value], width: usize, theme: Theme) -> Vec<Line<'static>> {
    let column = match reports.len() {
        0 | 1 => width.saturating_sub(LABEL + 1),
        n => (width.saturating_sub(LABEL + CHANGE + 1) / n).saturating_sub(2),
    };
    let mut out = Vec::new();
    if let [one] = reports {
        out.extend(verdict_on_forecast(one, theme));
        if !out.is_empty() {
            out.push(Line::default());
        }
    }
    for (label, path, form) in ROWS {
        if path.is_empty() {
            out.push(Line::default());
            continue;
        }
        let mut spans = vec![Span::styled(fit(label, LABEL), theme.dim())];
        for report in reports {
            let text = shown(report, path, *form);
            spans.push(cell(&text, column, reports.len()));
        }
        if let [a, b] = reports {
            spans.push(match form {
                Form::Name if shown(a, path, *form) == shown(b, path, *form) => Span::styled("=", theme.dim()),
                Form::Name => Span::styled("differs", theme.strong()),
                _ => change(at(a, path), at(b, path), theme),
            });
        }
        out.push(Line::from(spans));
    }
    if let [a, b] = reports {
        out.extend(settings(a, b, column, theme));
    }
    out
}

/// A value in its column; two columns never touch.
fn cell(text: &str, column: usize, reports: usize) -> Span<'static> {
    if reports == 1 {
        Span::raw(cut(text, column))
    } else {
        Span::raw(format!("{}  ", fit(&middle(text, column), column)))
    }
}

/// The settings in which two runs differ.
fn settings(a: &Value, b: &Value, column: usize, theme: Theme) -> Vec<Line<'static>> {
    let (a, b) = (flat_settings(a), flat_settings(b));
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).filter(|k| a.get(*k) != b.get(*k)).collect();
    let mut out = vec![Line::default()];
    if keys.is_empty() {
        out.push(Line::styled("all settings are the same", theme.dim()));
    } else {
        out.push(Line::styled("settings that differ", theme.title()));
    }
    for key in keys {
        let mut spans = vec![Span::styled(fit(&middle(key, LABEL - 1), LABEL), theme.dim())];
        for settings in [&a, &b] {
            let text = match settings.get(key) {
                None | Some(Value::Null) => "–".into(),
                Some(Value::String(s)) => s.clone(),
                Some(v) => v.to_string(),
            };
            spans.push(cell(&text, column, 2));
        }
        out.push(Line::from(spans));
    }
    out
}

/// The change from `a` to `b` in per cent, with a sign; "differs" where it is no number.
fn change(a: Option<&Value>, b: Option<&Value>, theme: Theme) -> Span<'static> {
    match (a.and_then(Value::as_f64), b.and_then(Value::as_f64)) {
        (Some(a), Some(b)) if a == b => Span::styled("=", theme.dim()),
        (Some(a), Some(b)) if a != 0.0 && ((b - a) / a).is_finite() => {
            Span::raw(format!("{:+.1} %", (b - a) / a.abs() * 100.0))
        }
        (Some(_), Some(_)) => Span::raw("differs"),
        _ if a == b => Span::styled("=", theme.dim()),
        _ => Span::styled("differs", theme.strong()),
    }
}

/// Whether the measured step lies in the forecast, and how fast the disk was read.
fn verdict_on_forecast(report: &Value, theme: Theme) -> Vec<Line<'static>> {
    let number = |path| at(report, path).and_then(Value::as_f64);
    let mut out = Vec::new();
    if let (Some(low), Some(high), Some(median)) =
        (number("forecast.low"), number("forecast.high"), number("seconds_per_step.median"))
    {
        let (sign, word, tone) = if median < low {
            ("✓", ": faster", Tone::Good)
        } else if median <= high {
            ("✓", "", Tone::Good)
        } else {
            ("!", ": slower", Tone::Notice)
        };
        out.push(Line::styled(
            format!("{sign} {} a step (forecast {} to {}){word}", secs(median), secs(low), secs(high)),
            theme.tone(tone),
        ));
        if let (Some(read), Some(steps)) = (number("bytes.disk_read"), number("steps"))
            && read > 0.0
        {
            let text = format!("the disk was read at {}, averaged over the steps", rate(read / (steps * median)));
            out.push(Line::styled(text, theme.dim()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(reports: &[Value]) -> String {
        report_lines(reports, 100, Theme::plain())
            .iter()
            .map(|l| l.spans.iter().map(|s| s.content.as_ref()).collect::<String>() + "\n")
            .collect()
    }

    #[test]
    fn a_report_of_any_shape_is_shown_without_a_panic() {
        for odd in
            [json!(null), json!([]), json!({"loss": 3, "steps": -1, "vram": {"live": "x"}, "bytes": {"h2d": 1e300}})]
        {
            assert!(text(std::slice::from_ref(&odd)).contains("loss first"));
            text(&[odd.clone(), odd]);
        }
    }

    #[test]
    fn two_reports_show_their_change() {
        let a = json!({"run_id": "a", "loss": {"last": 2.0}, "steps": 10});
        let b = json!({"run_id": "b", "loss": {"last": 1.5}, "steps": 10});
        let shown = text(&[a, b]);
        assert!(shown.contains("-25.0 %") && shown.contains("differs") && shown.contains('='), "{shown}");
    }

    #[test]
    fn case_fo_59_a_report_names_its_model_and_two_show_the_settings_that_differ() {
        let one = |r: u64, id: &str| {
            json!({"run_id": id, "model": {"name": "Qwen3-8B", "bytes": r}, "steps": 3,
                   "config": {"lora": {"r": r, "alpha": 32}}})
        };
        let (a, b) = (one(8, "20261128T201500Z-a-very-long-name-of-a-run-lora"), one(16, "20261128T190200Z-b"));
        assert!(text(std::slice::from_ref(&a)).contains("model               Qwen3-8B\n"));
        for width in [60, 76, 100, 120] {
            let lines: Vec<String> = report_lines(&[a.clone(), b.clone()], width, Theme::plain())
                .iter()
                .map(|l| l.spans.iter().map(|s| s.content.as_ref()).collect::<String>())
                .collect();
            let row = |label: &str| lines.iter().find(|l| l.starts_with(label)).unwrap().clone();
            assert_eq!(row("model").split_whitespace().collect::<Vec<_>>(), ["model", "Qwen3-8B", "Qwen3-8B", "="]);
            assert_eq!(row("lora.r").split_whitespace().collect::<Vec<_>>(), ["lora.r", "8", "16"]);
            assert_eq!(row("run").split_whitespace().count(), 4, "the columns never touch: {}", row("run"));
            assert!(!lines.iter().any(|l| l.contains("lora.alpha") || l.contains('{')), "{lines:?}");
        }
    }

    #[test]
    fn a_measured_step_is_held_against_its_forecast() {
        let slow = json!({"forecast": {"low": 1.0, "high": 2.0}, "seconds_per_step": {"median": 3.0}});
        assert!(text(&[slow]).contains("! 3.00 s a step (forecast 1.00 s to 2.00 s): slower"));
    }
}
