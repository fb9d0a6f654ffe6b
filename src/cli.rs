//! cli: see src/ARCHITECTURE.md.
