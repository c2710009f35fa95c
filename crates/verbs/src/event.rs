//! Asynchronous events: what happens to objects without a work request asking for it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use iwarp::Terminate;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Error, Result};
use crate::home::Home;

/// Names a shared receive queue in events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SrqId(pub u32);

/// An event. Names follow verbs.h (`ibv_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The connection came about (first FPDU received by the responder).
    CommunicationEstablished {
        /// Queue pair number.
        qp_num: u32,
    },
    /// The stream broke, or a fault of either side ended it.
    QpFatal {
        /// Queue pair number.
        qp_num: u32,
        /// The Terminate sent or received, where there was one.
        terminate: Option<Terminate>,
        /// Whether the peer sent it.
        from_peer: bool,
    },
    /// The peer broke an access rule of ours.
    QpAccessError {
        /// Queue pair number.
        qp_num: u32,
        /// The Terminate that told it so.
        terminate: Terminate,
    },
    /// The peer closed the connection in good order.
    Disconnected {
        /// Queue pair number.
        qp_num: u32,
    },
    /// A queue pair entered SQD and its send queue is drained.
    SendQueueDrained {
        /// Queue pair number.
        qp_num: u32,
    },
    /// A queue pair on a shared receive queue failed; it will take no more receives.
    LastWqeReached {
        /// Queue pair number.
        qp_num: u32,
    },
    /// A shared receive queue fell below its limit.
    SrqLimitReached(SrqId),
    /// A completion queue overflowed.
    CqError {
        /// The completion queue's number.
        cq: u64,
    },
}

/// The device's queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    home: Home,
    fd: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<AsyncEvent>,
    /// Tasks that wait.
    wakers: Vec<Waker>,
}

/// Events kept for a program that does not read them; older ones are dropped.
const KEPT: usize = 4096;

impl EventQueue {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os("create the event queue", e))?;
        Ok(Arc::new(Self { home: Home::here(), fd: crate::net::tcp::raise(fd), state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: AsyncEvent) {
        let wakers = {
            let mut state = self.lock();
            if state.events.len() >= KEPT {
                state.events.pop_front();
            }
            state.events.push_back(event);
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn pop(&self) -> Option<AsyncEvent> {
        if !self.home.is_here() {
            return None;
        }
        self.take(&mut self.lock())
    }

    fn take(&self, state: &mut State) -> Option<AsyncEvent> {
        let event = state.events.pop_front();
        if state.events.is_empty() {
            let mut counter = [0u8; 8];
            let _ = rustix::io::read(&self.fd, &mut counter);
        }
        event
    }
}

/// The application's view of a device's asynchronous events; the descriptor is readable while one waits.
#[derive(Clone, Debug)]
pub struct AsyncEvents(pub(crate) Arc<EventQueue>);

impl AsyncEvents {
    /// The next event, if one waits.
    pub fn try_next(&self) -> Option<AsyncEvent> {
        self.0.pop()
    }

    /// The next event, waited for at most `timeout` (`None`: for ever). `Ok(None)` after the time is up.
    ///
    /// # Errors
    /// [`Error::Os`] if the wait fails; [`Error::Forked`] in a child of the process that opened the device.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        self.0.home.check()?;
        let deadline = crate::wait::deadline(timeout);
        loop {
            if let Some(event) = self.0.pop() {
                return Ok(Some(event));
            }
            // Another waiter may be faster.
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if !crate::wait::readable(&self.0.fd, left)? {
                return Ok(self.0.pop());
            }
        }
    }

    /// For tasks: ready with the next event.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<AsyncEvent>> {
        self.0.home.check()?;
        let mut state = self.0.lock();
        if let Some(event) = self.0.take(&mut state) {
            return Poll::Ready(Ok(event));
        }
        if !state.wakers.iter().any(|w| w.will_wake(cx.waker())) {
            state.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The next event, for tasks of any executor. A future that is dropped has taken none.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub async fn next(&self) -> Result<AsyncEvent> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// Whether `fd` is readable now.
#[allow(dead_code, reason = "used by tests")]
pub(crate) fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&rustix::event::Timespec::default())), Ok(n) if n > 0)
}
