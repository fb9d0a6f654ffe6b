//! Models of the hub on screen: headers by name, the download dialog, its progress, cancelling and going on.

use super::*;
use blockstream_tui::engine::Fetched;
use blockstream_tui::ui::app::Effect;
use blockstream_tui::ui::fetch::Work;
use blockstream_tui::ui::overlay::Overlay;

const MODEL: &str = "Qwen/Qwen2.5-14B";
const BOTH: [(u16, u16); 2] = [(80, 24), (100, 30)];

/// A session on the Models screen, with the headers of a model of the hub asked for.
fn asked(desk: &mut FakeDesk) -> Session<'_> {
    let mut session = Session::new(RunConfig::default(), Theme::plain(), desk);
    session.send(Msg::Open(Screen::Models));
    press(&mut session, "H");
    type_in(&mut session, MODEL);
    session
}

fn type_in(session: &mut Session<'_>, text: &str) {
    for c in text.chars() {
        session.send(Msg::Key(keys::parse(&c.to_string()).unwrap()));
    }
}

/// Looks at the fetch until `n` more words have come, a second each.
fn hear(session: &mut Session<'_>, n: usize) {
    for _ in 0..n {
        let now = session.app.now + 1.0;
        session.tick(now);
    }
}

fn shot(session: &Session<'_>, name: &str) {
    insta::with_settings!({ snapshot_path => "../snapshots" }, {
        for (w, h) in BOTH {
            insta::assert_snapshot!(format!("{name}_{w}x{h}"), text(&session.app, (w, h)));
        }
    });
}

#[test]
fn a_model_of_the_hub_from_its_name_to_being_trainable() {
    let mut desk = desk();
    let mut session = asked(&mut desk);
    shot(&session, "prompt");
    press(&mut session, "<ret>");
    hear(&mut session, 2);
    shot(&session, "headers");
    hear(&mut session, 2);
    let entry = session.app.models.list.selected().unwrap();
    assert!(entry.name == MODEL && entry.not_here, "the new model is selected: {entry:?}");
    shot(&session, "not_here");

    press(&mut session, "d");
    assert!(text(&session.app, (80, 24)).contains("asking the hub"));
    hear(&mut session, 2);
    shot(&session, "dialog");
    press(&mut session, "<ret>");
    assert_eq!(session.app.fetch.downloading(), Some(MODEL));
    hear(&mut session, 3);
    shot(&session, "downloading");
    // Closed, it goes on; the screen stays a screen, and says how far it is.
    press(&mut session, "<esc>");
    assert!(session.app.overlay.is_none() && session.app.fetch.downloading().is_some());
    shot(&session, "beside");
    press(&mut session, "k d");
    assert!(matches!(session.app.overlay, Some(Overlay::Download)), "d shows it again, whatever is selected");
    hear(&mut session, 2);
    assert!(session.app.overlay.is_none() && session.app.fetch.work.is_none());
    let entry = session.app.models.list.selected().unwrap();
    assert!(entry.name == MODEL && !entry.not_here && entry.problem.is_none());
    shot(&session, "here");
}

#[test]
fn a_model_that_is_not_here_is_planned_and_not_started() {
    let mut desk = desk();
    let mut session = asked(&mut desk);
    press(&mut session, "<ret>");
    hear(&mut session, 4);
    press(&mut session, "<ret>");
    assert_eq!(session.app.screen, Screen::Plan);
    assert_eq!(session.app.plan.report().map(|p| p.model.as_str()), Some(MODEL));
    session.app.config.data.files = vec!["assets/demo/train.jsonl".into()];
    press(&mut session, "<ret>");
    let shown = text(&session.app, (100, 30));
    assert!(shown.contains("blockstream-tui download"), "{shown}");
    assert!(!session.app.busy());
}

#[test]
fn a_download_is_cancelled_and_gone_on_with() {
    let mut desk = desk();
    let mut session = asked(&mut desk);
    press(&mut session, "<ret>");
    hear(&mut session, 4);
    press(&mut session, "d");
    hear(&mut session, 2);
    press(&mut session, "<ret>");
    hear(&mut session, 2);
    press(&mut session, "c");
    assert!(text(&session.app, (80, 24)).contains("cancelling…"));
    hear(&mut session, 1);
    assert!(session.app.fetch.work.is_none() && session.app.overlay.is_none());
    assert!(text(&session.app, (80, 24)).contains("Cancelled. d resumes the download"));
    press(&mut session, "d");
    hear(&mut session, 2);
    press(&mut session, "<ret>");
    hear(&mut session, 5);
    assert!(session.app.models.list.selected().unwrap().problem.is_none());
}

#[test]
fn one_fetch_at_a_time_and_errors_are_read() {
    let mut desk = desk();
    let mut session = asked(&mut desk);
    press(&mut session, "<ret>");
    assert_eq!(session.app.fetch.work, Some(Work::Headers(MODEL.into())));
    press(&mut session, "H");
    type_in(&mut session, "a/b");
    press(&mut session, "<ret>");
    assert_eq!(session.app.fetch.work, Some(Work::Headers(MODEL.into())));
    assert!(text(&session.app, (80, 24)).contains("being fetched already"));
    session.send(Msg::Fetched(vec![Fetched::Failed("the hub has no 'a/b'\u{1b}[2J; check the id".into())]));
    let shown = text(&session.app, (80, 24));
    assert!(
        shown.contains("The hub could not be asked") && shown.contains("check the id") && !shown.contains('\u{1b}'),
        "{shown}"
    );
    press(&mut session, "<ret>");
    // A desk without a hub says so, and nothing is waited for.
    assert_eq!(session.app.update(Msg::FetchRefused("no access to a hub".into())), []);
    assert!(session.app.fetch.work.is_none() && text(&session.app, (80, 24)).contains("no access to a hub"));
}

#[test]
fn a_drive_that_is_too_small_is_said_and_not_begun_on() {
    let mut desk = desk();
    let mut session = asked(&mut desk);
    press(&mut session, "<ret>");
    hear(&mut session, 4);
    press(&mut session, "d");
    hear(&mut session, 2);
    let plan = session.app.fetch.plan.as_mut().unwrap();
    plan.free = blockstream_tui::units::Bytes(1_000_000_000);
    let shown = text(&session.app, (80, 24));
    assert!(shown.contains("1.00 GB ✗") && !shown.contains("enter downloads"), "{shown}");
    let effects = session.app.update(Msg::Key(keys::parse("<ret>").unwrap()));
    assert!(!effects.contains(&Effect::Download));
    assert!(text(&session.app, (80, 24)).contains("24.35 GB are missing"));
}

#[test]
fn d_on_a_model_that_is_here_asks_nobody() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Models));
    press(&mut session, "d");
    assert!(session.app.overlay.is_none() && session.app.fetch.work.is_none());
    assert!(text(&session.app, (80, 24)).contains("is here already"));
}
