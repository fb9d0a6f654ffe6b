//! A model hub on this machine: plain HTTP on a port of its own, with the faults that a test asks for.
//!
//! It answers the questions that hf-hub asks (`/api/models/…`) and `…/resolve/<commit>/<file>` with ranges. Weights are
//! sent from a second port, as the real hub sends them from another host. Everything asked is noted.

use super::fixture::Model;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Commit of every model here.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// One request as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Whether it came to the second port.
    pub elsewhere: bool,
    /// `GET`, `HEAD`.
    pub method: String,
    /// Path of the address.
    pub path: String,
    /// Its `Range`.
    pub range: Option<String>,
    /// Its `Authorization`.
    pub token: Option<String>,
}

/// How the hub behaves.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Its files.
    pub files: BTreeMap<String, Vec<u8>>,
    /// `owner/name` of its model.
    pub id: String,
    /// Who doesn't send this gets 401.
    pub token: Option<String>,
    /// Everybody gets this status for files.
    pub status: Option<u16>,
    /// Weights are sent from the second port.
    pub elsewhere: bool,
    /// Answers of the second port with status 403 before the first good one, as where an address is no longer good.
    pub expired: usize,
    /// HEADs say what a file is.
    pub heads: bool,
    /// Files redirect to themselves.
    pub loops: bool,
    /// Files redirect here.
    pub target: Option<String>,
    /// Ranges are heeded.
    pub ranges: bool,
    /// Bodies of weights that end after so many bytes, one answer each.
    pub cuts: Vec<usize>,
    /// Bodies of weights after whose so many bytes nothing comes any more, one answer each.
    pub stalls: Vec<usize>,
    /// Answers with status 503 before the first good one.
    pub busy: usize,
    /// What the hub says a weights file's length is, in place of the truth.
    pub claims: Option<u64>,
    /// Bytes flipped in what is sent of weights: the first of each answer.
    pub damages: usize,
    /// Sent between any two pieces of a body.
    pub pause: Duration,
    /// Content name of every weights file, in place of its own.
    pub etag: Option<String>,
}

/// A running hub; it stops when dropped.
pub struct TestHub {
    /// Its address.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    rules: Mutex<Rules>,
    asked: Mutex<Vec<Asked>>,
    over: AtomicBool,
    other: String,
}

impl TestHub {
    /// A hub that holds `model` as `o/n`.
    pub fn of(model: &Model) -> TestHub {
        let dir = tempfile::tempdir().expect("a folder");
        model.write(dir.path());
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(dir.path()).expect("read") {
            let path = entry.expect("entry").path();
            let name = path.file_name().expect("named").to_string_lossy().into_owned();
            files.insert(name, std::fs::read(&path).expect("read"));
        }
        // What nobody should fetch.
        files.insert("pytorch_model.bin".into(), vec![0x80, 2]);
        files.insert("modeling.py".into(), b"import os".to_vec());
        TestHub::start(files)
    }

    /// A hub with these files.
    pub fn start(files: BTreeMap<String, Vec<u8>>) -> TestHub {
        let (first, second) = (listen(), listen());
        let address = |l: &TcpListener| format!("http://{}", l.local_addr().expect("an address"));
        let rules = Rules {
            files,
            id: "o/n".into(),
            token: None,
            status: None,
            elsewhere: true,
            expired: 0,
            heads: true,
            loops: false,
            target: None,
            ranges: true,
            cuts: Vec::new(),
            stalls: Vec::new(),
            busy: 0,
            claims: None,
            damages: 0,
            pause: Duration::ZERO,
            etag: None,
        };
        let shared = Arc::new(Shared {
            rules: Mutex::new(rules),
            asked: Mutex::default(),
            over: AtomicBool::new(false),
            other: address(&second),
        });
        let url = address(&first);
        for (listener, elsewhere) in [(first, false), (second, true)] {
            let shared = shared.clone();
            std::thread::spawn(move || serve(&listener, elsewhere, &shared));
        }
        TestHub { url, shared }
    }

    /// Its rules, to change.
    pub fn rules(&self) -> MutexGuard<'_, Rules> {
        self.shared.rules.lock().expect("no test thread panics with it")
    }

    /// What was asked since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.shared.asked.lock().expect("no test thread panics with it"))
    }

    /// Ranges asked for of file `name`, by GET, since the last call.
    pub fn ranges(&self, name: &str) -> Vec<Option<String>> {
        let of = |a: &Asked| a.method == "GET" && a.path.ends_with(name);
        // A redirected request is counted once, where its bytes come from.
        let asked = self.asked();
        let elsewhere = asked.iter().any(|a| of(a) && a.elsewhere);
        asked.into_iter().filter(|a| of(a) && a.elsewhere == elsewhere).map(|a| a.range).collect()
    }
}

impl Drop for TestHub {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
    }
}

/// Content name of `bytes`: SHA-256 for weights, 40 digits for small files.
pub fn etag(name: &str, bytes: &[u8]) -> String {
    let sum: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    if name.ends_with(".safetensors") { sum } else { sum[..40].to_owned() }
}

fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("settable");
    listener
}

fn serve(listener: &TcpListener, elsewhere: bool, shared: &Arc<Shared>) {
    while !shared.over.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => {
                let shared = shared.clone();
                // A client that goes away is its own affair.
                std::thread::spawn(move || answer(stream, elsewhere, &shared).ok());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn answer(mut stream: TcpStream, elsewhere: bool, shared: &Shared) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let mut lines = BufReader::new(stream.try_clone()?).take(1 << 16).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        match line.split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    let get = |name: &str| headers.get(name).cloned();
    let asked = Asked {
        elsewhere,
        method: method.clone(),
        path: path.clone(),
        range: get("range"),
        token: get("authorization"),
    };
    shared.asked.lock().expect("no test thread panics with it").push(asked.clone());
    let mut rules = shared.rules.lock().expect("no test thread panics with it");
    if rules.busy > 0 {
        rules.busy -= 1;
        return write!(stream, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    if !elsewhere && rules.token.as_ref().is_some_and(|t| asked.token != Some(format!("Bearer {t}"))) {
        return say(&mut stream, 401, "Unauthorized", &json!({ "error": "Invalid username or password." }));
    }
    if path.starts_with("/api/models/") {
        let about = format!("/api/models/{}", rules.id);
        let rest = path.strip_prefix(&about);
        if !matches!(rest, Some("" | "/revision/main" | "/revision/v1")) && rest != Some(&format!("/revision/{COMMIT}"))
        {
            return say(&mut stream, 404, "Not Found", &json!({ "error": "Repository not found" }));
        }
        let siblings: Vec<_> = rules.files.keys().map(|n| json!({ "rfilename": n })).collect();
        return say(&mut stream, 200, "OK", &json!({ "id": rules.id, "sha": COMMIT, "siblings": siblings }));
    }
    let name = path.rsplit_once(&format!("/resolve/{COMMIT}/")).map(|(_, n)| n.to_owned()).unwrap_or_default();
    if elsewhere && rules.expired > 0 {
        rules.expired -= 1;
        return say(&mut stream, 403, "Forbidden", &json!({}));
    }
    if method == "HEAD" && !rules.heads {
        return write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    }
    if let Some(status) = rules.status {
        return say(&mut stream, status, "No", &json!({ "error": "no" }));
    }
    let Some(bytes) = rules.files.get(&name).cloned() else {
        return say(&mut stream, 404, "Not Found", &json!({ "error": "Entry not found" }));
    };
    let large = name.ends_with(".safetensors");
    let tag = rules.etag.clone().filter(|_| large).unwrap_or_else(|| etag(&name, &bytes));
    let size = rules.claims.filter(|_| large).unwrap_or(bytes.len() as u64);
    let there = match (&rules.target, rules.loops) {
        (Some(target), _) => Some(target.clone()),
        (None, true) => Some(path.clone()),
        (None, false) if large && rules.elsewhere && !elsewhere => Some(format!("{}{path}", shared.other)),
        _ => None,
    };
    if let Some(there) = there {
        let linked = if rules.loops || rules.target.is_some() {
            String::new()
        } else {
            format!("X-Linked-Etag: \"{tag}\"\r\nX-Linked-Size: {size}\r\n")
        };
        return write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: {there}\r\n{linked}X-Repo-Commit: {COMMIT}\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n"
        );
    }
    let mut from = 0;
    let mut to = bytes.len();
    if let Some((first, last)) = asked.range.as_deref().filter(|_| rules.ranges).and_then(span) {
        if first >= bytes.len() {
            return write!(
                stream,
                "HTTP/1.1 416 No\r\nContent-Range: bytes */{size}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        (from, to) = (first, last.map_or(to, |l| to.min(l + 1)));
        write!(stream, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{size}\r\n", to - 1)?;
    } else {
        write!(stream, "HTTP/1.1 200 OK\r\n")?;
    }
    // The other host calls the same content by a name of its own.
    let tag = if elsewhere { format!("other-{}", &tag[..8]) } else { tag };
    let length = if from == 0 && to == bytes.len() { size } else { (to - from) as u64 };
    write!(stream, "ETag: \"{tag}\"\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    if method == "HEAD" {
        return Ok(());
    }
    let mut body = bytes[from..to].to_vec();
    let mut take = |of: fn(&mut Rules) -> &mut Vec<usize>| {
        let list = of(&mut rules);
        (large && !list.is_empty()).then(|| list.remove(0))
    };
    let (cut, stall) = (take(|r| &mut r.cuts), take(|r| &mut r.stalls));
    if large && rules.damages > 0 {
        rules.damages -= 1;
        body[0] ^= 0xff;
    }
    let pause = rules.pause;
    drop(rules);
    body.truncate(cut.or(stall).unwrap_or(body.len()));
    for piece in body.chunks(16 << 10) {
        stream.write_all(piece)?;
        std::thread::sleep(pause);
    }
    stream.flush()?;
    while stall.is_some() && !shared.over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn say(stream: &mut TcpStream, status: u16, word: &str, body: &serde_json::Value) -> std::io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} {word}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// `bytes=3-` as `(3, None)`.
fn span(range: &str) -> Option<(usize, Option<usize>)> {
    let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
    Some((from.parse().ok()?, to.parse().ok()))
}
