//! A connection request: to be accepted with a queue pair, or rejected.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use iwarp::mpa::startup::{MAX_FRAME, Request};

use super::policy::{ConnParams, ConnPolicy, Established};
use crate::counters::add;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::net::sys::{self, SendPiece};
use crate::net::tcp;
use crate::pcap::Flow;
use crate::qp::QueuePair;
use crate::qp::establish::Connection;
use crate::shard::Shard;

/// A peer wants to connect. Dropped unanswered it is rejected.
#[derive(Debug)]
pub struct ConnRequest {
    device: Arc<DeviceInner>,
    shard: Arc<Shard>,
    fd: Option<OwnedFd>,
    request: Request,
    bytes: Vec<u8>,
    policy: ConnPolicy,
    local: SocketAddr,
    peer: SocketAddr,
    capture: Option<Flow>,
}

impl ConnRequest {
    pub(super) fn new(
        device: &Arc<DeviceInner>,
        (fd, shard, capture): (OwnedFd, Arc<Shard>, Option<Flow>),
        request: Request,
        bytes: Vec<u8>,
        policy: &ConnPolicy,
    ) -> Result<Self> {
        let (local, peer) = tcp::addresses(&fd).map_err(|e| Error::os("take a connection", e))?;
        let (device, policy) = (Arc::clone(device), policy.clone());
        Ok(Self { device, shard, fd: Some(fd), request, bytes, policy, local, peer, capture })
    }

    /// What the peer's application said.
    pub fn private_data(&self) -> &[u8] {
        // rule 5044-7.1.4-1, 5044-7.1.1-8
        self.bytes.get(self.request.private_data.clone()).unwrap_or_default()
    }

    /// The frame, parsed: revision, CRC, depths and the like.
    pub fn mpa(&self) -> &Request {
        &self.request
    }

    /// The rules of the listener that it came to.
    pub fn policy(&self) -> &ConnPolicy {
        &self.policy
    }

    /// The address it came to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The address it came from.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Accepts: the queue pair is connected when this returns. It may post at once; what it posts goes
    /// out after the initiator's first FPDU (RFC 5044 §7.1.2).
    ///
    /// # Errors
    /// [`Error::Startup`] where the peer asks for what `params.policy` refuses (it is rejected then),
    /// [`Error::State`] unless the queue pair is in Init, [`Error::Closed`] if the peer went away.
    pub fn accept(mut self, qp: &QueuePair, params: ConnParams) -> Result<Established> {
        self.device.check_fork()?;
        let inner = Arc::clone(qp.inner());
        if !Arc::ptr_eq(&inner.device, &self.device) {
            return Err(Error::Invalid("the queue pair belongs to another device than the listener"));
        }
        let mpa = &params.policy.mpa;
        let mut frame = [0; MAX_FRAME];
        let (len, negotiated) = self
            .request
            .accept(mpa, mpa.ord, mpa.ird, &params.private_data, &mut frame)
            .map_err(Error::Startup)?;
        super::reserve(&inner)?;
        let result = self.reply(&frame[..len]).and_then(|fd| {
            let (local, peer) = inner.establish(Connection {
                fd,
                shard: Arc::clone(&self.shard),
                negotiated,
                responder: true,
                early: self.bytes.split_off(self.request.consumed),
                capture: self.capture.take(),
                fpdu: params.policy.fpdu,
                stall_timeout: params.policy.stall_timeout,
            })?;
            Ok(Established { private_data: self.private_data().to_vec(), negotiated, local, peer })
        });
        if result.is_err() {
            super::release(&inner);
            add(&self.device.counters.connect_errors, 1);
        }
        result
    }

    /// Sends a frame, in one piece.
    fn reply(&mut self, frame: &[u8]) -> Result<OwnedFd> {
        let fd = self.fd.take().ok_or(Error::Closed("MPA Reply"))?;
        if let Some(capture) = &self.capture {
            capture.sent(frame);
        }
        match sys::send(fd.as_fd(), &[SendPiece::bytes(frame)]) {
            Ok(n) if n == frame.len() => Ok(fd),
            _ => Err(Error::Closed("MPA Reply")),
        }
    }

    /// Rejects, with something for the peer's application.
    ///
    /// # Errors
    /// [`Error::Startup`] if the private data is too long, [`Error::Closed`] if the peer went away.
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        self.refuse(private_data)
    }

    fn refuse(&mut self, private_data: &[u8]) -> Result<()> {
        self.device.check_fork()?;
        let mut frame = [0; MAX_FRAME];
        let len = self.request.reject(&self.policy.mpa, private_data, &mut frame).map_err(Error::Startup)?;
        let fd = self.reply(&frame[..len])?;
        let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Write);
        Ok(())
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if self.fd.is_some() && !self.device.is_forked() {
            let _ = self.refuse(&[]);
        }
    }
}
