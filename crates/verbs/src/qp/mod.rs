//! Queue pairs: reliable connections (RC) over one TCP stream each.
//!
//! Locks, in the order in which they are taken: `rx`, `tx`, `shared`. A poster holds `tx`, a reader of
//! the socket `rx`; `shared` is held for moments by both.

mod batch;
mod close;
pub(crate) mod establish;
pub(crate) mod exit;
mod held;
mod host;
pub(crate) mod link;
mod local;
mod pair;
mod post;
pub(crate) mod recvq;
mod rx;
mod shared;
mod state;
mod tx;
mod wqe;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

pub use pair::{End, QpAttr, QpInit, QueuePair};
pub(crate) use post::resolve_recv;
pub use state::QpState;

use crate::counters::QpCounters;
use crate::device::DeviceInner;
use crate::mem::Who;
use crate::pd::PdInner;
use crate::queue::{CompletionQueue, Progress};
use crate::shard::{Readiness, Source, Timer};
use close::Ended;
use recvq::RecvQueue;
use rx::Rx;
use shared::Shared;
use tx::Tx;

/// Sizes that a queue pair was created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Caps {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) signal_all: bool,
}

/// The engine's side of a queue pair.
pub(crate) struct QpInner {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) pd: Arc<PdInner>,
    pub(crate) num: u32,
    pub(crate) caps: Caps,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) rq: Arc<RecvQueue>,
    pub(crate) counters: QpCounters,
    state: AtomicU8,
    /// In SQD, and nobody was told yet that what was begun is done.
    draining: AtomicBool,
    /// Send work requests posted and not completed.
    outstanding: AtomicU32,
    tx: Mutex<Tx>,
    /// The transmit side has something to do; whoever holds `tx` looks again before it leaves.
    tx_wanted: AtomicBool,
    rx: Mutex<Rx>,
    /// The peer's Reads wait in the shared part.
    reads_waiting: AtomicBool,
    /// Messages are held aside for which no receive was posted.
    holds: AtomicBool,
    shared: Mutex<Shared>,
    /// Why the connection ended. Taken alone, or last.
    ended: Mutex<Option<Ended>>,
    /// Resets so far.
    lives: AtomicU32,
    /// Told when the connection is over.
    gone: crate::signal::Signal,
    me: Weak<Self>,
}

impl std::fmt::Debug for QpInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair")
            .field("num", &self.num)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QpInner {
    pub(crate) fn lock_tx(&self) -> MutexGuard<'_, Tx> {
        locked(&self.tx)
    }

    pub(crate) fn lock_rx(&self) -> MutexGuard<'_, Rx> {
        locked(&self.rx)
    }

    pub(crate) fn lock_shared(&self) -> MutexGuard<'_, Shared> {
        locked(&self.shared)
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// On whose behalf memory is touched.
    pub(crate) fn who(&self) -> Who {
        Who { pd: self.pd.id, qp_num: self.num }
    }

    pub(crate) fn state(&self) -> QpState {
        QpState::from_u8(self.state.load(Ordering::SeqCst))
    }

    /// Releases the send queue's room of completed requests.
    fn completed(&self, n: u32) {
        self.outstanding.fetch_sub(n, Ordering::AcqRel);
    }

    /// Does what the transmit side can do now, unless another thread is at it: then that one will.
    pub(crate) fn kick(&self) {
        loop {
            // Set before the attempt: a holder that is not yet out sees it when it is.
            self.tx_wanted.store(true, Ordering::SeqCst);
            let end = {
                let mut tx = match self.tx.try_lock() {
                    Ok(tx) => tx,
                    Err(std::sync::TryLockError::Poisoned(e)) => e.into_inner(),
                    Err(std::sync::TryLockError::WouldBlock) => return,
                };
                self.tx_wanted.store(false, Ordering::SeqCst);
                self.transmit(&mut tx).map(|cause| (self.life(), cause))
            };
            if let Some((life, cause)) = end {
                self.fail(life, cause);
            }
            if !self.tx_wanted.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// For every holder of `tx` that just unlocked it: looks whether somebody wanted it meanwhile.
    fn after_tx(&self) {
        if self.tx_wanted.load(Ordering::SeqCst) {
            self.kick();
        }
    }
}

impl Progress for QpInner {
    /// A thread polls an empty completion queue: it serves the socket itself.
    fn progress(&self, stays: bool) {
        let Ok(mut rx) = self.rx.try_lock() else { return };
        // A connection that closes is left to its shard.
        let Some(link) = rx.link().filter(|_| !rx.discard) else { return };
        if stays {
            link.lease();
        } else {
            link.hand_back();
        }
        let blocked = link.write_blocked.load(Ordering::Relaxed);
        let outcome = self.receive(&mut rx);
        drop(rx);
        self.after_receive(outcome);
        if blocked {
            self.kick();
        }
    }

    fn leave(&self) {
        if let Some(link) = self.lock_rx().link() {
            link.hand_back();
        }
    }

    fn socket(&self) -> Option<Arc<link::Link>> {
        let rx = self.lock_rx();
        // A connection whose reading is stopped would wake its sleeper for nothing.
        rx.link().filter(|_| !rx.slots.is_paused() && !rx.discard)
    }
}

impl Source for QpInner {
    fn ready(&self, ready: Readiness) {
        if ready.readable || ready.broken {
            let mut rx = self.lock_rx();
            let outcome = self.receive(&mut rx);
            drop(rx);
            self.after_receive(outcome);
        }
        if ready.writable {
            // Not to be told again while another thread transmits: whoever does so next asks anew. Before
            // the kick, which makes sure that somebody will.
            if let Some(link) = self.lock_rx().link() {
                link.set_write_blocked(false);
            }
            self.kick();
        }
    }

    fn timer(&self, timer: Timer) {
        match timer {
            Timer::Lease => {
                if let Some(link) = self.lock_rx().link() {
                    link.check_lease();
                }
            }
            Timer::Health => self.check_health(),
            Timer::Deadline => self.closing_timed_out(),
            Timer::NoReceive => self.receive_timed_out(),
            Timer::Settle => {}
        }
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.device.qps.fetch_sub(1, Ordering::Relaxed);
        // (In a forked child the lock may be held by a thread that is not there.)
        if !self.device.is_forked() {
            self.device.give_number_back(self.num);
        }
    }
}

#[cfg(test)]
mod tests;
