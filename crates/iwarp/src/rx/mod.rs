//! The receive side: stream bytes in, placements and events out through [`Host`].
//!
//! The caller keeps the bytes that were not consumed and shows them again with more behind them; how
//! TCP cut the stream never matters. With CRC or markers an FPDU is looked at only when it is whole
//! (verify, then place). Without them a long FPDU is placed as it comes, and [`Receiver::direct`] lets
//! the caller receive the rest of its payload straight into the target memory.

mod control;
mod place;
mod untagged;

pub use place::{Dest, Direct};

use crate::error::Fault;
use crate::host::{Event, Host};
use crate::mpa::deframe::Deframer;
use crate::mpa::frame;
use crate::mpa::startup::{Negotiated, Rtr};
use crate::types::Opcode;
use crate::wire::ddp::{self, Header, Tagged};
use place::Placing;

/// Bytes of a faulty segment that a Terminate may quote: DDP header and Read Request header.
pub const QUOTE: usize = ddp::UNTAGGED_LEN + 28;

/// FPDUs from this size on are placed piecemeal when CRC and markers are off.
const PIECEMEAL: usize = 4096;

/// What the caller should do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Everything whole was taken; show the rest again when more came.
    NeedBytes,
    /// A message waits for a receive to be posted; nothing behind it can be looked at.
    NeedReceive,
    /// The peer sent a Terminate; nothing more will be taken.
    Terminated,
}

/// One direction of one stream, from the first FPDU on.
#[derive(Debug)]
pub struct Receiver {
    deframer: Deframer,
    piecemeal: bool,
    extensions: bool,
    rtr: Option<Rtr>,
    responder: bool,
    /// Next MSN of each untagged queue; counts from 1. RFC 5041 §5.1.2.
    msn: [u32; 4],
    message: Option<untagged::Message>,
    placing: Option<Placing>,
    /// A Write, or a Read Response, whose last segment has not come.
    writing: bool,
    responding: bool,
    fpdus: u64,
    ended: Option<Result<Progress, Fault>>,
    quote: Quote,
}

/// The head of the segment being handled, kept for a Terminate.
#[derive(Debug, Clone, Copy)]
struct Quote {
    bytes: [u8; QUOTE],
    len: usize,
    ulpdu_len: usize,
}

impl Quote {
    fn of(ulpdu: &[u8], ulpdu_len: usize) -> Self {
        let mut q = Self { bytes: [0; QUOTE], len: ulpdu.len().min(QUOTE), ulpdu_len };
        q.bytes[..q.len].copy_from_slice(&ulpdu[..q.len]);
        q
    }
}

impl Receiver {
    /// `responder`: this end accepted the connection, so the negotiated RTR frame comes to it.
    pub fn new(n: &Negotiated, responder: bool) -> Self {
        Self {
            deframer: Deframer::new(n.crc, n.rx_markers),
            piecemeal: !n.crc && !n.rx_markers,
            extensions: n.extensions,
            rtr: if responder { n.rtr } else { None },
            responder,
            // rule 5041-5.1.2-1, 5041-6.1-1
            msn: [1; 4],
            message: None,
            placing: None,
            writing: false,
            responding: false,
            fpdus: 0,
            ended: None,
            quote: Quote { bytes: [0; QUOTE], len: 0, ulpdu_len: 0 },
        }
    }

    /// FPDUs taken so far; a responder may send once this is not 0. RFC 5044 §7.1.2.
    pub fn fpdus(&self) -> u64 {
        self.fpdus
    }

    /// Whether the stream stands between two messages (a FIN here cuts nothing off).
    // rule 5044-7.2-3
    pub fn at_message_boundary(&self) -> bool {
        self.placing.is_none() && self.message.is_none() && !self.writing && !self.responding
    }

    /// The segment at fault, for a Terminate: its first bytes and its whole ULPDU length.
    pub fn offending(&self) -> Option<(&[u8], usize)> {
        (self.quote.len > 0).then(|| (&self.quote.bytes[..self.quote.len], self.quote.ulpdu_len))
    }

    /// Takes what is whole in `buf`, which starts where the last call stopped. Returns the bytes
    /// consumed and what is needed next.
    ///
    /// # Errors
    /// The fault that ends the stream; later calls return it again.
    pub fn handle<H: Host>(&mut self, host: &mut H, buf: &mut [u8]) -> Result<(usize, Progress), Fault> {
        // rule 5041-7.1-10, 5044-8-2, 5040-7.2-4
        if let Some(end) = self.ended {
            return end.map(|p| (0, p));
        }
        let result = self.run(host, buf);
        match result {
            Err(fault) => self.ended = Some(Err(fault)),
            Ok((_, Progress::Terminated)) => self.ended = Some(Ok(Progress::Terminated)),
            Ok(_) => {}
        }
        result
    }

    fn run<H: Host>(&mut self, host: &mut H, buf: &mut [u8]) -> Result<(usize, Progress), Fault> {
        let mut used = 0;
        loop {
            let rest = buf.get_mut(used..).unwrap_or_default();
            if let Some(placing) = &mut self.placing {
                used += placing.feed(host, rest)?;
                if !placing.is_done() {
                    return Ok((used, Progress::NeedBytes));
                }
                if let Some(done) = self.placing.take() {
                    self.close(host, &done)?;
                }
                continue;
            }
            let Some(total) = self.deframer.peek(rest)? else {
                return Ok((used, Progress::NeedBytes));
            };
            if rest.len() < total {
                if self.piecemeal && total >= PIECEMEAL {
                    match self.begin_piecemeal(host, rest)? {
                        Begun::Consumed(n) => {
                            used += n;
                            continue;
                        }
                        Begun::NotYet => {}
                        Begun::NeedReceive => return Ok((used, Progress::NeedReceive)),
                    }
                }
                return Ok((used, Progress::NeedBytes));
            }
            // An FPDU that waits for a receive must stay untouched, so that is settled first.
            if self.must_wait(host, rest)? {
                // Damage is found now, not when a receive is posted at last.
                self.deframer.verify(rest, total, |state, bytes| host.crc32c(state, bytes))?;
                return Ok((used, Progress::NeedReceive));
            }
            // rule 5041-3-1, 5044-3-1, 5044-3-3, 5044-5.2-1, 5044-5.2-2
            let range = self.deframer.take(rest, total, |state, bytes| host.crc32c(state, bytes))?;
            let ulpdu = rest.get(range).unwrap_or_default();
            // rule 5041-5.3-2, 5040-5.5-2, 7306-6.4-1
            let end = self.segment(host, ulpdu)?;
            used += total;
            self.fpdus += 1;
            if end {
                return Ok((used, Progress::Terminated));
            }
        }
    }

    /// One whole ULPDU. Returns whether it was a Terminate.
    fn segment<H: Host>(&mut self, host: &mut H, ulpdu: &[u8]) -> Result<bool, Fault> {
        self.quote = Quote::of(ulpdu, ulpdu.len());
        let header = ddp::parse(ulpdu)?;
        let payload = ulpdu.get(header.len()..).unwrap_or_default();
        match header {
            Header::Tagged(t) => {
                // rule 5041-5.1.1-2, 5040-5.1-1
                let placing = self.open_tagged(host, &t, payload.len(), true)?;
                placing.place(host, 0, payload)?;
                self.close(host, &placing)?;
                Ok(false)
            }
            Header::Untagged(u) => self.untagged(host, &u, payload),
        }
    }

    /// Begins an FPDU of which only the head is here: checks first, then what there is of the payload.
    fn begin_piecemeal<H: Host>(&mut self, host: &mut H, rest: &[u8]) -> Result<Begun, Fault> {
        // All that a Terminate may quote, so that the quote does not depend on how TCP cut the stream.
        let Some((len, head)) = rest.split_first_chunk::<2>() else { return Ok(Begun::NotYet) };
        let Some(head) = head.first_chunk::<QUOTE>() else { return Ok(Begun::NotYet) };
        let ulpdu_len = usize::from(u16::from_be_bytes(*len));
        self.quote = Quote::of(head, ulpdu_len);
        let header = ddp::parse(head)?;
        let head_len = header.len();
        // rule 5044-9.1-1
        let Some(payload_len) = ulpdu_len.checked_sub(head_len) else {
            return Err(Fault::FpduLength(ulpdu_len as u32));
        };
        let trailer = frame::fpdu_len(ulpdu_len) - 2 - ulpdu_len;
        let placing = match header {
            Header::Tagged(t) => self.open_tagged(host, &t, payload_len, false)?,
            Header::Untagged(u) => match self.open_send(host, &u, payload_len)? {
                untagged::Opened::Placing(p) => p,
                untagged::Opened::NeedReceive => return Ok(Begun::NeedReceive),
                // Control messages are short; one this long is refused when it is whole.
                untagged::Opened::NotSend => return Ok(Begun::NotYet),
            },
        };
        self.placing = Some(placing.with_trailer(trailer));
        Ok(Begun::Consumed(2 + head_len))
    }

    /// Checks of a tagged segment. `whole`: its payload is placed at once, so a Write's own check suffices.
    fn open_tagged<H: Host>(
        &self,
        host: &mut H,
        t: &Tagged,
        payload_len: usize,
        whole: bool,
    ) -> Result<Placing, Fault> {
        let len = payload_len as u32;
        match Opcode::from_wire(t.opcode) {
            Some(Opcode::Write) => {
                // RFC 5040 §5.1: a zero-length Write's STag is not looked at.
                // rule 5041-7.1-1, 5041-7.1-2, 5041-7.1-3, 5041-7.1-4, 5040-5.1-3
                if len > 0 && !whole {
                    host.check_write(t.stag, t.to, len).map_err(|f| Fault::Write(t.stag, f))?;
                }
                let dest = Dest::Write { stag: t.stag, to: t.to };
                Ok(Placing::new(dest, payload_len, t.last, Opcode::Write))
            }
            Some(Opcode::ReadResponse) => {
                let place = host.response_place(t.stag, t.to, len, t.last)?;
                let dest = if place.discard { Dest::Discard } else { Dest::Response(place) };
                Ok(Placing::new(dest, payload_len, t.last, Opcode::ReadResponse).for_response(place))
            }
            // rule 5040-4.2-1
            _ => Err(Fault::UnexpectedOpcode(t.opcode)),
        }
    }

    /// A segment's payload and trailer are in: report what it completed.
    fn close<H: Host>(&mut self, host: &mut H, done: &Placing) -> Result<(), Fault> {
        match done.opcode() {
            Opcode::Write => self.writing = !done.last,
            Opcode::ReadResponse => self.responding = !done.last,
            _ => {}
        }
        match done.opcode() {
            // rule 5041-5.4-1
            Opcode::Write if done.last => host.event(Event::WriteDone { len: done.len() as u32 }),
            Opcode::ReadResponse if done.last => {
                if let Some(place) = done.response() {
                    let len = if place.discard { 0 } else { place.offset + done.len() as u32 };
                    host.event(Event::ResponseDone { cookie: place.cookie, len });
                }
            }
            Opcode::Write | Opcode::ReadResponse => {}
            _ => self.close_send(host, done)?,
        }
        if done.piecemeal() {
            self.fpdus += 1;
        }
        Ok(())
    }

    /// Where the caller may put the next payload bytes of the FPDU under way itself, if it can.
    pub fn direct(&self) -> Option<Direct> {
        self.placing.as_ref().and_then(Placing::direct)
    }

    /// The caller put `n` payload bytes where [`Receiver::direct`] said.
    pub fn direct_done(&mut self, n: usize) {
        if let Some(placing) = &mut self.placing {
            placing.advance(n);
        }
    }
}

enum Begun {
    Consumed(usize),
    NotYet,
    NeedReceive,
}

#[cfg(test)]
mod tests;
