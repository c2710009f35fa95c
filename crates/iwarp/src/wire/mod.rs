//! Wire formats, as plain values: parsing copies headers out of bytes, writing fills fixed arrays.
//!
//! No state and no policy here; every reader takes hostile bytes and answers with a value or a
//! [`Fault`](crate::Fault), never with a panic.

pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod terminate;

/// The `N` bytes at `at`, or `None` where `bytes` is too short.
#[inline(always)]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}
