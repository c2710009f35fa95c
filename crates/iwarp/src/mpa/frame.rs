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
/// Largest ULPDU that the length field can name: receivers take any up to it.
pub const MAX_ULPDU: usize = 0xffff;
/// Largest ULPDU to send, by the RFC's upper limit for MULPDU (64768), without padding. RFC 5044 §4.5.
pub const MAX_MULPDU: usize = 64766;
/// The RFC's lower limit for MULPDU, whatever the segment size. RFC 5044 §4.5.
pub const MIN_MULPDU: usize = 128;
/// Bytes of the largest FPDU, without markers.
pub const MAX_FPDU: usize = fpdu_len(MAX_ULPDU);

/// A CRC32c function: continues a state over bytes. [`crc::update`] is one.
pub type Crc<'a> = &'a dyn Fn(u32, &[u8]) -> u32;

/// Padding behind a ULPDU, in bytes: the length field, the ULPDU and it are a multiple of four.
#[inline]
pub const fn pad_len(ulpdu_len: usize) -> usize {
    ulpdu_len.wrapping_add(HEADER_LEN).wrapping_neg() & 3
}

/// Bytes of the FPDU that carries `ulpdu_len` bytes, without markers.
#[inline]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    // Rounded up to four; saturating, so that no length panics.
    ulpdu_len.saturating_add(HEADER_LEN + 3 + CRC_LEN) & !3
}

/// MULPDU: the largest ULPDU whose FPDU surely fits a TCP segment of `mss` bytes, wherever markers
/// fall. RFC 5044 §4.5.
///
/// The FPDU is then a multiple of four bytes. The result lies within [`MIN_MULPDU`] and
/// [`MAX_MULPDU`], so with a very small `mss` an FPDU takes several segments.
pub const fn mulpdu(mss: usize, markers: bool) -> usize {
    // rule 5044-4.5-1, 5044-4.5-2
    let marks = if markers { marker::LEN * mss.div_ceil(marker::INTERVAL) } else { 0 };
    match mss.saturating_sub(HEADER_LEN + CRC_LEN + marks + mss % 4) {
        0..MIN_MULPDU => MIN_MULPDU,
        fits @ MIN_MULPDU..MAX_MULPDU => fits,
        _ => MAX_MULPDU,
    }
}

/// Padding and CRC that follow `ulpdu_len` bytes of ULPDU, for an embedding that gathers an FPDU from
/// pieces: the bytes and how many of them count. `sum` is [`crc::to_wire`]'s, or zeros.
#[inline]
pub const fn trailer(ulpdu_len: usize, sum: [u8; CRC_LEN]) -> ([u8; 3 + CRC_LEN], usize) {
    let [a, b, c, d] = sum;
    match pad_len(ulpdu_len) {
        0 => ([a, b, c, d, 0, 0, 0], CRC_LEN),
        1 => ([0, a, b, c, d, 0, 0], 1 + CRC_LEN),
        2 => ([0, 0, a, b, c, d, 0], 2 + CRC_LEN),
        _ => ([0, 0, 0, a, b, c, d], 3 + CRC_LEN),
    }
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
    // rule 5044-3-1, 5044-4.1-1, 5044-4.1-2, 5044-4.1-3, 5044-4.1-4
    if let Some(length) = fpdu.first_chunk_mut() {
        *length = declared.to_be_bytes();
    }
    let Some((body, sum)) = fpdu.split_last_chunk_mut::<CRC_LEN>() else { return 0 };
    if let Some(pad) = body.get_mut(HEADER_LEN + ulpdu_len..) {
        pad.fill(0);
    }
    // rule 5044-4.4-2
    *sum = crc.map_or([0; CRC_LEN], |f| crc::to_wire(f(crc::INIT, body)));
    total
}
