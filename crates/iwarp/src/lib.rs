//! iWARP without I/O: MPA (RFC 5044, RFC 6581), DDP (RFC 5041), RDMAP (RFC 5040, RFC 7306).
//!
//! Bytes go in, descriptions of bytes and events come out. The crate has no socket, thread, clock,
//! allocation or randomness of its own; everything it needs from outside goes through [`Host`].
//!
//! ```text
//!   TCP bytes -> mpa::deframe -> rx::Receiver -> Host (place, events)
//!   work      -> tx::Transmitter -> mpa::frame -> TCP bytes
//! ```
//!
//! A peer is hostile until proved otherwise: no input makes this crate panic, and nothing is placed
//! before the host has checked the steering tag, the bounds, the rights and the protection domain.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod error;
pub mod host;
pub mod mpa;
pub mod rdmap;
pub mod rx;
pub mod tx;
pub mod types;
pub mod wire;

pub use error::{Blame, Fault, TaggedFault, Terminate};
pub use host::{Event, Host, ReceiveSlot};
pub use types::{AtomicOp, AtomicRequest, InboundRead, Opcode, Stag};
