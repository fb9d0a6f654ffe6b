//! The log pane's lines: a bounded ring of notices, and of what libraries wrote to the descriptors.

use crate::event::Level;
use crate::text::one_line;
use std::collections::VecDeque;

const LINES: usize = 2_000;
const LONGEST: usize = 2_000;

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The run or the program.
    Run,
    /// A library, to fd 1 or 2.
    Library,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLine {
    /// Run seconds.
    pub at: f64,
    /// How serious.
    pub level: Level,
    /// Who said it.
    pub source: Source,
    /// The text, cleaned.
    pub text: String,
}

/// A ring of lines.
#[derive(Clone, Debug, Default)]
pub struct Log(VecDeque<LogLine>);

impl Log {
    /// Adds a line; the oldest goes when the ring is full.
    pub fn push(&mut self, at: f64, level: Level, source: Source, text: &str) {
        if self.0.len() == LINES {
            self.0.pop_front();
        }
        let text = one_line(text.trim_end()).chars().take(LONGEST).collect();
        self.0.push_back(LogLine { at, level, source, text });
    }

    /// Lines of at least `level`, oldest first.
    pub fn lines(&self, level: Level) -> impl DoubleEndedIterator<Item = &LogLine> {
        self.0.iter().filter(move |l| l.level >= level)
    }
    /// How many lines of at least `level` there are.
    #[must_use]
    pub fn count(&self, level: Level) -> usize {
        self.lines(level).count()
    }
}
