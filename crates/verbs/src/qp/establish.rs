//! A queue pair gets its connection.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use iwarp::mpa::startup::Negotiated;

use super::link::{Link, Patience};
use super::shared::Shared;
use super::{QpInner, QpState, exit};
use crate::cm::FpduPolicy;
use crate::counters::add;
use crate::error::{Error, Result};
use crate::net::{sys, tcp};
use crate::pcap::Flow;
use crate::shard::Shard;

/// A connection whose start-up is over.
pub(crate) struct Connection {
    pub(crate) fd: OwnedFd,
    pub(crate) shard: Arc<Shard>,
    pub(crate) negotiated: Negotiated,
    pub(crate) responder: bool,
    /// Bytes that came behind the start-up frame.
    pub(crate) early: Vec<u8>,
    /// Its recording, if there is one.
    pub(crate) capture: Option<Flow>,
    pub(crate) fpdu: FpduPolicy,
    pub(crate) stall_timeout: Option<Duration>,
}

impl QpInner {
    /// Takes the connection over and goes to Rts. Returns own and peer's address.
    pub(crate) fn establish(&self, c: Connection) -> Result<(SocketAddr, SocketAddr)> {
        let os = |e: std::io::Error| Error::os("take a connection over", e);
        let addresses = tcp::addresses(&c.fd).map_err(os)?;
        let mss = sys::tcp_health(c.fd.as_fd()).map_err(os)?.send_mss as usize;
        // rule 5044-3-2
        let mulpdu = c.fpdu.mulpdu(mss, c.negotiated.tx_markers);
        if let Some(capture) = &c.capture {
            capture.negotiated(&c.negotiated);
            capture.received(&c.early);
        }
        let patience = Patience { fpdu: c.fpdu, stall_timeout: c.stall_timeout };
        let link = Link::new(c.fd, c.shard, c.negotiated, addresses, c.responder, patience, c.capture);
        let mut rx = self.lock_rx();
        let mut tx = self.lock_tx();
        // rule 6581-9.1-5, 5040-5.2.1-1, 5040-5.2.1-2
        *self.lock_shared() = Shared::new(c.negotiated.ord, c.negotiated.ird);
        rx.connect(Arc::clone(&link), &c.early, || self.device.staging.take());
        tx.connect(Arc::clone(&link), mulpdu);
        // rule 5044-4-1, 5041-6.1-1, 5040-6.1-1
        if !self.transition(QpState::Rtr, QpState::Rts) {
            rx.disconnect();
            tx.disconnect();
            return Err(Error::State { what: "connecting", needed: "Rtr", state: self.state() });
        }
        if let Some(rtr) = c.negotiated.rtr.filter(|_| !c.responder) {
            self.queue_rtr(&mut tx, rtr);
        }
        drop(tx);
        add(&self.device.counters.connections, 1);
        exit::register(self.weak(), Arc::downgrade(&link));
        if let Err(e) = link.attach(self.me.upgrade().ok_or(Error::Invalid("the queue pair is gone"))?) {
            rx.disconnect();
            self.lock_tx().disconnect();
            self.set_state(QpState::Init);
            return Err(os(e));
        }
        let outcome = if c.early.is_empty() { None } else { Some(self.receive(&mut rx)) };
        drop(rx);
        if let Some(outcome) = outcome {
            self.after_receive(outcome);
        }
        self.kick();
        Ok(addresses)
    }
}
