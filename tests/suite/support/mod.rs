//! What tests are made of: model folders, golden files, walks.

#[cfg(feature = "torch")]
pub mod equal;
pub mod fixture;
#[cfg(feature = "torch")]
pub mod golden;
#[cfg(feature = "torch")]
pub mod walk;
