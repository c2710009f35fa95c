//! Untagged segments: Sends and Immediate Data on queue 0; the others are control messages.

use super::place::{Dest, Placing};
use super::{Quote, Receiver};
use crate::error::Fault;
use crate::host::{Event, Host, ReceiveSlot};
use crate::mpa::startup::Rtr;
use crate::types::{Opcode, Queue, Stag};
use crate::wire::ddp::{self, Header, Untagged};

/// The Send under way: it may span many segments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) slot: ReceiveSlot,
    opcode: Opcode,
    inv_stag: Stag,
    received: u32,
}

impl Message {
    fn invalidates(&self) -> bool {
        matches!(self.opcode, Opcode::SendInvalidate | Opcode::SendSeInvalidate)
    }
}

/// How a segment of queue 0 begins.
pub(super) enum Opened {
    Placing(Placing),
    NeedReceive,
    NotSend,
}

impl Receiver {
    /// Opcode, queue and sequence rules of an untagged segment. RFC 5041 §7.1, RFC 5040 §7.2.
    fn check_untagged(&self, u: &Untagged) -> Result<(Opcode, Queue), Fault> {
        // rule 5041-7.1-5, 5040-3.1-1
        let queue = Queue::from_wire(u.qn)
            .filter(|q| self.extensions || *q != Queue::AtomicResponse)
            .ok_or(Fault::QueueNumber(u.qn))?;
        // rule 5040-4.2-2, 5040-4.1-3, 7306-1.1-1, 7306-4.2-1
        let opcode = Opcode::from_wire(u.opcode)
            .filter(|o| o.queue() == Some(queue) && (self.extensions || !o.is_extension()))
            .ok_or(Fault::UnexpectedOpcode(u.opcode))?;
        // rule 5041-7.1-7
        if u.msn != self.msn[queue as usize] {
            return Err(Fault::MsnRange);
        }
        Ok((opcode, queue))
    }

    /// Whether the whole FPDU at the head of `rest` starts a message for which no receive is posted.
    /// It takes the receive where there is one.
    pub(super) fn must_wait<H: Host>(&mut self, host: &mut H, rest: &[u8]) -> Result<bool, Fault> {
        if self.message.is_some() {
            return Ok(false);
        }
        // Only the head matters; faults in it are found when the segment is handled (and its CRC is good).
        let Some(head) = self.deframer.head::<{ 2 + ddp::UNTAGGED_LEN }>(rest) else { return Ok(false) };
        let Ok(Header::Untagged(u)) = ddp::parse(&head[2..]) else { return Ok(false) };
        let ulpdu_len = usize::from(u16::from_be_bytes([head[0], head[1]]));
        // A ULPDU shorter than its header ends before what was parsed.
        let Some(payload_len) = ulpdu_len.checked_sub(ddp::UNTAGGED_LEN) else { return Ok(false) };
        let queue0 = u.qn == Queue::Send as u32 && u.mo == 0;
        if !queue0 || self.check_untagged(&u).is_err() || self.is_rtr_send(&u, payload_len) {
            return Ok(false);
        }
        // rule 5041-7.1-6, 5041-5.1.2-3
        match host.take_receive() {
            Ok(Some(slot)) => {
                self.reserve(slot, &u);
                Ok(false)
            }
            Ok(None) => Ok(true),
            Err(fault) => {
                self.quote = Quote::of(&head[2..], ulpdu_len);
                Err(fault)
            }
        }
    }

    fn reserve(&mut self, slot: ReceiveSlot, u: &Untagged) {
        let opcode = Opcode::from_wire(u.opcode).unwrap_or(Opcode::Send);
        self.message = Some(Message { slot, opcode, inv_stag: u.inv_stag, received: 0 });
    }

    /// RFC 6581 §9.2: the zero-length Send that only says "ready to receive" uses no receive.
    fn is_rtr_send(&self, u: &Untagged, payload_len: usize) -> bool {
        // rule 6581-9.2-5
        self.fpdus == 0
            && self.rtr == Some(Rtr::Send)
            && u.opcode == Opcode::Send as u8
            && payload_len == 0
            && u.mo == 0
            && u.last
    }

    /// Checks of a segment on queue 0, before any of its payload is placed.
    pub(super) fn open_send<H: Host>(
        &mut self,
        host: &mut H,
        u: &Untagged,
        payload_len: usize,
    ) -> Result<Opened, Fault> {
        let (opcode, queue) = self.check_untagged(u)?;
        if queue != Queue::Send || matches!(opcode, Opcode::Immediate | Opcode::ImmediateSe) {
            return Ok(Opened::NotSend);
        }
        if self.message.is_none() {
            if u.mo != 0 {
                return Err(Fault::MessageOffset);
            }
            // rule 5040-5.3-2, 5041-5.1.2-3
            match host.take_receive()? {
                Some(slot) => self.reserve(slot, u),
                None => return Ok(Opened::NeedReceive),
            }
        }
        let Some(m) = &self.message else { return Err(Fault::MessageOffset) };
        // rule 5041-7.1-8, 5041-5.2-5
        if u.mo != m.received {
            return Err(Fault::MessageOffset);
        }
        // rule 5040-4.1-3, 5040-4.1-4, 5040-4.7-1: the field is not looked at where it means nothing.
        if opcode != m.opcode || m.invalidates() && u.inv_stag != m.inv_stag {
            return Err(Fault::UnexpectedOpcode(u.opcode));
        }
        let end = u64::from(m.received) + payload_len as u64;
        // rule 5041-7.1-9, 5040-5.3-1
        if end > m.slot.len || end > u64::from(u32::MAX) {
            return Err(Fault::MessageTooLong);
        }
        // rule 5041-5.1.2-4, 5041-4.3-2
        let dest = Dest::Receive { cookie: m.slot.cookie, offset: m.received };
        Ok(Opened::Placing(Placing::new(dest, payload_len, u.last, opcode)))
    }

    /// A whole untagged segment. Returns whether it was a Terminate.
    pub(super) fn untagged<H: Host>(
        &mut self,
        host: &mut H,
        u: &Untagged,
        payload: &[u8],
    ) -> Result<bool, Fault> {
        let (opcode, queue) = self.check_untagged(u)?;
        if queue != Queue::Send {
            return self.control(host, u, opcode, payload);
        }
        // rule 6581-9.2-7
        if self.is_rtr_send(u, payload.len()) {
            self.bump(Queue::Send);
            return Ok(false);
        }
        if matches!(opcode, Opcode::Immediate | Opcode::ImmediateSe) {
            self.immediate(host, u, opcode, payload)?;
            return Ok(false);
        }
        match self.open_send(host, u, payload.len())? {
            Opened::Placing(placing) => {
                placing.place(host, 0, payload)?;
                self.finish_send(host, &placing)?;
                Ok(false)
            }
            Opened::NeedReceive | Opened::NotSend => Err(Fault::NoReceive),
        }
    }

    fn finish_send<H: Host>(&mut self, host: &mut H, placing: &Placing) -> Result<(), Fault> {
        let Some(m) = &mut self.message else { return Ok(()) };
        m.received += placing.len() as u32;
        // rule 5041-5.4-1, 5041-5.4-3
        if placing.last {
            let m = *m;
            self.deliver(host, &m)?;
        }
        Ok(())
    }

    fn deliver<H: Host>(&mut self, host: &mut H, m: &Message) -> Result<(), Fault> {
        let invalidates = m.invalidates();
        // RFC 5040 §5.3: the STag is invalid before the message is delivered.
        // rule 5040-5.3-4
        if invalidates {
            host.invalidate(m.inv_stag)?;
        }
        self.message = None;
        self.bump(Queue::Send);
        host.event(Event::ReceiveDone {
            // rule 5041-5.4-2
            cookie: m.slot.cookie,
            len: m.received,
            opcode: m.opcode,
            invalidated: invalidates.then_some(m.inv_stag),
            immediate: None,
        });
        Ok(())
    }

    /// A piecemeal Send segment is complete.
    pub(super) fn close_send<H: Host>(&mut self, host: &mut H, done: &Placing) -> Result<(), Fault> {
        self.finish_send(host, done)
    }

    /// Immediate Data: eight bytes for the completion of the next receive. RFC 7306 §6.
    fn immediate<H: Host>(
        &mut self,
        host: &mut H,
        u: &Untagged,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<(), Fault> {
        // rule 7306-6.2-1
        if u.mo != 0 {
            return Err(Fault::MessageOffset);
        }
        let value = <[u8; 8]>::try_from(payload).map_err(|_| Fault::MessageLength(opcode))?;
        if !u.last {
            return Err(Fault::MessageLength(opcode));
        }
        let slot = match self.message.take() {
            Some(m) if m.opcode == opcode => m.slot,
            Some(_) => return Err(Fault::UnexpectedOpcode(u.opcode)),
            None => host.take_receive()?.ok_or(Fault::NoReceive)?,
        };
        self.bump(Queue::Send);
        host.event(Event::ReceiveDone {
            cookie: slot.cookie,
            len: 0,
            opcode,
            invalidated: None,
            // rule 7306-6.1-1, 7306-6.3-1
            immediate: Some(u64::from_be_bytes(value)),
        });
        Ok(())
    }

    /// The message of this queue is complete; the next one has the next number. RFC 5041 §5.1.2.
    pub(super) fn bump(&mut self, queue: Queue) {
        let slot = &mut self.msn[queue as usize];
        // rule 5041-5.1.2-1, 7306-6.3-2, 7306-5.2.1-3
        *slot = slot.wrapping_add(1);
    }
}
