//! Listeners.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::incoming::{Deliver, Incoming};
use super::policy::ConnPolicy;
use super::request::ConnRequest;
use crate::device::{Device, DeviceInner};
use crate::error::{Error, Result};
use crate::net::tcp;
use crate::shard::{Interest, Readiness, Shard, Source, Timer, Token};

/// How a listener is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenConfig {
    /// Requests that wait for accept; further ones are turned away.
    pub backlog: u32,
    /// Rules for what is accepted, and for a reject's form.
    pub policy: ConnPolicy,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { backlog: 1024, policy: ConnPolicy::default() }
    }
}

impl ListenConfig {
    /// Default backlog, these rules.
    pub fn with_policy(policy: ConnPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<ConnRequest>,
    wakers: Vec<Waker>,
}

struct Inner {
    device: Arc<DeviceInner>,
    shard: Arc<Shard>,
    fd: OwnedFd,
    token: OnceLock<Token>,
    config: ListenConfig,
    /// Counts the requests that wait.
    ready: OwnedFd,
    queue: Mutex<Queue>,
    /// Connections whose Request is not in yet.
    half_open: AtomicUsize,
    me: Weak<Self>,
}

/// Accepted connections that may be without a Request at once.
const HALF_OPEN: usize = 4096;
/// Pause after running out of descriptors.
const BREATH: Duration = Duration::from_millis(50);

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<ConnRequest> {
        if self.device.is_forked() {
            return None;
        }
        let mut q = self.lock();
        let request = q.requests.pop_front()?;
        let mut one = [0u8; 8];
        let _ = rustix::io::read(&self.ready, &mut one);
        Some(request)
    }

    fn deliver(&self, result: Result<ConnRequest>) {
        self.half_open.fetch_sub(1, Ordering::Relaxed);
        let Ok(request) = result else { return };
        let mut q = self.lock();
        if q.requests.len() >= self.config.backlog as usize {
            drop(q);
            // Dropped here, outside the lock: that rejects it.
            drop(request);
            return;
        }
        q.requests.push_back(request);
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
        let wakers = std::mem::take(&mut q.wakers);
        drop(q);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn incoming(&self, fd: OwnedFd) {
        if self.half_open.fetch_add(1, Ordering::Relaxed) >= HALF_OPEN {
            self.half_open.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let me = self.me.clone();
        let deliver: Deliver = Box::new(move |result| {
            if let Some(listener) = me.upgrade() {
                listener.deliver(result);
            }
        });
        if Incoming::start(&self.device, fd, &self.config.policy, deliver).is_err() {
            self.half_open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn set_listening(&self, on: bool) {
        if let Some(token) = self.token.get() {
            self.shard.set_interest(&self.fd, *token, Interest { read: on, write: false });
        }
    }
}

impl Source for Inner {
    fn ready(&self, _: Readiness) {
        for _ in 0..64 {
            match tcp::accept(&self.fd) {
                Ok(Some(fd)) => self.incoming(fd),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.set_listening(false);
                    self.shard.timer(crate::wait::moment(BREATH), self.me.clone(), Timer::Settle);
                    return;
                }
            }
        }
    }

    fn timer(&self, _: Timer) {
        self.set_listening(true);
    }
}

#[derive(Debug)]
struct Handle(Arc<Inner>);

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("waiting", &self.lock().requests.len()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The epoll descriptor is the parent's, too: a child must not take the listener out of it.
        if self.0.device.is_forked() {
            return;
        }
        if let Some(token) = self.0.token.get() {
            self.0.shard.remove(&self.0.fd, *token);
        }
        // Those that wait are rejected.
        let waiting = std::mem::take(&mut self.0.lock().requests);
        drop(waiting);
    }
}

/// Takes connection requests; readable ([`AsFd`]) while one waits. Clones are one object.
#[derive(Clone, Debug)]
pub struct Listener(Arc<Handle>);

impl Listener {
    /// Listens on an address; port 0 chooses one, a wildcard address takes all of its family (`[::]`
    /// both, where the system has it so).
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::FileDescriptors`].
    pub fn bind(device: &Device, addr: SocketAddr, config: ListenConfig) -> Result<Self> {
        device.0.check_fork()?;
        let backlog = i32::try_from(config.backlog).unwrap_or(i32::MAX).max(1);
        let fd = tcp::listen(&addr, backlog).map_err(|source| Error::Listen { addr, source })?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let ready = eventfd(0, flags).map_err(|e| Error::os("create a listener", e))?;
        let inner = Arc::new_cyclic(|me| Inner {
            device: Arc::clone(&device.0),
            shard: device.0.shard(),
            fd,
            token: OnceLock::new(),
            config,
            ready: tcp::raise(ready),
            queue: Mutex::default(),
            half_open: AtomicUsize::new(0),
            me: me.clone(),
        });
        let source = Arc::clone(&inner) as Arc<dyn Source>;
        let token = inner
            .shard
            .add(&inner.fd, Interest { read: true, write: false }, source)
            .map_err(|e| Error::os("watch a listener", e))?;
        let _ = inner.token.set(token);
        Ok(Self(Arc::new(Handle(inner))))
    }

    fn inner(&self) -> &Inner {
        &self.0.0
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn local_addr(&self) -> Result<SocketAddr> {
        tcp::local_address(&self.inner().fd).map_err(|e| Error::os("query a listener", e))
    }

    /// The next request, waited for at most `timeout` (`None`: for ever).
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Os`], [`Error::Forked`].
    pub fn accept(&self, timeout: Option<Duration>) -> Result<ConnRequest> {
        self.inner().device.check_fork()?;
        let deadline = crate::wait::deadline(timeout);
        loop {
            if let Some(request) = self.inner().take() {
                return Ok(request);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if !crate::wait::readable(&self.inner().ready, left)? {
                return Err(Error::Timeout {
                    what: "connection request",
                    after: timeout.unwrap_or_default(),
                });
            }
        }
    }

    /// The next request, if one waits.
    pub fn try_accept(&self) -> Option<ConnRequest> {
        self.inner().take()
    }

    /// For tasks: ready with the next request.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<ConnRequest> {
        loop {
            if let Some(request) = self.inner().take() {
                return Poll::Ready(request);
            }
            if self.inner().device.is_forked() {
                return Poll::Pending;
            }
            let mut q = self.inner().lock();
            if q.requests.is_empty() {
                if !q.wakers.iter().any(|w| w.will_wake(cx.waker())) {
                    q.wakers.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
    }

    /// The next request.
    pub async fn accept_async(&self) -> ConnRequest {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner().ready.as_fd()
    }
}
