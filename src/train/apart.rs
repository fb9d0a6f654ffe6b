//! Work on a thread of its own, for what can't be interrupted: a stop leaves it behind instead of waiting.

use crate::error::{Error, Result};
use crate::event::Stage;
use crate::panics;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// How often a stop is asked for.
const POLL: Duration = Duration::from_millis(50);

enum Said<T> {
    Stage(Stage),
    Done(Result<T>),
}

/// Runs `work` on the thread `name` and hands its stages to `stage`. When `stop` is an error, that is the answer at
/// once; `work` goes on until it asks for itself, and what it makes is dropped.
///
/// # Errors
/// As `work` and `stop`; a panic of `work`.
pub(super) fn apart<T: Send + 'static>(
    name: &str,
    stop: &dyn Fn() -> Result<()>,
    stage: &mut dyn FnMut(Stage),
    work: impl FnOnce(&mut dyn FnMut(Stage)) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (tx, rx) = sync_channel(16);
    let who = format!("the {name} thread");
    let body = move || {
        // Nobody listens any more after a stop.
        let done = panics::caught(&who, || work(&mut |s| drop(tx.send(Said::Stage(s)))));
        drop(tx.send(Said::Done(done.flatten())));
    };
    Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(|e| Error::run(format!("cannot start the {name} thread: {e}")))?;
    loop {
        match rx.recv_timeout(POLL) {
            Ok(Said::Stage(s)) => {
                stop()?;
                stage(s);
            }
            Ok(Said::Done(done)) => return done,
            Err(RecvTimeoutError::Timeout) => stop()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::run(format!("the {name} thread ended without a word")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn case_fo_03f_a_stop_does_not_wait_for_what_can_not_be_interrupted() {
        let (begun, mut told) = (Instant::now(), 0);
        let stop = || if begun.elapsed().as_millis() > 100 { Err(Error::stopped()) } else { Ok(()) };
        let stopped = apart("test", &stop, &mut |_| told += 1, |say| {
            say(Stage { name: "s".into(), done: 0, total: 0, unit: "rows".into() });
            std::thread::sleep(Duration::from_secs(20));
            Ok(())
        });
        assert!(stopped.is_err_and(|e| e.is_stop()) && told == 1);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn what_it_makes_and_how_it_fails_comes_back() {
        assert_eq!(apart("test", &|| Ok(()), &mut |_| {}, |_| Ok(7)).unwrap(), 7);
        let e = apart::<()>("test", &|| Ok(()), &mut |_| {}, |_| panic!("as told")).unwrap_err();
        assert!(e.to_string().contains("the test thread panicked: as told"), "{e}");
    }
}
