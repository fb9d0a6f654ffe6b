//! export: see src/ARCHITECTURE.md.
