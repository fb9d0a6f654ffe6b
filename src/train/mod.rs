//! The trainer: walks the blocks forward and back, updates the adapter, saves, resumes, and says what it does.

mod apart;
mod bound;
mod inputs;
mod learned;
mod loss;
pub mod objective;
mod open;
pub mod optim;
mod resume;
mod retry;
pub mod save;
pub mod schedule;
mod telemetry;
pub mod trainer;
pub mod walk;

pub use trainer::Trainer;
pub use walk::{BlockWalk, QueuedStep, StepContext, StepLoss};
