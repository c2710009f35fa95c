//! What a peer may do with memory: rights, bounds, domains; windows, fast registration, invalidation.

use rnic_verbs::iwarp::{Fault, Stag, TaggedFault, Terminate};
use rnic_verbs::{
    Access, AsyncEvent, CompletionOp, ConnPolicy, DeviceConfig, End, Error, MemoryRegion, QpState, RecvWr,
    RemoteBuffer, SendOp, SendWr, Sge, Status, WindowKind,
};

use crate::common::{PATIENCE, REMOTE, Side, join, pair, pattern, side};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Write,
    Read,
    Atomic,
}

impl Op {
    const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Atomic];

    fn right(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::Atomic => Access::REMOTE_ATOMIC,
        }
    }

    fn fault(self, rkey: u32, fault: TaggedFault) -> Fault {
        match self {
            Self::Write => Fault::Write(Stag(rkey), fault),
            Self::Read => Fault::ReadSource(Stag(rkey), fault),
            Self::Atomic => Fault::Atomic(Stag(rkey), fault),
        }
    }
}

/// A request for `op` of eight bytes at the start of `at`.
fn request(op: Op, sge: &[Sge; 1], at: RemoteBuffer) -> SendWr<'_> {
    match op {
        Op::Write => SendWr::write(1, sge, at),
        Op::Read => SendWr::read(1, sge, at),
        Op::Atomic => SendWr::fetch_add(1, &sge[0], at, 1),
    }
}

/// `op` on `at` must succeed. When this returns it is done at the peer, too.
fn allowed(a: &Side, op: Op, at: RemoteBuffer) {
    let local = a.mr(8);
    let sge = [local.sge(0, 8)];
    let empty = SendWr::read(2, &[], RemoteBuffer::default());
    a.qp.post_send_list(&[request(op, &sge, at), empty]).unwrap();
    assert!(a.completions(2).iter().all(|c| c.status == Status::Success), "{op:?}");
}

/// `op` on `at` must end the connection with `fault`, named at both ends, and change none of `victim`.
fn refused(a: &Side, b: &Side, op: Op, at: RemoteBuffer, fault: TaggedFault, victim: &MemoryRegion) {
    let name = format!("{op:?} {fault:?}");
    let local = a.mr(8);
    local.store_u64(0, 0x1111_1111_1111_1111).unwrap();
    let before = Side::bytes(victim);
    // Two requests: the one at fault, or (a Write is done when TCP has it) the next, says why.
    let zero = b.mr(8);
    let sge = [local.sge(0, 8)];
    a.qp.post_send_list(&[request(op, &sge, at), SendWr::read(2, &sge, zero.remote())]).unwrap();
    let expected = op.fault(at.rkey, fault);
    let statuses: Vec<_> = a.completions(2).iter().map(|c| (c.wr_id, c.status)).collect();
    let (ok, access, flush) = (Status::Success, Status::RemoteAccess, Status::WrFlush);
    if op == Op::Write {
        assert_eq!(statuses, [(1, ok), (2, access)], "{name}");
    } else {
        assert_eq!(statuses, [(1, access), (2, flush)], "{name}");
    }
    let terminate = expected.terminate();
    assert_eq!(b.qp.wait_disconnected(Some(PATIENCE)), Some(End::Fault(expected)), "{name}");
    assert_eq!(a.qp.wait_disconnected(Some(PATIENCE)), Some(End::Terminated(Some(terminate))), "{name}");
    let qp_num = b.qp.num();
    let event = b.event(|e| matches!(e, AsyncEvent::QpAccessError { .. }).then_some(e));
    assert_eq!(event, AsyncEvent::QpAccessError { qp_num, terminate }, "{name}");
    let qp_num = a.qp.num();
    let event = a.event(|e| matches!(e, AsyncEvent::QpFatal { .. }).then_some(e));
    assert_eq!(event, AsyncEvent::QpFatal { qp_num, terminate: Some(terminate), from_peer: true }, "{name}");
    assert!(Side::bytes(victim) == before, "{name}: the memory was touched");
    assert_eq!(local.load_u64(0).unwrap(), 0x1111_1111_1111_1111, "{name}");
}

fn again(a: &Side, b: &Side) {
    for side in [a, b] {
        side.qp.modify(QpState::Reset).unwrap();
        side.qp.modify(QpState::Init).unwrap();
        assert_eq!(side.cq.queued(), 0);
    }
    join(a, b, &ConnPolicy::default());
}

fn fresh() -> (Side, Side) {
    (side(DeviceConfig::default(), |i| i), side(DeviceConfig::default(), |i| i))
}

/// Every set of remote rights against every operation.
#[test]
fn an_operation_needs_its_right_and_no_other() {
    let (a, b) = fresh();
    join(&a, &b, &ConnPolicy::default());
    for bits in 0..8 {
        let mut access = Access::LOCAL_WRITE;
        for (bit, op) in Op::ALL.into_iter().enumerate() {
            access.set(op.right(), bits >> bit & 1 != 0);
        }
        for op in Op::ALL {
            let mr = b.pd.register(64, access).unwrap();
            mr.write_at(0, &pattern(64, 3)).unwrap();
            if access.contains(op.right()) {
                allowed(&a, op, mr.remote());
            } else {
                refused(&a, &b, op, mr.remote(), TaggedFault::Access, &mr);
                again(&a, &b);
            }
        }
    }
    // The codes on the wire: RDMAP, remote protection error, access rights violation. RFC 5040 §4.8.
    let t = Fault::Write(Stag(0), TaggedFault::Access).terminate();
    assert_eq!(t, Terminate { layer: 0, etype: 1, code: 2 });
}

#[test]
fn bounds_keys_and_domains_are_checked() {
    let (a, b) = fresh();
    join(&a, &b, &ConnPolicy::default());
    let mr = b.mr(64);
    let foreign = b.device.alloc_pd().unwrap().register(64, REMOTE).unwrap();
    let gone = {
        let mr = b.mr(64);
        let r = mr.remote();
        mr.deregister().unwrap();
        r
    };
    let r = mr.remote();
    let at = |addr: u64| RemoteBuffer { addr, ..r };
    let key = |rkey: u32| RemoteBuffer { rkey, ..r };
    use TaggedFault::{Bounds, InvalidStag, NotAssociated, Wrap};
    let cases = [
        ("one byte too far", at(r.addr + 57), Bounds),
        ("before the start", at(r.addr - 8), Bounds),
        ("far away", at(0), Bounds),
        ("wrapped", at(u64::MAX - 3), Wrap),
        ("another key", key(r.rkey ^ 1), InvalidStag),
        ("another index", key(r.rkey ^ 0x8000_0000), InvalidStag),
        ("no key", key(0), InvalidStag),
        ("deregistered", gone, InvalidStag),
        ("another domain", foreign.remote(), NotAssociated),
    ];
    for (name, target, fault) in cases {
        for op in Op::ALL {
            // An atomic's alignment is checked before it is posted.
            if op == Op::Atomic && target.addr % 8 != 0 {
                let local = a.mr(8);
                let refused = a.qp.post_send(&SendWr::fetch_add(1, &local.sge(0, 8), target, 1));
                assert!(matches!(refused, Err(Error::Invalid(_))), "{name}");
                continue;
            }
            let victim = if name == "another domain" { &foreign } else { &mr };
            refused(&a, &b, op, target, fault, victim);
            again(&a, &b);
        }
    }
}

#[test]
fn the_end_of_a_long_write_is_checked_before_its_segment_is_placed() {
    let (a, b) = pair();
    let (src, dst) = (a.mr(1 << 20), b.mr((1 << 20) - 1));
    src.fill(0, 1 << 20, 0x55).unwrap();
    a.qp.post_send(&SendWr::write(1, &[src.sge(0, 1 << 20)], dst.remote())).unwrap();
    let end = b.qp.wait_disconnected(Some(PATIENCE));
    assert_eq!(end, Some(End::Fault(Fault::Write(Stag(dst.rkey()), TaggedFault::Bounds))));
    // The segments before the last fitted; of the last nothing is there.
    let mut last = [0xff; 64];
    dst.read_at((1 << 20) - 65, &mut last).unwrap();
    assert_eq!(last, [0; 64]);
}

/// What is handed in by a peer that posts the right thing too late.
#[test]
fn memory_withdrawn_between_two_requests_is_refused_from_then_on() {
    let (a, b) = pair();
    let (src, dst) = (a.mr(8), b.mr(8));
    let target = dst.remote();
    a.qp.post_send(&SendWr::read(1, &[src.sge(0, 8)], target)).unwrap();
    assert_eq!(a.completion().status, Status::Success);
    dst.deregister().unwrap();
    a.qp.post_send(&SendWr::read(2, &[src.sge(0, 8)], target)).unwrap();
    assert_eq!(a.completion().status, Status::RemoteAccess);
}

fn local(side: &Side, op: SendOp) -> (Status, CompletionOp) {
    side.qp.post_send(&SendWr::local(77, op)).unwrap();
    let c = side.completion();
    assert_eq!(c.wr_id, 77);
    (c.status, c.opcode)
}

const BOUND: (Status, CompletionOp) = (Status::Success, CompletionOp::BindWindow);

fn lendable(side: &Side, len: usize) -> MemoryRegion {
    let mr = side.pd.register(len, REMOTE | Access::MW_BIND).unwrap();
    mr.write_at(0, &pattern(len, 1)).unwrap();
    mr
}

#[test]
fn a_window_lends_its_part_with_its_rights_until_it_is_unbound() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let (a, b) = pair();
        // A responder's requests wait for the initiator's first FPDU.
        a.qp.post_send(&SendWr::write(0, &[], RemoteBuffer::default())).unwrap();
        a.completion();
        let mr = lendable(&b, 4096);
        let window = b.pd.alloc_window(kind).unwrap();
        let (bind, lent) = window.bind(&mr, 1000, 100, Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
        assert_eq!((local(&b, bind), window.is_bound()), (BOUND, true));
        let sink = a.mr(100);
        a.qp.post_send(&SendWr::read(1, &[sink.sge(0, 100)], lent)).unwrap();
        assert_eq!(a.completion().status, Status::Success);
        assert!(Side::bytes(&sink) == pattern(4096, 1)[1000..1100]);
        a.qp.post_send(&SendWr::write_inline(2, b"by the window", lent)).unwrap();
        a.qp.post_send(&SendWr::read(3, &[sink.sge(0, 13)], lent)).unwrap();
        assert_eq!(a.completions(2)[1].status, Status::Success);
        let mut there = [0; 13];
        mr.read_at(1000, &mut there).unwrap();
        assert_eq!(&there, b"by the window");
        // The region cannot go while it is lent out.
        let mr = match mr.deregister() {
            Err(e) => e.region,
            Ok(()) => panic!("deregistered under a window"),
        };
        // Type 1 moves by binding anew, type 2 must be invalidated first.
        let end = match kind {
            WindowKind::Type1 => window.unbind(),
            WindowKind::Type2 => SendOp::LocalInvalidate(lent.rkey),
        };
        assert_eq!((local(&b, end).0, window.is_bound()), (Status::Success, false));
        refused(&a, &b, Op::Read, lent, TaggedFault::InvalidStag, &mr);
        mr.deregister().unwrap();
    }
}

#[test]
fn a_window_grants_no_more_than_it_was_bound_for() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        for (rights, op, slice, fault) in [
            (Access::REMOTE_READ, Op::Write, (0, 8), TaggedFault::Access),
            (Access::REMOTE_WRITE, Op::Read, (0, 8), TaggedFault::Access),
            (Access::REMOTE_READ, Op::Read, (96, 8), TaggedFault::Bounds),
            (Access::REMOTE_READ | Access::ZERO_BASED, Op::Read, (96, 8), TaggedFault::Bounds),
        ] {
            let (a, b) = pair();
            a.qp.post_send(&SendWr::write(0, &[], RemoteBuffer::default())).unwrap();
            a.completion();
            let mr = lendable(&b, 4096);
            let window = b.pd.alloc_window(kind).unwrap();
            let (bind, lent) = window.bind(&mr, 8, 100, rights).unwrap();
            assert_eq!(local(&b, bind), BOUND);
            if rights.contains(Access::ZERO_BASED) {
                assert_eq!(lent.addr, 0);
            }
            let target = RemoteBuffer { addr: lent.addr + slice.0, len: slice.1, ..lent };
            refused(&a, &b, op, target, fault, &mr);
        }
    }
}

/// Type 2: for the stream that it was bound on. Type 1: for all of the domain.
#[test]
fn a_window_is_for_its_stream_or_for_its_domain() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let (a, b) = pair();
        a.qp.post_send(&SendWr::write(0, &[], RemoteBuffer::default())).unwrap();
        a.completion();
        let mr = lendable(&b, 64);
        let window = b.pd.alloc_window(kind).unwrap();
        let (bind, lent) = window.bind(&mr, 0, 64, Access::REMOTE_READ).unwrap();
        assert_eq!(local(&b, bind), BOUND);
        let init = |s: &Side| s.pd.create_qp(&rnic_verbs::QpInit::new(&s.cq)).unwrap();
        let other_a = Side { device: a.device.clone(), pd: a.pd.clone(), cq: a.cq.clone(), qp: init(&a) };
        let other_b = Side { device: b.device.clone(), pd: b.pd.clone(), cq: b.cq.clone(), qp: init(&b) };
        join(&other_a, &other_b, &ConnPolicy::default());
        if kind == WindowKind::Type1 {
            allowed(&other_a, Op::Read, lent);
        } else {
            refused(&other_a, &other_b, Op::Read, lent, TaggedFault::NotAssociated, &mr);
        }
    }
}

#[test]
fn a_fast_region_is_used_by_a_peer_and_taken_away_again() {
    let (a, b) = pair();
    a.qp.post_send(&SendWr::write(0, &[], RemoteBuffer::default())).unwrap();
    a.completion();
    let mr = lendable(&b, 8192);
    let fast = b.pd.alloc_fast_region(4096).unwrap();
    assert!(fast.register(&mr, 0, 4097, REMOTE, None).is_err());
    let mut old = None;
    for round in 0..3u64 {
        let rights = REMOTE - Access::REMOTE_ATOMIC;
        let (op, lent) = fast.register(&mr, round * 100, 50, rights, Some(0x5000 + round * 0x1000)).unwrap();
        assert_eq!(local(&b, op), (Status::Success, CompletionOp::FastRegister));
        assert_ne!(Some(lent.rkey), old);
        assert_eq!(lent.addr, 0x5000 + round * 0x1000);
        let sink = a.mr(50);
        a.qp.post_send(&SendWr::read(1, &[sink.sge(0, 50)], lent)).unwrap();
        assert_eq!(a.completion().status, Status::Success);
        let at = round as usize * 100;
        assert!(Side::bytes(&sink) == pattern(8192, 1)[at..at + 50]);
        // Its key serves work requests of its own side, too.
        a.qp.post_recv(&RecvWr::new(2, &[sink.sge(0, 50)])).unwrap();
        b.qp.post_send(&SendWr::send(3, &[lent.as_local(10, 20)])).unwrap();
        assert_eq!((a.completion().len, b.completion().status), (20, Status::Success));
        assert!(Side::bytes(&sink)[..20] == pattern(8192, 1)[at + 10..at + 30]);
        assert_eq!(local(&b, fast.invalidate(lent.rkey)).1, CompletionOp::LocalInvalidate);
        assert!(!fast.is_valid());
        old = Some(lent.rkey);
    }
    let lent = RemoteBuffer { rkey: old.unwrap(), addr: 0x7000, len: 50 };
    refused(&a, &b, Op::Read, lent, TaggedFault::InvalidStag, &mr);
}

/// A bad local request fails with its name, and the queue behind it is flushed.
#[test]
fn a_request_on_keys_that_are_not_so_fails_in_its_place() {
    for (name, expected) in
        [("invalidate", Status::LocalProtection), ("bind", Status::MwBind), ("register", Status::MwBind)]
    {
        let (a, b) = pair();
        let mr = a.pd.register(64, REMOTE).unwrap();
        let window = a.pd.alloc_window(WindowKind::Type2).unwrap();
        let fast = a.pd.alloc_fast_region(64).unwrap();
        let op = match name {
            "invalidate" => SendOp::LocalInvalidate(0x0bad_0100),
            // The region has no MW_BIND; the helper would have refused.
            "bind" => {
                let lendable = lendable(&a, 64);
                let (op, _) = window.bind(&lendable, 0, 8, Access::REMOTE_READ).unwrap();
                let SendOp::BindWindow(bind) = op else { panic!() };
                SendOp::BindWindow(rnic_verbs::BindWindow { region: mr.lkey(), addr: mr.addr(), ..bind })
            }
            _ => {
                let (op, _) = fast.register(&mr, 0, 8, REMOTE, None).unwrap();
                let SendOp::FastRegister(reg) = op else { panic!() };
                SendOp::FastRegister(rnic_verbs::FastRegister { addr: mr.addr() + 60, ..reg })
            }
        };
        let target = b.mr(8);
        let wrs = [
            SendWr::write_inline(1, b"before", target.remote()),
            SendWr::local(2, op),
            SendWr::write_inline(3, b"behind", target.remote()),
        ];
        a.qp.post_send_list(&wrs).unwrap();
        let statuses: Vec<_> = a.completions(3).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(statuses, [(1, Status::Success), (2, expected), (3, Status::WrFlush)], "{name}");
        assert!(b.qp.wait_disconnected(Some(PATIENCE)).is_some());
        assert_eq!(&Side::bytes(&target)[..6], b"before", "{name}");
    }
}

#[test]
fn send_with_invalidate_takes_a_key_away_and_says_which() {
    let (a, b) = pair();
    let lent = b.pd.register(64, REMOTE | Access::REMOTE_INVALIDATE).unwrap();
    let other = lendable(&b, 64);
    let window = b.pd.alloc_window(WindowKind::Type2).unwrap();
    a.qp.post_send(&SendWr::write(0, &[], lent.remote())).unwrap();
    a.completion();
    let (bind, by_window) = window.bind(&other, 0, 64, Access::REMOTE_READ).unwrap();
    assert_eq!(local(&b, bind), BOUND);
    for (i, rkey) in [lent.rkey(), by_window.rkey].into_iter().enumerate() {
        let i = i as u64;
        b.qp.post_recv(&RecvWr::new(i, &[])).unwrap();
        let wr = SendWr::send_invalidate(i, &[], rkey);
        a.qp.post_send(&if i == 0 { wr } else { wr.solicited() }).unwrap();
        let c = b.completion();
        assert_eq!((c.wr_id, c.status, c.invalidated), (i, Status::Success, Some(rkey)));
        assert_eq!(a.completion().status, Status::Success);
    }
    assert!(!lent.is_valid() && !window.is_bound());
    // Of no more use to work requests here either.
    let refused = b.qp.post_recv(&RecvWr::new(9, &[lent.sge(0, 8)]));
    assert!(
        matches!(refused, Err(Error::LocalMemory { fault: TaggedFault::InvalidStag, .. })),
        "{refused:?}"
    );
    // A plain Send names none.
    b.qp.post_recv(&RecvWr::new(5, &[])).unwrap();
    a.qp.post_send(&SendWr::send(5, &[])).unwrap();
    assert_eq!(b.completion().invalidated, None);
}

#[test]
fn what_may_not_be_invalidated_is_not_and_the_stream_ends() {
    let (a, b) = fresh();
    join(&a, &b, &ConnPolicy::default());
    let plain = b.mr(64);
    let foreign = b.device.alloc_pd().unwrap().register(64, REMOTE | Access::REMOTE_INVALIDATE).unwrap();
    for rkey in [plain.rkey(), foreign.rkey(), 0x0bad_0000] {
        let dst = b.mr(8);
        b.qp.post_recv(&RecvWr::new(1, &[dst.sge(0, 8)])).unwrap();
        a.qp.post_send(&SendWr::send_invalidate(1, &[], rkey)).unwrap();
        let fault = Fault::Invalidate(Stag(rkey));
        assert_eq!(b.qp.wait_disconnected(Some(PATIENCE)), Some(End::Fault(fault)));
        let told = Some(End::Terminated(Some(fault.terminate())));
        assert_eq!(a.qp.wait_disconnected(Some(PATIENCE)), told);
        assert_eq!((b.completion().status, a.completion().wr_id), (Status::WrFlush, 1));
        again(&a, &b);
    }
    assert!(plain.is_valid() && foreign.is_valid());
}

#[test]
fn read_with_invalidate_takes_the_sinks_key_away_when_the_data_is_there() {
    let (a, b) = pair();
    let src = b.mr(1000);
    src.write_at(0, &pattern(1000, 7)).unwrap();
    let sink = a.mr(1000);
    let r = src.remote();
    let sge = [sink.sge(0, 1000)];
    let wr =
        SendWr { op: SendOp::ReadInvalidate { raddr: r.addr, rkey: r.rkey }, ..SendWr::read(1, &sge, r) };
    a.qp.post_send(&wr).unwrap();
    let c = a.completion();
    assert_eq!((c.opcode, c.status), (CompletionOp::Read, Status::Success));
    assert!(!sink.is_valid() && src.is_valid());
    assert!(Side::bytes(&sink) == pattern(1000, 7));
    let refused = a.qp.post_send(&SendWr::send(2, &sge));
    assert!(matches!(refused, Err(Error::LocalMemory { .. })), "{refused:?}");
}

#[test]
fn local_memory_is_checked_when_it_is_posted() {
    let (a, b) = pair();
    let (mr, read_only) = (a.mr(64), a.pd.register(64, Access::REMOTE_READ).unwrap());
    let foreign = a.device.alloc_pd().unwrap().register(64, REMOTE).unwrap();
    let target = b.mr(64).remote();
    let fault = |r: rnic_verbs::Result<()>| match r {
        Err(Error::LocalMemory { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    let send = |sge| fault(a.qp.post_send(&SendWr::send(0, &[mr.sge(0, 1), sge])));
    assert_eq!(send(mr.sge(60, 5)), TaggedFault::Bounds);
    assert_eq!(send(foreign.sge(0, 5)), TaggedFault::NotAssociated);
    assert_eq!(send(Sge { lkey: mr.lkey() ^ 1, ..mr.sge(0, 1) }), TaggedFault::InvalidStag);
    // Where something is written, the region must allow it.
    let sge = [read_only.sge(0, 8)];
    assert_eq!(fault(a.qp.post_recv(&RecvWr::new(0, &sge))), TaggedFault::Access);
    assert_eq!(fault(a.qp.post_send(&SendWr::read(0, &sge, target))), TaggedFault::Access);
    assert_eq!(fault(a.qp.post_send(&SendWr::swap(0, &sge[0], target, 1))), TaggedFault::Access);
    a.qp.post_send(&SendWr::write(1, &sge, target)).unwrap();
    assert_eq!((a.completion().wr_id, a.qp.query().outstanding), (1, 0));
}
