//! The last rung: a pool of threads, one `pread` at a time each.

use super::request::{Ask, Outcome};
use super::{Alive, Shared};
use crate::error::{Error, Result};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Starts `threads` readers named `reader-0`, `reader-1`, …
///
/// # Errors
/// The system gives no thread.
pub(super) fn start(shared: &Arc<Shared>, threads: usize) -> Result<Vec<JoinHandle<()>>> {
    (0..threads)
        .map(|i| {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(format!("reader-{i}"))
                .spawn(move || {
                    let alive = Alive(shared);
                    serve(&alive.0, i);
                })
                .map_err(|e| Error::run(format!("cannot start a reader thread: {e}")))
        })
        .collect()
}

fn serve(shared: &Shared, place: usize) {
    while let Some(mut request) = shared.queue.wait_next(&shared.sources) {
        let source = &shared.sources[request.file];
        shared.meter.begin(place, &request, request.ask(source).direct);
        let delay = shared.delay(&request);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let error = loop {
            let ask = request.ask(source);
            let answer = shared.answer(&request, pread(&ask));
            match request.outcome(&ask, answer, source) {
                Outcome::More => {}
                Outcome::Done => break None,
                Outcome::Failed(e) => break Some(e),
            }
        };
        shared.finish(place, &request, error);
    }
}

fn pread(ask: &Ask) -> io::Result<usize> {
    // SAFETY: the ticket's owner keeps `dst..dst+len` mapped and unread until the ticket is done.
    let n = unsafe { libc::pread(ask.fd, ask.dst as *mut libc::c_void, ask.len as usize, ask.offset as libc::off_t) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
