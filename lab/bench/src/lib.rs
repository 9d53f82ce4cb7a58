//! Shared by the benchmarks.

pub mod disk;
