//! Colours and characters: Okabe–Ito by default, fewer colours or none where the terminal or the user says so.
//!
//! Colour is never the only sign, and no fixed background is drawn: selection is reverse video.

use ratatui::style::{Color, Modifier, Style};

/// How many colours may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// None: bold and reverse only.
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
    /// The colours for a light background; the others are for a dark one.
    pub light: bool,
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
    /// Chooses from flags and environment: `NO_COLOR` (not empty), `COLORTERM`, `TERM`, `COLORFGBG` (whose last number
    /// is the background), and the locale in the order `LC_ALL`, `LC_CTYPE`, `LANG`.
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
        let light = set("COLORFGBG").is_some_and(|v| matches!(v.rsplit(';').next(), Some("7" | "15")));
        Theme { depth, light, ascii: ascii || !utf8 || term == "linux" }
    }

    /// The theme of tests and scripts: colours that a snapshot can assert on, Unicode.
    #[must_use]
    pub fn plain() -> Theme {
        Theme { depth: Depth::Ansi, light: false, ascii: false }
    }

    /// The next colours, for the key that cycles through them: where we choose them ourselves, those for a dark
    /// background, then those for a light one.
    #[must_use]
    pub fn next(self) -> Theme {
        let (depth, light) = match (self.depth, self.light) {
            (Depth::Rgb | Depth::Indexed, false) => (self.depth, true),
            (Depth::Rgb, true) => (Depth::Indexed, false),
            (Depth::Indexed, true) => (Depth::Ansi, false),
            (Depth::Ansi, _) => (Depth::Mono, false),
            (Depth::Mono, _) => (Depth::Rgb, false),
        };
        Theme { depth, light, ..self }
    }

    /// Name of the colour set.
    #[must_use]
    pub fn name(self) -> &'static str {
        match (self.depth, self.light) {
            (Depth::Mono, _) => "no colour",
            (Depth::Ansi, _) => "the terminal's 16",
            (Depth::Indexed, false) => "256, for a dark background",
            (Depth::Indexed, true) => "256, for a light background",
            (Depth::Rgb, false) => "Okabe-Ito, for a dark background",
            (Depth::Rgb, true) => "Okabe-Ito, for a light background",
        }
    }

    /// The style of a meaning.
    #[must_use]
    pub fn tone(self, tone: Tone) -> Style {
        // The hues of Okabe & Ito 2008, as light or dark as it takes to be read; yellow is left out.
        let (dark, light, ansi) = match tone {
            Tone::Good => (((0, 168, 122), 36), ((0, 120, 86), 22), Color::Green),
            Tone::Notice | Tone::Second => (((230, 159, 0), 214), ((150, 98, 0), 94), Color::Yellow),
            Tone::Costly => (((204, 121, 167), 175), ((160, 66, 116), 125), Color::LightMagenta),
            Tone::Bad => (((232, 110, 24), 208), ((184, 72, 0), 130), Color::LightRed),
            Tone::Accent => (((86, 180, 233), 74), ((0, 107, 166), 25), Color::Cyan),
            Tone::Ram => (((96, 156, 232), 75), ((32, 84, 178), 26), Color::Cyan),
        };
        let (rgb, indexed) = if self.light { light } else { dark };
        self.paint(rgb, indexed, ansi)
    }

    fn paint(self, (r, g, b): (u8, u8, u8), indexed: u8, ansi: Color) -> Style {
        let style = Style::default();
        match self.depth {
            Depth::Mono => style,
            Depth::Ansi => style.fg(ansi),
            Depth::Indexed => style.fg(Color::Indexed(indexed)),
            Depth::Rgb => style.fg(Color::Rgb(r, g, b)),
        }
    }

    /// Text that can wait: labels, units, frames. It is a colour, never the terminal's own dim: that falls below what
    /// can be read on many of them.
    #[must_use]
    pub fn dim(self) -> Style {
        let (rgb, indexed) = if self.light { ((100, 100, 100), 241) } else { ((158, 158, 158), 247) };
        self.paint(rgb, indexed, Color::Reset)
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

    /// Relative luminance (WCAG 2.2).
    fn luminance(rgb: [u8; 3]) -> f64 {
        let linear = |v: u8| match f64::from(v) / 255.0 {
            v if v <= 0.04045 => v / 12.92,
            v => ((v + 0.055) / 1.055).powf(2.4),
        };
        0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2])
    }

    fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    /// What a colour looks like: xterm's palette for the sixteen.
    fn seen(color: Color) -> [u8; 3] {
        match color {
            Color::Rgb(r, g, b) => [r, g, b],
            Color::Indexed(i @ 232..) => [(i - 232) * 10 + 8; 3],
            Color::Indexed(i @ 16..) => {
                let level = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
                [level((i - 16) / 36), level((i - 16) / 6 % 6), level((i - 16) % 6)]
            }
            Color::Green => [0, 205, 0],
            Color::Yellow => [205, 205, 0],
            Color::Cyan => [0, 205, 205],
            Color::LightRed => [255, 0, 0],
            Color::LightMagenta => [255, 0, 255],

            other => panic!("{other:?} has no known look"),
        }
    }

    #[test]
    fn case_fo_60_every_colour_of_every_theme_can_be_read() {
        let tones = [Tone::Good, Tone::Notice, Tone::Costly, Tone::Bad, Tone::Accent, Tone::Ram, Tone::Second];
        let mut theme = Theme { depth: Depth::Rgb, light: false, ascii: false };
        for _ in 0..6 {
            let styles = tones.map(|t| theme.tone(t)).into_iter().chain([theme.dim(), theme.title()]);
            for style in styles {
                assert!(!style.add_modifier.contains(Modifier::DIM), "{theme:?}: {style:?}");
                // The terminal's own text is as readable as the user made it.
                let Some(color) = style.fg.filter(|c| *c != Color::Reset) else { continue };
                let grounds: &[[u8; 3]] = match (theme.depth, theme.light) {
                    (Depth::Ansi, _) => &[[0; 3]],
                    (_, false) => &[[0; 3], [30; 3]],
                    (_, true) => &[[255; 3], [250; 3]],
                };
                for ground in grounds {
                    let c = contrast(seen(color), *ground);
                    assert!(c >= 4.5, "{theme:?}: {color:?} on {ground:?} is {c:.2} : 1");
                }
            }
            theme = theme.next();
        }
        assert_eq!(theme, Theme { depth: Depth::Rgb, light: false, ascii: false }, "the key goes round");
    }

    #[test]
    fn a_light_background_is_known_where_the_terminal_says_so() {
        let light = |v: &str| detect(&[("COLORFGBG", v)], false).light;
        assert!(light("0;15") && light("0;default;7") && !light("15;0") && !light("") && !light("7;8"));
    }
}
