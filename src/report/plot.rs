//! Hand-written SVG plots: no script, no font file, readable on a light and on a dark page.

use super::types::Report;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
/// Left, right, top, bottom room around the plotting area.
const ROOM: [f64; 4] = [64.0, 16.0, 34.0, 44.0];
/// Points drawn per line at most; a longer one keeps the least and the most of each bucket, so no spike vanishes.
const MAX_POINTS: usize = 1500;

const STYLE: &str = "<style>\
.bs-t{font:12px system-ui,sans-serif;fill:#333}\
.bs-h{font-weight:600;font-size:13px}\
.bs-g{stroke:#ddd;stroke-width:1}\
.bs-a{fill:none;stroke:#0072b2;stroke-width:1.6;stroke-linejoin:round}\
.bs-b{fill:none;stroke:#d55e00;stroke-width:1.4;stroke-dasharray:5 3}\
.bs-p{fill:#d55e00}.bs-s{fill:#0072b2}\
.bs-x{stroke:#cc0033;stroke-width:2}\
.bs-f{fill:#009e73;opacity:.16}\
@media(prefers-color-scheme:dark){.bs-t{fill:#ddd}.bs-g{stroke:#444}.bs-a{stroke:#56b4e9}.bs-s{fill:#56b4e9}\
.bs-b{stroke:#e69f00}.bs-p{fill:#e69f00}.bs-x{stroke:#ff6688}}\
</style>";

/// A value per step; `None` where it isn't finite: a gap in the line and a cross at the top.
type Series = Vec<(u64, Option<f64>)>;

/// What one plot shows.
#[derive(Default)]
struct Plot<'a> {
    title: &'a str,
    unit: &'a str,
    line: (&'a str, Series),
    points: (&'a str, Series),
    /// A range drawn behind the line.
    band: Option<(&'a str, f64, f64)>,
}

/// Training loss as a line, eval loss as points, for embedding in a page.
#[must_use]
pub(super) fn loss(report: &Report) -> String {
    draw(&Plot {
        title: "Loss",
        unit: "",
        line: ("training", report.loss.list.clone()),
        points: ("evaluation", report.eval.list.clone()),
        band: None,
    })
}

/// Seconds of each step against the forecast range.
#[must_use]
pub(super) fn seconds(report: &Report) -> String {
    let band = report.forecast.low.zip(report.forecast.high).map(|(low, high)| ("forecast", low, high));
    draw(&Plot {
        title: "Seconds per step",
        unit: "s",
        line: ("measured", report.seconds_per_step.list.clone()),
        points: ("", Vec::new()),
        band,
    })
}

/// An embedded plot as a file of its own.
#[must_use]
pub(super) fn standalone(svg: &str) -> String {
    format!("{}\n", svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1))
}

/// One axis: data range to drawing range, finite for all finite input.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Covers `values`; a single value gets room on both sides.
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for x in values.filter(|x| x.is_finite()) {
            low = low.min(x);
            high = high.max(x);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if low == high {
            let pad = (low.abs() * 0.1).max(0.5);
            (low, high) = ((low - pad).max(f64::MIN), (high + pad).min(f64::MAX));
        }
        Axis { low, high, from, to }
    }

    fn at(&self, x: f64) -> f64 {
        // Halved before subtracting: high - low may be beyond f64.
        let share = (x / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0);
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.5 };
        self.from + share * (self.to - self.from)
    }

    /// Round values inside the range, about `want` of them.
    fn ticks(&self, want: f64, whole: bool) -> Vec<f64> {
        let raw = (self.high / want - self.low / want).max(f64::MIN_POSITIVE);
        let power = 10f64.powf(raw.log10().floor());
        let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= raw * 0.999).unwrap_or(10.0);
        let step = if whole { (factor * power).max(1.0) } else { factor * power };
        let first = (self.low / step).ceil();
        let ticks = (0..20).map(|i| (first + f64::from(i)) * step);
        ticks.filter(|t| t.is_finite() && *t >= self.low && *t <= self.high).collect()
    }
}

fn draw(plot: &Plot<'_>) -> String {
    let [left, right, top, bottom] = ROOM;
    let all = || plot.line.1.iter().chain(&plot.points.1);
    let band = plot.band.filter(|(_, low, high)| low.is_finite() && high.is_finite() && low <= high);
    let edges = band.iter().flat_map(|(_, low, high)| [*low, *high]);
    let x = Axis::over(all().map(|(n, _)| *n as f64), left, WIDTH - right);
    let y = Axis::over(all().filter_map(|(_, v)| *v).chain(edges), HEIGHT - bottom, top);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"100%\" role=\"img\" aria-label=\"{}\">{STYLE}",
        escape(plot.title)
    );
    for t in y.ticks(5.0, false) {
        let at = y.at(t);
        let _ = write!(
            out,
            "<path class=\"bs-g\" d=\"M{left} {at:.1}H{:.1}\"/><text class=\"bs-t\" x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            WIDTH - right,
            left - 8.0,
            at + 4.0,
            number(t)
        );
    }
    for t in x.ticks(8.0, true) {
        let at = x.at(t);
        let _ = write!(
            out,
            "<path class=\"bs-g\" d=\"M{at:.1} {:.1}v5\"/><text class=\"bs-t\" x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{}</text>",
            HEIGHT - bottom,
            HEIGHT - bottom + 18.0,
            number(t)
        );
    }
    if let Some((_, low, high)) = band {
        let (a, b) = (y.at(high), y.at(low));
        let height = (b - a).max(1.0);
        let width = WIDTH - left - right;
        let _ =
            write!(out, "<rect class=\"bs-f\" x=\"{left}\" y=\"{a:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>");
    }
    line(&mut out, &plot.line.1, &x, &y, "bs-a", "bs-s");
    if plot.points.1.len() > 1 {
        line(&mut out, &plot.points.1, &x, &y, "bs-b", "bs-p");
    }
    for (n, v) in thin(&plot.points.1) {
        if let Some(v) = v {
            let _ =
                write!(out, "<circle class=\"bs-p\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"/>", x.at(n as f64), y.at(v));
        }
    }
    let crosses = crosses(&mut out, &plot.line.1, &x) + crosses(&mut out, &plot.points.1, &x);
    legend(&mut out, plot, band.is_some(), crosses);
    out + "</svg>"
}

/// The line in pieces: a gap at every value that isn't finite, a dot where a piece is one point.
fn line(out: &mut String, series: &Series, x: &Axis, y: &Axis, class: &str, dot: &str) {
    let thinned = thin(series);
    for piece in thinned.split(|(_, v)| v.is_none()) {
        let points: Vec<(f64, f64)> = piece.iter().filter_map(|(n, v)| v.map(|v| (x.at(*n as f64), y.at(v)))).collect();
        if let [(px, py)] = points[..] {
            let _ = write!(out, "<circle class=\"{dot}\" cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"2\"/>");
        } else if !points.is_empty() {
            let d: Vec<String> = points.iter().map(|(px, py)| format!("{px:.1},{py:.1}")).collect();
            let _ = write!(out, "<polyline class=\"{class}\" points=\"{}\"/>", d.join(" "));
        }
    }
}

/// Marks values that aren't finite at the top edge, once per place; returns how many there are.
fn crosses(out: &mut String, series: &Series, x: &Axis) -> usize {
    let (mut count, mut last) = (0, f64::NEG_INFINITY);
    for (n, _) in series.iter().filter(|(_, v)| v.is_none()) {
        count += 1;
        let at = x.at(*n as f64);
        if at - last > 3.0 {
            let top = ROOM[2];
            let (a, b) = (at - 4.0, at + 4.0);
            let _ = write!(out, "<path class=\"bs-x\" d=\"M{a:.1} {top}l8 8M{b:.1} {top}l-8 8\"/>");
            last = at;
        }
    }
    count
}

fn legend(out: &mut String, plot: &Plot<'_>, band: bool, crosses: usize) {
    let mut words = vec![];
    if !plot.line.1.is_empty() {
        words.push(format!("<tspan class=\"bs-s\">━</tspan> {}", escape(plot.line.0)));
    }
    if !plot.points.1.is_empty() {
        words.push(format!("<tspan class=\"bs-p\">●</tspan> {}", escape(plot.points.0)));
    }
    if band {
        words.push(format!("▒ {}", escape(plot.band.map_or("", |b| b.0))));
    }
    if crosses > 0 {
        words.push(format!("✗ not finite: {crosses}"));
    }
    if words.is_empty() {
        words.push("no steps were recorded".into());
    }
    let (left, foot) = (ROOM[0], HEIGHT - 8.0);
    let _ = write!(
        out,
        "<text class=\"bs-t bs-h\" x=\"{left}\" y=\"20\">{}</text>\
         <text class=\"bs-t\" x=\"{:.1}\" y=\"20\" text-anchor=\"end\">{}</text>\
         <text class=\"bs-t\" x=\"{:.1}\" y=\"{foot}\" text-anchor=\"middle\">step</text>\
         <text class=\"bs-t\" x=\"8\" y=\"20\">{}</text>",
        escape(plot.title),
        WIDTH - ROOM[1],
        words.join("   "),
        (left + WIDTH - ROOM[1]) / 2.0,
        escape(plot.unit),
    );
}

/// At most [`MAX_POINTS`]: of each bucket the least, the most, and whether there was a gap.
fn thin(series: &Series) -> Series {
    if series.len() <= MAX_POINTS {
        return series.clone();
    }
    let size = series.len().div_ceil(MAX_POINTS / 3);
    let mut out = Vec::new();
    for bucket in series.chunks(size) {
        let finite = || bucket.iter().filter(|(_, v)| v.is_some());
        let by = |a: &&(u64, Option<f64>), b: &&(u64, Option<f64>)| a.1.unwrap_or(0.0).total_cmp(&b.1.unwrap_or(0.0));
        let mut kept: Series = finite().min_by(by).into_iter().chain(finite().max_by(by)).copied().collect();
        kept.extend(bucket.iter().find(|(_, v)| v.is_none()));
        kept.sort_by_key(|(n, _)| *n);
        out.extend(kept);
    }
    out
}

/// A tick label: at most six characters of significance.
fn number(x: f64) -> String {
    let size = x.abs();
    if size == 0.0 {
        return "0".into();
    }
    if !(1e-3..1e6).contains(&size) {
        return format!("{x:.1e}");
    }
    let text = format!("{x:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plotted(line: Series, points: Series) -> String {
        draw(&Plot { title: "t", unit: "u", line: ("a", line), points: ("b", points), band: None })
    }

    #[test]
    fn a_nan_is_a_gap_and_a_cross_never_a_peak() {
        let svg = plotted(vec![(1, Some(3.0)), (2, Some(2.0)), (3, None), (4, Some(1.5)), (5, Some(1.0))], vec![]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("bs-x\" d=").count(), 1);
        assert!(svg.contains("not finite: 1"));
        // A gap at both sides leaves a dot, not nothing.
        let svg = plotted(vec![(1, None), (2, Some(2.0)), (3, None)], vec![]);
        assert_eq!(svg.matches("<circle class=\"bs-s\"").count(), 1);
    }

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = Axis { low: 0.97, high: 3.1, from: 0.0, to: 1.0 };
        assert_eq!(axis.ticks(5.0, false), [1.0, 1.5, 2.0, 2.5, 3.0]);
        let steps = Axis { low: 1.0, high: 5.0, from: 0.0, to: 1.0 };
        assert_eq!(steps.ticks(8.0, true), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(number(0.25), "0.25");
        assert_eq!(number(1e-7), "1.0e-7");
    }

    #[test]
    fn a_spike_survives_thinning() {
        let mut series: Series = (0..20_000).map(|n| (n, Some(1.0))).collect();
        series[12_345].1 = Some(9.0);
        series[700].1 = None;
        let thinned = thin(&series);
        assert!(thinned.len() <= MAX_POINTS + 3);
        assert!(thinned.iter().any(|p| p.1 == Some(9.0)) && thinned.iter().any(|p| p.1.is_none()));
    }

    proptest! {
        #[test]
        fn every_number_in_a_plot_is_finite(
            line in proptest::collection::vec((any::<u64>(), any::<Option<f64>>()), 0..40),
            points in proptest::collection::vec((0u64..50, any::<Option<f64>>()), 0..10),
        ) {
            let clean = |s: Series| s.into_iter().map(|(n, v)| (n, v.filter(|v| v.is_finite()))).collect::<Series>();
            let svg = plotted(clean(line), clean(points));
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
            prop_assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>"));
        }
    }
}
