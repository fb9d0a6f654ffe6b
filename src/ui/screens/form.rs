//! Settings as rows: the selected one is reversed, the edited one holds a text field.

use crate::config::RunConfig;
use crate::ui::form::Field;
use crate::ui::input::Input;
use crate::ui::list::window;
use crate::ui::text::{cut, fit};
use crate::ui::theme::Theme;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// State of a screen's settings.
#[derive(Clone, Debug, Default)]
pub struct FormState {
    /// Selected row.
    pub selected: usize,
    /// The text field, while a value is typed.
    pub editing: Option<Input>,
}

impl FormState {
    pub(in crate::ui) fn step(&mut self, by: isize, rows: usize) {
        self.selected = self.selected.saturating_add_signed(by).min(rows.saturating_sub(1));
    }

    pub(in crate::ui) fn start_edit(&mut self, fields: &[Field], config: &RunConfig) {
        if let Some(field) = fields.get(self.selected) {
            self.editing = Some(Input::new(&field.get(config)));
        }
    }

    pub(in crate::ui) fn stepped(
        &self,
        fields: &'static [Field],
        config: &RunConfig,
        by: isize,
    ) -> Option<(&'static str, &'static str)> {
        let field = fields.get(self.selected)?;
        field.stepped(config, by).map(|value| (field.key, value))
    }
}

/// Draws the settings.
pub fn draw(frame: &mut Frame, area: Rect, fields: &[Field], state: &FormState, config: &RunConfig, theme: Theme) {
    let labels = fields.iter().map(|f| f.label.len()).max().unwrap_or(0);
    let first = window(state.selected, fields.len(), area.height.into());
    let room = (area.width as usize).saturating_sub(labels + 5);
    for (row, (i, field)) in fields.iter().enumerate().skip(first).take(area.height.into()).enumerate() {
        let at = Rect { y: area.y + row as u16, height: 1, ..area };
        let selected = i == state.selected;
        let label =
            Span::styled(format!(" {:<labels$} ", field.label), if selected { theme.strong() } else { theme.dim() });
        if let (true, Some(input)) = (selected, &state.editing) {
            super::super::widgets::put(frame, at, Line::from(label));
            let indent = (labels as u16 + 2).min(area.width);
            input.draw(frame, Rect { x: at.x + indent, width: at.width - indent, ..at });
            continue;
        }
        let value = cut(&field.shown(config), room);
        let line = if selected && !field.steps.is_empty() {
            Line::from(vec![label, Span::styled(fit(&format!("‹ {value} ›"), room + 3), theme.selected())])
        } else if selected {
            Line::from(vec![label, Span::styled(fit(&format!("  {value}"), room + 3), theme.selected())])
        } else {
            Line::from(vec![label, Span::raw(format!("  {value}"))])
        };
        super::super::widgets::put(frame, at, line);
    }
}
