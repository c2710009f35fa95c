//! An accepted TCP connection until its Request is in.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use iwarp::mpa::startup::{MAX_FRAME, Request};

use super::policy::ConnPolicy;
use super::request::ConnRequest;
use crate::counters::add;
use crate::device::DeviceInner;
use crate::error::{Error, Result};
use crate::net::tcp;
use crate::pcap::Side;
use crate::shard::{Interest, Readiness, Shard, Source, Timer, Token};
use crate::signal::Signal;

/// Takes what came of an incoming connection.
pub(super) type Deliver = Box<dyn Fn(Result<ConnRequest>) + Send + Sync>;

struct Inner {
    fd: Option<OwnedFd>,
    token: Option<Token>,
    bytes: Vec<u8>,
}

/// Reads the Request and hands it on.
pub(super) struct Incoming {
    device: Arc<DeviceInner>,
    shard: Arc<Shard>,
    policy: ConnPolicy,
    deliver: Deliver,
    inner: Mutex<Inner>,
}

impl Incoming {
    /// Serves `fd` until the Request is in or `policy.request_timeout` is over; either is delivered.
    pub(super) fn start(
        device: &Arc<DeviceInner>,
        fd: OwnedFd,
        policy: &ConnPolicy,
        deliver: Deliver,
    ) -> Result<()> {
        let os = |e: std::io::Error| Error::os("take a connection", e);
        tcp::prepare(&fd, Some(device.config.path_timeout)).map_err(os)?;
        let shard = device.shard();
        let incoming = Arc::new(Self {
            device: Arc::clone(device),
            shard: Arc::clone(&shard),
            policy: policy.clone(),
            deliver,
            inner: Mutex::new(Inner { fd: None, token: None, bytes: Vec::new() }),
        });
        let source: Arc<dyn Source> = Arc::clone(&incoming) as Arc<dyn Source>;
        let weak: Weak<dyn Source> = Arc::downgrade(&source);
        let mut inner = incoming.lock();
        let token = shard.add(&fd, Interest { read: true, write: false }, source).map_err(os)?;
        (inner.fd, inner.token) = (Some(fd), Some(token));
        drop(inner);
        shard.timer(crate::wait::moment(policy.request_timeout), weak, Timer::Deadline);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, inner: &mut Inner) -> Result<Option<ConnRequest>> {
        let Some(fd) = &inner.fd else { return Ok(None) };
        let mut chunk = [0; MAX_FRAME];
        match tcp::recv(fd, &mut chunk) {
            Ok(0) => return Err(Error::Closed("waiting for the MPA Request")),
            Ok(n) => inner.bytes.extend_from_slice(&chunk[..n]),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return Ok(None),
            Err(e) => return Err(Error::os("read the MPA Request", e)),
        }
        // rule 5044-7.1.2-2
        let Some(request) = Request::parse(&inner.bytes).map_err(Error::Startup)? else { return Ok(None) };
        let Some(fd) = inner.fd.take() else { return Ok(None) };
        if let Some(token) = inner.token.take() {
            self.shard.remove(&fd, token);
        }
        let capture = self.device.pcap.as_ref().and_then(|p| p.flow(&fd, Side::Responder));
        if let Some(capture) = &capture {
            capture.startup_received(&inner.bytes[..request.consumed]);
        }
        let bytes = std::mem::take(&mut inner.bytes);
        let parts = (fd, Arc::clone(&self.shard), capture);
        ConnRequest::new(&self.device, parts, request, bytes, &self.policy).map(Some)
    }

    fn give_up(&self, inner: &mut Inner, error: Error) {
        if let Some(fd) = inner.fd.take()
            && let Some(token) = inner.token.take()
        {
            self.shard.remove(&fd, token);
        }
        add(&self.device.counters.connect_errors, 1);
        tracing::debug!(%error, "incoming connection given up");
        (self.deliver)(Err(error));
    }
}

impl Source for Incoming {
    fn ready(&self, _: Readiness) {
        let mut inner = self.lock();
        if inner.fd.is_none() {
            return;
        }
        match self.read(&mut inner) {
            Ok(None) => {}
            Ok(Some(request)) => (self.deliver)(Ok(request)),
            Err(e) => self.give_up(&mut inner, e),
        }
    }

    fn timer(&self, _: Timer) {
        let mut inner = self.lock();
        if inner.fd.is_some() {
            // rule 5044-7.1.2-7
            let after = self.policy.request_timeout;
            self.give_up(&mut inner, Error::Timeout { what: "MPA Request", after });
        }
    }
}

/// Blocks until the Request of one given connection is in.
pub(super) fn wait_for_request(
    device: &Arc<DeviceInner>,
    fd: OwnedFd,
    policy: &ConnPolicy,
    timeout: Duration,
) -> Result<ConnRequest> {
    let slot: Arc<(Mutex<Option<Result<ConnRequest>>>, Signal)> = Arc::default();
    let theirs = Arc::clone(&slot);
    let deliver: Deliver = Box::new(move |result| {
        *theirs.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        theirs.1.set();
    });
    Incoming::start(device, fd, policy, deliver)?;
    // The deadline is the shard's; twice as long means that it died.
    slot.1.wait(Some(timeout * 2));
    let taken = slot.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.unwrap_or(Err(Error::Timeout { what: "MPA Request", after: timeout }))
}
