//! worker: see src/ARCHITECTURE.md.
