//! What the core asks of the engine while it receives.

use std::sync::atomic::Ordering;

use iwarp::host::ResponsePlace;
use iwarp::{AtomicRequest, Event, Fault, Host, InboundRead, Opcode, ReceiveSlot, Stag, TaggedFault};

use super::QpInner;
use super::held::Slots;
use super::rx::Outcome;
use crate::mem::Access;
use crate::queue::{Completion, CompletionOp, Status};

/// The engine as the core sees it.
pub(super) struct RxHost<'a> {
    pub(super) qp: &'a QpInner,
    pub(super) slots: &'a mut Slots,
    pub(super) out: &'a mut Outcome,
}

impl Host for RxHost<'_> {
    fn crc32c(&self, state: u32, bytes: &[u8]) -> u32 {
        crate::crc::update(state, bytes)
    }

    fn check_write(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedFault> {
        let table = &self.qp.device.table;
        // rule 5040-5.1-3, 5041-7.1-1, 5041-7.1-2, 5041-7.1-3, 5041-7.1-4
        table.check(stag, to, len.into(), Access::REMOTE_WRITE, self.qp.who()).map(drop)
    }

    fn place_write(&mut self, stag: Stag, to: u64, bytes: &[u8]) -> Result<(), TaggedFault> {
        self.qp.device.table.place(stag, to, bytes, self.qp.who())
    }

    fn take_receive(&mut self) -> Result<Option<ReceiveSlot>, Fault> {
        self.qp.take_receive(self.slots).map(Some)
    }

    fn place_receive(&mut self, _: u64, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        self.qp.place_receive(self.slots, offset, bytes)
    }

    fn response_place(&mut self, stag: Stag, to: u64, len: u32, last: bool) -> Result<ResponsePlace, Fault> {
        self.qp.lock_shared().orq.on_response(stag, to, len, last)
    }

    fn place_response(&mut self, place: ResponsePlace, bytes: &[u8]) -> Result<(), Fault> {
        let sink = match self.qp.lock_shared().get_mut(place.cookie) {
            Some(entry) => entry.sink.clone(),
            None => return Err(Fault::UnexpectedResponse),
        };
        sink.copy_in(place.offset as usize, bytes).map_err(|_| Fault::LocalMemory)
    }

    fn atomic_response(&mut self, id: u32) -> Result<ResponsePlace, Fault> {
        self.qp.lock_shared().orq.on_atomic(id)
    }

    fn check_read(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), TaggedFault> {
        let table = &self.qp.device.table;
        // rule 5040-5.2.1-3
        table.check(stag, to, len.into(), Access::REMOTE_READ, self.qp.who()).map(drop)
    }

    fn atomic(&mut self, r: &AtomicRequest) -> Result<u64, TaggedFault> {
        let table = &self.qp.device.table;
        // rule 7306-9-1, 7306-8.2-1
        let grant = table.check(r.stag, r.to, 8, Access::REMOTE_ATOMIC, self.qp.who())?;
        // rule 7306-5.3-1, 7306-5.1-3
        grant.atomic_u64(0, |old| r.apply(old))
    }

    fn inbound_has_room(&mut self) -> bool {
        self.qp.lock_shared().irq.has_room()
    }

    fn push_inbound(&mut self, read: InboundRead) -> Result<(), Fault> {
        self.out.kick = true;
        let mut shared = self.qp.lock_shared();
        shared.irq.push(read)?;
        self.qp.reads_waiting.store(true, Ordering::Release);
        Ok(())
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        // rule 5040-5.3-5
        self.qp.device.table.invalidate_remote(stag, self.qp.who())
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::WriteDone { .. } => {}
            Event::ReceiveDone { len, opcode, invalidated, immediate, .. } => {
                let done = Received { len, opcode, invalidated: invalidated.map(|s| s.0), immediate };
                self.qp.receive_done(self.slots, done, self.out);
            }
            Event::ResponseDone { cookie, .. } => self.response_done(cookie),
            Event::Terminated(message) => self.out.terminated = Some(message),
        }
    }
}

impl RxHost<'_> {
    fn response_done(&mut self, cookie: u64) {
        let mut shared = self.qp.lock_shared();
        shared.orq.pop();
        let invalidate = shared.get_mut(cookie).and_then(|e| e.invalidate);
        if let Some(lkey) = invalidate {
            // The key may be gone already; the Read itself succeeded.
            let _ = self.qp.device.table.invalidate_local(Stag(lkey), self.qp.who());
        }
        shared.finish(cookie);
        self.qp.retire(&mut shared);
        self.out.kick |= std::mem::take(&mut shared.sq_waits);
        self.out.reads_done |= shared.is_idle();
    }
}

/// A message that came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) len: u32,
    pub(super) opcode: Opcode,
    pub(super) invalidated: Option<u32>,
    pub(super) immediate: Option<u64>,
}

impl Received {
    /// Whether it counts as solicited.
    pub(super) fn solicited(&self) -> bool {
        // rule 5040-5.3-3, 7306-6.3-1
        matches!(self.opcode, Opcode::SendSe | Opcode::SendSeInvalidate | Opcode::ImmediateSe)
    }

    /// Its completion.
    pub(super) fn completion(&self, wr_id: u64, qp_num: u32) -> Completion {
        Completion {
            wr_id,
            status: Status::Success,
            opcode: if self.immediate.is_some() { CompletionOp::RecvImmediate } else { CompletionOp::Recv },
            len: self.len,
            qp_num,
            immediate: self.immediate,
            invalidated: self.invalidated,
            vendor_err: 0,
        }
    }
}
