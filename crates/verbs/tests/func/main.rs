//! The verbs, function by function, over loopback.

#[path = "../common/mod.rs"]
mod common;

mod capture;
mod cm;
mod cq;
mod data;
mod idle;
mod order;
mod remote;
mod srq;
mod states;
mod tasks;
mod tshark;
