//! A list with a selection and a typed filter; Models and Runs share it.

use super::input::Input;
use ratatui::crossterm::event::KeyEvent;

/// Rows that can be selected and filtered.
#[derive(Clone, Debug)]
pub struct List<T> {
    rows: Vec<T>,
    /// Index into the rows that pass the filter.
    selected: usize,
    filter: String,
    typing: Option<Input>,
    text_of: fn(&T) -> String,
    loaded: bool,
}

impl<T> List<T> {
    /// An empty list; `text_of` gives the text that the filter looks into.
    #[must_use]
    pub fn new(text_of: fn(&T) -> String) -> List<T> {
        List { rows: Vec::new(), selected: 0, filter: String::new(), typing: None, text_of, loaded: false }
    }

    /// New rows; the selection stays where it was, if it can.
    pub fn replace(&mut self, rows: Vec<T>) {
        self.rows = rows;
        self.loaded = true;
        self.clamp();
    }
    /// All rows, filter or not.
    #[must_use]
    pub fn rows(&self) -> &[T] {
        &self.rows
    }
    /// Whether there are no rows at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
    /// Whether rows have been asked for and answered.
    #[must_use]
    pub fn loaded(&self) -> bool {
        self.loaded
    }
    /// Rows that pass the filter.
    pub fn shown(&self) -> impl Iterator<Item = &T> {
        let wanted = self.filter.to_lowercase();
        self.rows.iter().filter(move |r| wanted.is_empty() || (self.text_of)(r).to_lowercase().contains(&wanted))
    }
    /// Index of the selection among the shown rows.
    #[must_use]
    pub fn cursor(&self) -> usize {
        self.selected
    }
    /// The selected row.
    #[must_use]
    pub fn selected(&self) -> Option<&T> {
        self.shown().nth(self.selected)
    }
    /// Selects the first shown row that is wanted, if there is one.
    pub fn select(&mut self, wanted: impl Fn(&T) -> bool) {
        let at = self.shown().position(wanted);
        self.selected = at.unwrap_or(self.selected);
    }
    /// Moves the selection.
    pub fn step(&mut self, by: isize) {
        self.selected = self.selected.saturating_add_signed(by);
        self.clamp();
    }
    /// The filter in force.
    #[must_use]
    pub fn filter(&self) -> &str {
        &self.filter
    }
    /// Whether the filter is being typed.
    #[must_use]
    pub fn filtering(&self) -> bool {
        self.typing.is_some()
    }
    /// The filter's field, while typed.
    #[must_use]
    pub fn typing(&self) -> Option<&Input> {
        self.typing.as_ref()
    }

    pub(super) fn start_filter(&mut self) {
        self.typing = Some(Input::new(&self.filter));
    }
    pub(super) fn clear_filter(&mut self) {
        self.filter.clear();
        self.typing = None;
        self.clamp();
    }
    pub(super) fn filter_key(&mut self, key: &KeyEvent, name: &str) {
        match name {
            "<ret>" => self.typing = None,
            "<esc>" => self.clear_filter(),
            "<down>" => self.step(1),
            "<up>" => self.step(-1),
            _ => {
                if let Some(input) = &mut self.typing
                    && input.key(key)
                {
                    self.filter = input.text().to_owned();
                    self.clamp();
                }
            }
        }
    }
    pub(super) fn paste(&mut self, text: &str) {
        if let Some(input) = &mut self.typing {
            input.paste(text);
            self.filter = input.text().to_owned();
            self.clamp();
        }
    }

    fn clamp(&mut self) {
        self.selected = self.selected.min(self.shown().count().saturating_sub(1));
    }
}

/// First row shown so that `cursor` stays in view with rows around it, in a window of `height` of `total` rows.
#[must_use]
pub fn window(cursor: usize, total: usize, height: usize) -> usize {
    cursor.saturating_sub(height / 2).min(total.saturating_sub(height))
}
