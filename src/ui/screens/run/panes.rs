//! The insides of the run screen's panes: step, memory, log.

use crate::event::{LOSS, Level, Metrics, RunStatus};
use crate::plan::VramPlan;
use crate::ui::app::App;
use crate::ui::run::{RunView, Source, about, status_word};
use crate::ui::text::{cut, width as columns};
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::{bar, lines, pair, wrap};
use crate::units::plural;
use crate::units::{Bytes, ratio_of, secs};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
/// The step in progress, the run's progress, speed and forecast.
pub(super) fn step(app: &App, view: &RunView, area: Rect) -> Vec<Line<'static>> {
    let theme = app.theme;
    let Some(started) = &view.started else {
        let word = if app.handed_over { "preparing" } else { "press enter on Plan to start a run" };
        return vec![Line::styled(word, theme.dim())];
    };
    let width = area.width as usize;
    let mut out = Vec::new();
    let done = view.last.as_ref().map_or(started.steps_done, |s| s.step);
    let overall = ratio_of(done as f64, started.steps_total as f64);
    let mut line = bar(width.saturating_sub(6).min(40), overall, None, theme.tone(Tone::Good), theme);
    line.push(Span::raw(format!(" {:>3.0} %", overall * 100.0)));
    out.push(Line::from(line));
    out.push(match (&view.stage, &view.progress, &view.finished) {
        (_, _, Some(f)) => {
            let tone = if f.status == RunStatus::Failed { Tone::Bad } else { Tone::Good };
            let sign = if f.status == RunStatus::Failed { "✗" } else { "✓" };
            let why = f.reason.as_deref().map(|r| format!(": {r}")).unwrap_or_default();
            let word = format!("{sign} {}{why}", status_word(f.status));
            Line::styled(cut(&word, width), theme.tone(tone))
        }
        (Some(stage), _, _) => {
            let r = ratio_of(stage.done as f64, stage.total as f64);
            let amount = match stage.unit.as_str() {
                "bytes" => format!("{}/{}", Bytes(stage.done), Bytes(stage.total)),
                unit => format!("{}/{} {unit}", stage.done, stage.total),
            };
            let text = format!(" {} {amount}", cut(&stage.name, 20));
            let mut line = bar(width.saturating_sub(text.len()).min(12), r, None, theme.tone(Tone::Accent), theme);
            line.push(Span::raw(text));
            Line::from(line)
        }
        (None, Some(p), None) => {
            let r = ratio_of(p.visit as f64 + 1.0, p.visits as f64);
            let layer = if width >= 48 { "layer " } else { "" };
            let text = format!(" {} {layer}{:<3} {:>3}/{}", p.phase.word(), p.block, p.visit + 1, p.visits);
            let room = width.saturating_sub(text.len());
            let mut line = bar(room.min(40), r, None, theme.tone(Tone::Accent), theme);
            line.push(Span::raw(text));
            Line::from(line)
        }
        (None, None, None) => Line::styled("preparing", theme.dim()),
    });
    let mut speed = Vec::new();
    if let Some((mean, n)) = view.step_time() {
        speed.push(Span::raw(secs(mean)));
        let of = if width >= 40 { format!(" a step, mean of {n}  ") } else { format!(" (mean of {n})  ") };
        speed.push(Span::styled(of, theme.dim()));
        if let Some(last) = &view.last {
            speed.push(Span::raw(format!("{:.0}", last.tokens as f64 / mean)));
            speed.push(Span::styled(" tok/s", theme.dim()));
        }
    } else {
        speed.push(Span::styled("timing the first step", theme.dim()));
    }
    let eta = eta_line(app, view, width, theme);
    if area.height >= 4 {
        out.push(Line::from(speed));
        out.push(eta);
    } else {
        out.push(eta);
    }
    if let Some(last) = view.last.as_ref().filter(|_| area.height >= 6) {
        // The loss has a pane of its own.
        let others: Metrics = last.metrics.iter().filter(|(name, _)| *name != LOSS).collect();
        let shown = others.shown().flat_map(|(label, figure)| pair(&label, format!("{figure}  "), theme));
        out.push(Line::from_iter(shown));
        let mut line = pair("waiting:", format!("weights {}, ", secs(last.stall_s)), theme);
        line.push(Span::raw(format!("free slot {}", secs(last.evict_wait_s))));
        out.push(Line::from(line));
    }
    out
}

fn eta_line(app: &App, view: &RunView, width: usize, theme: Theme) -> Line<'static> {
    let at = if app.panes.frozen.is_some() { view.at } else { app.run_now() };
    if view.finished.is_some() {
        return Line::from(pair("ran", secs(view.at), theme));
    }
    match view.eta(at) {
        Some(eta) => {
            let mut line = vec![Span::raw(about(eta.seconds)), Span::styled(" left", theme.dim())];
            if eta.evals > 0 {
                let with = format!(", {}", plural(eta.evals, "evaluation"));
                let whole = with.clone() + " included";
                let room = width.saturating_sub(Line::from(line.clone()).width());
                line.push(Span::styled(if columns(&whole) <= room { whole } else { with }, theme.dim()));
            }
            Line::from(line)
        }
        None => match view.step_left(at) {
            Some(s) => Line::from(pair("this step", format!("{} left", about(s)), theme)),
            None => Line::styled("left: after the first step", theme.dim()),
        },
    }
}

/// Device and host memory, clock, and what the run computes on.
pub(super) fn memory(app: &App, view: &RunView, width: usize) -> Vec<Line<'static>> {
    let theme = app.theme;
    let g = &view.gauges;
    let none = VramPlan::default();
    let plan = view.basis.as_ref().map_or(&none, |b| &b.plan.modes.of(b.config.train.mode).vram);
    let mut out = Vec::new();
    // The peak while it runs; the allocator's own figure once it has ended.
    let live = view.finished.as_ref().map(|f| f.vram.live).filter(|b| b.0 > 0).or(view.vram_peak);
    out.push(match live {
        Some(live) => {
            let top = plan.total.0.max(live.0) as f64;
            let over = plan.total > Bytes::ZERO && live > plan.total;
            let tone = if over { Tone::Bad } else { Tone::Good };
            let words = if width >= 44 { " planned" } else { "" };
            let text = format!(" {live} of {}{words}{}", plan.total, if over { " ✗ over" } else { "" });
            let mut line = vec![Span::styled("VRAM ", theme.dim())];
            let room = width.saturating_sub(columns(&text) + 5).min(40);
            line.extend(bar(
                room,
                ratio_of(live.0 as f64, top),
                Some(ratio_of(plan.total.0 as f64, top)),
                theme.tone(tone),
                theme,
            ));
            line.push(Span::raw(text));
            Line::from(line)
        }
        None if view.on_cpu() => Line::from(pair("VRAM", "none: no GPU in use", theme)),
        None => Line::from(pair("VRAM", "N/A", theme)),
    });
    if view.spill.suspected() {
        let text = "! spill suspected: the driver moves VRAM to the host";
        out.push(Line::styled(cut(text, width), theme.tone(Tone::Bad)));
    }
    let na = |value: Option<String>| value.unwrap_or_else(|| "N/A".into());
    let gpu = !view.on_cpu();
    if gpu {
        let mut clock = pair("GPU clock", na(g.sm_clock_mhz.map(|m| format!("{m} MHz"))), theme);
        clock.push(Span::raw("  "));
        clock.extend(pair("busy", na(g.gpu_util.map(|u| format!("{u} %"))), theme));
        clock.push(Span::raw(format!("  {}", na(g.gpu_temp_c.map(|t| format!("{t} °C"))))));
        out.push(Line::from(clock));
    }
    let host = [g.rss_anon.map(|b| format!("{b} used")), g.ram_available.map(|b| format!("{b} free"))];
    let host: Vec<String> = host.into_iter().flatten().collect();
    let host = pair("RAM", na((!host.is_empty()).then(|| host.join("  "))), theme);
    out.push(Line::from(host));
    if gpu {
        let mut device = pair("VRAM in use", na(g.vram_used.map(|b| b.to_string())), theme);
        device.push(Span::raw("  "));
        device.extend(pair("power", na(g.power_w.map(|w| format!("{w:.0} W"))), theme));
        out.push(Line::from(device));
    }
    if let Some(s) = &view.started {
        let device = if gpu { s.device.as_str() } else { "CPU" };
        let on = format!("{device}, {}", s.compute_dtype);
        for (label, value) in [("computes", &on), ("attention", &s.attention), ("reader", &s.reader)] {
            out.push(Line::from(pair(&format!("{label:<9}"), cut(value, width.saturating_sub(10)), theme)));
        }
    }
    out
}

/// Title of the log pane.
pub(super) fn log_title(app: &App, theme: Theme) -> Vec<Span<'static>> {
    let mut t = vec![Span::styled("log", theme.title())];
    match app.panes.level {
        Level::Info => {}
        Level::Warn => t.push(Span::styled(" warnings and errors", theme.dim())),
        Level::Error => t.push(Span::styled(" errors", theme.dim())),
    }
    if app.panes.scroll > 0 {
        t.push(Span::styled(format!("  {} newer below (F)", app.panes.scroll), theme.dim()));
    }
    t
}

/// The newest log lines, wrapped.
pub(super) fn log(app: &App, frame: &mut Frame, area: Rect, view: &RunView) {
    let theme = app.theme;
    let height = area.height as usize;
    let count = view.log.count(app.panes.level);
    let scroll = app.panes.scroll.min(count.saturating_sub(height));
    let indent = 8;
    let room = (area.width as usize).saturating_sub(indent);
    let mut text: Vec<Line> = Vec::new();
    for l in view.log.lines(app.panes.level).rev().skip(scroll) {
        if text.len() >= height {
            break;
        }
        let (sign, style) = match (l.level, l.source) {
            (_, Source::Library) => ("»", theme.dim()),
            (Level::Info, _) => ("·", theme.dim()),
            (Level::Warn, _) => ("!", theme.tone(Tone::Notice)),
            (Level::Error, _) => ("✗", theme.tone(Tone::Bad)),
        };
        let body = if l.source == Source::Library { theme.dim() } else { Style::default() };
        for (i, part) in wrap(&l.text, room).into_iter().enumerate().collect::<Vec<_>>().into_iter().rev() {
            let head = if i == 0 { format!("{:>5} ", short_time(l.at)) } else { " ".repeat(indent) };
            let mut spans = vec![Span::styled(head, theme.dim())];
            if i == 0 {
                spans.push(Span::styled(format!("{sign} "), style));
            }
            spans.push(Span::styled(part, body));
            text.push(Line::from(spans));
        }
    }
    // The newest line is whole; of the oldest, what fits.
    text.truncate(height);
    text.reverse();
    lines(frame, area, text, 0);
}

/// Run time as `m:ss` or `h:mm`.
fn short_time(at: f64) -> String {
    let s = at.max(0.0) as u64;
    if s < 3600 { format!("{}:{:02}", s / 60, s % 60) } else { format!("{}h{:02}", s / 3600, s % 3600 / 60) }
}
