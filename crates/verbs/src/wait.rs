//! Waiting for a descriptor.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// When a time-out is over; one too long to be counted never is.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|t| Instant::now().checked_add(t))
}

/// The moment `after` from now, or so far away that it does not come.
pub(crate) fn moment(after: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(1 << 30);
    Instant::now() + after.min(FAR)
}

/// A `poll` time-out.
pub(crate) fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(d.subsec_nanos()) }
}

/// Waits until `fd` is readable; `Ok(false)` when `timeout` is up.
pub(crate) fn readable(fd: impl AsFd, timeout: Option<Duration>) -> Result<bool> {
    let deadline = deadline(timeout);
    loop {
        let left = deadline.map(|d| timespec(d.saturating_duration_since(Instant::now())));
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::os("poll", e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_beyond_counting_never_come() {
        assert_eq!(deadline(Some(Duration::MAX)), None);
        assert!(moment(Duration::MAX) > Instant::now() + Duration::from_secs(1 << 20));
    }
}
