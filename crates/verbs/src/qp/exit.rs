//! Normal process exit: what completed sends handed to TCP must not be lost to a reset, which a socket
//! that closes with unread bytes would send.

use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::link::Link;
use crate::net::{sys, tcp};

static LINKS: Mutex<Vec<Weak<Link>>> = Mutex::new(Vec::new());

/// How long an exit may take because of this.
const PATIENCE: Duration = Duration::from_secs(1);

/// Remembers a connection.
pub(crate) fn register(link: Weak<Link>) {
    let mut links = LINKS.lock().unwrap_or_else(PoisonError::into_inner);
    if links.len() == links.capacity() {
        links.retain(|l| l.strong_count() > 0);
    }
    links.push(link);
}

/// Runs [`drain`] when the process exits.
pub(crate) fn install() {
    sys::at_exit(drain);
}

extern "C" fn drain() {
    let Ok(links) = LINKS.try_lock() else { return };
    let mut open: Vec<_> = links.iter().filter_map(Weak::upgrade).filter(|l| l.is_ours()).collect();
    drop(links);
    for link in &open {
        link.finish_sending();
    }
    let deadline = Instant::now() + PATIENCE;
    let mut buf = vec![0; 64 * 1024];
    while !open.is_empty() && Instant::now() < deadline {
        open.retain(|link| {
            loop {
                match tcp::recv(link.fd(), &mut buf) {
                    Ok(0) => break false,
                    Ok(_) => {}
                    Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                    Err(e) => break e.raw_os_error() == Some(libc::EAGAIN),
                }
            }
        });
        if !open.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
