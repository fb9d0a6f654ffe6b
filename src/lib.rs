#![doc = include_str!("ARCHITECTURE.md")]

pub mod clock;
pub mod config;
pub mod engine;
pub mod error;
pub mod event;
pub mod files;
pub mod panics;
pub mod text;
pub mod units;

pub mod checkpoint;
pub mod device;

pub mod plan;

#[cfg(feature = "torch")]
pub mod model;
#[cfg(feature = "torch")]
pub mod store;
#[cfg(feature = "torch")]
pub mod stream;

pub mod data;

#[cfg(feature = "torch")]
pub mod infer;
#[cfg(feature = "torch")]
pub mod train;

pub mod export;
pub mod report;

pub mod bench;
pub mod doctor;
pub mod worker;

#[cfg(feature = "tui")]
pub mod ui;

pub mod cli;
#[cfg(feature = "tui")]
pub mod script;

/// Fixtures shared with the integration tests.
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
pub mod support;
