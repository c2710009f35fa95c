//! One DDP segment, described: header bytes to copy, payload to take from the caller's memory, trailer.

use super::message::MAX_EXTRA;
use crate::wire::ddp::UNTAGGED_LEN;

/// Longest header of an FPDU: ULPDU length, DDP and RDMAP headers.
pub const MAX_HEADER: usize = 2 + UNTAGGED_LEN + MAX_EXTRA;

/// A segment of the message under way. On the wire: `header`, payload, pad to four bytes, CRC.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    bytes: [u8; MAX_HEADER],
    header_len: u8,
    /// Where its payload starts within the message, in bytes.
    pub payload_offset: u32,
    /// Payload bytes of this segment.
    pub payload_len: u32,
    /// Whether the message ends with it.
    pub last: bool,
}

impl Segment {
    pub(super) fn new(payload_len: u32, payload_offset: u32, last: bool) -> Self {
        Self { bytes: [0; MAX_HEADER], header_len: 2, payload_offset, payload_len, last }
    }

    pub(super) fn put<const N: usize>(&mut self, write: impl FnOnce(&mut [u8; N])) {
        let at = usize::from(self.header_len);
        if let Some(chunk) = self.bytes.get_mut(at..).and_then(|b| b.first_chunk_mut::<N>()) {
            write(chunk);
            self.header_len += N as u8;
        }
    }

    pub(super) fn put_slice(&mut self, bytes: &[u8]) {
        let at = usize::from(self.header_len);
        if let Some(room) = self.bytes.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
            self.header_len += bytes.len() as u8;
        }
    }

    /// Fills in the ULPDU length.
    pub(super) fn finish(&mut self) {
        let n = self.ulpdu_len() as u16;
        self.bytes[..2].copy_from_slice(&n.to_be_bytes());
    }

    /// ULPDU length field, DDP header and RDMAP header.
    pub fn header(&self) -> &[u8] {
        &self.bytes[..usize::from(self.header_len)]
    }

    /// Bytes of the ULPDU: headers without the length field, and payload.
    pub fn ulpdu_len(&self) -> usize {
        usize::from(self.header_len) - 2 + self.payload_len as usize
    }

    /// Zero bytes between payload and CRC. RFC 5044 §4.1.
    pub fn pad_len(&self) -> usize {
        (4 - (2 + self.ulpdu_len()) % 4) % 4
    }

    /// Bytes of the FPDU without markers.
    pub fn fpdu_len(&self) -> usize {
        2 + self.ulpdu_len() + self.pad_len() + 4
    }
}
