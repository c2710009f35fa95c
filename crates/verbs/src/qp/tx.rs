//! The transmit side: which message is next, its segments, and their way to TCP.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use iwarp::mpa::frame::{self, CRC_LEN};
use iwarp::mpa::marker::MarkerTx;
use iwarp::mpa::startup::Rtr;
use iwarp::rdmap::Outstanding;
use iwarp::tx::{Message, Segment, Transmitter};
use iwarp::wire::rdmap::{AtomicResponse, ReadRequest};
use iwarp::{InboundRead, Stag, TaggedFault};

use super::batch::{Batch, Flushed};
use super::close::Cause;
use super::link::Link;
use super::shared::{InFlight, Shared};
use super::wqe::{Segments, SendWqe, Source, atomic_request, completion_op, needs_response};
use super::{QpInner, QpState};
use crate::counters::add;
use crate::crc;
use crate::mem::Access;
use crate::wr::{SendFlags, SendOp};

/// Payloads up to this are copied next to their headers; longer ones are sent from where they are.
const COPY_MAX: usize = 1024;
/// Bytes put together for one system call; with CRC they are staged, so fewer.
const BATCH_BYTES: usize = 1 << 20;
const STAGED_BYTES: usize = 128 * 1024;
/// Bytes sent in one go; then whoever else waits for the thread or the queue pair gets a turn.
const TURN_BYTES: u64 = 8 << 20;
/// Pieces put together for one system call.
const BATCH_PIECES: usize = 96;
/// The sink STag of our Reads; responses are matched to their request, not looked up.
const SINK_BASE: u32 = 0x0052_4400;

/// A message under way: where its payload comes from.
#[derive(Debug)]
struct Current {
    source: Source,
    /// The send request that it belongs to.
    seq: Option<u64>,
    /// A response of ours completes nothing when TCP has it; so does a request that waits for its response.
    completes: bool,
}

/// TCP having all bytes up to `pos` completes the request `seq`.
#[derive(Debug)]
struct Mark {
    pos: u64,
    seq: u64,
}

/// The transmit side's state.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    link: Option<Arc<Link>>,
    transmitter: Option<Transmitter>,
    markers: Option<MarkerTx>,
    scratch: Vec<u8>,
    sq: VecDeque<SendWqe>,
    current: Option<Current>,
    batch: Batch,
    marks: VecDeque<Mark>,
    /// A responder may not send before the initiator's first FPDU. RFC 5044 §7.1.2.
    gated: bool,
    /// The other side's turn: own sends and the peer's Reads alternate.
    read_turn: bool,
    /// Send this and nothing more.
    terminate: Option<Message>,
    /// A request failed: nothing behind it may begin until the queue pair has failed, too.
    halted: bool,
    /// Send nothing more.
    finish: bool,
    finished: bool,
    sink: u32,
}

impl Tx {
    /// A connection came about.
    pub(super) fn connect(&mut self, link: Arc<Link>, mulpdu: usize) {
        let n = &link.negotiated;
        self.transmitter = Some(Transmitter::new(mulpdu));
        self.markers = n.tx_markers.then(MarkerTx::new);
        self.gated = link.responder;
        self.batch = Batch::default();
        self.marks.clear();
        self.current = None;
        (self.read_turn, self.finish, self.finished, self.terminate) = (false, false, false, None);
        self.halted = false;
        self.link = Some(link);
    }

    /// The connection is gone.
    pub(super) fn disconnect(&mut self) {
        *self = Self { sq: std::mem::take(&mut self.sq), ..Self::default() };
    }

    pub(super) fn enqueue(&mut self, wqe: SendWqe) {
        self.sq.push_back(wqe);
    }

    pub(super) fn take_pending(&mut self) -> VecDeque<SendWqe> {
        std::mem::take(&mut self.sq)
    }

    /// Whether the peer proved that it knows RFC 7306.
    pub(super) fn extensions(&self) -> bool {
        self.link.as_ref().is_some_and(|l| l.negotiated.extensions)
    }

    /// Whether a Read can ever begin: one side may have negotiated the depth down to nothing.
    pub(super) fn may_read(&self) -> bool {
        self.link.as_ref().is_none_or(|l| l.negotiated.ord > 0)
    }

    /// The path's MSS may have changed. RFC 5044 §4.5.
    pub(super) fn set_mss(&mut self, link: &Link, mss: usize) {
        if let Some(t) = &mut self.transmitter {
            // rule 5044-4.5-3, 5044-3-2
            t.set_mulpdu(link.patience.fpdu.mulpdu(mss, link.negotiated.tx_markers));
        }
    }

    /// The initiator spoke: a responder may send.
    pub(super) fn open_gate(&mut self) -> bool {
        std::mem::replace(&mut self.gated, false)
    }

    /// Nothing begun is unsent.
    pub(super) fn is_quiet(&self) -> bool {
        self.current.is_none() && self.batch.waiting() == 0
    }

    /// Ends transmission after what the batch has, and the Terminate if there is one. The message under
    /// way is cut between two FPDUs, and registered memory is not looked at any more: its owner is about
    /// to be told that his requests are over.
    pub(super) fn finish(&mut self, terminate: Option<Message>) -> Result<(), TaggedFault> {
        self.batch.detach()?;
        (self.current, self.halted) = (None, false);
        if let Some(t) = &mut self.transmitter {
            t.cancel();
        }
        (self.finish, self.terminate) = (true, terminate);
        Ok(())
    }

    pub(super) fn link(&self) -> Option<&Link> {
        self.link.as_deref()
    }

    /// Whether all that is to be sent is with TCP, the end of the stream included.
    pub(super) fn is_finished(&self) -> bool {
        self.finished || self.link.is_none()
    }

    /// Bytes that are to be sent and not yet with TCP.
    pub(super) fn waiting(&self) -> usize {
        self.batch.waiting()
    }

    fn staged(&self) -> bool {
        self.markers.is_some() || self.link.as_ref().is_some_and(|l| l.negotiated.crc)
    }
}

impl QpInner {
    /// Sends what can be sent. Returns why the connection must end, if it must.
    pub(super) fn transmit(&self, tx: &mut Tx) -> Option<Cause> {
        if tx.halted {
            return None;
        }
        let end = self.send_all(tx);
        tx.halted = end.is_some();
        end
    }

    fn send_all(&self, tx: &mut Tx) -> Option<Cause> {
        let link = Arc::clone(tx.link.as_ref()?);
        let mut budget = TURN_BYTES;
        loop {
            if tx.batch.waiting() == 0 {
                if let Err(cause) = self.fill(tx) {
                    return Some(cause);
                }
                if tx.batch.waiting() == 0 {
                    self.finish_if_wanted(tx, &link);
                    self.report_drained(tx);
                    return None;
                }
            }
            let before = tx.batch.sent();
            let flushed = tx.batch.flush(link.fd());
            let sent = tx.batch.sent() - before;
            add(&self.counters.tx_bytes, sent);
            add(&self.device.counters.tx_bytes, sent);
            add(&self.device.counters.tx_calls, 1);
            self.complete_sent(tx);
            self.arm_health(&link);
            budget = budget.saturating_sub(sent);
            match flushed {
                Flushed::All if budget == 0 => {
                    // The socket has room, so whoever watches it goes on at once.
                    link.set_write_blocked(true);
                    return None;
                }
                Flushed::All => link.set_write_blocked(false),
                Flushed::Blocked => {
                    link.set_write_blocked(true);
                    return None;
                }
                Flushed::Memory(fault) => return Some(Cause::SourceLost(fault)),
                Flushed::Broken(e) => return Some(Cause::Broken(e.raw_os_error())),
            }
        }
    }

    fn finish_if_wanted(&self, tx: &mut Tx, link: &Link) {
        if tx.finish && !std::mem::replace(&mut tx.finished, true) {
            link.finish_sending();
            // The peer's end of stream may have been left unread until now.
            link.set_read(true);
        }
    }

    /// Completes the requests of which TCP has all bytes.
    fn complete_sent(&self, tx: &mut Tx) {
        let sent = tx.batch.sent();
        if tx.marks.front().is_none_or(|m| m.pos > sent) {
            return;
        }
        let mut shared = self.lock_shared();
        // rule 5040-5.5-6
        while let Some(m) = tx.marks.front().filter(|m| m.pos <= sent) {
            shared.finish(m.seq);
            tx.marks.pop_front();
        }
        self.retire(&mut shared);
    }

    /// Reports what is complete at the head of the send queue.
    pub(super) fn retire(&self, shared: &mut Shared) {
        let mut n = 0;
        // rule 5040-5.5-3, 5040-5.2.2-3, 7306-5.4-2
        while let Some(e) = shared.retire() {
            n += 1;
            if e.signaled {
                self.send_cq.push(e.completion(crate::queue::Status::Success, self.num), false);
            }
        }
        if n > 0 {
            self.completed(n);
        }
    }

    /// Puts segments into the batch until it is full or nothing is left to send.
    fn fill(&self, tx: &mut Tx) -> Result<(), Cause> {
        let limit = if tx.staged() { STAGED_BYTES } else { BATCH_BYTES };
        while tx.batch.waiting() < limit && tx.batch.pieces() < BATCH_PIECES {
            if tx.current.is_none() && !self.next_message(tx)? {
                return Ok(());
            }
            let Some(segment) = tx.transmitter.as_mut().and_then(Transmitter::next_segment) else {
                tx.current = None;
                continue;
            };
            self.emit(tx, &segment)?;
            if segment.last
                && let Some(Current { seq: Some(seq), completes: true, .. }) = tx.current.take()
            {
                tx.marks.push_back(Mark { pos: tx.batch.queued(), seq });
            }
        }
        Ok(())
    }

    /// Begins the next message: Terminate first, then own sends and the peer's Reads in turn.
    fn next_message(&self, tx: &mut Tx) -> Result<bool, Cause> {
        if tx.finish {
            // rule 5040-5.4-1, 5040-5.4-2
            return Ok(tx.terminate.take().is_some_and(|m| begin(tx, &m, Source::none(), None, false)));
        }
        // rule 5044-7.1.2-3, 6581-9.2-4, 6581-9.2-8
        if tx.gated {
            return Ok(false);
        }
        tx.read_turn = !tx.read_turn;
        if tx.read_turn && self.next_response(tx)? {
            return Ok(true);
        }
        if self.next_send(tx)? {
            return Ok(true);
        }
        // Not its turn, but nothing else is to be sent.
        if tx.read_turn { Ok(false) } else { self.next_response(tx) }
    }

    /// Answers the oldest of the peer's Reads.
    fn next_response(&self, tx: &mut Tx) -> Result<bool, Cause> {
        // rule 5040-5.2.2-1, 7306-5.2.2-3, 5040-5.5-4
        if !self.reads_waiting.load(Ordering::Acquire) {
            return Ok(false);
        }
        let read = {
            let mut shared = self.lock_shared();
            let read = shared.irq.pop();
            self.reads_waiting.store(!shared.irq.is_empty(), Ordering::Release);
            read
        };
        let Some(read) = read else { return Ok(false) };
        add(&self.counters.reads_served, 1);
        match read {
            InboundRead::Atomic { id, original } => {
                let m = Message::AtomicResponse(AtomicResponse { id, original });
                Ok(begin(tx, &m, Source::none(), None, false))
            }
            InboundRead::Read { sink_stag, sink_to, len, src_stag, src_to } => {
                let source = if len == 0 {
                    Segments::None
                } else {
                    // Checked when the request came; the region may have been withdrawn since.
                    // rule 5040-5.2.1-3, 5040-8.1.1-4, 5040-8.1.1-7
                    let segment = self
                        .device
                        .table
                        .remote_segment(src_stag, src_to, len, Access::REMOTE_READ, self.who())
                        .map_err(|f| Cause::LateFault(iwarp::Fault::ReadSource(src_stag, f)))?;
                    Segments::One(segment)
                };
                let m = Message::ReadResponse { stag: sink_stag, to: sink_to, len };
                Ok(begin(tx, &m, Source::Memory(source), None, false))
            }
        }
    }

    /// Begins the oldest send request that may begin.
    fn next_send(&self, tx: &mut Tx) -> Result<bool, Cause> {
        loop {
            if self.state() == QpState::Sqd {
                return Ok(false);
            }
            let Some(front) = tx.sq.front() else { return Ok(false) };
            let responds = needs_response(&front.op);
            let local = super::local::is_local(&front.op);
            {
                let mut shared = self.lock_shared();
                // rule 5040-5.5-5, 7306-5.4-3, 5040-5.2.1-1
                let fenced = front.flags.contains(SendFlags::FENCE) && !shared.orq.is_empty();
                if fenced || (responds && shared.orq.is_full()) {
                    shared.sq_waits = true;
                    return Ok(false);
                }
            }
            // Earlier payloads may still be read from the memory that this one withdraws.
            if local && tx.batch.waiting() > 0 {
                return Ok(false);
            }
            // rule 5040-5.5-1, 5041-5.3-1
            let Some(wqe) = tx.sq.pop_front() else { return Ok(false) };
            if local {
                self.run_local(&wqe)?;
            } else {
                return Ok(self.begin_send(tx, wqe, responds));
            }
        }
    }

    fn begin_send(&self, tx: &mut Tx, wqe: SendWqe, responds: bool) -> bool {
        let mut shared = self.lock_shared();
        let seq = shared.next_seq();
        let sink_stag = Stag(SINK_BASE.wrapping_add(tx.sink));
        let (message, sink, source) = match (responds, wqe.source) {
            (true, Source::Memory(sink)) => {
                tx.sink = tx.sink.wrapping_add(1) & 0xff;
                let atomic = atomic_request(&wqe.op, seq as u32);
                shared.orq.push(Outstanding {
                    cookie: seq,
                    sink_stag,
                    sink_to: 0,
                    len: wqe.len,
                    received: 0,
                    atomic: atomic.map(|a| a.id),
                });
                let m = atomic.map_or_else(|| read_request(&wqe.op, wqe.len, sink_stag), Message::Atomic);
                (m, sink, Source::none())
            }
            (_, source) => (send_message(&wqe.op, wqe.len, wqe.flags), Segments::None, source),
        };
        let invalidate = match (&wqe.op, &sink) {
            (SendOp::ReadInvalidate { .. }, Segments::One(s)) => Some(s.region().stag().0),
            _ => None,
        };
        shared.begin(InFlight {
            wr_id: wqe.wr_id,
            op: completion_op(&wqe.op),
            signaled: wqe.flags.contains(SendFlags::SIGNALED),
            len: wqe.len,
            sink,
            invalidate,
            done: false,
        });
        drop(shared);
        begin(tx, &message, source, Some(seq), !responds)
    }

    /// Puts one segment into the batch.
    fn emit(&self, tx: &mut Tx, s: &Segment) -> Result<(), Cause> {
        add(&self.counters.tx_fpdus, 1);
        // Taken out so that the batch can be filled from it; put back unless the message failed.
        let Some(current) = tx.current.take() else { return Ok(()) };
        if tx.staged() || self.device.pcap.is_some() {
            self.stage(tx, s, &current.source)?;
        } else {
            refer(tx, s, &current.source)?;
        }
        tx.current = Some(current);
        Ok(())
    }

    /// CRC, markers or a capture: the FPDU is copied and summed, so that memory that changes meanwhile
    /// cannot spoil it.
    fn stage(&self, tx: &mut Tx, s: &Segment, source: &Source) -> Result<(), Cause> {
        let crc = tx.link.as_ref().is_some_and(|l| l.negotiated.crc);
        let sum: Option<frame::Crc<'_>> = if crc { Some(&crc::update) } else { None };
        let (at, len) = (s.payload_offset as usize, s.payload_len as usize);
        let (total, ulpdu) = (s.fpdu_len(), s.ulpdu_len());
        let build = |out: &mut Vec<u8>, sum: Option<frame::Crc<'_>>| -> Result<(), Cause> {
            let start = out.len();
            out.extend_from_slice(s.header());
            source.append_to(at, len, out)?;
            out.resize(start + total, 0);
            frame::seal(&mut out[start..], ulpdu, sum);
            Ok(())
        };
        let capture = |fpdu: &[u8]| {
            if let Some(capture) = tx.link.as_ref().and_then(|l| l.capture.as_ref()) {
                capture.sent(fpdu);
            }
        };
        let Some(markers) = tx.markers.as_mut() else {
            return tx.batch.own(|arena| {
                let start = arena.len();
                build(arena, sum)?;
                capture(&arena[start..]);
                Ok(())
            });
        };
        tx.scratch.clear();
        build(&mut tx.scratch, None)?;
        let framed = markers.framed_len(ulpdu);
        let scratch = &tx.scratch;
        tx.batch.own(|arena| {
            let start = arena.len();
            arena.resize(start + framed, 0);
            markers.seal(scratch, &mut arena[start..], sum);
            capture(&arena[start..]);
            Ok(())
        })
    }

    /// The initiator's first message in peer-to-peer mode. RFC 6581 §9.2.
    pub(super) fn queue_rtr(&self, tx: &mut Tx, rtr: Rtr) {
        // STag 1: some peers refuse 0 even where the length is 0.
        // rule 6581-9.2-3, 6581-9.2-5, 6581-9.2-7
        let message = match rtr {
            Rtr::Write => Message::Write { stag: Stag(1), to: 0, len: 0 },
            Rtr::Send => Message::Send { len: 0, invalidate: None, solicited: false },
            Rtr::Read => {
                let mut shared = self.lock_shared();
                let seq = shared.begin(InFlight {
                    wr_id: 0,
                    op: crate::queue::CompletionOp::Read,
                    signaled: false,
                    len: 0,
                    sink: Segments::None,
                    invalidate: None,
                    done: false,
                });
                shared.orq.push(Outstanding { cookie: seq, sink_stag: Stag(0), ..Outstanding::default() });
                self.outstanding.fetch_add(1, Ordering::AcqRel);
                Message::ReadRequest(ReadRequest {
                    sink_stag: Stag(0),
                    sink_to: 0,
                    len: 0,
                    src_stag: Stag(1),
                    src_to: 0,
                })
            }
        };
        begin(tx, &message, Source::none(), None, false);
    }
}

/// Hands a message to the transmitter.
fn begin(tx: &mut Tx, message: &Message, source: Source, seq: Option<u64>, completes: bool) -> bool {
    let begun = tx.transmitter.as_mut().is_some_and(|t| t.begin(message));
    tx.current = begun.then_some(Current { source, seq, completes });
    begun
}

/// No CRC: long payloads go to TCP from where they are.
fn refer(tx: &mut Tx, s: &Segment, source: &Source) -> Result<(), Cause> {
    let (at, len) = (s.payload_offset as usize, s.payload_len as usize);
    let (trailer, trailer_len) = frame::trailer(s.ulpdu_len(), [0; CRC_LEN]);
    let trailer = &trailer[..trailer_len];
    match source {
        Source::Memory(segments) if len > COPY_MAX => {
            tx.batch.own(|arena| append(arena, s.header()))?;
            tx.batch.memory(segments, at, len);
            tx.batch.own(|arena| append(arena, trailer))
        }
        _ => tx.batch.own(|arena| {
            arena.extend_from_slice(s.header());
            source.append_to(at, len, arena)?;
            append(arena, trailer)
        }),
    }
}

fn append(arena: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Cause> {
    arena.extend_from_slice(bytes);
    Ok(())
}

fn read_request(op: &SendOp, len: u32, sink_stag: Stag) -> Message {
    let (raddr, rkey) = match *op {
        SendOp::Read { raddr, rkey } | SendOp::ReadInvalidate { raddr, rkey } => (raddr, rkey),
        _ => (0, 0),
    };
    Message::ReadRequest(ReadRequest { sink_stag, sink_to: 0, len, src_stag: Stag(rkey), src_to: raddr })
}

fn send_message(op: &SendOp, len: u32, flags: SendFlags) -> Message {
    let solicited = flags.contains(SendFlags::SOLICITED);
    match *op {
        SendOp::Write { raddr, rkey } => Message::Write { stag: Stag(rkey), to: raddr, len },
        SendOp::SendInvalidate(rkey) => Message::Send { len, invalidate: Some(Stag(rkey)), solicited },
        SendOp::Immediate(value) => Message::Immediate { value, solicited },
        _ => Message::Send { len, invalidate: None, solicited },
    }
}
