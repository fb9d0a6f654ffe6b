//! script: see src/ARCHITECTURE.md.
