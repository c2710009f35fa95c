//! Every fault that a peer can put on the wire: the Terminate that answers it, byte for byte, the event, the
//! completions, and memory that nothing touched.

mod common;

use std::time::Duration;

use common::raw::{Plays, Raw, Told, Wire};
use common::{PATIENCE, Side, pattern};
use rnic_testkit::craft::{
    Atomic, Control, Place, atomic_request, atomic_response, immediate, read_request, read_response, send,
    tagged, untagged, write,
};
use rnic_verbs::{Access, AsyncEvent, Completion, End, MemoryRegion, QpState, RecvWr, SendWr, Status};

/// Bytes of each region, and of each receive.
const REGION: usize = 4096;
const RECV: usize = 64;

/// The engine's memory, as a peer knows it.
struct Ground {
    open: MemoryRegion,
    read_only: MemoryRegion,
    write_only: MemoryRegion,
    foreign: MemoryRegion,
    receives: MemoryRegion,
    sink: MemoryRegion,
}

impl Ground {
    fn lay(side: &Side) -> Self {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let other = side.device.alloc_pd().unwrap();
        let new = |access| side.pd.register(REGION, access).unwrap();
        let ground = Self {
            open: new(all),
            read_only: new(Access::REMOTE_READ),
            write_only: new(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            foreign: other.register(REGION, all).unwrap(),
            receives: new(Access::LOCAL_WRITE),
            sink: new(Access::LOCAL_WRITE),
        };
        for (n, mr) in ground.regions().into_iter().enumerate() {
            mr.write_at(0, &pattern(REGION, n as u64)).unwrap();
        }
        ground
    }

    fn regions(&self) -> [&MemoryRegion; 6] {
        [&self.open, &self.read_only, &self.write_only, &self.foreign, &self.receives, &self.sink]
    }

    /// Nothing was placed anywhere, but for the first `allowed` bytes of the first receive.
    fn assert_untouched(&self, name: &str, allowed: usize) {
        for (n, mr) in self.regions().into_iter().enumerate() {
            let from = if n == 4 { allowed } else { 0 };
            let mut got = vec![0; REGION];
            mr.read_at(0, &mut got).unwrap();
            assert!(got[from..] == pattern(REGION, n as u64)[from..], "{name}: region {n} changed");
        }
    }
}

fn place(mr: &MemoryRegion) -> (u32, u64) {
    (mr.rkey(), mr.addr())
}

/// What the peer knows when it misbehaves.
struct Knows<'a> {
    ground: &'a Ground,
    /// Sink of the engine's Read, or identifier of its atomic (in the first field).
    asked: (u32, u64),
}

impl Knows<'_> {
    fn open(&self) -> (u32, u64) {
        place(&self.ground.open)
    }
}

/// What the engine waits for when the peer misbehaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Nothing,
    /// For the answer to a Read of 100 bytes.
    Read,
    /// For the answer to a FetchAdd.
    Atomic,
}

/// What a Terminate quotes of the segment at fault. RFC 5040 §4.8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Quotes {
    Nothing,
    Ddp,
    DdpAndRead,
}

type Ulpdus = fn(&Knows<'_>) -> Vec<Vec<u8>>;

struct Case {
    name: &'static str,
    extensions: bool,
    waits: Waits,
    /// Segments; the last is at fault.
    ulpdus: Ulpdus,
    what: (u8, u8, u8),
    quotes: Quotes,
    /// An access error rather than a fatal one.
    access: bool,
    /// How the receive under way ends; `None`: none is.
    receive: Option<Status>,
    /// Bytes that may be in the first receive.
    placed: usize,
}

const fn case(name: &'static str, what: (u8, u8, u8), ulpdus: Ulpdus) -> Case {
    Case {
        name,
        extensions: true,
        waits: Waits::Nothing,
        ulpdus,
        what,
        quotes: Quotes::Ddp,
        access: false,
        receive: None,
        placed: 0,
    }
}

impl Case {
    const fn access(self) -> Self {
        Self { access: true, ..self }
    }
    const fn bare(self) -> Self {
        Self { quotes: Quotes::Nothing, ..self }
    }
    const fn read(self) -> Self {
        Self { quotes: Quotes::DdpAndRead, ..self }
    }
    const fn plain(self) -> Self {
        Self { extensions: false, ..self }
    }
    const fn answers(self, waits: Waits) -> Self {
        Self { waits, ..self }
    }
    const fn receiving(self, status: Status, placed: usize) -> Self {
        Self { receive: Some(status), placed, ..self }
    }
}

/// A segment of queue 0.
fn segment(control: Control, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    untagged(control, 0, Place { qn: 0, msn, mo }, payload)
}

fn control(opcode: u8, ddp_version: u8, rdmap_version: u8) -> Control {
    Control { last: true, opcode, ddp_version, rdmap_version }
}

fn atomic(k: &Knows<'_>, at: (u32, u64), op: u32) -> Vec<Vec<u8>> {
    let _ = k;
    vec![atomic_request(1, Atomic { op, id: 9, stag: at.0, to: at.1, operands: [1, 0, 0, 0] })]
}

/// A Read Request for 8 bytes of `source`.
fn read(source: (u32, u64), len: u32) -> Vec<Vec<u8>> {
    vec![read_request(1, (0x77, 0), len, source)]
}

fn odd_read_request(control: Control, mo: u32, change: fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = read_request(1, (0x77, 0), 8, (0x88, 0))[18..].to_vec();
    change(&mut body);
    untagged(control, 0, Place { qn: 1, msn: 1, mo }, &body)
}

const MESSAGES: &[Case] = &[
    // DDP, RFC 5041 §8.2 (and the MPA length that cannot hold its header).
    case("tagged header cut", (2, 0, 3), |_| vec![write(1, 2, b"")[..13].to_vec()]).bare(),
    case("untagged header cut", (2, 0, 3), |_| vec![send(1, b"")[..17].to_vec()]).bare(),
    case("empty FPDU", (2, 0, 3), |_| vec![Vec::new()]).bare(),
    case("one byte", (2, 0, 3), |_| vec![vec![0x41]]).bare(),
    case("tagged DDP version 0", (1, 1, 4), |k| vec![tagged(control(0, 0, 1), k.open().0, k.open().1, b"x")]),
    case("tagged DDP version 2", (1, 1, 4), |k| vec![tagged(control(0, 2, 1), k.open().0, k.open().1, b"x")]),
    case("untagged DDP version 0", (1, 2, 6), |_| vec![segment(control(3, 0, 1), 1, 0, b"x")]),
    case("untagged DDP version 3", (1, 2, 6), |_| vec![segment(control(3, 3, 1), 1, 0, b"x")]),
    case("queue 4", (1, 2, 1), |_| vec![untagged(Control::last(3), 0, Place { qn: 4, msn: 1, mo: 0 }, b"x")]),
    case("queue 2^32-1", (1, 2, 1), |_| {
        vec![untagged(Control::last(3), 0, Place { qn: !0, msn: 1, mo: 0 }, b"x")]
    }),
    case("queue 3 without RFC 7306", (1, 2, 1), |_| vec![atomic_response(1, 1, 1)]).plain(),
    case("MSN 0", (1, 2, 3), |_| vec![send(0, b"x")]),
    case("MSN 2 first", (1, 2, 3), |_| vec![send(2, b"x")]),
    case("MSN 2^31", (1, 2, 3), |_| vec![send(1 << 31, b"x")]),
    case("MSN repeated", (1, 2, 3), |_| vec![send(1, b""), send(1, b"y")]),
    case("Read Request MSN", (1, 2, 3), |k| vec![read_request(2, (1, 0), 8, k.open())]),
    case("MO in a first segment", (1, 2, 4), |_| vec![segment(Control::last(3), 1, 4, b"x")]),
    case("MO that skips", (1, 2, 4), |_| {
        vec![segment(Control::more(3), 1, 0, &[1; 8]), segment(Control::last(3), 1, 12, &[2; 8])]
    })
    .receiving(Status::WrFlush, 8),
    case("MO that repeats", (1, 2, 4), |_| {
        vec![segment(Control::more(3), 1, 0, &[1; 8]), segment(Control::last(3), 1, 0, &[2; 8])]
    })
    .receiving(Status::WrFlush, 8),
    case("message too long", (1, 2, 5), |_| vec![send(1, &[1; RECV + 1])])
        .receiving(Status::LocalLengthError, 0),
    case("message too long in its second segment", (1, 2, 5), |_| {
        vec![segment(Control::more(3), 1, 0, &[1; RECV]), segment(Control::last(3), 1, RECV as u32, b"x")]
    })
    .receiving(Status::LocalLengthError, RECV),
    // RDMAP, RFC 5040 §7.2.
    case("RDMAP version 0, tagged", (0, 2, 5), |k| {
        vec![tagged(control(0, 1, 0), k.open().0, k.open().1, b"x")]
    }),
    case("RDMAP version 2, untagged", (0, 2, 5), |_| vec![segment(control(3, 1, 2), 1, 0, b"x")]),
    case("opcode 12", (0, 2, 6), |_| vec![segment(Control::last(12), 1, 0, b"x")]),
    case("opcode 15", (0, 2, 6), |_| vec![segment(Control::last(15), 1, 0, b"x")]),
    case("tagged opcode 15", (0, 2, 6), |k| vec![tagged(Control::last(15), k.open().0, k.open().1, b"x")]),
    case("tagged Send", (0, 2, 6), |k| vec![tagged(Control::last(3), k.open().0, k.open().1, b"x")]),
    case("untagged Write", (0, 2, 6), |_| vec![segment(Control::last(0), 1, 0, b"x")]),
    case("untagged Read Response", (0, 2, 6), |_| vec![segment(Control::last(2), 1, 0, b"x")]),
    case("Send on the request queue", (0, 2, 6), |_| {
        vec![untagged(Control::last(3), 0, Place { qn: 1, msn: 1, mo: 0 }, b"x")]
    }),
    case("Read Request on the Send queue", (0, 2, 6), |_| vec![segment(Control::last(1), 1, 0, &[0; 28])])
        .read(),
    case("Terminate on the Send queue", (0, 2, 6), |_| vec![segment(Control::last(7), 1, 0, &[0; 4])]),
    case("immediate without RFC 7306", (0, 2, 6), |_| vec![immediate(1, 5)]).plain(),
    case("atomic without RFC 7306", (0, 2, 6), |k| atomic(k, k.open(), 0)).plain(),
    case("opcode changes within a message", (0, 2, 6), |_| {
        vec![segment(Control::more(3), 1, 0, &[1; 8]), segment(Control::last(5), 1, 8, &[2; 8])]
    })
    .receiving(Status::WrFlush, 8),
    case("immediate of 7 bytes", (0, 2, 7), |_| vec![segment(Control::last(8), 1, 0, &[0; 7])]),
    case("immediate of 9 bytes", (0, 2, 7), |_| vec![segment(Control::last(8), 1, 0, &[0; 9])]),
    // Write, RFC 5041 §8.2 and RFC 5040 §7.1.
    case("Write, wrong key", (1, 1, 0), |k| vec![write(k.open().0 ^ 1, k.open().1, b"x")]).access(),
    case("Write, wrong index", (1, 1, 0), |k| vec![write(k.open().0 ^ 0x100, k.open().1, b"x")]).access(),
    case("Write, STag 0", (1, 1, 0), |k| vec![write(0, k.open().1, b"x")]).access(),
    case("Write past the end", (1, 1, 1), |k| {
        vec![write(k.open().0, k.open().1 + REGION as u64 - 7, &[9; 8])]
    })
    .access(),
    case("Write before the start", (1, 1, 1), |k| vec![write(k.open().0, k.open().1 - 1, &[9; 8])]).access(),
    case("Write far away", (1, 1, 1), |k| vec![write(k.open().0, 1 << 63, &[9; 8])]).access(),
    case("Write that wraps", (1, 1, 3), |k| vec![write(k.open().0, u64::MAX - 3, &[9; 8])]).access(),
    case("Write to read-only memory", (0, 1, 2), |k| {
        vec![write(place(&k.ground.read_only).0, place(&k.ground.read_only).1, &[9; 8])]
    })
    .access(),
    case("Write to another domain", (1, 1, 2), |k| {
        vec![write(place(&k.ground.foreign).0, place(&k.ground.foreign).1, &[9; 8])]
    })
    .access(),
    // Read, RFC 5040 §7.1: the same, in RDMAP's codes.
    case("Read, wrong key", (0, 1, 0), |k| read((k.open().0 ^ 1, k.open().1), 8)).access().read(),
    case("Read past the end", (0, 1, 1), |k| read(k.open(), REGION as u32 + 1)).access().read(),
    case("Read of 4 GiB", (0, 1, 1), |k| read(k.open(), u32::MAX)).access().read(),
    case("Read before the start", (0, 1, 1), |k| read((k.open().0, k.open().1 - 1), 8)).access().read(),
    case("Read that wraps", (0, 1, 4), |k| read((k.open().0, u64::MAX - 3), 8)).access().read(),
    case("Read of write-only memory", (0, 1, 2), |k| read(place(&k.ground.write_only), 8)).access().read(),
    case("Read of another domain", (0, 1, 3), |k| read(place(&k.ground.foreign), 8)).access().read(),
    case("Read Request with a byte too many", (0, 2, 7), |_| {
        vec![odd_read_request(Control::last(1), 0, |b| b.push(0))]
    })
    .read(),
    case("Read Request with a byte too few", (0, 2, 7), |_| {
        vec![odd_read_request(Control::last(1), 0, |b| b.truncate(27))]
    }),
    case("Read Request in segments", (0, 2, 7), |_| vec![odd_read_request(Control::more(1), 0, |_| ())])
        .read(),
    case("Read Request with an offset", (1, 2, 4), |_| vec![odd_read_request(Control::last(1), 4, |_| ())]),
    case("Read beyond the IRD", (0, 2, 7), |k| {
        (1..=33).map(|msn| read_request(msn, (1, 0), 8, k.open())).collect()
    })
    .read(),
    // Invalidate, RFC 5040 §5.3.
    case("invalidate of nothing", (0, 1, 9), |_| {
        vec![untagged(Control::last(4), 0x1234_5678, Place { qn: 0, msn: 1, mo: 0 }, b"")]
    })
    .access()
    .receiving(Status::WrFlush, 0),
    case("invalidate of another domain's region", (0, 1, 9), |k| {
        vec![untagged(Control::last(4), place(&k.ground.foreign).0, Place { qn: 0, msn: 1, mo: 0 }, b"")]
    })
    .access()
    .receiving(Status::WrFlush, 0),
    // Atomics, RFC 7306 §5 and §8.
    case("atomic off by 4", (0, 2, 7), |k| atomic(k, (k.open().0, k.open().1 + 4), 0)),
    case("atomic of an unknown kind", (0, 2, 6), |k| atomic(k, k.open(), 5)),
    case("atomic, wrong key", (0, 1, 0), |k| atomic(k, (k.open().0 ^ 1, k.open().1), 0)).access(),
    case("atomic without the right", (0, 1, 2), |k| atomic(k, place(&k.ground.write_only), 0)).access(),
    case("atomic past the end", (0, 1, 1), |k| atomic(k, (k.open().0, k.open().1 + REGION as u64), 0))
        .access(),
    case("atomic on another domain", (0, 1, 3), |k| atomic(k, place(&k.ground.foreign), 0)).access(),
    case("atomic cut short", (0, 2, 7), |k| vec![atomic(k, k.open(), 0)[0][..60].to_vec()]),
    // Responses, RFC 5040 §5.5.
    case("Read Response to nothing", (0, 2, 6), |k| vec![read_response(k.open().0, k.open().1, &[9; 8])]),
    case("Atomic Response to nothing", (0, 2, 6), |_| vec![atomic_response(1, 1, 1)]),
    case("Read Response too long", (0, 2, 7), |k| vec![read_response(k.asked.0, k.asked.1, &[9; 101])])
        .answers(Waits::Read),
    case("Read Response too short", (0, 2, 7), |k| vec![read_response(k.asked.0, k.asked.1, &[9; 99])])
        .answers(Waits::Read),
    case("Read Response without an end", (0, 2, 7), |k| {
        vec![tagged(Control::more(2), k.asked.0, k.asked.1, &[9; 100])]
    })
    .answers(Waits::Read),
    case("Read Response to another sink", (0, 2, 7), |k| {
        vec![read_response(k.asked.0 ^ 0x100, k.asked.1, &[9; 100])]
    })
    .answers(Waits::Read),
    case("Read Response to a real region", (0, 2, 7), |k| {
        vec![read_response(k.open().0, k.open().1, &[9; 100])]
    })
    .answers(Waits::Read),
    case("Read Response elsewhere", (0, 2, 7), |k| vec![read_response(k.asked.0, k.asked.1 + 1, &[9; 100])])
        .answers(Waits::Read),
    case("Atomic Response to a Read", (0, 2, 6), |_| vec![atomic_response(1, 1, 1)]).answers(Waits::Read),
    case("Atomic Response to another", (0, 2, 6), |k| vec![atomic_response(1, k.asked.0 ^ 1, 1)])
        .answers(Waits::Atomic),
    case("Read Response to an atomic", (0, 2, 6), |k| vec![read_response(k.asked.0, 0, &[9; 8])])
        .answers(Waits::Atomic),
    case("Atomic Response of 11 bytes", (0, 2, 7), |k| vec![atomic_response(1, k.asked.0, 1)[..29].to_vec()])
        .answers(Waits::Atomic),
];

/// Posts what the engine has posted in every case: two receives, and the request under way.
fn prepare(side: &Side, raw: &mut Raw, ground: &Ground, waits: Waits) -> (u32, u64) {
    for n in 0..2 {
        let sge = ground.receives.sge(n * RECV as u64, RECV as u32);
        side.qp.post_recv(&RecvWr::new(n, &[sge])).unwrap();
    }
    let word = |b: &[u8]| u32::from_be_bytes(b[..4].try_into().unwrap());
    let theirs = rnic_verbs::RemoteBuffer { rkey: 0x99, addr: 0x100, len: 4096 };
    match waits {
        Waits::Nothing => (0, 0),
        Waits::Read => {
            side.qp.post_send(&SendWr::read(7, &[ground.sink.sge(0, 100)], theirs)).unwrap();
            let request = raw.next().unwrap();
            (word(&request[18..]), u64::from_be_bytes(request[22..30].try_into().unwrap()))
        }
        Waits::Atomic => {
            side.qp.post_send(&SendWr::fetch_add(7, &ground.sink.sge(0, 8), theirs, 1)).unwrap();
            (word(&raw.next().unwrap()[22..]), 0)
        }
    }
}

fn check_told(name: &str, case: &Case, told: &Told, culprit: &[u8]) {
    assert_eq!(told.what, case.what, "{name}");
    let header = if culprit.first().is_some_and(|b| b & 0x80 != 0) { 14 } else { 18 };
    let want = match case.quotes {
        Quotes::Nothing => (None, None, None),
        Quotes::Ddp => (Some(culprit.len() as u16), Some(culprit[..header].to_vec()), None),
        Quotes::DdpAndRead => {
            let read = culprit[18..46].to_vec();
            (Some(culprit.len() as u16), Some(culprit[..18].to_vec()), Some(read))
        }
    };
    assert_eq!((told.segment_len, told.ddp.clone(), told.rdmap.clone()), want, "{name}");
}

/// The event of the end; others may come before it.
fn check_event(name: &str, case: &Case, side: &Side) {
    loop {
        let event = side.device.async_events().wait(Some(PATIENCE)).unwrap();
        let (access, t) = match event.unwrap_or_else(|| panic!("{name}: no event")) {
            AsyncEvent::CommunicationEstablished { .. } => continue,
            AsyncEvent::QpAccessError { terminate, .. } => (true, terminate),
            AsyncEvent::QpFatal { terminate: Some(t), from_peer: false, .. } => (false, t),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!((access, (t.layer, t.etype, t.code)), (case.access, case.what), "{name}");
        return;
    }
}

fn check_completions(name: &str, case: &Case, side: &Side) {
    let answered = matches!(case.name, "MSN repeated");
    let n = 2 + usize::from(case.waits != Waits::Nothing);
    let done = side.completions(n);
    let status = |recv: bool, wr_id| {
        let it = done.iter().find(|c| (c.wr_id < 2) == recv && c.wr_id == wr_id);
        it.unwrap_or_else(|| panic!("{name}: no completion {wr_id} in {done:?}")).status
    };
    let first = if answered { Status::Success } else { case.receive.unwrap_or(Status::WrFlush) };
    assert_eq!((status(true, 0), status(true, 1)), (first, Status::WrFlush), "{name}");
    if case.waits != Waits::Nothing {
        let bad = matches!(case.what, (0, 2, 6 | 7)) && !case.name.contains("11 bytes");
        let want = if bad { Status::BadResponse } else { Status::WrFlush };
        assert_eq!(status(false, 7), want, "{name}");
    }
    let mut more = [Completion::default()];
    assert_eq!(side.cq.poll(&mut more).unwrap(), 0, "{name}: {more:?}");
}

/// One case over one connection. `behind`: valid bytes follow the fault at once.
fn run(case: &Case, plays: Plays, wire: Wire, behind: usize) {
    let name = &format!("{} ({plays:?}, {wire:?}, {behind} behind)", case.name);
    let wire = Wire { extensions: case.extensions, ..wire };
    let (side, mut raw) = Raw::meet(plays, wire);
    let ground = Ground::lay(&side);
    if case.waits != Waits::Nothing && plays == Plays::Initiator {
        // A responder sends nothing before the initiator's first FPDU. RFC 5044 §7.1.2.
        raw.send(&[write(0, 0, b"")]);
    }
    let asked = prepare(&side, &mut raw, &ground, case.waits);
    let ulpdus = (case.ulpdus)(&Knows { ground: &ground, asked });
    let mut bytes = raw.fpdus(&ulpdus);
    let more: Vec<_> = (0..behind.div_ceil(1000)).map(|n| send(2 + n as u32, &[7; 1000])).collect();
    bytes.extend(raw.fpdus(&more));
    raw.put(&bytes);
    check_told(name, case, &raw.terminate(), ulpdus.last().unwrap());
    check_event(name, case, &side);
    check_completions(name, case, &side);
    assert_eq!(side.qp.state(), QpState::Error, "{name}");
    match side.qp.end() {
        Some(End::Fault(f)) => {
            let t = f.terminate();
            assert_eq!((t.layer, t.etype, t.code), case.what, "{name}: {f}");
        }
        other => panic!("{name}: {other:?}"),
    }
    ground.assert_untouched(name, case.placed);
}

/// Every case, each told apart from the others where several fail.
fn run_all(runs: &[(Plays, Wire, usize)]) {
    let mut failed = 0;
    for case in MESSAGES {
        for &(plays, wire, behind) in runs {
            let outcome = std::panic::catch_unwind(|| run(case, plays, wire, behind));
            failed += usize::from(outcome.is_err());
        }
    }
    assert_eq!(failed, 0, "cases failed; each said why above");
}

#[test]
fn the_engine_as_responder_answers_each_fault_with_its_terminate() {
    run_all(&[(Plays::Initiator, Wire::PLAIN, 0), (Plays::Initiator, Wire::CRC, 0)]);
}

#[test]
fn the_engine_as_initiator_answers_each_fault_with_its_terminate() {
    run_all(&[(Plays::Responder, Wire::PLAIN, 0), (Plays::Responder, Wire::MARKERS, 0)]);
}

/// A close with unread bytes would be a reset, and a reset overtakes the Terminate.
#[test]
fn bytes_behind_a_fault_do_not_eat_the_terminate() {
    run_all(&[(Plays::Initiator, Wire::PLAIN, 300_000), (Plays::Responder, Wire::CRC, 100_000)]);
}

/// Faults of framing, which have no segment to quote. RFC 5044 §8.
#[test]
fn damaged_fpdus() {
    type Damage = fn(&mut Raw) -> Vec<u8>;
    type Row = (&'static str, Wire, Damage, (u8, u8, u8));
    let cases: &[Row] = &[
        ("CRC", Wire::CRC, |r| flip(r.fpdus(&[send(1, b"hello")]), -1), (2, 0, 2)),
        ("payload under a CRC", Wire::CRC, |r| flip(r.fpdus(&[send(1, b"hello")]), 20), (2, 0, 2)),
        ("header under a CRC", Wire::CRC, |r| flip(r.fpdus(&[write(1, 2, b"hello")]), 4), (2, 0, 2)),
        ("pad under a CRC", Wire::CRC, |r| flip(r.fpdus(&[send(1, b"hello")]), -5), (2, 0, 2)),
        ("CRC with markers", Wire::MARKERS, |r| flip(r.fpdus(&[send(1, b"hello")]), -1), (2, 0, 2)),
        ("marker, summed", Wire::MARKERS, lying_marker, (2, 0, 3)),
        ("length 13", Wire::PLAIN, |r| r.declared(13, &[0xc1; 40]), (2, 0, 3)),
    ];
    for (name, wire, damage, what) in cases {
        for plays in [Plays::Initiator, Plays::Responder] {
            let (side, mut raw) = Raw::meet(plays, *wire);
            let mr = side.mr(64);
            side.qp.post_recv(&RecvWr::new(0, &[mr.sge(0, 64)])).unwrap();
            let bytes = damage(&mut raw);
            raw.put(&bytes);
            let want = Told { what: *what, segment_len: None, ddp: None, rdmap: None };
            assert_eq!(raw.terminate(), want, "{name} {plays:?}");
            assert_eq!(side.completion().status, Status::WrFlush, "{name} {plays:?}");
            assert!(matches!(side.qp.wait_disconnected(Some(Duration::ZERO)), Some(End::Fault(_))), "{name}");
            let mut got = [0; 64];
            mr.read_at(0, &mut got).unwrap();
            assert_eq!(got, [0; 64], "{name}");
        }
    }
}

/// Flips a bit of one byte; negative positions count from the end.
fn flip(mut bytes: Vec<u8>, at: isize) -> Vec<u8> {
    let at = if at < 0 { bytes.len() - at.unsigned_abs() } else { at as usize };
    bytes[at] ^= 0x10;
    bytes
}

/// An FPDU long enough for a second marker, which points astray; the CRC covers the lie.
fn lying_marker(raw: &mut Raw) -> Vec<u8> {
    let mut bytes = raw.fpdus(&[send(1, &[3; 600])]);
    bytes[514] ^= 4;
    let end = bytes.len() - 4;
    let sum = rnic_testkit::craft::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    bytes
}
