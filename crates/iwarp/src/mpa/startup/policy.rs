//! What a side wants of a connection, and what came of it.

use super::StartupError;
use crate::wire::mpa::DEPTH_UNSPECIFIED;

/// MPA revisions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Revision {
    /// RFC 5044.
    V1 = 1,
    /// RFC 6581: IRD/ORD exchange and peer-to-peer mode.
    V2 = 2,
}

impl Revision {
    /// The revision with this number, if we speak it.
    pub fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            _ => None,
        }
    }
}

/// Whether CRCs are used. Off is an agreement of both sides. RFC 5044 §7.1.1 (C).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CrcPolicy {
    /// Does not ask for them; uses them where the peer asks.
    Off,
    /// Asks for them; so they are used, whatever the peer says.
    On,
    /// Asks for them and refuses a peer that does not ask as well.
    Required,
    /// Refuses a peer that asks for them.
    Never,
}

impl CrcPolicy {
    /// Whether our frame has the C flag.
    pub(super) fn asks(self) -> bool {
        // rule 5044-4.4-6
        matches!(self, Self::On | Self::Required)
    }

    /// Whether CRCs are used, given the peer's C flag. RFC 5044 §7.1.1: either side's wish binds both.
    pub(super) fn agree(self, peer: bool) -> Result<bool, StartupError> {
        // rule 5044-4.4-4, 5044-7.1.1-3
        match self {
            Self::Required if !peer => Err(StartupError::CrcRequired),
            Self::Never if peer => Err(StartupError::CrcRefused),
            _ => Ok(peer || self.asks()),
        }
    }
}

/// Zero-length messages that can serve as the RTR frame. RFC 6581 §9.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RtrOffer {
    /// RDMA Write.
    pub write: bool,
    /// RDMA Read.
    pub read: bool,
    /// Send.
    pub send: bool,
}

/// RTR frames that any responder can take: they touch neither memory nor a receive.
pub(super) const RESPONDER_RTR: RtrOffer = RtrOffer { write: true, read: true, send: false };

impl RtrOffer {
    /// Nothing on offer.
    pub fn is_empty(self) -> bool {
        self.pick(self).is_none()
    }

    /// The first of Write, Read and Send that both sides know.
    pub fn pick(self, other: Self) -> Option<Rtr> {
        if self.write && other.write {
            Some(Rtr::Write)
        } else if self.read && other.read {
            Some(Rtr::Read)
        } else if self.send && other.send {
            Some(Rtr::Send)
        } else {
            None
        }
    }

    /// Just this one.
    pub(super) fn only(rtr: Rtr) -> Self {
        Self { write: rtr == Rtr::Write, read: rtr == Rtr::Read, send: rtr == Rtr::Send }
    }
}

/// The RTR frame agreed upon.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rtr {
    /// Zero-length RDMA Write.
    Write,
    /// Zero-length RDMA Read.
    Read,
    /// Zero-length Send.
    Send,
}

/// What we want and what we accept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Revision to ask for; as responder, the highest to accept.
    pub revision: Revision,
    /// After a peer refused revision 2, another connection may be tried with revision 1.
    pub fallback: bool,
    /// CRC use.
    pub crc: CrcPolicy,
    /// We are willing to send markers to a peer that wants them.
    pub send_markers: bool,
    /// We want markers in what we receive.
    pub want_markers: bool,
    /// Reads that we would have outstanding (at most 16382).
    pub ord: u16,
    /// Reads that we serve at once (at most 16382).
    pub ird: u16,
    /// Peer-to-peer mode (needs revision 2): as initiator, ask for it with these RTR frames; as
    /// responder, where asked, know these. `None`: do not ask; where asked, know Write and Read.
    pub p2p: Option<RtrOffer>,
    /// Tell the peer that we know RFC 7306.
    pub extensions: bool,
}

/// Depths are 14 bits, of which all ones mean something else. RFC 6581 §9.
pub(super) fn clamp_depth(depth: u16) -> u16 {
    depth.min(DEPTH_UNSPECIFIED - 1)
}

impl Policy {
    /// Our ORD as it can be told.
    pub(super) fn ord(&self) -> u16 {
        clamp_depth(self.ord)
    }

    /// Our IRD as it can be told.
    pub(super) fn ird(&self) -> u16 {
        clamp_depth(self.ird)
    }

    /// Whether we send markers, given the peer's M flag. RFC 5044 §7.1.1.
    pub(super) fn agree_markers(&self, peer: bool) -> Result<bool, StartupError> {
        // rule 5044-4.3-1, 5044-7.1.1-2
        if peer && !self.send_markers { Err(StartupError::MarkersRefused) } else { Ok(peer) }
    }
}

impl Default for Policy {
    /// Revision 2 with fallback, CRC off unless the peer asks, markers only where the peer asks,
    /// 32 Reads each way, no peer-to-peer, RFC 7306 offered.
    fn default() -> Self {
        Self {
            revision: Revision::V2,
            fallback: true,
            crc: CrcPolicy::Off,
            send_markers: true,
            want_markers: false,
            ord: 32,
            ird: 32,
            p2p: None,
            extensions: true,
        }
    }
}

/// What both sides agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The revision spoken.
    pub revision: Revision,
    /// CRCs both ways.
    pub crc: bool,
    /// We put markers into what we send.
    pub tx_markers: bool,
    /// The peer puts markers into what it sends.
    pub rx_markers: bool,
    /// Reads that we may have outstanding.
    pub ord: u16,
    /// Reads that we serve at once.
    pub ird: u16,
    /// The initiator's first message; `None`: client-server mode.
    pub rtr: Option<Rtr>,
    /// The peer knows RFC 7306.
    pub extensions: bool,
}
