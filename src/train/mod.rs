//! train: see src/ARCHITECTURE.md.
