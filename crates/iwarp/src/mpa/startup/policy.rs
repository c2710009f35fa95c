//! What a side wants of a connection, and what came of it.

/// MPA revisions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Revision {
    /// RFC 5044.
    V1 = 1,
    /// RFC 6581: IRD/ORD exchange and peer-to-peer mode.
    V2 = 2,
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

/// Zero-length messages that can serve as the RTR frame. RFC 6581 §4.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RtrOffer {
    /// RDMA Write.
    pub write: bool,
    /// RDMA Read.
    pub read: bool,
    /// Send.
    pub send: bool,
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
    /// Reads that we would have outstanding (at most 16383).
    pub ord: u16,
    /// Reads that we serve at once (at most 16383).
    pub ird: u16,
    /// Peer-to-peer: what we offer, or as responder accept, as RTR frame. Needs revision 2.
    pub p2p: Option<RtrOffer>,
    /// Tell the peer that we know RFC 7306.
    pub extensions: bool,
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
