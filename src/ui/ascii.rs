//! ASCII mode: one pass over the drawn buffer swaps every other character for a plain one of the same width.

use ratatui::buffer::Buffer;

/// Replaces what isn't ASCII. Frames, bars, dots and signs keep their meaning; letters of other scripts become `?`.
pub fn fold(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if !cell.symbol().is_ascii() {
            let plain = plain(cell.symbol());
            cell.set_char(plain);
        }
    }
}

fn plain(symbol: &str) -> char {
    let c = symbol.chars().next().unwrap_or(' ');
    match c {
        '─' | '━' | '–' | '—' | '⎯' => '-',
        '│' | '┃' | '▏' => '|',
        '╭' | '╮' | '╰' | '╯' | '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '┼' => '+',
        '█' | '▉' | '▊' | '▇' => '#',
        '▆' | '▅' | '▋' => '*',
        '▄' | '▌' => '=',
        '▃' | '▍' => '-',
        '▂' | '▎' => ':',
        '▁' | '·' | '…' | '░' => '.',
        '▒' => ':',
        '▓' => '*',
        '✓' => '+',
        '✗' | '×' => 'x',
        '•' | '●' | '◆' => 'o',
        '›' | '→' | '▸' | '▶' => '>',
        '‹' | '←' | '◂' => '<',
        '↑' | '▲' => '^',
        '↓' | '▼' => 'v',
        '≤' => '<',
        '≥' => '>',
        '≈' => '~',
        // Before a C it is a unit; a letter tells more than a mark would.
        '°' => 'o',
        // Braille: more dots, more ink.
        '\u{2800}' => ' ',
        '\u{2801}'..='\u{28ff}' => match (c as u32 & 0xff).count_ones() {
            1..=2 => '.',
            3..=4 => ':',
            _ => '*',
        },
        _ => '?',
    }
}
