//! What tests share: model folders and GGUF files of any shape, and a model hub, made on the spot.
//!
//! Integration tests take it by `mod support;`, unit tests as `crate::support`.

pub mod fixture;
pub mod gguf;
pub mod hub;
mod raw;
