//! The lanes pane: disk and link over time, the drive against its plan, and the last step visit by visit.

use crate::plan::words;
use crate::ui::run::{RunView, bound, of};
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::{lines, pair, put, spark, visits};
use crate::units::rate;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

/// Narrowest row that has room for two rates and a chart.
const ROOMY: u16 = 40;
/// Narrowest chart that shows a course.
const CHART: u16 = 6;
const PLANNED: &str = " planned";
/// Columns of `! disk `.
const LABEL: usize = 7;

/// The pane's title: what limits the steps, and where that is a drive or the link, how much of its time it was used.
pub(super) fn title(view: &RunView, width: u16, theme: Theme) -> Vec<Span<'static>> {
    let mut t = vec![Span::styled("speed ", theme.title())];
    match view.last.as_ref().and_then(bound) {
        Some(b) => {
            t.push(Span::styled("bottleneck: ", theme.dim()));
            t.push(Span::raw(words::limiting(&b.by, view.device()).to_owned()));
            if let Some(share) = b.share.filter(|_| width >= 30) {
                t.push(Span::raw(format!(" {:.0} % busy", (share * 100.0).min(100.0))));
            }
        }
        None => t.push(Span::styled("bytes a second", theme.dim())),
    }
    t
}

/// The pane's inside.
pub(super) fn draw(frame: &mut Frame, area: Rect, view: &RunView, theme: Theme) {
    let told = view.last.as_ref().filter(|s| bound(s).is_some());
    let below = match (told, &view.trace) {
        (None, _) => 0,
        (Some(_), None) => area.height.saturating_sub(2).min(1),
        (Some(_), Some(_)) if area.height < 6 => area.height.saturating_sub(2),
        (Some(_), Some(_)) => (area.height * 3 / 7).clamp(3, 14),
    };
    let [rates, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(below)]).areas(area);
    flows(frame, rates, view, theme);
    if let Some(last) = told.filter(|_| below.height > 0) {
        let (width, height) = (below.width as usize, below.height as usize);
        let steps = view.trace.as_ref().map_or(&[][..], |t| &t.visits);
        let mut text = visits::strip(steps, width, height - 1, theme);
        text.push(visits::legend(last, width, theme));
        lines(frame, below, text, 0);
    }
}

/// Disk and link over time.
fn flows(frame: &mut Frame, area: Rect, view: &RunView, theme: Theme) {
    let height = (area.height / 2).max(1);
    let loads = words::limiting("link", view.device());
    let rows = [("disk", &view.disk, Tone::Notice), (loads, &view.h2d, Tone::Accent)];
    for (i, (name, lane, tone)) in rows.into_iter().enumerate() {
        let y = area.y + height * i as u16;
        if y >= area.bottom() {
            break;
        }
        let at = Rect { y, height: height.min(area.bottom() - y), ..area };
        let drive = view.drive.rates().filter(|_| i == 0);
        let slow = drive.is_some() && view.drive.slow();
        let label = if slow {
            Span::styled("! disk ", theme.tone(Tone::Notice))
        } else {
            Span::styled(format!("{name:<8}"), theme.dim())
        };
        let mut text = vec![label];
        let tall = at.height > 1;
        match drive {
            // A slow drive is said at every size, with the chart's room if need be.
            Some((now, planned)) if slow || (!tall && at.width >= ROOMY) => {
                let rates = of(now, planned);
                let whole = slow && LABEL + rates.len() + PLANNED.len() <= at.width as usize;
                text.push(Span::raw(rates));
                if whole {
                    text.push(Span::styled(PLANNED, theme.dim()));
                }
            }
            Some((now, planned)) if tall => {
                text.push(Span::raw(format!("{:<11}", rate(lane.now()))));
                text.extend(pair("reads at", of(now, planned), theme));
                text.push(Span::styled(PLANNED, theme.dim()));
            }
            _ => {
                text.push(Span::raw(format!("{:<11}", rate(lane.now()))));
                if tall {
                    text.extend(pair("peak", rate(lane.peak()), theme));
                }
            }
        }
        // Only a drive's own sensor says why it is slow, so it matters most where there is least room for a chart.
        if let Some(t) = view.gauges.drive_temp_c.filter(|_| i == 0 && (slow || tall)) {
            let degrees = format!("  {t} °C");
            if Line::from(text.clone()).width() + degrees.len() <= at.width as usize {
                text.push(Span::raw(degrees));
            }
        }
        let line = Line::from(text);
        let used = (line.width() as u16 + 1).max(19).min(at.width);
        put(frame, at, line);
        let chart = if tall {
            Rect { y: at.y + 1, height: at.height - 1, ..at }
        } else {
            Rect { x: at.x + used, width: at.width - used, ..at }
        };
        if tall || chart.width >= CHART {
            spark::draw(frame, chart, &lane.newest(chart.width.into()), tone, theme);
        }
    }
}
