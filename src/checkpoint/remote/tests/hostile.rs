//! A hub, a cache and an environment that mean harm.

use super::*;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A server that sends `head`, then `piece` again and again, `pause` between, to everyone until the client leaves.
/// Returns its address.
fn endless(head: &'static str, piece: Vec<u8>, pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let piece = piece.clone();
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(head.as_bytes());
                // Ten seconds of trickling at most, so that the thread ends by itself.
                for _ in 0..200_000 {
                    if stream.write_all(&piece).is_err() {
                        return;
                    }
                    std::thread::sleep(pause);
                }
            });
        }
    });
    address
}

fn asker(address: &str) -> User {
    let hub = TestHub::of(&Model::tiny());
    let mut user = User::of(&hub);
    user.settings.endpoint = Some(address.to_owned());
    user
}

#[test]
fn case_fo_83_only_the_token_that_was_checked_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    // Not a token: several lines. It must not be sent, and no other in its place.
    std::fs::write(dir.path().join("private"), "first line\nsecond line\n").unwrap();
    let hub = TestHub::of(&Model::tiny());
    let mut user = User::of(&hub);
    user.settings.token = None;
    // SAFETY: no other test reads these variables, and nextest gives each test a process of its own.
    unsafe {
        std::env::set_var("HF_TOKEN_PATH", dir.path().join("private"));
        std::env::set_var("HF_TOKEN", "hf_of_the_environment");
    }
    user.headers("o/n").unwrap();
    let asked = hub.asked();
    assert!(!asked.is_empty() && asked.iter().all(|a| a.token.is_none()), "{asked:?}");
}

#[test]
fn case_fo_83_a_fifo_as_token_file_does_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("token");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let begun = Instant::now();
    let env = |key: &str| (key == "HF_TOKEN_PATH").then(|| fifo.clone().into_os_string());
    assert!(Settings::from(env).token.is_none());
    let hub = TestHub::of(&Model::tiny());
    let mut user = User::of(&hub);
    user.settings.token = None;
    // SAFETY: as above.
    unsafe { std::env::set_var("HF_TOKEN_PATH", &fifo) };
    user.headers("o/n").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn case_fo_84_an_endless_answer_is_cut() {
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"siblings\":[";
    let piece = "{\"rfilename\":\"x\"},".repeat(4096).into_bytes();
    let user = asker(&endless(head, piece, Duration::ZERO));
    let e = refusal(user.headers("o/n"));
    assert!(e.contains("longer than"), "{e}");
    let head = "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n";
    let user = asker(&endless(head, vec![b' '; 1 << 16], Duration::ZERO));
    let e = refusal(user.headers("o/n"));
    assert!(e.contains("the hub has no 'o/n'"), "{e}");
}

#[test]
fn case_fo_84_an_answer_that_trickles_is_given_up() {
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    let user = asker(&endless(head, b" ".to_vec(), Duration::from_millis(50)));
    let begun = Instant::now();
    let e = refusal(user.headers("o/n"));
    assert!(e.contains("bytes came in"), "{e}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn case_fo_89_deep_json_is_not_called_a_lost_connection() {
    let body = format!("HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n{}", "[".repeat(20_000));
    let user = asker(&endless(body.leak(), Vec::new(), Duration::from_secs(1)));
    let e = refusal(user.headers("o/n"));
    assert!(e.contains("can't be read") && !e.contains("connection"), "{e}");
}

#[test]
fn case_fo_85_one_content_name_for_two_weights_files_is_refused() {
    let hub = TestHub::of(&Model::tiny().shards(2));
    hub.rules().etag = Some("weak-name".into());
    let user = User::of(&hub);
    let e = refusal(user.survey());
    assert!(e.contains("one content name") && e.contains(".safetensors"), "{e}");
    // A SHA-256 that two files share is checked when the first has come.
    hub.rules().etag = Some("0".repeat(64));
    let e = refusal(user.download());
    assert!(e.contains("one content name") || e.contains("SHA-256"), "{e}");
    assert!(!user.repo().join("snapshots").exists());
}

#[test]
fn case_fo_86_a_link_in_place_of_a_part_is_not_followed() {
    let hub = TestHub::of(&Model::tiny());
    let user = User::of(&hub);
    let survey = user.survey().unwrap();
    let part = user.part(&hub, "config.json");
    std::fs::create_dir_all(part.parent().unwrap()).unwrap();
    let target = user.dir.path().join("precious");
    std::fs::write(&target, "mine").unwrap();
    std::os::unix::fs::symlink(&target, &part).unwrap();
    let e = refusal(user.fetch(&survey));
    assert!(e.contains("is a link") && e.contains("delete it"), "{e}");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
    std::fs::remove_file(&part).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &part, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(refusal(user.fetch(&survey)).contains("no plain file"));
    std::fs::remove_file(&part).unwrap();
    user.fetch(&survey).unwrap();
}

#[test]
fn case_fo_87_another_hub_has_its_own_headers() {
    let env = |hub: Option<&'static str>| {
        move |key: &str| match key {
            "HF_ENDPOINT" => hub.map(Into::into),
            "XDG_CACHE_HOME" => Some("/x".into()),
            _ => None,
        }
    };
    let dir = |hub| crate::checkpoint::hub::headers_dir_from(env(hub)).unwrap();
    assert_eq!(dir(None), Path::new("/x/blockstream-tui/headers"));
    assert_ne!(dir(Some("http://a")), dir(None));
    assert_ne!(dir(Some("http://a")), dir(Some("http://b")));
    assert_eq!(dir(Some("http://a")), dir(Some(" http://a/ ")));
}

#[test]
fn case_fo_89_a_plan_that_failed_leaves_no_folder() {
    let hub = TestHub::of(&Model::tiny());
    let user = User::of(&hub);
    hub.rules().status = Some(404);
    refusal(user.headers("o/n"));
    let left = user.settings.headers.as_deref().unwrap().join("models--o--n");
    assert!(!left.exists());
}
