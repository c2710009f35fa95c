//! The Terminate message. RFC 5040 §4.8.

use super::ddp::UNTAGGED_LEN;
use super::rdmap::READ_REQUEST_LEN;
use super::rdmap::ReadRequest;
use crate::error::Terminate;

/// Bytes of the control field.
pub const CONTROL_LEN: usize = 4;
/// Bytes of the longest Terminate message: control, segment length, untagged header, Read Request.
pub const MAX_LEN: usize = CONTROL_LEN + 2 + UNTAGGED_LEN + READ_REQUEST_LEN;

/// A Terminate message, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TerminateMessage {
    /// Layer, type, code.
    pub terminate: Terminate,
    /// Decoded from the nibble-swapped form that Linux's siw sends on little-endian machines.
    pub swapped: bool,
    /// Bytes of the segment (ULPDU) that was at fault.
    pub segment_len: Option<u16>,
    /// Its DDP header, raw; `header_len` bytes of it.
    pub header: [u8; UNTAGGED_LEN],
    /// Bytes of `header` that are there: 0, 14 or 18.
    pub header_len: u8,
    /// Its Read Request header, where it was one.
    pub read_header: Option<ReadRequest>,
}

impl TerminateMessage {
    /// Decodes the payload of a Terminate message; `None` where it cannot hold a control field.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let &[first, code, _, _] = payload.first_chunk::<CONTROL_LEN>()?;
        Some(Self {
            terminate: Terminate { layer: first >> 4, etype: first & 15, code },
            swapped: false,
            segment_len: None,
            header: [0; UNTAGGED_LEN],
            header_len: 0,
            read_header: None,
        })
    }
}

/// Encodes a Terminate message and returns its length.
///
/// `offending` is the start of the faulty segment's ULPDU (DDP header, and Read Request header if it
/// is one), `ulpdu_len` the whole ULPDU's length.
pub fn encode(t: Terminate, offending: Option<&[u8]>, ulpdu_len: usize, out: &mut [u8; MAX_LEN]) -> usize {
    let _ = (offending, ulpdu_len);
    if let Some(control) = out.first_chunk_mut::<CONTROL_LEN>() {
        *control = [t.layer << 4 | t.etype & 15, t.code, 0, 0];
    }
    CONTROL_LEN
}
