//! A segment whose payload is on its way to memory.

use crate::error::Fault;
use crate::host::{Host, ResponsePlace};
use crate::types::{Opcode, Stag};

/// Where a segment's payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dest {
    /// A peer's Write to our memory.
    Write {
        /// Our STag.
        stag: Stag,
        /// Tagged offset of the segment's first byte.
        to: u64,
    },
    /// A taken receive.
    Receive {
        /// The host's name for it.
        cookie: u64,
        /// Offset of the segment's first byte.
        offset: u32,
    },
    /// An outstanding Read of ours.
    Response(ResponsePlace),
    /// Nowhere.
    Discard,
}

/// Payload that may be received straight into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Direct {
    /// Target of the segment.
    pub dest: Dest,
    /// Bytes of the segment that are in already; the next byte goes this far behind the target's start.
    pub done: u32,
    /// Payload bytes still to come.
    pub remaining: u32,
}

/// A segment being placed: payload, then pad and CRC to skip.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placing {
    dest: Dest,
    opcode: Opcode,
    response: Option<ResponsePlace>,
    pub(super) last: bool,
    len: usize,
    done: usize,
    trailer: usize,
    piecemeal: bool,
}

impl Placing {
    pub(super) fn new(dest: Dest, len: usize, last: bool, opcode: Opcode) -> Self {
        Self { dest, opcode, response: None, last, len, done: 0, trailer: 0, piecemeal: false }
    }

    pub(super) fn for_response(self, place: ResponsePlace) -> Self {
        Self { response: Some(place), ..self }
    }

    pub(super) fn with_trailer(self, trailer: usize) -> Self {
        Self { trailer, piecemeal: true, ..self }
    }

    pub(super) fn opcode(&self) -> Opcode {
        self.opcode
    }

    pub(super) fn response(&self) -> Option<ResponsePlace> {
        self.response
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn piecemeal(&self) -> bool {
        self.piecemeal
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.len && self.trailer == 0
    }

    pub(super) fn advance(&mut self, n: usize) {
        self.done = (self.done + n).min(self.len);
    }

    pub(super) fn direct(&self) -> Option<Direct> {
        let remaining = (self.len - self.done) as u32;
        (remaining > 0 && self.dest != Dest::Discard).then_some(Direct {
            dest: self.dest,
            done: self.done as u32,
            remaining,
        })
    }

    /// Takes payload and trailer bytes from the stream; returns how many.
    pub(super) fn feed<H: Host>(&mut self, host: &mut H, bytes: &[u8]) -> Result<usize, Fault> {
        let n = (self.len - self.done).min(bytes.len());
        self.place(host, self.done as u32, bytes.get(..n).unwrap_or_default())?;
        self.done += n;
        let skip = if self.done == self.len { self.trailer.min(bytes.len() - n) } else { 0 };
        self.trailer -= skip;
        Ok(n + skip)
    }

    /// Copies payload bytes to `at` bytes behind the segment's target.
    pub(super) fn place<H: Host>(&self, host: &mut H, at: u32, bytes: &[u8]) -> Result<(), Fault> {
        // rule 5040-5.1-2, 6581-9.2-6
        if bytes.is_empty() {
            return Ok(());
        }
        match self.dest {
            // rule 5041-4.2-2
            Dest::Write { stag, to } => host
                .place_write(stag, to.wrapping_add(u64::from(at)), bytes)
                .map_err(|f| Fault::Write(stag, f)),
            Dest::Receive { cookie, offset } => host.place_receive(cookie, offset + at, bytes),
            Dest::Response(p) => host.place_response(ResponsePlace { offset: p.offset + at, ..p }, bytes),
            Dest::Discard => Ok(()),
        }
    }
}
