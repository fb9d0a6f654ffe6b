//! Moving blocks: disk readers → host ring → device slots, ahead of the block that computes.
//!
//! [`Streamer`] decides what to read and copy when; a [`Lane`] does the copying: a thread on CPU ([`cpu`]), a stream
//! of the driver on a GPU ([`cuda`]). Both run the same schedule, so that what is proved on one holds on the other.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod lane;
mod residency;
mod streamer;

pub use lane::{Lane, LaneTimes, Ticket};
pub use streamer::{Snapshot, StreamSetup, Streamer, Totals};
