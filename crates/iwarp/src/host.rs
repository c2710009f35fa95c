//! The one way out of the core: what an embedding (user space, simulator, fuzzer, kernel) provides.

use crate::error::{Fault, TaggedFault};
use crate::types::{AtomicRequest, InboundRead, Opcode, Stag};
use crate::wire::terminate::TerminateMessage;

/// A receive taken from the receive queue or the shared one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveSlot {
    /// The host's name for it, handed back with each placement.
    pub cookie: u64,
    /// Bytes that it can take.
    pub len: u64,
}

/// Where the payload of a Read or Atomic Response goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponsePlace {
    /// The requester's name for the outstanding request.
    pub cookie: u64,
    /// Offset of this segment's payload within it, in bytes.
    pub offset: u32,
    /// The payload is to be thrown away (a peer answered a zero-length Read with bytes).
    pub discard: bool,
}

/// What the receive side reports, in stream order, after placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A whole RDMA Write arrived (no verbs completion; counters and RTR).
    WriteDone {
        /// Bytes of its last segment.
        len: u32,
    },
    /// A Send or Immediate Data message arrived in a receive.
    ReceiveDone {
        /// The receive that it went to.
        cookie: u64,
        /// Bytes placed.
        len: u32,
        /// Which kind.
        opcode: Opcode,
        /// STag that the peer's Send invalidated.
        invalidated: Option<Stag>,
        /// The value of an Immediate Data message.
        immediate: Option<u64>,
    },
    /// The oldest outstanding Read or Atomic is answered in full.
    ResponseDone {
        /// The requester's name for it.
        cookie: u64,
        /// Bytes placed.
        len: u32,
    },
    /// The peer terminated the stream; `None` where its message was too short to say why.
    Terminated(Option<TerminateMessage>),
}

/// What the core asks of its embedding while it receives. No call may block.
///
/// Placement calls re-check what they touch: the core may hold a segment half placed while the
/// application withdraws the memory.
pub trait Host {
    /// CRC32c (Castagnoli) continued: `state` starts as `!0` and the result is complemented by the core.
    fn crc32c(&self, state: u32, bytes: &[u8]) -> u32 {
        crate::mpa::crc::update(state, bytes)
    }

    /// May a peer write `len` bytes at (`stag`, `to`)?
    fn check_write(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedFault>;
    /// Check and copy part of a Write.
    fn place_write(&mut self, stag: Stag, to: u64, bytes: &[u8]) -> Result<(), TaggedFault>;

    /// The next receive, in posting order. `Ok(None)`: none now, stop until one is posted
    /// (the receiver reports [`crate::rx::Progress::NeedReceive`]).
    fn take_receive(&mut self) -> Result<Option<ReceiveSlot>, Fault>;
    /// Copy part of a message into a taken receive; `offset + bytes.len()` is within its length.
    fn place_receive(&mut self, cookie: u64, offset: u32, bytes: &[u8]) -> Result<(), Fault>;

    /// A Read Response segment of `len` bytes claims this place: which request is it for?
    /// (Embeddings answer with [`crate::rdmap::OutstandingReads::on_response`].)
    fn response_place(&mut self, stag: Stag, to: u64, len: u32, last: bool) -> Result<ResponsePlace, Fault>;
    /// Copy part of a Read Response, or the original value of an Atomic Response (8 bytes, native order).
    fn place_response(&mut self, place: ResponsePlace, bytes: &[u8]) -> Result<(), Fault>;
    /// An Atomic Response with this identifier: which request is it for?
    fn atomic_response(&mut self, id: u32) -> Result<ResponsePlace, Fault>;

    /// May a peer read `len` bytes at (`stag`, `to`)?
    fn check_read(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedFault>;
    /// Carry an atomic out; alignment is already checked. Returns the original value.
    fn atomic(&mut self, request: &AtomicRequest) -> Result<u64, TaggedFault>;
    /// Whether [`Host::push_inbound`] would succeed now.
    fn inbound_has_room(&mut self) -> bool;
    /// Queue a peer's request for the transmit side. [`Fault::IrdExceeded`] where it is full.
    fn push_inbound(&mut self, read: InboundRead) -> Result<(), Fault>;

    /// The peer's Send invalidates one of our STags.
    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault>;

    /// Something happened.
    fn event(&mut self, event: Event);
}
