//! Colours and characters: Okabe–Ito by default, fewer colours or none where the terminal or the user says so.
//!
//! Colour is never the only sign, and no fixed background is drawn: selection is reverse video.

use ratatui::style::{Color, Modifier, Style};

/// How many colours may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// None: bold, dim and reverse only.
    Mono,
    /// The terminal's own sixteen.
    Ansi,
    /// The 256-colour palette.
    Indexed,
    /// Direct colour.
    Rgb,
}

/// What the program draws with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Colours.
    pub depth: Depth,
    /// Only ASCII characters.
    pub ascii: bool,
}

/// Meanings that have a colour; each also has a word or a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Fine; RAM verdict.
    Good,
    /// Worth a look: LORA_DISK, warnings.
    Notice,
    /// Costly: FULL_FT_DISK.
    Costly,
    /// Bad: INFEASIBLE, errors.
    Bad,
    /// The accent of the program: titles, the loss curve.
    Accent,
    /// The host-memory tier; links.
    Ram,
    /// Held-out loss and other second series.
    Second,
}

impl Theme {
    /// Chooses from flags and environment: `NO_COLOR` (not empty), `COLORTERM`, `TERM`, and the locale in the order
    /// `LC_ALL`, `LC_CTYPE`, `LANG`.
    #[must_use]
    pub fn detect(no_color: bool, ascii: bool, env: &dyn Fn(&str) -> Option<String>) -> Theme {
        let set = |name: &str| env(name).filter(|v| !v.is_empty());
        let term = set("TERM").unwrap_or_default();
        let depth = if no_color || set("NO_COLOR").is_some() {
            Depth::Mono
        } else if set("COLORTERM").is_some_and(|c| c == "truecolor" || c == "24bit") {
            Depth::Rgb
        } else if term.contains("256color") {
            Depth::Indexed
        } else {
            Depth::Ansi
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_ascii_lowercase();
        let utf8 = locale.contains("utf-8") || locale.contains("utf8");
        Theme { depth, ascii: ascii || !utf8 || term == "linux" }
    }

    /// The theme of tests and scripts: colours that a snapshot can assert on, Unicode.
    #[must_use]
    pub fn plain() -> Theme {
        Theme { depth: Depth::Ansi, ascii: false }
    }

    /// The next depth, for the key that cycles through them.
    #[must_use]
    pub fn next(self) -> Theme {
        let depth = match self.depth {
            Depth::Rgb => Depth::Indexed,
            Depth::Indexed => Depth::Ansi,
            Depth::Ansi => Depth::Mono,
            Depth::Mono => Depth::Rgb,
        };
        Theme { depth, ..self }
    }

    /// Name of the colour set.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.depth {
            Depth::Mono => "no colour",
            Depth::Ansi => "16 colours",
            Depth::Indexed => "256 colours",
            Depth::Rgb => "Okabe-Ito",
        }
    }

    /// The style of a meaning.
    #[must_use]
    pub fn tone(self, tone: Tone) -> Style {
        // Okabe & Ito 2008; yellow is left out since it can't be read on white.
        let (rgb, indexed, ansi) = match tone {
            Tone::Good => ((0, 158, 115), 36, Color::Green),
            Tone::Notice => ((230, 159, 0), 214, Color::Yellow),
            Tone::Costly => ((204, 121, 167), 175, Color::Magenta),
            Tone::Bad => ((213, 94, 0), 166, Color::Red),
            Tone::Accent => ((86, 180, 233), 74, Color::Cyan),
            Tone::Ram => ((0, 114, 178), 32, Color::Blue),
            Tone::Second => ((230, 159, 0), 214, Color::Yellow),
        };
        let style = Style::default();
        match self.depth {
            Depth::Mono => style,
            Depth::Ansi => style.fg(ansi),
            Depth::Indexed => style.fg(Color::Indexed(indexed)),
            Depth::Rgb => style.fg(Color::Rgb(rgb.0, rgb.1, rgb.2)),
        }
    }

    /// Text that can wait: labels, units, frames.
    #[must_use]
    pub fn dim(self) -> Style {
        Style::default().add_modifier(Modifier::DIM)
    }
    /// Text that matters.
    #[must_use]
    pub fn strong(self) -> Style {
        Style::default().add_modifier(Modifier::BOLD)
    }
    /// The selected row.
    #[must_use]
    pub fn selected(self) -> Style {
        Style::default().add_modifier(Modifier::REVERSED)
    }
    /// Pane titles.
    #[must_use]
    pub fn title(self) -> Style {
        self.tone(Tone::Accent).add_modifier(Modifier::BOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(vars: &[(&str, &str)], ascii: bool) -> Theme {
        Theme::detect(false, ascii, &|k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn case_ui_12_colour_depth_follows_the_environment() {
        let utf8 = ("LANG", "en_US.UTF-8");
        let depth = |vars: &[(&str, &str)]| detect(vars, false).depth;
        assert_eq!(depth(&[utf8, ("NO_COLOR", "1"), ("COLORTERM", "truecolor")]), Depth::Mono);
        assert_eq!(depth(&[utf8, ("NO_COLOR", ""), ("COLORTERM", "truecolor")]), Depth::Rgb);
        assert_eq!(depth(&[utf8, ("TERM", "tmux-256color")]), Depth::Indexed);
        assert_eq!(depth(&[utf8, ("TERM", "xterm")]), Depth::Ansi);
        assert_eq!(depth(&[utf8, ("TERM", "screen")]), Depth::Ansi);
    }

    #[test]
    fn case_ui_14_the_locale_decides_on_ascii_in_the_right_order() {
        let ascii = |vars: &[(&str, &str)]| detect(vars, false).ascii;
        assert!(ascii(&[("LC_ALL", "C")]));
        assert!(ascii(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
        assert!(ascii(&[("LANG", "en_US.ISO-8859-1")]));
        assert!(ascii(&[]));
        assert!(ascii(&[("LANG", "en_US.UTF-8"), ("TERM", "linux")]));
        assert!(!ascii(&[("LC_ALL", ""), ("LC_CTYPE", "de_CH.utf8"), ("LANG", "C")]));
        assert!(detect(&[("LANG", "en_US.UTF-8")], true).ascii);
    }
}
