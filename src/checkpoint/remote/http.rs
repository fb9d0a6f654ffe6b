//! Ranged requests to the hub: redirects by hand, so that the token stays with the hub's own host; waits with an end.
//!
//! hf-hub lists and resolves; its downloads don't resume and read headers whole, so bytes are asked for here.

use super::id::ModelId;
use super::settings::{Patience, Settings, Token};
use crate::error::{Error, Kind, Result};
use crate::text::clean;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderValue,
    IF_RANGE, LOCATION, RANGE,
};
use reqwest::{Client, Method, Response, Url};
use std::time::{Duration, Instant};

/// Most redirects that one request follows.
const MAX_HOPS: usize = 8;
/// Fewest bytes a second, over a whole answer that is waited for, before the connection counts as dead.
const SLOWEST: f64 = 1024.0;

/// What went wrong, and whether the same request may be worth another try.
pub(super) enum Failure {
    /// The connection or the server failed; it may work a moment later.
    Again(Error),
    /// It will not.
    Stop(Error),
}

/// An answer's head, its body still to come.
pub(super) struct Answer {
    /// 200, 206 or 416; for a HEAD also the redirect that says enough.
    pub status: u16,
    /// Name of the content: the hub's for the file behind a redirect, else the server's own. Fit for a file name.
    pub etag: Option<String>,
    /// Bytes of the whole file, if the answer says.
    pub size: Option<u64>,
    /// First byte of the body within the file.
    pub from: u64,
    response: Response,
    stall: Duration,
}

/// A connection to one hub.
#[derive(Clone)]
pub(super) struct Hub {
    client: Client,
    base: Url,
    token: Option<Token>,
    /// Waits and attempts.
    pub patience: Patience,
}

impl Hub {
    /// Connects to nothing yet.
    pub fn new(settings: &Settings, endpoint: &str) -> Result<Hub> {
        let base = Url::parse(endpoint).ok().filter(|u| is_http(u) && u.host_str().is_some()).ok_or_else(|| {
            Error::usage("HF_ENDPOINT is not the address of a hub").next("write it as https://host, or unset it")
        })?;
        let patience = settings.patience;
        let client = client(&base, &patience)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| Error::new(Kind::Io, format!("no HTTP client: {}", cause(&e))))?;
        Ok(Hub { client, base, token: settings.token.clone(), patience })
    }

    /// Where the hub tells what `model` is at its revision.
    pub fn about(&self, model: &ModelId) -> Result<Url> {
        let revision = model.revision.iter().flat_map(|r| ["revision", r.as_str()]);
        self.address(["api", "models"].into_iter().chain(model.id.split('/')).chain(revision))
    }

    /// Where file `name` of model `id` lies at `commit`.
    pub fn file(&self, id: &str, commit: &str, name: &str) -> Result<Url> {
        self.address(id.split('/').chain(["resolve", commit]).chain(name.split('/')))
    }

    fn address<'a>(&self, parts: impl Iterator<Item = &'a str>) -> Result<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Error::usage("HF_ENDPOINT can't have paths").next("write it as https://host"))?
            .pop_if_empty()
            .extend(parts);
        Ok(url)
    }

    /// Asks for the bytes from `range.0` up to and with `range.1` of a file, or for all of it. `etag` is the content
    /// that a part is already here of.
    pub async fn get(
        &self,
        url: &Url,
        range: Option<(u64, Option<u64>)>,
        etag: Option<&str>,
    ) -> Result<Answer, Failure> {
        let mut headers = HeaderMap::new();
        if let Some((from, to)) = range {
            let to = to.map_or(String::new(), |n| n.to_string());
            headers.insert(RANGE, value(&format!("bytes={from}-{to}"))?);
            if let Some(etag) = etag {
                headers.insert(IF_RANGE, value(&format!("\"{etag}\""))?);
            }
        }
        self.ask(Method::GET, url, headers).await
    }

    /// Asks for a file's size and content name alone.
    pub async fn head(&self, url: &Url) -> Result<Answer, Failure> {
        self.ask(Method::HEAD, url, HeaderMap::new()).await
    }

    async fn ask(&self, method: Method, url: &Url, mut headers: HeaderMap) -> Result<Answer, Failure> {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let mut url = url.clone();
        let (mut linked_etag, mut linked_size) = (None, None);
        // Once a request has left the hub it stays anonymous, even if it is sent back.
        let mut at_hub = true;
        for _ in 0..=MAX_HOPS {
            at_hub &= same_host(&url, &self.base);
            let mut sent = headers.clone();
            if !at_hub {
                // Another host names the same content in its own way.
                sent.remove(IF_RANGE);
            } else if let Some(token) = &self.token {
                let mut secret = value(&format!("Bearer {}", token.secret()))?;
                secret.set_sensitive(true);
                sent.insert(AUTHORIZATION, secret);
            }
            let request = self.client.request(method.clone(), url.clone()).headers(sent).send();
            let response = match tokio::time::timeout(self.patience.stall, request).await {
                Ok(Ok(response)) => response,
                Ok(Err(e)) => return Err(Failure::Again(lost(&url, &cause(&e)))),
                Err(_) => return Err(Failure::Again(lost(&url, &silence(self.patience.stall)))),
            };
            let text = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok());
            linked_etag = linked_etag.or_else(|| text("x-linked-etag").map(str::to_owned));
            linked_size = linked_size.or_else(|| text("x-linked-size").and_then(|v| v.parse().ok()));
            let status = response.status().as_u16();
            let redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
            let told = method == Method::HEAD && linked_etag.is_some() && linked_size.is_some();
            if !redirect || told {
                return self.answer(&url, response, at_hub, linked_etag, linked_size);
            }
            let target = response.headers().get(LOCATION).and_then(|v| v.to_str().ok()).and_then(|l| url.join(l).ok());
            let next = target.filter(|t| is_http(t) && (t.scheme() == "https" || url.scheme() == "http"));
            url = next.ok_or_else(|| Failure::Stop(refused(&url, "sends us to an address that is not safe to ask")))?;
        }
        Err(Failure::Stop(refused(&self.base, "sends us from one address to the next without end")))
    }

    fn answer(
        &self,
        url: &Url,
        response: Response,
        at_hub: bool,
        linked_etag: Option<String>,
        linked_size: Option<u64>,
    ) -> Result<Answer, Failure> {
        let status = response.status().as_u16();
        let text = |name| response.headers().get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        let gated = response.headers().get("x-error-code").is_some_and(|c| c == "GatedRepo");
        match status {
            200 | 206 | 300..=399 | 416 => {}
            408 | 429 | 500 | 502 | 503 | 504 => {
                return Err(Failure::Again(refused(url, &format!("is busy or broken (status {status})"))));
            }
            // An address that the hub gave out is good for a while only; it gives another.
            _ if !at_hub => return Err(Failure::Again(refused(url, &format!("answers with status {status}")))),
            _ => {
                let status = if gated { 403 } else { status };
                return Err(Failure::Stop(denied(&asked_for(url, status), status, self.token.is_some())));
            }
        }
        if text(CONTENT_ENCODING).is_some_and(|c| !c.eq_ignore_ascii_case("identity")) {
            return Err(Failure::Stop(refused(url, "sends the file compressed, so its bytes can't be counted")));
        }
        let length = text(CONTENT_LENGTH).and_then(|v| v.parse().ok());
        let (mut from, mut size) = (0, linked_size);
        if status == 206 {
            let said = text(CONTENT_RANGE).and_then(content_range);
            let (first, total) =
                said.ok_or_else(|| Failure::Stop(refused(url, "sends a part without saying which")))?;
            (from, size) = (first, total.or(size));
        } else if status == 200 {
            size = size.or(length);
        }
        let own = if status < 300 { text(ETAG).map(str::to_owned) } else { None };
        let etag = linked_etag.or(own).and_then(|e| file_name(&e));
        Ok(Answer { status, etag, size, from, response, stall: self.patience.stall })
    }
}

impl Answer {
    /// The next bytes of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Failure> {
        match tokio::time::timeout(self.stall, self.response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(e)) => Err(Failure::Again(lost(self.response.url(), &cause(&e)))),
            Err(_) => Err(Failure::Again(lost(self.response.url(), &silence(self.stall)))),
        }
    }

    /// At most `cap` bytes of the body; what follows is not waited for, and a body that only trickles is given up.
    pub async fn up_to(&mut self, cap: u64) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let (begun, grace) = (Instant::now(), self.stall * 2);
        while (bytes.len() as u64) < cap {
            let Some(chunk) = self.chunk().await? else { break };
            let waited = begun.elapsed();
            if waited > grace && (bytes.len() as f64) < SLOWEST * waited.as_secs_f64() {
                let why = format!("only {} bytes came in {}", bytes.len(), crate::units::secs(waited.as_secs_f64()));
                return Err(Failure::Again(lost(self.response.url(), &why)));
            }
            let room = (cap - bytes.len() as u64) as usize;
            let chunk = chunk.as_ref();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
        Ok(bytes)
    }
}

/// Attempts in a row that brought nothing.
pub(super) struct Tries {
    patience: Patience,
    failed: u32,
}

impl Tries {
    pub fn new(patience: Patience) -> Tries {
        Tries { patience, failed: 0 }
    }

    /// Something came: the count begins again.
    pub fn progress(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next attempt, or gives up.
    ///
    /// # Errors
    /// The failure is final, or was the last that patience has for.
    pub async fn wait(&mut self, failure: Failure) -> Result<()> {
        let error = match failure {
            Failure::Stop(e) => return Err(e),
            Failure::Again(e) => e,
        };
        self.failed += 1;
        if self.failed >= self.patience.tries {
            let what = format!("{} ({} attempts)", error.what(), self.failed);
            return Err(Error::new(error.kind(), what).next("try again later: what is here already is kept"));
        }
        tokio::time::sleep(self.patience.pause * 2u32.pow((self.failed - 1).min(6))).await;
        Ok(())
    }
}

/// A client for `base`; on this machine itself no proxy is asked.
fn client(base: &Url, patience: &Patience) -> reqwest::ClientBuilder {
    let builder = Client::builder()
        .user_agent(concat!("blockstream-tui/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(patience.connect)
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd();
    let local = base.host_str().is_some_and(|h| ["127.0.0.1", "localhost", "[::1]"].contains(&h));
    if local { builder.no_proxy() } else { builder }
}

/// The error for a model or file that the hub does not give; `what` names it.
fn denied(what: &str, status: u16, with_token: bool) -> Error {
    let what = clean(what);
    match (status, with_token) {
        (401, false) => Error::checkpoint(format!("the hub has no '{what}' for people who are not logged in"))
            .next("check the id; for a gated or private model accept its terms on the hub and set HF_TOKEN"),
        (401, true) => Error::checkpoint(format!("the hub refuses the token for '{what}', or has no such model"))
            .next("check the id, and that HF_TOKEN is valid and may read this model"),
        (403, _) => Error::checkpoint(format!("'{what}' is gated: the hub gives it only to accounts with access"))
            .next("accept its terms on its page of the hub, then set HF_TOKEN to a token of that account"),
        (404 | 410, _) => Error::checkpoint(format!("the hub has no '{what}'")).next("check the id and the revision"),
        _ => Error::new(Kind::Io, format!("the hub answers '{what}' with status {status}")).next("try again later"),
    }
}

/// The model of a file's address; with the file, where that alone is missing.
fn asked_for(url: &Url, status: u16) -> String {
    let path = url.path().trim_start_matches('/');
    if let Some(model) = path.strip_prefix("api/models/") {
        return model.replacen("/revision/", "@", 1).replace("%2F", "/");
    }
    match path.split_once("/resolve/") {
        Some((model, rest)) if status == 404 => format!("{model}/{}", rest.split_once('/').map_or(rest, |(_, f)| f)),
        Some((model, _)) => model.to_owned(),
        None => path.to_owned(),
    }
}

/// The error for a connection that failed.
pub(super) fn lost(url: &Url, why: &str) -> Error {
    Error::new(Kind::Io, format!("the connection to {} failed: {}", host(url), clean(why)))
        .next("check the network and HF_ENDPOINT; what is here already is kept")
}

fn refused(url: &Url, why: &str) -> Error {
    Error::new(Kind::Io, format!("{} {why}", host(url))).next("try again later, or check HF_ENDPOINT")
}

/// Scheme, host and port: an address may also hold a password or a signature, which nobody should read.
fn host(url: &Url) -> String {
    let port = url.port().map_or(String::new(), |p| format!(":{p}"));
    clean(&format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or("?")))
}

fn silence(wait: Duration) -> String {
    format!("nothing came for {}", crate::units::secs(wait.as_secs_f64()))
}

/// The innermost reason, which is the one that says something.
fn cause(e: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = e;
    while let Some(next) = inner.source() {
        inner = next;
    }
    // Only the outermost names the address.
    if std::ptr::addr_eq(inner, e) { "the request failed".into() } else { inner.to_string() }
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

fn same_host(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme() && a.host_str() == b.host_str() && a.port_or_known_default() == b.port_or_known_default()
}

fn value(text: &str) -> Result<HeaderValue, Failure> {
    // The text itself may be the token.
    HeaderValue::from_str(text)
        .map_err(|_| Failure::Stop(Error::usage("a request header holds characters that can't be sent")))
}

/// `bytes 10-19/100` as `(10, Some(100))`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (part, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let first = part.split_once('-')?.0.trim().parse().ok()?;
    Some((first, total.trim().parse().ok()))
}

/// An ETag without its quotes, if it can be a file's name.
fn file_name(etag: &str) -> Option<String> {
    let bare = etag.trim().trim_start_matches("W/").trim_matches('"');
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    ((1..=128).contains(&bare.len()) && bare.bytes().all(plain)).then(|| bare.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_a_plain_name_or_nothing() {
        assert_eq!(file_name("\"abc-1\"").as_deref(), Some("abc-1"));
        assert_eq!(file_name("W/\"abc\"").as_deref(), Some("abc"));
        for bad in ["", "\"../x\"", "a/b", "..", "a\\b", &"a".repeat(129)] {
            assert_eq!(file_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_content_range_says_where_a_part_begins() {
        assert_eq!(content_range("bytes 10-19/100"), Some((10, Some(100))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, None)));
        assert_eq!(content_range("bytes */100"), None);
        assert_eq!(content_range("10-19/100"), None);
    }

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        let url = Url::parse("https://me:hf_SECRET@host:8/x?sig=abc").unwrap();
        assert_eq!(host(&url), "https://host:8");
        let settings = Settings { endpoint: Some("ftp://x".into()), ..Settings::default() };
        let e = Hub::new(&settings, "ftp://x").err().unwrap();
        assert!(e.to_string().contains("HF_ENDPOINT"), "{e}");
    }

    #[test]
    fn names_are_escaped_in_addresses() {
        let hub = Hub::new(&Settings::default(), "http://h/sub").unwrap();
        let url = hub.file("a/b", "abc", "x y/é?.safetensors").unwrap();
        assert_eq!(url.as_str(), "http://h/sub/a/b/resolve/abc/x%20y/%C3%A9%3F.safetensors");
    }
}
