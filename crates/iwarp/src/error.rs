//! What can go wrong on a stream, by blame, and the Terminate that each fault asks for.

use crate::types::{Opcode, Stag};

/// Who is to blame for a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// Bytes that are no FPDU, segment or message at all.
    Malformed,
    /// Well-formed bytes that break a rule or touch what they may not.
    Peer,
    /// The embedding asked for what the protocol forbids.
    Caller,
    /// Our own memory or resources failed.
    Local,
}

/// Why access to registered memory through an STag was refused. RFC 5041 §7.1, RFC 5040 §7.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TaggedFault {
    /// No live registration has this STag (index or key).
    InvalidStag,
    /// Outside the region or window.
    Bounds,
    /// The region or the queue pair does not grant this access.
    Access,
    /// The STag belongs to another protection domain or another stream.
    NotAssociated,
    /// Offset plus length exceeds 2^64.
    Wrap,
    /// The memory behind a valid registration could not be reached (it was unmapped).
    Unreachable,
}

/// A fault that ends the stream. Every variant maps to one [`Terminate`] by [`Fault::terminate`].
///
/// Exhaustive, so that a table over all faults (there are some in the tests) stays one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fault {
    // --- MPA, RFC 5044 §8 ---
    /// The CRC32c of an FPDU is wrong.
    Crc,
    /// A marker does not point at the FPDU's start. RFC 5044 §4.3.
    Marker,
    /// An FPDU whose length cannot hold a DDP header, or exceeds what an FPDU can carry.
    FpduLength(u32),
    // --- DDP, RFC 5041 §7.2 ---
    /// DDP version other than 1 in a tagged segment.
    TaggedVersion(u8),
    /// DDP version other than 1 in an untagged segment.
    UntaggedVersion(u8),
    /// A tagged Write segment was refused.
    Write(Stag, TaggedFault),
    /// An untagged segment for a queue that does not exist.
    QueueNumber(u32),
    /// A message for which no receive was posted in time.
    NoReceive,
    /// A message sequence number other than the next one of its queue.
    MsnRange,
    /// A message offset other than the bytes received so far.
    MessageOffset,
    /// A message longer than its receive buffer.
    MessageTooLong,
    // --- RDMAP, RFC 5040 §7.2 ---
    /// RDMAP version other than 1.
    RdmapVersion(u8),
    /// An opcode that is unknown, not negotiated, or of the wrong buffer model or queue.
    UnexpectedOpcode(u8),
    /// A Read Request whose source was refused.
    ReadSource(Stag, TaggedFault),
    /// An Atomic Request whose target was refused.
    Atomic(Stag, TaggedFault),
    /// An Atomic Request whose target is not a multiple of eight.
    AtomicAlignment,
    /// An Atomic Request with an unknown operation.
    AtomicOpcode(u32),
    /// A Send with Invalidate names an STag that may not be invalidated.
    Invalidate(Stag),
    /// More Read or Atomic Requests at once than our IRD.
    IrdExceeded,
    /// A Read or Atomic Response that nobody waits for.
    UnexpectedResponse,
    /// A Read Response with another sink STag, offset or length than its request.
    ResponseMismatch,
    /// A control message (Read Request, Atomic, Immediate, Terminate) of a wrong length or cut into segments.
    MessageLength(Opcode),
    // --- local ---
    /// Our own memory failed while placing or reading (unmapped, or the local key was withdrawn).
    LocalMemory,
    /// A resource of ours ran out.
    LocalResource,
}

/// The content of a Terminate's control field. RFC 5040 §4.8, RFC 6581 §8, RFC 7306 §8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 LLP (MPA).
    pub layer: u8,
    /// Error type within the layer.
    pub etype: u8,
    /// Error code within the type.
    pub code: u8,
}

impl Terminate {
    const fn new(layer: u8, etype: u8, code: u8) -> Self {
        Self { layer, etype, code }
    }

    /// As it is named in the RFCs.
    pub fn name(self) -> &'static str {
        match (self.layer, self.etype, self.code) {
            (0, 0, _) => "RDMAP: local catastrophic error",
            (0, 1, 0) => "RDMAP remote protection error: invalid STag",
            (0, 1, 1) => "RDMAP remote protection error: base or bounds violation",
            (0, 1, 2) => "RDMAP remote protection error: access rights violation",
            (0, 1, 3) => "RDMAP remote protection error: STag not associated with the stream",
            (0, 1, 4) => "RDMAP remote protection error: TO wrap",
            (0, 1, 9) => "RDMAP remote protection error: STag cannot be invalidated",
            (0, 1, 0xff) => "RDMAP remote protection error: unspecified",
            (0, 2, 5) => "RDMAP remote operation error: invalid RDMAP version",
            (0, 2, 6) => "RDMAP remote operation error: unexpected opcode",
            (0, 2, 7) => "RDMAP remote operation error: catastrophic, this stream",
            (0, 2, 8) => "RDMAP remote operation error: catastrophic, global",
            (0, 2, 9) => "RDMAP remote operation error: STag cannot be invalidated",
            (0, 2, 0xff) => "RDMAP remote operation error: unspecified",
            (1, 0, _) => "DDP: local catastrophic error",
            (1, 1, 0) => "DDP tagged buffer error: invalid STag",
            (1, 1, 1) => "DDP tagged buffer error: base or bounds violation",
            (1, 1, 2) => "DDP tagged buffer error: STag not associated with the stream",
            (1, 1, 3) => "DDP tagged buffer error: TO wrap",
            (1, 1, 4) => "DDP tagged buffer error: invalid DDP version",
            (1, 2, 1) => "DDP untagged buffer error: invalid queue number",
            (1, 2, 2) => "DDP untagged buffer error: no buffer available",
            (1, 2, 3) => "DDP untagged buffer error: MSN out of range",
            (1, 2, 4) => "DDP untagged buffer error: invalid message offset",
            (1, 2, 5) => "DDP untagged buffer error: message too long for the buffer",
            (1, 2, 6) => "DDP untagged buffer error: invalid DDP version",
            (2, 0, 1) => "MPA: TCP connection closed, terminated or lost",
            (2, 0, 2) => "MPA: CRC error",
            (2, 0, 3) => "MPA: marker and ULPDU length mismatch",
            (2, 0, 4) => "MPA: invalid Request or Reply frame",
            (2, 0, 5) => "MPA: local catastrophic error",
            (2, 0, 6) => "MPA: insufficient IRD resources",
            (2, 0, 7) => "MPA: no matching RTR option",
            _ => "unknown error",
        }
    }
}

impl TaggedFault {
    // rule 5041-7.2-1
    fn ddp(self) -> Terminate {
        match self {
            Self::InvalidStag => Terminate::new(1, 1, 0),
            Self::Bounds => Terminate::new(1, 1, 1),
            // RFC 5041 §7.2 has no code for rights: they are RDMAP's to check. RFC 5040 §7.1.
            Self::Access => Terminate::new(0, 1, 2),
            Self::NotAssociated => Terminate::new(1, 1, 2),
            Self::Wrap => Terminate::new(1, 1, 3),
            Self::Unreachable => Terminate::new(1, 0, 0),
        }
    }

    // rule 5040-7.2-1, 7306-8.2-1
    fn rdmap(self) -> Terminate {
        match self {
            Self::InvalidStag => Terminate::new(0, 1, 0),
            Self::Bounds => Terminate::new(0, 1, 1),
            Self::Access => Terminate::new(0, 1, 2),
            Self::NotAssociated => Terminate::new(0, 1, 3),
            Self::Wrap => Terminate::new(0, 1, 4),
            Self::Unreachable => Terminate::new(0, 0, 0),
        }
    }
}

impl Fault {
    /// The Terminate to send for this fault. Total: a new fault does not compile without one.
    // rule 5040-4.8-4, 5041-7.2-1, 5040-7.2-2, 5040-7.2-3
    pub fn terminate(self) -> Terminate {
        match self {
            Self::Crc => Terminate::new(2, 0, 2),
            Self::Marker | Self::FpduLength(_) => Terminate::new(2, 0, 3),
            Self::TaggedVersion(_) => Terminate::new(1, 1, 4),
            Self::UntaggedVersion(_) => Terminate::new(1, 2, 6),
            Self::Write(_, t) => t.ddp(),
            Self::QueueNumber(_) => Terminate::new(1, 2, 1),
            Self::NoReceive => Terminate::new(1, 2, 2),
            Self::MsnRange => Terminate::new(1, 2, 3),
            Self::MessageOffset => Terminate::new(1, 2, 4),
            Self::MessageTooLong => Terminate::new(1, 2, 5),
            Self::RdmapVersion(_) => Terminate::new(0, 2, 5),
            Self::UnexpectedOpcode(_) | Self::AtomicOpcode(_) => Terminate::new(0, 2, 6),
            Self::ReadSource(_, t) | Self::Atomic(_, t) => t.rdmap(),
            Self::Invalidate(_) => Terminate::new(0, 1, 9),
            Self::AtomicAlignment | Self::IrdExceeded | Self::ResponseMismatch | Self::MessageLength(_) => {
                Terminate::new(0, 2, 7)
            }
            Self::UnexpectedResponse => Terminate::new(0, 2, 6),
            Self::LocalMemory | Self::LocalResource => Terminate::new(0, 0, 0),
        }
    }

    /// Who is to blame.
    pub fn blame(self) -> Blame {
        match self {
            Self::Crc | Self::Marker | Self::FpduLength(_) => Blame::Malformed,
            Self::LocalMemory | Self::LocalResource => Blame::Local,
            Self::Write(_, TaggedFault::Unreachable)
            | Self::ReadSource(_, TaggedFault::Unreachable)
            | Self::Atomic(_, TaggedFault::Unreachable) => Blame::Local,
            _ => Blame::Peer,
        }
    }
}

impl core::fmt::Display for TaggedFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::InvalidStag => "invalid STag",
            Self::Bounds => "outside the registered bounds",
            Self::Access => "access right not granted",
            Self::NotAssociated => "STag of another protection domain or stream",
            Self::Wrap => "tagged offset wraps",
            Self::Unreachable => "registered memory is not mapped",
        })
    }
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Crc => f.write_str("CRC32c of an FPDU is wrong"),
            Self::Marker => f.write_str("MPA marker does not point at its FPDU"),
            Self::FpduLength(n) => write!(f, "FPDU length {n} is impossible"),
            Self::TaggedVersion(v) | Self::UntaggedVersion(v) => write!(f, "DDP version {v}, expected 1"),
            Self::Write(s, t) => write!(f, "RDMA Write to STag {s}: {t}"),
            Self::QueueNumber(q) => write!(f, "no untagged queue {q}"),
            Self::NoReceive => f.write_str("no receive was posted for a message"),
            Self::MsnRange => f.write_str("message sequence number out of range"),
            Self::MessageOffset => f.write_str("message offset does not continue its message"),
            Self::MessageTooLong => f.write_str("message is longer than its receive buffer"),
            Self::RdmapVersion(v) => write!(f, "RDMAP version {v}, expected 1"),
            Self::UnexpectedOpcode(o) => write!(f, "RDMAP opcode {o} is not allowed here"),
            Self::ReadSource(s, t) => write!(f, "RDMA Read of STag {s}: {t}"),
            Self::Atomic(s, t) => write!(f, "atomic on STag {s}: {t}"),
            Self::AtomicAlignment => f.write_str("atomic target is not 8-byte aligned"),
            Self::AtomicOpcode(o) => write!(f, "unknown atomic operation {o}"),
            Self::Invalidate(s) => write!(f, "STag {s} cannot be invalidated"),
            Self::IrdExceeded => f.write_str("more Reads at once than the negotiated IRD"),
            Self::UnexpectedResponse => f.write_str("a response that no request waits for"),
            Self::ResponseMismatch => f.write_str("Read Response does not match its request"),
            Self::MessageLength(o) => write!(f, "{o:?} message of a wrong length"),
            Self::LocalMemory => f.write_str("local memory could not be reached"),
            Self::LocalResource => f.write_str("local resource exhausted"),
        }
    }
}

impl core::error::Error for Fault {}
impl core::error::Error for TaggedFault {}
