//! DDP segment headers with RDMAP's control byte. RFC 5041 §4, RFC 5040 §4.1.
//!
//! ```text
//! tagged    0 T|L|rsvd(4)|DV(2)   1 RV(2)|rsvd(2)|Opcode(4)   2..6 STag   6..14 TO
//! untagged  0 T|L|rsvd(4)|DV(2)   1 RV(2)|rsvd(2)|Opcode(4)   2..6 Invalidate STag
//!           6..10 QN   10..14 MSN   14..18 MO
//! ```

use crate::error::Fault;
use crate::types::Stag;

/// Bytes of a tagged header, without MPA's length field.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header, without MPA's length field.
pub const UNTAGGED_LEN: usize = 18;

/// T: the tagged buffer model. RFC 5041 §4.1.
pub const FLAG_TAGGED: u8 = 0x80;
/// L: the last segment of its message. RFC 5041 §4.1.
pub const FLAG_LAST: u8 = 0x40;
/// The DDP version of RFC 5041, in the low two bits of the first byte.
const DDP_VERSION: u8 = 1;
/// The RDMAP version of RFC 5040, in the high two bits of the second byte.
const RDMAP_VERSION: u8 = 1;

/// Header of a tagged segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tagged {
    /// The last segment of its message.
    pub last: bool,
    /// RDMAP's opcode, raw (4 bits).
    pub opcode: u8,
    /// Where to: the data sink's steering tag.
    pub stag: Stag,
    /// Where in it, in bytes: the tagged offset.
    pub to: u64,
}

/// Header of an untagged segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Untagged {
    /// The last segment of its message.
    pub last: bool,
    /// RDMAP's opcode, raw (4 bits).
    pub opcode: u8,
    /// The 32 bits that DDP leaves to the ULP: the STag to invalidate, else zero. RFC 5040 §4.1.
    pub inv_stag: Stag,
    /// Queue number.
    pub qn: u32,
    /// Message sequence number, per queue, from 1.
    pub msn: u32,
    /// Offset of this segment in its message, in bytes.
    pub mo: u32,
}

/// A parsed header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// The tagged buffer model.
    Tagged(Tagged),
    /// The untagged buffer model.
    Untagged(Untagged),
}

/// A header and the rest of its ULPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment<'a> {
    /// The tagged buffer model.
    Tagged(Tagged, &'a [u8]),
    /// The untagged buffer model.
    Untagged(Untagged, &'a [u8]),
}

/// Bytes of the header that starts with this byte: its T bit tells.
#[inline]
pub fn header_len(first_byte: u8) -> usize {
    if first_byte & FLAG_TAGGED != 0 { TAGGED_LEN } else { UNTAGGED_LEN }
}

impl Header {
    /// Bytes that it takes on the wire.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => TAGGED_LEN,
            Self::Untagged(_) => UNTAGGED_LEN,
        }
    }
}

/// Parses the header of a ULPDU; `bytes` may hold less than the whole ULPDU.
///
/// # Errors
/// [`Fault::FpduLength`] where `bytes` is shorter than the header, [`Fault::TaggedVersion`],
/// [`Fault::UntaggedVersion`] and [`Fault::RdmapVersion`] where a version is not 1.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Header, Fault> {
    let short = Fault::FpduLength(bytes.len() as u32);
    let Some(&[first, control]) = bytes.first_chunk::<2>() else { return Err(short) };
    // rule 5041-4.1-1, 5041-4.1-3, 5041-4.1-4, 5041-4.4-1, 5040-4.1-2
    let last = first & FLAG_LAST != 0;
    let opcode = control & 0x0f;
    let ddp_version = first & 0x03;
    if first & FLAG_TAGGED != 0 {
        let Some(h) = bytes.first_chunk::<TAGGED_LEN>() else { return Err(short) };
        // RFC 5041 §4.1: another version is an error before anything else of the segment is believed.
        if ddp_version != DDP_VERSION {
            return Err(Fault::TaggedVersion(ddp_version));
        }
        rdmap_version(control)?;
        let &[_, _, s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7] = h;
        let stag = Stag(u32::from_be_bytes([s0, s1, s2, s3]));
        let to = u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        return Ok(Header::Tagged(Tagged { last, opcode, stag, to }));
    }
    let Some(h) = bytes.first_chunk::<UNTAGGED_LEN>() else { return Err(short) };
    if ddp_version != DDP_VERSION {
        return Err(Fault::UntaggedVersion(ddp_version));
    }
    rdmap_version(control)?;
    let &[_, _, s0, s1, s2, s3, q0, q1, q2, q3, m0, m1, m2, m3, o0, o1, o2, o3] = h;
    Ok(Header::Untagged(Untagged {
        last,
        opcode,
        inv_stag: Stag(u32::from_be_bytes([s0, s1, s2, s3])),
        qn: u32::from_be_bytes([q0, q1, q2, q3]),
        msn: u32::from_be_bytes([m0, m1, m2, m3]),
        mo: u32::from_be_bytes([o0, o1, o2, o3]),
    }))
}

/// Parses a whole ULPDU into its header and payload.
///
/// # Errors
/// As [`parse`].
#[inline]
pub fn parse_segment(ulpdu: &[u8]) -> Result<Segment<'_>, Fault> {
    let header = parse(ulpdu)?;
    let payload = ulpdu.get(header.len()..).unwrap_or_default();
    Ok(match header {
        Header::Tagged(h) => Segment::Tagged(h, payload),
        Header::Untagged(h) => Segment::Untagged(h, payload),
    })
}

/// RFC 5040 §4.1: RV is 1; any other version ends the stream.
#[inline]
fn rdmap_version(control: u8) -> Result<(), Fault> {
    // rule 5040-4.1-1
    match control >> 6 {
        RDMAP_VERSION => Ok(()),
        other => Err(Fault::RdmapVersion(other)),
    }
}

/// The two control bytes; reserved bits are zero.
#[inline]
fn control(tagged: u8, last: bool, opcode: u8) -> [u8; 2] {
    let l = if last { FLAG_LAST } else { 0 };
    [tagged | l | DDP_VERSION, RDMAP_VERSION << 6 | opcode & 0x0f]
}

impl Tagged {
    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; TAGGED_LEN]) {
        // rule 5041-4.2-1, 5041-4.1-2
        let [c0, c1] = control(FLAG_TAGGED, self.last, self.opcode);
        let [s0, s1, s2, s3] = self.stag.0.to_be_bytes();
        let [t0, t1, t2, t3, t4, t5, t6, t7] = self.to.to_be_bytes();
        *out = [c0, c1, s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7];
    }
}

impl Untagged {
    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; UNTAGGED_LEN]) {
        // rule 5041-4.3-1, 5041-4.1-2, 5041-4.1-5, 5040-4.1-4
        let [c0, c1] = control(0, self.last, self.opcode);
        let [s0, s1, s2, s3] = self.inv_stag.0.to_be_bytes();
        let [q0, q1, q2, q3] = self.qn.to_be_bytes();
        let [m0, m1, m2, m3] = self.msn.to_be_bytes();
        let [o0, o1, o2, o3] = self.mo.to_be_bytes();
        *out = [c0, c1, s0, s1, s2, s3, q0, q1, q2, q3, m0, m1, m2, m3, o0, o1, o2, o3];
    }
}
