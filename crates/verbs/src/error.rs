//! What can go wrong when a verb is called. Errors of a work request are in its completion instead.

use std::net::SocketAddr;
use std::time::Duration;

use iwarp::TaggedFault;
use iwarp::mpa::startup::StartupError;

use crate::mem::{Access, MemoryRegion};

/// `std::result::Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused; each message names the cause and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is outside its range.
    #[error("{what} is {value}, the device's limit is {limit}")]
    Limit {
        /// Which parameter.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// What is possible.
        limit: u64,
    },
    /// A parameter makes no sense.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A work queue is full: poll its completion queue first, or create it deeper.
    #[error("{0} queue is full: poll completions before posting more, or create it deeper")]
    QueueFull(&'static str),
    /// The queue pair is in a state that does not allow this.
    #[error("{what} needs the queue pair in {needed}, it is in {state:?}")]
    State {
        /// What was tried.
        what: &'static str,
        /// Which states would do.
        needed: &'static str,
        /// The present one.
        state: crate::QpState,
    },
    /// Local memory: bad key, bounds, rights or protection domain.
    #[error("local memory at 0x{addr:x}, {len} bytes, key 0x{lkey:x}: {fault}")]
    LocalMemory {
        /// Key used.
        lkey: u32,
        /// Address used.
        addr: u64,
        /// Length used.
        len: u32,
        /// What is wrong with it.
        fault: TaggedFault,
    },
    /// Something else still refers to the object.
    #[error("{0}")]
    Busy(&'static str),
    /// The peer did not prove that it knows RFC 7306 (atomics, immediate data).
    #[error("the peer does not speak RFC 7306 (atomics, immediate data): only negotiated peers may see it")]
    NotNegotiated,
    /// The peer's listener said no.
    #[error("connection to {peer} rejected by the peer ({} bytes of private data)", private_data.len())]
    Rejected {
        /// Who.
        peer: SocketAddr,
        /// What it had to say.
        private_data: Vec<u8>,
    },
    /// TCP could not connect.
    #[error("cannot connect to {peer}: {source}")]
    Connect {
        /// Where to.
        peer: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Cannot listen.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// MPA start-up failed.
    #[error("MPA start-up with the peer failed: {0}")]
    Startup(StartupError),
    /// Nothing came in time.
    #[error("{what}: nothing came within {after:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// The peer closed the connection.
    #[error("{0}: the peer closed the connection")]
    Closed(&'static str),
    /// Too many open files.
    #[error("out of file descriptors while {0}: raise the limit (ulimit -n)")]
    FileDescriptors(&'static str),
    /// The device belongs to the parent process.
    #[error("this device was opened before fork(): open one in the child")]
    Forked,
    /// The capture file ([`crate::DeviceConfig::pcap`], `RNIC_PCAP`) cannot be written.
    #[error("cannot create the capture file {} (RNIC_PCAP): {source}", path.display())]
    Capture {
        /// Where.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
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
    /// The operating system's answer to `what`; descriptor exhaustion has a name of its own.
    pub(crate) fn os(what: &'static str, source: impl Into<std::io::Error>) -> Self {
        let source = source.into();
        match source.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::FileDescriptors(what),
            _ => Self::Os { what, source },
        }
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
/// A list post failed at one request; those before it were posted.
#[derive(Debug, thiserror::Error)]
#[error("work request {index} of the list: {error}")]
pub struct PostError {
    /// Index of the first request that was not posted.
    pub index: usize,
    /// Why.
    pub error: Error,
}
