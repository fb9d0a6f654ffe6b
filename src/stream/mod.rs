//! Moving weights: disk reader → host ring → device slots, ahead of the part that computes.
//!
//! What is loaded when, and into which slot, is the plan's ([`crate::plan::schedule`]); [`Streamer`] carries it out.
//! A [`Lane`] does the copying: a thread on CPU ([`cpu`]), a stream of the driver on a GPU ([`cuda`]). Both run the
//! same schedule, so that what is proved on one holds on the other.

pub mod boundaries;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod lane;
mod pinning;
mod ring;
mod setup;
mod streamer;
mod trace;

pub use boundaries::Boundaries;
pub use lane::{CopyTimes, Lane, LaneTimes, Piecewise, Stamp, Ticket};
pub use setup::StreamSetup;
pub use streamer::{Snapshot, Streamer, Totals};
pub use trace::StepTimes;
