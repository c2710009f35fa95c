//! Connection start-up: Request and Reply Frames and what the two sides agree on.
//! RFC 5044 §7.1, RFC 6581.

mod error;
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
