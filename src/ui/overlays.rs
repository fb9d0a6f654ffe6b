//! Draws what lies over a screen, and knows how far it can be scrolled.

use super::app::App;
use super::overlay::{HelpLine, Overlay, Palette, Prompt, QuitDialog, help_lines};
use super::run::about;
use super::screens;
use super::text::{cut, fit, fit_right};
use super::theme::Theme;
use super::widgets::{lines, pane, put, wrap};
use crate::units::plural;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Clear;

/// Something to read in a box: help, a message, a report.
struct Sheet {
    title: String,
    size: (u16, u16),
    text: Vec<Line<'static>>,
    /// Lines above the text: the help's search field.
    above: u16,
    /// What stands below it.
    below: Option<&'static str>,
}

impl Sheet {
    fn of(app: &App, overlay: &Overlay, area: Rect) -> Option<Sheet> {
        let theme = app.theme;
        Some(match overlay {
            Overlay::Help { screen, filter, .. } => {
                let text = help_lines(*screen, filter.text()).into_iter().map(|l| help_line(l, theme)).collect();
                let title = "keys".to_owned();
                Sheet { title, size: (72, area.height.saturating_sub(2).min(50)), text, above: 1, below: None }
            }
            Overlay::Message { title, text, fix, .. } => {
                let width = 70.min(area.width);
                let text: Vec<Line> = wrap(text, width.saturating_sub(2).into()).into_iter().map(Line::from).collect();
                let height = (text.len() as u16 + 3).clamp(4, area.height.max(4));
                let below = if fix.is_some() { "enter applies the fix   esc closes" } else { "enter closes" };
                Sheet { title: title.clone(), size: (width, height), text, above: 0, below: Some(below) }
            }
            Overlay::Report { reports, .. } => {
                let width = area.width.saturating_sub(4).min(if reports.len() > 1 { 120 } else { 90 });
                let text = screens::report::report_lines(reports, width.saturating_sub(2).into(), theme);
                let height = (text.len() as u16 + 2).min(area.height.saturating_sub(2));
                let title = if reports.len() > 1 { "two runs side by side" } else { "report" };
                Sheet { title: title.into(), size: (width, height), text, above: 0, below: None }
            }
            _ => return None,
        })
    }

    /// Lines of text that are seen at once.
    fn height(&self, area: Rect) -> usize {
        let around = 2 + self.above + u16::from(self.below.is_some());
        self.size.1.min(area.height).saturating_sub(around).into()
    }
}

fn help_line(line: HelpLine, theme: Theme) -> Line<'static> {
    match line {
        HelpLine::Heading(text) => Line::styled(text, theme.title()),
        HelpLine::Keys(keys, help) => {
            Line::from(vec![Span::styled(format!("{keys:>15}  "), theme.strong()), Span::raw(help)])
        }
    }
}

/// Most lines of `overlay` that can be scrolled away on a terminal of `area`.
#[must_use]
pub fn most_scroll(app: &App, overlay: &Overlay, area: Rect) -> usize {
    Sheet::of(app, overlay, area).map_or(0, |s| s.text.len().saturating_sub(s.height(area)))
}

/// Draws `overlay` over the screen.
pub fn draw(app: &App, frame: &mut Frame, overlay: &Overlay, area: Rect) {
    match overlay {
        Overlay::Quit(dialog) => draw_quit(app, frame, *dialog, area),
        Overlay::Palette(p) => draw_palette(app, frame, p, area),
        Overlay::Prompt(p) => draw_prompt(app, frame, p, area),
        Overlay::Download => screens::download::draw(app, frame, area),
        Overlay::Help { scroll, .. } | Overlay::Message { scroll, .. } | Overlay::Report { scroll, .. } => {
            draw_sheet(app, frame, overlay, *scroll, area);
        }
    }
}

fn draw_sheet(app: &App, frame: &mut Frame, overlay: &Overlay, scroll: usize, area: Rect) {
    let Some(sheet) = Sheet::of(app, overlay, area) else { return };
    let theme = app.theme;
    let inner = popup(app, frame, area, sheet.size, &sheet.title);
    let below = u16::from(sheet.below.is_some());
    let heights = [Constraint::Length(sheet.above), Constraint::Fill(1), Constraint::Length(below)];
    let [above, body, foot] = Layout::vertical(heights).areas(inner);
    if let Overlay::Help { filter, typing, .. } = overlay {
        let label = if *typing { "find: " } else { "/ finds   j k g G scroll   esc closes" };
        put(frame, above, Line::styled(label, theme.dim()));
        if *typing {
            let indent = (label.len() as u16).min(above.width);
            filter.draw(frame, Rect { x: above.x + indent, width: above.width - indent, ..above });
        }
    }
    let most = sheet.text.len().saturating_sub(body.height.into());
    let scroll = scroll.min(most);
    lines(frame, body, sheet.text, scroll);
    if let Some(keys) = sheet.below {
        put(frame, foot, Line::styled(keys, theme.dim()));
    }
    if most > 0 {
        // On the border, so that it hides nothing that is read.
        let text = match (scroll, most - scroll) {
            (up, 0) => format!(" ↑ {up} lines above, k "),
            (_, down) => format!(" ↓ {down} lines below, j "),
        };
        let width = super::text::width(&text) as u16;
        let x = inner.right().saturating_sub(width);
        put(
            frame,
            Rect { x, y: inner.bottom(), width: width.min(inner.width), height: 1 },
            Line::styled(text, theme.strong()),
        );
    }
}

fn draw_palette(app: &App, frame: &mut Frame, p: &Palette, area: Rect) {
    let theme = app.theme;
    let inner = popup(app, frame, area, (76, 18), "command");
    let [search, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(inner);
    put(frame, search, Line::styled(": ", theme.strong()));
    let indent = 2.min(search.width);
    p.input.draw(frame, Rect { x: search.x + indent, width: search.width - indent, ..search });
    let rows: Vec<String> = if p.verb() {
        p.lines()
    } else {
        let room = (body.width as usize).saturating_sub(10);
        let row = |b: &&'static super::keys::Binding| {
            let help = match p.elsewhere(b) {
                Some(screen) => format!("{}: {}", screen.name(), b.help),
                None => b.help.to_owned(),
            };
            format!("{} {}", fit(&help, room), fit_right(b.keys[0], 7))
        };
        p.hits().iter().map(row).collect()
    };
    if rows.is_empty() {
        let text = " set KEY VALUE, open SCREEN, export KIND, run, stop, save, quit";
        lines(frame, body, vec![Line::styled(text, theme.dim())], 0);
        return;
    }
    let first = super::list::window(p.selected, rows.len(), body.height.into());
    let width = (body.width as usize).saturating_sub(1);
    let text = rows.iter().enumerate().skip(first).map(|(i, row)| {
        let style = if i == p.selected { theme.selected() } else { Style::default() };
        Line::styled(format!(" {}", fit(row, width)), style)
    });
    lines(frame, body, text.collect(), 0);
    if p.verb() {
        let text = " tab takes it ";
        let at = Rect { x: inner.right().saturating_sub(15), y: inner.bottom(), width: 14.min(inner.width), height: 1 };
        put(frame, at, Line::styled(text, theme.strong()));
    }
}

fn draw_prompt(app: &App, frame: &mut Frame, p: &Prompt, area: Rect) {
    let most = area.height.saturating_sub(4).min(12);
    let offers = (p.offers.len() as u16).min(most);
    let inner = popup(app, frame, area, (76, 3 + offers), p.title);
    let [line, below] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(inner);
    p.input.draw(frame, line);
    let width = usize::from(below.width);
    let shown = usize::from(offers);
    let text = p.offers.iter().take(shown).enumerate().map(|(i, offer)| {
        let more = p.offers.len() - shown;
        let text = if i + 1 == shown && more > 0 { format!("… and {} more", more + 1) } else { offer.clone() };
        Line::styled(super::text::tail(&text, width), app.theme.dim())
    });
    lines(frame, below, text.collect(), 0);
}

/// A box of `width` × `height` in the middle of `area`, cleared.
pub(super) fn popup(app: &App, frame: &mut Frame, area: Rect, size: (u16, u16), title: &str) -> Rect {
    let (width, height) = (size.0.min(area.width), size.1.min(area.height));
    let at = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, at);
    pane(frame, at, Line::styled(cut(title, width.saturating_sub(6).into()), app.theme.title()), true, false, app.theme)
}

/// What leaving costs, before it is chosen.
fn draw_quit(app: &App, frame: &mut Frame, dialog: QuitDialog, area: Rect) {
    let theme = app.theme;
    let (steps, kept) = app.run.unsaved();
    let some = plural(steps, "step");
    let lost = match (steps, kept) {
        (0, _) => "The step in progress would be lost, no complete one.".to_owned(),
        (_, Some(step)) => format!("{some} since the last save (step {step}) would be lost."),
        (_, None) => format!("{some} would be lost: nothing is saved yet."),
    };
    let left = app.run.step_left(app.run_now()).map_or(String::new(), |s| format!(", {}", about(s)));
    let (title, text) = match dialog.sure {
        true => ("discard for good?", lost),
        false => ("training is in progress", format!("Saving first finishes this step{left}. Discarding: {lost}")),
    };
    let inner = popup(app, frame, area, (60, 7), title);
    let mut body: Vec<Line> = wrap(&text, inner.width.into()).into_iter().map(Line::from).collect();
    body.push(Line::default());
    let mut choices = Vec::new();
    for (i, (_, key, word)) in dialog.choices().iter().enumerate() {
        let style = if i == dialog.selected { theme.selected() } else { Style::default() };
        choices.push(Span::styled(format!(" {key} {word} "), style));
        choices.push(Span::raw(" "));
    }
    body.push(Line::from(choices));
    body.push(Line::styled("Ctrl-C again drops this step and saves the ones before", theme.dim()));
    lines(frame, inner, body, 0);
}
