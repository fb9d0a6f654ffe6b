//! infer: see src/ARCHITECTURE.md.
