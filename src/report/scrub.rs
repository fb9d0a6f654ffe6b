//! Keeps this machine's folders out of what a run publishes: no home paths, no user names.

use crate::event::{Event, EventKind};
use serde_json::Value;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Folders of the system that are the same for everybody.
const PUBLIC: [&str; 3] = ["/proc/", "/sys/", "/dev/"];

/// Shortens paths: those under the results folder become relative to it, other absolute ones keep their last part.
#[derive(Clone, Debug)]
pub(super) struct Scrubber {
    run_dir: PathBuf,
    /// Ways the results folder may be written, longest first, each with its closing `/`.
    results: Vec<String>,
}

impl Scrubber {
    /// For the run in `run_dir`.
    pub(super) fn new(run_dir: &Path) -> Scrubber {
        let given = run_dir.parent().map(Path::to_path_buf);
        let real = run_dir.canonicalize().ok().and_then(|p| p.parent().map(Path::to_path_buf));
        let mut results: Vec<String> = [given, real]
            .into_iter()
            .flatten()
            .map(|p| format!("{}/", p.display()))
            .filter(|p| p.starts_with('/') && p.len() > 1)
            .collect();
        results.sort_by_key(|p| std::cmp::Reverse(p.len()));
        Scrubber { run_dir: run_dir.to_path_buf(), results }
    }

    /// `text` without this machine's folders.
    pub(super) fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        let mut before = ' ';
        while let Some(c) = rest.chars().next() {
            let begins = c == '/' && (before.is_whitespace() || "'\"`(=[{<>,;:|“‘".contains(before));
            if !begins {
                out.push(c);
                before = c;
                rest = &rest[c.len_utf8()..];
                continue;
            }
            let length = path_length(rest, before);
            let (path, tail) = rest.split_at(length);
            let is_url = before == ':' && path.starts_with("//") && !path.starts_with("///");
            out.push_str(&if is_url { Cow::Borrowed(path) } else { self.path(path) });
            before = path.chars().last().unwrap_or(' ');
            rest = tail;
        }
        out
    }

    fn path<'a>(&self, path: &'a str) -> Cow<'a, str> {
        if let Some(inside) = self.results.iter().find_map(|r| path.strip_prefix(r.as_str())) {
            return Cow::Borrowed(if inside.is_empty() { "." } else { inside });
        }
        let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
        match parts.last() {
            Some(last) if parts.len() > 1 && !PUBLIC.iter().any(|p| path.starts_with(p)) => {
                Cow::Owned(format!("…/{last}"))
            }
            _ => Cow::Borrowed(path),
        }
    }

    /// Every text in `value`, keys too.
    pub(super) fn json(&self, value: Value) -> Value {
        match value {
            Value::String(s) => Value::String(self.text(&s)),
            Value::Array(a) => Value::Array(a.into_iter().map(|v| self.json(v)).collect()),
            Value::Object(o) => Value::Object(o.into_iter().map(|(k, v)| (self.text(&k), self.json(v))).collect()),
            other => other,
        }
    }

    /// The event as it is recorded: paths relative to the run's folder, texts scrubbed, and numbers that JSON can't
    /// hold put out of the way of reading the line back (losses and metrics have their own `null`).
    pub(super) fn event(&self, event: &Event) -> Event {
        let mut event = event.clone();
        tame(&mut event.at);
        match &mut event.kind {
            EventKind::Started(s) => {
                s.run_dir = PathBuf::from(&s.run_id);
                s.model = self.text(&s.model);
            }
            EventKind::Step(s) => {
                for x in [
                    &mut s.epoch,
                    &mut s.seconds,
                    &mut s.h2d_s,
                    &mut s.disk_s,
                    &mut s.stall_s,
                    &mut s.evict_wait_s,
                    &mut s.stall_disk_s,
                    &mut s.compute_s,
                    &mut s.bound_s,
                ] {
                    tame(x);
                }
            }
            EventKind::Trace(t) => {
                for v in &mut t.visits {
                    for x in [&mut v.copy_s, &mut v.wait_link_s, &mut v.wait_disk_s, &mut v.compute_s] {
                        tame(x);
                    }
                }
            }
            EventKind::Eval(e) => tame(&mut e.seconds),
            EventKind::Saved(s) => s.path = self.inside(&s.path),
            EventKind::Notice(n) => n.text = self.text(&n.text),
            EventKind::Finished(f) => {
                f.reason = f.reason.as_deref().map(|r| self.text(r));
                f.checkpoint = f.checkpoint.as_deref().map(|c| self.inside(c));
                for x in [&mut f.stats.h2d_s, &mut f.stats.stall_s, &mut f.stats.evict_wait_s] {
                    tame(x);
                }
            }
            _ => {}
        }
        event
    }

    /// `path` relative to the run's folder.
    fn inside(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.run_dir) {
            Ok(p) => p.to_path_buf(),
            Err(_) => PathBuf::from(self.text(&path.to_string_lossy())),
        }
    }
}

/// -1 stands for "not a number" where a field has no `null`; no real time or rate is negative.
fn tame(x: &mut f64) {
    if !x.is_finite() {
        *x = -1.0;
    }
}

/// Bytes of the path that `rest` begins with: to the closing quote where one was opened, else to the next blank.
fn path_length(rest: &str, before: char) -> usize {
    let quoted = matches!(before, '\'' | '"' | '`').then(|| rest.find(before)).flatten();
    let plain = || {
        let end = rest.find(|c: char| c.is_whitespace() || "'\"`),;]}>|".contains(c)).unwrap_or(rest.len());
        rest[..end].trim_end_matches([':', '.']).len().max(1)
    };
    quoted.unwrap_or_else(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A home folder that must not turn up in what a run publishes.
    const HOME: &str = "/home/alice";

    fn scrubber() -> Scrubber {
        Scrubber::new(Path::new(&format!("{HOME}/work/results/run-1")))
    }

    #[test]
    fn home_paths_lose_their_folders_and_the_rest_stays() {
        let s = scrubber();
        for (given, want) in [
            (format!("cannot read '{HOME}/my data/rows.jsonl': gone"), "cannot read '…/rows.jsonl': gone"),
            (format!("{HOME}/work/results/run-1/checkpoint-5"), "run-1/checkpoint-5"),
            (format!("--config {HOME}/c.toml --results={HOME}/r, ok"), "--config …/c.toml --results=…/r, ok"),
            (format!("see {HOME}/a.txt."), "see …/a.txt."),
            ("1.5 GB/s of 3/4 on /dev/nvme0n1p1".into(), "1.5 GB/s of 3/4 on /dev/nvme0n1p1"),
            ("https://example.org/a/b and and/or".into(), "https://example.org/a/b and and/or"),
            (format!("file://{HOME}/x"), "file:…/x"),
        ] {
            assert_eq!(s.text(&given), want);
        }
        let json = s.json(serde_json::json!({ "a": [format!("{HOME}/x/y")], "n": 1 }));
        assert_eq!(json, serde_json::json!({ "a": ["…/y"], "n": 1 }));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_none_keeps_a_home(a in ".{0,20}", b in "[a-z/. ']{0,20}") {
            let text = scrubber().text(&format!("{a} {HOME}/{b}"));
            let home = format!("{HOME}/x");
            prop_assert!(!text.contains(&home));
            let _ = scrubber().text(&a);
        }
    }
}
