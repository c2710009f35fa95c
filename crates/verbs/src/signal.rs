//! A one-way flag that threads and tasks can wait for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
struct State {
    set: bool,
    wakers: Vec<Waker>,
}

/// The flag. Set once (until [`Signal::clear`]), seen by all.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises it and wakes everybody.
    pub(crate) fn set(&self) {
        let wakers = {
            let mut s = self.lock();
            s.set = true;
            std::mem::take(&mut s.wakers)
        };
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Lowers it.
    pub(crate) fn clear(&self) {
        self.lock().set = false;
    }

    /// Blocks until it is up; `false` when `timeout` is over.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> bool {
        let deadline = crate::wait::deadline(timeout);
        let mut s = self.lock();
        while !s.set {
            let Some(deadline) = deadline else {
                s = self.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            s = self.changed.wait_timeout(s, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// For tasks.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut s = self.lock();
        if s.set {
            return Poll::Ready(());
        }
        if !s.wakers.iter().any(|w| w.will_wake(cx.waker())) {
            s.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
