//! Receives: taken from the queue, or, where none is posted, messages held aside so that what is
//! behind them (responses, Terminates) is still seen.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use iwarp::{Fault, ReceiveSlot};

use super::QpInner;
use super::close::Cause;
use super::host::Received;
use super::link::Link;
use super::rx::{Outcome, Rx};
use super::wqe::RecvWqe;
use crate::counters::add;
use crate::shard::Timer;

/// Cookie of a message that goes to a buffer of ours.
pub(super) const HELD: u64 = u64::MAX;
/// Cookie of a message that goes to a posted receive.
const POSTED: u64 = 0;

/// The receive in progress and what is held aside.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// The receive that the message under way goes to.
    pub(super) current: Option<RecvWqe>,
    /// The message under way for which no receive was posted.
    incoming: Vec<u8>,
    held: VecDeque<(Received, Vec<u8>)>,
    bytes: usize,
}

impl QpInner {
    /// The place for a message that begins.
    pub(super) fn take_receive(&self, slots: &mut Slots) -> ReceiveSlot {
        // Messages are delivered in order: nothing overtakes those held.
        if slots.held.is_empty()
            // rule 5041-5.1.2-3
            && let Some(wqe) = self.rq.take()
        {
            let len = wqe.len;
            slots.current = Some(wqe);
            return ReceiveSlot { cookie: POSTED, len };
        }
        add(&self.counters.rx_held, 1);
        slots.incoming.clear();
        ReceiveSlot { cookie: HELD, len: u64::from(u32::MAX) }
    }

    pub(super) fn place_receive(
        &self,
        slots: &mut Slots,
        cookie: u64,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        if cookie == POSTED {
            let wqe = slots.current.as_ref().ok_or(Fault::LocalResource)?;
            return wqe.segments.copy_in(offset as usize, bytes).map_err(|_| Fault::LocalMemory);
        }
        debug_assert_eq!(slots.incoming.len(), offset as usize);
        slots.incoming.extend_from_slice(bytes);
        self.count_held(slots, bytes.len());
        Ok(())
    }

    fn count_held(&self, slots: &mut Slots, n: usize) {
        slots.bytes += n;
        self.device.held.fetch_add(n, Ordering::Relaxed);
    }

    fn uncount_held(&self, slots: &mut Slots, n: usize) {
        slots.bytes -= n;
        self.device.held.fetch_sub(n, Ordering::Relaxed);
    }

    /// A message is complete.
    pub(super) fn receive_done(&self, slots: &mut Slots, cookie: u64, done: Received, out: &mut Outcome) {
        if cookie == POSTED {
            if let Some(wqe) = slots.current.take() {
                self.recv_cq.push(done.completion(wqe.wr_id, self.num), done.solicited());
            }
            return;
        }
        let data = std::mem::take(&mut slots.incoming);
        slots.held.push_back((done, data));
        self.holds.store(true, Ordering::SeqCst);
        if self.rq.is_shared() {
            self.rq.hungry(self.weak());
        }
        // A receive may have been posted since the message began.
        if let Err(fault) = self.deliver_held(slots) {
            out.end = Some(Cause::Fault(fault));
        }
    }

    /// Gives held messages to posted receives.
    fn deliver_held(&self, slots: &mut Slots) -> Result<(), Fault> {
        while !slots.held.is_empty() {
            let Some(wqe) = self.rq.take() else { return Ok(()) };
            let Some((done, data)) = slots.held.pop_front() else { break };
            self.uncount_held(slots, data.len());
            if data.len() as u64 > wqe.len {
                slots.current = Some(wqe);
                return Err(Fault::MessageTooLong);
            }
            if wqe.segments.copy_in(0, &data).is_err() {
                slots.current = Some(wqe);
                return Err(Fault::LocalMemory);
            }
            self.recv_cq.push(done.completion(wqe.wr_id, self.num), done.solicited());
        }
        self.holds.store(!slots.incoming.is_empty(), Ordering::SeqCst);
        Ok(())
    }

    /// A receive was posted while messages were held.
    pub(crate) fn receive_posted(&self) {
        let mut rx = self.lock_rx();
        let mut out = Outcome::default();
        if let Err(fault) = self.deliver_held(&mut rx.slots) {
            out.end = Some(Cause::Fault(fault));
        }
        if self.rq.is_shared() && !rx.slots.held.is_empty() {
            self.rq.hungry(self.weak());
        }
        if out.end.is_none() && rx.paused && !self.is_over_cap(&rx) {
            rx.paused = false;
            if let Some(link) = rx.link() {
                link.set_read(true);
            }
            out = self.receive(&mut rx);
        }
        drop(rx);
        self.after_receive(out);
    }

    fn is_over_cap(&self, rx: &Rx) -> bool {
        let config = &self.device.config;
        // rule 5040-8.1.1-5
        let over = rx.slots.bytes >= config.held_per_qp
            || (rx.slots.bytes > 0 && self.device.held.load(Ordering::Relaxed) >= config.held_total);
        over && self.rq.is_empty()
    }

    /// At the cap reading stops, for a while; the peer's TCP window then fills.
    pub(super) fn must_pause(&self, rx: &mut Rx, link: &Link) -> bool {
        if rx.slots.bytes == 0 || !self.is_over_cap(rx) {
            return rx.paused;
        }
        if rx.paused {
            return true;
        }
        self.holds.store(true, Ordering::SeqCst);
        // Whoever posts a receive from here on sees the flag and waits for our lock.
        if !self.is_over_cap(rx) {
            return false;
        }
        rx.paused = true;
        link.set_read(false);
        link.timer(self.device.config.rnr_timeout, Timer::NoReceive);
        true
    }

    /// Reading was stopped for too long. RFC 5041 §7.2: no buffer available.
    pub(super) fn receive_timed_out(&self) {
        if self.lock_rx().paused {
            // rule 5041-7.1-6
            self.fail(Cause::Fault(Fault::NoReceive));
        }
    }

    /// The connection is over: what is held goes nowhere.
    pub(super) fn drop_held(&self, slots: &mut Slots) {
        let n = slots.bytes;
        self.uncount_held(slots, n);
        slots.held.clear();
        slots.incoming = Vec::new();
        self.holds.store(false, Ordering::SeqCst);
    }
}
