//! The side that answers a Request.

use core::ops::Range;

use super::frame::{self, Control, Kind};
use super::policy::{RESPONDER_RTR, clamp_depth};
use super::{MAX_FRAME, Negotiated, Policy, Revision, Rtr, RtrOffer, StartupError};
use crate::wire::mpa::{
    EXTENSION_BITS, FLAG_CRC, FLAG_EXTENSIONS_ACCEPT, FLAG_EXTENSIONS_OFFER, FLAG_MARKERS, FLAG_REJECT,
};

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
    /// IRD and ORD were in the frame, so they are in the Reply.
    enhanced: bool,
}

impl Request {
    /// Parses the start of the stream that an initiator sends. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Where the frame is malformed or of a revision other than 1 and 2: close the connection.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, StartupError> {
        // rule 5044-7.1.1-4, 5044-7.1.1-5, 5044-7.1.4-1
        let Some(frame) = frame::parse(Kind::Request, bytes)? else { return Ok(None) };
        let control = frame.control;
        Ok(Some(Self {
            consumed: frame.consumed,
            revision: frame.revision,
            crc: frame.flags & FLAG_CRC != 0,
            markers: frame.flags & FLAG_MARKERS != 0,
            ord: control.and_then(|c| c.ord),
            ird: control.and_then(|c| c.ird),
            rtr: control.and_then(|c| c.rtr),
            extensions: frame.flags & EXTENSION_BITS == FLAG_EXTENSIONS_OFFER,
            private_data: frame.private_data,
            enhanced: control.is_some(),
        }))
    }

    /// Writes the accepting Reply Frame and returns its length and what is agreed thereby. `ord` and
    /// `ird` are ours, before negotiation.
    ///
    /// Send it in one piece, and no FPDU before the initiator's first. RFC 5044 §7.1.2.
    ///
    /// # Errors
    /// Where the request asks for what `policy` refuses (then [`Self::reject`] it), or the private
    /// data is too long.
    pub fn accept(
        &self,
        policy: &Policy,
        ord: u16,
        ird: u16,
        private_data: &[u8],
        out: &mut [u8; MAX_FRAME],
    ) -> Result<(usize, Negotiated), StartupError> {
        // rule 6581-10-1: the Reply has the Request's revision, where we accept it.
        if self.revision > policy.revision {
            return Err(StartupError::Revision(self.revision as u8));
        }
        let agreed = self.negotiate(policy, clamp_depth(ord), clamp_depth(ird))?;
        let mut flags = 0;
        if agreed.crc {
            flags |= FLAG_CRC;
        }
        if agreed.rx_markers {
            flags |= FLAG_MARKERS;
        }
        if agreed.extensions {
            flags |= FLAG_EXTENSIONS_ACCEPT;
        }
        // rule 6581-6-5
        let control = self.enhanced.then(|| Control {
            // What the initiator left open stays open. RFC 6581 §9.1.
            ird: self.ord.map(|_| agreed.ird),
            ord: self.ird.map(|_| agreed.ord),
            rtr: agreed.rtr.map(RtrOffer::only),
        });
        let len = frame::write(Kind::Reply, flags, self.revision, control, private_data, out)?;
        Ok((len, agreed))
    }

    fn negotiate(&self, policy: &Policy, ord: u16, ird: u16) -> Result<Negotiated, StartupError> {
        let rtr = match self.rtr {
            None => None,
            // rule 6581-9.2-2
            Some(offer) => {
                let known = policy.p2p.unwrap_or(RESPONDER_RTR);
                Some(known.pick(offer).ok_or(StartupError::NoMatchingRtr)?)
            }
        };
        // rule 6581-9.1-1, 6581-9.1-2, 6581-12-1
        // RFC 6581 §9.1: our ORD within the initiator's IRD; of our IRD, what it can use.
        let ord = self.ird.map_or(ord, |peer| ord.min(peer));
        let ird = self.ord.map_or(ird, |peer| ird.min(peer));
        Ok(Negotiated {
            revision: self.revision,
            crc: policy.crc.agree(self.crc)?,
            tx_markers: policy.agree_markers(self.markers)?,
            rx_markers: policy.want_markers,
            ord,
            // The RTR frame itself is a Read to be served.
            ird: if rtr == Some(Rtr::Read) { ird.max(1) } else { ird },
            rtr,
            extensions: self.extensions && policy.extensions,
        })
    }

    /// Writes a rejecting Reply Frame and returns its length. RFC 5044 §7.1.1 (R).
    ///
    /// # Errors
    /// [`StartupError::PrivateDataTooLong`].
    pub fn reject(
        &self,
        policy: &Policy,
        private_data: &[u8],
        out: &mut [u8; MAX_FRAME],
    ) -> Result<usize, StartupError> {
        let control =
            self.enhanced.then(|| Control { ird: Some(policy.ird()), ord: Some(policy.ord()), rtr: None });
        frame::write(Kind::Reply, FLAG_REJECT, self.revision, control, private_data, out)
    }
}
