//! FPDUs without markers: length, ULPDU, padding, CRC. RFC 5044 §4.1.
//!
//! ```text
//!  0..2  ULPDU length   2..  ULPDU   ..  0-3 zero bytes, to a multiple of four   ..  CRC32c (4)
//! ```

use super::crc;
use super::marker;

/// Bytes of the length field that starts an FPDU.
pub const HEADER_LEN: usize = 2;
/// Bytes of the CRC field that ends it; present, as zero, where CRCs are off. RFC 5044 §4.4.
pub const CRC_LEN: usize = 4;
/// Largest ULPDU that the length field can name.
pub const MAX_ULPDU: usize = 0xffff;
/// Bytes of the largest FPDU, without markers.
pub const MAX_FPDU: usize = fpdu_len(MAX_ULPDU);

/// A CRC32c function: continues a state over bytes. [`crc::update`] is one.
pub type Crc<'a> = &'a dyn Fn(u32, &[u8]) -> u32;

/// Padding behind a ULPDU, in bytes: the length field, the ULPDU and it are a multiple of four.
#[inline]
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (HEADER_LEN + ulpdu_len).wrapping_neg() & 3
}

/// Bytes of the FPDU that carries `ulpdu_len` bytes, without markers.
#[inline]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    HEADER_LEN + ulpdu_len + pad_len(ulpdu_len) + CRC_LEN
}

/// MULPDU: the largest ULPDU whose FPDU surely fits a TCP segment of `mss` bytes, wherever markers
/// fall. RFC 5044 §5.1.
///
/// The FPDU is then a multiple of four bytes; no more than [`MAX_ULPDU`] and no less than zero.
pub const fn mulpdu(mss: usize, markers: bool) -> usize {
    let marks = if markers { marker::LEN * mss.div_ceil(marker::INTERVAL) } else { 0 };
    let rest = mss.saturating_sub(HEADER_LEN + CRC_LEN + marks + mss % 4);
    if rest > MAX_ULPDU { MAX_ULPDU - 1 } else { rest }
}

/// Makes an FPDU of a ULPDU that lies at `buf[2..]`: writes length, padding and CRC around it.
///
/// With `crc` `None` the CRC field is zero. Returns the FPDU's length, or zero (and writes nothing)
/// where `ulpdu_len` exceeds [`MAX_ULPDU`] or `buf` is shorter than [`fpdu_len`].
#[inline]
pub fn seal(buf: &mut [u8], ulpdu_len: usize, crc: Option<Crc<'_>>) -> usize {
    let Ok(declared) = u16::try_from(ulpdu_len) else { return 0 };
    let total = fpdu_len(ulpdu_len);
    let Some(fpdu) = buf.get_mut(..total) else { return 0 };
    if let Some(length) = fpdu.first_chunk_mut() {
        *length = declared.to_be_bytes();
    }
    let Some((body, sum)) = fpdu.split_last_chunk_mut::<CRC_LEN>() else { return 0 };
    if let Some(pad) = body.get_mut(HEADER_LEN + ulpdu_len..) {
        pad.fill(0);
    }
    *sum = crc.map_or([0; CRC_LEN], |f| crc::to_wire(f(crc::INIT, body)));
    total
}
