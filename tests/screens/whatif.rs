//! What-if on the Plan screen: keys change the machine, the verdict follows at once, and a banner says so.

use super::{config, desk, press, text};
use blockstream_tui::plan::{Edit, Verdict};
use blockstream_tui::ui::Session;
use blockstream_tui::ui::app::{Msg, Screen};
use blockstream_tui::ui::theme::Theme;
use blockstream_tui::units::GB;

#[test]
fn more_ram_changes_the_verdict_and_a_key_brings_the_machine_back() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Plan));
    let verdict = |s: &Session<'_>| s.app.plan.report().unwrap().modes.lora.verdict;
    assert_eq!(verdict(&session), Verdict::LoraDisk);
    assert!(!text(&session.app, (100, 30)).contains("W resets"), "no banner before it is asked for");
    // The first press selects RAM and changes nothing.
    press(&mut session, "w");
    assert!(!session.app.plan.what_if.active());
    assert!(text(&session.app, (100, 30)).contains("what if ▸RAM 16.00 GB"));
    press(&mut session, "+ + +");
    assert_eq!(session.app.plan.what_if.edits(), [Edit::Ram(48 * GB)]);
    assert_eq!(verdict(&session), Verdict::Ram);
    insta::assert_snapshot!("what_if_80x24", text(&session.app, (80, 24)));
    insta::assert_snapshot!("what_if_100x30", text(&session.app, (100, 30)));
    // Another figure beside it.
    press(&mut session, "w w -");
    assert_eq!(session.app.plan.what_if.edits(), [Edit::Ram(48 * GB), Edit::Disk(256 * GB)]);
    press(&mut session, "W");
    assert_eq!(verdict(&session), Verdict::LoraDisk);
    assert!(!text(&session.app, (100, 30)).contains("WHAT IF"));
}

#[test]
fn a_plan_for_another_machine_is_not_started() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Plan));
    press(&mut session, "w + <ret>");
    assert!(!session.app.busy());
    assert!(text(&session.app, (100, 30)).contains("This plan is for another machine"));
}

#[test]
fn a_walk_ends_and_says_so() {
    let mut desk = desk();
    let mut session = Session::new(config(), Theme::plain(), &mut desk);
    session.send(Msg::Open(Screen::Plan));
    press(&mut session, "w - - -");
    assert_eq!(session.app.plan.what_if.edits(), [Edit::Ram(4 * GB)]);
    press(&mut session, "-");
    assert_eq!(session.app.plan.what_if.edits(), [Edit::Ram(4 * GB)]);
    assert!(text(&session.app, (100, 30)).contains("no smaller preset"));
}
