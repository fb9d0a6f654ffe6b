//! Text for cells: cleaned, cut by display width and never inside a grapheme.

use crate::text::one_line;
use ratatui::style::Style;
use ratatui::text::Span;

/// Columns that `text` takes on a terminal.
#[must_use]
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// `text` cleaned and cut to at most `columns`, with `…` where something is missing.
#[must_use]
pub fn cut(text: &str, columns: usize) -> String {
    let text = one_line(text);
    if width(&text) <= columns {
        return text.into_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for grapheme in Span::raw(text.as_ref()).styled_graphemes(Style::default()) {
        let w = width(grapheme.symbol);
        if used + w + 1 > columns {
            break;
        }
        out.push_str(grapheme.symbol);
        used += w;
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

/// [`cut`], then padded with spaces to exactly `columns`.
#[must_use]
pub fn fit(text: &str, columns: usize) -> String {
    let mut out = cut(text, columns);
    out.extend(std::iter::repeat_n(' ', columns - width(&out).min(columns)));
    out
}

/// [`cut`], then padded on the left to exactly `columns`.
#[must_use]
pub fn fit_right(text: &str, columns: usize) -> String {
    let out = cut(text, columns);
    let pad = columns - width(&out).min(columns);
    format!("{}{out}", " ".repeat(pad))
}

/// `text` cleaned and cut in its middle to at most `columns`: of long names the end tells as much as the beginning.
#[must_use]
pub fn middle(text: &str, columns: usize) -> String {
    let text = one_line(text);
    if width(&text) <= columns || columns < 8 {
        return cut(&text, columns);
    }
    let head = cut(&text, columns.div_ceil(2));
    let end = tail(&text, columns - width(&head) + 1);
    format!("{head}{}", end.trim_start_matches('…'))
}

/// The tail of a path-like `text` in `columns`, `…` in front where something is missing.
#[must_use]
pub fn tail(text: &str, columns: usize) -> String {
    let text = one_line(text);
    if width(&text) <= columns {
        return text.into_owned();
    }
    let span = Span::raw(text.as_ref());
    let graphemes: Vec<&str> = span.styled_graphemes(Style::default()).map(|g| g.symbol).collect();
    let (mut used, mut from) = (1, graphemes.len());
    while from > 0 && used + width(graphemes[from - 1]) <= columns {
        from -= 1;
        used += width(graphemes[from]);
    }
    if columns == 0 { String::new() } else { format!("…{}", graphemes[from..].concat()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_ui_09_names_are_cut_by_width_and_never_inside_a_grapheme() {
        let name = "模型-七十亿-é-👩‍🔬";
        for columns in 0..24 {
            for text in [cut(name, columns), tail(name, columns)] {
                assert!(width(&text) <= columns, "{columns}: {text}");
            }
            assert_eq!(width(&fit(name, columns)), columns, "{columns}");
            assert_eq!(width(&fit_right(name, columns)), columns, "{columns}");
        }
        assert_eq!(cut(name, 6), "模型-…");
        for columns in 0..40 {
            assert!(width(&middle("meta-llama/模型-七十亿/Llama-3.1-8B-Instruct", columns)) <= columns, "{columns}");
        }
        assert_eq!(middle("20261128T201500Z-smol-lora", 17), "20261128…mol-lora");
        assert_eq!(cut("ab👩‍🔬cd", 4), "ab…");
        assert_eq!(tail("/a/long/path", 6), "…/path");
    }
}
