//! Test helpers: gradient checks, close comparisons, golden files.
