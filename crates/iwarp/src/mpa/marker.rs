//! Markers: four bytes at every 512th byte of the stream, which point back to their FPDU's start.
//! RFC 5044 §4.3.
//!
//! ```text
//!  0..2  reserved, zero   2..4  FPDUPTR: bytes of the stream from the ULPDU length field to the marker
//! ```
//!
//! Position zero of the stream is the first byte after the start-up frame of this direction, so a
//! marker precedes the first FPDU. FPDUPTR counts from the ULPDU length field; a marker that falls
//! between two FPDUs belongs to the second, comes before that field and has FPDUPTR zero. Every
//! marker is summed with the FPDU that it belongs to. FPDUs and markers are multiples of four
//! bytes, so a marker never splits a length or a CRC field.

use super::crc;
use super::frame::{CRC_LEN, Crc, fpdu_len};

/// Bytes of a marker.
pub const LEN: usize = 4;
/// Bytes of the stream from one marker's start to the next one's.
pub const INTERVAL: usize = 512;
/// Bytes of FPDU between two markers.
pub const SPAN: usize = INTERVAL - LEN;
/// Most stream bytes that an FPDU may take with its markers: FPDUPTR has 16 bits and must reach back
/// from the last of them, wherever they fall.
pub const MAX_FRAMED: usize = 0x1_0000;

/// Bytes from stream position `pos` (modulo 512) to the next marker's start.
#[inline]
pub(crate) const fn until_next(pos: usize) -> usize {
    pos.wrapping_neg() & (INTERVAL - 1)
}

/// Stream bytes of an FPDU of `fpdu_len` bytes that starts (with its marker, if one falls there) at `pos`.
#[inline]
pub(crate) const fn framed_len(pos: usize, fpdu_len: usize) -> usize {
    fpdu_len.saturating_add(LEN * fpdu_len.saturating_sub(until_next(pos)).div_ceil(SPAN))
}

/// Inserts markers into the FPDUs of one direction of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MarkerTx {
    /// Stream position of the next FPDU, modulo [`INTERVAL`].
    pos: usize,
}

impl MarkerTx {
    /// At the start of full operation: the first FPDU comes next.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stream bytes that the next FPDU takes with its markers, for a ULPDU of this length.
    #[inline]
    pub fn framed_len(&self, ulpdu_len: usize) -> usize {
        framed_len(self.pos, fpdu_len(ulpdu_len))
    }

    /// Copies a sealed FPDU (of [`seal`](super::frame::seal)) to `out` with markers in it, and sums it
    /// again, since the CRC covers the markers. RFC 5044 §4.4.
    ///
    /// Returns the bytes written, or zero (and writes nothing, and stays where it is) where `out` is
    /// shorter than [`Self::framed_len`] says, `fpdu` is not one FPDU, or the result would exceed
    /// [`MAX_FRAMED`].
    pub fn seal(&mut self, fpdu: &[u8], out: &mut [u8], crc: Option<Crc<'_>>) -> usize {
        let total = framed_len(self.pos, fpdu.len());
        if !fpdu.len().is_multiple_of(4) || fpdu.len() < fpdu_len(0) || total > MAX_FRAMED {
            return 0;
        }
        let Some(out) = out.get_mut(..total) else { return 0 };
        // rule 5044-4.3-2, 5044-4.3-3, 5044-4.3-4
        let mut gap = until_next(self.pos);
        // Where the length field comes to lie; FPDUPTR counts from there. RFC 5044 §4.3.
        // rule 5044-4.2-1, 5044-4.2-2, 5044-4.2-3
        let start = if gap == 0 { LEN } else { 0 };
        let (mut rest, mut at) = (fpdu, 0);
        loop {
            let (chunk, tail) = rest.split_at_checked(gap).unwrap_or((rest, &[]));
            at = put(out, at, chunk);
            if tail.is_empty() {
                break;
            }
            // RFC 5044 §4.2: reserved bits are zero. MAX_FRAMED keeps the distance within 16 bits.
            let [hi, lo] = (at.saturating_sub(start) as u16).to_be_bytes();
            at = put(out, at, &[0, 0, hi, lo]);
            (rest, gap) = (tail, SPAN);
        }
        if let Some((body, sum)) = out.split_last_chunk_mut::<CRC_LEN>() {
            // RFC 5044 §4.4: the sum covers the markers, a leading one included.
            // rule 5044-4.4-2
            *sum = crc.map_or([0; CRC_LEN], |f| crc::to_wire(f(crc::INIT, body)));
        }
        self.pos = (self.pos + total) % INTERVAL;
        total
    }
}

/// Copies `bytes` to `out[at..]` and returns where they end.
#[inline(always)]
fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let end = at + bytes.len();
    if let Some(to) = out.get_mut(at..end) {
        to.copy_from_slice(bytes);
    }
    end
}
