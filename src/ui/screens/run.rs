//! Run: loss, block map, step, lanes, memory and log of the training in progress.

use crate::event::{Level, Phase, TierName};
use crate::plan::VramPlan;
use crate::ui::app::App;
use crate::ui::run::{RunView, Source, about};
use crate::ui::text::cut;
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::blockmap::{BlockMap, counts};
use crate::ui::widgets::lossplot::LossPlot;
use crate::ui::widgets::{bar, lines, pair, pane, put, spark, wrap};
use crate::units::{Bytes, rate, ratio_of, secs};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// The panes, in the order of the focus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    /// Loss over steps.
    #[default]
    Loss,
    /// One cell per block.
    Blocks,
    /// The step in progress.
    Step,
    /// Disk and link.
    Lanes,
    /// Device and host memory, clock.
    Memory,
    /// Log lines.
    Log,
}

const PANES: [Pane; 6] = [Pane::Loss, Pane::Blocks, Pane::Step, Pane::Lanes, Pane::Memory, Pane::Log];

/// State of the panes that isn't the run's.
#[derive(Clone, Debug)]
pub struct RunPanes {
    /// The focused pane.
    pub focus: Pane,
    /// It has the whole screen.
    pub expanded: bool,
    /// A copy of the run that is shown instead of it.
    pub frozen: Option<Box<RunView>>,
    /// Logarithmic loss axis.
    pub log_y: bool,
    /// Weight of the moving average.
    pub smoothing: f64,
    /// The newest thousand steps instead of all.
    pub recent: bool,
    /// Lowest level of log lines shown.
    pub level: Level,
    /// Log lines scrolled back from the newest; 0 follows.
    pub scroll: usize,
}

impl Default for RunPanes {
    fn default() -> Self {
        RunPanes {
            focus: Pane::Loss,
            expanded: false,
            frozen: None,
            log_y: false,
            smoothing: 0.0,
            recent: false,
            level: Level::Info,
            scroll: 0,
        }
    }
}

impl RunPanes {
    pub(in crate::ui) fn focus(&mut self, by: isize) {
        let at = PANES.iter().position(|p| *p == self.focus).unwrap_or(0) as isize;
        self.focus = PANES[(at + by).rem_euclid(PANES.len() as isize) as usize];
    }
    pub(in crate::ui) fn next_smoothing(&mut self) {
        self.smoothing = match self.smoothing {
            s if s < 0.5 => 0.6,
            s if s < 0.8 => 0.9,
            _ => 0.0,
        };
    }
    pub(in crate::ui) fn next_level(&mut self) {
        self.level = match self.level {
            Level::Info => Level::Warn,
            Level::Warn => Level::Error,
            Level::Error => Level::Info,
        };
        self.scroll = 0;
    }
    pub(in crate::ui) fn scroll_log(&mut self, by: isize, lines: usize) {
        // Up the screen is back in time; the pane's height keeps the oldest line from leaving it.
        let back = by.checked_neg().unwrap_or(isize::MAX);
        self.scroll = self.scroll.saturating_add_signed(back).min(lines.saturating_sub(1));
    }
}

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let compact = super::super::frame::compact(area);
    if app.panes.expanded {
        return one(app, frame, area, app.panes.focus, compact);
    }
    let right = if area.width >= 120 { area.width * 2 / 5 } else { (area.width * 43 / 100).clamp(24, 48) };
    let gap = u16::from(compact);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(right)]).spacing(gap).areas(area);
    let log = (area.height / 3).clamp(3, 18);
    let [loss, log] = Layout::vertical([Constraint::Fill(1), Constraint::Length(log)]).areas(left);
    let frame_rows = if compact { 1 } else { 2 };
    let tall = area.height >= 40;
    let map_rows = blocks(app, right.width.saturating_sub(frame_rows), if compact { 3 } else { 8 }).len() as u16;
    let [map, step, lanes, memory] = Layout::vertical([
        Constraint::Length((map_rows.max(1) + u16::from(!compact) + frame_rows).max(frame_rows + 1)),
        Constraint::Length(frame_rows + if compact { 3 } else if tall { 6 } else { 4 }),
        if tall { Constraint::Length(16) } else { Constraint::Length(frame_rows + 2) },
        if tall { Constraint::Fill(1) } else { Constraint::Min(frame_rows + 2) },
    ])
    .areas(right);
    for (pane, at) in
        [(Pane::Loss, loss), (Pane::Blocks, map), (Pane::Step, step), (Pane::Lanes, lanes), (Pane::Memory, memory), (Pane::Log, log)]
    {
        one(app, frame, at, pane, compact);
    }
}

fn one(app: &App, frame: &mut Frame, area: Rect, which: Pane, compact: bool) {
    let view = app.panes.frozen.as_deref().unwrap_or(&app.run);
    let theme = app.theme;
    let mut title = match which {
        Pane::Loss => loss_title(app, view),
        Pane::Blocks => {
            let mut t = vec![Span::styled("blocks ", theme.title())];
            if let Some(s) = &view.started {
                t.extend(counts(&s.tiers, theme));
            }
            t
        }
        Pane::Step => step_title(view, theme),
        Pane::Lanes => vec![Span::styled("lanes", theme.title()), Span::styled(" bytes a second", theme.dim())],
        Pane::Memory => vec![Span::styled("memory", theme.title())],
        Pane::Log => log_title(app, theme),
    };
    if app.panes.frozen.is_some() && which == Pane::Loss {
        title.push(Span::styled("  frozen", theme.strong()));
    }
    let inner = pane(frame, area, Line::from(title), app.panes.focus == which, compact, theme);
    match which {
        Pane::Loss => LossPlot {
            buckets: view.loss.view(!app.panes.recent),
            evals: &view.evals,
            log_y: app.panes.log_y,
            smoothing: app.panes.smoothing,
            theme,
        }
        .draw(frame, inner),
        Pane::Blocks => {
            let room = (inner.height as usize).saturating_sub(1);
            let mut text = blocks(app, inner.width, room.max(1));
            if text.len() <= room {
                text.push(map(view, theme).legend(inner.width.into()));
            }
            if let (Some(s), true) = (&view.started, text.len() < inner.height as usize) {
                text.push(Line::styled(
                    format!("at most {} at once planned, {} seen", s.residency_planned, view.residency_peak),
                    theme.dim(),
                ));
            }
            lines(frame, inner, text, 0);
        }
        Pane::Step => lines(frame, inner, step(app, view, inner), 0),
        Pane::Lanes => lanes(frame, inner, view, theme),
        Pane::Memory => lines(frame, inner, memory(app, view, inner.width.into()), 0),
        Pane::Log => log(app, frame, inner, view),
    }
}

fn map(view: &RunView, theme: Theme) -> BlockMap<'_> {
    let tiers: &[TierName] = view.started.as_ref().map_or(&[], |s| &s.tiers);
    let states = view.progress.as_ref().filter(|_| view.running()).map_or(&[][..], |p| &p.blocks);
    BlockMap { tiers, states, theme }
}

fn blocks(app: &App, width: u16, height: usize) -> Vec<Line<'static>> {
    let view = app.panes.frozen.as_deref().unwrap_or(&app.run);
    let lines = map(view, app.theme).lines(width.into(), height);
    if lines.is_empty() { vec![Line::styled("no run yet", app.theme.dim())] } else { lines }
}

fn loss_title(app: &App, view: &RunView) -> Vec<Span<'static>> {
    let theme = app.theme;
    let mut t = vec![Span::styled("loss", theme.title())];
    if let Some(last) = &view.last {
        t.push(Span::raw(format!(" {:.3}", last.loss)));
    }
    if let Some(step) = view.not_finite.last() {
        t.push(Span::styled(format!(" ✗ not finite at step {step}"), theme.tone(Tone::Bad)));
    }
    if let Some(min) = view.loss.min() {
        t.extend([Span::styled(" min ", theme.dim()), Span::raw(format!("{min:.3}"))]);
    }
    if let Some(((_, first), (_, last))) = view.evals.first().zip(view.evals.last()) {
        let text = if view.evals.len() > 1 { format!(" {first:.2} → {last:.2}") } else { format!(" {first:.2}") };
        t.extend([Span::styled("  ◆", theme.tone(Tone::Second)), Span::styled(" held-out", theme.dim()), Span::raw(text)]);
    }
    let mut how = String::new();
    for (on, word) in [(app.panes.log_y, "log"), (app.panes.recent, "recent")] {
        how.push_str(if on { "  " } else { "" });
        how.push_str(if on { word } else { "" });
    }
    if app.panes.smoothing > 0.0 {
        how.push_str(&format!("  smooth {}", app.panes.smoothing));
    }
    t.push(Span::styled(how, theme.dim()));
    t
}

fn step_title(view: &RunView, theme: Theme) -> Vec<Span<'static>> {
    let mut t = vec![Span::styled("step", theme.title())];
    if let Some(s) = &view.started {
        let now = view.progress.as_ref().map_or(s.steps_done, |p| p.step).max(view.last.as_ref().map_or(0, |l| l.step));
        t.push(Span::raw(format!(" {now}/{}", s.steps_total)));
        if let Some(last) = &view.last {
            t.push(Span::styled(format!("  epoch {:.2}", last.epoch), theme.dim()));
        }
    }
    t
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Head => "head, loss",
        Phase::Backward => "backward",
        Phase::Update => "update",
        Phase::Eval => "held-out",
    }
}

fn step(app: &App, view: &RunView, area: Rect) -> Vec<Line<'static>> {
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
            let tone = if f.status == crate::event::RunStatus::Failed { Tone::Bad } else { Tone::Good };
            let sign = if f.status == crate::event::RunStatus::Failed { "✗" } else { "✓" };
            let why = f.reason.as_deref().map(|r| format!(": {r}")).unwrap_or_default();
            let word = format!("{sign} {}{why}", crate::ui::run::status_word(f.status));
            Line::styled(cut(&word, width), theme.tone(tone))
        }
        (Some(stage), _, _) => {
            let r = ratio_of(stage.done as f64, stage.total as f64);
            let text = format!(" {} {}/{} {}", cut(&stage.name, 20), stage.done, stage.total, stage.unit);
            let mut line = bar(width.saturating_sub(text.len()).min(12), r, None, theme.tone(Tone::Accent), theme);
            line.push(Span::raw(text));
            Line::from(line)
        }
        (None, Some(p), None) => {
            let r = ratio_of(p.visit as f64 + 1.0, p.visits as f64);
            let block = if width >= 44 { "block " } else { "" };
            let text = format!(" {} {block}{:<3} {:>3}/{}", phase_word(p.phase), p.block, p.visit + 1, p.visits);
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
        let of = if width >= 40 { format!(" a step, mean of {n}  ") } else { format!(" (mean {n})  ") };
        speed.push(Span::styled(of, theme.dim()));
        if let Some(last) = &view.last {
            speed.push(Span::raw(format!("{:.0}", last.tokens as f64 / mean)));
            speed.push(Span::styled(" tok/s", theme.dim()));
        }
    } else {
        speed.push(Span::styled("timing the first step", theme.dim()));
    }
    let eta = eta_line(app, view, theme);
    if area.height >= 4 {
        out.push(Line::from(speed));
        out.push(eta);
    } else {
        out.push(eta);
    }
    if let Some(last) = view.last.as_ref().filter(|_| area.height >= 6) {
        let mut line = pair("grad norm", format!("{:.3}  ", last.grad_norm), theme);
        line.extend(pair("lr", format!("{:.2e}  ", last.learning_rate), theme));
        out.push(Line::from(line));
        let mut line = pair("waited for weights", format!("{}  ", secs(last.stall_s)), theme);
        line.extend(pair("for a slot", secs(last.evict_wait_s), theme));
        out.push(Line::from(line));
    }
    out
}

fn eta_line(app: &App, view: &RunView, theme: Theme) -> Line<'static> {
    let at = if app.panes.frozen.is_some() { view.at } else { app.run_now() };
    if view.finished.is_some() {
        return Line::from(pair("ran", secs(view.at), theme));
    }
    match view.eta(at) {
        Some(eta) => {
            let mut line = pair("left", format!("{} ", about(eta.seconds)), theme);
            if eta.evals > 0 {
                line.push(Span::styled(format!("with {} held-out", eta.evals), theme.dim()));
            }
            Line::from(line)
        }
        None => match view.step_left(at) {
            Some(s) => Line::from(pair("this step", format!("{} left", about(s)), theme)),
            None => Line::styled("left: after the first step", theme.dim()),
        },
    }
}

fn lanes(frame: &mut Frame, area: Rect, view: &RunView, theme: Theme) {
    let height = (area.height / 2).max(1);
    let rows = [("disk", &view.disk, Tone::Notice), ("h2d", &view.h2d, Tone::Accent)];
    for (i, (name, lane, tone)) in rows.into_iter().enumerate() {
        let y = area.y + height * i as u16;
        if y >= area.bottom() {
            break;
        }
        let at = Rect { y, height: height.min(area.bottom() - y), ..area };
        let mut text = vec![Span::styled(format!("{name:<5}"), theme.dim()), Span::raw(format!("{:<11}", rate(lane.now())))];
        if at.height > 1 {
            text.extend(pair("peak", rate(lane.peak()), theme));
            put(frame, at, Line::from(text));
            let chart = Rect { y: at.y + 1, height: at.height - 1, ..at };
            spark::draw(frame, chart, &lane.newest(chart.width.into()), tone, theme);
        } else {
            let used = 16.min(at.width);
            put(frame, at, Line::from(text));
            let chart = Rect { x: at.x + used, width: at.width - used, ..at };
            spark::draw(frame, chart, &lane.newest(chart.width.into()), tone, theme);
        }
    }
}

fn memory(app: &App, view: &RunView, width: usize) -> Vec<Line<'static>> {
    let theme = app.theme;
    let g = &view.gauges;
    let none = VramPlan::default();
    let plan = app.plan.report().map_or(&none, |r| &super::plan::chosen(&app.config, r).vram);
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
            let room = width.saturating_sub(crate::ui::text::width(&text) + 5).min(40);
            line.extend(bar(room, ratio_of(live.0 as f64, top), Some(ratio_of(plan.total.0 as f64, top)), theme.tone(tone), theme));
            line.push(Span::raw(text));
            Line::from(line)
        }
        None => Line::from(pair("VRAM", "N/A (no GPU in use)", theme)),
    });
    let na = |value: Option<String>| value.unwrap_or_else(|| "N/A".into());
    let mut clock = pair("SM", na(g.sm_clock_mhz.map(|m| format!("{m} MHz"))), theme);
    clock.push(Span::raw("  "));
    clock.extend(pair("GPU", na(g.gpu_util.map(|u| format!("{u} %"))), theme));
    clock.push(Span::raw(format!("  {}", na(g.gpu_temp_c.map(|t| format!("{t} °C"))))));
    out.push(Line::from(clock));
    let mut host = pair("host", na(g.rss_anon.map(|b| b.to_string())), theme);
    host.push(Span::raw("  "));
    host.extend(pair("free", na(g.ram_available.map(|b| b.to_string())), theme));
    out.push(Line::from(host));
    let mut device = pair("device", na(g.vram_used.map(|b| b.to_string())), theme);
    device.push(Span::raw("  "));
    device.extend(pair("power", na(g.power_w.map(|w| format!("{w:.0} W"))), theme));
    out.push(Line::from(device));
    if let Some(s) = &view.started {
        for (label, value) in
            [("on", &s.device), ("compute", &s.compute_dtype), ("attention", &s.attention), ("reader", &s.reader)]
        {
            out.push(Line::from(pair(&format!("{label:<9}"), cut(value, width.saturating_sub(10)), theme)));
        }
    }
    out
}

fn log_title(app: &App, theme: Theme) -> Vec<Span<'static>> {
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

fn log(app: &App, frame: &mut Frame, area: Rect, view: &RunView) {
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
