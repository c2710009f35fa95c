//! The Terminate message. RFC 5040 §4.8.
//!
//! ```text
//!  0 layer(4)|etype(4)   1 code   2 M|D|R|reserved(5)   3 reserved
//!  4..6  DDP segment length, if M or D        6..  DDP header (14 or 18), if D
//!    ..  Read Request header (28), if R
//! ```
//!
//! Linux's siw lays the control field out with C bit fields, so on little-endian machines layer and
//! type come out swapped and M, D, R are the low bits of their byte. [`TerminateMessage::decode`]
//! understands both; [`encode`] writes what the RFC says.

use super::array;
use super::ddp::{FLAG_TAGGED, TAGGED_LEN, UNTAGGED_LEN, header_len};
use super::rdmap::{READ_REQUEST_LEN, ReadRequest};
use crate::error::Terminate;
use crate::types::Opcode;

/// Bytes of the control field.
pub const CONTROL_LEN: usize = 4;
/// Where the DDP header of the segment at fault starts: behind control and segment length.
const HEADER_AT: usize = CONTROL_LEN + 2;
/// Bytes of the longest Terminate message: control, segment length, untagged header, Read Request.
pub const MAX_LEN: usize = HEADER_AT + UNTAGGED_LEN + READ_REQUEST_LEN;

/// M: the segment length is valid.
const FLAG_LENGTH: u8 = 0x80;
/// D: the DDP header is there.
const FLAG_DDP: u8 = 0x40;
/// R: the RDMAP header is there.
const FLAG_RDMAP: u8 = 0x20;
/// Where siw puts M, D and R.
const SWAPPED_FLAGS: u8 = 0x07;

/// What the receiver of a Terminate knows of the connection's age, for the few codes that mean
/// different things in the two bit orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// Nothing: what both orders allow is read as the RFC has it.
    #[default]
    Unknown,
    /// It is the initiator's first FPDU, so it can only complain of the Reply. RFC 6581 §8.
    Startup,
    /// Start-up is over, so it cannot complain of the Reply.
    Operation,
}

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
    #[inline]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        Self::decode_in(payload, Phase::Unknown)
    }

    /// As [`Self::decode`], with what is known of the connection's age.
    ///
    /// Headers that are announced but cut short are left out.
    pub fn decode_in(payload: &[u8], phase: Phase) -> Option<Self> {
        // rule 5040-4.8-5
        let control = *payload.first_chunk::<CONTROL_LEN>()?;
        let [_, _, flags, _] = control;
        let swapped = is_swapped(control, phase);
        let flags = if swapped { flags.reverse_bits() } else { flags };
        let mut message = Self {
            terminate: layout(control, swapped),
            swapped,
            segment_len: None,
            header: [0; UNTAGGED_LEN],
            header_len: 0,
            read_header: None,
        };
        // RFC 5040 §4.8: the length field is present with D, too, and valid only with M.
        if flags & (FLAG_LENGTH | FLAG_DDP) == 0 {
            return Some(message);
        }
        if flags & FLAG_LENGTH != 0 {
            message.segment_len = array(payload, CONTROL_LEN).map(u16::from_be_bytes);
        }
        if flags & FLAG_DDP == 0 {
            return Some(message);
        }
        let rest = payload.get(HEADER_AT..).unwrap_or_default();
        let Some(&[first, second]) = rest.first_chunk::<2>() else { return Some(message) };
        // siw copies a tagged header with its two control bytes swapped; a T bit in RDMAP's byte tells.
        let exchanged = swapped && first & FLAG_TAGGED == 0 && second & FLAG_TAGGED != 0;
        let len = header_len(if exchanged { second } else { first });
        let Some((header, rest)) = rest.split_at_checked(len) else { return Some(message) };
        if let Some(to) = message.header.get_mut(..len) {
            to.copy_from_slice(header);
            message.header_len = len as u8;
        }
        if exchanged {
            let [a, b, ..] = &mut message.header;
            core::mem::swap(a, b);
        }
        if flags & FLAG_RDMAP != 0 && len == UNTAGGED_LEN {
            message.read_header = array::<READ_REQUEST_LEN>(rest, 0).and_then(|h| ReadRequest::parse(&h));
        }
        Some(message)
    }

    /// The DDP header of the segment at fault, as far as the peer sent it.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header.get(..usize::from(self.header_len)).unwrap_or_default()
    }
}

/// Layer, type and code in either order.
fn layout([first, code, _, _]: [u8; CONTROL_LEN], swapped: bool) -> Terminate {
    let (high, low) = (first >> 4, first & 0x0f);
    let (layer, etype) = if swapped { (low, high) } else { (high, low) };
    Terminate { layer, etype, code }
}

/// Whether this control field makes sense only (or more) in siw's order.
fn is_swapped(control: [u8; CONTROL_LEN], phase: Phase) -> bool {
    let [_, _, flags, _] = control;
    let (rfc, siw) = (flags & (FLAG_LENGTH | FLAG_DDP | FLAG_RDMAP), flags & SWAPPED_FLAGS);
    if rfc != 0 || siw != 0 {
        // The five other bits are reserved, so headers tell the order beyond doubt.
        return rfc == 0;
    }
    let (straight, crossed) = (layout(control, false), layout(control, true));
    match (is_defined(straight), is_defined(crossed)) {
        (false, defined) => defined,
        (true, false) => false,
        // 20 06, 20 07 and their mirror images: start-up errors the one way, wrong or fatal
        // operations the other.
        (true, true) => match phase {
            Phase::Unknown => false,
            Phase::Startup => !is_startup(straight) && is_startup(crossed),
            Phase::Operation => is_startup(straight) && !is_startup(crossed),
        },
    }
}

/// Whether an RFC defines this error. RFC 5040 §4.8, RFC 5044 §8, RFC 6581 §8.
fn is_defined(t: Terminate) -> bool {
    match (t.layer, t.etype) {
        (0 | 1, 0) => t.code == 0,
        (0, 1) => matches!(t.code, 0..=4 | 9 | 0xff),
        (0, 2) => matches!(t.code, 5..=9 | 0xff),
        (1, 1) => matches!(t.code, 0..=4),
        (1, 2) => matches!(t.code, 1..=6),
        (2, 0) => matches!(t.code, 1..=7),
        _ => false,
    }
}

/// Whether an initiator sends this in answer to a Reply. RFC 6581 §8.
fn is_startup(t: Terminate) -> bool {
    t.layer == 2 && t.etype == 0 && matches!(t.code, 4..=7)
}

/// Encodes a Terminate message and returns its length.
///
/// `offending` is the start of the faulty segment's ULPDU (DDP header, and Read Request header if it
/// is one), `ulpdu_len` the whole ULPDU's length. Headers go along with what RDMAP and DDP find in a
/// segment; not with local and MPA errors, nor where `offending` is too short to hold them.
pub fn encode(t: Terminate, offending: Option<&[u8]>, ulpdu_len: usize, out: &mut [u8; MAX_LEN]) -> usize {
    let mut flags = 0;
    let mut len = CONTROL_LEN;
    // rule 7306-8.2-2
    // RFC 5040 §4.8: which error carries which headers.
    // rule 5040-4.8-1, 5040-4.8-2, 5040-4.8-3, 7306-8.2-2
    let wanted = matches!(t.layer, 0 | 1) && t.etype != 0;
    let segment =
        offending.filter(|_| wanted).and_then(|o| Some((o, o.split_at_checked(header_len(*o.first()?))?)));
    if let Some((offending, (header, rest))) = segment {
        flags |= FLAG_LENGTH | FLAG_DDP;
        len = put(out, len, &u16::try_from(ulpdu_len).unwrap_or(u16::MAX).to_be_bytes());
        len = put(out, len, header);
        let opcode = offending.get(1).map_or(0, |c| c & 0x0f);
        let read = rest
            .get(..READ_REQUEST_LEN)
            .filter(|_| t.layer == 0 && header.len() != TAGGED_LEN && opcode == Opcode::ReadRequest as u8);
        if let Some(read) = read {
            flags |= FLAG_RDMAP;
            len = put(out, len, read);
        }
    }
    put(out, 0, &[t.layer << 4 | t.etype & 0x0f, t.code, flags, 0]);
    len
}

/// Copies `bytes` to `out[at..]` and returns where they end.
fn put(out: &mut [u8; MAX_LEN], at: usize, bytes: &[u8]) -> usize {
    let end = at + bytes.len();
    if let Some(to) = out.get_mut(at..end) {
        to.copy_from_slice(bytes);
    }
    end
}
