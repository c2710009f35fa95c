//! The application's handle of a queue pair.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iwarp::Terminate;
use iwarp::mpa::startup::Negotiated;

use super::close::Cause;
use super::recvq::RecvQueue;
use super::shared::Shared;
use super::{Caps, QpInner, QpState, Rx, Tx};
use crate::counters::{QpCounters, QpCounts};
use crate::device::limits;
use crate::error::{Error, PostError, Result};
use crate::pd::{ProtectionDomain, within};
use crate::queue::{CompletionQueue, Progress};
use crate::signal::Signal;
use crate::srq::SharedReceiveQueue;
use crate::wr::{RecvWr, SendWr};

/// How a queue pair is created.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpInit {
    /// Where sends complete.
    pub send_cq: CompletionQueue,
    /// Where receives complete.
    pub recv_cq: CompletionQueue,
    /// Takes receives from here instead of an own queue.
    pub srq: Option<SharedReceiveQueue>,
    /// Send work requests at once.
    pub max_send_wr: u32,
    /// Receives at once (own queue).
    pub max_recv_wr: u32,
    /// Scatter/gather elements per request.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// Every send request is signalled.
    pub signal_all: bool,
}

impl QpInit {
    /// One completion queue for both, 128 requests each way, 16 elements, 256 bytes inline.
    pub fn new(cq: &CompletionQueue) -> Self {
        Self::with_cqs(cq, cq)
    }

    /// Likewise with two completion queues.
    pub fn with_cqs(send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self {
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_sge: 16,
            max_inline: 256,
            signal_all: false,
        }
    }

    /// Takes receives from a shared queue.
    #[must_use]
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Depths of both queues.
    #[must_use]
    pub fn depth(mut self, send: u32, recv: u32) -> Self {
        (self.max_send_wr, self.max_recv_wr) = (send, recv);
        self
    }

    /// Elements per request.
    #[must_use]
    pub fn sge(mut self, max: u32) -> Self {
        self.max_sge = max;
        self
    }

    /// Bytes of inline data.
    #[must_use]
    pub fn inline(mut self, max: u32) -> Self {
        self.max_inline = max;
        self
    }

    /// Every send request is signalled.
    #[must_use]
    pub fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }
}

/// What a query of a queue pair tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// Number.
    pub qp_num: u32,
    /// Send work requests at once.
    pub max_send_wr: u32,
    /// Receives at once.
    pub max_recv_wr: u32,
    /// Scatter/gather elements per request.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// What was negotiated, while connected.
    pub negotiated: Option<Negotiated>,
    /// Own address, while connected.
    pub local: Option<SocketAddr>,
    /// The peer's address, while connected.
    pub peer: Option<SocketAddr>,
    /// Send requests posted and not completed.
    pub outstanding: u32,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum End {
    /// This side disconnected.
    Local,
    /// The peer disconnected between two messages.
    Peer,
    /// The stream was cut in mid-message, or TCP failed with this errno.
    Broken(Option<i32>),
    /// Memory of a message under way was withdrawn or unmapped.
    SourceLost(iwarp::TaggedFault),
    /// The peer's TCP no longer answered.
    DeadPath,
    /// The peer was silent for longer than [`crate::ConnPolicy::stall_timeout`].
    Stalled,
    /// We terminated the stream, for this reason.
    Fault(iwarp::Fault),
    /// The peer terminated it; `None` where it did not say why.
    Terminated(Option<Terminate>),
}

#[derive(Debug)]
struct Handle {
    inner: Arc<QpInner>,
    hooks: [(CompletionQueue, u64); 2],
}

/// A reliable connection's work queues. Clones are one object; when the last goes, the connection closes
/// in good order and what is posted is flushed.
#[derive(Clone, Debug)]
pub struct QueuePair(Arc<Handle>);

impl QueuePair {
    pub(crate) fn new(pd: &ProtectionDomain, init: &QpInit) -> Result<Self> {
        within("max_send_wr", init.max_send_wr, limits::WR)?;
        within("max_recv_wr", init.max_recv_wr, limits::WR)?;
        within("max_inline", init.max_inline, limits::INLINE)?;
        let max_sge = super::post::max_sge(init.max_sge)?;
        if init.srq.as_ref().is_some_and(|s| !Arc::ptr_eq(&s.pd.device, &pd.0.device)) {
            return Err(Error::Invalid("the shared receive queue belongs to another device"));
        }
        let device = Arc::clone(&pd.0.device);
        if device.qps.fetch_add(1, Ordering::Relaxed) >= limits::QP {
            device.qps.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Limit { what: "qp", value: limits::QP.into(), limit: limits::QP.into() });
        }
        let caps = Caps {
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_sge,
            max_inline: init.max_inline,
            signal_all: init.signal_all,
        };
        let rq = init.srq.as_ref().map_or_else(|| RecvQueue::own(init.max_recv_wr), |s| Arc::clone(&s.queue));
        let num = device.take_number();
        let inner = Arc::new_cyclic(|me| QpInner {
            pd: Arc::clone(&pd.0),
            num,
            caps,
            send_cq: init.send_cq.clone(),
            recv_cq: init.recv_cq.clone(),
            rq,
            counters: QpCounters::default(),
            state: AtomicU8::new(QpState::Init as u8),
            draining: AtomicBool::new(false),
            outstanding: AtomicU32::new(0),
            tx: Mutex::new(Tx::default()),
            tx_wanted: AtomicBool::new(false),
            rx: Mutex::new(Rx::default()),
            reads_waiting: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            shared: Mutex::new(Shared::new(0, 0)),
            ended: Mutex::new(None),
            lives: AtomicU32::new(0),
            gone: Signal::default(),
            me: me.clone(),
            device,
        });
        let hook = |cq: &CompletionQueue| {
            let weak: std::sync::Weak<dyn Progress> = inner.weak();
            (cq.clone(), cq.attach(weak))
        };
        let hooks = if init.send_cq.id() == init.recv_cq.id() {
            let one = hook(&init.send_cq);
            [one.clone(), one]
        } else {
            [hook(&init.send_cq), hook(&init.recv_cq)]
        };
        Ok(Self(Arc::new(Handle { inner, hooks })))
    }

    pub(crate) fn inner(&self) -> &Arc<QpInner> {
        &self.0.inner
    }

    /// Its number, unique in the device.
    pub fn num(&self) -> u32 {
        self.0.inner.num
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.0.inner.state()
    }

    /// Asks for another state: Error ends the connection, Sqd stops sending, Rts resumes it, Reset starts anew.
    ///
    /// # Errors
    /// [`Error::State`] for a move that does not exist; [`Error::Forked`] in a child of the process that
    /// created it, as for all calls here that can fail.
    pub fn modify(&self, state: QpState) -> Result<()> {
        self.0.inner.device.check_fork()?;
        self.0.inner.modify(state)
    }

    /// What it is.
    pub fn query(&self) -> QpAttr {
        let inner = &self.0.inner;
        // In a forked child the lock may be held by a thread that is not there.
        let link = if inner.device.is_forked() { None } else { inner.lock_rx().link() };
        QpAttr {
            state: inner.state(),
            qp_num: inner.num,
            max_send_wr: inner.caps.max_send_wr,
            max_recv_wr: inner.caps.max_recv_wr,
            max_sge: inner.caps.max_sge,
            max_inline: inner.caps.max_inline,
            negotiated: link.as_ref().map(|l| l.negotiated),
            local: link.as_ref().map(|l| l.local),
            peer: link.as_ref().map(|l| l.peer),
            outstanding: inner.outstanding(),
        }
    }

    /// What was negotiated, while connected.
    pub fn negotiated(&self) -> Option<Negotiated> {
        self.query().negotiated
    }

    /// The peer's address, while connected.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.query().peer
    }

    /// Totals.
    pub fn counters(&self) -> QpCounts {
        self.0.inner.counters.snapshot()
    }

    /// Posts a send request; what can go out at once does before this returns. Never blocks.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::QueueFull`], [`Error::LocalMemory`], [`Error::Limit`],
    /// [`Error::NotNegotiated`] (RFC 7306), [`Error::Invalid`].
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<()> {
        self.post_send_list(std::slice::from_ref(wr)).map_err(|e| e.error)
    }

    /// Posts several at once, in as few system calls as possible.
    ///
    /// # Errors
    /// The first that failed; those before it are posted.
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), PostError> {
        self.0.inner.post_send(wrs)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`Error::State`], [`Error::QueueFull`], [`Error::LocalMemory`], [`Error::Limit`],
    /// [`Error::Invalid`] with a shared receive queue.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.0.inner.post_recv(wr)
    }

    /// Posts several receives.
    ///
    /// # Errors
    /// The first that failed; those before it are posted.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> std::result::Result<(), PostError> {
        wrs.iter()
            .enumerate()
            .try_for_each(|(index, wr)| self.post_recv(wr).map_err(|error| PostError { index, error }))
    }

    /// Ends the connection in good order: what TCP has is delivered, what is posted is flushed. In a forked
    /// child it does nothing: the connection is the parent's.
    pub fn disconnect(&self) {
        if !self.0.inner.device.is_forked() {
            self.0.inner.end_here(Cause::Local);
        }
    }

    /// How the connection ended, once it has.
    pub fn end(&self) -> Option<End> {
        if self.0.inner.device.is_forked() {
            return None;
        }
        self.0.inner.cause().map(|cause| match cause {
            Cause::Local | Cause::Reset => End::Local,
            Cause::PeerClosed { clean: true } => End::Peer,
            Cause::PeerClosed { clean: false } => End::Broken(None),
            Cause::Broken(errno) => End::Broken(errno),
            Cause::SourceLost(fault) => End::SourceLost(fault),
            Cause::DeadPath => End::DeadPath,
            Cause::Stalled => End::Stalled,
            Cause::Fault(f) | Cause::LateFault(f) => End::Fault(f),
            Cause::Request { .. } => End::Fault(iwarp::Fault::LocalResource),
            Cause::Terminated(m) => End::Terminated(m.map(|m| m.terminate)),
        })
    }

    /// Waits for the connection's end; `None` if it lasts longer than `timeout`.
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Option<End> {
        if self.0.inner.device.is_forked() {
            return None;
        }
        self.0.inner.gone().wait(timeout);
        self.end()
    }

    /// Likewise for tasks.
    pub async fn disconnected(&self) -> Option<End> {
        std::future::poll_fn(|cx| self.0.inner.gone().poll(cx)).await;
        self.end()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.inner.device.is_forked() {
            return;
        }
        self.inner.end_here(Cause::Local);
        let [(a, first), (b, second)] = &self.hooks;
        a.detach(*first);
        if first != second || a.id() != b.id() {
            b.detach(*second);
        }
    }
}
