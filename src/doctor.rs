//! doctor: see src/ARCHITECTURE.md.
