//! Every fault that a peer can cause: the bytes that cause it, the Terminate that answers it, and that
//! nothing was placed.

use iwarp::mpa::startup::Negotiated;
use iwarp::rx::Progress;
use iwarp::types::Opcode;
use iwarp::{Blame, Fault, Stag, TaggedFault};
use rnic_testkit::craft::{self, Atomic, Control, Craft, Place};
use rnic_testkit::feeder::{
    self, CLOSED, FOREIGN, Feeder, NOBODY, OPEN, OPEN_BASE, Outcome, SINK, TOP, TOP_BASE, UNMAPPED,
};
use rnic_testkit::host::ArrayHost;

/// A fault, how to cause it, and what must come of it.
struct Row {
    fault: Fault,
    /// Layer, error type, error code. RFC 5040 §4.8.
    terminate: (u8, u8, u8),
    blame: Blame,
    /// What the ULPDUs before the last one are; they are good.
    before: Vec<Vec<u8>>,
    /// The one at fault.
    ulpdu: Vec<u8>,
    prepare: fn(&mut ArrayHost),
    /// Bends the finished stream.
    bend: fn(&mut Vec<u8>),
    /// Which framings it can happen with: (crc, markers).
    framing: fn(bool, bool) -> bool,
    /// Bytes that the good ULPDUs before it place.
    placed: u64,
}

impl Row {
    fn new(fault: Fault, terminate: (u8, u8, u8), ulpdu: Vec<u8>) -> Self {
        Self {
            fault,
            terminate,
            blame: Blame::Peer,
            before: Vec::new(),
            ulpdu,
            prepare: |_| {},
            bend: |_| {},
            framing: |_, _| true,
            placed: 0,
        }
    }

    fn blame(self, blame: Blame) -> Self {
        Self { blame, ..self }
    }

    fn after(self, before: Vec<u8>, placed: u64) -> Self {
        let mut all = self.before;
        all.push(before);
        Self { before: all, placed, ..self }
    }

    fn host(self, prepare: fn(&mut ArrayHost)) -> Self {
        Self { prepare, ..self }
    }
}

/// The row's number. A new variant does not compile until it has one, and [`ROWS`] must grow with it.
fn number(fault: &Fault) -> usize {
    let tagged = |t: &TaggedFault| match t {
        TaggedFault::InvalidStag => 0,
        TaggedFault::Bounds => 1,
        TaggedFault::Access => 2,
        TaggedFault::NotAssociated => 3,
        TaggedFault::Wrap => 4,
        TaggedFault::Unreachable => 5,
    };
    match fault {
        Fault::Write(_, t) => tagged(t),
        Fault::ReadSource(_, t) => 6 + tagged(t),
        Fault::Atomic(_, t) => 12 + tagged(t),
        Fault::Crc => 18,
        Fault::Marker => 19,
        Fault::FpduLength(_) => 20,
        Fault::TaggedVersion(_) => 21,
        Fault::UntaggedVersion(_) => 22,
        Fault::QueueNumber(_) => 23,
        Fault::NoReceive => 24,
        Fault::MsnRange => 25,
        Fault::MessageOffset => 26,
        Fault::MessageTooLong => 27,
        Fault::RdmapVersion(_) => 28,
        Fault::UnexpectedOpcode(_) => 29,
        Fault::AtomicAlignment => 30,
        Fault::AtomicOpcode(_) => 31,
        Fault::Invalidate(_) => 32,
        Fault::IrdExceeded => 33,
        Fault::UnexpectedResponse => 34,
        Fault::ResponseMismatch => 35,
        Fault::MessageLength(_) => 36,
        Fault::LocalMemory => 37,
        Fault::LocalResource => 38,
    }
}

const ROWS: usize = 39;

const READ: Place = Place { qn: 1, msn: 1, mo: 0 };
const SEND: Place = Place { qn: 0, msn: 1, mo: 0 };

fn read(stag: u32, to: u64, len: u32) -> Vec<u8> {
    craft::read_request(1, (7, 0), len, (stag, to))
}

fn atomic(stag: u32, to: u64) -> Vec<u8> {
    craft::atomic_request(1, Atomic { stag, to, operands: [1, 0, 0, 0], ..Atomic::default() })
}

// rule 5040-5.1-3, 5041-7.1-1, 5041-7.1-2, 5041-7.1-3, 5041-7.1-4, 5041-7.2-1
fn writes() -> Vec<Row> {
    let row = |stag, to, tagged, terminate| {
        Row::new(Fault::Write(Stag(stag), tagged), terminate, craft::write(stag, to, b"payload"))
    };
    vec![
        row(NOBODY, 0, TaggedFault::InvalidStag, (1, 1, 0)),
        row(OPEN, OPEN_BASE - 1, TaggedFault::Bounds, (1, 1, 1)),
        row(OPEN, OPEN_BASE + 8192 - 6, TaggedFault::Bounds, (1, 1, 1)),
        row(OPEN, 0, TaggedFault::Bounds, (1, 1, 1)),
        row(CLOSED, 0, TaggedFault::Access, (0, 1, 2)),
        row(FOREIGN, 0, TaggedFault::NotAssociated, (1, 1, 2)),
        row(TOP, u64::MAX - 5, TaggedFault::Wrap, (1, 1, 3)),
        row(OPEN, u64::MAX, TaggedFault::Wrap, (1, 1, 3)),
        row(UNMAPPED, 0, TaggedFault::Unreachable, (1, 0, 0)).blame(Blame::Local),
    ]
}

// rule 5040-5.2.1-3, 5040-7.2-1
fn reads() -> Vec<Row> {
    let row = |stag, to, len, tagged, terminate| {
        Row::new(Fault::ReadSource(Stag(stag), tagged), terminate, read(stag, to, len))
    };
    vec![
        row(NOBODY, 0, 1, TaggedFault::InvalidStag, (0, 1, 0)),
        row(OPEN, OPEN_BASE + 8191, 2, TaggedFault::Bounds, (0, 1, 1)),
        row(OPEN, OPEN_BASE, u32::MAX, TaggedFault::Bounds, (0, 1, 1)),
        row(CLOSED, 0, 1, TaggedFault::Access, (0, 1, 2)),
        row(FOREIGN, 0, 1, TaggedFault::NotAssociated, (0, 1, 3)),
        row(TOP, TOP_BASE + 1, u32::MAX, TaggedFault::Wrap, (0, 1, 4)),
        row(UNMAPPED, 0, 1, TaggedFault::Unreachable, (0, 0, 0)).blame(Blame::Local),
    ]
}

// rule 7306-8.2-1, 7306-9-1
fn atomics() -> Vec<Row> {
    let row = |stag, to, tagged, terminate| {
        Row::new(Fault::Atomic(Stag(stag), tagged), terminate, atomic(stag, to))
    };
    vec![
        row(NOBODY, 0, TaggedFault::InvalidStag, (0, 1, 0)),
        row(OPEN, OPEN_BASE + 8192, TaggedFault::Bounds, (0, 1, 1)),
        row(CLOSED, 0, TaggedFault::Access, (0, 1, 2)),
        row(FOREIGN, 0, TaggedFault::NotAssociated, (0, 1, 3)),
        // Eight aligned bytes never wrap; the host may still say so.
        row(UNMAPPED, 0, TaggedFault::Unreachable, (0, 0, 0)).blame(Blame::Local),
    ]
}

// rule 5044-8-1
fn mpa() -> Vec<Row> {
    let send = || craft::send(1, b"four");
    let mut crc = Row::new(Fault::Crc, (2, 0, 2), send()).blame(Blame::Malformed).host(|h| {
        h.post_receive(10);
    });
    crc.framing = |crc, _| crc;
    crc.bend = |b| *b.last_mut().unwrap() ^= 1;
    let mut marker = Row::new(Fault::Marker, (2, 0, 3), send()).blame(Blame::Malformed).host(|h| {
        h.post_receive(10);
    });
    marker.framing = |crc, markers| markers && !crc;
    marker.bend = |b| b[3] = 4;
    let short = |ulpdu: Vec<u8>| {
        Row::new(Fault::FpduLength(ulpdu.len() as u32), (2, 0, 3), ulpdu).blame(Blame::Malformed)
    };
    vec![
        crc,
        marker,
        short(Vec::new()),
        short(craft::write(OPEN, OPEN_BASE, &[])[..13].to_vec()),
        short(send()[..14].to_vec()),
        short(send()[..17].to_vec()),
    ]
}

// rule 5041-4.1-4, 5040-4.1-1, 5041-7.1-5, 5041-7.1-6, 5041-7.1-7, 5041-7.1-8, 5041-7.1-9
fn ddp() -> Vec<Row> {
    let bad_ddp = |v| Control { ddp_version: v, ..Control::last(0) };
    let post = |h: &mut ArrayHost| {
        h.post_receive(8);
        h.post_receive(8);
    };
    let mut rows = Vec::new();
    for v in [0, 2, 3] {
        let tagged = craft::tagged(bad_ddp(v), OPEN, OPEN_BASE, b"x");
        rows.push(Row::new(Fault::TaggedVersion(v), (1, 1, 4), tagged));
        let untagged = craft::untagged(Control { opcode: 3, ..bad_ddp(v) }, 0, SEND, b"x");
        rows.push(Row::new(Fault::UntaggedVersion(v), (1, 2, 6), untagged).host(post));
        let rdmap = Control { rdmap_version: v, ..Control::last(0) };
        let tagged = craft::tagged(rdmap, OPEN, OPEN_BASE, b"x");
        rows.push(Row::new(Fault::RdmapVersion(v), (0, 2, 5), tagged));
    }
    for qn in [4, 5, 256, u32::MAX] {
        let ulpdu = craft::untagged(Control::last(3), 0, Place { qn, msn: 1, mo: 0 }, b"x");
        rows.push(Row::new(Fault::QueueNumber(qn), (1, 2, 1), ulpdu));
    }
    rows.push(
        Row::new(Fault::NoReceive, (1, 2, 2), craft::send(1, b"x"))
            .host(|h| h.no_receive = Some(Fault::NoReceive)),
    );
    for msn in [0, 2, u32::MAX] {
        rows.push(Row::new(Fault::MsnRange, (1, 2, 3), craft::send(msn, b"x")).host(post));
        let read = craft::read_request(msn, (7, 0), 1, (OPEN, OPEN_BASE));
        rows.push(Row::new(Fault::MsnRange, (1, 2, 3), read));
    }
    // A repeated one.
    rows.push(
        Row::new(Fault::MsnRange, (1, 2, 3), craft::send(1, b"x")).after(craft::send(1, b"y"), 1).host(post),
    );
    let at = |mo| craft::untagged(Control::last(3), 0, Place { mo, ..SEND }, b"x");
    rows.push(Row::new(Fault::MessageOffset, (1, 2, 4), at(1)).host(post));
    let first = || craft::untagged(Control::more(3), 0, SEND, b"abc");
    for mo in [0, 2, 4, u32::MAX] {
        rows.push(Row::new(Fault::MessageOffset, (1, 2, 4), at(mo)).after(first(), 3).host(post));
    }
    // Messages of one segment start at offset 0.
    let a = Atomic { stag: OPEN, to: OPEN_BASE, ..Atomic::default() };
    for mut ulpdu in [
        craft::read_request(1, (7, 0), 1, (OPEN, OPEN_BASE)),
        craft::atomic_request(1, a),
        craft::atomic_response(1, 5, 6),
        craft::immediate(1, 7),
    ] {
        ulpdu[17] = 4;
        let row = Row::new(Fault::MessageOffset, (1, 2, 4), ulpdu);
        rows.push(row.host(|h| feeder::expect_atomic(h, 1, 0, 5)));
    }
    rows.push(Row::new(Fault::MessageTooLong, (1, 2, 5), craft::send(1, b"123456789")).host(post));
    let rest = craft::untagged(Control::last(3), 0, Place { mo: 3, ..SEND }, b"456789");
    rows.push(Row::new(Fault::MessageTooLong, (1, 2, 5), rest).after(first(), 3).host(post));
    rows
}

// rule 5040-4.2-1, 5040-4.2-2, 5040-4.4-2, 5040-5.2.1-2, 5040-5.2.2-2, 5040-5.3-5, 5040-7.2-2, 5040-7.2-3
// rule 7306-5.2.1-2, 7306-5.2.2-2, 7306-6.2-1, 7306-5.1-2
fn rdmap() -> Vec<Row> {
    let mut rows = Vec::new();
    for opcode in [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] {
        let tagged = craft::tagged(Control::last(opcode), OPEN, OPEN_BASE, b"x");
        rows.push(Row::new(Fault::UnexpectedOpcode(opcode), (0, 2, 6), tagged));
    }
    let odd = Atomic { stag: OPEN, to: OPEN_BASE + 4, ..Atomic::default() };
    rows.push(Row::new(Fault::AtomicAlignment, (0, 2, 7), craft::atomic_request(1, odd)));
    for op in [3, 15] {
        let a = Atomic { op, stag: OPEN, to: OPEN_BASE, ..Atomic::default() };
        rows.push(Row::new(Fault::AtomicOpcode(op), (0, 2, 6), craft::atomic_request(1, a)));
    }
    for stag in [NOBODY, FOREIGN, CLOSED] {
        let ulpdu = craft::untagged(Control::last(4), stag, SEND, &[]);
        rows.push(Row::new(Fault::Invalidate(Stag(stag)), (0, 1, 9), ulpdu).host(|h| {
            h.post_receive(8);
        }));
    }
    let mut ird = Row::new(Fault::IrdExceeded, (0, 2, 7), craft::read_request(5, (7, 0), 0, (0, 0)));
    ird.before = (1..5).map(|msn| craft::read_request(msn, (7, 0), 0, (0, 0))).collect();
    rows.push(ird);
    let mut ird = Row::new(
        Fault::IrdExceeded,
        (0, 2, 7),
        craft::atomic_request(5, Atomic { stag: OPEN, to: OPEN_BASE, operands: [1; 4], ..Atomic::default() }),
    );
    ird.before = (1..5).map(|msn| craft::read_request(msn, (7, 0), 0, (0, 0))).collect();
    rows.push(ird);
    let response = |len: usize| craft::read_response(SINK, 100, &vec![1; len]);
    rows.push(Row::new(Fault::UnexpectedResponse, (0, 2, 6), response(0)));
    rows.push(Row::new(Fault::UnexpectedResponse, (0, 2, 6), craft::atomic_response(1, 5, 6)));
    let mismatches = [
        response(9),
        response(7),
        craft::tagged(Control::more(2), SINK, 100, &[1; 8]),
        craft::read_response(SINK, 101, &[1; 8]),
        craft::read_response(OPEN, 100, &[1; 8]),
    ];
    for ulpdu in mismatches {
        rows.push(
            Row::new(Fault::ResponseMismatch, (0, 2, 7), ulpdu).host(|h| feeder::expect_read(h, 1, 100, 8)),
        );
    }
    rows.extend(lengths());
    rows
}

fn lengths() -> Vec<Row> {
    let length = |opcode, ulpdu| Row::new(Fault::MessageLength(opcode), (0, 2, 7), ulpdu);
    let whole = read(OPEN, OPEN_BASE, 1);
    let long = [&whole[..], &[0]].concat();
    let part = craft::untagged(Control::more(1), 0, READ, &whole[18..]);
    let a = atomic(OPEN, OPEN_BASE);
    let imm = |n: usize| craft::untagged(Control::last(8), 0, SEND, &vec![1; n]);
    let imm_part = craft::untagged(Control::more(9), 0, SEND, &[1; 8]);
    let response = craft::atomic_response(1, 5, 6);
    let post = |h: &mut ArrayHost| {
        h.post_receive(8);
    };
    vec![
        length(Opcode::ReadRequest, whole[..45].to_vec()),
        length(Opcode::ReadRequest, long),
        length(Opcode::ReadRequest, part),
        length(Opcode::AtomicRequest, a[..a.len() - 1].to_vec()),
        length(Opcode::AtomicRequest, [&a[..], &[0; 4]].concat()),
        length(Opcode::Immediate, imm(7)).host(post),
        length(Opcode::Immediate, imm(9)).host(post),
        length(Opcode::Immediate, imm(0)).host(post),
        length(Opcode::ImmediateSe, imm_part).host(post),
        length(Opcode::AtomicResponse, response[..response.len() - 1].to_vec())
            .host(|h| feeder::expect_atomic(h, 1, 0, 5)),
    ]
}

fn local() -> Vec<Row> {
    let send = craft::send(1, b"x");
    let memory = Row::new(Fault::LocalMemory, (0, 0, 0), send.clone()).blame(Blame::Local).host(|h| {
        h.post_receive(8);
        h.receive_memory = Some(Fault::LocalMemory);
    });
    let sink = Row::new(Fault::LocalMemory, (0, 0, 0), craft::read_response(SINK, 100, &[1; 8]))
        .blame(Blame::Local)
        .host(|h| {
            feeder::expect_read(h, 1, 100, 8);
            h.deregister(SINK);
        });
    let resource = Row::new(Fault::LocalResource, (0, 0, 0), send)
        .blame(Blame::Local)
        .host(|h| h.no_receive = Some(Fault::LocalResource));
    vec![memory, sink, resource]
}

/// A host may find a wrap in an atomic's target; the aligned eight bytes of the wire never do.
fn wrap_of_an_atomic() {
    let fault = Fault::Atomic(Stag(TOP), TaggedFault::Wrap);
    let t = fault.terminate();
    assert_eq!((t.layer, t.etype, t.code, fault.blame()), (0, 1, 4, Blame::Peer));
}

fn rows() -> Vec<Row> {
    [writes(), reads(), atomics(), mpa(), ddp(), rdmap(), local()].into_iter().flatten().collect()
}

fn run(row: &Row, n: &Negotiated, chunk: usize, direct: bool) -> (Outcome, u64) {
    let mut host = feeder::host(n);
    (row.prepare)(&mut host);
    let mut c = Craft::new(n.crc, n.rx_markers);
    for good in &row.before {
        c.ulpdu(good);
    }
    c.ulpdu(&row.ulpdu);
    let mut bytes = c.bytes().to_vec();
    (row.bend)(&mut bytes);
    // What comes behind a fault must not be looked at.
    let mut behind = Craft::new(n.crc, false);
    behind.ulpdu(craft::write(OPEN, OPEN_BASE, b"behind"));
    bytes.extend_from_slice(behind.bytes());
    let mut f = Feeder::new(n, host);
    if direct {
        f = f.with_direct();
    }
    for piece in bytes.chunks(chunk) {
        let _ = f.feed(piece);
    }
    // rule 5044-8-2, 5041-3-2
    assert_eq!(f.feed(&[0; 100]), f.outcome().result, "a fault stays");
    (f.outcome(), f.host.placed())
}

fn check(row: &Row, crc: bool, markers: bool) {
    let n = feeder::agreed(crc, markers);
    let mut untouched = feeder::host(&n);
    (row.prepare)(&mut untouched);
    let what = format!("{:?} by {:02x?}, crc {crc}, markers {markers}", row.fault, row.ulpdu);
    let (whole, placed) = run(row, &n, usize::MAX, false);
    assert_eq!(whole.result, Err(row.fault), "{what}");
    // rule 5041-7.1-10, 5040-7.2-4, 5041-5.4-3
    assert_eq!(placed, row.placed, "only what came before was placed: {what}");
    assert_eq!(whole.snapshot.regions, untouched.snapshot().regions, "{what}");
    assert_eq!(whole.fpdus, row.before.len() as u64, "{what}");
    assert_eq!(row.fault.blame(), row.blame, "{what}");
    let t = whole.terminate.expect("a fault has its Terminate");
    let got = (t.terminate.layer, t.terminate.etype, t.terminate.code);
    // rule 5040-4.8-4
    assert_eq!(got, row.terminate, "{what}");
    assert_ne!(t.terminate.name(), "unknown error", "{what}");
    quotes(row, &t, &what);
    for (chunk, direct) in [(1, false), (1, true), (7, false), (33, true)] {
        assert_eq!(run(row, &n, chunk, direct), (whole.clone(), placed), "pieces of {chunk}: {what}");
    }
}

/// The Terminate quotes the segment at fault where the RFC says so. RFC 5040 §4.8.
// rule 5040-4.8-3, 7306-8.2-2
fn quotes(row: &Row, t: &iwarp::wire::terminate::TerminateMessage, what: &str) {
    let (layer, etype, _) = row.terminate;
    if layer == 2 || etype == 0 {
        assert_eq!((t.segment_len, t.header(), t.read_header), (None, &[][..], None), "{what}");
        return;
    }
    assert_eq!(t.segment_len, Some(row.ulpdu.len() as u16), "{what}");
    let header = if row.ulpdu[0] & 0x80 != 0 { 14 } else { 18 };
    assert_eq!(t.header(), &row.ulpdu[..header], "{what}");
    let is_read = header == 18 && row.ulpdu[1] & 15 == 1 && row.ulpdu.len() >= 46;
    assert_eq!(t.read_header.is_some(), layer == 0 && is_read, "{what}");
}

#[test]
fn every_fault_has_its_bytes_and_its_terminate() {
    let mut seen = [false; ROWS];
    wrap_of_an_atomic();
    seen[number(&Fault::Atomic(Stag(0), TaggedFault::Wrap))] = true;
    for row in rows() {
        seen[number(&row.fault)] = true;
        let mut ran = 0;
        for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
            if (row.framing)(crc, markers) {
                check(&row, crc, markers);
                ran += 1;
            }
        }
        assert!(ran > 0, "{:?} ran with some framing", row.fault);
    }
    let missing: Vec<usize> = (0..ROWS).filter(|&i| !seen[i]).collect();
    assert!(missing.is_empty(), "faults without a row: {missing:?}");
}

#[test]
fn without_the_extensions_their_opcodes_and_queue_are_unknown() {
    // rule 7306-1.1-1
    let n = Negotiated { extensions: false, ..feeder::agreed(false, false) };
    let cases = [
        (craft::immediate(1, 5), Fault::UnexpectedOpcode(8)),
        (craft::untagged(Control::last(9), 0, SEND, &[0; 8]), Fault::UnexpectedOpcode(9)),
        (atomic(OPEN, OPEN_BASE), Fault::UnexpectedOpcode(10)),
        (craft::atomic_response(1, 5, 6), Fault::QueueNumber(3)),
    ];
    for (ulpdu, fault) in cases {
        let mut host = feeder::host(&n);
        host.post_receive(8);
        let before = host.snapshot();
        let mut f = Feeder::new(&n, host);
        let mut c = Craft::new(false, false);
        assert_eq!(f.feed(c.ulpdu(ulpdu).bytes()), Err(fault));
        assert_eq!(f.outcome().snapshot, before, "nothing was taken or placed");
    }
}

#[test]
fn the_reserved_bits_of_a_header_mean_nothing() {
    // rule 5040-4.1-2, 5041-4.1-3
    let n = feeder::agreed(false, false);
    for (at, bits) in [(0, 0x3c), (1, 0x30)] {
        let mut ulpdu = craft::write(OPEN, OPEN_BASE, b"x");
        ulpdu[at] |= bits;
        let mut f = Feeder::new(&n, feeder::host(&n));
        assert_eq!(f.feed(Craft::new(false, false).ulpdu(&ulpdu).bytes()), Ok(Progress::NeedBytes));
        assert_eq!(f.host.region(OPEN).bytes[0], b'x');
    }
}
