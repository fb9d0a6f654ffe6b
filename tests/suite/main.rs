//! Every integration test in one program: one link instead of a dozen, and support code shared without warnings.

mod support;

#[cfg(feature = "torch")]
mod families;
#[cfg(feature = "torch")]
mod gpu;
#[cfg(feature = "torch")]
mod streaming;
