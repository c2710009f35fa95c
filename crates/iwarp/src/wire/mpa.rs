//! MPA Request and Reply frames: the constants of their layout. RFC 5044 §7.1.1, RFC 6581 §6 and §9.
//!
//! ```text
//!   0..16  key             16  flags        17  revision
//!  18..20  private data length (big-endian) 20..  private data
//! ```

/// First 16 bytes of a Request Frame. RFC 5044 §7.1.1.
pub const KEY_REQUEST: [u8; 16] = *b"MPA ID Req Frame";
/// First 16 bytes of a Reply Frame. RFC 5044 §7.1.1.
pub const KEY_REPLY: [u8; 16] = *b"MPA ID Rep Frame";
/// Bytes of a Request or Reply Frame before its private data.
pub const FRAME_HEADER: usize = 20;
/// Most private data that a frame may declare. RFC 5044 §7.1.1.
pub const MAX_PRIVATE_DATA: usize = 512;
/// Bytes of private data that revision 2 takes for the IRD and ORD words. RFC 6581 §9.
pub const CONTROL_LEN: usize = 4;

/// M: the sender of this frame wants markers in what it receives.
pub const FLAG_MARKERS: u8 = 0x80;
/// C: the sender of this frame wants CRCs.
pub const FLAG_CRC: u8 = 0x40;
/// R: the connection is rejected (Reply only).
pub const FLAG_REJECT: u8 = 0x20;
/// S: the private data starts with IRD and ORD. RFC 6581 §9.
pub const FLAG_ENHANCED: u8 = 0x10;
/// An experiment of Linux's siw with large FPDUs, within the reserved bits; ignored here.
pub const FLAG_SIW_GSO: u8 = 0x08;
/// In a Request: the sender knows RFC 7306. Never set in a Reply that accepts the offer.
pub const FLAG_EXTENSIONS_OFFER: u8 = 0x04;
/// In a Reply: the sender knows RFC 7306 and saw the offer.
pub const FLAG_EXTENSIONS_ACCEPT: u8 = 0x02;
/// The bits that must read as exactly the offer, or exactly the acceptance, to count: other
/// experiments use some of them together.
pub const EXTENSION_BITS: u8 = FLAG_SIW_GSO | FLAG_EXTENSIONS_OFFER | FLAG_EXTENSIONS_ACCEPT;

/// Bit A of the IRD word: peer-to-peer, an RTR frame follows. RFC 6581 §9.
pub const IRD_PEER_TO_PEER: u16 = 0x8000;
/// Bit B of the IRD word: the RTR may be a zero-length Send.
pub const IRD_RTR_SEND: u16 = 0x4000;
/// Bit C of the ORD word: the RTR may be a zero-length Write.
pub const ORD_RTR_WRITE: u16 = 0x8000;
/// Bit D of the ORD word: the RTR may be a zero-length Read.
pub const ORD_RTR_READ: u16 = 0x4000;
/// The value in either word.
pub const DEPTH_MASK: u16 = 0x3fff;
/// "Not negotiated in this exchange": the ULP knows the depth by other means. RFC 6581 §9.
pub const DEPTH_UNSPECIFIED: u16 = 0x3fff;
