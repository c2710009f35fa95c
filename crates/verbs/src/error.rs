//! What can go wrong when a verb is called. Errors of a work request are in its completion instead.

use crate::mem::{Access, MemoryRegion};

/// `std::result::Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused; each message names the cause and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A set of access rights that cannot be granted.
    #[error("access rights {access:?} cannot be granted: {why}")]
    AccessRights {
        /// The rights asked for.
        access: Access,
        /// What is missing or contradictory.
        why: &'static str,
    },
    /// An offset and length outside the memory that they refer to.
    #[error("bytes {offset}..{offset}+{len} are outside the {size} bytes there are: use a range within them")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes that exist.
        size: u64,
    },
    /// An address that is not a multiple of eight where an atomic access needs one.
    #[error("address {addr:#x} is not a multiple of 8: atomics need 8-byte alignment")]
    Misaligned {
        /// The address or offset.
        addr: u64,
    },
    /// The device has no steering tag left.
    #[error("all {limit} regions and windows of the device are in use: deregister some")]
    TableFull {
        /// The device's limit.
        limit: usize,
    },
    /// The region has windows bound or fast regions mapped over it.
    #[error("{bound} windows or fast regions still refer to the region: unbind or invalidate them first")]
    RegionBusy {
        /// How many.
        bound: usize,
    },
    /// A handle of one protection domain was used with one of another.
    #[error("objects of different protection domains cannot be combined: create both from one")]
    OtherDomain,
    /// The completion queue overflowed: completions were lost.
    #[error(
        "completion queue of {depth} entries overflowed: create it deeper, or poll it sooner; it cannot be used further"
    )]
    CqOverflow {
        /// Its depth.
        depth: u32,
    },
    /// A depth that a completion queue cannot have.
    #[error("a completion queue cannot have {depth} entries: use {min}..={max}")]
    CqDepth {
        /// The depth asked for.
        depth: u32,
        /// Least depth possible now (at least what is queued).
        min: u32,
        /// Greatest depth possible.
        max: u32,
    },
}

impl Error {
    /// The last `errno`, from trying `what`.
    pub(crate) fn os(what: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::Os { what, source: source.into() }
    }
}

/// A refused [`MemoryRegion::deregister`], with the region, which stays registered.
///
/// Turned into [`Error`] by `?`, which drops the region and so invalidates what is bound over it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct DeregisterError {
    /// Still registered.
    pub region: MemoryRegion,
    /// Why.
    pub error: Error,
}

impl From<DeregisterError> for Error {
    fn from(e: DeregisterError) -> Self {
        e.error
    }
}
