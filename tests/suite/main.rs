//! Every integration test in one program: one link instead of a dozen, and support code shared without warnings.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg_attr(feature = "torch", expect(clippy::print_stdout, reason = "a test says why it did not run"))]

// `plan/testing.rs`, shared with the unit tests, names these as its own crate's.
use blockstream_tui::{checkpoint, units};

#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "GGUF files and a few switches are the unit tests'")]
mod support;

mod bench;
mod checkpoints;
mod configs;
mod data_rows;
#[cfg(feature = "tui")]
mod desk;
mod earlier;
mod exits;
mod facts;
#[cfg(feature = "hub")]
mod hub;
mod planner;
mod recorded;
mod reports;
mod step_time;

#[cfg(feature = "torch")]
mod block_case;
#[cfg(feature = "torch")]
mod blocks;
#[cfg(feature = "torch")]
mod demo;
#[cfg(feature = "torch")]
mod ends;
#[cfg(feature = "torch")]
mod equal;
#[cfg(feature = "torch")]
mod families;
#[cfg(feature = "torch")]
mod generation;
#[cfg(feature = "torch")]
mod golden;
#[cfg(feature = "torch")]
mod gpu;
#[cfg(feature = "torch")]
mod gpu_kernels;
#[cfg(feature = "torch")]
mod gpu_speed;
#[cfg(feature = "torch")]
mod half;
#[cfg(feature = "torch")]
mod learned;
#[cfg(feature = "torch")]
mod objective;
#[cfg(feature = "torch")]
mod resumes;
#[cfg(feature = "torch")]
mod runs;
#[cfg(feature = "torch")]
mod spoken;
#[cfg(feature = "torch")]
mod streaming;
#[cfg(feature = "torch")]
mod tiling;
#[cfg(feature = "torch")]
mod walk;
