//! The real binary, run as people and scripts do.
mod common;
mod perf;
mod ping;
mod usage;
