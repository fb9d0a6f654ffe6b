//! A one-line text field: filter, palette, prompts and settings all edit with it.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui_textarea::TextArea;

/// One line of text being edited.
#[derive(Clone, Debug)]
pub struct Input(TextArea<'static>);

impl Input {
    /// A field that holds `text`, cursor at its end.
    #[must_use]
    pub fn new(text: &str) -> Input {
        let mut area = TextArea::new(vec![crate::text::one_line(text).into_owned()]);
        area.set_cursor_line_style(Style::default());
        area.move_cursor(ratatui_textarea::CursorMove::End);
        Input(area)
    }

    /// Takes a key; `true` if the text may have changed.
    pub fn key(&mut self, key: &KeyEvent) -> bool {
        let newline = key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('m' | 'j'));
        if newline || matches!(key.code, KeyCode::Enter | KeyCode::Esc | KeyCode::Tab) {
            return false;
        }
        self.0.input(*key)
    }

    /// Takes pasted text, as one line.
    pub fn paste(&mut self, text: &str) {
        self.0.insert_str(crate::text::one_line(text));
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.lines().first().map_or("", String::as_str)
    }

    /// Draws the line and its cursor.
    pub fn draw(&self, frame: &mut Frame, area: Rect) {
        if !area.is_empty() {
            frame.render_widget(&self.0, area);
        }
    }
}
