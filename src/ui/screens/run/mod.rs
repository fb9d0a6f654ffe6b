//! Run: loss, block map, step, lanes, memory and log of the training in progress.

mod lanes;
mod panes;

use crate::event::{Level, TierName};
use crate::ui::app::App;
use crate::ui::run::RunView;
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::blockmap::{BlockMap, counts};
use crate::ui::widgets::lossplot::LossPlot;
use crate::ui::widgets::{lines, pane};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
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
    /// Scrolls the log, of which `most` lines can be scrolled away.
    pub(in crate::ui) fn scroll_log(&mut self, by: isize, most: usize) {
        // Up the screen is back in time.
        let back = by.checked_neg().unwrap_or(isize::MAX);
        self.scroll = self.scroll.min(most).saturating_add_signed(back).min(most);
    }
}

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let compact = crate::ui::frame::compact(area);
    if app.panes.expanded {
        return one(app, frame, area, app.panes.focus, compact);
    }
    for (pane, at) in layout(app, area) {
        one(app, frame, at, pane, compact);
    }
}

/// Most log lines that can be scrolled away, in a screen of `area`.
#[must_use]
pub fn most_scroll(app: &App, area: Rect) -> usize {
    let frame_rows = if crate::ui::frame::compact(area) { 1 } else { 2 };
    let log = if app.panes.expanded {
        Some(area)
    } else {
        layout(app, area).into_iter().find(|(pane, _)| *pane == Pane::Log).map(|(_, at)| at)
    };
    let height = log.map_or(0, |at| at.height.saturating_sub(frame_rows));
    let view = app.panes.frozen.as_deref().unwrap_or(&app.run);
    view.log.count(app.panes.level).saturating_sub(height.into())
}

/// Where each pane lies.
fn layout(app: &App, area: Rect) -> [(Pane, Rect); 6] {
    let compact = crate::ui::frame::compact(area);
    let right = if area.width >= 120 { area.width * 2 / 5 } else { (area.width * 43 / 100).clamp(24, 48) };
    let gap = u16::from(compact);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(right)]).spacing(gap).areas(area);
    let log = (area.height / 3).clamp(3, 18);
    let [loss, log] = Layout::vertical([Constraint::Fill(1), Constraint::Length(log)]).areas(left);
    let frame_rows = if compact { 1 } else { 2 };
    let tall = area.height >= 40;
    let map_rows = blocks(app, right.width.saturating_sub(frame_rows), if compact { 3 } else { 8 }).len() as u16;
    let map_rows = (map_rows.max(1) + u16::from(!compact) + frame_rows).max(frame_rows + 1);
    let step_rows = frame_rows
        + if compact {
            3
        } else if tall {
            6
        } else {
            4
        };
    // Seven lines of memory say it all; what is over shows the step's visits.
    let spare = area.height.saturating_sub(map_rows + step_rows + 2 * frame_rows + 2 + 7).min(3);
    let [map, step, lanes, memory] = Layout::vertical([
        Constraint::Length(map_rows),
        Constraint::Length(step_rows),
        Constraint::Length(if tall { 16 } else { frame_rows + 2 + spare }),
        if tall { Constraint::Fill(1) } else { Constraint::Min(frame_rows + 2) },
    ])
    .areas(right);
    [
        (Pane::Loss, loss),
        (Pane::Blocks, map),
        (Pane::Step, step),
        (Pane::Lanes, lanes),
        (Pane::Memory, memory),
        (Pane::Log, log),
    ]
}

fn one(app: &App, frame: &mut Frame, area: Rect, which: Pane, compact: bool) {
    let view = app.panes.frozen.as_deref().unwrap_or(&app.run);
    let theme = app.theme;
    let mut title = match which {
        Pane::Loss => loss_title(app, view, (area.width as usize).saturating_sub(6)),
        Pane::Blocks => {
            let mut t = vec![Span::styled("layers ", theme.title())];
            if let Some(s) = &view.started {
                t.extend(counts(&s.tiers, area.width >= 40, view.on_cpu(), theme));
            }
            t
        }
        Pane::Step => step_title(view, theme),
        Pane::Lanes => lanes::title(view, area.width, theme),
        Pane::Memory => vec![Span::styled("memory", theme.title())],
        Pane::Log => panes::log_title(app, theme),
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
                    format!("at most {} layers loaded at once, {} so far", s.residency_planned, view.residency_peak),
                    theme.dim(),
                ));
            }
            lines(frame, inner, text, 0);
        }
        Pane::Step => lines(frame, inner, panes::step(app, view, inner), 0),
        Pane::Lanes => lanes::draw(frame, inner, view, theme),
        Pane::Memory => lines(frame, inner, panes::memory(app, view, inner.width.into()), 0),
        Pane::Log => panes::log(app, frame, inner, view),
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

/// The newest loss; the lowest and those of the evaluations where there is room in `width` columns.
fn loss_title(app: &App, view: &RunView, width: usize) -> Vec<Span<'static>> {
    let theme = app.theme;
    let mut t = vec![Span::styled("loss", theme.title())];
    if let Some(last) = &view.last {
        t.push(Span::raw(format!(" {:.3}", last.loss())));
    }
    if let Some(step) = view.not_finite {
        t.push(Span::styled(format!(" ✗ not finite at step {step}"), theme.tone(Tone::Bad)));
    }
    let eval = view.evals.first().zip(view.evals.last()).map(|((_, first), (_, last))| {
        let text = if view.evals.len() > 1 { format!(" {first:.2} → {last:.2}") } else { format!(" {first:.2}") };
        vec![Span::styled("  ◆", theme.tone(Tone::Second)), Span::styled(" eval loss", theme.dim()), Span::raw(text)]
    });
    let lowest = view.loss.min().map(|m| vec![Span::styled("  min ", theme.dim()), Span::raw(format!("{m:.3}"))]);
    // Of the two the evaluations tell more.
    for more in [eval, lowest].into_iter().flatten() {
        if Line::from(t.clone()).width() + Line::from(more.clone()).width() <= width {
            t.extend(more);
        }
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
            t.push(Span::raw(format!("  epoch {:.2}", last.epoch)));
        }
    }
    t
}
