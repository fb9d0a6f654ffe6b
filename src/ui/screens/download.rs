//! The download dialog, and the line that says how far a fetch is.

use crate::engine::DownloadPlan;
use crate::ui::app::App;
use crate::ui::fetch::Work;
use crate::ui::overlays::popup;
use crate::ui::text::cut;
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::{bar, lines, pair, put};
use crate::units::{Bytes, rate, ratio_of, secs};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

/// Draws the dialog.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let title = app.fetch.plan.as_ref().map_or("download".to_owned(), |p| format!("download {}", p.model));
    let inner = popup(app, frame, area, (70, 13), &title);
    let [top, bottom] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(inner);
    let width = usize::from(inner.width);
    let mut text = match &app.fetch.plan {
        Some(plan) => described(plan, width, theme),
        None => Vec::new(),
    };
    if app.fetch.downloading().is_some() {
        let stage = app.fetch.stage.as_ref();
        let (done, total) = stage.map_or((0, 0), |s| (s.done, s.total));
        text.push(Line::default());
        text.push(Line::from(bar(width, ratio_of(done as f64, total as f64), None, theme.tone(Tone::Accent), theme)));
        text.push(Line::from(amount(app)));
        text.push(Line::styled(cut(stage.map_or("", |s| s.name.as_str()), width), theme.dim()));
    } else if app.fetch.work.is_some() {
        text.push(Line::from(status(app).unwrap_or_default()));
    }
    lines(frame, top, text, 0);
    let keys = match (app.fetch.downloading(), &app.fetch.work, &app.fetch.plan) {
        _ if app.fetch.cancelling => "cancelling…",
        (Some(_), ..) => "c cancels (d resumes it later)   esc closes, the download continues",
        (None, Some(_), _) => "c cancels   esc closes",
        (None, None, Some(plan)) if plan.fetch > plan.free => "esc closes",
        (None, None, Some(_)) => "enter downloads   esc closes",
        (None, None, None) => "esc closes",
    };
    put(frame, bottom, Line::styled(keys, theme.dim()));
}

/// What a download takes.
fn described(plan: &DownloadPlan, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let here = plan.total.saturating_sub(plan.fetch);
    let row = |label: &str, value: String| Line::from(pair(&format!("{label:<9}"), value, theme));
    let commit: String = plan.commit.chars().take(12).collect();
    let mut files = format!("{}, {}", plan.files, plan.total);
    if here > Bytes::ZERO {
        files += &format!(", of which {here} are here");
    }
    let fits = plan.fetch <= plan.free;
    let sign = if fits { "✓" } else { "✗" };
    let tone = theme.tone(if fits { Tone::Good } else { Tone::Bad });
    let room = width.saturating_sub(34);
    let mut free = pair(&format!("{:<9}", "free"), format!("{} ", plan.free), theme);
    free.push(Span::styled(sign, tone));
    let cache = crate::ui::text::tail(&plan.cache.display().to_string(), room);
    free.push(Span::styled(format!("  {cache}"), theme.dim()));
    vec![
        row("commit", commit),
        row("files", files),
        row("to fetch", plan.fetch.to_string()),
        Line::from(free),
        row("SSD wear", format!("{} written, once", plan.fetch)),
    ]
}

/// How far, how fast, how long still.
fn amount(app: &App) -> String {
    let Some(stage) = &app.fetch.stage else {
        return "connecting".into();
    };
    let share = 100.0 * ratio_of(stage.done as f64, stage.total as f64);
    format!("{share:.0} %  {} of {}{}", Bytes(stage.done), Bytes(stage.total), pace(app))
}

/// How fast, how long still; nothing while nothing comes.
fn pace(app: &App) -> String {
    let mut text = String::new();
    if let Some(speed) = app.fetch.rate() {
        text += &format!("  {}", rate(speed));
    }
    if let Some(left) = app.fetch.left() {
        text += &format!("  ~{} left", secs(left));
    }
    text
}

/// The fetch that goes on, in a line; `None` if none does.
#[must_use]
pub fn status(app: &App) -> Option<String> {
    let counted = || {
        let stage = app.fetch.stage.as_ref().filter(|s| s.total > 0);
        stage.map_or(String::new(), |s| format!("  {} of {} {}", s.done, s.total, s.unit))
    };
    let text = match app.fetch.work.as_ref()? {
        Work::Headers(model) => format!("fetching headers of {model}{}", counted()),
        Work::Survey(model) => format!("asking the hub about {model}{}", counted()),
        Work::Download(model) => {
            let share = app.fetch.stage.as_ref().map_or(0.0, |s| 100.0 * ratio_of(s.done as f64, s.total as f64));
            format!("downloading {model}  {share:.0} %{}", pace(app))
        }
    };
    Some(crate::text::one_line(&text).into_owned())
}
