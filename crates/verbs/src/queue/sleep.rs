//! Waiting for completions: the waiting thread sleeps on its connections' sockets itself, so that a
//! packet wakes it and nobody else.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::completion::Completion;
use super::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::qp::link::Link;
use crate::wait::timespec;

/// With more connections than this the shards serve them and the thread sleeps on the queue alone.
const SOCKETS: usize = 8;

impl CompletionQueue {
    /// Takes up to `out.len()` completions, waiting for the first at most `timeout` (`None`: for ever).
    /// Zero when the time is up.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`]; [`Error::Os`] if the wait fails.
    pub fn wait(&self, out: &mut [Completion], timeout: Option<Duration>) -> Result<usize> {
        self.check_fork()?;
        let deadline = crate::wait::deadline(timeout);
        // Who slept for the last completion will most likely sleep for this one: the look at the sockets
        // is left to the sleep itself, which ends at once where something is there.
        let mut look = !self.sleeps_by_habit();
        let mut naps = 0u32;
        loop {
            let n = if look { self.poll(out)? } else { self.take(out) };
            if n > 0 || out.is_empty() {
                self.set_habit(naps == 1);
                return Ok(n);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if look && left.is_some_and(|l| l.is_zero()) {
                return Ok(0);
            }
            self.sleep(left)?;
            naps += 1;
            look = true;
        }
    }

    /// Sleeps until there may be something to poll.
    fn sleep(&self, timeout: Option<Duration>) -> Result<()> {
        let links = self.sockets(SOCKETS).unwrap_or_default();
        let nap = Nap::on(&links);
        let Some(waiter) = self.prepare_wait()? else { return Ok(()) };
        let mut fds = Vec::with_capacity(1 + links.len());
        fds.push(PollFd::from_borrowed_fd(waiter.as_fd(), PollFlags::IN));
        for link in &links {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, link.write_blocked.load(Ordering::SeqCst));
            fds.push(PollFd::from_borrowed_fd(link.fd(), flags));
        }
        let timeout = timeout.map(timespec);
        let result = poll(&mut fds, timeout.as_ref());
        drop(fds);
        drop(nap);
        match result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::os("wait for completions", e)),
        }
    }
}

/// Leases that last while their holder sleeps.
struct Nap<'a>(&'a [Arc<Link>]);

impl<'a> Nap<'a> {
    fn on(links: &'a [Arc<Link>]) -> Self {
        links.iter().for_each(|l| l.fall_asleep());
        Self(links)
    }
}

impl Drop for Nap<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|l| l.wake_up());
    }
}
