//! The screens: each file holds a screen's own state and draws it.

pub mod data;
pub mod download;
pub mod form;
pub mod models;
pub mod plan;
pub mod report;
pub mod run;
pub mod runs;
pub mod tryout;
pub mod whatif;

use super::theme::Theme;
use ratatui::text::{Line, Span};

/// Title of a list's pane: what, how many, and the filter in force.
fn list_title(what: &str, n: usize, filter: &str, theme: Theme) -> Line<'static> {
    let mut spans = vec![Span::styled(what.to_owned(), theme.title()), Span::styled(format!(" {n}"), theme.dim())];
    if !filter.is_empty() {
        spans.push(Span::styled(format!("  filter: {}", super::text::cut(filter, 20)), theme.strong()));
    }
    Line::from(spans)
}
