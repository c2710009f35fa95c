//! Captured streams of Linux's kernel siw through the whole receive side, and every message of them
//! through the transmit side back to the captured bytes.

use std::collections::BTreeMap;

use iwarp::host::{Host, ReceiveSlot, ResponsePlace};
use iwarp::mpa::deframe::Deframer;
use iwarp::mpa::startup::{CrcPolicy, Initiator, Negotiated, Policy, Request};
use iwarp::mpa::{crc, frame};
use iwarp::rdmap::{Outstanding, OutstandingReads};
use iwarp::rx::{Progress, Receiver};
use iwarp::tx::{Message, Transmitter};
use iwarp::types::{AtomicRequest, InboundRead, Opcode, Stag};
use iwarp::wire::ddp::{self, Segment, Tagged, Untagged};
use iwarp::wire::rdmap::ReadRequest;
use iwarp::wire::terminate;
use iwarp::{Event, Fault, TaggedFault};
use rnic_testkit::pcap::{self, Connection};
use rnic_testkit::seed::Seed;

/// Captures and the events of each connection: at the server, then at the client.
const CAPTURES: &[(&str, &[&str])] = &[
    ("siw-crc", &["1 Read 3001, 4 Send 84, 1 Write, 3001 written | 1 Response 3001, 3 Send 65"]),
    ("siw-gso", &["1 Read 40000, 3 Send 25, 1 Write, 40000 written | 1 Response 40000, 2 Send 4"]),
    ("siw-mpa-v1", &["1 Read 64, 4 Send 83, 1 Write, 64 written | 1 Response 64, 3 Send 68"]),
    ("siw-p2p-read-rtr", &["2 Read 64, 4 Send 83, 1 Write, 64 written | 2 Response 64, 3 Send 68"]),
    ("siw-p2p-write-rtr", &["1 Read 64, 4 Send 83, 2 Write, 64 written | 1 Response 64, 3 Send 68"]),
    (
        "siw-private-data",
        &["1 Send 16 | 1 Send 16", "1 Send 16 | 1 Send 16", "1 Send 16 | 1 Send 16", "rejected"],
    ),
    (
        "siw-rping",
        &[
            "5 Response 500, 10 Send 160 | 5 Read 500, 10 Send 160, 5 Write, 100 written",
            "3 Read 5064, 7 Send 4105, 1 SendInvalidate 32, 3 Write, 5000 written | 3 Response 5064, 7 Send 4104",
        ],
    ),
    (
        "siw-terminate",
        &[
            "1 Write, 64 written | 1 DDP tagged buffer error: invalid STag",
            "1 Read 64 | 1 RDMAP remote protection error: invalid STag",
            "1 Write, 64 written | 1 DDP tagged buffer error: base or bounds violation",
            "1 Read 64 | 1 RDMAP remote protection error: base or bounds violation",
            // The sender of a message too long stopped in the middle of it.
            "within a message | 1 DDP untagged buffer error: no buffer available",
            "1 Send 64 | 1 DDP untagged buffer error: no buffer available",
        ],
    ),
    ("siw-unsupported", &["|", "|", "|", "|", "1 SendInvalidate 16 | 1 Send 16"]),
    (
        "siw-vs-peer",
        &[
            "1 Read 3000, 4 Send 87, 1 Write, 3000 written | 1 Response 3000, 3 Send 68",
            "1 Read 64, 4 Send 83, 1 Write, 64 written | 1 Response 64, 3 Send 68",
            "rejected",
            "1 Read, 2 Send 17 | 1 Response, 1 Send 16",
            "fault Crc | 1 MPA: CRC error",
            "fault TaggedVersion(3) | 1 DDP tagged buffer error: invalid DDP version",
            "fault UnexpectedOpcode(8) | 1 RDMAP remote operation error: unexpected opcode",
            "1 Read 64 | 1 RDMAP remote protection error: invalid STag",
        ],
    ),
];

/// Takes whatever a peer may rightly send: every STag is known, receives never run out.
struct Permissive {
    reads: OutstandingReads<Vec<Outstanding>>,
    inbound: Vec<InboundRead>,
    receives: u64,
    /// Sums of what was placed, by place, so that two runs can be compared.
    placed: BTreeMap<(u8, u64, u64), u8>,
    events: Vec<Event>,
}

impl Permissive {
    fn place(&mut self, kind: u8, object: u64, at: u64, bytes: &[u8]) {
        for (i, &b) in bytes.iter().enumerate() {
            self.placed.insert((kind, object, at + i as u64), b);
        }
    }
}

impl Host for Permissive {
    fn check_write(&mut self, _: Stag, _: u64, _: u32) -> Result<(), TaggedFault> {
        Ok(())
    }
    fn place_write(&mut self, stag: Stag, to: u64, bytes: &[u8]) -> Result<(), TaggedFault> {
        self.place(0, stag.0.into(), to, bytes);
        Ok(())
    }
    fn take_receive(&mut self) -> Result<Option<ReceiveSlot>, Fault> {
        self.receives += 1;
        Ok(Some(ReceiveSlot { cookie: self.receives, len: 1 << 20 }))
    }
    fn place_receive(&mut self, cookie: u64, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        self.place(1, cookie, offset.into(), bytes);
        Ok(())
    }
    fn response_place(&mut self, stag: Stag, to: u64, len: u32, last: bool) -> Result<ResponsePlace, Fault> {
        self.reads.on_response(stag, to, len, last)
    }
    fn place_response(&mut self, place: ResponsePlace, bytes: &[u8]) -> Result<(), Fault> {
        self.place(2, place.cookie, place.offset.into(), bytes);
        Ok(())
    }
    fn atomic_response(&mut self, id: u32) -> Result<ResponsePlace, Fault> {
        self.reads.on_atomic(id)
    }
    fn check_read(&mut self, _: Stag, _: u64, _: u32) -> Result<(), TaggedFault> {
        Ok(())
    }
    fn atomic(&mut self, _: &AtomicRequest) -> Result<u64, TaggedFault> {
        Ok(0)
    }
    fn inbound_has_room(&mut self) -> bool {
        true
    }
    fn push_inbound(&mut self, read: InboundRead) -> Result<(), Fault> {
        self.inbound.push(read);
        Ok(())
    }
    fn invalidate(&mut self, _: Stag) -> Result<(), Fault> {
        Ok(())
    }
    fn event(&mut self, event: Event) {
        if let Event::ResponseDone { .. } = event {
            self.reads.pop();
        }
        self.events.push(event);
    }
}

/// One direction of a connection, behind its start-up frame.
struct Direction {
    negotiated: Negotiated,
    bytes: Vec<u8>,
    /// What the other side had asked for.
    requests: Vec<ReadRequest>,
    to_server: bool,
}

fn capture(name: &str) -> Vec<Connection> {
    let path = format!("{}/tests/data/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    pcap::connections(&std::fs::read(path).unwrap()).unwrap()
}

/// Both directions; `None` where the connection was rejected.
fn directions(c: &Connection) -> Option<[Direction; 2]> {
    let (asked, answered) = (&c.from_client.bytes, &c.from_server.bytes);
    let request = Request::parse(asked).unwrap().unwrap();
    let policy = Policy {
        revision: request.revision,
        crc: if request.crc { CrcPolicy::On } else { CrcPolicy::Off },
        want_markers: request.markers,
        p2p: request.rtr,
        ..Policy::default()
    };
    let reply = Initiator::new(policy, &[]).unwrap().reply(answered).unwrap().unwrap();
    if reply.rejected {
        return None;
    }
    let negotiated = reply.negotiated;
    let of = |bytes: &[u8], to_server| Direction {
        negotiated,
        bytes: bytes.to_vec(),
        requests: Vec::new(),
        to_server,
    };
    let mut both = [of(&asked[request.consumed..], true), of(&answered[reply.consumed..], false)];
    let requests = both.each_ref().map(|d| {
        let segments = fpdus(d).into_iter().filter_map(|f| f.segment.ok());
        segments
            .filter_map(|s| match s {
                Owned::Untagged(u, payload) if u.opcode == 1 => ReadRequest::parse(&payload),
                _ => None,
            })
            .collect::<Vec<_>>()
    });
    let [to_server, to_client] = requests;
    both[0].requests = to_client;
    both[1].requests = to_server;
    Some(both)
}

enum Owned {
    Tagged(Tagged, Vec<u8>),
    Untagged(Untagged, Vec<u8>),
}

struct Fpdu {
    wire: Vec<u8>,
    segment: Result<Owned, Fault>,
}

fn fpdus(d: &Direction) -> Vec<Fpdu> {
    let mut deframer = Deframer::new(d.negotiated.crc, false);
    let mut rest = d.bytes.clone();
    let mut out = Vec::new();
    while !rest.is_empty() {
        let total = deframer.peek(&rest).unwrap().unwrap();
        let wire = rest[..total].to_vec();
        let segment = deframer.take(&mut rest, total, crc::update).and_then(|range| {
            Ok(match ddp::parse_segment(&rest[range])? {
                Segment::Tagged(h, p) => Owned::Tagged(h, p.to_vec()),
                Segment::Untagged(h, p) => Owned::Untagged(h, p.to_vec()),
            })
        });
        rest.drain(..total);
        out.push(Fpdu { wire, segment });
    }
    out
}

/// Runs a direction through a receiver, cut by this seed (0: whole).
fn receive(d: &Direction, cuts: u64) -> (Permissive, Result<Progress, Fault>, bool) {
    let ord = d.requests.len();
    let mut reads = OutstandingReads::new(vec![Outstanding::default(); ord], ord);
    for (i, r) in d.requests.iter().enumerate() {
        let request = Outstanding {
            cookie: i as u64,
            sink_stag: r.sink_stag,
            sink_to: r.sink_to,
            len: r.len,
            ..Outstanding::default()
        };
        assert!(reads.push(request));
    }
    let mut host =
        Permissive { reads, inbound: Vec::new(), receives: 0, placed: BTreeMap::new(), events: Vec::new() };
    let mut rx = Receiver::new(&d.negotiated, d.to_server);
    let mut seed = Seed::new(cuts);
    let (mut buffer, mut rest) = (Vec::new(), &d.bytes[..]);
    let mut result = Ok(Progress::NeedBytes);
    while !rest.is_empty() && result == Ok(Progress::NeedBytes) {
        let n = if cuts == 0 { rest.len() } else { (1 + seed.below(2000)).min(rest.len()) };
        buffer.extend_from_slice(&rest[..n]);
        rest = &rest[n..];
        result = rx.handle(&mut host, &mut buffer).map(|(used, progress)| {
            buffer.drain(..used);
            progress
        });
    }
    assert!(buffer.is_empty() || result != Ok(Progress::NeedBytes), "a capture ends between FPDUs");
    (host, result, rx.at_message_boundary())
}

/// What came of a direction, in words.
fn describe(host: &Permissive, result: Result<Progress, Fault>, whole: bool) -> String {
    let mut counts: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    let mut count = |name: String, len: u32| {
        let entry = counts.entry(name).or_default();
        *entry = (entry.0 + 1, entry.1 + u64::from(len));
    };
    for event in &host.events {
        match *event {
            Event::WriteDone { .. } => count("Write".into(), 0),
            Event::ReceiveDone { len, opcode, .. } => count(format!("{opcode:?}"), len),
            Event::ResponseDone { len, .. } => count("Response".into(), len),
            Event::Terminated(t) => count(t.map_or("cut short", |t| t.terminate.name()).into(), 0),
        }
    }
    for read in &host.inbound {
        if let InboundRead::Read { len, .. } = read {
            count("Read".into(), *len);
        }
    }
    let written = host.placed.keys().filter(|k| k.0 == 0).count();
    let number = |n: u64| if n == 0 { String::new() } else { format!(" {n}") };
    let mut words: Vec<String> =
        counts.iter().map(|(k, (n, bytes))| format!("{n} {k}{}", number(*bytes))).collect();
    words.extend((written > 0).then(|| format!("{written} written")));
    words.extend(result.err().map(|f| format!("fault {f:?}")));
    words.extend((!whole).then(|| "within a message".to_owned()));
    words.join(", ")
}

#[test]
fn every_captured_stream_gives_its_events() {
    for (name, want) in CAPTURES {
        let mut got = Vec::new();
        for c in capture(name) {
            let Some(both) = directions(&c) else {
                got.push("rejected".to_owned());
                continue;
            };
            let words = both.each_ref().map(|d| {
                let (host, result, whole) = receive(d, 0);
                for cuts in 1..12 {
                    let (again, same, boundary) = receive(d, cuts);
                    assert_eq!((same, boundary), (result, whole), "{name}");
                    assert_eq!((&again.events, &again.inbound), (&host.events, &host.inbound), "{name}");
                    assert!(again.placed == host.placed, "{name}: same memory, however it was cut");
                }
                describe(&host, result, whole)
            });
            got.push(words.join(" | ").trim().to_owned());
        }
        assert_eq!(got, *want, "{name}");
    }
}

/// A message, its payload, and the FPDUs that carried it.
type Carried = (Message, Vec<u8>, Vec<Vec<u8>>);

/// Groups segments into messages; also how many FPDUs are of no whole message.
fn messages(d: &Direction) -> (Vec<Carried>, usize) {
    let mut out = Vec::new();
    let mut open: Vec<(Owned, Vec<u8>, Vec<Vec<u8>>)> = Vec::new();
    for f in fpdus(d) {
        let Ok(segment) = f.segment else { continue };
        let (last, payload) = match &segment {
            Owned::Tagged(t, p) => (t.last, p.clone()),
            Owned::Untagged(u, p) => (u.last, p.clone()),
        };
        // siw does not interleave messages.
        match open.last_mut() {
            Some((_, data, wires)) => {
                data.extend(payload);
                wires.push(f.wire);
            }
            None => open.push((segment, payload, vec![f.wire])),
        }
        if last && let Some((first, data, wires)) = open.pop() {
            out.extend(message(&first, &data).map(|m| (m, data, wires)));
        }
    }
    // A sender that was told to stop left its message unfinished.
    let left = open.into_iter().map(|(_, _, wires)| wires.len()).sum();
    (out, left)
}

fn message(first: &Owned, data: &[u8]) -> Option<Message> {
    let len = data.len() as u32;
    Some(match first {
        Owned::Tagged(t, _) if t.opcode == Opcode::Write as u8 => {
            Message::Write { stag: t.stag, to: t.to, len }
        }
        Owned::Tagged(t, _) => Message::ReadResponse { stag: t.stag, to: t.to, len },
        Owned::Untagged(u, _) => match Opcode::from_wire(u.opcode)? {
            Opcode::ReadRequest => Message::ReadRequest(ReadRequest::parse(data)?),
            Opcode::Terminate => {
                let mut body = [0; terminate::MAX_LEN];
                body[..data.len()].copy_from_slice(data);
                Message::Terminate { body, len: data.len() }
            }
            Opcode::Send => Message::Send { len, invalidate: None, solicited: false },
            Opcode::SendSe => Message::Send { len, invalidate: None, solicited: true },
            Opcode::SendInvalidate => Message::Send { len, invalidate: Some(u.inv_stag), solicited: false },
            // peer.py's wrong opcode and nothing else.
            _ => return None,
        },
    })
}

#[test]
fn every_captured_message_is_sent_again_byte_for_byte() {
    let (mut checked, mut left) = (0, 0);
    for (name, _) in CAPTURES {
        for c in capture(name) {
            let Some(both) = directions(&c) else { continue };
            for d in &both {
                // The largest segment that others of its message follow shows the limit.
                let followed = |f: &Fpdu| match &f.segment {
                    Ok(Owned::Tagged(t, p)) if !t.last => Some(p.len() + 14),
                    Ok(Owned::Untagged(u, p)) if !u.last => Some(p.len() + 18),
                    _ => None,
                };
                let mulpdu = fpdus(d).iter().filter_map(followed).max().unwrap_or(frame::MAX_ULPDU);
                let mut tx = Transmitter::new(mulpdu);
                let (messages, unfinished) = messages(d);
                left += unfinished;
                for (message, data, wires) in messages {
                    assert!(tx.begin(&message));
                    for wire in &wires {
                        let segment = tx.next_segment().expect("as many segments as were captured");
                        let from = segment.payload_offset as usize;
                        let mut fpdu = segment.header().to_vec();
                        // The transmitter's own headers are in place of a control message's payload.
                        let payload = data.get(from..from + segment.payload_len as usize).unwrap_or_default();
                        fpdu.extend_from_slice(payload);
                        // siw pads with whatever lies in its memory.
                        let pad = fpdu.len()..fpdu.len() + segment.pad_len();
                        fpdu.extend_from_slice(&wire[pad]);
                        let sum = if d.negotiated.crc {
                            crc::to_wire(crc::update(crc::INIT, &fpdu))
                        } else {
                            [0; 4]
                        };
                        fpdu.extend_from_slice(&sum);
                        assert_eq!(fpdu, *wire, "{name}: {message:?}");
                        checked += 1;
                    }
                    assert!(tx.is_idle(), "and no more");
                }
            }
        }
    }
    // 185 FPDUs in all; the three others are a bad CRC, a bad DDP version and an opcode of RFC 7306.
    assert_eq!((checked, left), (179, 3), "FPDUs");
}
