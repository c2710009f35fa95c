//! The verbs, function by function, over loopback.

#[path = "../common/mod.rs"]
mod common;

mod capture;
mod tshark;
