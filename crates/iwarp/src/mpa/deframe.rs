//! From the bytes of a stream back to ULPDUs. RFC 5044 §6.

use core::ops::Range;

use super::frame::{CRC_LEN, HEADER_LEN, fpdu_len};
use super::{crc, marker};
use crate::error::Fault;
use crate::wire::ddp::TAGGED_LEN;

/// Finds the FPDUs of one direction of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deframer {
    /// CRCs are in use.
    crc: bool,
    /// Stream position of the next FPDU, modulo 512, where we asked the peer for markers.
    markers: Option<usize>,
}

impl Deframer {
    /// At the start of full operation: the first FPDU comes next.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers: markers.then_some(0) }
    }

    /// Whether a marker lies before the next FPDU's length field.
    #[inline]
    fn leading(&self) -> usize {
        if self.markers == Some(0) { marker::LEN } else { 0 }
    }

    /// Bytes of the stream, markers included, of the FPDU that starts at `buf[0]`; `None` while too few bytes are here to tell.
    ///
    /// # Errors
    /// [`Fault::FpduLength`] where the ULPDU cannot hold a DDP header.
    #[inline]
    pub fn peek(&self, buf: &[u8]) -> Result<Option<usize>, Fault> {
        // rule 5044-5.2-1
        let at = self.leading();
        let Some(length) = crate::wire::array::<HEADER_LEN>(buf, at) else { return Ok(None) };
        let ulpdu_len = usize::from(u16::from_be_bytes(length));
        // rule 5044-6-1, 5044-6-3
        if ulpdu_len < TAGGED_LEN {
            return Err(Fault::FpduLength(ulpdu_len as u32));
        }
        let plain = fpdu_len(ulpdu_len);
        Ok(Some(self.markers.map_or(plain, |pos| marker::framed_len(pos, plain))))
    }

    /// The first `N` bytes of the FPDU at the start of `buf` (length field first), markers left out and
    /// nothing checked; `None` where fewer are here.
    #[inline]
    pub fn head<const N: usize>(&self, buf: &[u8]) -> Option<[u8; N]> {
        let Some(pos) = self.markers else { return crate::wire::array(buf, 0) };
        let mut head = [0; N];
        let (mut at, mut pos) = (0, pos);
        for byte in &mut head {
            if pos % marker::INTERVAL == 0 {
                at += marker::LEN;
                pos += marker::LEN;
            }
            *byte = *buf.get(at)?;
            at += 1;
            pos += 1;
        }
        Some(head)
    }

    /// Checks the CRC, where CRCs are in use, of the FPDU at the start of `buf`, whose stream bytes
    /// [`Self::peek`] told as `total`. RFC 5044 §4.4: markers are summed with it.
    ///
    /// # Errors
    /// [`Fault::Crc`], [`Fault::FpduLength`] where `buf` is shorter than `total`.
    #[inline]
    pub fn verify(&self, buf: &[u8], total: usize, crc: impl Fn(u32, &[u8]) -> u32) -> Result<(), Fault> {
        // rule 5044-4.4-3, 5044-4.4-5, 5044-4.4-7
        if !self.crc {
            return Ok(());
        }
        // rule 5044-3-1, 5044-9.1-1
        let short = Fault::FpduLength(total as u32);
        let (body, sum) = buf.get(..total).and_then(<[u8]>::split_last_chunk::<CRC_LEN>).ok_or(short)?;
        if crc::to_wire(crc(crc::INIT, body)) == *sum { Ok(()) } else { Err(Fault::Crc) }
    }

    /// Takes the FPDU at the start of `buf`, whose stream bytes [`Self::peek`] told as `total`: checks
    /// markers and CRC, moves what lies between markers together, and returns where in `buf` the ULPDU is.
    ///
    /// The next FPDU starts at `buf[total]`.
    ///
    /// # Errors
    /// [`Fault::Crc`], [`Fault::Marker`], [`Fault::FpduLength`] where `buf` is shorter than `total`.
    #[inline]
    pub fn take(
        &mut self,
        buf: &mut [u8],
        total: usize,
        crc: impl Fn(u32, &[u8]) -> u32,
    ) -> Result<Range<usize>, Fault> {
        let short = Fault::FpduLength(total as u32);
        self.verify(buf, total, crc)?;
        let fpdu = buf.get_mut(..total).ok_or(short)?;
        let start = self.leading();
        if let Some(pos) = self.markers {
            strip(fpdu, pos)?;
            self.markers = Some((pos + total) % marker::INTERVAL);
        }
        let length = crate::wire::array::<HEADER_LEN>(fpdu, start).ok_or(short)?;
        let ulpdu = start + HEADER_LEN;
        let end = ulpdu + usize::from(u16::from_be_bytes(length));
        // Holds for peek's `total`; another one must not make the range lie.
        if end + CRC_LEN > total { Err(short) } else { Ok(ulpdu..end) }
    }
}

/// Checks each marker and closes the gaps that they leave. A leading marker stays where it is.
fn strip(fpdu: &mut [u8], pos: usize) -> Result<(), Fault> {
    let total = fpdu.len();
    let mut at = marker::until_next(pos);
    let start = if at == 0 { marker::LEN } else { 0 };
    // Where the next piece of FPDU goes: the first one stays.
    let mut to = at.max(start);
    while at < total {
        // RFC 5044 §4.3: FPDUPTR counts from the length field, is zero in a marker before it, and its
        // low two bits are taken as zero. The reserved bits are not checked.
        let [_, _, hi, lo] = crate::wire::array::<{ marker::LEN }>(fpdu, at).ok_or(Fault::Marker)?;
        // rule 5044-4.3-5, 5044-6-2
        if usize::from(u16::from_be_bytes([hi, lo]) & !3) != at.saturating_sub(start) {
            return Err(Fault::Marker);
        }
        let from = at + marker::LEN;
        at += marker::INTERVAL;
        let len = at.min(total) - from;
        if from != to {
            fpdu.copy_within(from..from + len, to);
        }
        to += len;
    }
    Ok(())
}
