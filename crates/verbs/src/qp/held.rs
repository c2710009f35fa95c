//! Receives: taken from the queue, or, where none is posted, messages held aside so that what is
//! behind them (responses, Terminates) is still seen.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

use iwarp::{Fault, ReceiveSlot};

use super::QpInner;
use super::close::Cause;
use super::host::Received;
use super::link::Link;
use super::rx::{Outcome, Rx};
use super::wqe::RecvWqe;
use crate::counters::add;
use crate::shard::Timer;

/// Cookie of a message that began without a posted receive.
pub(super) const HELD: u64 = u64::MAX;
/// Cookie of a message that goes to a posted receive.
const POSTED: u64 = 0;
/// Bytes that a held message counts for beyond its own: empty ones must not be free.
const OVERHEAD: usize = 128;

/// The receive in progress and what is held aside.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// The receive that the message under way goes to.
    pub(super) current: Option<RecvWqe>,
    /// The message under way goes to `incoming`, since no receive was posted when it began.
    holding: bool,
    incoming: Vec<u8>,
    held: VecDeque<(Received, Vec<u8>)>,
    bytes: usize,
    /// A receive could not take its message; nothing is delivered behind it.
    failed: Option<Fault>,
    /// Since when reading is stopped, at the cap.
    paused: Option<Instant>,
    /// The timer that ends such a pause runs.
    timer: bool,
}

impl Slots {
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The receive under way could not take its message.
    pub(super) fn fail(&mut self, fault: Fault) -> Fault {
        *self.failed.insert(fault)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }
}

impl QpInner {
    /// The place for a message that begins.
    pub(super) fn take_receive(&self, slots: &mut Slots) -> Result<ReceiveSlot, Fault> {
        if let Some(fault) = slots.failed {
            return Err(fault);
        }
        if let Some(slot) = self.take_posted(slots) {
            return Ok(slot);
        }
        self.await_receive();
        // One may have been posted before that was known.
        if let Some(slot) = self.take_posted(slots) {
            return Ok(slot);
        }
        add(&self.counters.rx_held, 1);
        slots.incoming.clear();
        slots.holding = true;
        self.count_held(slots, OVERHEAD);
        Ok(ReceiveSlot { cookie: HELD, len: u64::from(u32::MAX) })
    }

    fn take_posted(&self, slots: &mut Slots) -> Option<ReceiveSlot> {
        // Messages are delivered in order: nothing overtakes those held.
        if !slots.held.is_empty() {
            return None;
        }
        // rule 5041-5.1.2-3
        let wqe = self.rq.take()?;
        let len = wqe.len;
        slots.current = Some(wqe);
        Some(ReceiveSlot { cookie: POSTED, len })
    }

    /// Whoever posts a receive from here on calls [`Self::receive_posted`].
    fn await_receive(&self) {
        self.holds.store(true, Ordering::SeqCst);
        if self.rq.is_shared() {
            self.rq.hungry(self.weak());
        }
    }

    pub(super) fn place_receive(&self, slots: &mut Slots, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        if !slots.holding {
            let wqe = slots.current.as_ref().ok_or(Fault::LocalResource)?;
            // The core knows the length of receives that were there when their message began.
            if u64::from(offset) + bytes.len() as u64 > wqe.len {
                return Err(Fault::MessageTooLong);
            }
            let copied = wqe.segments.copy_in(offset as usize, bytes);
            return copied.map_err(|_| slots.fail(Fault::LocalMemory));
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
    pub(super) fn receive_done(&self, slots: &mut Slots, done: Received, out: &mut Outcome) {
        if !std::mem::take(&mut slots.holding) {
            if let Some(wqe) = slots.current.take() {
                self.recv_cq.push(done.completion(wqe.wr_id, self.num), done.solicited());
            }
            return;
        }
        let data = std::mem::take(&mut slots.incoming);
        slots.held.push_back((done, data));
        self.await_receive();
        // A receive may have been posted since the message began.
        out.end = self.deliver_held(slots);
    }

    /// Gives held messages to posted receives, in order. Returns why the connection must end, if it must.
    fn deliver_held(&self, slots: &mut Slots) -> Option<Cause> {
        while !slots.held.is_empty() || slots.holding {
            if slots.failed.is_some() {
                return None;
            }
            let wqe = self.rq.take()?;
            if let Some((done, data)) = slots.held.pop_front() {
                self.uncount_held(slots, data.len() + OVERHEAD);
                let wr_id = wqe.wr_id;
                if let Err(fault) = fill(slots, wqe, &data) {
                    return Some(Cause::LateFault(fault));
                }
                slots.current = None;
                self.recv_cq.push(done.completion(wr_id, self.num), done.solicited());
            } else {
                // The rest of the message under way goes straight to its receive.
                let data = std::mem::take(&mut slots.incoming);
                self.uncount_held(slots, data.len() + OVERHEAD);
                slots.holding = false;
                if let Err(fault) = fill(slots, wqe, &data) {
                    return Some(Cause::LateFault(fault));
                }
            }
        }
        self.holds.store(false, Ordering::SeqCst);
        None
    }

    /// A receive was posted while messages were held.
    pub(crate) fn receive_posted(&self) {
        let mut rx = self.lock_rx();
        let end = self.deliver_held(&mut rx.slots);
        rx.discard |= end.is_some();
        let mut out = Outcome { end, ..self.outcome() };
        if self.holds.load(Ordering::SeqCst) && self.rq.is_shared() {
            self.rq.hungry(self.weak());
        }
        if out.end.is_none() && rx.slots.is_paused() && !self.is_over_cap(&rx) {
            rx.slots.paused = None;
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
            return rx.slots.is_paused();
        }
        if rx.slots.is_paused() {
            return true;
        }
        self.await_receive();
        // Whoever posts a receive from here on sees the flag and waits for our lock.
        if !self.is_over_cap(rx) {
            return false;
        }
        rx.slots.paused = Some(Instant::now());
        link.set_read(false);
        if !std::mem::replace(&mut rx.slots.timer, true) {
            link.timer(self.device.config.rnr_timeout, Timer::NoReceive);
        }
        true
    }

    /// Reading was stopped for too long? RFC 5041 §7.2: no buffer available.
    pub(super) fn receive_timed_out(&self) {
        let life = {
            let mut rx = self.lock_rx();
            let Some(since) = rx.slots.paused else {
                rx.slots.timer = false;
                return;
            };
            // The timer may be that of a pause before this one.
            let left = self.device.config.rnr_timeout.saturating_sub(since.elapsed());
            if !left.is_zero() {
                if let Some(link) = rx.link() {
                    link.timer(left, Timer::NoReceive);
                }
                return;
            }
            self.life()
        };
        // rule 5041-7.1-6
        self.fail(life, Cause::LateFault(Fault::NoReceive));
    }

    /// The connection is over: what is held goes nowhere.
    pub(super) fn drop_held(&self, slots: &mut Slots) {
        let n = slots.bytes;
        self.uncount_held(slots, n);
        slots.held.clear();
        slots.incoming = Vec::new();
        (slots.holding, slots.failed, slots.paused) = (false, None, None);
        self.holds.store(false, Ordering::SeqCst);
    }
}

/// Puts a held message, or the part of it that came, into the receive that was posted for it.
fn fill(slots: &mut Slots, wqe: RecvWqe, data: &[u8]) -> Result<(), Fault> {
    let wqe = slots.current.insert(wqe);
    let result = if data.len() as u64 > wqe.len {
        Err(Fault::MessageTooLong)
    } else {
        wqe.segments.copy_in(0, data).map_err(|_| Fault::LocalMemory)
    };
    result.map_err(|fault| slots.fail(fault))
}
