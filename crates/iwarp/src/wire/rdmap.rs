//! RDMAP headers that follow the DDP header: Read Request (RFC 5040 §4.4), Atomic Request and
//! Response (RFC 7306 §5.2).

use crate::error::Fault;
use crate::types::{AtomicOp, AtomicRequest, Opcode, Stag};

/// Bytes of a Read Request header.
pub const READ_REQUEST_LEN: usize = 28;
/// Bytes of an Atomic Request header.
pub const ATOMIC_REQUEST_LEN: usize = 52;
/// Bytes of an Atomic Response header.
pub const ATOMIC_RESPONSE_LEN: usize = 12;
/// Bytes of an Immediate Data message. RFC 7306 §6.2.
pub const IMMEDIATE_LEN: usize = 8;

/// An RDMA Read Request. RFC 5040 §4.4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// The requester's STag, named by the response.
    pub sink_stag: Stag,
    /// The requester's tagged offset.
    pub sink_to: u64,
    /// Bytes wanted.
    pub len: u32,
    /// The responder's STag.
    pub src_stag: Stag,
    /// The responder's tagged offset.
    pub src_to: u64,
}

/// An Atomic Response. RFC 7306 §5.2.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The request's identifier.
    pub id: u32,
    /// What the memory held before.
    pub original: u64,
}

/// Big-endian fields taken one after another from a fixed array.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The next 32 bits; zero past the end, which the fixed lengths rule out.
    #[inline(always)]
    fn u32(&mut self) -> u32 {
        let (head, rest) = self.0.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        self.0 = rest;
        u32::from_be_bytes(*head)
    }

    /// The next 64 bits.
    #[inline(always)]
    fn u64(&mut self) -> u64 {
        let (head, rest) = self.0.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        self.0 = rest;
        u64::from_be_bytes(*head)
    }
}

/// Copies big-endian fields one after another into `out`.
#[inline(always)]
fn put(out: &mut [u8], fields: &[&[u8]]) {
    let mut rest = out;
    for field in fields {
        let Some((head, tail)) = rest.split_at_mut_checked(field.len()) else { return };
        head.copy_from_slice(field);
        rest = tail;
    }
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = READ_REQUEST_LEN;

    /// `None` where there are not exactly [`Self::LEN`] bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        // rule 5040-4.4-1
        let bytes: &[u8; READ_REQUEST_LEN] = bytes.try_into().ok()?;
        let mut f = Fields(bytes);
        Some(Self {
            sink_stag: Stag(f.u32()),
            sink_to: f.u64(),
            len: f.u32(),
            src_stag: Stag(f.u32()),
            src_to: f.u64(),
        })
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; READ_REQUEST_LEN]) {
        put(
            out,
            &[
                &self.sink_stag.0.to_be_bytes(),
                &self.sink_to.to_be_bytes(),
                &self.len.to_be_bytes(),
                &self.src_stag.0.to_be_bytes(),
                &self.src_to.to_be_bytes(),
            ],
        );
    }
}

impl AtomicResponse {
    /// Bytes on the wire.
    pub const LEN: usize = ATOMIC_RESPONSE_LEN;

    /// `None` where there are not exactly [`Self::LEN`] bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        // rule 7306-5.2.2-1
        let bytes: &[u8; ATOMIC_RESPONSE_LEN] = bytes.try_into().ok()?;
        let mut f = Fields(bytes);
        Some(Self { id: f.u32(), original: f.u64() })
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; ATOMIC_RESPONSE_LEN]) {
        put(out, &[&self.id.to_be_bytes(), &self.original.to_be_bytes()]);
    }
}

/// Parses an Atomic Request. RFC 7306 §5.2.1.
///
/// # Errors
/// [`Fault::MessageLength`] where there are not exactly [`ATOMIC_REQUEST_LEN`] bytes,
/// [`Fault::AtomicOpcode`] for an operation that the RFC does not define.
pub fn parse_atomic(bytes: &[u8]) -> Result<AtomicRequest, Fault> {
    // rule 7306-5.2.1-1, 7306-5.2.1-2, 7306-5.1-3
    let Ok(bytes) = <&[u8; ATOMIC_REQUEST_LEN]>::try_from(bytes) else {
        return Err(Fault::MessageLength(Opcode::AtomicRequest));
    };
    let mut f = Fields(bytes);
    // The upper 28 bits are reserved: not checked on receipt.
    let op = match f.u32() & 0x0f {
        0 => AtomicOp::FetchAdd,
        1 => AtomicOp::Swap,
        2 => AtomicOp::CmpSwap,
        other => return Err(Fault::AtomicOpcode(other)),
    };
    Ok(AtomicRequest {
        op,
        id: f.u32(),
        stag: Stag(f.u32()),
        to: f.u64(),
        add_swap: f.u64(),
        add_swap_mask: f.u64(),
        compare: f.u64(),
        compare_mask: f.u64(),
    })
}

/// Writes an Atomic Request. RFC 7306 §5.2.1.
pub fn write_atomic(request: &AtomicRequest, out: &mut [u8; ATOMIC_REQUEST_LEN]) {
    put(
        out,
        &[
            &(request.op as u32).to_be_bytes(),
            &request.id.to_be_bytes(),
            &request.stag.0.to_be_bytes(),
            &request.to.to_be_bytes(),
            &request.add_swap.to_be_bytes(),
            &request.add_swap_mask.to_be_bytes(),
            &request.compare.to_be_bytes(),
            &request.compare_mask.to_be_bytes(),
        ],
    );
}
