//! What a side asks of its connections, and what it gets.

use std::net::SocketAddr;
use std::time::Duration;

use iwarp::mpa::frame;
use iwarp::mpa::startup::{Negotiated, Policy};

/// How long an FPDU may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FpduPolicy {
    /// One TCP segment, as RFC 5044 §4.5 has it; every peer takes that.
    #[default]
    Mss,
    /// As long as the length field allows, over several TCP segments; siw and rnic take that.
    Large,
    /// At most this many bytes.
    Bytes(usize),
}

impl FpduPolicy {
    /// The MULPDU for a path of this send MSS.
    pub(crate) fn mulpdu(self, mss: usize, markers: bool) -> usize {
        let fpdu = match self {
            Self::Mss => mss,
            Self::Large => frame::MAX_FPDU,
            Self::Bytes(n) => n,
        };
        frame::mulpdu(fpdu, markers)
    }
}

/// Rules for connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnPolicy {
    /// MPA start-up: revision, CRC, markers, peer-to-peer, RFC 7306.
    pub mpa: Policy,
    /// FPDU length.
    pub fpdu: FpduPolicy,
    /// Time for TCP to connect and the peer to reply.
    pub connect_timeout: Duration,
    /// Time for an accepted connection's Request to come.
    pub request_timeout: Duration,
    /// Pause of an initiator between a foreign peer's Reply and the first FPDU: Linux siw loses the
    /// wake-up for what comes in the moment after its Reply. Peers that know RFC 7306 get none.
    pub settle: Duration,
    /// Gives a connection up when requests are under way and nothing moved either way for this long,
    /// although the peer's TCP answers. `None`: a peer that is alive but silent is waited for.
    pub stall_timeout: Option<Duration>,
}

impl Default for ConnPolicy {
    fn default() -> Self {
        Self {
            mpa: Policy::default(),
            fpdu: FpduPolicy::Mss,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            settle: Duration::from_millis(5),
            stall_timeout: None,
        }
    }
}

/// One connection: private data for the peer, and the rules.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConnParams {
    /// For the peer's application: at most 512 bytes, 508 with MPA revision 2.
    pub private_data: Vec<u8>,
    /// The rules.
    pub policy: ConnPolicy,
    /// Local address to connect from.
    pub local: Option<SocketAddr>,
}

impl ConnParams {
    /// Default rules and this private data.
    pub fn with_private_data(data: impl Into<Vec<u8>>) -> Self {
        Self { private_data: data.into(), ..Self::default() }
    }

    /// Default private data (none) and these rules.
    pub fn with_policy(policy: ConnPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

/// A connection that came about.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Established {
    /// What the peer's application said: with its Reply, or with its Request.
    pub private_data: Vec<u8>,
    /// What was negotiated.
    pub negotiated: Negotiated,
    /// Own address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
}

/// Which side of MPA start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Sends the Request.
    Initiator,
    /// Answers it.
    Responder,
}
