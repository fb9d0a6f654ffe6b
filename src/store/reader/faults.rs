//! What tests make go wrong: errors, short answers, stalls and dying threads at chosen requests.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

/// One thing to go wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Answer with this `errno`.
    Errno(i32),
    /// Answer with at most so many bytes.
    Short(usize),
    /// Answer so late.
    Stall(Duration),
    /// The thread panics.
    Die,
}

/// What goes wrong, where, and how many more times.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<(usize, u64, Fault, usize)>>);

impl Faults {
    /// `fault` happens `times` times to the request of `file` that begins at `offset`.
    pub fn add(&self, file: usize, offset: u64, fault: Fault, times: usize) {
        self.0.lock().unwrap().push((file, offset, fault, times));
    }

    fn take(&self, file: usize, offset: u64, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let mut all = self.0.lock().unwrap();
        let hit = all.iter_mut().find(|f| f.0 == file && f.1 == offset && f.3 > 0 && wanted(&f.2))?;
        hit.3 -= 1;
        Some(hit.2)
    }

    /// How long to hold a request back.
    pub fn stall(&self, file: usize, offset: u64) -> Duration {
        match self.take(file, offset, |f| matches!(f, Fault::Stall(_) | Fault::Die)) {
            Some(Fault::Stall(d)) => d,
            Some(Fault::Die) => panic!("a fault of the reader's thread"),
            _ => Duration::ZERO,
        }
    }

    /// What the reader is told instead of `answer`.
    pub fn bend(&self, file: usize, offset: u64, answer: io::Result<usize>) -> io::Result<usize> {
        match self.take(file, offset, |f| !matches!(f, Fault::Stall(_) | Fault::Die)) {
            Some(Fault::Errno(e)) => Err(io::Error::from_raw_os_error(e)),
            Some(Fault::Short(n)) => answer.map(|got| got.min(n)),
            _ => answer,
        }
    }
}
