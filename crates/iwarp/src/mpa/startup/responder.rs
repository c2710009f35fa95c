//! The side that answers a Request.

use core::ops::Range;

use super::{MAX_FRAME, Negotiated, Policy, Revision, RtrOffer, StartupError};

/// A Request Frame, parsed; not yet answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Bytes of the frame.
    pub consumed: usize,
    /// The revision asked for.
    pub revision: Revision,
    /// The initiator asks for CRCs.
    pub crc: bool,
    /// The initiator wants markers in what it receives.
    pub markers: bool,
    /// Reads that the initiator would have outstanding; `None`: not negotiated here.
    pub ord: Option<u16>,
    /// Reads that the initiator serves at once; `None`: not negotiated here.
    pub ird: Option<u16>,
    /// Peer-to-peer mode is asked for, with these RTR frames on offer.
    pub rtr: Option<RtrOffer>,
    /// The initiator knows RFC 7306.
    pub extensions: bool,
    /// Where in the bytes the ULP's private data is.
    pub private_data: Range<usize>,
}

impl Request {
    /// Parses the start of the stream that an initiator sends. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Where the frame is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, StartupError> {
        let _ = bytes;
        Ok(None)
    }

    /// Writes the accepting Reply Frame. `ord` and `ird` are ours, before negotiation.
    ///
    /// # Errors
    /// Where the request asks for what `policy` refuses (reject it then), or the private data is too long.
    pub fn accept(
        &self,
        policy: &Policy,
        ord: u16,
        ird: u16,
        private_data: &[u8],
        out: &mut [u8; MAX_FRAME],
    ) -> Result<(usize, Negotiated), StartupError> {
        let _ = (policy, ord, ird, private_data, out);
        Err(StartupError::Key)
    }

    /// Writes a rejecting Reply Frame and returns its length.
    ///
    /// # Errors
    /// [`StartupError::PrivateDataTooLong`].
    pub fn reject(
        &self,
        policy: &Policy,
        private_data: &[u8],
        out: &mut [u8; MAX_FRAME],
    ) -> Result<usize, StartupError> {
        let _ = (policy, private_data, out);
        Err(StartupError::Key)
    }
}
