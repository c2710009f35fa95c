//! Connection start-up: Request and Reply Frames and what the two sides agree on.
//! RFC 5044 §7.1, RFC 6581.
//!
//! ```text
//!   initiator                      responder
//!   Initiator::new, .request  -->  Request::parse
//!   .reply                    <--  .accept | .reject
//!   first FPDU (the RTR frame in peer-to-peer mode) --> only now the responder may send
//! ```
//!
//! # RFC 7306 peers
//!
//! Atomics and immediate data end the stream at a peer that does not know them, so they go only to
//! a peer that said so. A Request offers with one reserved bit; a Reply that accepts clears it and
//! sets another. Peers that echo the Request's header (Linux's siw does) thus never look like one
//! that knows, and peers that ignore reserved bits (as RFC 5044 §7.1.1 has it) are not disturbed.

mod error;
mod frame;
mod initiator;
mod policy;
mod responder;

pub use error::StartupError;
pub use initiator::{Initiator, Reply};
pub use policy::{CrcPolicy, Negotiated, Policy, Revision, Rtr, RtrOffer};
pub use responder::Request;

use crate::wire::mpa::{FRAME_HEADER, MAX_PRIVATE_DATA};

/// Bytes of the largest Request or Reply Frame.
pub const MAX_FRAME: usize = FRAME_HEADER + MAX_PRIVATE_DATA;
