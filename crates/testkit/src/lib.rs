//! Test support for the workspace: a checked memory [`host`], a seeded byte [`pipe`], a [`pair`] of
//! endpoints without sockets, a reference [`model`], wire bytes written independently of the
//! codecs under test ([`craft`]), and captures read back ([`pcap`]).
//!
//! Everything is driven step by step from one seed; nothing here reads a clock or opens a socket.

pub mod craft;
pub mod feeder;
pub mod fuzzing;
pub mod host;
pub mod model;
pub mod pair;
pub mod pcap;
pub mod pipe;
pub mod seed;
