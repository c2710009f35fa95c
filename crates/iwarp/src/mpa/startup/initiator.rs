//! The side that sends the Request.

use core::ops::Range;

use super::frame::{self, Control, Frame, Kind};
use super::{MAX_FRAME, Negotiated, Policy, Revision, Rtr, StartupError};
use crate::wire::mpa::{
    EXTENSION_BITS, FLAG_CRC, FLAG_EXTENSIONS_ACCEPT, FLAG_EXTENSIONS_OFFER, FLAG_MARKERS, FLAG_REJECT,
};

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
    /// What was agreed; of no use where `rejected`.
    pub negotiated: Negotiated,
    /// Where in the bytes the ULP's private data is.
    pub private_data: Range<usize>,
    /// The peer refused the connection.
    pub rejected: bool,
}

impl Initiator {
    /// Prepares a Request with this private data.
    ///
    /// # Errors
    /// [`StartupError::PrivateDataTooLong`]: over 512 bytes, or 508 with revision 2.
    pub fn new(policy: Policy, private_data: &[u8]) -> Result<Self, StartupError> {
        let mut flags = 0;
        if policy.crc.asks() {
            flags |= FLAG_CRC;
        }
        if policy.want_markers {
            flags |= FLAG_MARKERS;
        }
        if policy.extensions {
            flags |= FLAG_EXTENSIONS_OFFER;
        }
        // RFC 6581 §9: with revision 2 the depths are always told.
        // rule 6581-5-1, 6581-9.1-1, 6581-9.2-1
        let control = (policy.revision == Revision::V2).then(|| Control {
            ird: Some(policy.ird()),
            ord: Some(policy.ord()),
            rtr: policy.p2p.filter(|offer| !offer.is_empty()),
        });
        let mut out = [0; MAX_FRAME];
        let len = frame::write(Kind::Request, flags, policy.revision, control, private_data, &mut out)?;
        Ok(Self { policy, frame: out, len })
    }

    /// Writes the Request Frame and returns its length. Send it in one piece: some peers do not
    /// put a Request together again that comes in two.
    pub fn request(&self, out: &mut [u8; MAX_FRAME]) -> usize {
        *out = self.frame;
        self.len
    }

    /// Judges the start of the stream that the responder sends. `None`: more bytes are needed.
    ///
    /// # Errors
    /// A malformed frame, or an answer that our policy does not accept: close the connection, after
    /// the Terminate of [`StartupError::terminate`] where there is one.
    pub fn reply(&self, bytes: &[u8]) -> Result<Option<Reply>, StartupError> {
        let Some(frame) = frame::parse(Kind::Reply, bytes)? else { return Ok(None) };
        // rule 6581-10-2, 6581-6-5
        // RFC 6581 §10: a peer of revision 1 took our IRD and ORD for private data, so this connection is
        // of no use; a new one with revision 1 is. And revision 1 is never answered with 2.
        if frame.revision != self.policy.revision {
            return Err(StartupError::Revision(frame.revision as u8));
        }
        // rule 5044-7.1.2-5
        let rejected = frame.flags & FLAG_REJECT != 0;
        let negotiated = match self.negotiate(&frame) {
            Err(_) if rejected => self.proposed(),
            other => other?,
        };
        Ok(Some(Reply { consumed: frame.consumed, negotiated, private_data: frame.private_data, rejected }))
    }

    /// What we asked for.
    fn proposed(&self) -> Negotiated {
        Negotiated {
            revision: self.policy.revision,
            crc: self.policy.crc.asks(),
            tx_markers: false,
            rx_markers: self.policy.want_markers,
            ord: self.policy.ord(),
            ird: self.policy.ird(),
            rtr: None,
            extensions: false,
        }
    }

    fn negotiate(&self, frame: &Frame) -> Result<Negotiated, StartupError> {
        let mut agreed = self.proposed();
        agreed.crc = self.policy.crc.agree(frame.flags & FLAG_CRC != 0)?;
        // RFC 5044 §7.1.1: each side's M tells what it wants to receive.
        agreed.tx_markers = self.policy.agree_markers(frame.flags & FLAG_MARKERS != 0)?;
        // rule 7306-1.1-1, 7306-1.1-2
        agreed.extensions = self.policy.extensions && frame.flags & EXTENSION_BITS == FLAG_EXTENSIONS_ACCEPT;
        let Some(peer) = frame.control else { return Ok(agreed) };
        // RFC 6581 §9.1: no more Reads than the peer serves, and it no more than we serve.
        // rule 6581-9.1-2, 6581-9.1-3
        agreed.ord = peer.ird.map_or(agreed.ord, |ird| agreed.ord.min(ird));
        if let Some(ord) = peer.ord.filter(|&ord| ord > agreed.ird) {
            return Err(StartupError::InsufficientIrd(ord));
        }
        // rule 6581-9.2-2
        // RFC 6581 §9.2: A in the Reply without A in our Request means nothing.
        if let (Some(ours), Some(theirs)) = (self.policy.p2p.filter(|o| !o.is_empty()), peer.rtr) {
            agreed.rtr = Some(ours.pick(theirs).ok_or(StartupError::NoMatchingRtr)?);
        }
        if agreed.rtr == Some(Rtr::Read) {
            agreed.ord = agreed.ord.max(1);
        }
        Ok(agreed)
    }
}
