//! What can be sent, and how each message is laid out.

use crate::types::{AtomicRequest, Opcode, Queue, Stag};
use crate::wire::rdmap::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicResponse, READ_REQUEST_LEN, ReadRequest, write_atomic,
};
use crate::wire::terminate;

/// Longest RDMAP header behind the DDP header, in bytes.
pub(super) const MAX_EXTRA: usize =
    if terminate::MAX_LEN > ATOMIC_REQUEST_LEN { terminate::MAX_LEN } else { ATOMIC_REQUEST_LEN };

/// A message to send. Lengths are payload bytes; the payload itself stays with the caller.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "short-lived, passed by reference")]
pub enum Message {
    /// RFC 5040 §5.3 (Send and its variants).
    Send {
        /// Payload length.
        len: u32,
        /// Invalidate this STag of the peer's.
        invalidate: Option<Stag>,
        /// Ask for a solicited event.
        solicited: bool,
    },
    /// RDMA Write.
    Write {
        /// The peer's STag.
        stag: Stag,
        /// The peer's tagged offset.
        to: u64,
        /// Payload length.
        len: u32,
    },
    /// RDMA Read Request.
    ReadRequest(ReadRequest),
    /// RDMA Read Response.
    ReadResponse {
        /// The peer's sink STag.
        stag: Stag,
        /// The peer's sink offset.
        to: u64,
        /// Payload length.
        len: u32,
    },
    /// Immediate Data. RFC 7306 §6.
    Immediate {
        /// Eight bytes, sent big endian.
        value: u64,
        /// Ask for a solicited event.
        solicited: bool,
    },
    /// Atomic Request. RFC 7306 §5.2.1.
    Atomic(AtomicRequest),
    /// Atomic Response. RFC 7306 §5.2.2.
    AtomicResponse(AtomicResponse),
    /// Terminate, already encoded by [`terminate::encode`].
    Terminate {
        /// Encoded body.
        body: [u8; terminate::MAX_LEN],
        /// Its length.
        len: usize,
    },
}

/// A message's layout: DDP fields, fixed header bytes, payload length.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) opcode: Opcode,
    pub(super) queue: Option<Queue>,
    pub(super) stag: Stag,
    pub(super) to: u64,
    pub(super) len: u32,
    pub(super) extra_len: u8,
    extra: [u8; MAX_EXTRA],
}

impl Plan {
    fn new(opcode: Opcode, stag: Stag, to: u64, len: u32) -> Self {
        Self { opcode, queue: opcode.queue(), stag, to, len, extra_len: 0, extra: [0; MAX_EXTRA] }
    }

    fn with(opcode: Opcode, bytes: &[u8]) -> Self {
        let mut plan = Self::new(opcode, Stag(0), 0, 0);
        let n = bytes.len().min(MAX_EXTRA);
        plan.extra[..n].copy_from_slice(&bytes[..n]);
        plan.extra_len = n as u8;
        plan
    }

    pub(super) fn extra(&self) -> &[u8] {
        &self.extra[..usize::from(self.extra_len)]
    }
}

impl Message {
    pub(super) fn plan(&self) -> Plan {
        match *self {
            Self::Send { len, invalidate, solicited } => {
                // rule 5040-4.6-1, 5040-4.7-1, 5040-4.1-4
                let opcode = match (invalidate, solicited) {
                    (None, false) => Opcode::Send,
                    (None, true) => Opcode::SendSe,
                    (Some(_), false) => Opcode::SendInvalidate,
                    (Some(_), true) => Opcode::SendSeInvalidate,
                };
                Plan::new(opcode, invalidate.unwrap_or_default(), 0, len)
            }
            // rule 5040-4.3-1
            Self::Write { stag, to, len } => Plan::new(Opcode::Write, stag, to, len),
            // rule 5040-4.5-1
            Self::ReadResponse { stag, to, len } => Plan::new(Opcode::ReadResponse, stag, to, len),
            // rule 5040-4.4-2
            Self::ReadRequest(r) => {
                let mut b = [0; READ_REQUEST_LEN];
                r.write(&mut b);
                Plan::with(Opcode::ReadRequest, &b)
            }
            Self::Immediate { value, solicited } => {
                // rule 7306-6.2-1, 7306-6.3-1
                let opcode = if solicited { Opcode::ImmediateSe } else { Opcode::Immediate };
                Plan::with(opcode, &value.to_be_bytes())
            }
            // rule 7306-5.2.1-1
            Self::Atomic(r) => {
                let mut b = [0; ATOMIC_REQUEST_LEN];
                write_atomic(&r, &mut b);
                Plan::with(Opcode::AtomicRequest, &b)
            }
            // rule 7306-5.2.2-1
            Self::AtomicResponse(r) => {
                let mut b = [0; ATOMIC_RESPONSE_LEN];
                r.write(&mut b);
                Plan::with(Opcode::AtomicResponse, &b)
            }
            // rule 5040-5.4-1
            Self::Terminate { ref body, len } => Plan::with(Opcode::Terminate, &body[..len.min(body.len())]),
        }
    }
}
