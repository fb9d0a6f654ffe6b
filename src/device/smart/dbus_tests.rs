//! A bus of our own on a socket, and bytes that are no bus's.

use super::*;
use proptest::prelude::*;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

/// What a server was asked.
pub struct Call {
    pub path: String,
    pub member: String,
    pub starts_nothing: bool,
}

/// What a server does with a call.
#[derive(Clone)]
pub enum Answer {
    Reply(Value),
    Error(String),
    Bytes(Vec<u8>),
    Silence,
}

/// A bus at `path` for one client, which answers `Hello` itself and leaves the rest to `answer`. It ends with its client
/// and tells what it was asked.
pub fn serve(path: &Path, answer: impl Fn(&Call) -> Answer + Send + 'static) -> JoinHandle<Vec<Call>> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut bus = Bus { stream, until: Instant::now() + Duration::from_secs(20), serial: 0 };
        let mut nul = [9];
        bus.fill(&mut nul).unwrap();
        let auth = bus.line().unwrap();
        assert!(nul == [0] && auth.starts_with("AUTH EXTERNAL 3"), "{auth}");
        bus.send(b"OK 0123456789abcdef\r\n").unwrap();
        assert_eq!(bus.line().unwrap(), "BEGIN");
        let mut seen = Vec::new();
        while let Ok(m) = bus.receive() {
            let call =
                Call { path: m.text(1).into(), member: m.text(3).into(), starts_nothing: m.flags & NO_START != 0 };
            let reply = [(5, Value::Whole(u64::from(m.serial)))];
            let bytes = if call.member == "Hello" {
                // A signal first, as a real bus sends it: it is passed over.
                let signal = [
                    (1, Value::Path("/org/freedesktop/DBus".into())),
                    (2, Value::Text("org.freedesktop.DBus".into())),
                    (3, Value::Text("NameAcquired".into())),
                ];
                let name = [Value::Text(":1.7".into())];
                [message(4, 1, &signal, &name), message(REPLY, 2, &reply, &name)].concat()
            } else {
                match answer(&call) {
                    Answer::Reply(value) => message(REPLY, 9, &reply, &[value]),
                    Answer::Error(name) => message(ERROR, 9, &[reply[0].clone(), (4, Value::Text(name))], &[]),
                    Answer::Bytes(bytes) => bytes,
                    Answer::Silence => Vec::new(),
                }
            };
            seen.push(call);
            if bus.send(&bytes).is_err() {
                break;
            }
        }
        seen
    })
}

fn read(signature: &str, body: &[u8]) -> Result<Value, String> {
    Cursor::new(body).value(signature.as_bytes(), 0).map(|v| v.0)
}

#[test]
fn values_come_as_they_were_sent() {
    let dict = Value::Dict(vec![
        ("a".into(), Value::Text("text".into())),
        ("bytes".into(), Value::Whole(1 << 40)),
        ("path".into(), Value::Path("/x/y".into())),
    ]);
    let mut body = Vec::new();
    dict.write(&mut body);
    assert_eq!(read("a{sv}", &body).unwrap(), dict);
    assert_eq!(dict.get("bytes"), Some(&Value::Whole(1 << 40)));
    assert_eq!((dict.get("absent"), Value::Whole(1).get("a")), (None, None));
    // A struct in an array of arrays is passed over, and what follows is found.
    let body = [&[4, 0, 0, 0, 1, 0, 0, 0][..], &[7, 0, 0, 0]].concat();
    assert_eq!(read("ai", &body).unwrap(), Value::Other);
    assert_eq!(read("u", &[1, 2, 0, 0]).unwrap(), Value::Whole(513));
}

#[test]
fn what_a_bus_refuses_is_said_in_words() {
    assert_eq!(refusal("org.freedesktop.DBus.Error.NameHasNoOwner"), "the daemon is not running");
    assert_eq!(refusal("org.x.Error.Bus\u{1b}y"), "it answers org.x.Error.Busy");
    assert_eq!(refusal(""), "it refuses without a reason");
}

#[test]
fn broken_and_endless_bytes_are_errors() {
    for (signature, body) in [
        ("s", &[255, 255, 255, 255][..]),
        ("s", &[2, 0, 0, 0, b'a', b'b', b'c']),
        ("at", &[255, 255, 255, 127, 0, 0, 0, 0]),
        ("a", &[0; 8]),
        ("(", &[0; 8]),
        ("a()", &[8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("z", &[0; 8]),
        (
            "v",
            &[
                1, b'v', 0, 1, b'v', 0, 1, b'v', 0, 1, b'v', 0, 1, b'v', 0, 1, b'v', 0, 1, b'v', 0, 1, b'v', 0, 1,
                b'v', 0,
            ],
        ),
        ("", &[0; 8]),
    ] {
        assert!(read(signature, body).is_err(), "{signature}");
    }
    assert!(complete("a".repeat(500).as_bytes(), 0).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(
        signature in "[ybnqiuxtdsogav(){}h]{0,12}",
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = read(&signature, &body);
    }
}
