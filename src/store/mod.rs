//! Where a checkpoint's bytes live and how they are read: in place, from the user's own safetensors files.
//!
//! Nothing is converted and nothing is written. A segment's tensors are gathered into aligned *chunks* of a file
//! ([`layout`]), read with `O_DIRECT` where the file system allows it ([`reader`]) into page-aligned memory ([`memory`]).

pub mod layout;
pub mod memory;
pub mod rate;
pub mod reader;

pub use layout::{Chunk, Piece, SegmentLayout, Span};
pub use memory::HostMemory;
pub(crate) use memory::Pin;
pub use reader::{ReadTicket, Reader};
