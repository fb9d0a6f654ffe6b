//! A scripted engine and desk: the screens, scripts and terminals of the tests run on them without libtorch, a GPU
//! or a checkpoint. `BSTUI_FAKE_ENGINE=MS` runs the whole program on them, MS milliseconds a block.

mod desk;
mod engine;
mod facts;
mod record;

pub use desk::FakeDesk;
pub use engine::{FakeEngine, Fault, narrate};
pub use facts::{machine, models, plan, runs};
