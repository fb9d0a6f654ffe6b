//! What a newcomer trips over: commands that don't work, verdicts that promise too much, text that can't be reached or
//! read, typing that is lost. One test for each fault found by trying (`case_fo_…`).

use super::*;
use blockstream_tui::engine::RunEntry;
use blockstream_tui::ui::keys::BINDINGS;
use blockstream_tui::ui::overlay::{HelpLine, Overlay, help_lines};
use blockstream_tui::worker::fake;

/// The commands that a screen shows: lines that end in a backslash are joined with the next.
fn commands(shown: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut open = false;
    for line in shown.lines().map(str::trim) {
        let text = line.trim_end_matches('\\').trim();
        match (open, line.starts_with("blockstream-tui ")) {
            (true, _) => out.last_mut().unwrap().push_str(&format!(" {text}")),
            (false, true) => out.push(text.to_owned()),
            (false, false) => {}
        }
        open = line.ends_with('\\');
    }
    out
}

#[test]
fn case_fo_55_try_asks_an_adapter_with_the_base_it_was_trained_on() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Try));
    let base = "blockstream-tui generate --model models/SmolLM2-135M-Instruct";
    let adapter = "--adapter results/20261128T201500Z-smol-lora/adapter";
    for size in SIZES {
        // The config names another model: the adapter's own base is what it needs.
        let shown = commands(&text(&session.app, size));
        let ask = "--greedy --prompt \"Hello\"";
        assert_eq!(shown, [format!("{base} {adapter} {ask}"), format!("{base} {ask}")], "{size:?}");
    }
    // The selected run; one without an adapter is passed over.
    press(&mut session, "5 j 6");
    assert!(text(&session.app, (160, 50)).contains("20261128T190200Z-smol-lora/adapter"));
    press(&mut session, "5 j 6");
    assert!(text(&session.app, (160, 50)).contains("20261128T201500Z-smol-lora/adapter"));

    let spaced = RunEntry {
        dir: "my results/it's one".into(),
        adapter: Some("my models/base".into()),
        ..fake::runs().swap_remove(0)
    };
    session.send(Msg::Runs(vec![spaced.clone()]));
    let shown = commands(&text(&session.app, (160, 50)));
    assert!(shown[0].contains("--model 'my models/base' --adapter 'my results/it'\\''s one/adapter'"), "{shown:?}");

    session.send(Msg::Runs(vec![RunEntry { adapter: None, ..spaced }]));
    let shown = text(&session.app, (80, 24));
    assert!(shown.contains("There is no adapter yet") && !shown.contains("--adapter"), "{shown}");
}

#[test]
fn case_fo_56_what_cannot_start_offers_no_start() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Plan));
    let hint = |session: &Session<'_>| text(&session.app, (100, 30)).contains("enter start");
    assert!(hint(&session));
    session.send(Msg::Unready(Some("there is no data file 'x.jsonl'; correct data.files".into())));
    assert!(!hint(&session));
    for size in SIZES {
        assert!(text(&session.app, size).contains(" ! there is no data file 'x.jsonl'"), "{size:?}");
    }
    press(&mut session, "<ret>");
    assert!(!session.app.busy() && session.request().is_none());
    let shown = text(&session.app, (80, 24));
    assert!(shown.contains("This can't start yet") && shown.contains("correct data.files"), "{shown}");
}

#[test]
fn case_fo_59_nothing_scrolls_past_its_end() {
    let long = "a line that is long enough to be wrapped on a screen of eighty columns, and more\n".repeat(40);
    for size in [(80, 24), (100, 30), (160, 50)] {
        // Help, a message, two reports, the plan's text and the run's log.
        for (screen, keys) in
            [(Screen::Run, "?"), (Screen::Run, ""), (Screen::Runs, "<space> <space> c"), (Screen::Plan, "<tab>")]
        {
            let mut desk = desk();
            let mut session = training(&mut desk);
            session.send(Msg::Resize(size.0, size.1));
            session.send(Msg::Open(screen));
            if keys.is_empty() {
                session.app.message("a long message", &long);
            } else {
                press(&mut session, keys);
            }
            let top = text(&session.app, size);
            for _ in 0..200 {
                press(&mut session, "j");
            }
            let end = text(&session.app, size);
            press(&mut session, "k");
            let back = text(&session.app, size);
            // What fits doesn't move; what doesn't moves back at the first key.
            assert_eq!(end == top, back == end, "{screen:?} {keys} {size:?}:\n{end}\n{back}");
            if matches!(session.app.overlay, Some(Overlay::Help { .. })) {
                press(&mut session, "G");
                assert_eq!(text(&session.app, size), end);
                press(&mut session, "g");
                assert_eq!(text(&session.app, size), top);
                assert_eq!(top.contains("lines below, j"), end != top, "a sign that it scrolls: {top}");
            }
        }
    }
}

#[test]
fn case_fo_59_help_has_headings() {
    for screen in Screen::ALL {
        let lines = help_lines(screen, "");
        let headings: Vec<&str> =
            lines.iter().filter_map(|l| if let HelpLine::Heading(h) = l { Some(h.as_str()) } else { None }).collect();
        assert!(headings.ends_with(&["screens", "everywhere", "moving"]), "{headings:?}");
        let own = BINDINGS.iter().any(|b| b.on.contains(&screen));
        assert_eq!(headings.first() == Some(&screen.name()), own, "{headings:?}");
    }
}

#[test]
fn case_fo_60_no_letter_is_dimmed_by_the_terminal() {
    states(&mut desk(), |session| {
        for theme in [(Depth::Rgb, false), (Depth::Rgb, true), (Depth::Indexed, false), (Depth::Ansi, false)] {
            session.app.theme = Theme { depth: theme.0, light: theme.1, ascii: false };
            for screen in Screen::ALL {
                session.send(Msg::Open(screen));
                for opener in ["", "?", ":", "q"] {
                    if !opener.is_empty() {
                        press(session, opener);
                    }
                    let drawn = buffer(&session.app, (160, 50));
                    // Colours are chosen in the theme, whose own test holds each against its background.
                    let odd = drawn.content.iter().find(|c| {
                        c.modifier.contains(Modifier::DIM) || matches!(c.fg, Color::DarkGray | Color::Blue | Color::Red)
                    });
                    assert_eq!(odd, None, "{screen:?} {opener}");
                    press(session, "<esc>");
                }
            }
        }
    });
}

#[test]
fn case_fo_60_the_figures_in_titles_are_no_labels() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    session.app.theme = Theme { depth: Depth::Rgb, light: false, ascii: false };
    let dim = session.app.theme.dim().fg.unwrap();
    let (width, height) = (160, 50);
    for (screen, figures) in [(Screen::Run, ["epoch 0", " min 1"]), (Screen::Plan, ["8.03 B params", "16.06 GB"])] {
        session.send(Msg::Open(screen));
        let drawn = buffer(&session.app, (width, height));
        for figure in figures {
            let row = |y: u16| (0..width).map(|x| drawn[(x, y)].symbol()).collect::<Vec<_>>();
            let found = (0..height).find_map(|y| {
                let row = row(y);
                let at = (0..row.len()).find(|x| row[*x..].concat().starts_with(figure))?;
                Some((at as u16, y))
            });
            let (x, y) = found.unwrap_or_else(|| panic!("{figure} in {}", text(&session.app, (width, height))));
            let last = x + figure.len() as u16 - 1;
            assert_ne!(drawn[(last, y)].fg, dim, "{figure}");
        }
    }
}

#[test]
fn case_fo_61_the_palette_offers_what_this_screen_does_first_and_no_bare_movement() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    for screen in Screen::ALL {
        session.send(Msg::Open(screen));
        press(&mut session, ":");
        let Some(Overlay::Palette(palette)) = &session.app.overlay else { panic!() };
        let hits = palette.hits();
        assert!(hits.iter().all(|b| !b.action.moves()), "{screen:?}");
        let own = BINDINGS.iter().filter(|b| b.on.contains(&screen) && !b.action.moves()).count();
        assert!(hits.iter().take(own).all(|b| b.on.contains(&screen)), "{screen:?}");
        // What another screen does is found too.
        assert!(hits.iter().any(|b| b.help.starts_with("freeze")), "{screen:?}");
    }
    session.send(Msg::Open(Screen::Data));
    press(&mut session, ": f r e e z e <ret>");
    assert!(session.app.screen == Screen::Run && session.app.panes.frozen.is_some());
}

#[test]
fn case_fo_61_keys_values_screens_and_exports_are_completed() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    let typed = |session: &Session<'_>| match &session.app.overlay {
        Some(Overlay::Palette(p)) => p.input.text().to_owned(),
        other => panic!("{other:?}"),
    };
    press(&mut session, ": s e t <space> l r _ s c h <tab>");
    assert_eq!(typed(&session), "set train.lr_scheduler_type ");
    press(&mut session, "<esc> : s e t <space> s t r e a m . t i e r <space> d <tab> <ret>");
    assert_eq!(session.app.config.stream.tier.name(), "disk");
    press(&mut session, ": o p e n <space> d <tab> <ret>");
    assert_eq!(session.app.screen, Screen::Data);
    press(&mut session, ": e x p o r t <space>");
    let Some(Overlay::Palette(p)) = &session.app.overlay else { panic!() };
    let kinds = blockstream_tui::export::KINDS.map(|(kind, _)| format!("export {kind}"));
    assert_eq!(p.lines(), kinds, "every kind that there is");
}

#[test]
fn case_fo_61_what_was_typed_and_refused_can_be_mended() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    press(&mut session, "i <bs> <bs> 3 x <ret>");
    assert_eq!(session.app.config.lora.r, 16);
    press(&mut session, "<bs> 2 <ret>");
    assert_eq!(session.app.config.lora.r, 32, "what was typed before is still there");
    // A new path begins empty; one that led nowhere is there to be mended.
    let prompt = |session: &mut Session<'_>| {
        session.send(Msg::Open(Screen::Models));
        press(session, "o");
        let Some(Overlay::Prompt(p)) = &session.app.overlay else { panic!() };
        p.input.text().to_owned()
    };
    assert_eq!(prompt(&mut session), "");
    press(&mut session, "n o w h e r e <ret>");
    assert!(session.app.plan.error().is_some());
    assert_eq!(prompt(&mut session), "nowhere");
}

#[test]
fn case_fo_61_the_smallest_terminal_still_shows_the_run() {
    let mut desk = desk();
    let session = training(&mut desk);
    for size in [(59, 15), (59, 3), (40, 10), (200, 2)] {
        let shown = text(&session.app, size);
        assert!(shown.contains("step 12/40") && shown.contains("loss 1."), "{size:?}: {shown}");
        assert!(shown.contains("q quit"), "{size:?}: {shown}");
    }
}

#[test]
fn case_fo_61_degrees_stay_readable_in_ascii() {
    let mut desk = desk();
    let mut session = training(&mut desk);
    let at = session.app.run.at;
    let warm = Gauges { gpu_temp_c: Some(71), ..Gauges::default() };
    session.send(Msg::Events(vec![Event { seq: 9_000, at, kind: EventKind::Gauges(warm) }]));
    session.app.theme = Theme { ascii: true, ..Theme::plain() };
    let shown = text(&session.app, (160, 50));
    assert!(shown.contains("71 oC"), "{shown}");
}
