//! Downloads: the cache's layout, resuming, and every way in which a server may let us down.

use super::*;
use crate::checkpoint::hub::snapshot;
use crate::checkpoint::open;

const FILE: &str = "model.safetensors";

/// A hub with one weights file, and its bytes.
fn one() -> (TestHub, Vec<u8>) {
    let hub = TestHub::of(&Model::tiny());
    let bytes = hub.rules().files[FILE].clone();
    (hub, bytes)
}

fn offset(from: usize) -> Option<String> {
    Some(format!("bytes={from}-"))
}

#[test]
fn a_download_lies_as_huggingface_hub_would_put_it() {
    let hub = TestHub::of(&Model::tiny().shards(2));
    let user = User::of(&hub);
    let survey = user.survey().unwrap();
    let files = hub.rules().files.clone();
    let wanted = |n: &str| !n.ends_with(".bin") && !n.ends_with(".py");
    let sizes: u64 = files.iter().filter(|(n, _)| wanted(n)).map(|(_, b)| b.len() as u64).sum();
    assert_eq!((survey.plan.total.0, survey.plan.fetch.0, survey.plan.files), (sizes, sizes, files.len() - 2));
    assert!(survey.plan.free.0 > sizes && survey.plan.commit == COMMIT);
    assert!(!user.repo().exists(), "a survey writes nothing");

    let mut seen = Vec::new();
    let dir = download(&user.settings, &survey, &Cancel::default(), &mut |s| seen.push((s.done, s.total))).unwrap();
    assert_eq!(seen.last(), Some(&(sizes, sizes)));
    assert!(seen.windows(2).all(|w| w[0].0 <= w[1].0), "{seen:?}");
    assert_eq!(snapshot(&user.repo(), None).unwrap().dir, dir);
    assert_eq!(std::fs::read_to_string(user.repo().join("refs/main")).unwrap(), COMMIT);
    for (name, bytes) in files.iter().filter(|(n, _)| wanted(n)) {
        let link = std::fs::read_link(dir.join(name)).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(etag(name, bytes)));
        assert_eq!(&std::fs::read(dir.join(name)).unwrap(), bytes);
    }
    assert_eq!(names(&user.repo().join("blobs")).len(), survey.pieces.len());
    let opened = open(&dir).unwrap();
    assert!(!opened.not_here && opened.hub_id.as_deref() == Some("o/n"));
    assert!(hub.asked().iter().all(|a| wanted(&a.path) && a.token.is_some() != a.elsewhere));
    user.keeps_the_secret();

    // Again there is nothing to do, and no byte is asked for.
    let again = user.survey().unwrap();
    assert_eq!((again.plan.total.0, again.plan.fetch.0), (sizes, 0));
    hub.asked();
    assert_eq!(user.fetch(&again).unwrap(), dir);
    assert_eq!(hub.asked(), []);
}

#[test]
fn a_body_that_ends_early_is_gone_on_with() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    hub.rules().cuts = vec![100_000, 50_000];
    let survey = user.survey().unwrap();
    hub.asked();
    let dir = user.fetch(&survey).unwrap();
    assert_eq!(hub.ranges(FILE), [None, offset(100_000), offset(150_000)]);
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes);
}

#[test]
fn what_came_before_an_interruption_is_not_asked_for_again() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    hub.rules().cuts = vec![120_000, 0, 0];
    let e = refusal(user.download());
    assert!(e.contains("failed") && e.contains("3 attempts") && e.contains("kept"), "{e}");
    let part = user.part(&hub, FILE);
    assert_eq!(std::fs::read(&part).unwrap(), bytes[..120_000]);
    assert!(!user.repo().join("snapshots").exists(), "no snapshot before it is whole");
    assert!(snapshot(&user.repo(), None).is_err());

    let survey = user.survey().unwrap();
    assert_eq!(survey.plan.fetch.0, bytes.len() as u64 - 120_000, "small files are there");
    hub.asked();
    let dir = user.fetch(&survey).unwrap();
    let asked = hub.asked();
    let gets: Vec<_> = asked.iter().filter(|a| a.method == "GET").collect();
    assert!(gets.iter().all(|a| a.path.ends_with(FILE)), "small files are not fetched twice: {gets:?}");
    assert!(gets.len() == 2 && gets.iter().all(|a| a.range == offset(120_000)), "{gets:?}");
    assert!(gets[0].token.is_some() && gets[1].elsewhere && gets[1].token.is_none());
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes);
    assert!(!part.exists());
}

#[test]
fn a_cancelled_download_keeps_its_part() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    hub.rules().stalls = vec![200_000];
    let survey = user.survey().unwrap();
    let cancel = Cancel::default();
    let other = cancel.clone();
    let part = user.part(&hub, FILE);
    let watch = part.clone();
    let watcher = std::thread::spawn(move || {
        while std::fs::metadata(&watch).map_or(0, |m| m.len()) < 200_000 {
            std::thread::sleep(Duration::from_millis(2));
        }
        other.ask();
        Instant::now()
    });
    let e = download(&user.settings, &survey, &cancel, &mut |_| {}).unwrap_err();
    let ended = Instant::now();
    assert!(e.to_string().contains("cancelled"), "{e}");
    assert!(ended - watcher.join().unwrap() < Duration::from_millis(300), "heard at once");
    assert_eq!(std::fs::read(&part).unwrap(), bytes[..200_000]);
    hub.asked();
    user.fetch(&survey).unwrap();
    assert_eq!(hub.ranges(FILE), [offset(200_000)]);
}

#[test]
fn a_stalled_server_is_left_and_asked_again() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    hub.rules().stalls = vec![100_000];
    let survey = user.survey().unwrap();
    hub.asked();
    let mut notes = Vec::new();
    let dir = download(&user.settings, &survey, &Cancel::default(), &mut |s| notes.push(s.name)).unwrap();
    assert_eq!(hub.ranges(FILE), [None, offset(100_000)]);
    assert!(notes.iter().any(|n| n.contains("nothing came for 400 ms") && n.contains("trying again")), "{notes:?}");
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes);
}

#[test]
fn a_slow_server_is_not_a_stalled_one() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    hub.rules().pause = Duration::from_millis(25);
    let survey = user.survey().unwrap();
    hub.asked();
    let begun = Instant::now();
    let dir = user.fetch(&survey).unwrap();
    assert!(begun.elapsed() > user.settings.patience.stall, "longer than a stall: {:?}", begun.elapsed());
    assert_eq!(hub.ranges(FILE), [None], "in one answer");
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes);
}

#[test]
fn a_server_without_ranges_begins_again() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    hub.rules().cuts = vec![100_000];
    hub.rules().ranges = false;
    let survey = user.survey().unwrap();
    hub.asked();
    let dir = user.fetch(&survey).unwrap();
    assert_eq!(hub.ranges(FILE), [None, offset(100_000)]);
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes, "the second answer replaced the first");
}

#[test]
fn a_file_that_changes_begins_again_under_its_new_name() {
    let (hub, old) = one();
    let user = User::of(&hub);
    hub.rules().cuts = vec![100_000, 0, 0];
    let survey = user.survey().unwrap();
    refusal(user.fetch(&survey));
    let stale = user.part(&hub, FILE);
    assert!(stale.exists());
    let other = tempfile::tempdir().unwrap();
    Model::tiny().seed(7).write(other.path());
    let new = std::fs::read(other.path().join(FILE)).unwrap();
    assert!(new != old && new.len() == old.len());
    hub.rules().files.insert(FILE.into(), new.clone());
    hub.asked();
    let dir = user.fetch(&survey).unwrap();
    assert_eq!(hub.ranges(FILE), [offset(100_000), None], "the old part is not gone on with");
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), new);
    assert_eq!(std::fs::read_link(dir.join(FILE)).unwrap(), Path::new("../../blobs").join(etag(FILE, &new)));
    assert!(!stale.exists());
}

#[test]
fn bytes_that_are_not_what_the_hub_says_are_not_kept() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    hub.rules().damages = 1;
    let dir = user.download().unwrap();
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes, "the second time they were right");

    let again = User::of(&hub);
    hub.rules().damages = 99;
    let e = refusal(again.download());
    assert!(e.contains("'model.safetensors' does not have the SHA-256"), "{e}");
    assert!(!again.repo().join("blobs").join(etag(FILE, &bytes)).exists());

    // A part that went bad on this drive is found out as well.
    let third = User::of(&hub);
    hub.rules().damages = 0;
    hub.rules().cuts = vec![100_000, 0, 0];
    refusal(third.download());
    let part = third.part(&hub, FILE);
    let mut bad = std::fs::read(&part).unwrap();
    bad[50_000] ^= 1;
    std::fs::write(&part, bad).unwrap();
    assert_eq!(std::fs::read(third.download().unwrap().join(FILE)).unwrap(), bytes);
}

#[test]
fn a_wrong_length_is_refused() {
    let (hub, bytes) = one();
    let long = bytes.len() as u64;
    let user = User::of(&hub);
    // Ends before what it announced, every time.
    hub.rules().claims = Some(long + 10);
    let e = refusal(user.download());
    assert!(e.contains("3 attempts"), "{e}");
    // Surveyed with one length, sent with another.
    let other = User::of(&hub);
    hub.rules().claims = None;
    let survey = other.survey().unwrap();
    hub.rules().claims = Some(long - 10);
    let e = refusal(other.fetch(&survey));
    assert!(e.contains("bytes in one answer and"), "{e}");
    // A part longer than the file is thrown away.
    let third = User::of(&hub);
    hub.rules().claims = None;
    std::fs::create_dir_all(third.repo().join("blobs")).unwrap();
    std::fs::write(third.part(&hub, FILE), vec![1; bytes.len() + 5]).unwrap();
    let survey = third.survey().unwrap();
    assert_eq!(survey.plan.fetch, survey.plan.total);
    assert_eq!(std::fs::read(third.fetch(&survey).unwrap().join(FILE)).unwrap(), bytes);
}

#[test]
fn a_whole_part_is_checked_and_not_fetched() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    std::fs::create_dir_all(user.repo().join("blobs")).unwrap();
    std::fs::write(user.part(&hub, FILE), &bytes).unwrap();
    let dir = user.download().unwrap();
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes);
    assert_eq!(hub.ranges(FILE), [] as [Option<String>; 0]);
}

#[test]
fn a_drive_without_room_is_not_begun_on() {
    let (hub, _) = one();
    let user = User::of(&hub);
    let mut survey = user.survey().unwrap();
    survey.plan.fetch = crate::units::Bytes(u64::MAX / 2);
    let e = refusal(user.fetch(&survey));
    assert!(e.contains("free") && e.contains("HF_HUB_CACHE"), "{e}");
    assert!(!user.repo().exists());
}

#[test]
fn an_address_that_is_no_longer_good_is_asked_for_anew() {
    let (hub, bytes) = one();
    let user = User::of(&hub);
    let survey = user.survey().unwrap();
    hub.rules().expired = 2;
    hub.asked();
    let dir = user.fetch(&survey).unwrap();
    assert_eq!(hub.ranges(FILE).len(), 3);
    assert_eq!(std::fs::read(dir.join(FILE)).unwrap(), bytes);
}

#[test]
fn a_hub_whose_heads_say_nothing_is_asked_for_a_byte() {
    let (hub, bytes) = one();
    hub.rules().heads = false;
    let user = User::of(&hub);
    let survey = user.survey().unwrap();
    assert_eq!(hub.ranges(FILE), [Some("bytes=0-0".to_owned())]);
    assert_eq!(survey.pieces.last().unwrap().size, bytes.len() as u64);
    assert_eq!(std::fs::read(user.fetch(&survey).unwrap().join(FILE)).unwrap(), bytes);
}

#[test]
fn two_downloads_of_one_file_do_not_mix() {
    let (hub, _) = one();
    let user = User::of(&hub);
    let survey = user.survey().unwrap();
    std::fs::create_dir_all(user.repo().join("blobs")).unwrap();
    let held = std::fs::File::create(user.part(&hub, FILE)).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(refusal(user.fetch(&survey)).contains("by another process"));
    drop(held);
    user.fetch(&survey).unwrap();
}

#[test]
fn a_token_never_leaves_the_hub_nor_shows() {
    let (hub, _) = one();
    let user = User::of(&hub);
    for status in [401, 403, 404, 500, 418] {
        hub.rules().status = Some(status);
        refusal(user.download());
        refusal(user.headers("o/n"));
    }
    hub.rules().status = None;
    user.download().unwrap();
    let asked = hub.asked();
    assert!(asked.iter().any(|a| a.elsewhere) && asked.iter().any(|a| !a.elsewhere && a.token.is_some()));
    assert!(asked.iter().all(|a| !(a.elsewhere && a.token.is_some())), "{asked:?}");
    assert!(!format!("{:?}", user.settings).contains(SECRET));
    user.keeps_the_secret();
}
