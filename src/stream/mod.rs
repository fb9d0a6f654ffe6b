//! stream: see src/ARCHITECTURE.md.
