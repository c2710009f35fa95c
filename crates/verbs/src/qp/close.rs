//! The end of a connection: who learns what, in which order, and how the socket goes.

use std::sync::atomic::Ordering;
use std::thread::ThreadId;
use std::time::Duration;

use iwarp::tx::Message;
use iwarp::wire::terminate::{self, TerminateMessage};
use iwarp::{Fault, TaggedFault, Terminate};

use super::link::Link;
use super::rx::Rx;
use super::{QpInner, QpState, Tx, locked};
use crate::counters::add;
use crate::event::AsyncEvent;
use crate::net::sys;
use crate::queue::{Completion, CompletionOp, Status};

/// Why a connection ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// The application wanted it.
    Local,
    /// The application wanted to begin anew: it is told nothing of what was posted.
    Reset,
    /// The peer's end of stream; `clean`: between two messages.
    PeerClosed { clean: bool },
    /// The peer broke a rule (or our memory failed it).
    Fault(Fault),
    /// The same, found when the segment was gone already: it cannot be quoted.
    LateFault(Fault),
    /// The peer sent a Terminate.
    Terminated(Option<TerminateMessage>),
    /// TCP failed, with this errno.
    Broken(Option<i32>),
    /// Memory was withdrawn or unmapped in the middle of a message of ours.
    SourceLost(TaggedFault),
    /// A request of ours could not be carried out.
    Request { seq: u64, status: Status, vendor_err: u32 },
    /// Nothing was heard from the peer's TCP for too long.
    DeadPath,
    /// The peer's TCP answers, the peer does not.
    Stalled,
}

/// A connection's end.
#[derive(Debug)]
pub(crate) struct Ended {
    cause: Cause,
    /// Who reports everything.
    thread: ThreadId,
}

impl From<TaggedFault> for Cause {
    fn from(fault: TaggedFault) -> Self {
        Self::SourceLost(fault)
    }
}

impl Cause {
    /// The Terminate to send.
    fn terminate(&self) -> Option<Terminate> {
        match self {
            // rule 5040-5.4-3, 5044-8-3
            Self::Fault(f) | Self::LateFault(f) => Some(f.terminate()),
            Self::Request { .. } => Some(Fault::LocalResource.terminate()),
            _ => None,
        }
    }

    /// Whether the application is told of each request that it ended.
    fn is_told(&self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether what the batch has may still be sent.
    fn can_send(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::SourceLost(_) | Self::DeadPath)
    }

    /// The fault that ended it.
    fn fault(&self) -> Option<Fault> {
        match self {
            Self::Fault(f) | Self::LateFault(f) => Some(*f),
            _ => None,
        }
    }

    /// How the oldest request under way ended; the others are flushed. `receive_failed`: the memory at
    /// fault is a receive's.
    fn send_status(&self, receive_failed: bool) -> Status {
        match self {
            Self::Local | Self::Reset | Self::PeerClosed { .. } | Self::Request { .. } => Status::WrFlush,
            Self::Broken(_) | Self::DeadPath => Status::RetryExceeded,
            Self::Stalled => Status::ResponseTimeout,
            Self::SourceLost(_) => Status::LocalProtection,
            Self::Fault(Fault::ResponseMismatch | Fault::UnexpectedResponse) => Status::BadResponse,
            Self::Fault(Fault::LocalMemory) if !receive_failed => Status::LocalProtection,
            Self::Fault(_) | Self::LateFault(_) => Status::WrFlush,
            Self::Terminated(m) => m.map_or(Status::RemoteOperation, |m| terminated_status(m.terminate)),
        }
    }

    /// How the receive under way ended.
    fn recv_status(&self, receive_failed: bool) -> Status {
        match self.fault() {
            Some(Fault::MessageTooLong) => Status::LocalLengthError,
            Some(Fault::LocalMemory) if receive_failed => Status::LocalProtection,
            _ => Status::WrFlush,
        }
    }

    fn event(&self, qp_num: u32) -> AsyncEvent {
        if let Some(
            f @ (Fault::Write(..) | Fault::ReadSource(..) | Fault::Atomic(..) | Fault::Invalidate(_)),
        ) = self.fault()
        {
            return AsyncEvent::QpAccessError { qp_num, terminate: f.terminate() };
        }
        match self {
            Self::Local | Self::Reset | Self::PeerClosed { clean: true } => {
                AsyncEvent::Disconnected { qp_num }
            }
            // rule 5040-5.4-3
            Self::Terminated(m) => {
                AsyncEvent::QpFatal { qp_num, terminate: m.map(|m| m.terminate), from_peer: true }
            }
            // rule 5040-6.2.1-2, 5040-7.1-2
            _ => AsyncEvent::QpFatal { qp_num, terminate: self.terminate(), from_peer: false },
        }
    }
}

/// A peer's Terminate as the completion of the request that it (most probably) complains of.
fn terminated_status(t: Terminate) -> Status {
    match (t.layer, t.etype, t.code) {
        (0 | 1, 1, _) => Status::RemoteAccess,
        (1, 2, 2) => Status::RnrRetryExceeded,
        (1, 2, 5) => Status::RemoteInvalidRequest,
        _ => Status::RemoteOperation,
    }
}

impl QpInner {
    /// The application ends the connection. If that ends already, on another thread, waits until
    /// everything is reported.
    pub(super) fn end_here(&self, cause: Cause) {
        self.fail(self.life(), cause);
        let me = std::thread::current().id();
        // Not for itself: a waker that is called by the end may drop the queue pair.
        if locked(&self.ended).as_ref().is_some_and(|e| e.thread != me) {
            self.gone.wait(None);
        }
    }

    /// Ends the connection: the first cause counts. Completes everything, sends the Terminate if one is
    /// due, half-closes, and gives the peer a while to take what TCP still has. A cause that was found
    /// in another `life` of the queue pair, before a reset, is forgotten.
    pub(super) fn fail(&self, life: u32, cause: Cause) {
        {
            let mut first = locked(&self.ended);
            if first.is_some() || self.state() == QpState::Reset || life != self.life() {
                return;
            }
            *first = Some(Ended { cause, thread: std::thread::current().id() });
        }
        tracing::debug!(qp = self.num, ?cause, "connection ends");
        self.count(&cause);
        let mut rx = self.lock_rx();
        let link = rx.link();
        let terminate = cause.terminate().map(|t| encode(t, &cause, &rx));
        // rule 5040-5.4-2, 5040-7.2-4, 5044-8-2
        rx.discard = true;
        let receive_failed = rx.slots.has_failed();
        self.flush_current(&cause, &mut rx);
        let can_send = {
            // Posters look at the state under this lock, or look again once they have posted: what they
            // post is reported after what is flushed here.
            let mut tx = self.lock_tx();
            // rule 5040-6.2.1-1, 5041-6.2.2-1, 5041-3-2, 5040-7.1-1
            self.set_state(QpState::Error);
            let can_send = cause.can_send() && tx.finish(terminate).is_ok();
            if !can_send {
                tx.disconnect();
            }
            self.flush_sends(&mut tx, &cause, receive_failed);
            can_send
        };
        drop(rx);
        self.discard_receives(&cause);
        if link.is_some() {
            self.device.report(cause.event(self.num));
        }
        if self.rq.is_shared() && cause.is_told() {
            self.device.report(AsyncEvent::LastWqeReached { qp_num: self.num });
        }
        if let Some(link) = link {
            if can_send {
                link.set_read(true);
                // rule 5044-7.2-1, 5040-6.2-1, 5041-6.2.1-1
                link.start_closing(self.device.config.linger);
                self.kick();
            } else {
                self.close_now();
            }
        }
        self.gone.set();
    }

    fn count(&self, cause: &Cause) {
        let c = &self.device.counters;
        match cause {
            Cause::Fault(_) | Cause::LateFault(_) | Cause::SourceLost(_) => add(&c.faults_local, 1),
            Cause::Terminated(_) => add(&c.faults_peer, 1),
            Cause::DeadPath => add(&c.dead_paths, 1),
            _ => {}
        }
    }

    /// Completes the send queue in order: what is done, the one that failed, the rest as flushed.
    fn flush_sends(&self, tx: &mut Tx, cause: &Cause, receive_failed: bool) {
        let pending = tx.take_pending();
        let mut shared = self.lock_shared();
        self.retire(&mut shared);
        let mut blame = cause.send_status(receive_failed);
        let mut n = 0;
        loop {
            let seq = shared.first_seq();
            // rule 5040-5.5-3
            let Some(entry) = shared.abandon() else { break };
            let status = match *cause {
                Cause::Request { seq: s, status, .. } if s == seq => status,
                _ if entry.done => Status::Success,
                _ => std::mem::replace(&mut blame, Status::WrFlush),
            };
            n += 1;
            if cause.is_told() && (status != Status::Success || entry.signaled) {
                let mut completion = entry.completion(status, self.num);
                if let Cause::Request { seq: s, vendor_err, .. } = *cause
                    && s == seq
                {
                    completion.vendor_err = vendor_err;
                }
                self.send_cq.push(completion, false);
            }
        }
        while shared.orq.pop().is_some() {}
        while shared.irq.pop().is_some() {}
        drop(shared);
        for wqe in pending.iter().filter(|_| cause.is_told()) {
            self.flush_one(wqe);
        }
        self.completed(n + pending.len() as u32);
    }

    /// The receive that a message was arriving in.
    fn flush_current(&self, cause: &Cause, rx: &mut Rx) {
        let status = cause.recv_status(rx.slots.has_failed());
        self.drop_held(&mut rx.slots);
        if let Some(wqe) = rx.slots.current.take().filter(|_| cause.is_told()) {
            self.recv_cq.push(
                Completion {
                    wr_id: wqe.wr_id,
                    status,
                    opcode: CompletionOp::Recv,
                    qp_num: self.num,
                    ..Completion::default()
                },
                false,
            );
        }
    }

    fn discard_receives(&self, cause: &Cause) {
        if cause.is_told() {
            self.flush_receives();
        } else {
            while self.rq_is_own_and_takes() {}
        }
    }

    /// Flushes the queue pair's own receives; shared ones serve others.
    pub(super) fn flush_receives(&self) {
        if !self.rq.is_shared() {
            self.rq.flush(|wqe| self.flush_recv(wqe.wr_id));
        }
    }

    /// Lets go of the socket.
    pub(super) fn close_now(&self) {
        if locked(&self.ended).is_none() {
            return;
        }
        let link = {
            let mut rx = self.lock_rx();
            self.drop_held(&mut rx.slots);
            let link = rx.disconnect();
            self.lock_tx().disconnect();
            link
        };
        if let Some(link) = link {
            link.close();
        }
    }

    /// The peer's stream ended while ours is being closed.
    pub(super) fn peer_ended(&self) {
        let finished = {
            let tx = self.lock_tx();
            match tx.link() {
                Some(link) if !tx.is_finished() => {
                    // The Terminate may be among what still waits: no further word of the end until it is out.
                    link.set_read(false);
                    false
                }
                _ => true,
            }
        };
        self.after_tx();
        if finished {
            self.close_now();
        }
    }

    /// A closing connection waited for the peer's end of stream.
    pub(super) fn closing_timed_out(&self) {
        let Some(link) = self.lock_rx().link() else { return };
        let with_tcp = sys::unacknowledged(link.fd()).unwrap_or(0);
        let left = with_tcp + self.lock_tx().waiting() as u64;
        self.after_tx();
        let config = &self.device.config;
        if link.is_closed_for_good(left, config.linger, config.path_timeout) {
            self.close_now();
        }
    }

    /// Back to the start: of what is still posted nothing is reported.
    pub(super) fn reset(&self) {
        self.end_here(Cause::Reset);
        self.close_now();
        while self.rq_is_own_and_takes() {}
        let mut ended = locked(&self.ended);
        *ended = None;
        self.lives.fetch_add(1, Ordering::SeqCst);
        self.gone.clear();
        self.draining.store(false, Ordering::SeqCst);
        self.set_state(QpState::Reset);
    }

    /// Which connection this is: a reset begins another. Read under `rx` or `tx` together with what is
    /// found there.
    pub(super) fn life(&self) -> u32 {
        self.lives.load(Ordering::SeqCst)
    }

    fn rq_is_own_and_takes(&self) -> bool {
        !self.rq.is_shared() && self.rq.take().is_some()
    }

    /// Starts the watch over the path while data is under way.
    pub(super) fn arm_health(&self, link: &Link) {
        link.arm_health(HEALTH);
    }

    /// Looks whether the peer's TCP still answers. RFC 5044 leaves this to TCP; a zero window from a
    /// live peer is no reason to give up, silence is.
    pub(super) fn check_health(&self) {
        let (life, link) = {
            let rx = self.lock_rx();
            (self.life(), rx.link())
        };
        let Some(link) = link else { return };
        let Ok(health) = sys::tcp_health(link.fd()) else { return link.health_fired(None) };
        self.lock_tx().set_mss(&link, health.send_mss as usize);
        self.after_tx();
        let under_way = health.unacked > 0 || health.not_sent > 0;
        // What was heard before the present bytes were under way does not count.
        let silence = health.silence().min(link.watched_for());
        if under_way && silence >= self.device.config.path_timeout && !health.is_probing() {
            self.fail(life, Cause::DeadPath);
            return;
        }
        let waits = link.patience.stall_timeout.is_some() && !self.lock_shared().is_idle();
        if waits && link.patience.stall_timeout.is_some_and(|t| link.idle_for(self.moved()) >= t) {
            self.fail(life, Cause::Stalled);
            return;
        }
        link.health_fired((under_way || waits).then_some(HEALTH));
    }

    /// Bytes moved either way.
    fn moved(&self) -> u64 {
        let counts = self.counters.snapshot();
        counts.rx_bytes.wrapping_add(counts.tx_bytes)
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        locked(&self.ended).as_ref().map(|e| e.cause)
    }

    pub(crate) fn gone(&self) -> &crate::signal::Signal {
        &self.gone
    }

    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Acquire)
    }
}

/// How often a path with data under way is looked at.
const HEALTH: Duration = Duration::from_secs(1);

fn encode(t: Terminate, cause: &Cause, rx: &Rx) -> Message {
    let mut body = [0; terminate::MAX_LEN];
    // Only a fault of what was received has a segment to quote.
    let quote = match cause {
        Cause::Fault(_) => rx.receiver.as_ref().and_then(iwarp::rx::Receiver::offending),
        _ => None,
    };
    let (bytes, ulpdu_len) = quote.map_or((None, 0), |(b, n)| (Some(b), n));
    let len = terminate::encode(t, bytes, ulpdu_len, &mut body);
    Message::Terminate { body, len }
}
