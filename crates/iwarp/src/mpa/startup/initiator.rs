//! The side that sends the Request.

use core::ops::Range;

use super::{MAX_FRAME, Negotiated, Policy, StartupError};

/// Builds the Request and judges the Reply.
#[derive(Clone, Debug)]
pub struct Initiator {
    policy: Policy,
    frame: [u8; MAX_FRAME],
    len: usize,
}

/// A Reply Frame, judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Bytes of the frame; FPDUs follow.
    pub consumed: usize,
    /// What was agreed (of a rejection: what the peer would have had).
    pub negotiated: Negotiated,
    /// Where in the bytes the ULP's private data is.
    pub private_data: Range<usize>,
    /// The peer's ULP (or the peer itself) refused.
    pub rejected: bool,
}

impl Initiator {
    /// # Errors
    /// [`StartupError::PrivateDataTooLong`].
    pub fn new(policy: Policy, private_data: &[u8]) -> Result<Self, StartupError> {
        let _ = private_data;
        Ok(Self { policy, frame: [0; MAX_FRAME], len: 0 })
    }

    /// Writes the Request Frame and returns its length.
    pub fn request(&self, out: &mut [u8; MAX_FRAME]) -> usize {
        *out = self.frame;
        self.len
    }

    /// Judges the start of the stream that the responder sends. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Where the frame is malformed or unacceptable.
    pub fn reply(&self, bytes: &[u8]) -> Result<Option<Reply>, StartupError> {
        let _ = (bytes, &self.policy);
        Ok(None)
    }
}
