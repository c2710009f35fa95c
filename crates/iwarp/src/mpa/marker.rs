//! Markers: four bytes at every 512th byte of the stream, which point back to their FPDU's start.
//! RFC 5044 §4.3.
//!
//! ```text
//!  0..2  reserved, zero   2..4  FPDUPTR: bytes of the stream from the FPDU's start to the marker
//! ```
//!
//! Position zero of the stream is the first byte after the start-up frame of this direction, so a
//! marker precedes the first FPDU. A marker that falls between two FPDUs belongs to the second and
//! has FPDUPTR zero. FPDUs and markers are multiples of four bytes, so a marker never splits a
//! length or a CRC field.

use super::crc;
use super::frame::CRC_LEN;

/// Bytes of a marker.
pub const LEN: usize = 4;
/// Bytes of the stream from one marker's start to the next one's.
pub const INTERVAL: usize = 512;
/// Bytes of FPDU between two markers.
pub const SPAN: usize = INTERVAL - LEN;

/// Bytes from stream position `pos` (modulo 512) to the next marker's start.
#[inline]
pub(crate) const fn until_next(pos: usize) -> usize {
    pos.wrapping_neg() & (INTERVAL - 1)
}

/// Stream bytes of an FPDU of `fpdu_len` bytes that starts (with its marker, if one falls there) at `pos`.
#[inline]
pub(crate) const fn framed_len(pos: usize, fpdu_len: usize) -> usize {
    fpdu_len + LEN * fpdu_len.saturating_sub(until_next(pos)).div_ceil(SPAN)
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
        framed_len(self.pos, super::frame::fpdu_len(ulpdu_len))
    }

    /// Copies a sealed FPDU (of [`seal`](super::frame::seal)) to `out` with markers in it, and sums it
    /// again, since the CRC covers the markers. RFC 5044 §4.4.
    ///
    /// Returns the bytes written, or zero (and writes nothing, and stays where it is) where `out` is
    /// shorter than [`Self::framed_len`] says or `fpdu` is not one FPDU.
    pub fn seal(&mut self, fpdu: &[u8], out: &mut [u8], crc: Option<super::frame::Crc<'_>>) -> usize {
        if !fpdu.len().is_multiple_of(4) || fpdu.len() < super::frame::fpdu_len(0) {
            return 0;
        }
        let total = framed_len(self.pos, fpdu.len());
        let Some(out) = out.get_mut(..total) else { return 0 };
        let (mut rest, mut at) = (fpdu, 0);
        let mut gap = until_next(self.pos);
        while !rest.is_empty() {
            let (chunk, tail) = rest.split_at(gap.min(rest.len()));
            rest = tail;
            if let Some(to) = out.get_mut(at..at + chunk.len()) {
                to.copy_from_slice(chunk);
            }
            at += chunk.len();
            if rest.is_empty() {
                break;
            }
            // An FPDUPTR of 16 bits reaches every marker of an FPDU of at most 64 KiB. RFC 5044 §4.3.
            let [hi, lo] = (at as u16).to_be_bytes();
            if let Some(mark) = out.get_mut(at..at + LEN) {
                mark.copy_from_slice(&[0, 0, hi, lo]);
            }
            at += LEN;
            gap = SPAN;
        }
        if let Some((body, sum)) = out.split_last_chunk_mut::<CRC_LEN>() {
            *sum = crc.map_or([0; CRC_LEN], |f| crc::to_wire(f(crc::INIT, body)));
        }
        self.pos = (self.pos + total) % INTERVAL;
        total
    }
}
