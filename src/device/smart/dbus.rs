//! As much of D-Bus as two method calls take (D-Bus specification, "Message protocol" and "Authentication protocol"):
//! EXTERNAL authentication on a unix socket, calls, replies. Every length is bounded, every wait ends at one deadline.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest header or body that is read; a drive's attributes are a page.
const LONGEST: usize = 64 << 10;
/// Deepest nesting of values.
const DEEPEST: usize = 8;
/// Messages to others (signals) that are passed over while waiting for a reply.
const PASSED_OVER: usize = 32;
const LATE: &str = "no answer within a second";

/// A value, as far as it matters here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// `y`; only to be sent.
    #[cfg(test)]
    Byte(u8),
    /// An unsigned number of any width; sent as `t`.
    Whole(u64),
    /// `s`.
    Text(String),
    /// `o`.
    Path(String),
    /// `v`; only to be sent: what comes is opened.
    #[cfg(test)]
    Variant(Box<Value>),
    /// `a{sv}`.
    Dict(Vec<(String, Value)>),
    /// Any other.
    Other,
}

impl Value {
    /// An empty `a{sv}`.
    pub(super) fn no_options() -> Value {
        Value::Dict(Vec::new())
    }

    /// The value under `key` of a dictionary.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Dict(pairs) => pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    fn signature(&self) -> &'static str {
        match self {
            #[cfg(test)]
            Value::Byte(_) => "y",
            #[cfg(test)]
            Value::Variant(_) => "v",
            Value::Whole(_) => "t",
            Value::Text(_) => "s",
            Value::Path(_) => "o",
            Value::Dict(_) | Value::Other => "a{sv}",
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            #[cfg(test)]
            Value::Byte(b) => out.push(*b),
            #[cfg(test)]
            Value::Variant(inner) => write_variant(inner, out),
            Value::Whole(n) => {
                pad(out, 8);
                out.extend(n.to_le_bytes());
            }
            Value::Text(text) | Value::Path(text) => write_text(text, out),
            Value::Dict(pairs) => {
                pad(out, 4);
                let at = out.len();
                out.extend([0; 4]);
                pad(out, 8);
                let begins = out.len();
                for (key, value) in pairs {
                    pad(out, 8);
                    write_text(key, out);
                    write_variant(value, out);
                }
                let len = (out.len() - begins) as u32;
                out[at..at + 4].copy_from_slice(&len.to_le_bytes());
            }
            Value::Other => Value::no_options().write(out),
        }
    }
}

fn pad(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    pad(out, 4);
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
    out.push(0);
}

fn write_variant(value: &Value, out: &mut Vec<u8>) {
    let signature = value.signature();
    out.push(signature.len() as u8);
    out.extend(signature.as_bytes());
    out.push(0);
    value.write(out);
}

const CALL: u8 = 1;
const REPLY: u8 = 2;
const ERROR: u8 = 3;
/// Don't start a service that isn't running.
const NO_START: u8 = 2;

/// Header fields by their number: 1 path, 2 interface, 3 member, 4 error name, 5 reply serial, 6 destination, 8 signature.
fn message(kind: u8, serial: u32, fields: &[(u8, Value)], args: &[Value]) -> Vec<u8> {
    let mut body = Vec::new();
    args.iter().for_each(|a| a.write(&mut body));
    let mut out = vec![b'l', kind, if kind == CALL { NO_START } else { 0 }, 1];
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(serial.to_le_bytes());
    out.extend([0; 4]);
    let signature: String = args.iter().map(Value::signature).collect();
    for (code, value) in fields {
        pad(&mut out, 8);
        out.push(*code);
        match (code, value) {
            (5, Value::Whole(n)) => {
                out.extend([1, b'u', 0]);
                pad(&mut out, 4);
                out.extend((*n as u32).to_le_bytes());
            }
            _ => write_variant(value, &mut out),
        }
    }
    if !signature.is_empty() {
        pad(&mut out, 8);
        out.extend([8, 1, b'g', 0, signature.len() as u8]);
        out.extend(signature.as_bytes());
        out.push(0);
    }
    let len = (out.len() - 16) as u32;
    out[12..16].copy_from_slice(&len.to_le_bytes());
    pad(&mut out, 8);
    out.extend(body);
    out
}

/// A message that came.
struct Message {
    kind: u8,
    #[cfg(test)]
    flags: u8,
    #[cfg(test)]
    serial: u32,
    fields: Vec<(u8, Value)>,
    signature: String,
    body: Vec<u8>,
}

impl Message {
    fn text(&self, code: u8) -> &str {
        match self.fields.iter().find(|(c, _)| *c == code) {
            Some((_, Value::Text(t) | Value::Path(t))) => t,
            _ => "",
        }
    }

    fn answers(&self) -> Option<u64> {
        match self.fields.iter().find(|(c, _)| *c == 5) {
            Some((_, Value::Whole(n))) => Some(*n),
            _ => None,
        }
    }
}

/// A connection to a bus.
pub(super) struct Bus {
    stream: UnixStream,
    until: Instant,
    serial: u32,
}

impl Bus {
    /// Connects to the socket at `path` as this user; everything that follows is over after `limit`.
    ///
    /// # Errors
    /// In words, why not.
    pub(super) fn connect(path: &Path, limit: Duration) -> Result<Bus, String> {
        let until = Instant::now() + limit;
        let stream = UnixStream::connect(path).map_err(|e| format!("no system bus at '{}': {e}", path.display()))?;
        let mut bus = Bus { stream, until, serial: 0 };
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
        bus.send(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes())?;
        let answer = bus.line()?;
        if !answer.starts_with("OK ") {
            return Err("the system bus does not accept this user".into());
        }
        bus.send(b"BEGIN\r\n")?;
        bus.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", &[])?;
        Ok(bus)
    }

    /// Calls a method and gives the first value of its reply.
    ///
    /// # Errors
    /// In words: the service isn't running, answers with an error, too late, or with something that is no D-Bus.
    pub(super) fn call(
        &mut self,
        service: &str,
        path: &str,
        interface: &str,
        member: &str,
        args: &[Value],
    ) -> Result<Value, String> {
        self.serial += 1;
        let fields = [
            (1, Value::Path(path.into())),
            (2, Value::Text(interface.into())),
            (3, Value::Text(member.into())),
            (6, Value::Text(service.into())),
        ];
        let call = message(CALL, self.serial, &fields, args);
        self.send(&call)?;
        for _ in 0..PASSED_OVER {
            let m = self.receive()?;
            match (m.kind, m.answers() == Some(u64::from(self.serial))) {
                (REPLY, true) if m.signature.is_empty() => return Ok(Value::Other),
                (REPLY, true) => return Cursor::new(&m.body).value(m.signature.as_bytes(), 0).map(|v| v.0),
                (ERROR, true) => return Err(refusal(m.text(4))),
                _ => {}
            }
        }
        Err("the bus sends only messages to others".into())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.set_write_timeout(Some(self.left()?)).map_err(|e| e.to_string())?;
        self.stream.write_all(bytes).map_err(|e| late(&e))
    }

    fn left(&self) -> Result<Duration, String> {
        self.until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()).ok_or_else(|| LATE.into())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        let mut at = 0;
        while at < buffer.len() {
            self.stream.set_read_timeout(Some(self.left()?)).map_err(|e| e.to_string())?;
            match self.stream.read(&mut buffer[at..]) {
                Ok(0) => return Err("the system bus has hung up".into()),
                Ok(n) => at += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(late(&e)),
            }
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = Vec::new();
        while line.len() < 512 {
            let mut byte = [0];
            self.fill(&mut byte)?;
            match byte[0] {
                b'\n' => return Ok(String::from_utf8_lossy(&line).trim_end().to_string()),
                b => line.push(b),
            }
        }
        Err("what listens there speaks no D-Bus".into())
    }

    fn receive(&mut self) -> Result<Message, String> {
        let mut head = [0; 16];
        self.fill(&mut head)?;
        if head[0] != b'l' || head[3] != 1 {
            return Err("what listens there speaks no D-Bus of this machine".into());
        }
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (body_len, fields_len) = (number(4) as usize, number(12) as usize);
        if body_len > LONGEST || fields_len > LONGEST {
            return Err(format!("a message of {body_len} bytes is too long"));
        }
        let mut rest = vec![0; fields_len.next_multiple_of(8) + body_len];
        self.fill(&mut rest)?;
        let body = rest.split_off(fields_len.next_multiple_of(8));
        // Alignment counts from the message's beginning, which the head's 16 bytes keep.
        let mut cursor = Cursor::new(&rest[..fields_len]);
        let (mut fields, mut signature) = (Vec::new(), String::new());
        while cursor.at < fields_len {
            cursor.align(8)?;
            let code = cursor.take(1)?[0];
            match cursor.variant(0)? {
                (Value::Text(text), b'g') => signature = text,
                (value, _) => fields.push((code, value)),
            }
        }
        Ok(Message {
            kind: head[1],
            #[cfg(test)]
            flags: head[2],
            #[cfg(test)]
            serial: number(8),
            fields,
            signature,
            body,
        })
    }
}

fn late(e: &std::io::Error) -> String {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => LATE.into(),
        _ => e.to_string(),
    }
}

fn refusal(name: &str) -> String {
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').take(100).collect();
    match name.rsplit('.').next() {
        Some("ServiceUnknown" | "NameHasNoOwner") => "the daemon is not running".into(),
        Some("UnknownMethod" | "UnknownInterface" | "UnknownObject") => "it knows nothing of this drive".into(),
        Some("") | None => "it refuses without a reason".into(),
        Some(_) => format!("it answers {name}"),
    }
}

/// Reads values from bytes that may be anything.
struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

const BROKEN: &str = "its answer is broken";

impl<'a> Cursor<'a> {
    fn new(data: &'a [u8]) -> Cursor<'a> {
        Cursor { data, at: 0 }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(n).filter(|e| *e <= self.data.len()).ok_or(BROKEN)?;
        let part = &self.data[self.at..end];
        self.at = end;
        Ok(part)
    }

    fn align(&mut self, to: usize) -> Result<(), String> {
        self.take(self.at.next_multiple_of(to) - self.at).map(|_| ())
    }

    /// An unsigned number of `n` bytes at its own alignment.
    fn whole(&mut self, n: usize) -> Result<u64, String> {
        self.align(n)?;
        Ok(self.take(n)?.iter().rev().fold(0, |all, b| all << 8 | u64::from(*b)))
    }

    fn text(&mut self, len: usize) -> Result<String, String> {
        let text = String::from_utf8(self.take(len)?.to_vec()).map_err(|_| BROKEN)?;
        if self.take(1)? == [0] { Ok(text) } else { Err(BROKEN.into()) }
    }

    /// A value and the first letter of its signature.
    fn variant(&mut self, depth: usize) -> Result<(Value, u8), String> {
        let len = self.whole(1)? as usize;
        let signature = self.text(len)?;
        let (value, rest) = self.value(signature.as_bytes(), depth + 1)?;
        let first = signature.bytes().next().ok_or(BROKEN)?;
        if rest.is_empty() { Ok((value, first)) } else { Err(BROKEN.into()) }
    }

    /// The value of the first complete type of `signature`, and what follows that type.
    fn value<'s>(&mut self, signature: &'s [u8], depth: usize) -> Result<(Value, &'s [u8]), String> {
        if depth > DEEPEST {
            return Err("its answer is nested too deep".into());
        }
        let (first, rest) = signature.split_first().ok_or(BROKEN)?;
        let value = match first {
            b'y' => Value::Whole(self.whole(1)?),
            b'q' => Value::Whole(self.whole(2)?),
            b'u' => Value::Whole(self.whole(4)?),
            b't' => Value::Whole(self.whole(8)?),
            b'n' => self.whole(2).map(|_| Value::Other)?,
            b'b' | b'i' | b'h' => self.whole(4).map(|_| Value::Other)?,
            b'x' | b'd' => self.whole(8).map(|_| Value::Other)?,
            b's' | b'o' => {
                let len = self.whole(4)? as usize;
                let text = self.text(len)?;
                if *first == b'o' { Value::Path(text) } else { Value::Text(text) }
            }
            b'g' => {
                let len = self.whole(1)? as usize;
                Value::Text(self.text(len)?)
            }
            b'v' => self.variant(depth)?.0,
            b'a' => {
                let (element, rest) = rest.split_at(complete(rest, 0)?);
                return Ok((self.array(element, depth)?, rest));
            }
            b'(' | b'{' => {
                let inside = complete(signature, 0)?;
                self.align(8)?;
                let mut left = &signature[1..inside - 1];
                while !left.is_empty() {
                    left = self.value(left, depth + 1)?.1;
                }
                return Ok((Value::Other, &signature[inside..]));
            }
            _ => return Err(BROKEN.into()),
        };
        Ok((value, rest))
    }

    fn array(&mut self, element: &[u8], depth: usize) -> Result<Value, String> {
        let len = self.whole(4)? as usize;
        self.align(match element.first() {
            Some(b'(' | b'{' | b'x' | b't' | b'd') => 8,
            Some(b'n' | b'q') => 2,
            Some(b'y' | b'g' | b'v') => 1,
            _ => 4,
        })?;
        let end = self.at.checked_add(len).filter(|e| *e <= self.data.len()).ok_or(BROKEN)?;
        let dictionary = element.strip_prefix(b"{s").and_then(|e| e.strip_suffix(b"}"));
        let mut pairs = Vec::new();
        while self.at < end {
            let before = self.at;
            match dictionary {
                Some(inside) => {
                    self.align(8)?;
                    let len = self.whole(4)? as usize;
                    let key = self.text(len)?;
                    pairs.push((key, self.value(inside, depth + 1)?.0));
                }
                None => {
                    self.value(element, depth + 1)?;
                }
            }
            if self.at == before {
                return Err(BROKEN.into());
            }
        }
        Ok(if dictionary.is_some() { Value::Dict(pairs) } else { Value::Other })
    }
}

/// Length of the first complete type of a signature.
fn complete(signature: &[u8], depth: usize) -> Result<usize, String> {
    if depth > 4 * DEEPEST {
        return Err(BROKEN.into());
    }
    match signature.first().ok_or(BROKEN)? {
        b'a' => Ok(1 + complete(&signature[1..], depth + 1)?),
        open @ (b'(' | b'{') => {
            let close = if *open == b'(' { b')' } else { b'}' };
            let mut at = 1;
            while *signature.get(at).ok_or(BROKEN)? != close {
                at += complete(&signature[at..], depth + 1)?;
            }
            Ok(at + 1)
        }
        b')' | b'}' => Err(BROKEN.into()),
        _ => Ok(1),
    }
}

#[cfg(test)]
#[path = "dbus_tests.rs"]
pub(super) mod tests;
