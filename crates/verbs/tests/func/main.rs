//! The verbs, function by function, over loopback.

#[path = "../common/mod.rs"]
mod common;

mod capture;
mod cq;
mod data;
mod order;
mod remote;
mod srq;
mod states;
mod tshark;
