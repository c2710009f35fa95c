//! The initiator: TCP connect, Request, Reply, pause, established.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use iwarp::mpa::startup::{Initiator, MAX_FRAME, Negotiated, StartupError};

use super::policy::{ConnParams, Established};
use crate::counters::add;
use crate::error::{Error, Result};
use crate::net::sys::{self, SendPiece};
use crate::net::tcp;
use crate::pcap::{Flow, Side};
use crate::qp::QpInner;
use crate::qp::establish::Connection;
use crate::shard::{Interest, Readiness, Shard, Source, Timer, Token};
use crate::signal::Signal;

enum Phase {
    Connecting,
    Replying(Vec<u8>),
    Settling { negotiated: Negotiated, private_data: Vec<u8>, early: Vec<u8> },
    Done(Option<Result<Established>>),
}

struct Inner {
    fd: Option<OwnedFd>,
    token: Option<Token>,
    phase: Phase,
    capture: Option<Flow>,
}

/// A connection being set up by this side.
pub(super) struct Dial {
    qp: Arc<QpInner>,
    shard: Arc<Shard>,
    peer: SocketAddr,
    params: ConnParams,
    initiator: Initiator,
    inner: Mutex<Inner>,
    done: Signal,
    me: Weak<Self>,
}

/// The caller's end; dropping it gives the attempt up.
pub(super) struct Attempt(Arc<Dial>);

impl Dial {
    pub(super) fn start(qp: Arc<QpInner>, peer: SocketAddr, params: ConnParams) -> Result<Attempt> {
        let initiator = prepare(&params)?;
        let fd = tcp::start_connect(&peer, params.local.as_ref()).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => Error::os("connecting", source),
                _ => Error::Connect { peer, source },
            }
        })?;
        Self::launch(qp, peer, params, initiator, fd)
    }

    /// Over a socket that is connected already.
    pub(super) fn adopt(qp: Arc<QpInner>, fd: OwnedFd, params: ConnParams) -> Result<Attempt> {
        let initiator = prepare(&params)?;
        // rule 5044-7.1.5-1
        rustix::io::ioctl_fionbio(&fd, true).map_err(|e| Error::os("convert a socket", e))?;
        let (_, peer) = tcp::addresses(&fd).map_err(|e| Error::os("convert a socket", e))?;
        Self::launch(qp, peer, params, initiator, fd)
    }

    fn launch(
        qp: Arc<QpInner>,
        peer: SocketAddr,
        params: ConnParams,
        initiator: Initiator,
        fd: OwnedFd,
    ) -> Result<Attempt> {
        let shard = qp.device.shard();
        let dial = Arc::new_cyclic(|me| Self {
            qp,
            shard: Arc::clone(&shard),
            peer,
            params,
            initiator,
            inner: Mutex::new(Inner { fd: None, token: None, phase: Phase::Connecting, capture: None }),
            done: Signal::default(),
            me: me.clone(),
        });
        let mut inner = dial.lock();
        let token = shard
            .add(&fd, Interest { read: false, write: true }, Arc::clone(&dial) as Arc<dyn Source>)
            .map_err(|e| Error::os("watch a connection", e))?;
        (inner.fd, inner.token) = (Some(fd), Some(token));
        drop(inner);
        let deadline = crate::wait::moment(dial.params.policy.connect_timeout);
        shard.timer(deadline, dial.weak(), Timer::Deadline);
        Ok(Attempt(dial))
    }

    fn weak(&self) -> Weak<dyn Source> {
        self.me.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// TCP is connected: sends the Request, in one piece.
    fn connected(&self, inner: &mut Inner) -> Result<()> {
        let Some(fd) = &inner.fd else { return Ok(()) };
        tcp::connect_result(fd).map_err(|source| Error::Connect { peer: self.peer, source })?;
        let keep_alive = self.qp.device.config.path_timeout;
        tcp::prepare(fd, Some(keep_alive)).map_err(|e| Error::os("prepare a connection", e))?;
        let mut frame = [0; MAX_FRAME];
        // rule 5044-7.1.2-1
        let len = self.initiator.request(&mut frame);
        inner.capture = self.qp.device.pcap.as_ref().and_then(|p| p.flow(fd, Side::Initiator));
        if let Some(capture) = &inner.capture {
            capture.sent(&frame[..len]);
        }
        match sys::send(fd.as_fd(), &[SendPiece::bytes(&frame[..len])]) {
            Ok(n) if n == len => {}
            Ok(_) => return Err(Error::Closed("MPA Request")),
            Err(source) => return Err(Error::Connect { peer: self.peer, source }),
        }
        if let Some(token) = inner.token {
            self.shard.set_interest(fd, token, Interest { read: true, write: false });
        }
        inner.phase = Phase::Replying(Vec::new());
        Ok(())
    }

    /// Reads the Reply. Returns whether start-up is over but for the pause.
    fn reply(&self, inner: &mut Inner) -> Result<bool> {
        let Inner { fd: Some(fd), phase: Phase::Replying(bytes), capture, .. } = inner else {
            return Ok(false);
        };
        let mut chunk = [0; MAX_FRAME];
        match tcp::recv(&*fd, &mut chunk) {
            Ok(0) => return Err(Error::Closed("waiting for the MPA Reply")),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return Ok(false),
            Err(e) if e.raw_os_error() == Some(libc::ECONNRESET) => {
                return Err(Error::Closed("waiting for the MPA Reply"));
            }
            Err(source) => return Err(Error::Connect { peer: self.peer, source }),
        }
        let reply = match self.initiator.reply(bytes) {
            Ok(None) => return Ok(false),
            Ok(Some(reply)) => reply,
            Err(e) => {
                send_terminate(fd, e);
                return Err(Error::Startup(e));
            }
        };
        if let Some(capture) = capture {
            capture.startup_received(&bytes[..reply.consumed]);
        }
        let private_data = bytes[reply.private_data.clone()].to_vec();
        // rule 5044-7.1.2-5
        if reply.rejected {
            return Err(Error::Rejected { peer: self.peer, private_data });
        }
        // rule 5044-7.1.2-4
        let early = bytes[reply.consumed..].to_vec();
        inner.phase = Phase::Settling { negotiated: reply.negotiated, private_data, early };
        Ok(true)
    }

    /// The connection is ours: hands it to the queue pair.
    fn settle(&self, inner: &mut Inner) -> Result<Established> {
        let phase = std::mem::replace(&mut inner.phase, Phase::Done(None));
        let (Phase::Settling { negotiated, private_data, early }, Some(fd)) = (phase, inner.fd.take()) else {
            return Err(Error::Closed("MPA start-up"));
        };
        if let Some(token) = inner.token.take() {
            self.shard.remove(&fd, token);
        }
        let (local, peer) = self.qp.establish(Connection {
            fd,
            shard: Arc::clone(&self.shard),
            negotiated,
            responder: false,
            early,
            capture: inner.capture.take(),
            fpdu: self.params.policy.fpdu,
            stall_timeout: self.params.policy.stall_timeout,
        })?;
        Ok(Established { private_data, negotiated, local, peer })
    }

    fn finish(&self, inner: &mut Inner, result: Result<Established>) {
        if let Some(fd) = inner.fd.take()
            && let Some(token) = inner.token.take()
        {
            self.shard.remove(&fd, token);
        }
        inner.capture = None;
        if result.is_err() {
            add(&self.qp.device.counters.connect_errors, 1);
            super::release(&self.qp);
        }
        inner.phase = Phase::Done(Some(result));
        self.done.set();
    }

    fn step(&self, inner: &mut Inner) -> Result<()> {
        if let Phase::Connecting = inner.phase {
            return self.connected(inner);
        }
        if !self.reply(inner)? {
            return Ok(());
        }
        let foreign = matches!(&inner.phase, Phase::Settling { negotiated, .. } if !negotiated.extensions);
        let pause = self.params.policy.settle;
        if foreign && !pause.is_zero() {
            if let (Some(fd), Some(token)) = (&inner.fd, inner.token) {
                self.shard.set_interest(fd, token, Interest::default());
            }
            self.shard.timer(crate::wait::moment(pause), self.weak(), Timer::Settle);
        } else {
            let result = self.settle(inner);
            self.finish(inner, result);
        }
        Ok(())
    }
}

fn prepare(params: &ConnParams) -> Result<Initiator> {
    Initiator::new(params.policy.mpa.clone(), &params.private_data).map_err(Error::Startup)
}

/// Tells the peer why its Reply will not do, where RFC 6581 §8 has a code for that. Best effort.
fn send_terminate(fd: &OwnedFd, error: StartupError) {
    // rule 6581-8-1
    let Some(t) = error.terminate() else { return };
    let mut body = [0; iwarp::wire::terminate::MAX_LEN];
    let len = iwarp::wire::terminate::encode(t, None, 0, &mut body);
    let mut tx = iwarp::tx::Transmitter::new(1024);
    tx.begin(&iwarp::tx::Message::Terminate { body, len });
    if let Some(segment) = tx.next_segment() {
        let mut fpdu = segment.header().to_vec();
        fpdu.resize(segment.fpdu_len(), 0);
        iwarp::mpa::frame::seal(&mut fpdu, segment.ulpdu_len(), Some(&crate::crc::update));
        let _ = sys::send(fd.as_fd(), &[SendPiece::bytes(&fpdu)]);
    }
}

impl Source for Dial {
    fn ready(&self, ready: Readiness) {
        let mut inner = self.lock();
        match inner.phase {
            Phase::Done(_) => return,
            Phase::Settling { .. } if !ready.broken => return,
            _ => {}
        }
        if let Err(e) = self.step(&mut inner) {
            self.finish(&mut inner, Err(e));
        }
    }

    fn timer(&self, timer: Timer) {
        let mut inner = self.lock();
        match (timer, &inner.phase) {
            (_, Phase::Done(_)) => {}
            (Timer::Settle, Phase::Settling { .. }) => {
                let result = self.settle(&mut inner);
                self.finish(&mut inner, result);
            }
            // rule 5044-7.1.2-7
            (Timer::Deadline, phase) => {
                let what = if matches!(phase, Phase::Connecting) { "TCP connect" } else { "MPA Reply" };
                let after = self.params.policy.connect_timeout;
                self.finish(&mut inner, Err(Error::Timeout { what, after }));
            }
            _ => {}
        }
    }
}

impl Attempt {
    fn take(&self) -> Result<Established> {
        match &mut self.0.lock().phase {
            Phase::Done(result) => result.take().unwrap_or(Err(Error::Closed("connecting"))),
            _ => Err(Error::Closed("connecting")),
        }
    }

    /// Blocks until it is over; the deadline bounds that.
    pub(super) fn wait(self) -> Result<Established> {
        self.0.done.wait(None);
        self.take()
    }

    pub(super) async fn finished(self) -> Result<Established> {
        std::future::poll_fn(|cx| self.0.done.poll(cx)).await;
        self.take()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.0.qp.device.is_forked() {
            return;
        }
        let mut inner = self.0.lock();
        if !matches!(inner.phase, Phase::Done(_)) {
            self.0.finish(&mut inner, Err(Error::Closed("the attempt was given up")));
        }
    }
}
