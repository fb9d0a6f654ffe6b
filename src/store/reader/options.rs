//! How to read: the rung, and sizes that were measured.

use std::time::Duration;

/// Bytes of one request: the least that gives a drive's full rate (measured: 1 MiB gave 5 % less, 4 MiB no more), so
/// that a chunk's end is soon there.
pub const REQUEST: u64 = 2 << 20;
/// Requests in flight with io_uring.
pub const QUEUE_DEPTH: usize = 32;
/// Threads without it.
pub const THREADS: usize = 4;
/// A read that takes longer than this is an error; hot drives were seen to pause for tens of seconds.
pub const STALL_LIMIT: Duration = Duration::from_secs(300);

/// Which rung to read with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring, or the pool where there is none.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// The pool.
    Pread,
}

/// How to read.
#[derive(Clone, Debug)]
pub struct Options {
    /// Added to every request before it is sent (tests of ordering; zero otherwise).
    pub delay: Duration,
    /// The rung.
    pub backend: Backend,
    /// Requests in flight with io_uring; at least 1.
    pub queue_depth: usize,
    /// Threads of the pool; at least 1.
    pub threads: usize,
    /// Bytes of a request, rounded up to a multiple of [`SECTOR`](crate::store::layout::SECTOR).
    pub request: u64,
    /// Longest wait for one read of the kernel.
    pub stall_limit: Duration,
    /// What goes wrong on purpose.
    #[cfg(test)]
    pub(crate) faults: Option<std::sync::Arc<super::faults::Faults>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            delay: Duration::ZERO,
            backend: Backend::Auto,
            queue_depth: QUEUE_DEPTH,
            threads: THREADS,
            request: REQUEST,
            stall_limit: STALL_LIMIT,
            #[cfg(test)]
            faults: None,
        }
    }
}
