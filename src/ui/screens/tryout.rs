//! Try: how to ask the finetuned model. Generation runs on the command line for now, and this screen says so.

use crate::engine::RunEntry;
use crate::plan::quote;
use crate::ui::app::App;
use crate::ui::widgets::{lines, pane, shell_lines, wrap};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

/// An adapter to ask, with the base that it was trained on.
struct Asked {
    /// What it is, for people.
    from: String,
    model: String,
    adapter: String,
}

/// The adapter of the run on screen, else of the selected run, else of the newest one that has an adapter.
fn asked(app: &App) -> Option<Asked> {
    let own = app.run.started.as_ref().zip(app.run.saved.iter().rev().find(|s| s.what == "adapter"));
    if let Some((started, saved)) = own {
        let basis = app.run.basis.as_ref().map(|b| b.config.model.path.clone()).filter(|p| !p.is_empty());
        return Some(Asked {
            from: format!("the run {}", started.run_id),
            model: basis.unwrap_or_else(|| started.model.clone()),
            adapter: saved.path.display().to_string(),
        });
    }
    let entry = |r: &RunEntry| {
        r.adapter.as_ref().map(|base| Asked {
            from: format!("the run {}", r.run_id),
            model: base.clone(),
            adapter: r.dir.join("adapter").display().to_string(),
        })
    };
    app.runs.list.selected().and_then(entry).or_else(|| app.runs.list.rows().iter().find_map(entry))
}

/// Draws the screen. Commands stand outside any box, in lines that a shell takes, so that they can be copied.
pub fn draw(app: &App, frame: &mut Frame, area: Rect) {
    let theme = app.theme;
    let inner = pane(frame, area, Line::styled("ask the finetuned model", theme.title()), true, true, theme);
    let width = (inner.width as usize).saturating_sub(1);
    let asked = asked(app);
    let base = match (&asked, app.config.model.path.as_str()) {
        (Some(a), _) => quote(&a.model),
        (None, "") => "MODEL".into(),
        (None, path) => quote(path),
    };
    let mut text: Vec<Line> = Vec::new();
    let mut say = |t: &str| text.extend(wrap(t, width).into_iter().map(|l| Line::styled(l, theme.dim())));
    match &asked {
        Some(a) => say(&format!("Chat is not in the workbench yet. With the adapter of {}, run:", a.from)),
        None => say("There is no adapter yet: train one (3 Plan, enter). Until then the base alone can be asked:"),
    }
    let generate = format!("blockstream-tui generate --model {base}");
    let ask = "--greedy --prompt \"Hello\"";
    let mut commands = vec![format!("{generate} {ask}")];
    if let Some(a) = &asked {
        commands.insert(0, format!("{generate} --adapter {} {ask}", quote(&a.adapter)));
    }
    for (i, command) in commands.into_iter().enumerate() {
        if i == 1 {
            text.push(Line::default());
            text.push(Line::styled("And the base alone, to compare:", theme.dim()));
        }
        text.push(Line::default());
        text.extend(shell_lines(&command, width).into_iter().map(|l| Line::styled(l, theme.strong())));
    }
    lines(frame, inner, text, 0);
}
