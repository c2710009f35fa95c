//! The receive side: from the socket through the core into memory.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use iwarp::rx::{Dest, Direct, Progress, Receiver};
use iwarp::wire::terminate::TerminateMessage;
use iwarp::{Fault, TaggedFault};

use super::QpInner;
use super::close::Cause;
use super::host::RxHost;
use super::link::Link;
use super::wqe::{RecvWqe, Segments};
use crate::counters::add;
use crate::event::AsyncEvent;
use crate::mem::{Access, Segment};
use crate::net::sys::{self, RecvPiece};
use crate::net::tcp;

/// Remainders of an FPDU from this size on are received straight into memory.
const DIRECT_MIN: u32 = 8 * 1024;
/// Staging offered behind such a remainder: trailer and the next header, so that little is copied.
const BULK_STAGING: usize = 2048;
/// FPDUs that came whole and were shorter than this end the expectation of long ones.
const BULK_FPDU: u64 = 4096;
/// Receive calls in one go; then others get their turn.
const ROUNDS: usize = 32;

/// The receive side's state.
#[derive(Debug, Default)]
pub(crate) struct Rx {
    link: Option<Arc<Link>>,
    pub(super) receiver: Option<Receiver>,
    /// Staging; only while bytes wait in it.
    staging: Option<Box<[u8]>>,
    len: usize,
    /// Long FPDUs are coming.
    bulk: bool,
    /// The connection failed: what still comes is thrown away.
    pub(super) discard: bool,
    /// Bytes in staging that came before the connection and that the core has not seen.
    early: bool,
    pub(super) slots: super::held::Slots,
}

/// What a receive round brought, to be acted upon without the lock.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// In which life of the queue pair.
    pub(super) life: u32,
    pub(super) kick: bool,
    pub(super) first: bool,
    pub(super) end: Option<Cause>,
    /// While closing: the peer's stream is over, in good order or not.
    pub(super) closed: Option<Closed>,
    pub(super) terminated: Option<Option<TerminateMessage>>,
    pub(super) reads_done: bool,
}

/// How a peer's stream ended that was only read to its end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Closed {
    EndOfStream,
    Broken,
}

enum Step {
    More,
    Drained,
    End(Cause),
}

impl Rx {
    /// A connection came about; `early` came behind the start-up frame.
    pub(super) fn connect(&mut self, link: Arc<Link>, early: &[u8], staging: impl FnOnce() -> Box<[u8]>) {
        let held = std::mem::take(&mut self.slots);
        *self = Self {
            receiver: Some(Receiver::new(&link.negotiated, link.responder)),
            link: Some(link),
            slots: held,
            ..Self::default()
        };
        // rule 5044-7.1.2-4, 5044-7.1.5-1
        if !early.is_empty() {
            let mut buf = staging();
            let n = early.len().min(buf.len());
            buf[..n].copy_from_slice(&early[..n]);
            (self.staging, self.len, self.early) = (Some(buf), n, true);
        }
    }

    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.link.clone()
    }

    /// The connection is gone.
    pub(super) fn disconnect(&mut self) -> Option<Arc<Link>> {
        let link = self.link.take();
        *self = Self::default();
        link
    }
}

impl QpInner {
    /// Takes what the socket has, within a budget.
    pub(super) fn receive(&self, rx: &mut Rx) -> Outcome {
        let mut out = self.outcome();
        let Some(link) = rx.link.clone() else { return out };
        if rx.discard {
            self.throw_away(rx, &link, &mut out);
            return out;
        }
        if std::mem::take(&mut rx.early)
            && let Some(mut buf) = rx.staging.take()
        {
            out.end = self.digest(rx, &mut buf, 0, &mut out);
            rx.staging = Some(buf);
        }
        for _ in 0..ROUNDS {
            if out.end.is_some() {
                break;
            }
            if self.must_pause(rx, &link) {
                break;
            }
            match self.receive_once(rx, &link, &mut out) {
                Step::More => {}
                Step::Drained => break,
                Step::End(cause) => out.end = Some(cause),
            }
        }
        // Another thread may be here before the end is acted upon: what it reads (the peer's FIN behind its
        // Terminate, say) must not become the cause.
        rx.discard |= out.end.is_some();
        if rx.len == 0
            && let Some(buffer) = rx.staging.take()
        {
            self.device.staging.put(buffer);
        }
        out
    }

    fn receive_once(&self, rx: &mut Rx, link: &Link, out: &mut Outcome) -> Step {
        let mut buf = rx.staging.take().unwrap_or_else(|| self.device.staging.take());
        let result = self.fetch(rx, link, &mut buf);
        add(&self.device.counters.rx_calls, 1);
        let step = match result {
            // rule 5044-7.2-2, 5044-7.2-3
            Ok(Fetched { staged: 0, direct: 0, .. }) => Step::End(Cause::PeerClosed {
                clean: rx.len == 0 && rx.receiver.as_ref().is_none_or(Receiver::at_message_boundary),
            }),
            Ok(f) => {
                add(&self.counters.rx_bytes, (f.staged + f.direct) as u64);
                add(&self.device.counters.rx_bytes, (f.staged + f.direct) as u64);
                add(&self.counters.rx_direct_bytes, f.direct as u64);
                if let Some(capture) = &link.capture {
                    capture.received(&buf[rx.len..rx.len + f.staged]);
                }
                rx.len += f.staged;
                match self.digest(rx, &mut buf, f.direct, out) {
                    Some(cause) => Step::End(cause),
                    None if f.full => Step::More,
                    None => Step::Drained,
                }
            }
            Err(Failed::Memory(fault)) => {
                let direct = rx.receiver.as_ref().and_then(Receiver::direct);
                if matches!(direct, Some(Direct { dest: Dest::Receive { .. }, .. })) {
                    rx.slots.fail(fault);
                }
                Step::End(Cause::Fault(fault))
            }
            Err(Failed::Io(e)) => match e.raw_os_error() {
                Some(libc::EAGAIN) => Step::Drained,
                Some(libc::EINTR) => Step::More,
                code => Step::End(Cause::Broken(code)),
            },
        };
        rx.staging = Some(buf);
        step
    }

    /// One receive call: into staging, or the rest of a long FPDU into memory and what follows into staging.
    fn fetch(&self, rx: &Rx, link: &Link, buf: &mut [u8]) -> Result<Fetched, Failed> {
        let direct = rx.receiver.as_ref().and_then(Receiver::direct);
        let direct = direct.filter(|d| {
            let held = matches!(d.dest, Dest::Receive { cookie: super::held::HELD, .. });
            rx.len == 0 && d.remaining >= DIRECT_MIN && !held && self.device.pcap.is_none()
        });
        if let Some(d) = direct {
            return self.fetch_direct(rx, link.fd(), &d, &mut buf[..BULK_STAGING]);
        }
        let room = if rx.bulk { BULK_STAGING.max(rx.len + 64) } else { buf.len() };
        let room = &mut buf[rx.len..room.max(rx.len + 1)];
        let offered = room.len();
        let n = tcp::recv(link.fd(), room).map_err(Failed::Io)?;
        Ok(Fetched { staged: n, direct: 0, full: n == offered })
    }

    fn fetch_direct(
        &self,
        rx: &Rx,
        fd: BorrowedFd<'_>,
        d: &Direct,
        staging: &mut [u8],
    ) -> Result<Fetched, Failed> {
        let fault = |f| match d.dest {
            Dest::Write { stag, .. } => Fault::Write(stag, f),
            _ => Fault::LocalMemory,
        };
        let segment = self.direct_target(rx, d).map_err(fault).map_err(Failed::Memory)?;
        let grant = segment.enter().map_err(fault).map_err(Failed::Memory)?;
        let (into, behind) = (grant.len(), staging.len());
        // Bytes behind the payload may follow at once only if the target takes all of the rest.
        let whole = into == d.remaining as usize;
        let got = if whole {
            sys::recv(fd, &mut [RecvPiece::grant(&grant), RecvPiece::bytes(staging)])
        } else {
            sys::recv(fd, &mut [RecvPiece::grant(&grant)])
        };
        let n = got.map_err(|e| match e.raw_os_error() {
            Some(libc::EFAULT) => Failed::Memory(fault(TaggedFault::Unreachable)),
            _ => Failed::Io(e),
        })?;
        let offered = if whole { into + behind } else { into };
        Ok(Fetched { direct: n.min(into), staged: n.saturating_sub(into), full: n == offered })
    }

    /// The memory that the next payload bytes go to; a scattered target gives its next piece.
    fn direct_target(&self, rx: &Rx, d: &Direct) -> Result<Segment, TaggedFault> {
        let piece = |segments: &Segments, offset: usize| {
            let mut runs = segments.runs(offset, d.remaining as usize);
            let run = runs.next().ok_or(TaggedFault::Bounds)?;
            run.segment.part(run.offset, run.len as u32)
        };
        match d.dest {
            Dest::Write { stag, to } => self.device.table.remote_segment(
                stag,
                to.wrapping_add(u64::from(d.done)),
                d.remaining,
                Access::REMOTE_WRITE,
                self.who(),
            ),
            Dest::Receive { offset, .. } => {
                let wqe: &RecvWqe = rx.slots.current.as_ref().ok_or(TaggedFault::Bounds)?;
                piece(&wqe.segments, (offset + d.done) as usize)
            }
            Dest::Response(p) => {
                let mut shared = self.lock_shared();
                let entry = shared.get_mut(p.cookie).ok_or(TaggedFault::Bounds)?;
                piece(&entry.sink, (p.offset + d.done) as usize)
            }
            Dest::Discard => Err(TaggedFault::Bounds),
        }
    }

    /// Lets the core take what is in staging.
    fn digest(&self, rx: &mut Rx, buf: &mut [u8], direct: usize, out: &mut Outcome) -> Option<Cause> {
        let receiver = rx.receiver.as_mut()?;
        receiver.direct_done(direct);
        let before = receiver.fpdus();
        let mut host = RxHost { qp: self, slots: &mut rx.slots, out };
        let result = receiver.handle(&mut host, &mut buf[..rx.len]);
        let fpdus = receiver.fpdus() - before;
        if receiver.direct().is_some() {
            rx.bulk = true;
        } else if let Ok((used, _)) = result
            && fpdus > 0
            && direct == 0
            && used as u64 / fpdus < BULK_FPDU
        {
            rx.bulk = false;
        }
        add(&self.counters.rx_fpdus, fpdus);
        add(&self.device.counters.rx_fpdus, fpdus);
        out.first |= before == 0 && fpdus > 0;
        if out.end.is_some() {
            return out.end;
        }
        match result {
            Err(fault) => Some(Cause::Fault(fault)),
            Ok((_, Progress::Terminated)) => Some(Cause::Terminated(out.terminated.flatten())),
            Ok((used, _)) => {
                buf.copy_within(used..rx.len, 0);
                rx.len -= used;
                None
            }
        }
    }

    /// After a failure: reads and forgets until the peer is done, so that our last bytes reach it.
    fn throw_away(&self, rx: &mut Rx, link: &Link, out: &mut Outcome) {
        let mut buf = self.device.staging.take();
        rx.len = 0;
        for _ in 0..ROUNDS {
            match tcp::recv(link.fd(), &mut buf) {
                Ok(0) => out.closed = Some(Closed::EndOfStream),
                Ok(_) => continue,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
                Err(_) => out.closed = Some(Closed::Broken),
            }
            break;
        }
        self.device.staging.put(buf);
    }

    /// A round begins; under the receive lock.
    pub(super) fn outcome(&self) -> Outcome {
        Outcome { life: self.life(), ..Outcome::default() }
    }

    /// Acts upon a round, without the receive lock.
    pub(super) fn after_receive(&self, out: Outcome) {
        // rule 5044-7.1.2-3, 6581-9.2-4
        if out.first {
            let opened = self.lock_tx().open_gate();
            if opened {
                self.device.report(AsyncEvent::CommunicationEstablished { qp_num: self.num });
                self.kick();
            } else {
                self.after_tx();
            }
        }
        if out.kick {
            self.kick();
        }
        if out.reads_done {
            self.report_if_drained();
        }
        match out.closed {
            _ if out.life != self.life() => {}
            Some(Closed::EndOfStream) => self.peer_ended(),
            Some(Closed::Broken) => self.close_now(),
            None => {}
        }
        if let Some(cause) = out.end {
            self.fail(out.life, cause);
        }
    }
}

struct Fetched {
    staged: usize,
    direct: usize,
    /// As much as was offered came: more may wait.
    full: bool,
}

enum Failed {
    Memory(Fault),
    Io(std::io::Error),
}
