//! Completion channels: one descriptor that tells which completion queues have news.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::cq::{CompletionQueue, Shared};
use crate::error::{Error, Result};
use crate::home::Home;

/// A descriptor that is readable while events of its completion queues wait.
///
/// A clone is another handle of the same channel; several threads may wait, and each event goes to one.
#[derive(Clone)]
pub struct CompletionChannel {
    inner: Arc<Inner>,
}

struct Inner {
    home: Home,
    fd: OwnedFd,
    /// The descriptor is readable exactly while this is not empty.
    events: Mutex<VecDeque<(u64, Weak<Shared>)>>,
}

impl CompletionChannel {
    /// A channel without events.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { inner: Arc::new(Inner { home: Home::here(), fd: eventfd()?, events: Mutex::default() }) })
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<(u64, Weak<Shared>)>> {
        self.inner.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self, id: u64, queue: &Arc<Shared>) {
        let mut events = self.events();
        events.push_back((id, Arc::downgrade(queue)));
        if events.len() == 1 {
            signal(&self.inner.fd);
        }
    }

    /// Forgets the waiting events of a queue.
    pub(super) fn purge(&self, id: u64) {
        let mut events = self.events();
        if !events.is_empty() {
            events.retain(|(queue, _)| *queue != id);
            self.settle(&events);
        }
    }

    fn settle(&self, events: &VecDeque<(u64, Weak<Shared>)>) {
        if events.is_empty() {
            drain(&self.inner.fd);
        }
    }

    /// The oldest event, if there is one now (there is none in a child of the process that made the channel).
    pub fn try_get(&self) -> Option<CqEvent> {
        if !self.inner.home.is_here() {
            return None;
        }
        // Dropped after the lock: the last hold on a queue purges its events.
        let mut dead = Vec::new();
        let mut events = self.events();
        let mut found = None;
        while let Some((_, queue)) = events.pop_front() {
            match queue.upgrade() {
                Some(queue) => {
                    queue.handed_out();
                    found = Some(CqEvent {
                        queue: CompletionQueue::from_shared(queue.clone()),
                        shared: Some(queue),
                    });
                    break;
                }
                None => dead.push(queue),
            }
        }
        if found.is_some() || !dead.is_empty() {
            self.settle(&events);
        }
        drop(events);
        found
    }

    /// The oldest event, waiting for one up to `timeout` (`None`: for ever). `Ok(None)`: none came in time.
    ///
    /// # Errors
    /// [`Error::Os`] when the system cannot wait; [`Error::Forked`] in a child of the process that made the
    /// channel.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>> {
        self.inner.home.check()?;
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if let Some(event) = self.try_get() {
                return Ok(Some(event));
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            poll(&[PollFd::new(&self.inner.fd, PollFlags::IN)], left)?;
        }
    }
}

impl AsFd for CompletionChannel {
    /// Readable while events wait; take them with [`Self::try_get`], do not read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("waiting", &self.events().len()).finish_non_exhaustive()
    }
}

/// The news that an armed completion queue got a completion. Arm it again, then poll it.
///
/// Acknowledged when dropped.
pub struct CqEvent {
    queue: CompletionQueue,
    /// Taken when the acknowledgement is somebody else's.
    shared: Option<Arc<Shared>>,
}

impl CqEvent {
    /// The queue.
    pub fn cq(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Acknowledges the event.
    pub fn ack(self) {}

    /// Leaves the acknowledgement to [`CompletionQueue::ack_events`].
    pub fn defer(mut self) -> CompletionQueue {
        self.shared = None;
        self.queue.clone()
    }
}

impl Drop for CqEvent {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.ack(1);
        }
    }
}

impl fmt::Debug for CqEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqEvent").field("cq", &self.queue).finish_non_exhaustive()
    }
}

/// An event descriptor: non-blocking, closed on exec, out of the program's low descriptors.
pub(super) fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map(crate::net::tcp::raise)
        .map_err(|e| Error::os("creating an event descriptor", e))
}

/// Makes it readable.
pub(super) fn signal(fd: &OwnedFd) {
    // Cannot fail: the counter is far from its maximum.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes it unreadable.
pub(super) fn drain(fd: &OwnedFd) {
    // EAGAIN: it was not readable.
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

/// Waits until one of the descriptors is ready, the time is over, or a signal came.
fn poll(fds: &[PollFd<'_>; 1], left: Option<Duration>) -> Result<()> {
    let left = left.map(|d| Timespec {
        tv_sec: d.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: i64::from(d.subsec_nanos()),
    });
    match rustix::event::poll(&mut fds.clone(), left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(Error::os("waiting for a completion event", e)),
    }
}
