//! store: see src/ARCHITECTURE.md.
