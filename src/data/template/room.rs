//! The thread that one template is compiled and rendered on. A template comes from anyone: expressions and values may
//! be nested as deep as its fuel pays for, so its thread has a stack for that, its own time and memory, and may die alone.

use super::held;
use minijinja::Environment;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Stack of the thread, in bytes: address space, of which memory is taken only as deep as it is used.
const STACK: usize = 1 << 30;
/// Longest time that one compilation or rendering may take.
const TIME: Duration = Duration::from_secs(60);
/// Most threads that may stand still past their memory, 512 MB each, before no more are started.
const MOST_STANDING: usize = 4;
/// How often a waiting thread looks whether this one stands still.
const LOOK: Duration = Duration::from_millis(50);

type Job = Box<dyn FnOnce(&mut Environment<'static>) + Send>;

/// A template environment on a thread of its own. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Room {
    jobs: Mutex<SyncSender<Job>>,
    /// The thread took more memory than it may, and stands still.
    past: Arc<AtomicBool>,
}

impl Room {
    /// Starts the thread and makes the environment there.
    ///
    /// # Errors
    /// The outer error says why the thread gave no answer; the inner one is what `make` returned.
    pub fn start<E: Send + 'static>(
        make: impl FnOnce() -> Result<Environment<'static>, E> + Send + 'static,
    ) -> Result<Result<Room, E>, String> {
        if held::standing() >= MOST_STANDING {
            return Err(format!("{MOST_STANDING} templates have run out of memory already; start the program again"));
        }
        let (jobs, inbox) = sync_channel::<Job>(1);
        let (made, answer) = sync_channel(1);
        let past = Arc::<AtomicBool>::default();
        let told = past.clone();
        Builder::new()
            .name("chat-template".into())
            .stack_size(STACK)
            .spawn(move || {
                held::begin(&told);
                let mut env = match make() {
                    Ok(env) => {
                        let _ = made.send(Ok(()));
                        env
                    }
                    Err(e) => {
                        let _ = made.send(Err(e));
                        return;
                    }
                };
                inbox.into_iter().for_each(|job| {
                    // Texts that were handed out are given back on other threads: each job counts anew.
                    held::begin(&told);
                    job(&mut env);
                    held::end();
                });
            })
            .map_err(|e| format!("no thread for it can be started: {e}"))?;
        wait(&answer, &past).map(|made| made.map(|()| Room { jobs: Mutex::new(jobs), past }))
    }

    /// The result of `job` on the room's thread.
    ///
    /// # Errors
    /// Why there is none: it took too long, or the thread has died.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Environment<'static>) -> T + Send + 'static,
    ) -> Result<T, String> {
        let (done, answer) = sync_channel(1);
        let job: Job = Box::new(move |env| drop(done.send(job(env))));
        let jobs = self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A job that is still running after its time keeps the room: everything behind it would wait.
        jobs.try_send(job).map_err(|_| "the template engine is stuck in an earlier rendering".to_string())?;
        wait(&answer, &self.past)
    }
}

fn wait<T>(answer: &Receiver<T>, past: &AtomicBool) -> Result<T, String> {
    let begun = Instant::now();
    loop {
        match answer.recv_timeout(LOOK) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err("the template engine has failed at it".into()),
            Err(RecvTimeoutError::Timeout) if past.load(Ordering::SeqCst) => {
                return Err(format!("it takes more than {} MB of memory", held::MOST >> 20));
            }
            Err(RecvTimeoutError::Timeout) if begun.elapsed() > TIME => {
                return Err(format!("it takes longer than {} s", TIME.as_secs()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
