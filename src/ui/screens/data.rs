//! Data: what the config says about rows and mask, and what the last run counted.

use super::form::{FormState, draw as form};
use crate::event::DataFacts;
use crate::plan::quote;
use crate::ui::app::App;
use crate::ui::form::DATA;
use crate::ui::text::cut;
use crate::ui::theme::{Theme, Tone};
use crate::ui::widgets::{lines, pair, pane, shell_lines, wrap};
use crate::units::plural;
use crate::units::{count, ratio_of};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

/// State of the Data screen.
#[derive(Clone, Debug, Default)]
pub struct DataScreen {
    /// The settings.
    pub form: FormState,
}

/// Draws the screen.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let compact = super::super::frame::compact(area);
    let height = DATA.len() as u16 + if compact { 1 } else { 2 };
    let [top, bottom] = Layout::vertical([Constraint::Max(height), Constraint::Fill(1)]).areas(area);
    let inner = pane(frame, top, Line::styled("dataset", theme.title()), true, compact, theme);
    form(frame, inner, &DATA, &app.data.form, &app.config, theme);
    // A command stands outside any box, so that it can be copied.
    let boxless = compact || app.run.started.is_none();
    let inner = pane(frame, bottom, Line::styled("last run's data", theme.title()), false, boxless, theme);
    let width = inner.width as usize;
    let text = match &app.run.started {
        Some(s) => facts(&s.data, width, theme),
        None => {
            let files = app.config.data.files.first().map_or("FILE".into(), |f| f.display().to_string());
            let model = if app.config.model.path.is_empty() { "DIR" } else { &app.config.model.path };
            let hint = "To see a row as the model will, its trained tokens marked:";
            let command = format!("blockstream-tui data inspect {} --model {}", quote(&files), quote(model));
            let hint = wrap(hint, width).into_iter().map(|l| Line::styled(l, theme.dim()));
            hint.chain(shell_lines(&command, width).into_iter().map(Line::from)).collect()
        }
    };
    lines(frame, inner, text, 0);
}

fn facts(d: &DataFacts, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let share = ratio_of(d.trained_tokens as f64, d.tokens as f64);
    let row = |label: &str, value: String| {
        Line::from(pair(&format!("{label:<16}"), cut(&value, width.saturating_sub(17)), theme))
    };
    let mut text = vec![
        row("format", d.format.clone()),
        row("rows", format!("{} to train on, {} for evaluation", d.rows_used, d.rows_eval)),
        row(
            "tokens",
            format!("{}, of which {} are trained ({:.0} %)", count(d.tokens), count(d.trained_tokens), share * 100.0),
        ),
    ];
    if share == 0.0 && d.tokens > 0 {
        text.push(Line::from(Span::styled("✗ no token is trained: nothing would be learnt", theme.tone(Tone::Bad))));
    }
    let cut_rows = if d.truncated == 0 { "none".into() } else { format!("{} cut", plural(d.truncated, "row")) };
    text.push(row("over the limit", cut_rows));
    if d.dropped.is_empty() {
        text.push(row("skipped", "none".into()));
    }
    for (reason, n) in &d.dropped {
        text.push(row("skipped", format!("{}: {reason}", plural(*n, "row"))));
    }
    text.push(row("template date", d.template_date.clone()));
    text.push(row("sha256", d.sha256.clone()));
    text
}
