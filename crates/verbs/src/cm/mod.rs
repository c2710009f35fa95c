//! The connection manager: listen, connect, accept, reject, and sockets that the application connected.

mod dial;
mod incoming;
mod listener;
mod policy;
mod request;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use iwarp::mpa::startup::{Revision, StartupError};

use crate::error::{Error, Result};
use crate::net::tcp;
use crate::qp::{QpInner, QpState, QueuePair};
use dial::Dial;
pub use listener::{ListenConfig, Listener};
pub use policy::{ConnParams, ConnPolicy, Established, FpduPolicy, Role};
pub use request::ConnRequest;

/// Takes the queue pair for a connection attempt.
fn reserve(qp: &QpInner) -> Result<()> {
    qp.device.check_fork()?;
    if qp.transition(QpState::Init, QpState::Rtr) {
        return Ok(());
    }
    let needed = "Init (modify to Reset, then Init, to use it again)";
    Err(Error::State { what: "connecting", needed, state: qp.state() })
}

/// Gives it back after an attempt that failed.
fn release(qp: &QpInner) {
    qp.transition(QpState::Rtr, QpState::Init);
}

/// Whether the failed attempt is to be repeated with MPA revision 1. RFC 6581 §10: a peer that does
/// not know revision 2 answers with 1, or just closes.
fn falls_back(params: &ConnParams, error: &Error) -> bool {
    let mpa = &params.policy.mpa;
    // rule 6581-10-2
    mpa.fallback
        && mpa.revision == Revision::V2
        && matches!(error, Error::Startup(StartupError::Revision(1)) | Error::Closed(_))
}

fn downgraded(mut params: ConnParams) -> ConnParams {
    params.policy.mpa.revision = Revision::V1;
    params.policy.mpa.p2p = None;
    params
}

/// Connects a queue pair; blocks until it is connected or refused.
///
/// # Errors
/// [`Error::Connect`], [`Error::Rejected`], [`Error::Timeout`], [`Error::Startup`], [`Error::Closed`],
/// [`Error::State`] unless the queue pair is in Init.
pub fn connect(qp: &QueuePair, peer: SocketAddr, params: ConnParams) -> Result<Established> {
    match attempt(qp, peer, params.clone())?.wait() {
        Err(e) if falls_back(&params, &e) => attempt(qp, peer, downgraded(params))?.wait(),
        other => other,
    }
}

/// Likewise for tasks; any executor will do. Dropping the future gives the attempt up.
///
/// # Errors
/// As [`connect`].
pub async fn connect_async(qp: &QueuePair, peer: SocketAddr, params: ConnParams) -> Result<Established> {
    match attempt(qp, peer, params.clone())?.finished().await {
        Err(e) if falls_back(&params, &e) => attempt(qp, peer, downgraded(params))?.finished().await,
        other => other,
    }
}

fn attempt(qp: &QueuePair, peer: SocketAddr, params: ConnParams) -> Result<dial::Attempt> {
    let inner = qp.inner();
    reserve(inner)?;
    Dial::start(Arc::clone(inner), peer, params).inspect_err(|_| release(inner))
}

/// Turns a TCP connection of the application's into RDMA mode. Both ends must do so, in opposite roles,
/// and nothing else may be under way on it.
///
/// # Errors
/// As [`connect`]; there is no fallback to MPA revision 1, which would need another connection.
pub fn convert(qp: &QueuePair, stream: TcpStream, role: Role, params: ConnParams) -> Result<Established> {
    let inner = qp.inner();
    match role {
        // rule 5044-7.1.5-1, 5040-6.1-1
        Role::Initiator => {
            reserve(inner)?;
            let fd = tcp::adopt(stream);
            Dial::adopt(Arc::clone(inner), fd, params).inspect_err(|_| release(inner))?.wait()
        }
        Role::Responder => {
            let timeout = params.policy.request_timeout;
            let fd = tcp::adopt(stream);
            incoming::wait_for_request(&inner.device, fd, &params.policy, timeout)?.accept(qp, params)
        }
    }
}
