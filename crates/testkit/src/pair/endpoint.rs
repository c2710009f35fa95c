//! One end: send queue, both state machines, framing.

use std::collections::VecDeque;

use iwarp::Fault;
use iwarp::mpa::startup::Negotiated;
use iwarp::mpa::{crc, frame, marker::MarkerTx};
use iwarp::rdmap::Outstanding;
use iwarp::rx::{Progress, Receiver};
use iwarp::tx::{Message, Transmitter};
use iwarp::types::InboundRead;
use iwarp::wire::rdmap::{AtomicResponse, ReadRequest};
use iwarp::wire::terminate;

use super::Config;
use super::work::{Done, Op, Work};
use crate::host::ArrayHost;

/// A queue pair in miniature.
#[derive(Debug)]
pub struct Endpoint {
    /// Its memory and queues.
    pub host: ArrayHost,
    rx: Receiver,
    tx: Transmitter,
    mulpdu: usize,
    crc: bool,
    markers: Option<MarkerTx>,
    direct: bool,
    /// A responder may not send before the initiator's first FPDU. RFC 5044 §7.1.2.
    may_send: bool,
    queue: VecDeque<(u64, Work)>,
    posted: u64,
    done: Vec<Done>,
    /// The message being cut: its payload, and the work request that it completes.
    current: Option<(Vec<u8>, Option<u64>)>,
    /// Alternates between own work and the peer's Reads.
    serve_peer: bool,
    terminate: Option<Message>,
    terminated: bool,
    buffer: Vec<u8>,
    progress: Progress,
    fault: Option<Fault>,
    /// Payload bytes that took the direct way.
    direct_bytes: u64,
}

impl Endpoint {
    pub(super) fn new(config: &Config, n: &Negotiated, initiator: bool) -> Self {
        Self {
            host: ArrayHost::new(usize::from(n.ord), usize::from(n.ird)),
            rx: Receiver::new(n, !initiator),
            tx: Transmitter::new(config.mulpdu),
            mulpdu: config.mulpdu,
            crc: n.crc,
            markers: n.tx_markers.then(MarkerTx::new),
            direct: config.direct,
            may_send: initiator,
            queue: VecDeque::new(),
            posted: 0,
            done: Vec::new(),
            current: None,
            serve_peer: false,
            terminate: None,
            terminated: false,
            buffer: Vec::new(),
            progress: Progress::NeedBytes,
            fault: None,
            direct_bytes: 0,
        }
    }

    /// Queues a work request.
    pub fn post(&mut self, work: Work) {
        self.queue.push_back((self.posted, work));
        self.posted += 1;
    }

    /// Completions so far.
    pub fn done(&self) -> &[Done] {
        &self.done
    }

    /// The fault found in what came from the peer.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// What the receiver asked for last.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Payload bytes that went straight to memory.
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes
    }

    /// The receive side.
    pub fn receiver(&self) -> &Receiver {
        &self.rx
    }

    /// Later segments obey this limit.
    pub fn set_mulpdu(&mut self, mulpdu: usize) {
        self.mulpdu = mulpdu;
        self.tx.set_mulpdu(mulpdu);
    }

    pub(super) fn mulpdu(&self) -> usize {
        self.mulpdu
    }

    /// Nothing to send, nothing to wait for.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.tx.is_idle()
            && self.host.inbound_waiting() == 0
            && self.host.outstanding() == 0
            && self.buffer.is_empty()
    }

    pub(super) fn wants_bytes(&self) -> bool {
        self.fault.is_none() && self.progress == Progress::NeedBytes
    }

    /// The next FPDU of the stream, as it goes to TCP.
    pub(super) fn next_fpdu(&mut self) -> Option<Vec<u8>> {
        if !self.may_send || self.terminated && self.tx.is_idle() {
            return None;
        }
        if self.tx.is_idle() {
            let (message, payload, index) = self.choose()?;
            assert!(self.tx.begin(&message));
            self.current = Some((payload, index));
        }
        let segment = self.tx.next_segment()?;
        let (payload, index) = self.current.as_ref()?;
        let from = segment.payload_offset as usize;
        let mut fpdu = segment.header().to_vec();
        fpdu.extend_from_slice(&payload[from..from + segment.payload_len as usize]);
        fpdu.resize(segment.fpdu_len(), 0xee);
        if segment.last {
            self.done.extend(index.map(|index| Done { index, answered: false }));
            self.current = None;
        }
        Some(self.frame(fpdu, segment.ulpdu_len()))
    }

    fn frame(&mut self, mut fpdu: Vec<u8>, ulpdu_len: usize) -> Vec<u8> {
        let sum: Option<frame::Crc<'_>> = if self.crc { Some(&crc::update) } else { None };
        assert_eq!(frame::seal(&mut fpdu, ulpdu_len, sum), fpdu.len());
        let Some(markers) = &mut self.markers else { return fpdu };
        let mut out = vec![0; markers.framed_len(ulpdu_len)];
        assert_eq!(markers.seal(&fpdu, &mut out, sum), out.len());
        out
    }

    /// The next message: a Terminate before all, else own work and the peer's Reads in turn.
    fn choose(&mut self) -> Option<(Message, Vec<u8>, Option<u64>)> {
        if let Some(message) = self.terminate.take() {
            self.terminated = true;
            return Some((message, Vec::new(), None));
        }
        self.serve_peer = !self.serve_peer;
        if self.serve_peer {
            self.answer().or_else(|| self.own_work())
        } else {
            self.own_work().or_else(|| self.answer())
        }
    }

    fn answer(&mut self) -> Option<(Message, Vec<u8>, Option<u64>)> {
        let (message, payload) = match self.host.next_inbound()? {
            InboundRead::Atomic { id, original } => {
                (Message::AtomicResponse(AtomicResponse { id, original }), Vec::new())
            }
            InboundRead::Read { sink_stag, sink_to, len, src_stag, src_to } => {
                let payload = if len == 0 {
                    Vec::new()
                } else {
                    self.host.read(src_stag, src_to, len as usize).expect("a source that was checked")
                };
                (Message::ReadResponse { stag: sink_stag, to: sink_to, len }, payload)
            }
        };
        Some((message, payload, None))
    }

    fn own_work(&mut self) -> Option<(Message, Vec<u8>, Option<u64>)> {
        let (index, work) = self.queue.front()?;
        if work.fence && self.host.outstanding() > 0 {
            return None;
        }
        let request = matches!(work.op, Op::Read { .. } | Op::Atomic { .. });
        if request && self.host.ord_used_up() {
            return None;
        }
        let index = *index;
        let (_, work) = self.queue.pop_front()?;
        let (message, payload) = self.message(index, work.op);
        Some((message, payload, (!request).then_some(index)))
    }

    fn message(&mut self, index: u64, op: Op) -> (Message, Vec<u8>) {
        match op {
            Op::Send { data, invalidate, solicited } => {
                (Message::Send { len: data.len() as u32, invalidate, solicited }, data)
            }
            Op::Write { stag, to, data } => (Message::Write { stag, to, len: data.len() as u32 }, data),
            Op::Read { sink: (sink_stag, sink_to), len, source: (src_stag, src_to) } => {
                let request =
                    Outstanding { cookie: index, sink_stag, sink_to, len, ..Outstanding::default() };
                assert!(self.host.expect_response(request));
                let read = ReadRequest { sink_stag, sink_to, len, src_stag, src_to };
                (Message::ReadRequest(read), Vec::new())
            }
            Op::Atomic { mut request, sink: (sink_stag, sink_to) } => {
                request.id = index as u32;
                let atomic = Some(request.id);
                let noted = Outstanding {
                    cookie: index,
                    sink_stag,
                    sink_to,
                    len: 8,
                    atomic,
                    ..Outstanding::default()
                };
                assert!(self.host.expect_response(noted));
                (Message::Atomic(request), Vec::new())
            }
            Op::Immediate { value, solicited } => (Message::Immediate { value, solicited }, Vec::new()),
        }
    }

    /// Takes bytes from the wire.
    pub fn receive(&mut self, bytes: Vec<u8>) {
        let bytes = if self.direct { self.receive_direct(bytes) } else { bytes };
        self.buffer.extend_from_slice(&bytes);
        self.handle();
    }

    /// What a receive call straight into memory would take of these bytes; returns the rest.
    fn receive_direct(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        let Some(direct) = self.rx.direct().filter(|_| self.buffer.is_empty()) else { return bytes };
        let n = bytes.len().min(direct.remaining as usize);
        let rest = bytes.split_off(n);
        match self.host.place_direct(direct, &bytes) {
            Ok(()) => {
                self.rx.direct_done(n);
                self.direct_bytes += n as u64;
            }
            Err(fault) => self.fail(fault),
        }
        rest
    }

    fn handle(&mut self) {
        let seen = self.host.events().len();
        match self.rx.handle(&mut self.host, &mut self.buffer) {
            Ok((n, progress)) => {
                self.buffer.drain(..n);
                self.progress = progress;
                self.terminated |= progress == Progress::Terminated;
            }
            Err(fault) => self.fail(fault),
        }
        self.may_send |= self.rx.fpdus() > 0;
        let answered = self.host.events()[seen..].iter().filter_map(|e| match *e {
            iwarp::Event::ResponseDone { cookie, .. } => Some(Done { index: cookie, answered: true }),
            _ => None,
        });
        self.done.extend(answered);
    }

    /// A message that waits for a receive is tried again. `false` where nothing changed.
    pub(super) fn resume(&mut self) -> bool {
        if self.fault.is_some() || self.progress != Progress::NeedReceive {
            return false;
        }
        let before = self.buffer.len();
        self.handle();
        self.fault.is_some() || self.progress != Progress::NeedReceive || self.buffer.len() != before
    }

    fn fail(&mut self, fault: Fault) {
        if self.fault.replace(fault).is_some() {
            return;
        }
        self.buffer.clear();
        let mut body = [0; terminate::MAX_LEN];
        let (quote, ulpdu_len) = self.rx.offending().map_or((None, 0), |(q, len)| (Some(q), len));
        let len = terminate::encode(fault.terminate(), quote, ulpdu_len, &mut body);
        self.terminate = Some(Message::Terminate { body, len });
        // A fault in the first FPDU: the Terminate may go out all the same.
        self.may_send = true;
        self.queue.clear();
    }
}
