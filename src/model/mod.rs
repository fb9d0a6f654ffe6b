//! model: see src/ARCHITECTURE.md.
