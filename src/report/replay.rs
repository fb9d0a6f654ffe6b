//! Recordings back to events: for the report, and for playing a run again on the same screen.

use crate::error::{Error, Result};
use crate::event::{Event, EventKind, GRAD_NORM, LEARNING_RATE, LOSS};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// File of a run's folder that holds its events, one JSON object a line.
pub const EVENTS_FILE: &str = "events.jsonl";
/// A longer line is damage, not an event.
const MAX_LINE: u64 = 64 << 20;
/// Longest wait that a replay keeps between two events, seconds.
const MAX_WAIT: f64 = 3600.0;

/// What could be read of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// The events, in order.
    pub events: Vec<Event>,
    /// Lines that couldn't be read: cut off by a crash, or written by a newer version.
    pub damaged: usize,
}

/// Reads `path`: a run's folder or its event file. A cut-off last line is normal after a crash, and counted.
///
/// # Errors
/// The file can't be opened or read.
pub fn read_events(path: &Path) -> Result<Recording> {
    let path = if path.is_dir() { path.join(EVENTS_FILE) } else { path.to_path_buf() };
    let file = File::open(&path).map_err(|e| {
        Error::io("read", &path, e).next("give a run's folder: it has an events.jsonl once the run has started")
    })?;
    let mut reader = BufReader::new(file);
    let mut recording = Recording::default();
    loop {
        let mut line = Vec::new();
        let n = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(|e| Error::io("read", &path, e))?;
        if n == 0 {
            return Ok(recording);
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice(&line).ok().or_else(|| step_of_schema_1(&line)) {
            Some(event) => recording.events.push(event),
            None => recording.damaged += 1,
        }
    }
}

/// The event of a line whose step has loss, gradient norm and learning rate beside the rest: they are metrics now.
fn step_of_schema_1(line: &[u8]) -> Option<Event> {
    let mut event: Map<String, Value> = serde_json::from_slice(line).ok()?;
    let metrics = [LOSS, GRAD_NORM, LEARNING_RATE].into_iter().map(|name| Some((name.into(), event.remove(name)?)));
    let metrics: Map<String, Value> = metrics.collect::<Option<_>>()?;
    event.insert("metrics".into(), metrics.into());
    serde_json::from_value(event.into()).ok()
}

/// An event and how long after the one before it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    /// Seconds after the event before.
    pub wait: f64,
    /// The event.
    pub event: Event,
}

/// A recorded run, played again: an iterator with the original spacing, or [`Replay::due`] at a speed of one's own.
#[derive(Clone, Debug)]
pub struct Replay {
    /// With the time of each since the replay began.
    rest: VecDeque<(f64, Event)>,
    now: f64,
    length: f64,
    /// Lines that couldn't be read.
    pub damaged: usize,
}

/// Opens the recording at `path`, a run's folder or its event file.
///
/// # Errors
/// It can't be read, or holds no event.
pub fn replay(path: &Path) -> Result<Replay> {
    let recording = read_events(path)?;
    if recording.events.is_empty() {
        return Err(Error::run(format!("'{}' holds no events", path.display())).next("choose a run that has started"));
    }
    Ok(Replay::new(recording))
}

impl Replay {
    /// Plays `recording`. Sessions follow each other without a pause; time never runs back.
    #[must_use]
    pub fn new(recording: Recording) -> Replay {
        let (mut due, mut last_at) = (0.0, None);
        let mut rest = VecDeque::new();
        for event in recording.events {
            let fresh = last_at.is_none() || matches!(event.kind, EventKind::Started(_));
            let wait = if fresh { 0.0 } else { event.at - last_at.unwrap_or(event.at) };
            due += if wait.is_finite() { wait.clamp(0.0, MAX_WAIT) } else { 0.0 };
            // A trace is recorded late, with the time it was made at.
            last_at = Some(if fresh { event.at } else { event.at.max(last_at.unwrap_or(event.at)) });
            rest.push_back((due, event));
        }
        Replay { rest, now: 0.0, length: due, damaged: recording.damaged }
    }

    /// Seconds from the first to the last event.
    #[must_use]
    pub fn length(&self) -> f64 {
        self.length
    }

    /// The events that have come by `elapsed` seconds of replayed time, each once.
    pub fn due(&mut self, elapsed: f64) -> Vec<Event> {
        let mut out = Vec::new();
        while self.rest.front().is_some_and(|(due, _)| *due <= elapsed) {
            out.extend(self.next().map(|t| t.event));
        }
        out
    }

    /// Whether every event has been played.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }
}

impl Iterator for Replay {
    type Item = Timed;
    fn next(&mut self) -> Option<Timed> {
        let (due, event) = self.rest.pop_front()?;
        let wait = due - self.now;
        self.now = due;
        Some(Timed { wait, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::RunStarted;

    fn line(seq: u64, at: f64, kind: EventKind) -> String {
        serde_json::to_string(&Event { seq, at, kind }).unwrap() + "\n"
    }

    #[test]
    fn a_replay_keeps_the_spacing_and_forgives_a_cut_off_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = line(0, 10.0, EventKind::Started(RunStarted::default()));
        text += &line(1, 12.5, EventKind::Paused { step: 1 });
        text += "\n{\"from\":\"a newer version\"}\n";
        text += &line(2, 12.0, EventKind::Resumed { step: 1 });
        text += &line(0, 0.5, EventKind::Started(RunStarted::default()));
        text += &line(1, 1.5, EventKind::Paused { step: 2 });
        text += "{\"seq\":9,\"at\":1";
        std::fs::write(dir.path().join(EVENTS_FILE), text).unwrap();
        let mut replay = super::replay(dir.path()).unwrap();
        assert_eq!((replay.damaged, replay.length()), (2, 3.5));
        let waits: Vec<f64> = replay.clone().map(|t| t.wait).collect();
        assert_eq!(waits, [0.0, 2.5, 0.0, 0.0, 1.0]);
        assert_eq!(replay.due(2.4).len(), 1);
        assert_eq!(replay.due(3.0).len(), 3);
        assert!(replay.due(f64::NAN).is_empty() && !replay.is_over());
        assert_eq!(replay.due(1e9).len(), 1);
        assert!(replay.is_over());
    }

    #[test]
    fn no_recording_says_what_to_give() {
        let dir = tempfile::tempdir().unwrap();
        assert!(super::replay(dir.path()).unwrap_err().to_string().contains("run's folder"));
        std::fs::write(dir.path().join(EVENTS_FILE), [0; 100]).unwrap();
        assert!(super::replay(dir.path()).unwrap_err().to_string().contains("no events"));
    }
}
