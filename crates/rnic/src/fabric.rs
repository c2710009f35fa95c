//! The door to the engine: its device, its errors as failures, the policies of this program's connections.
use std::io;
use std::time::Duration;

use rnic_verbs::iwarp::mpa::startup::CrcPolicy;
use rnic_verbs::{
    Completion, ConnParams, ConnPolicy, ConnRequest, Device, DeviceConfig, End, Error, FpduPolicy, Listener,
    PostError, QueuePair, Status,
};

use crate::error::{Failure, Result, io_remedy};
use crate::perf::plan::Fpdu;
use crate::signal;

/// Opens the device of this process.
pub(crate) fn open() -> Result<Device> {
    Device::open(DeviceConfig::default()).map_err(|error| {
        Failure::from(error).during("cannot open the device").hint("check RNIC_PCAP and `ulimit -n`")
    })
}

/// What this program wants of its connections, beyond the engine's defaults.
pub(crate) fn policy(crc: bool, markers: bool, fpdu: Fpdu) -> ConnPolicy {
    let mut policy = ConnPolicy::default();
    policy.mpa.crc = if crc { CrcPolicy::On } else { CrcPolicy::Off };
    policy.mpa.want_markers = markers;
    policy.fpdu = match fpdu {
        Fpdu::Mss => FpduPolicy::Mss,
        Fpdu::Large => FpduPolicy::Large,
        Fpdu::Bytes(bytes) => FpduPolicy::Bytes(bytes as usize),
    };
    policy
}

/// Private data and rules of one connection.
pub(crate) fn params(private_data: Vec<u8>, policy: ConnPolicy) -> ConnParams {
    let mut params = ConnParams::with_policy(policy);
    params.private_data = private_data;
    params
}

/// The next connection request, if one comes before it is time to look at signals.
pub(crate) fn accept(listener: &Listener) -> Result<Option<ConnRequest>> {
    match listener.accept(Some(signal::LOOK)) {
        Ok(request) => Ok(Some(request)),
        Err(Error::Timeout { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A work request of `qp` that did not succeed, as a failure.
pub(crate) fn check(qp: &QueuePair, completion: &Completion) -> Result<()> {
    match completion.status {
        Status::Success => Ok(()),
        Status::WrFlush => Err(ended(qp)),
        status => Err(Failure::failed(format!("{:?} request failed: {status}", completion.opcode))
            .hint("RNIC_LOG=debug at both ends shows the stream's fault")),
    }
}

/// Why the connection of `qp` ended.
pub(crate) fn ended(qp: &QueuePair) -> Failure {
    let cause = match qp.end() {
        None | Some(End::Local) => "the connection was closed".to_owned(),
        Some(End::Peer) => "the other end closed the connection".to_owned(),
        Some(End::Broken(errno)) => match errno {
            Some(errno) => format!("the connection broke: {}", io::Error::from_raw_os_error(errno)),
            None => "the connection broke in the middle of a message".to_owned(),
        },
        Some(End::DeadPath) => "the other end's TCP no longer answers".to_owned(),
        Some(End::Fault(fault)) => format!("the stream was terminated here: {fault}"),
        Some(End::Terminated(None)) => "the other end terminated the stream".to_owned(),
        Some(End::Terminated(Some(why))) => format!("the other end terminated the stream: {why:?}"),
        Some(other) => format!("the connection ended: {other:?}"),
    };
    Failure::failed(cause).hint("look at what the other end printed")
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let remedy = match &error {
            Error::Connect { source, .. } | Error::Listen { source, .. } | Error::Os { source, .. } => {
                io_remedy(source.kind())
            }
            Error::Timeout { .. } => io_remedy(io::ErrorKind::TimedOut),
            Error::Closed(_) => io_remedy(io::ErrorKind::ConnectionReset),
            Error::Startup(_) => {
                Some("is it an iWARP listener, with the same ideas of CRC and MPA revision?")
            }
            Error::NotNegotiated => {
                Some("measure the verbs that every iWARP peer has: --verb write,read,send")
            }
            _ => None,
        };
        let failure = Self::failed(error.to_string());
        match remedy {
            Some(remedy) => failure.hint(remedy),
            None => failure,
        }
    }
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        Self::from(error.error)
    }
}

/// Time left of `whole` since `start`, and at most `slice`; `None` when it is over.
pub(crate) fn slice_of(whole: Duration, start: std::time::Instant, slice: Duration) -> Option<Duration> {
    let left = whole.checked_sub(start.elapsed())?;
    (!left.is_zero()).then_some(left.min(slice))
}
