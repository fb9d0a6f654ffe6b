//! Try: how to ask the finetuned model. Generation runs on the command line for now, and this screen says so.

use crate::ui::app::App;
use crate::ui::widgets::{lines, pane, wrap};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let compact = super::super::frame::compact(area);
    let inner = pane(frame, area, Line::styled("try the adapter", theme.title()), true, compact, theme);
    let adapter = app.run.saved.iter().rev().find(|s| s.what == "adapter").map(|s| s.path.display().to_string());
    let adapter = adapter.or_else(|| app.runs.list.selected().map(|r| r.dir.join("adapter").display().to_string()));
    let model = if app.config.model.path.is_empty() { "DIR" } else { &app.config.model.path };
    let mut text = Vec::new();
    let width = (inner.width as usize).saturating_sub(1);
    let mut say = |style, t: &str| text.extend(wrap(t, width).into_iter().map(|l| Line::styled(l, style)));
    say(theme.dim(), "Generation is a command in this version; it streams like training does. With the adapter:");
    say(theme.dim(), "");
    let with = adapter.unwrap_or_else(|| "RUN/adapter".into());
    say(theme.strong(), &format!("blockstream-tui generate --model {model} --adapter {with} --prompt \"…\" --greedy"));
    say(theme.dim(), "");
    say(theme.dim(), "And the base alone, to compare:");
    say(theme.dim(), "");
    say(theme.strong(), &format!("blockstream-tui generate --model {model} --prompt \"…\" --greedy"));
    lines(frame, inner, text, 0);
}
