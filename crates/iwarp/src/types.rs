//! The field's own nouns: steering tags, opcodes, queue numbers, requests for one-sided work.

/// A steering tag: 24 bits of index and 8 bits of key, as RFC 5040 §1 leaves to the implementation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Stag(pub u32);

impl core::fmt::Display for Stag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// Untagged DDP queue numbers. RFC 5040 §4.2, RFC 7306 §4.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Queue {
    /// Sends and Immediate Data.
    Send = 0,
    /// Read Requests and Atomic Requests.
    Request = 1,
    /// Terminate.
    Terminate = 2,
    /// Atomic Responses.
    AtomicResponse = 3,
}

impl Queue {
    /// The queue with this number, if the protocol knows one.
    // rule 5040-3.1-1
    pub fn from_wire(qn: u32) -> Option<Self> {
        match qn {
            0 => Some(Self::Send),
            1 => Some(Self::Request),
            2 => Some(Self::Terminate),
            3 => Some(Self::AtomicResponse),
            _ => None,
        }
    }
}

/// RDMAP opcodes. RFC 5040 §4.1, RFC 7306 §4.1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// Tagged: places its payload at the peer.
    Write = 0,
    /// Untagged, queue 1: asks the peer to send from its memory.
    ReadRequest = 1,
    /// Tagged: the answer to a Read Request.
    ReadResponse = 2,
    /// Untagged, queue 0.
    Send = 3,
    /// A Send that invalidates one of the receiver's STags.
    SendInvalidate = 4,
    /// A Send with a solicited event.
    SendSe = 5,
    /// Both.
    SendSeInvalidate = 6,
    /// Untagged, queue 2: the stream ends here.
    Terminate = 7,
    /// Untagged, queue 0: eight bytes for the completion. RFC 7306 §6.
    Immediate = 8,
    /// Immediate Data with a solicited event.
    ImmediateSe = 9,
    /// Untagged, queue 1. RFC 7306 §5.
    AtomicRequest = 10,
    /// Untagged, queue 3. RFC 7306 §5.
    AtomicResponse = 11,
}

impl Opcode {
    /// The opcode of the low four bits of the RDMAP control byte.
    // rule 5040-4.1-3, 7306-4.1-1
    pub fn from_wire(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSe,
            6 => Self::SendSeInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSe,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            _ => return None,
        })
    }

    /// Whether messages of this opcode use the tagged buffer model. RFC 5040 §4.2.
    // rule 5040-4.2-1
    pub fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Whether RFC 7306 brought this opcode, so that only peers that proved they know it may see it.
    pub fn is_extension(self) -> bool {
        self as u8 >= Self::Immediate as u8
    }

    /// The untagged queue that carries it, `None` for tagged opcodes.
    // rule 5040-4.2-2, 7306-4.2-1
    pub fn queue(self) -> Option<Queue> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::ReadRequest | Self::AtomicRequest => Some(Queue::Request),
            Self::Terminate => Some(Queue::Terminate),
            Self::AtomicResponse => Some(Queue::AtomicResponse),
            _ => Some(Queue::Send),
        }
    }
}

/// Which atomic operation. RFC 7306 §5.1 (AOpCode).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum AtomicOp {
    /// Adds, field by field where the mask's set bits end a field.
    FetchAdd = 0,
    /// Replaces the masked bits.
    Swap = 1,
    /// Replaces the masked bits where the masked comparison holds.
    CmpSwap = 2,
}

/// An atomic operation on eight aligned bytes of the responder's memory. RFC 7306 §5.2.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// What to do.
    pub op: AtomicOp,
    /// Echoed by the response.
    pub id: u32,
    /// The responder's STag.
    pub stag: Stag,
    /// The responder's tagged offset; a multiple of eight.
    pub to: u64,
    /// Addend, or the value swapped in.
    pub add_swap: u64,
    /// For FetchAdd: set bits end a field (no carry beyond); for swaps: bits replaced.
    pub add_swap_mask: u64,
    /// CmpSwap: the value compared with.
    pub compare: u64,
    /// CmpSwap: the bits compared.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// The memory's new content, given its present one. RFC 7306 §5.1.
    pub fn apply(&self, old: u64) -> u64 {
        match self.op {
            // rule 7306-5.1.1-1
            AtomicOp::FetchAdd => masked_add(old, self.add_swap, self.add_swap_mask),
            // rule 7306-5.1.2-1
            AtomicOp::Swap => (old & !self.add_swap_mask) | (self.add_swap & self.add_swap_mask),
            // rule 7306-5.1.3-1
            AtomicOp::CmpSwap if (old ^ self.compare) & self.compare_mask == 0 => {
                (old & !self.add_swap_mask) | (self.add_swap & self.add_swap_mask)
            }
            AtomicOp::CmpSwap => old,
        }
    }
}

/// Addition in which a set bit of `ends` is the most significant bit of its field: no carry leaves it.
fn masked_add(a: u64, b: u64, ends: u64) -> u64 {
    // Sum everything below each field's top bit, then add the top bits without their carry.
    let low = (a & !ends).wrapping_add(b & !ends);
    low ^ ((a ^ b) & ends)
}

/// A peer's request for our memory, waiting in the inbound Read queue (IRD deep).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InboundRead {
    /// RFC 5040 §4.4.
    Read {
        /// Where the answer goes, in the peer's terms.
        sink_stag: Stag,
        /// Tagged offset of that place.
        sink_to: u64,
        /// Bytes wanted.
        len: u32,
        /// Our STag.
        src_stag: Stag,
        /// Tagged offset in our memory.
        src_to: u64,
    },
    /// An atomic that was carried out; its answer waits to be sent. RFC 7306 §5.
    Atomic {
        /// The request's identifier.
        id: u32,
        /// The value that the memory had before.
        original: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn req(op: AtomicOp, add_swap: u64, mask: u64, compare: u64, compare_mask: u64) -> AtomicRequest {
        AtomicRequest {
            op,
            id: 0,
            stag: Stag(0),
            to: 0,
            add_swap,
            add_swap_mask: mask,
            compare,
            compare_mask,
        }
    }

    // rule 7306-5.1.1-1
    #[test]
    fn fetch_add_without_mask_is_plain_wrapping_addition() {
        assert_eq!(req(AtomicOp::FetchAdd, 2, 0, 0, 0).apply(u64::MAX), 1);
        assert_eq!(req(AtomicOp::FetchAdd, 1 << 63, 0, 0, 0).apply(1 << 63), 0);
    }

    #[test]
    fn fetch_add_mask_stops_carries_at_field_ends() {
        // rule 7306-5.1.1-1
        // Two 32-bit fields: bit 31 ends the lower one.
        let r = req(AtomicOp::FetchAdd, 0x0000_0001_0000_0001, 1 << 31 | 1 << 63, 0, 0);
        assert_eq!(r.apply(0x0000_0005_ffff_ffff), 0x0000_0006_0000_0000);
        assert_eq!(r.apply(0xffff_ffff_0000_0000), 0x0000_0000_0000_0001);
    }

    #[test]
    fn swaps_touch_masked_bits_only() {
        // rule 7306-5.1.2-1, 7306-5.1.3-1
        assert_eq!(req(AtomicOp::Swap, !0, 0xff, 0, 0).apply(0x1200), 0x12ff);
        assert_eq!(req(AtomicOp::CmpSwap, 7, !0, 5, !0).apply(5), 7);
        assert_eq!(req(AtomicOp::CmpSwap, 7, !0, 5, !0).apply(6), 6);
        assert_eq!(req(AtomicOp::CmpSwap, 7, !0, 5, 0xf).apply(0x15), 7);
    }
}
