//! Normal process exit: what completed sends handed to TCP must not be lost to a reset, which a socket
//! that closes with unread bytes would send.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::QpInner;
use super::link::Link;
use crate::net::{sys, tcp};
use crate::wait::timespec;

/// The connections of this process (and of the one that forked it).
static OPEN: Mutex<Vec<(Weak<QpInner>, Weak<Link>)>> = Mutex::new(Vec::new());

/// How long an exit waits for peers of which none takes anything.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits in all while they do.
const LONGEST: Duration = Duration::from_secs(10);
/// How long it waits for their end of stream when they have everything.
const GRACE: Duration = Duration::from_millis(200);
/// How long it waits for a lock: exit may be called from anywhere.
const LOCK: Duration = Duration::from_millis(100);

/// Remembers a connection.
pub(crate) fn register(qp: Weak<QpInner>, link: Weak<Link>) {
    // In a forked child the lock may be held by a thread that is not there.
    let Some(mut open) = lock(&OPEN) else { return };
    if open.len() == open.capacity() {
        open.retain(|(_, link)| link.strong_count() > 0);
    }
    open.push((qp, link));
}

/// Runs [`drain`] when the process exits.
pub(crate) fn install() {
    sys::at_exit(drain);
}

fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let deadline = Instant::now() + LOCK;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(e)) => return Some(PoisonError::into_inner(e)),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

extern "C" fn drain() {
    let Some(open) = lock(&OPEN) else { return };
    let mut links = Vec::new();
    for (qp, link) in open.iter() {
        let Some(link) = link.upgrade().filter(|link| link.is_ours()) else { continue };
        // From here on bytes are read here and thrown away: nobody may take the rest for FPDUs.
        if let Some(qp) = qp.upgrade()
            && let Some(mut rx) = lock(&qp.rx)
        {
            rx.discard = true;
        }
        link.finish_sending();
        links.push(link);
    }
    drop(open);
    wait_for_peers(&mut links);
}

fn wait_for_peers(links: &mut Vec<Arc<Link>>) {
    let began = Instant::now();
    let (mut least, mut since) = (u64::MAX, began);
    let mut buf = vec![0; 64 * 1024];
    loop {
        links.retain(|link| !is_over(link, &mut buf));
        let left = links.iter().map(|l| sys::unacknowledged(l.fd()).unwrap_or(0)).sum();
        if left < least {
            (least, since) = (left, Instant::now());
        }
        let patience = if left == 0 { GRACE } else { PATIENCE };
        if links.is_empty() || since.elapsed() >= patience || began.elapsed() >= LONGEST {
            return;
        }
        let mut fds: Vec<_> = links.iter().map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN)).collect();
        // Acknowledgements make nothing readable, so it looks again soon.
        let _ = poll(&mut fds, Some(&timespec(Duration::from_millis(2))));
    }
}

/// Reads what came; whether the peer's stream is over.
fn is_over(link: &Link, buf: &mut [u8]) -> bool {
    // A peer that never stops sending must not keep us from the others.
    for _ in 0..64 {
        match tcp::recv(link.fd(), buf) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return e.raw_os_error() != Some(libc::EAGAIN),
        }
    }
    false
}
