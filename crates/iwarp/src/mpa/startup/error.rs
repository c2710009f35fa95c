//! Why a connection did not start.

use super::Revision;
use crate::error::Terminate;

/// A start-up failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StartupError {
    /// The first 16 bytes are not the key of the frame that was due: no MPA peer. RFC 5044 §7.1.1.
    Key,
    /// The frame has this revision, which we do not speak or did not ask for. RFC 5044 §7.1.1.
    Revision(u8),
    /// The frame declares this much private data, more than 512 bytes. RFC 5044 §7.1.1.
    PrivateDataLength(u16),
    /// The S flag with private data of this length, too short for IRD and ORD. RFC 6581 §6.
    EnhancedLength(u16),
    /// We require CRCs and the peer did not ask for them.
    CrcRequired,
    /// The peer asks for CRCs and we refuse them.
    CrcRefused,
    /// The peer wants markers and we are not willing to send them.
    MarkersRefused,
    /// The peer would have this many Reads outstanding, more than our IRD. RFC 6581 §9.1.
    InsufficientIrd(u16),
    /// Peer-to-peer mode with no RTR frame that both sides know. RFC 6581 §9.2.
    NoMatchingRtr,
    /// The private data handed in exceeds `max` bytes.
    PrivateDataTooLong {
        /// Its length.
        len: usize,
        /// 512, or 508 where IRD and ORD are exchanged.
        max: usize,
    },
}

impl StartupError {
    /// The Terminate with which an initiator tells its peer, where the RFCs name one.
    /// RFC 5044 §8, RFC 6581 §8. A responder rejects or closes instead.
    pub fn terminate(self) -> Option<Terminate> {
        // rule 6581-8-1, 5044-8-1
        let code = match self {
            Self::Key
            | Self::PrivateDataLength(_)
            | Self::EnhancedLength(_)
            | Self::CrcRequired
            | Self::CrcRefused
            | Self::MarkersRefused => 4,
            Self::InsufficientIrd(_) => 6,
            Self::NoMatchingRtr => 7,
            // A peer of another revision is left without a word; the caller's mistake never left us.
            Self::Revision(_) | Self::PrivateDataTooLong { .. } => return None,
        };
        Some(Terminate { layer: 2, etype: 0, code })
    }

    /// Whether a new connection with revision 1 may succeed where one with revision 2 failed thus. RFC 6581 §10.
    ///
    /// Most peers of revision 1 close without a Reply; that counts as well, but is not seen here.
    pub fn may_fall_back(self) -> bool {
        matches!(self, Self::Revision(r) if r < Revision::V2 as u8)
    }
}

impl core::fmt::Display for StartupError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Key => f.write_str("the peer does not speak MPA: wrong key in its first frame"),
            Self::Revision(r) => {
                write!(f, "the peer speaks MPA revision {r}, which this side does not accept")
            }
            Self::PrivateDataLength(n) => {
                write!(f, "the peer declares {n} bytes of private data, more than 512")
            }
            Self::EnhancedLength(n) => {
                write!(
                    f,
                    "the peer's frame should start with IRD and ORD but has only {n} bytes of private data"
                )
            }
            Self::CrcRequired => f.write_str("CRC is required here and the peer does not use it"),
            Self::CrcRefused => f.write_str("the peer asks for CRC, which is refused here"),
            Self::MarkersRefused => f.write_str("the peer asks for markers, which are refused here"),
            Self::InsufficientIrd(n) => write!(f, "the peer would send {n} Reads at once, more than our IRD"),
            Self::NoMatchingRtr => f.write_str("peer-to-peer mode, but no RTR message that both sides know"),
            Self::PrivateDataTooLong { len, max } => {
                write!(f, "{len} bytes of private data exceed the {max} that fit")
            }
        }
    }
}

impl core::error::Error for StartupError {}
