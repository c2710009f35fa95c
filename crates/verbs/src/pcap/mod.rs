//! `RNIC_PCAP`: what the queue pairs send and receive, as a capture that Wireshark decodes.
//!
//! The bytes are those of the TCP streams, in packets of our own making: one FPDU each, with the
//! connection's real addresses, a handshake before the first frame and FINs at the end. A connection
//! between two ends of this process appears once: each end records what it sends.

mod conversation;
mod cut;
mod file;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use iwarp::mpa::startup::Negotiated;

use crate::error::{Error, Result};
use crate::net::tcp;
use conversation::Conversation;
pub(crate) use conversation::Side;
use cut::Cutter;
use file::File;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Initiator's and responder's address.
type Ends = (SocketAddr, SocketAddr);

/// One capture file and the connections that are being recorded in it.
#[derive(Debug)]
struct Capture {
    file: File,
    live: Mutex<HashMap<Ends, Weak<Conversation>>>,
}

/// A device's hold on its capture.
#[derive(Clone, Debug)]
pub(crate) struct Pcap(Arc<Capture>);

/// The captures of this process, by process and path: devices that name one path share it, and it stays
/// open, so that a device opened later adds to what an earlier one recorded.
static CAPTURES: Mutex<Vec<(u32, PathBuf, Arc<Capture>)>> = Mutex::new(Vec::new());

impl Pcap {
    /// The capture at `path`: begun anew by the process's first device that names it. Where another
    /// process is writing there, `path` with this process's number behind it.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let pid = std::process::id();
        let mut captures = lock(&CAPTURES);
        if let Some((_, _, capture)) = captures.iter().find(|(p, at, _)| *p == pid && *at == path) {
            return Ok(Self(Arc::clone(capture)));
        }
        let file = File::create(&path).map_err(|source| Error::Capture { path: path.clone(), source })?;
        let capture = Arc::new(Capture { file, live: Mutex::default() });
        captures.push((pid, path, Arc::clone(&capture)));
        Ok(Self(capture))
    }

    /// A connection's end in this process; nothing is recorded of one without addresses.
    pub(crate) fn flow(&self, fd: impl AsFd, side: Side) -> Option<Flow> {
        let (local, peer) = tcp::addresses(fd).ok()?;
        Some(self.0.open(plain(local), plain(peer), side))
    }
}

/// IPv4 addresses mapped into IPv6 (of a dual-stack listener) as what they are on the wire.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

impl Capture {
    fn open(self: &Arc<Self>, local: SocketAddr, peer: SocketAddr, side: Side) -> Flow {
        let ends = match side {
            Side::Initiator => (local, peer),
            Side::Responder => (peer, local),
        };
        let mut live = lock(&self.live);
        // Joined if the other end of the very connection is here; an end that is there already has the
        // ports of a connection that is over.
        let known = live.get(&ends).and_then(Weak::upgrade).filter(|c| c.join(side));
        let conversation = known.unwrap_or_else(|| {
            let new = Arc::new(Conversation::new(ends, side));
            new.handshake(&self.file);
            if live.len() == live.capacity() {
                live.retain(|_, c| c.strong_count() > 0);
            }
            live.insert(ends, Arc::downgrade(&new));
            new
        });
        drop(live);
        Flow { capture: Arc::clone(self), conversation, side, cutter: Mutex::default() }
    }
}

/// One end's recording of one connection; dropped, it records the end's FIN.
#[derive(Debug)]
pub(crate) struct Flow {
    capture: Arc<Capture>,
    conversation: Arc<Conversation>,
    side: Side,
    cutter: Mutex<Cutter>,
}

impl Flow {
    /// A start-up frame or FPDU of ours.
    pub(crate) fn sent(&self, frame: &[u8]) {
        self.conversation.data(&self.capture.file, self.side, frame);
    }

    /// A start-up frame of the peer's.
    pub(crate) fn startup_received(&self, frame: &[u8]) {
        if !self.conversation.has_both() {
            self.conversation.data(&self.capture.file, self.side.other(), frame);
        }
    }

    /// Start-up is over: how the peer's FPDUs are framed.
    pub(crate) fn negotiated(&self, negotiated: &Negotiated) {
        lock(&self.cutter).start(negotiated.rx_markers);
    }

    /// Bytes of the peer's FPDUs, as they came.
    pub(crate) fn received(&self, bytes: &[u8]) {
        if self.conversation.has_both() {
            return;
        }
        let mut cutter = lock(&self.cutter);
        cutter.push(bytes);
        while let Some(fpdu) = cutter.next() {
            self.conversation.data(&self.capture.file, self.side.other(), &fpdu);
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        if !self.conversation.has_both() {
            let rest = lock(&self.cutter).rest();
            self.conversation.data(&self.capture.file, self.side.other(), &rest);
        }
        self.conversation.close(&self.capture.file, self.side);
    }
}

#[cfg(test)]
mod tests;
