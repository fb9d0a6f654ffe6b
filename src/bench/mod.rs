//! Measurements of this machine and of whole steps: `bench link`, `disk`, `gemm` and `step`, the last also beside peers.
//!
//! Each answers with one JSON object that has a `schema`. Rates are bytes (or FLOP) per second, times seconds, sizes
//! bytes. What was not measured is `null`, with its reason beside it; no figure is ever taken from elsewhere.

pub mod bound;
pub mod calibrate;
pub mod child;
pub mod cliff;
pub mod disk;
pub mod drive;
pub mod forecast;
#[cfg(feature = "torch")]
pub mod gemm;
pub mod keep;
#[cfg(feature = "torch")]
pub mod kernels;
pub mod limits;
#[cfg(feature = "cuda")]
pub mod link;
pub mod ours;
pub mod peers;
pub mod results;
pub mod row;
pub mod scratch;
pub mod stats;
pub mod step;
pub mod table;

/// Version of every object that `bench` prints; counts up when a key changes meaning.
pub const BENCH_SCHEMA: u32 = 1;

/// Takes a line of progress.
pub type Say<'a> = &'a dyn Fn(&str);
