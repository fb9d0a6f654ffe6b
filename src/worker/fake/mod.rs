//! A scripted engine and desk: the screens, scripts and terminals of the tests run on them without libtorch, a GPU
//! or a checkpoint. `tests/support/scripted.rs` is the whole program on them.

mod desk;
mod engine;
mod facts;
mod hub;
mod record;
mod trace;

pub use desk::FakeDesk;
pub use engine::{FakeEngine, Fault, narrate};
pub use facts::{machine, models, plan, runs};
