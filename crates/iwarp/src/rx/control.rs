//! Control messages: Read Request, Atomic Request and Response, Terminate. Each fits one segment.

use super::Receiver;
use crate::error::Fault;
use crate::host::{Event, Host};
use crate::types::{InboundRead, Opcode, Queue};
use crate::wire::ddp::Untagged;
use crate::wire::rdmap::{
    ATOMIC_REQUEST_LEN, ATOMIC_RESPONSE_LEN, AtomicResponse, READ_REQUEST_LEN, ReadRequest, parse_atomic,
};
use crate::wire::terminate::{Phase, TerminateMessage};

impl Receiver {
    /// Handles a whole control segment. Returns whether it was a Terminate.
    pub(super) fn control<H: Host>(
        &mut self,
        host: &mut H,
        u: &Untagged,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<bool, Fault> {
        if opcode == Opcode::Terminate {
            // RFC 5040 §5.4: whatever it says, the stream ends. Only an initiator complains of the other
            // side's frame thus, and with its first FPDU. RFC 6581 §8.
            // rule 5040-5.4-3
            let phase = if self.responder && self.fpdus() == 0 { Phase::Startup } else { Phase::Operation };
            host.event(Event::Terminated(TerminateMessage::decode_in(payload, phase)));
            return Ok(true);
        }
        if u.mo != 0 {
            return Err(Fault::MessageOffset);
        }
        // rule 5040-4.4-2
        if !u.last {
            return Err(Fault::MessageLength(opcode));
        }
        match opcode {
            Opcode::ReadRequest => read_request(host, payload)?,
            Opcode::AtomicRequest => atomic_request(host, payload)?,
            Opcode::AtomicResponse => atomic_response(host, payload)?,
            _ => return Err(Fault::UnexpectedOpcode(u.opcode)),
        }
        self.bump(opcode.queue().unwrap_or(Queue::Request));
        Ok(false)
    }
}

fn read_request<H: Host>(host: &mut H, payload: &[u8]) -> Result<(), Fault> {
    let r = exact(ReadRequest::parse(payload), payload, READ_REQUEST_LEN, Opcode::ReadRequest)?;
    // RFC 5040 §5.2.1: a zero-length Read's source STag is not looked at.
    // rule 5040-5.2.1-4, 5040-5.2.1-3, 6581-9.2-6
    if r.len > 0 {
        host.check_read(r.src_stag, r.src_to, r.len).map_err(|f| Fault::ReadSource(r.src_stag, f))?;
    }
    // rule 5040-5.2-1, 5040-5.5-4
    host.push_inbound(InboundRead::Read {
        sink_stag: r.sink_stag,
        sink_to: r.sink_to,
        len: r.len,
        src_stag: r.src_stag,
        src_to: r.src_to,
    })
}

fn atomic_request<H: Host>(host: &mut H, payload: &[u8]) -> Result<(), Fault> {
    // rule 7306-5.2.1-1
    if payload.len() != ATOMIC_REQUEST_LEN {
        return Err(Fault::MessageLength(Opcode::AtomicRequest));
    }
    let r = parse_atomic(payload)?;
    // RFC 7306 §5.1: the target is eight aligned bytes.
    // rule 7306-5.1-2
    if r.to % 8 != 0 {
        return Err(Fault::AtomicAlignment);
    }
    // rule 7306-5.3-2
    if !host.inbound_has_room() {
        // Refused before memory changes: an atomic that is not answered must not happen.
        return Err(Fault::IrdExceeded);
    }
    // rule 7306-5.4-1, 7306-5.1-1, 7306-8.2-1
    let original = host.atomic(&r).map_err(|f| Fault::Atomic(r.stag, f))?;
    host.push_inbound(InboundRead::Atomic { id: r.id, original })
}

fn atomic_response<H: Host>(host: &mut H, payload: &[u8]) -> Result<(), Fault> {
    let r = exact(AtomicResponse::parse(payload), payload, ATOMIC_RESPONSE_LEN, Opcode::AtomicResponse)?;
    // rule 7306-5.2.2-2
    let place = host.atomic_response(r.id)?;
    // rule 7306-5.1-3, 7306-5.4-2
    host.place_response(place, &r.original.to_ne_bytes())?;
    host.event(Event::ResponseDone { cookie: place.cookie, len: 8 });
    Ok(())
}

fn exact<T>(parsed: Option<T>, payload: &[u8], len: usize, opcode: Opcode) -> Result<T, Fault> {
    parsed.filter(|_| payload.len() == len).ok_or(Fault::MessageLength(opcode))
}
