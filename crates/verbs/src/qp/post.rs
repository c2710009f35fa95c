//! Posting work requests: checks, key resolution, and the transmission of what can go at once.

use std::sync::atomic::Ordering;

use super::wqe::{RecvWqe, Segments, SendWqe, Source, needs_response};
use super::{QpInner, QpState};
use crate::device::limits;
use crate::error::{Error, PostError, Result};
use crate::mem::Segment;
use crate::pd::{PdInner, sge_count};
use crate::queue::{Completion, CompletionOp, Status};
use crate::wr::{Payload, RecvWr, SendFlags, SendOp, SendWr, Sge};

/// Resolves a scatter/gather list. Elements of zero length are left out: verbs do not look at their keys.
fn resolve(pd: &PdInner, sges: &[Sge], write: bool) -> Result<(Segments, u64)> {
    let one =
        |sge: &Sge| -> Result<Segment> {
            pd.device
                .table
                .local(sge.lkey, sge.addr, sge.len, write, pd.id)
                .map_err(|fault| Error::LocalMemory { lkey: sge.lkey, addr: sge.addr, len: sge.len, fault })
        };
    if let [sge] = sges
        && sge.len > 0
    {
        return Ok((Segments::One(one(sge)?), u64::from(sge.len)));
    }
    let list = sges.iter().filter(|s| s.len > 0).map(one).collect::<Result<Vec<_>>>()?;
    Ok((Segments::from_vec(list), sges.iter().map(|s| u64::from(s.len)).sum()))
}

/// Checks a receive and resolves its list.
pub(crate) fn resolve_recv(pd: &PdInner, wr: &RecvWr<'_>) -> Result<RecvWqe> {
    sge_count(wr.sges.len())?;
    let (segments, len) = resolve(pd, wr.sges, true)?;
    Ok(RecvWqe { wr_id: wr.wr_id, segments, len })
}

impl QpInner {
    /// Checks one send request and resolves its memory.
    pub(super) fn resolve_send(&self, wr: &SendWr<'_>) -> Result<SendWqe> {
        let (source, len) = match wr.payload {
            Payload::Inline(bytes) => self.inline(wr, bytes)?,
            Payload::Sges(sges) => {
                if sges.len() > self.caps.max_sge as usize {
                    return Err(Error::Limit {
                        what: "num_sge",
                        value: sges.len() as u64,
                        limit: self.caps.max_sge.into(),
                    });
                }
                // rule 5040-3.2-1, 5040-7.1-1
                let (segments, len) = resolve(&self.pd, sges, needs_response(&wr.op))?;
                if matches!(wr.op, SendOp::ReadInvalidate { .. })
                    && !(sges.len() == 1 && matches!(segments, Segments::One(_)))
                {
                    return Err(Error::Invalid(
                        "a Read with Invalidate needs one element of memory: its key is invalidated",
                    ));
                }
                (Source::Memory(segments), len)
            }
        };
        let len = u32::try_from(len).map_err(|_| Error::Limit {
            what: "message length",
            value: len,
            limit: u32::MAX.into(),
        })?;
        check_shape(&wr.op, len)?;
        Ok(SendWqe { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, len, source })
    }

    fn inline(&self, wr: &SendWr<'_>, bytes: &[u8]) -> Result<(Source, u64)> {
        if !matches!(wr.op, SendOp::Send | SendOp::SendInvalidate(_) | SendOp::Write { .. }) {
            return Err(Error::Invalid("inline data goes with Send and Write only"));
        }
        if bytes.len() > self.caps.max_inline as usize {
            return Err(Error::Limit {
                what: "inline data",
                value: bytes.len() as u64,
                limit: self.caps.max_inline.into(),
            });
        }
        Ok((Source::Inline(bytes.into()), bytes.len() as u64))
    }

    /// Whether requests may be posted now; `true`: they are flushed at once.
    fn may_post_send(&self) -> Result<bool> {
        match self.state() {
            QpState::Rts | QpState::Sqd => Ok(false),
            QpState::Error => Ok(true),
            state => Err(Error::State { what: "posting a send", needed: "Rts, Sqd or Error", state }),
        }
    }

    /// Posts a list; what can be sent goes out in as few system calls as possible before this returns.
    pub(crate) fn post_send(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), PostError> {
        let fault = |index| move |error| PostError { index, error };
        self.device.check_fork().map_err(fault(0))?;
        let mut tx = self.lock_tx();
        let flush = self.may_post_send().map_err(fault(0))?;
        let mut failed = None;
        for (index, wr) in wrs.iter().enumerate() {
            if let Err(error) = self.post_one(&mut tx, wr, flush) {
                failed = Some(PostError { index, error });
                break;
            }
        }
        let end = if flush { None } else { self.transmit(&mut tx) };
        let life = self.life();
        drop(tx);
        if let Some(cause) = end {
            self.fail(life, cause);
        }
        self.after_tx();
        failed.map_or(Ok(()), Err)
    }

    fn post_one(&self, tx: &mut super::Tx, wr: &SendWr<'_>, flush: bool) -> Result<()> {
        if self.outstanding.load(Ordering::Acquire) >= self.caps.max_send_wr {
            return Err(Error::QueueFull("send"));
        }
        let extension = matches!(
            wr.op,
            SendOp::Immediate(_) | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } | SendOp::Swap { .. }
        );
        // rule 7306-1.1-1, 7306-8.1-1
        if extension && !flush && !tx.extensions() {
            return Err(Error::NotNegotiated);
        }
        if needs_response(&wr.op) && !flush && !tx.may_read() {
            return Err(Error::Limit { what: "outbound Reads and atomics (ORD)", value: 1, limit: 0 });
        }
        let mut wqe = self.resolve_send(wr)?;
        if flush {
            self.flush_one(&wqe);
            return Ok(());
        }
        if self.caps.signal_all {
            wqe.flags.insert(SendFlags::SIGNALED);
        }
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        tx.enqueue(wqe);
        Ok(())
    }

    /// A send request that will not be begun.
    pub(super) fn flush_one(&self, wqe: &SendWqe) {
        let completion = Completion {
            wr_id: wqe.wr_id,
            status: Status::WrFlush,
            opcode: super::wqe::completion_op(&wqe.op),
            qp_num: self.num,
            ..Completion::default()
        };
        self.send_cq.push(completion, false);
    }

    /// Posts a receive to the queue pair's own queue.
    pub(crate) fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        self.device.check_fork()?;
        if self.rq.is_shared() {
            return Err(Error::Invalid("the queue pair takes receives from a shared queue: post them there"));
        }
        if wr.sges.len() > self.caps.max_sge as usize {
            return Err(Error::Limit {
                what: "num_sge",
                value: wr.sges.len() as u64,
                limit: self.caps.max_sge.into(),
            });
        }
        let state = self.state();
        if state == QpState::Reset {
            return Err(Error::State { what: "posting a receive", needed: "Init or later", state });
        }
        let wqe = resolve_recv(&self.pd, wr)?;
        if state == QpState::Error {
            self.rq.post_last(wqe);
        } else {
            self.rq.post(wqe)?;
        }
        // The connection may have failed meanwhile, after its flush looked at the queue.
        if self.state() == QpState::Error {
            self.flush_receives();
        }
        if self.holds.load(Ordering::SeqCst) {
            self.receive_posted();
        }
        Ok(())
    }

    pub(super) fn flush_recv(&self, wr_id: u64) {
        let completion = Completion {
            wr_id,
            status: Status::WrFlush,
            opcode: CompletionOp::Recv,
            qp_num: self.num,
            ..Completion::default()
        };
        self.recv_cq.push(completion, false);
    }
}

/// Lengths that an operation must have.
fn check_shape(op: &SendOp, len: u32) -> Result<()> {
    match op {
        SendOp::FetchAdd { raddr, .. } | SendOp::CmpSwap { raddr, .. } | SendOp::Swap { raddr, .. }
            // rule 7306-8.1-1
            if len != 8 || raddr % 8 != 0 =>
        {
            return Err(Error::Invalid(
                "an atomic needs 8 bytes of local memory and an 8-byte aligned target",
            ));
        }
        SendOp::Immediate(_)
        | SendOp::LocalInvalidate(_)
        | SendOp::BindWindow(_)
        | SendOp::FastRegister(_)
            if len != 0 =>
        {
            return Err(Error::Invalid("this operation carries no payload"));
        }
        _ => {}
    }
    Ok(())
}

/// Elements that any queue pair can be created with.
pub(super) fn max_sge(wanted: u32) -> Result<u32> {
    crate::pd::within("max_sge", wanted, limits::SGE)?;
    Ok(wanted.max(1))
}
